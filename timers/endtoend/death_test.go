package endtoend

import (
	"fmt"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/stretchr/testify/require"
	"golang.org/x/sync/errgroup"

	"github.com/lapse-timers/lapse/timers/client"
	"github.com/lapse-timers/lapse/timers/timerstest"
)

// lateness is how long after its due time the stream stored the latest fire.
func lateness(t *testing.T, nc *nats.Conn) (worst time.Duration) {
	t.Helper()
	fired, at := storedAt(t, nc)
	for i, f := range fired {
		worst = max(worst, at[i].Sub(f.Due))
	}
	return worst
}

// parallel calls f for 0 to n-1 from several callers.
func parallel(t *testing.T, callers, n int, f func(i int) error) {
	t.Helper()
	var group errgroup.Group
	for w := range callers {
		group.Go(func() error {
			for i := w; i < n; i += callers {
				if err := f(i); err != nil {
					return err
				}
			}
			return nil
		})
	}
	require.NoError(t, group.Wait())
}

// fireEvenly sets n timers, due over a stretch of time that begins in a second.
func fireEvenly(t *testing.T, c *client.Client, l *ledger, n int, over time.Duration) {
	t.Helper()
	at := time.Now().Add(time.Second)
	parallel(t, 64, n, func(i int) error {
		res, err := c.Set(t.Context(), "kill", []byte("x"), client.At(at.Add(time.Duration(i)*over/time.Duration(n))), client.ID(fmt.Sprint(i)))
		if err == nil {
			l.add(&life{topic: "kill", id: res.ID, payload: "x", rev: res.Rev, due: res.Due})
		}
		return err
	})
}

// An instance that is killed has its claims fired by the others within seconds,
// not after the lease, which is left at its half a minute here.
func TestKillsAmongSeveralInstances(t *testing.T) {
	for _, n := range []int{2, 3} {
		t.Run(fmt.Sprint(n), func(t *testing.T) {
			t.Parallel() // with the other row
			total := timerstest.Size(2000, 10_000)
			over := time.Duration(timerstest.Size(4, 8)) * time.Second
			rs, ns := timerstest.Redis(t), timerstest.NATS(t)
			var instances []*timerstest.LapseServer
			for range n {
				instances = append(instances, timerstest.LapseOn(t, rs.URL(), ns.URL()))
			}
			nc := ns.Connect(t)
			c := newClient(t, nc)
			l := newLedger()
			fireEvenly(t, c, l, total, over)
			kills := 0
			for end := time.Now().Add(over); time.Now().Before(end); kills++ {
				began := time.Now()
				i := instances[kills%n]
				i.Kill()
				i.Start()
				time.Sleep(700*time.Millisecond - time.Since(began)) // the pace of the kills is the point
			}
			timerstest.Eventually(t, 30*time.Second, "all are on the stream", func() bool { return count(t, nc, "TIMERS", ">") >= total })
			nothingLeft(t, rs.Client())
			l.check(t, onStream(t, nc))
			worst := lateness(t, nc)
			t.Logf("%d kills, worst lateness %v", kills, worst)
			require.GreaterOrEqual(t, kills, timerstest.Size(2, 7))
			require.Less(t, worst, 4*time.Second*timerstest.Slow)
		})
	}
}

// The only instance is killed in the middle of fires. What it had claimed comes
// within seconds of the next one's start.
func TestKillOfTheOnlyInstance(t *testing.T) {
	const n = 2000
	rs := timerstest.Redis(t)
	ns := timerstest.NATSProcess(t)
	lapse := timerstest.LapseOn(t, rs.URL(), ns.URL())
	nc := ns.Connect(t)
	c := newClient(t, nc)
	l := newLedger()
	at := time.Now().Add(2 * time.Second)
	parallel(t, 64, n, func(i int) error {
		res, err := c.Set(t.Context(), "kill", []byte("x"), client.At(at), client.ID(fmt.Sprint(i)))
		if err == nil {
			l.add(&life{topic: "kill", id: res.ID, payload: "x", rev: res.Rev, due: res.Due})
		}
		return err
	})
	// NATS stands still, so that claims are there whose fate nobody knows.
	ns.Pause()
	timerstest.Eventually(t, 20*time.Second, "timers are claimed", func() bool {
		return rs.Client().ZCard(t.Context(), "timers:{0}:tried").Val() >= n/10
	})
	lapse.Kill()
	claimed := rs.Client().ZCard(t.Context(), "timers:{0}:tried").Val()
	ns.Resume()
	lapse.Start()
	ready := time.Now()
	timerstest.Eventually(t, 30*time.Second, "all are on the stream", func() bool { return count(t, nc, "TIMERS", ">") >= n })
	took := time.Since(ready)
	nothingLeft(t, rs.Client())
	l.check(t, onStream(t, nc))
	t.Logf("%d claims were left behind; all were on the stream %v after the restart", claimed, took)
	require.Less(t, took, 3*time.Second*timerstest.Slow)
}
