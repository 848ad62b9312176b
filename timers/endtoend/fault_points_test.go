package endtoend

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/lapse-timers/lapse/timers/client"
	"github.com/lapse-timers/lapse/timers/timerstest"
)

// crash is a run of the program built with the tag faults, under a prefix of
// its own, which kills itself at one point.
type crash struct {
	prefix, stream string
	lapse          *timerstest.LapseServer
	c              *client.Client
	nc             *nats.Conn
	rdb            *redis.Client
}

const pointTimers = 20

// crashAt prepares an instance that dies at the point; start it with
// lapse.Start. The lease is long enough for a busy machine to acknowledge in
// time: an acknowledgement that comes late is another attempt.
func crashAt(t *testing.T, rs *timerstest.RedisServer, ns *timerstest.NATSServer, at string) *crash {
	t.Helper()
	prefix := "at-" + strings.ReplaceAll(at, ":", "-")
	s := &crash{prefix: prefix, stream: strings.ToUpper(prefix), nc: ns.Connect(t), rdb: rs.Client()}
	s.lapse = timerstest.LapseWithFaults(t, "LAPSE_REDIS_URL="+rs.URL(), "LAPSE_NATS_URL="+ns.URL(), "LAPSE_PREFIX="+prefix,
		"LAPSE_LEASE=4s", "LAPSE_RETRY_MAX=1s", "FAULT_KILL="+at)
	var err error
	s.c, err = client.New(s.nc, client.Prefix(prefix), client.Timeout(20*time.Second))
	require.NoError(t, err)
	return s
}

// dies waits until the instance has killed itself.
func (s *crash) dies(t *testing.T) {
	t.Helper()
	timerstest.Eventually(t, soon, "the instance passes the point and kills itself", func() bool { return !s.lapse.Running() })
	require.Equal(t, -1, s.lapse.Wait(), "it ended by a signal")
}

// again starts the instance without faults.
func (s *crash) again(t *testing.T) {
	t.Helper()
	s.lapse.Set("FAULT_KILL=")
	s.lapse.Start()
}

// setMany sets timers that are due a little apart, so that they are claimed in
// several batches, or at the same instant when apart is 0.
func (s *crash) setMany(t *testing.T, apart time.Duration) {
	t.Helper()
	first := time.Now().Add(500 * time.Millisecond)
	for i := range pointTimers {
		_, err := s.c.Set(t.Context(), "point", []byte("x"), client.At(first.Add(time.Duration(i)*apart)), client.ID(fmt.Sprint(i)))
		require.NoError(t, err)
	}
}

// settled waits until n timers are on the stream and nothing is left in
// Redis, and returns how often each id is on the stream.
func (s *crash) settled(t *testing.T, n int) map[string]int {
	t.Helper()
	js, err := jetstream.New(s.nc)
	require.NoError(t, err)
	timerstest.Eventually(t, soon, fmt.Sprintf("%d timers are on the stream", n), func() bool {
		stream, err := js.Stream(t.Context(), s.stream)
		return err == nil && int(stream.CachedInfo().State.Msgs) >= n
	})
	var keys []string
	deadline := time.AfterFunc(soon-time.Second, func() { t.Logf("keys: %q", keys) })
	defer deadline.Stop()
	timerstest.Eventually(t, soon, "only bookkeeping keys are left", func() bool {
		keys = nil
		all, err := s.rdb.Keys(t.Context(), s.prefix+":*").Result()
		require.NoError(t, err)
		for _, k := range all {
			if name := strings.TrimPrefix(k, s.prefix+":"); name != "meta" && name != "{0}:rev" && !strings.HasPrefix(name, "{crew}:") {
				keys = append(keys, k)
			}
		}
		return len(keys) == 0
	})
	timerstest.CheckInvariants(t, s.rdb, s.prefix)
	stream, err := js.Stream(t.Context(), s.stream)
	require.NoError(t, err)
	stored := map[string]int{}
	for seq := uint64(1); seq <= stream.CachedInfo().State.LastSeq; seq++ {
		m, err := stream.GetMsg(t.Context(), seq)
		require.NoError(t, err)
		f, err := client.ParseFired(m.Header, m.Data)
		require.NoError(t, err)
		require.False(t, f.Fired.Before(f.Due), "%s fired at %v, due %v", f.ID, f.Fired, f.Due)
		stored[f.ID]++
	}
	return stored
}

