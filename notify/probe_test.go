package notify

import (
	"context"
	"fmt"
	"net"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/lapse-timers/lapse/timers/timerstest"
	"github.com/lapse-timers/lapse/timers/timerstest/faultproxy"
	"github.com/redis/go-redis/v9"
)

// hasty makes probes come soon. A path that works has all the time it needs to
// show it; one that is expected to be deaf is given less.
func hasty(heard time.Duration) func(*Listener) {
	return func(l *Listener) { l.pace.probe, l.pace.heard = 50*time.Millisecond, heard }
}

const (
	cannotHear = "cannot hear expired events"
	hearsAgain = "hearing expired events again"
)

// through connects to Redis by way of the proxy.
func through(t testing.TB, proxy *faultproxy.Redis) *redis.Client {
	t.Helper()
	o, err := redis.ParseURL(proxy.URL())
	if err != nil {
		t.Fatal(err)
	}
	c := redis.NewClient(o)
	t.Cleanup(func() { _ = c.Close() }) // it holds nothing
	return c
}

// noKeyLeft waits until the database is empty.
func noKeyLeft(t testing.TB, c *redis.Client) {
	t.Helper()
	timerstest.Eventually(t, within, "no key left", func() bool {
		n, err := c.DBSize(context.Background()).Result()
		return err == nil && n == 0
	})
}

// Nothing falls due for a long time: the subscription is neither torn down nor
// worn out, and the next timer is heard.
func TestIdleSubscriptionStays(t *testing.T) {
	t.Parallel()
	c := timerstest.Redis(t).Client()
	r := listen(t, c, c, func(l *Listener) {
		l.pace.probe, l.pace.heard = 10*time.Millisecond, within
		l.pace.ping, l.pace.pong, l.pace.look = 5*time.Millisecond, within, 5*time.Millisecond
	})
	r.gap()
	r.eventually("many probes", func() bool { return r.Stats().Probes > 100 })
	r.hears("1")
	if h := r.Health(); r.Deaf() || h != (Health{OK: true}) {
		t.Errorf("%+v", h)
	}
	r.stop()
	if s := r.Stats(); s.Resubscriptions != 0 || s.Gaps != 1 || s.Events != 1 || s.Ignored != 0 {
		t.Errorf("%+v", s)
	}
	if n := r.log.Count("\n"); n != 1 {
		t.Errorf("%d lines in a quiet life:\n%s", n, r.log)
	}
	noKeyLeft(t, c)
}

// A missed event alone is no reason to ask, as long as others come.
func TestNoProbeWhileTimersAreHeard(t *testing.T) {
	t.Parallel()
	c := timerstest.Redis(t).Client()
	r := listen(t, c, c, func(l *Listener) { l.pace.probe, l.pace.heard, l.pace.checked = time.Hour, time.Hour, time.Nanosecond })
	r.gap()
	for i := range 20 {
		r.hears(fmt.Sprint(i))
		r.Check()
		timerstest.Eventually(t, within, "check taken", func() bool { return len(r.check) == 0 })
	}
	r.stop()
	if n := r.Stats().Probes; n != 0 {
		t.Errorf("%d probes", n)
	}
}

// A timer whose event was missed while none comes is reason enough.
func TestProbeAtCheck(t *testing.T) {
	t.Parallel()
	c := timerstest.Redis(t).Client()
	r := listen(t, c, c, func(l *Listener) { l.pace.probe, l.pace.heard = time.Hour, 100*time.Millisecond })
	r.gap()
	r.eventually("a probe", func() bool { r.Check(); return r.Stats().Probes > 0 })
	r.eventually("heard", r.proven.Load)
}

// A subscription that is confirmed, answers pings and brings nothing is found
// out, told once, made anew, and trusted again after the first event.
func TestSilentlyDeafSubscription(t *testing.T) {
	t.Parallel()
	s := timerstest.RedisTCP(t)
	proxy := timerstest.RedisProxy(t, s)
	r := listen(t, s.Client(), through(t, proxy), hasty(time.Second))
	r.gap()
	r.hears("1")
	before := r.Stats()
	proxy.Swallow(true)
	began := time.Now()
	r.eventually("deaf", r.Deaf)
	t.Logf("noticed after %v, with a probe after %v of silence and twice %v for the event", time.Since(began), r.pace.probe, r.pace.heard)
	r.eventually("explained", func() bool {
		h := r.Health()
		return !h.OK && strings.Contains(h.Why, "do not come back") && strings.Contains(h.Why, "has E and x") && strings.Contains(h.Why, "proxy")
	})
	if proxy.Swallowed() == 0 {
		t.Error("nothing was swallowed")
	}
	// New subscriptions are sound to look at too, and must not be believed.
	hopes := atomic.Int64{}
	r.eventually("subscribed again and again", func() bool {
		if !r.Deaf() {
			hopes.Add(1)
		}
		return r.Stats().Resubscriptions >= before.Resubscriptions+2
	})
	if n := hopes.Load(); n != 0 {
		t.Errorf("%d times not deaf", n)
	}
	if n := r.log.Count(cannotHear); n != 1 || r.log.Count(hearsAgain) != 0 {
		t.Errorf("told %d times:\n%s", n, r.log)
	}
	proxy.Swallow(false)
	began = time.Now()
	r.eventually("hearing", func() bool { return !r.Deaf() })
	t.Logf("hearing %v after the messages pass again", time.Since(began))
	if h := r.Health(); h != (Health{OK: true}) {
		t.Errorf("%+v", h)
	}
	r.hears("2")
	if n := r.log.Count(hearsAgain); n != 1 {
		t.Errorf("recovery told %d times:\n%s", n, r.log)
	}
}

