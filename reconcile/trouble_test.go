package reconcile

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lapse-timers/lapse/timers"
)

// What is overdue and cannot be claimed now stands before everything else.
func TestOverdueNeitherSpinsNorHides(t *testing.T) {
	for name, sweep := range map[string]func(context.Context, []timers.Ref) (int, error){
		"sweep waits for NATS": forever,
		"sweep fails":          func(context.Context, []timers.Ref) (int, error) { return 0, timers.ErrUnavailable },
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T, r *rig) {
				r.sweep = sweep
				r.fill(1000, "old", -time.Second)
				r.run()
				r.until(5 * time.Second)
				require.LessOrEqual(t, len(r.since(0)), 12)

				e := r.set(0, "a:1", 5100*ms)
				r.loop.WakeBefore(0, r.redis(5100*ms))
				r.until(5200 * ms)
				require.NotZero(t, e.expired)
				require.LessOrEqual(t, e.expired, 5102*ms)
			})
		})
	}
}

func TestMissedIsToldOnceAGrace(t *testing.T) {
	for _, deaf := range []bool{false, true} {
		t.Run(fmt.Sprint("deaf ", deaf), func(t *testing.T) {
			bubble(t, func(t *testing.T, r *rig) {
				r.unheard = true
				r.deaf.Store(deaf)
				for i := range 60 {
					r.set(0, fmt.Sprint("a:", i), time.Duration(50*i)*ms)
				}
				r.run()
				r.until(4 * time.Second)
				require.EqualValues(t, 60, r.loop.Stats().Recovered.Load())
				if deaf {
					require.Empty(t, r.missed)
					return
				}
				require.Greater(t, len(r.missed), 8)
				for i := 1; i < len(r.missed); i++ {
					require.GreaterOrEqual(t, r.missed[i]-r.missed[i-1], testGrace)
				}
			})
		})
	}
}

func TestErrorsBackOffAndRecover(t *testing.T) {
	bubble(t, func(t *testing.T, r *rig) {
		r.err = errAway
		e := r.set(0, "a:1", 100*ms)
		r.run()
		r.until(10 * time.Second)
		looks := r.since(0)
		want := 20 * ms
		for i := 1; i < len(looks); i++ {
			r.almost(want, looks[i].at-looks[i-1].at, "twice as long, at most a second")
			want = min(2*want, time.Second)
		}
		require.Greater(t, len(looks), 12)
		require.EqualValues(t, len(looks), r.loop.Stats().Failures.Load())
		require.Zero(t, r.loop.Stats().Passes.Load())
		require.Equal(t, 1, strings.Count(r.log.String(), "cannot look"), "said once")

		r.change(func() { r.err = nil })
		r.until(12 * time.Second)
		require.Zero(t, e.expired, "it has become overdue")
		require.Len(t, r.swept(), 1)
		require.Equal(t, 1, strings.Count(r.log.String(), "answers again"))

		// A new failure begins with a short pause, and is said.
		r.change(func() { r.err = errAway })
		r.until(13500 * ms)
		r.change(func() { r.err = nil })
		looks = r.since(12 * time.Second)
		r.almost(20*ms, looks[1].at-looks[0].at, "after the first failure")
		require.Equal(t, 2, strings.Count(r.log.String(), "cannot look"))
	})
}

func TestStrangeMembersAreDiscarded(t *testing.T) {
	bubble(t, func(t *testing.T, r *rig) {
		r.set(0, "nonsense", -time.Hour)
		r.set(0, "a:", -time.Hour)
		r.set(0, "a:1", -time.Hour)
		r.run()
		r.until(100 * ms)
		require.ElementsMatch(t, []string{"nonsense", "a:"}, r.discarded)
		require.EqualValues(t, 2, r.loop.Stats().Discarded.Load())
		got := r.swept()
		require.Len(t, got, 1, "the others are not held up")
		require.Equal(t, []timers.Ref{{Topic: "a", ID: "1"}}, got[0].refs)
	})
}

// The sleep is counted from the answer of Redis, not from the end of the pass.
func TestTimeOfADiscardIsNotSlept(t *testing.T) {
	bubble(t, func(t *testing.T, r *rig) {
		r.discards = 30 * ms
		r.set(0, "nonsense", -time.Hour)
		e := r.set(0, "a:1", 50*ms)
		r.run()
		r.until(100 * ms)
		r.almost(51*ms, e.expired, "touched")
	})
}

func TestNothingHappensWhileAwaitBlocks(t *testing.T) {
	bubble(t, func(t *testing.T, r *rig) {
		r.gate = make(chan struct{})
		r.set(0, "a:1", -time.Second)
		e := r.set(0, "a:2", 2950*ms)
		r.run()
		r.until(time.Second)
		r.loop.Wake()
		r.loop.WakeBefore(0, r.redis(0))
		r.until(3 * time.Second)
		require.Empty(t, r.since(0))
		require.Empty(t, r.swept())
		close(r.gate)
		r.until(3001 * ms)
		require.Len(t, r.swept(), 1)
		require.NotZero(t, e.expired)
	})
}

// The rig says whether Run returned at once, and the bubble whether anything
// of it is left.
func TestRunEndsWithItsContext(t *testing.T) {
	for name, prepare := range map[string]func(*rig){
		"asleep":             func(*rig) {},
		"Redis is silent":    func(r *rig) { r.hang = true },
		"Redis is away":      func(r *rig) { r.err = errAway },
		"NATS is away":       func(r *rig) { r.gate = make(chan struct{}) },
		"a sweep is waiting": func(r *rig) { r.sweep = forever },
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T, r *rig) {
				r.partitions = 2
				r.fill(300, "old", -time.Second)
				prepare(r)
				r.run()
				r.until(1500 * ms)
				r.stop()
				n := len(r.since(0))
				r.until(5 * time.Second)
				require.Len(t, r.since(0), n)
			})
		})
	}
}
