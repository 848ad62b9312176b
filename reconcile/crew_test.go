package reconcile

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lapse-timers/lapse/timers"
)

// Who stands by looks half a grace after who nudges would have: then what is
// due is gone from the head, or nobody nudges any more.
func TestStandByTouchesHalfAGraceLater(t *testing.T) {
	bubble(t, func(t *testing.T, r *rig) {
		r.standsBy.Store(true)
		e := r.set(0, "a:1", 300*ms)
		r.run()
		r.until(time.Second)
		r.almost(300*ms+testGrace/2, e.expired, "touched")
		require.Empty(t, r.swept())
	})
}

// A steady rate of timers that another nudges costs few looks.
func TestStandByLooksSeldom(t *testing.T) {
	bubble(t, func(t *testing.T, r *rig) {
		r.standsBy.Store(true)
		for i := range 2000 {
			r.set(0, fmt.Sprint("a:", i), time.Duration(i)*ms)
		}
		r.run()
		for i := range 2000 { // the other one
			r.until(time.Duration(i) * ms)
			r.claim([]timers.Ref{{Topic: "a", ID: fmt.Sprint(i)}})
		}
		require.Less(t, len(r.since(0)), 25)
	})
}

// A timer that is set here and is the first one is told to who nudges, once,
// and touched here all the same, should the notice be lost.
func TestStandByTells(t *testing.T) {
	bubble(t, func(t *testing.T, r *rig) {
		r.standsBy.Store(true)
		r.run()
		r.until(10 * ms)
		e := r.set(0, "a:1", 50*ms)
		r.loop.WakeBefore(0, r.redis(50*ms))
		r.until(20 * ms)
		r.loop.WakeBefore(0, r.redis(55*ms)) // not earlier than what it knows
		r.until(300 * ms)
		require.Equal(t, []time.Duration{50 * ms}, r.told)
		r.almost(50*ms+testGrace/2, e.expired, "touched")
	})
}

// Who nudges looks at its own time, which may be a second away, so it is told of
// what this one would see in time by itself too; and of what was set while NATS
// was away from here. What comes later it has seen by then.
func TestStandByTellsOfAllThatComesSoon(t *testing.T) {
	bubble(t, func(t *testing.T, r *rig) {
		r.standsBy.Store(true)
		r.gate = make(chan struct{})
		r.run()
		r.until(10 * ms)
		r.loop.WakeBefore(0, r.redis(20*ms))
		close(r.gate)
		r.until(100 * ms)
		for _, due := range []time.Duration{2500 * ms, 1500 * ms, 950 * ms} {
			r.loop.WakeBefore(0, r.redis(due))
		}
		r.until(110 * ms)
		require.Equal(t, []time.Duration{20 * ms, 1500 * ms, 950 * ms}, r.told)
	})
}

func TestNoticeWakesWhoNudges(t *testing.T) {
	for _, standsBy := range []bool{false, true} {
		bubble(t, func(t *testing.T, r *rig) {
			r.standsBy.Store(standsBy)
			r.run()
			r.until(10 * ms)
			e := r.set(0, "a:1", 50*ms)
			r.loop.Noticed(0, r.redis(50*ms))
			r.until(500 * ms)
			require.Empty(t, r.told, "a notice is not passed on")
			if standsBy {
				require.Zero(t, e.expired, "its next look comes by itself")
			} else {
				r.almost(51*ms, e.expired, "touched")
			}
		})
	}
}

// Each claims its own share of what is overdue, and that of others only where
// it finds none of its own.
func TestOverdueIsShared(t *testing.T) {
	bubble(t, func(t *testing.T, r *rig) {
		own := func(ref timers.Ref) bool { return ref.ID[len(ref.ID)-1]%2 == 0 }
		r.mine = own
		r.fill(6000, "old", -time.Second)
		r.run()
		r.until(2 * time.Second)
		claims, others := 0, false
		for _, s := range r.swept() {
			require.LessOrEqual(t, len(s.refs), sweepBatch)
			mine := 0
			for _, ref := range s.refs {
				if own(ref) {
					mine++
				}
			}
			require.True(t, mine == 0 || mine == len(s.refs), "never mixed")
			if mine == 0 {
				others = true
			} else {
				require.False(t, others, "own ones first")
			}
			claims += len(s.refs)
		}
		require.True(t, others)
		require.Equal(t, 6000, claims, "nothing is claimed twice, nothing is left")
	})
}

// The patrol walks through all partitions, and what it mends is looked at.
func TestPatrol(t *testing.T) {
	bubble(t, func(t *testing.T, r *rig) {
		r.partitions, r.long, r.mend = 2, true, 3
		r.run()
		r.until(patrolEvery)
		require.EqualValues(t, 3, r.loop.Stats().Mended.Load())
		require.NotEmpty(t, r.since(patrolEvery))
		r.until(5 * patrolEvery)
		require.Equal(t, []patrol{{0, "0"}, {0, "7"}, {1, "0"}, {1, "7"}, {0, "0"}}, r.patrols)
		r.standsBy.Store(true)
		r.until(10 * patrolEvery)
		require.Len(t, r.patrols, 5, "another does it")
	})
}
