package timers_test

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/lapse-timers/lapse/timers"
	"github.com/lapse-timers/lapse/timers/timerstest"
)

// mate is an instance of the crew in this process.
type mate struct {
	*timers.Crew
	id      string
	fires   chan bool // one slot: what it says of itself
	rescued chan struct{}
	noticed chan timers.Notice
	end     func() // as kill -9 would: it signs no more, and leaves nothing in order
}

func (r *rig) join(id string) *mate {
	m := &mate{id: id, fires: make(chan bool, 1), rescued: make(chan struct{}, 100), noticed: make(chan timers.Notice, 100)}
	m.fires <- true
	m.Crew = timers.NewCrew(r.store, timers.CrewConfig{
		Instance: id,
		Fires:    func() bool { f := <-m.fires; m.fires <- f; return f },
		Rescued:  func() { m.rescued <- struct{}{} },
		Noticed:  func(p int, due time.Time) { m.noticed <- timers.Notice{Partition: p, Due: due.UnixMilli()} },
	})
	ctx, cancel := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	wg.Go(func() { m.Run(ctx) })
	// Its listener: only what is on the channel reaches it.
	sub := r.rdb.Subscribe(ctx, timers.ExpiredChannel(0))
	_, err := sub.Receive(ctx)
	require.NoError(r, err)
	wg.Go(func() {
		for msg := range sub.Channel() {
			m.Hear(msg.Payload)
		}
	})
	m.end = sync.OnceFunc(func() { cancel(); sub.Close(); wg.Wait() })
	r.Cleanup(m.end)
	return m
}

// crewOf is a crew of n whose members have all seen each other.
func (r *rig) crewOf(n int) []*mate {
	var out []*mate
	for i := range n {
		out = append(out, r.join(fmt.Sprint("i", i)))
	}
	r.sees(n, out...)
	return out
}

func (r *rig) sees(n int, mates ...*mate) {
	r.Helper()
	timerstest.Eventually(r, 10*time.Second, fmt.Sprint("a crew of ", n), func() bool {
		for _, m := range mates {
			if m.Size() != n {
				return false
			}
		}
		return true
	})
}

// claimBy claims as the instance does: its tokens begin with its name.
func (r *rig) claimBy(m *mate, ids ...string) []timers.Claim {
	r.Helper()
	return r.claim(m.id+".1", time.Hour, ids...).Claims
}

func TestCrewSharesEveryTimerOnce(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	for _, n := range []int{1, 2, 3} {
		crew := r.crewOf(n)
		leads, shares := 0, make([]int, n)
		for i := range 3000 {
			takers := 0
			for j, m := range crew {
				if m.Mine(ref(fmt.Sprint(i))) {
					takers++
					shares[j]++
				}
			}
			require.Equal(t, 1, takers, "timer %d", i)
		}
		for _, m := range crew {
			if m.Leads(0) {
				leads++
			}
		}
		require.Equal(t, 1, leads)
		for _, s := range shares {
			require.InDelta(t, 3000/n, s, 200)
		}
		for _, m := range crew {
			m.end()
			m.Leave(t.Context())
		}
		require.Zero(t, r.rdb.Exists(t.Context(), "timers:{crew}:members", "timers:{crew}:alive:i0").Val())
	}
	r.clean()
}

// Who cannot deliver takes no share; where nobody can, everything is everyone's.
func TestCrewOfThoseThatFire(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	crew := r.crewOf(2)
	<-crew[0].fires
	crew[0].fires <- false
	r.sees(1, crew...)
	for i := range 100 {
		require.False(t, crew[0].Mine(ref(fmt.Sprint(i))))
		require.True(t, crew[1].Mine(ref(fmt.Sprint(i))))
	}
	require.False(t, crew[0].Leads(0))
	<-crew[1].fires
	crew[1].fires <- false
	r.sees(0, crew...)
	require.True(t, crew[0].Mine(ref("a")) && crew[1].Mine(ref("a")))
	require.True(t, crew[0].Leads(0) && crew[1].Leads(0))
}

// The claims of the dead come back within their life, those of the living stay.
func TestClaimsOfADeadInstanceComeBack(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	crew := r.crewOf(2)
	var dead, living []string
	for i := range 1200 { // more than a page
		if id := fmt.Sprint(i); i%2 == 0 {
			dead = append(dead, id)
		} else {
			living = append(living, id)
		}
		r.set(fmt.Sprint(i), 0, "x")
	}
	last := r.set("last", 0, "x")
	r.past(last.Due)
	r.claimBy(crew[0], living[:500]...)
	stopped := r.claimBy(crew[1], dead[:500]...)[0]
	late := r.claimBy(crew[1], "last")[0]
	require.Equal(t, timers.CancelTooLate, r.cancel(stopped.ID).Outcome)

	died := time.Now()
	crew[1].end()
	<-crew[0].rescued
	require.Less(t, time.Since(died), 3*time.Second)
	require.EqualValues(t, 1, crew[0].Stats().Deaths.Load())
	require.EqualValues(t, 501, crew[0].Stats().Rescued.Load())
	r.ack(late) // it was delivered before, and its acknowledgement came late
	require.Nil(t, r.get("last"))

	again := r.claim("i0.2", time.Hour, dead[:500]...).Claims
	require.Len(t, again, 499, "all but the one that was cancelled meanwhile")
	for _, c := range again {
		require.True(t, c.Unsure)
		require.Equal(t, 2, c.Attempt)
	}
	require.Empty(t, r.claim("i0.3", time.Hour, living[:500]...).Claims, "the living keep theirs")
	r.sees(1, crew[0])
	timerstest.Eventually(t, 5*time.Second, "it is struck off", func() bool {
		return r.rdb.ZCard(t.Context(), "timers:{crew}:members").Val() == 1
	})
	timerstest.CheckInvariants(t, r.rdb, prefix)
}