// The real program dies between two steps of a fire, and starts again: each
// timer arrives, once on the stream, and once altogether when the crash was
// before the first publish.
func TestKilledBetweenTheStepsOfAFire(t *testing.T) {
	t.Parallel()
	rs, ns := timerstest.Redis(t), timerstest.NATS(t)
	for _, tc := range []struct {
		at    string
		apart time.Duration
		once  bool // no subscriber sees any of them twice
		full  bool // the stream takes half of them at first
	}{
		{at: "claim:1", once: true},
		{at: "claimed:1", once: true},
		{at: "publish:1", once: true},
		{at: "claimed:4", apart: 10 * time.Millisecond},
		{at: "publish:9", apart: 10 * time.Millisecond},
		{at: "sent:9"},
		{at: "published:1"},
		{at: "published:9", apart: 10 * time.Millisecond},
		{at: "ack:1"},
		{at: "acked:2", apart: 10 * time.Millisecond},
		{at: "release:1", full: true},
		{at: "released:1", full: true},
	} {
		t.Run(tc.at, func(t *testing.T) {
			t.Parallel()
			s := crashAt(t, rs, ns, tc.at)
			var stream jetstream.StreamConfig
			js, err := jetstream.New(s.nc)
			require.NoError(t, err)
			if tc.full {
				stream = jetstream.StreamConfig{Name: s.stream, Subjects: []string{s.prefix + ".fired.>"}, MaxMsgs: pointTimers / 2,
					Discard: jetstream.DiscardNew, Duplicates: 2 * time.Minute, Storage: jetstream.FileStorage}
				_, err = js.CreateStream(t.Context(), stream)
				require.NoError(t, err)
			}
			s.lapse.Start()
			r := receive(t, s.c)
			require.NoError(t, s.nc.Flush())
			s.setMany(t, tc.apart)
			s.dies(t)
			require.NoError(t, s.nc.Flush())
			before := len(r.all())
			if tc.full {
				stream.MaxMsgs = -1
				_, err = js.UpdateStream(t.Context(), stream)
				require.NoError(t, err)
			}
			s.again(t)
			stored := s.settled(t, pointTimers)
			require.Len(t, stored, pointTimers)
			for id, n := range stored {
				require.Equal(t, 1, n, "%s is on the stream", id)
			}
			require.NoError(t, s.nc.Flush())
			seen := map[string]int{}
			for _, f := range r.all() {
				seen[f.ID]++
			}
			require.Len(t, seen, pointTimers, "a subscriber saw all")
			if tc.once {
				require.Zero(t, before, "nothing was published before the crash")
				require.Len(t, r.all(), pointTimers, "a subscriber saw each once")
			}
			t.Logf("killed at %s after a subscriber had seen %d; it saw %d in all", tc.at, before, len(r.all()))
		})
	}
}

// The real program dies before or after Redis was asked: the requester learns
// nothing, and what was or was not carried out holds.
func TestKilledBetweenTheStepsOfARequest(t *testing.T) {
	t.Parallel()
	rs, ns := timerstest.Redis(t), timerstest.NATS(t)
	// The last of the timers is the one whose request meets the crash.
	request := func(t *testing.T, do func(ctx context.Context) error) {
		t.Helper()
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		require.ErrorIs(t, do(ctx), client.ErrUnconfirmed)
	}
	for _, tc := range []struct {
		at    string
		there bool // the timer is there after the crash, and fires
	}{
		{at: "set:3", there: false},
		{at: "stored:3", there: true},
		{at: "cancel:1", there: true},
		{at: "cancelled:1", there: false},
	} {
		t.Run(tc.at, func(t *testing.T) {
			t.Parallel()
			s := crashAt(t, rs, ns, tc.at)
			s.lapse.Start()
			due := client.At(time.Now().Add(4 * time.Second))
			set := func(id string) error {
				_, err := s.c.Set(t.Context(), "point", []byte("x"), due, client.ID(id))
				return err
			}
			require.NoError(t, set("0"))
			require.NoError(t, set("1"))
			want := map[string]int{"0": 1, "1": 1}
			if strings.HasPrefix(tc.at, "cancel") {
				request(t, func(ctx context.Context) error { _, err := s.c.Cancel(ctx, "point", "1"); return err })
				if !tc.there {
					delete(want, "1")
				}
			} else {
				request(t, func(ctx context.Context) error {
					_, err := s.c.Set(ctx, "point", []byte("x"), due, client.ID("2"))
					return err
				})
				if tc.there {
					want["2"] = 1
				}
			}
			s.dies(t)
			timerstest.CheckInvariants(t, s.rdb, s.prefix)
			require.EqualValues(t, len(want), s.rdb.ZCard(t.Context(), s.prefix+":{0}:due").Val(), "what is stored after the crash")
			s.again(t)
			require.Equal(t, want, s.settled(t, len(want)))
		})
	}
}

// A fault that is misspelt must not pass for one that was survived.
func TestUnknownFaultPointIsAnError(t *testing.T) {
	t.Parallel()
	for _, fault := range []string{"FAULT_KILL=nowhere:1", "FAULT_KILL=ack:0", "FAULT_KILL=ack", "FAULT_SLOW=ack:5", "FAULT_OFF=everything"} {
		l := timerstest.LapseWithFaults(t, quickExit, fault)
		l.Launch()
		require.Equal(t, 2, l.Wait(), fault)
		require.Contains(t, l.Log(), strings.SplitN(fault, "=", 2)[0])
	}
}

// Instances hear the same events and see the same overdue timers; slow
// publishing keeps claims open while others look.
func TestSlowPublishesOfThreeInstances(t *testing.T) {
	t.Parallel()
	const n = 500
	rs, ns := timerstest.Redis(t), timerstest.NATS(t)
	for range 3 {
		timerstest.LapseWithFaults(t, "LAPSE_REDIS_URL="+rs.URL(), "LAPSE_NATS_URL="+ns.URL(), "FAULT_SLOW=publish:5ms").Start()
	}
	nc := ns.Connect(t)
	c := newClient(t, nc)
	r := receive(t, c)
	require.NoError(t, nc.Flush())
	a := newAttempts()
	a.setMany(t, c, "slow", n, []byte("x"), timesIn(time.Now().Add(2*time.Second), time.Second, n))
	a.allOnce(t, nc, rs.Client())
	require.Len(t, r.await(t, n, soon), n, "a subscriber saw each once")
}
