package endtoend

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/require"

	"github.com/lapse-timers/lapse/timers/client"
	"github.com/lapse-timers/lapse/timers/timerstest"
)

// room makes the stream of the run with room for n messages, or gives the one
// that is there that room; -1 is any number.
func (s *crash) room(t *testing.T, n int64) {
	t.Helper()
	js, err := jetstream.New(s.nc)
	require.NoError(t, err)
	_, err = js.CreateOrUpdateStream(t.Context(), jetstream.StreamConfig{Name: s.stream, Subjects: []string{s.prefix + ".fired.>"}, MaxMsgs: n,
		Discard: jetstream.DiscardNew, Duplicates: 2 * time.Minute, Storage: jetstream.FileStorage})
	require.NoError(t, err)
}

// dead are the ids of the timers that were given up on, once nothing else is
// pending.
func (s *crash) dead(t *testing.T) map[string]bool {
	t.Helper()
	timerstest.Eventually(t, soon, "each timer is delivered or dead", func() bool {
		return s.rdb.ZCard(t.Context(), s.prefix+":{0}:due").Val() == 0
	})
	dead := map[string]bool{}
	for item, err := range s.c.List(t.Context(), "point") {
		require.NoError(t, err)
		require.Equal(t, client.Dead, item.State, item.ID)
		dead[item.ID] = true
	}
	return dead
}

// The real program dies around the burial of timers that were given up on, or
// around telling of it: none is lost or told of twice, and each that is brought
// back is on the stream once. What the crash may cost is an announcement.
func TestKilledBetweenTheStepsOfABurial(t *testing.T) {
	t.Parallel()
	rs, ns := timerstest.Redis(t), timerstest.NATS(t)
	for _, tc := range []struct {
		at           string
		before, lost bool // told of before the crash; an announcement is lost with it
	}{
		{at: "bury:1"},
		{at: "buried:1", lost: true},
		{at: "announce:1", lost: true},
		{at: "announced:1", before: true},
	} {
		t.Run(tc.at, func(t *testing.T) {
			t.Parallel()
			s := crashAt(t, rs, ns, tc.at)
			s.lapse.Set("LAPSE_MAX_ATTEMPTS=1")
			s.room(t, pointTimers/2)
			told, err := s.nc.SubscribeSync(s.prefix + ".dead.>")
			require.NoError(t, err)
			s.lapse.Start()
			require.NoError(t, s.nc.Flush())
			s.setMany(t, 0)
			s.dies(t)
			timerstest.CheckInvariants(t, s.rdb, s.prefix)
			require.NoError(t, s.nc.Flush())
			before, _, err := told.Pending()
			require.NoError(t, err)
			require.Equal(t, tc.before, before > 0, "%d were told of before the crash", before)

			s.again(t)
			dead := s.dead(t)
			require.Len(t, dead, pointTimers/2)
			burials, ids := map[string]bool{}, map[string]bool{}
			hear := func(m *nats.Msg) {
				id := m.Header.Get("Timer-Id")
				require.True(t, dead[id], "%s was told of, and is not dead", id)
				require.False(t, burials[m.Header.Get("Nats-Msg-Id")], "%s was told of twice", id)
				burials[m.Header.Get("Nats-Msg-Id")], ids[id] = true, true
			}
			if !tc.lost && !tc.before {
				for range pointTimers / 2 {
					hear(next(t, told))
				}
			}
			s.room(t, -1)
			for id := range dead {
				_, err := s.c.Retry(t.Context(), "point", id)
				require.NoError(t, err)
			}
			stored := s.settled(t, pointTimers)
			require.Len(t, stored, pointTimers)
			for id, n := range stored {
				require.Equal(t, 1, n, "%s is on the stream", id)
			}
			left, _, err := told.Pending()
			require.NoError(t, err)
			for range left {
				hear(next(t, told))
			}
			if tc.lost {
				require.Less(t, len(ids), len(dead), "the crash cost an announcement")
			}
			t.Logf("killed at %s: %d dead, %d told of, %d of them before the crash", tc.at, len(dead), len(ids), before)
		})
	}
}