// The control: without probes the same subscription passes for sound.
func TestWithoutProbesSilentDeafnessStays(t *testing.T) {
	t.Parallel()
	s := timerstest.RedisTCP(t)
	proxy := timerstest.RedisProxy(t, s)
	r := listen(t, s.Client(), through(t, proxy), func(l *Listener) {
		l.pace.probe = 0
		l.pace.ping, l.pace.pong, l.pace.look = 5*time.Millisecond, within, 5*time.Millisecond
	})
	r.gap()
	proxy.Swallow(true)
	expire(t, s.Client(), "timers:{0}:t:a:1")
	pings := calls(t, s.Client(), "ping")
	r.eventually("many pings answered", func() bool { r.Check(); return calls(t, s.Client(), "ping") > pings+200 })
	if h := r.Health(); r.Deaf() || h != (Health{OK: true}) {
		t.Errorf("noticed: %+v", h)
	}
	if s := r.Stats(); s.Events != 0 || s.Probes != 0 || s.Resubscriptions != 0 {
		t.Errorf("%+v", s)
	}
}

// Several instances: one asks, and its event answers for all of them.
func TestProbesOfOthersAreHeard(t *testing.T) {
	t.Parallel()
	c := timerstest.Redis(t, "--notify-keyspace-events", "Ex").Client()
	asks := listen(t, c, c, func(l *Listener) { l.pace.probe, l.pace.heard = 20*time.Millisecond, within })
	listens := listen(t, c, c, func(l *Listener) { l.pace.probe = time.Hour })
	listens.eventually("proven", listens.proven.Load)
	if s := listens.Stats(); s.Probes != 0 || s.Events != 0 || s.Ignored != 0 {
		t.Errorf("%+v", s)
	}
	if asks.Stats().Probes == 0 {
		t.Error("nobody asked")
	}
	if asks.Listener.probe == listens.Listener.probe {
		t.Error("both have the same key")
	}
}

// Redis hides its flags. That they are right shows at once, and not with the
// first timer.
func TestHiddenFlagsAreProvedByAProbe(t *testing.T) {
	t.Parallel()
	for name, rename := range map[string]bool{"CONFIG renamed away": true, "CONFIG refused": false} {
		t.Run(name, func(t *testing.T) {
			args := []string{"--notify-keyspace-events", "Ex"}
			if rename {
				args = append(args, "--rename-command", "CONFIG", "")
			}
			s := timerstest.Redis(t, args...)
			r := listen(t, s.Client(), as(t, s, "&*", "-config"), func(l *Listener) { l.pace.heard = within })
			began := time.Now()
			r.eventually("not deaf", func() bool { return !r.Deaf() })
			t.Logf("proven after %v", time.Since(began))
			if h := r.Health(); !h.OK || !strings.Contains(h.Why, "notify-keyspace-events is unknown") || !strings.Contains(h.Why, "but events come") {
				t.Errorf("%+v", h)
			}
			killSubscribers(t, s.Client())
			r.eventually("subscribed again", func() bool { return r.Stats().Resubscriptions == 1 && !r.Deaf() })
			r.hears("1")
			if r.log.Count(cannotHear) != 1 || r.log.Count("INFO") != 2 { // the kill, and before and after it
				t.Errorf("log:\n%s", r.log)
			}
		})
	}
}

func TestHiddenFlagsThatAreWrong(t *testing.T) {
	t.Parallel()
	s := timerstest.Redis(t, "--notify-keyspace-events", "")
	r := listen(t, s.Client(), as(t, s, "&*", "-config"), hasty(200*time.Millisecond))
	r.eventually("subscribed again and again", func() bool { return r.Stats().Resubscriptions >= 2 })
	h := r.Health()
	if !r.Deaf() || h.OK || !strings.Contains(h.Why, "do not come back") || !strings.Contains(h.Why, "is unknown") ||
		!strings.Contains(h.Why, "notify-keyspace-events Ex") {
		t.Errorf("%+v", h)
	}
	if n := r.log.Count("\n"); n != 1 || r.log.Count(cannotHear) != 1 {
		t.Errorf("%d lines:\n%s", n, r.log)
	}
	setFlagsTo(t, s.Client(), "Ex") // by the operator
	r.eventually("not deaf", func() bool { return !r.Deaf() })
	r.hears("1")
	if r.log.Count(hearsAgain) != 1 {
		t.Errorf("log:\n%s", r.log)
	}
}

