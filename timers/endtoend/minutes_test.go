package endtoend

import (
	"context"
	"fmt"
	"regexp"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lapse-timers/lapse/timers/client"
	"github.com/lapse-timers/lapse/timers/timerstest"
	"github.com/lapse-timers/lapse/timers/timerstest/faultproxy"
)

// Troubles that need minutes to show: a few seconds of them in make test, and
// the whole in make test-long.

// seconds is a stretch of time: short in make test, long in make test-long.
func seconds(short, long int) time.Duration {
	return time.Duration(timerstest.Size(short, long)) * time.Second
}

// gaps is how often the instance says that events may have been lost.
func gaps(t *testing.T, c *client.Client) int64 {
	t.Helper()
	s, err := c.Status(t.Context())
	require.NoError(t, err)
	return s.Counts.EventGaps
}

// Nothing that is published gets through for several leases while many timers
// fall due. All are delivered afterwards, the stream has each once, the copies
// of a fire have one id, and the counts say what happened.
func TestPublishesAreBlocked(t *testing.T) {
	t.Parallel()
	for _, delivery := range []string{"jetstream", "core"} {
		t.Run(delivery, func(t *testing.T) {
			t.Parallel()
			n, blocked := timerstest.Size(500, 2000), seconds(4, 75)
			s := table(t, "LAPSE_DELIVERY="+delivery, "LAPSE_LEASE="+seconds(1, 20).String(), "LAPSE_RETRY_MAX=1s")
			c, l := newClient(t, s.nc), newLedger()
			s.nats.Obey(func(m faultproxy.Message) faultproxy.Fault {
				if m.Published() && m.Subject == "timers.fired.blocked" {
					return faultproxy.Hold
				}
				return faultproxy.Pass
			})
			setAll(t, c, l, "blocked", n, []byte("x"), anHourAhead)
			last := fallDue(t, s.rdb, l, 100*time.Millisecond, time.Second)
			passes(t, last)
			passes(t, time.Now().Add(blocked))
			require.Empty(t, s.copies("blocked"))
			require.EqualValues(t, n, s.rdb.ZCard(t.Context(), "timers:{0}:due").Val(), "all are kept")
			s.nats.Obey(passAll)
			freed := time.Now()
			s.heardOf(t, "blocked", n)
			timerstest.Eventually(t, soon, "all are delivered", func() bool { return s.rdb.ZCard(t.Context(), "timers:{0}:due").Val() == 0 })
			t.Logf("all delivered %v after %v in which nothing got through", time.Since(freed).Round(time.Millisecond), blocked)
			s.clean(t)
			ids, lives := map[string]bool{}, map[string]bool{}
			for _, m := range s.copies("blocked") {
				ids[m.Header.Get("Nats-Msg-Id")], lives[m.Header.Get("Timer-Id")] = true, true
			}
			require.Len(t, lives, n)
			require.Len(t, ids, n, "the copies of a fire have one id")
			if delivery == "jetstream" {
				require.Equal(t, n, s.onStream(t, "blocked"))
			}
			st, err := c.Status(t.Context())
			require.NoError(t, err)
			require.EqualValues(t, n+1, st.Counts.Fired)
			require.Positive(t, st.Counts.Unknown+st.Counts.Stale+st.Counts.Refused, "the gap is in the counts")
		})
	}
}

// Nothing falls due for minutes: the subscription is neither torn down nor made
// anew, and the next timer fires by its event.
func TestNothingFallsDueForMinutes(t *testing.T) {
	t.Parallel()
	rs, ns := timerstest.Redis(t), timerstest.NATS(t)
	l := timerstest.LapseOn(t, rs.URL(), ns.URL(), "LAPSE_GRACE=10s") // by its event, or late
	nc := ns.Connect(t)
	c := newClient(t, nc)
	readyz(t, l, 200, "subscription", "ok")
	said, before := len(l.Log()), gaps(t, c)
	passes(t, time.Now().Add(seconds(6, 180)))
	source, lag := sourceOf(t, c, "idle")
	require.Equal(t, "event", source)
	require.Less(t, lag, time.Second)
	require.Equal(t, before, gaps(t, c), "it was subscribed all the time")
	require.Zero(t, scrape(t, l).sum("lapse_resubscriptions_total"))
	require.Empty(t, l.Log()[said:], "it had nothing to say")
	t.Logf("%v after its due time", lag)
}

// goroutines ends an instance with a dump of its stacks, and counts them.
func goroutines(t *testing.T, l *timerstest.LapseServer) int {
	t.Helper()
	require.NoError(t, syscall.Kill(l.Pid(), syscall.SIGQUIT))
	l.Wait()
	return len(regexp.MustCompile(`(?m)^goroutine \d+ `).FindAllString(l.Log(), -1))
}

