package endtoend

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/lapse-timers/lapse/timers/client"
	"github.com/lapse-timers/lapse/timers/timerstest"
)

const stormRequesters = 64

// How many timers a storm sets, and how far ahead at most.
func stormSize() (timers int, longest time.Duration) {
	return timerstest.Size(4000, 10_000), time.Duration(timerstest.Size(2500, 5000)) * time.Millisecond
}

// runStorm runs the storm on ready instances and checks everything.
func runStorm(t *testing.T, rdb *redis.Client, ns *timerstest.NATSServer) []client.Fired {
	t.Helper()
	nc := ns.Connect(t)
	c := newClient(t, nc)
	r := receive(t, c)
	require.NoError(t, nc.Flush())
	l := newLedger()
	timers, longest := stormSize()
	storm(t, c, l, timers, stormRequesters, longest)
	r.await(t, l.count(delivered), longest+20*time.Second)
	nothingLeft(t, rdb)
	l.check(t, onStream(t, nc))
	t.Logf("delivered %d, never %d, being delivered at the answer %d", l.count(delivered), l.count(never), l.count(maybe))
	require.Greater(t, l.count(never), timers/4, "the storm did cancel and replace in time")
	return r.all()
}

func TestStorm(t *testing.T) {
	t.Parallel()
	rs, ns := timerstest.Redis(t), timerstest.NATS(t)
	timerstest.LapseOn(t, rs.URL(), ns.URL())
	report(t, "quiet", runStorm(t, rs.Client(), ns))
}

func TestStormOverPartitions(t *testing.T) {
	t.Parallel()
	rs, ns := timerstest.Redis(t), timerstest.NATS(t)
	l := timerstest.LapseOn(t, rs.URL(), ns.URL(), "LAPSE_PARTITIONS=4")
	nc := ns.Connect(t)
	c := newClient(t, nc)
	r := receive(t, c)
	require.NoError(t, nc.Flush())
	led := newLedger()
	storm(t, c, led, 2000, 16, 2*time.Second)
	r.await(t, led.count(delivered), 20*time.Second)
	timerstest.Eventually(t, 10*time.Second, "only the bookkeeping keys are left: meta, and the counter of each partition", func() bool {
		return len(records(t, rs.Client())) == 5
	})
	led.check(t, onStream(t, nc))
	l.Stop()
	require.Equal(t, 0, l.Wait())
	timerstest.CheckInvariants(t, rs.Client(), "timers")
}

// every does f once a period until the returned function is called.
func every(t *testing.T, period time.Duration, f func(context.Context)) (stop func()) {
	ctx, cancel := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	wg.Go(func() {
		tick := time.NewTicker(period)
		defer tick.Stop()
		for {
			select {
			case <-ctx.Done():
				return
			case <-tick.C:
				f(ctx)
			}
		}
	})
	return func() { cancel(); wg.Wait() }
}

func TestStormWhileEventsAreLost(t *testing.T) {
	rs, ns := timerstest.Redis(t), timerstest.NATS(t)
	timerstest.LapseOn(t, rs.URL(), ns.URL())
	rdb := rs.Client()
	stop := every(t, 200*time.Millisecond, func(ctx context.Context) {
		rdb.Do(ctx, "CLIENT", "KILL", "TYPE", "pubsub")
		rdb.ConfigSet(ctx, "notify-keyspace-events", "")
	})
	fired := runStorm(t, rdb, ns)
	stop()
	l := report(t, "subscriber killed and flags cleared every 200 ms", fired)
	require.Less(t, quantile(l, .99), 500*time.Millisecond)
}

func TestStormWithoutConfig(t *testing.T) {
	rs, ns := timerstest.Redis(t, "--rename-command", "CONFIG", "", "--notify-keyspace-events", ""), timerstest.NATS(t)
	lapse := timerstest.LapseOn(t, rs.URL(), ns.URL())
	code, body, err := lapse.Ready()
	require.NoError(t, err)
	require.Equal(t, 200, code)
	require.Contains(t, body, "degraded")
	l := report(t, "no CONFIG, no flags", runStorm(t, rs.Client(), ns))
	require.Less(t, quantile(l, .99), 500*time.Millisecond)
}