// A Redis that takes no writes says nothing about its events.
func TestProbeThatCannotBeWrittenJudgesNothing(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	for _, tc := range []struct {
		name  string
		args  []string
		rules []any
		now   func(c *redis.Client) error
		then  func(c *redis.Client) error
	}{
		{"no memory", nil, []any{"&*"},
			func(c *redis.Client) error { return c.ConfigSet(ctx, "maxmemory", "1").Err() },
			func(c *redis.Client) error { return c.ConfigSet(ctx, "maxmemory", "0").Err() }},
		{"too few replicas", nil, []any{"&*"},
			func(c *redis.Client) error { return c.ConfigSet(ctx, "min-replicas-to-write", "1").Err() },
			func(c *redis.Client) error { return c.ConfigSet(ctx, "min-replicas-to-write", "0").Err() }},
		{"no right to write", nil, []any{"&*", "-set"},
			func(*redis.Client) error { return nil },
			func(c *redis.Client) error { return c.Do(ctx, "acl", "setuser", "lapse", "+set").Err() }},
		{"no right to touch", nil, []any{"&*", "-exists"},
			func(*redis.Client) error { return nil },
			func(c *redis.Client) error { return c.Do(ctx, "acl", "setuser", "lapse", "+exists").Err() }},
	} {
		t.Run(tc.name, func(t *testing.T) {
			s := timerstest.Redis(t, tc.args...)
			if err := tc.now(s.Client()); err != nil {
				t.Fatal(err)
			}
			r := listen(t, s.Client(), as(t, s, tc.rules...), func(l *Listener) {
				l.pace.probe, l.pace.heard = 10*time.Millisecond, within
			})
			r.gap()
			unwritten := func() bool {
				r.mu.Lock()
				defer r.mu.Unlock()
				return r.unwritten != nil
			}
			r.eventually("given up", unwritten)
			if h := r.Health(); r.Deaf() || h != (Health{OK: true}) {
				t.Errorf("%+v", h)
			}
			if err := tc.then(s.Client()); err != nil {
				t.Fatal(err)
			}
			r.eventually("proven", r.proven.Load)
			if s := r.Stats(); s.Resubscriptions != 0 || r.log.Count("WARN") != 0 {
				t.Errorf("%+v, log:\n%s", s, r.log)
			}
		})
	}
}

// Nothing tells whether events come: neither the flags nor a probe.
func TestHiddenFlagsAndNoProbe(t *testing.T) {
	t.Parallel()
	s := timerstest.Redis(t, "--notify-keyspace-events", "Ex")
	r := listen(t, s.Client(), as(t, s, "&*", "-config", "-set"), hasty(within))
	r.eventually("told", func() bool { return r.log.Count(cannotHear) == 1 })
	if h := r.Health(); !r.Deaf() || h.OK || !strings.Contains(h.Why, "is unknown") || !strings.Contains(h.Why, "no key could be written (NOPERM") {
		t.Errorf("%+v", h)
	}
	r.hears("1")
	if h := r.Health(); r.Deaf() || !h.OK {
		t.Errorf("%+v", h)
	}
}

// Flags that are cleared while a probe is under way explain it: they are
// mended, and the subscription stays.
func TestClearedFlagsAreNoDeafSubscription(t *testing.T) {
	t.Parallel()
	c := timerstest.Redis(t).Client()
	r := listen(t, c, c, func(l *Listener) {
		l.pace.look, l.pace.probe, l.pace.heard = time.Hour, 50*time.Millisecond, 500*time.Millisecond
	})
	r.gap()
	for range 3 {
		repairs := r.Stats().Repairs
		setFlagsTo(t, c, "")
		r.eventually("mended", func() bool { return r.Stats().Repairs > repairs })
		r.hears("1")
	}
	if s := r.Stats(); s.Resubscriptions != 0 || r.Deaf() {
		t.Errorf("%+v", s)
	}
}

// A failover leads to a server that was never told to announce anything: flags
// are no data, and are not replicated.
func TestAnotherServerWithoutFlags(t *testing.T) {
	t.Parallel()
	first, second := timerstest.Redis(t), timerstest.Redis(t, "--notify-keyspace-events", "")
	var to atomic.Pointer[timerstest.RedisServer]
	to.Store(first)
	o := *first.Client().Options()
	o.Dialer = func(ctx context.Context, _, _ string) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, "unix", to.Load().Addr())
	}
	c := redis.NewClient(&o)
	defer c.Close()
	r := listen(t, first.Client(), c, nil)
	r.gap()
	r.hears("1")
	to.Store(second)
	began := time.Now()
	first.Kill()
	r.eventually("hearing the other", func() bool { return r.Stats().Resubscriptions == 1 && !r.Deaf() })
	r.admin = second.Client()
	r.hears("2")
	took := time.Since(began)
	t.Logf("heard %v after the switch", took)
	if took > 2*time.Second {
		t.Errorf("took %v", took)
	}
}
