package reconcile

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lapse-timers/lapse/timers"
)

const ms = time.Millisecond

// fill puts n timers of one score into the set.
func (r *rig) fill(n int, name string, score time.Duration) {
	for i := range n {
		r.set(0, fmt.Sprintf("%s:%06d", name, i), score)
	}
}

func TestSleepsUntilTheNextScore(t *testing.T) {
	bubble(t, func(t *testing.T, r *rig) {
		a := r.set(0, "a:1", 300*ms)
		b := r.set(0, "a:2", 950*ms)
		r.run()
		r.until(1200 * ms)
		looks := r.since(0)
		require.Len(t, looks, 5)
		r.almost(0, looks[0].at, "at the start")
		// Redis expires a key when now is strictly past its time.
		r.almost(301*ms, looks[1].at, "the first score")
		r.almost(301*ms+testGrace, looks[2].at, "was it heard?")
		r.almost(951*ms, looks[3].at, "the second score")
		r.almost(951*ms+testGrace, looks[4].at, "was it heard?")
		require.Equal(t, looks[1].at, a.expired)
		require.Equal(t, looks[3].at, b.expired)
		require.Empty(t, r.swept())
		require.Empty(t, r.missed)
		require.EqualValues(t, 2, r.loop.Stats().Touched.Load())
	})
}

func TestLooksOnceASecond(t *testing.T) {
	for name, members := range map[string]int{"nothing pending": 0, "pending for later": 100} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T, r *rig) {
				r.fill(members, "later", time.Hour)
				r.run()
				r.until(9500 * ms)
				require.Len(t, r.since(0), 10)
				require.EqualValues(t, 10, r.loop.Stats().Passes.Load())

				// Set by another instance, which says nothing.
				e := r.set(0, "a:1", 9900*ms)
				r.until(11 * time.Second)
				require.NotZero(t, e.expired)
				require.Less(t, e.expired, 10100*ms)
			})
		})
	}
}

func TestTriggerThatIsStillThereIsTouchedAgain(t *testing.T) {
	bubble(t, func(t *testing.T, r *rig) {
		r.set(0, "a:1", 100*ms).stuck = true
		r.run()
		r.until(800 * ms)
		looks := r.since(101 * ms)
		last := slices.IndexFunc(looks, func(l look) bool { return l.named > 0 })
		require.Positive(t, last)
		for i := 1; i <= last; i++ {
			r.almost(ms, looks[i].at-looks[i-1].at, "a millisecond later")
		}
		require.InDelta(t, 182, last, 10)
		got := r.swept()
		require.Len(t, got, 1)
		require.GreaterOrEqual(t, got[0].at, 100*ms+testGrace)
		require.Less(t, got[0].at, 100*ms+testGrace+2*ms)
		require.Equal(t, []timers.Ref{{Topic: "a", ID: "1"}}, got[0].refs)
		require.EqualValues(t, 1, r.loop.Stats().Recovered.Load())
		// It looks once more after it, and then has peace.
		require.LessOrEqual(t, len(looks)-last, 4)
	})
}

// A set that was due at once is looked at in its very millisecond.
func TestTriggerInItsVeryMillisecond(t *testing.T) {
	bubble(t, func(t *testing.T, r *rig) {
		e := r.set(0, "a:1", 0)
		r.run()
		r.until(5 * ms)
		r.almost(ms, e.expired, "at the next millisecond")
		require.EqualValues(t, 2, r.loop.Stats().Touched.Load())
	})
}

func TestLostEventIsRecoveredAfterTheGrace(t *testing.T) {
	bubble(t, func(t *testing.T, r *rig) {
		r.unheard = true
		r.set(0, "a:1", 100*ms)
		r.run()
		r.until(800 * ms)
		got := r.swept()
		require.Len(t, got, 1)
		require.GreaterOrEqual(t, got[0].at, 100*ms+testGrace)
		require.Less(t, got[0].at, 100*ms+testGrace+2*ms)
		require.Len(t, r.missed, 1)
		require.LessOrEqual(t, len(r.since(0)), 7, "nothing is gained by looking meanwhile")
	})
}

func TestDeafClaimsAtTheVeryScore(t *testing.T) {
	bubble(t, func(t *testing.T, r *rig) {
		r.deaf.Store(true)
		r.set(0, "a:1", 300*ms)
		r.set(0, "a:2", 700*ms)
		r.run()
		r.until(900 * ms)
		got := r.swept()
		require.Len(t, got, 2)
		r.almost(300*ms, got[0].at, "claimed")
		r.almost(700*ms, got[1].at, "claimed")
		for _, l := range r.since(0) {
			require.Zero(t, l.touched)
			require.Zero(t, l.grace)
		}
		require.Empty(t, r.missed, "that events do not come is known")
		require.LessOrEqual(t, len(r.since(0)), 6)
	})
}