func TestStormOnSeveralInstances(t *testing.T) {
	t.Parallel()
	for _, n := range []int{2, 3} {
		t.Run(fmt.Sprint(n), func(t *testing.T) {
			rs, ns := timerstest.Redis(t), timerstest.NATS(t)
			for range n {
				timerstest.LapseOn(t, rs.URL(), ns.URL())
			}
			report(t, fmt.Sprint(n, " instances"), runStorm(t, rs.Client(), ns))

			// Each request is answered once.
			nc := ns.Connect(t)
			inbox := nc.NewInbox()
			replies, err := nc.SubscribeSync(inbox)
			require.NoError(t, err)
			for i := range 200 {
				m := request("timers.set.once", fmt.Sprint(i), "@in 1h")
				m.Reply = inbox
				require.NoError(t, nc.PublishMsg(m))
			}
			for range 200 {
				_, err := replies.NextMsg(10 * time.Second)
				require.NoError(t, err)
			}
			_, err = replies.NextMsg(300 * time.Millisecond)
			require.Error(t, err, "a request was answered twice")
			require.EqualValues(t, 200, rs.Client().ZCard(t.Context(), "timers:{0}:due").Val())
		})
	}
}

// The point of the nudge: many pending keys do not make the due ones late.
func TestOnTimeAmongManyPending(t *testing.T) {
	pending, due := timerstest.Size(20_000, 100_000), 200
	over := time.Duration(timerstest.Size(4, 10)) * time.Second
	rs, ns := timerstest.Redis(t), timerstest.NATS(t)
	timerstest.LapseOn(t, rs.URL(), ns.URL())
	nc := ns.Connect(t)
	c := newClient(t, nc)
	fill(t, c, pending)
	r := receive(t, c)
	require.NoError(t, nc.Flush())
	l := newLedger()
	start := time.Now().Add(500 * time.Millisecond)
	for i := range due {
		at := start.Add(time.Duration(i) * over / time.Duration(due))
		res, err := c.Set(t.Context(), "soon", []byte("x"), client.At(at))
		require.NoError(t, err)
		l.add(&life{topic: "soon", id: res.ID, payload: "x", rev: res.Rev, due: res.Due})
	}
	lag := report(t, fmt.Sprint(due, " due among ", pending, " pending"), r.await(t, due, 20*time.Second))
	l.check(t, onStream(t, nc))
	// The figure is in the log; the bound leaves room for the race detector and
	// a busy machine. Without the nudge most would take minutes, and by sweep
	// alone none would come within the grace.
	require.Less(t, quantile(lag, .99), 150*time.Millisecond)
	require.EqualValues(t, pending, rs.Client().ZCard(t.Context(), "timers:{0}:due").Val())
}

// fill sets timers that are due in an hour.
func fill(t *testing.T, c *client.Client, n int) {
	t.Helper()
	const requesters = 128
	var wg sync.WaitGroup
	errs := make(chan error, requesters)
	for w := range requesters {
		wg.Go(func() {
			for i := w; i < n; i += requesters {
				if _, err := c.Set(t.Context(), "later", []byte("x"), client.In(time.Hour), client.ID(fmt.Sprint(i))); err != nil {
					errs <- err
					return
				}
			}
		})
	}
	wg.Wait()
	close(errs)
	for err := range errs {
		t.Fatal(err)
	}
}

func TestKillInTheMiddleOfFires(t *testing.T) {
	t.Parallel()
	const n = 1000
	rs, ns := timerstest.Redis(t), timerstest.NATS(t)
	lapse := timerstest.LapseOn(t, rs.URL(), ns.URL(), "LAPSE_LEASE=2s")
	nc := ns.Connect(t)
	c := newClient(t, nc)
	r := receive(t, c)
	require.NoError(t, nc.Flush())
	l := newAttempts()
	l.setMany(t, c, "kill", n, []byte("x"), timesIn(time.Now().Add(3*time.Second), 250*time.Millisecond, n))
	r.await(t, n/10, 20*time.Second)
	lapse.Kill()
	killed := len(r.all())
	lapse.Start()
	timerstest.Eventually(t, 20*time.Second, "all are on the stream", func() bool { return len(onStream(t, nc)) >= n })
	nothingLeft(t, rs.Client())
	l.check(t, onStream(t, nc))
	require.Less(t, killed, n, "it was killed in the middle")
	t.Logf("killed after %d of %d; a core subscriber saw %d", killed, n, len(r.all()))
}