// One that comes alone after the death finds it too.
func TestClaimsOfTheDeadAreFoundAtTheStart(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	m := r.join("a")
	r.sees(1, m)
	r.past(r.set("x", 0, "x").Due)
	r.claimBy(m, "x")
	m.end()
	timerstest.Eventually(t, 10*time.Second, "its life is over, and Redis has been up for as long", func() bool {
		return r.rdb.Exists(t.Context(), "timers:{crew}:alive:a").Val() == 0 && r.store.Uptime(t.Context()) > 2*time.Second
	})
	began := time.Now()
	next := r.join("b")
	<-next.rescued
	require.Less(t, time.Since(began), time.Second)
}

// Signs that were lost together with one's own prove nobody's death.
func TestLostSignsAreNoDeath(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	crew := r.crewOf(3)
	r.past(r.set("x", 0, "x").Due)
	r.claimBy(crew[0], "x")
	for range 3 {
		// As a Redis that comes back without its last seconds.
		require.NoError(t, r.rdb.Del(t.Context(), "timers:{crew}:alive:i0", "timers:{crew}:alive:i1", "timers:{crew}:alive:i2").Err())
		timerstest.Eventually(t, 5*time.Second, "all have signed again", func() bool {
			return r.rdb.Exists(t.Context(), "timers:{crew}:alive:i0", "timers:{crew}:alive:i1", "timers:{crew}:alive:i2").Val() == 3
		})
	}
	r.sees(3, crew...)
	for _, m := range crew {
		require.Zero(t, m.Stats().Deaths.Load())
	}
}

// What a stop could not settle is given back at once.
// Redis is emptied under the instances, or replaced: their record comes back, so that the
// next one joins them, and where another's stands they say so.
func TestRecordOfAnEmptiedRedis(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	m := r.crewOf(1)[0]
	record := func() string { return r.rdb.HGet(t.Context(), r.keys.Meta(), "deployment").Val() }
	require.NoError(t, r.rdb.FlushDB(t.Context()).Err())
	timerstest.Eventually(t, 10*time.Second, "the record", func() bool { return record() == r.store.Deployment() })
	next := timers.NewStore(r.rdb, r.keys)
	require.NoError(t, next.Open(t.Context()))
	require.Equal(t, r.store.Deployment(), next.Deployment())
	require.Empty(t, m.Foreign())

	_, err := r.rdb.TxPipelined(t.Context(), func(p redis.Pipeliner) error {
		p.FlushDB(t.Context())
		return p.HSet(t.Context(), r.keys.Meta(), "version", "1", "partitions", "2", "deployment", "other").Err()
	})
	require.NoError(t, err)
	require.ErrorIs(t, <-m.Foreign(), timers.ErrDeployment)
	require.Equal(t, "other", record())
}

func TestLeaveGivesClaimsBack(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	crew := r.crewOf(2)
	r.past(r.set("x", 0, "x").Due)
	r.claimBy(crew[1], "x")
	crew[1].Retire()
	r.sees(1, crew...)
	require.True(t, crew[0].Mine(ref("x")))
	require.Empty(t, r.claim("i0.1", time.Hour, "x").Claims, "it lives on until its fires are settled")
	crew[1].end()
	crew[1].Leave(t.Context())
	again := r.claim("i0.2", time.Hour, "x").Claims
	require.Len(t, again, 1)
	require.True(t, again[0].Unsure)
	require.Zero(t, crew[0].Stats().Deaths.Load())
}

// A Redis in which nobody can sign leaves everybody with everything.
func TestCrewThatCannotSign(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	crew := r.crewOf(2)
	require.NoError(t, r.rdb.Del(t.Context(), "timers:{crew}:members").Err())
	require.NoError(t, r.rdb.Set(t.Context(), "timers:{crew}:members", "x", 0).Err())
	r.sees(0, crew...)
	require.True(t, crew[0].Mine(ref("a")) && crew[1].Mine(ref("a")))
	require.True(t, crew[0].Leads(0) && crew[1].Leads(0))
	require.NoError(t, r.rdb.Del(t.Context(), "timers:{crew}:members").Err())
	r.sees(2, crew...)
}

func TestSignsAtMaxmemory(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	require.NoError(t, r.rdb.ConfigSet(t.Context(), "maxmemory", "1").Err())
	crew := r.crewOf(2)
	require.NotEqual(t, crew[0].Leads(0), crew[1].Leads(0))
}

func TestNoticeReachesTheOthers(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	crew := r.crewOf(2)
	lead, other := crew[0], crew[1]
	if !lead.Leads(0) {
		lead, other = other, lead
	}
	lead.Tell(0, time.UnixMilli(7)) // has nobody to tell
	other.Tell(0, time.UnixMilli(42))
	require.Equal(t, timers.Notice{Due: 42}, <-lead.noticed)
	other.Tell(0, time.UnixMilli(43))
	require.Equal(t, timers.Notice{Due: 43}, <-lead.noticed)
	other.Tell(0, time.Time{}) // nobody knows when
	require.Equal(t, timers.Notice{Due: 1}, <-lead.noticed)
	require.Empty(t, other.noticed)
}