// Redis refuses connections for longer than any patience that ends. The event
// path works within a moment after it is back, and nothing that was started to
// get there is left running: an instance that has seen none of it has as many
// goroutines.
func TestRedisRefusesConnections(t *testing.T) {
	t.Parallel()
	rs, ns := timerstest.RedisTCP(t), timerstest.NATS(t)
	l := timerstest.LapseOn(t, rs.URL(), ns.URL(), "LAPSE_GRACE=10s", "GOTRACEBACK=all")
	nc := ns.Connect(t)
	c := newClient(t, nc)
	readyz(t, l, 200, "subscription", "ok")
	rs.Stop()
	away := seconds(3, 15)
	passes(t, time.Now().Add(away))
	require.True(t, l.Running())
	rs.Start()
	back := time.Now()
	ready(t, l, 200)
	readyz(t, l, 200, "subscription", "ok")
	source, lag := sourceOf(t, c, "back")
	took := time.Since(back)
	t.Logf("fired %v after Redis was back from %v, %v after its due time", took.Round(time.Millisecond), away, lag)
	require.Equal(t, "event", source)
	require.Less(t, took, 2*time.Second*timerstest.Slow)
	nothingLeft(t, rs.Client())

	fresh := timerstest.LapseOn(t, rs.URL(), ns.URL(), "LAPSE_GRACE=10s", "GOTRACEBACK=all")
	readyz(t, fresh, 200, "subscription", "ok")
	had, has := goroutines(t, l), goroutines(t, fresh)
	t.Logf("%d goroutines, and %d of an instance that has seen nothing", had, has)
	require.Greater(t, has, 10)
	require.InDelta(t, has, had, 5)
}

// Redis is killed and started again and again: the program lives, says so at
// the end, and each timer that fell due meanwhile is delivered once.
func TestRedisRestartsAgainAndAgain(t *testing.T) {
	t.Parallel()
	const n, restarts = 300, 5
	pace := seconds(1, 6)
	rs, ns := timerstest.Redis(t, "--appendfsync", "always"), timerstest.NATS(t)
	l := timerstest.LapseOn(t, rs.URL(), ns.URL())
	nc := ns.Connect(t)
	c, a := newClient(t, nc), newAttempts()
	a.setMany(t, c, "restarts", n, nil, anHourAhead)
	require.Equal(t, n, a.count(delivered))
	fallDue(t, rs.Client(), a.ledger, 100*time.Millisecond, restarts*pace)
	for range restarts {
		began := time.Now()
		rs.Kill()
		rs.Start()
		passes(t, began.Add(pace))
	}
	ready(t, l, 200)
	a.allOnce(t, nc, rs.Client())
	require.True(t, l.Running())
	require.Equal(t, 1, strings.Count(l.Log(), `"msg":"starting"`), "it was the same program all the time")
	readyz(t, l, 200, "subscription", "ok")
}

// Delays of any length are kept, on the clock of whoever waits: no timer comes
// before its delay is over, and none waits for the next second.
func TestDelaysAreKept(t *testing.T) {
	t.Parallel()
	const n = 1000
	rs, ns := timerstest.Redis(t), timerstest.NATS(t)
	timerstest.LapseOn(t, rs.URL(), ns.URL())
	nc := ns.Connect(t)
	c := newClient(t, nc)
	var asked [n]atomic.Int64 // when the timer was asked for, in ns since the start
	began := time.Now()
	early, came, subsecond := make(chan string, n), make(chan struct{}, n), atomic.Int64{}
	_, err := c.Handle(t.Context(), "delay", func(_ context.Context, f client.Fired) {
		var i, ms int
		fmt.Sscan(string(f.Payload), &i, &ms) //nolint:errcheck // it is ours
		if d := time.Since(began) - time.Duration(asked[i].Load()); d < time.Duration(ms)*time.Millisecond {
			early <- fmt.Sprintf("%s after %v", f.Payload, d)
		}
		if f.Due.Nanosecond() != 0 {
			subsecond.Add(1)
		}
		came <- struct{}{}
	})
	require.NoError(t, err)
	parallel(t, 32, n, func(i int) error {
		ms := 1 + i*3 // 1 ms to 3 s
		asked[i].Store(int64(time.Since(began)))
		_, err := c.Set(t.Context(), "delay", fmt.Append(nil, i, ms), client.In(time.Duration(ms)*time.Millisecond), client.ID(fmt.Sprint(i)))
		return err
	})
	deadline := time.After(soon)
	for i := range n {
		select {
		case <-came:
		case <-deadline:
			t.Fatalf("%d of %d came", i, n)
		}
	}
	require.Empty(t, early)
	require.Greater(t, subsecond.Load(), int64(n*9/10), "due times are not rounded to seconds")
	nothingLeft(t, rs.Client())
}