// The listener becomes deaf while the loop waits for events.
func TestDeafFromAWakeOn(t *testing.T) {
	bubble(t, func(t *testing.T, r *rig) {
		r.unheard = true
		r.set(0, "a:1", 100*ms)
		r.run()
		r.until(120 * ms)
		require.Empty(t, r.swept())
		r.deaf.Store(true)
		r.loop.Wake()
		r.until(121 * ms)
		require.Len(t, r.swept(), 1)
		require.Empty(t, r.missed)
	})
}

func TestWakeBeforeWakesForAnEarlierTimer(t *testing.T) {
	bubble(t, func(t *testing.T, r *rig) {
		r.set(0, "a:1", 800*ms)
		r.run()
		r.until(100 * ms)
		for _, later := range []time.Duration{801 * ms, 900 * ms, time.Hour} {
			r.set(0, fmt.Sprint("a:", later), later)
			r.loop.WakeBefore(0, r.redis(later))
		}
		r.until(200 * ms)
		require.Empty(t, r.since(ms), "it was woken for nothing")

		e := r.set(0, "a:2", 500*ms)
		r.loop.WakeBefore(0, r.redis(500*ms))
		r.until(600 * ms)
		looks := r.since(ms)
		require.NotEmpty(t, looks)
		r.almost(200*ms, looks[0].at-500*time.Microsecond, "it looks at once")
		r.almost(501*ms, e.expired, "touched")
	})
}

// The answer under way does not know of the set, and must not put it to sleep.
func TestWakeBeforeIsNotLostDuringAPass(t *testing.T) {
	bubble(t, func(t *testing.T, r *rig) {
		r.reply = 20 * ms
		r.run()
		r.until(10 * ms) // the first look is done, its answer is on the way
		require.Len(t, r.since(0), 1)
		e := r.set(0, "a:1", 15*ms)
		r.loop.WakeBefore(0, r.redis(15*ms))
		r.until(100 * ms)
		require.NotZero(t, e.expired)
		r.almost(20*ms, e.expired, "as soon as the answer is there")
	})
}

// Nor must the first answer after a failure.
func TestWakeBeforeIsNotLostDuringRecovery(t *testing.T) {
	bubble(t, func(t *testing.T, r *rig) {
		r.err = errAway
		r.run()
		r.until(10 * ms)
		r.change(func() { r.err, r.reply = nil, 20*ms })
		r.until(30 * ms) // the second look is done, its answer is on the way
		require.EqualValues(t, 1, r.loop.Stats().Failures.Load())
		require.Len(t, r.since(0), 2)
		e := r.set(0, "a:1", 35*ms)
		r.loop.WakeBefore(0, r.redis(35*ms))
		r.until(100 * ms)
		require.NotZero(t, e.expired)
		require.Less(t, e.expired, 45*ms)
	})
}

func TestWakeWakesEveryPartition(t *testing.T) {
	bubble(t, func(t *testing.T, r *rig) {
		r.partitions = 3
		r.run()
		r.until(500 * ms)
		require.Len(t, r.since(0), 3)
		for range 5 {
			r.loop.Wake()
		}
		r.until(501 * ms)
		seen := map[int]int{}
		for _, l := range r.since(500 * ms) {
			seen[l.p]++
		}
		for p := range 3 {
			require.Positive(t, seen[p])
			require.LessOrEqual(t, seen[p], 2, "wakes fall together")
		}
		r.loop.WakeBefore(1, r.redis(510*ms))
		r.until(502 * ms)
		looks := r.since(501*ms + 300*time.Microsecond)
		require.Len(t, looks, 1)
		require.Equal(t, 1, looks[0].p)
	})
}

// A burst is larger than one look: all of it is touched soon, and the looks
// that touch again what is being claimed are few.
func TestBurst(t *testing.T) {
	for name, claims := range map[string]time.Duration{"claimed at once": 0, "claimed after a while": 20 * ms} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T, r *rig) {
				r.unheard = claims > 0
				const n = 4000
				r.fill(n, "burst", 10*ms)
				r.run()
				if claims > 0 { // a firer that takes 256 at a time
					for range n/256 + 1 {
						r.until(r.now() + claims/10)
						r.claimExpired(256)
					}
				}
				r.until(100 * ms)
				r.change(func() {
					for m, e := range r.entries {
						require.NotZero(t, e.expired, m)
					}
				})
				require.Less(t, len(r.since(0)), 40)
				require.Empty(t, r.swept())
			})
		})
	}
}

// claimExpired claims up to n timers whose event has left.
func (r *rig) claimExpired(n int) {
	r.change(func() {
		for _, e := range r.entries {
			if n > 0 && e.expired > 0 && e.score < lease {
				e.score = lease
				n--
			}
		}
	})
}
