package reconcile

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lapse-timers/lapse/timers"
)

// Many timers of one moment: while they are set, each is as early as the first.
func TestWakeBeforeIsSilentForTheSameMoment(t *testing.T) {
	for _, deaf := range []bool{false, true} {
		t.Run(fmt.Sprint("deaf ", deaf), func(t *testing.T) {
			bubble(t, func(t *testing.T, r *rig) {
				r.deaf.Store(deaf)
				r.set(0, "a:1", 800*ms)
				r.run()
				r.until(100 * ms)
				for range 100 {
					time.Sleep(ms)
					r.loop.WakeBefore(0, r.redis(800*ms))
				}
				require.Empty(t, r.since(ms), "it was woken for nothing")
				e := r.set(0, "a:2", 799*ms)
				r.loop.WakeBefore(0, r.redis(799*ms))
				r.until(820 * ms)
				if deaf {
					r.almost(799*ms, r.swept()[0].at, "claimed")
				} else {
					r.almost(800*ms, e.expired, "touched")
				}
			})
		})
	}
}

// Others hold what is overdue, or a claim finds nothing to do with it. It still
// stands before everything else.
func TestFruitlessSweepsDoNotSpin(t *testing.T) {
	bubble(t, func(t *testing.T, r *rig) {
		r.sweep = func(context.Context, []timers.Ref) (int, error) { return 0, nil }
		r.fill(1000, "old", -time.Second)
		r.run()
		r.until(2 * time.Second)
		require.Less(t, len(r.since(0)), 500)

		e := r.set(0, "a:1", 2100*ms)
		r.loop.WakeBefore(0, r.redis(2100*ms))
		r.until(2200 * ms)
		require.NotZero(t, e.expired)
		require.LessOrEqual(t, e.expired, 2102*ms)
	})
}

// A look may see the timers that the sweep under way is at. Offered again,
// they would be claimed for nothing, and for the work of another instance.
func TestWhatIsBeingSweptIsNotOfferedAgain(t *testing.T) {
	bubble(t, func(t *testing.T, r *rig) {
		r.deaf.Store(true)
		r.sweep = func(_ context.Context, refs []timers.Ref) (int, error) {
			time.Sleep(10 * ms)
			return r.claim(refs), nil
		}
		r.fill(4*sweepBatch, "old", -time.Second)
		r.run()
		for i := range 4 { // each wakes a look in the middle of a sweep
			r.until(time.Duration(10*i+3) * ms)
			r.loop.Wake()
		}
		r.until(200 * ms)
		seen := map[timers.Ref]bool{}
		for _, s := range r.swept() {
			for _, ref := range s.refs {
				require.False(t, seen[ref], "%s at %v", ref, s.at)
				seen[ref] = true
			}
		}
		require.Len(t, seen, 4*sweepBatch)
		require.Len(t, r.swept(), 4)
	})
}

// Timers whose event has left and whose claim is under way stand before one
// that is due now: it must not wait for the looks to grow.
func TestUnclaimedDoNotHideFreshOnes(t *testing.T) {
	bubble(t, func(t *testing.T, r *rig) {
		r.unheard = true
		r.fill(500, "claiming", 10*ms)
		r.run()
		r.until(50 * ms)
		for i := range 10 {
			due := time.Duration(60+10*i) * ms
			e := r.set(0, fmt.Sprint("z:", i), due)
			r.loop.WakeBefore(0, r.redis(due))
			r.until(due + 8*ms)
			require.NotZero(t, e.expired)
			require.Less(t, e.expired, due+2*ms, "timer %d", i)
		}
	})
}

// Sets that come while looks fail must not take the pause from them.
func TestSetsDoNotHastenFailures(t *testing.T) {
	bubble(t, func(t *testing.T, r *rig) {
		r.err = errAway
		r.run()
		for r.now() < 2*time.Second {
			time.Sleep(ms)
			r.loop.WakeBefore(0, r.redis(r.now()))
		}
		require.Less(t, len(r.since(0)), 20)
	})
}