// The real program dies before or after Redis was asked to bring a dead timer
// back: the requester learns nothing, the timer is dead still or is delivered.
func TestKilledBetweenTheStepsOfARetry(t *testing.T) {
	t.Parallel()
	rs, ns := timerstest.Redis(t), timerstest.NATS(t)
	for _, tc := range []struct {
		at   string
		back bool // the timer is brought back in spite of the crash
	}{
		{at: "retry:1"},
		{at: "retried:1", back: true},
	} {
		t.Run(tc.at, func(t *testing.T) {
			t.Parallel()
			s := crashAt(t, rs, ns, tc.at)
			s.lapse.Set("LAPSE_MAX_ATTEMPTS=1")
			s.room(t, 1)
			s.lapse.Start()
			for i := range 2 {
				_, err := s.c.Set(t.Context(), "point", []byte("x"), client.In(0), client.ID(fmt.Sprint(i)))
				require.NoError(t, err)
			}
			dead := s.dead(t)
			require.Len(t, dead, 1, "the stream has room for one")
			var id string
			for id = range dead {
			}
			s.room(t, -1)
			ctx, cancel := context.WithTimeout(t.Context(), time.Second)
			defer cancel()
			_, err := s.c.Retry(ctx, "point", id)
			require.ErrorIs(t, err, client.ErrUnconfirmed)
			s.dies(t)
			timerstest.CheckInvariants(t, s.rdb, s.prefix)
			require.EqualValues(t, boolToInt(tc.back), s.rdb.ZCard(t.Context(), s.prefix+":{0}:due").Val())
			require.EqualValues(t, boolToInt(!tc.back), s.rdb.ZCard(t.Context(), s.prefix+":{0}:dead").Val())
			s.again(t)
			if !tc.back {
				_, err := s.c.Retry(t.Context(), "point", id)
				require.NoError(t, err)
			}
			require.Equal(t, map[string]int{"0": 1, "1": 1}, s.settled(t, 2))
		})
	}
}

// One instance dies with claims, and the one that finds it dead dies while it
// gives them back: the third one delivers all, long before the lease is over,
// which is half a minute here.
func TestKilledBetweenTheStepsOfARescue(t *testing.T) {
	t.Parallel()
	rs, ns := timerstest.Redis(t), timerstest.NATS(t)
	for _, at := range []string{"rescue:1", "rescued:1"} {
		t.Run(at, func(t *testing.T) {
			t.Parallel()
			s := crashAt(t, rs, ns, at)
			s.lapse.Set("LAPSE_LEASE=30s")
			s.lapse.Set("FAULT_KILL=publish:1")
			s.lapse.Start()
			r := receive(t, s.c)
			require.NoError(t, s.nc.Flush())
			s.setMany(t, 0)
			s.dies(t)
			require.NotZero(t, s.rdb.ZCard(t.Context(), s.prefix+":{0}:tried").Val(), "it died with claims")
			s.lapse.Set("FAULT_KILL=" + at)
			s.lapse.Launch()
			s.dies(t)
			began := time.Now() // what was given back is overdue, and nobody is there
			s.again(t)
			stored := s.settled(t, pointTimers)
			require.Less(t, time.Since(began), 20*time.Second, "it did not wait for the lease")
			require.Len(t, stored, pointTimers)
			for id, n := range stored {
				require.Equal(t, 1, n, "%s is on the stream", id)
			}
			seen := map[string]bool{}
			for _, f := range r.all() {
				seen[f.ID] = true
			}
			require.Len(t, seen, pointTimers, "a subscriber saw all")
			timerstest.Eventually(t, soon, "the dead are struck off", func() bool {
				return s.rdb.ZCard(t.Context(), s.prefix+":{crew}:members").Val() == 1
			})
		})
	}
}
