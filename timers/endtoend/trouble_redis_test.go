package endtoend

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lapse-timers/lapse/timers/client"
	"github.com/lapse-timers/lapse/timers/timerstest"
	"github.com/lapse-timers/lapse/timers/timerstest/faultproxy"
)

func TestRedisAwayAtStart(t *testing.T) {
	t.Parallel()
	rs, ns := timerstest.Redis(t), timerstest.NATS(t)
	rs.Kill()
	addr := freeAddr(t)
	l := timerstest.Lapse(t, "LAPSE_REDIS_URL="+rs.URL(), "LAPSE_NATS_URL="+ns.URL(), "LAPSE_HTTP_LISTEN="+addr)
	l.Launch()
	l.HTTP = addr
	readySays(t, l, 503, "waiting for Redis")
	// Long enough for many attempts: the pause between them ends at a second.
	for end := time.Now().Add(3 * time.Second); time.Now().Before(end); time.Sleep(100 * time.Millisecond) {
		code, body, err := l.Ready()
		require.NoError(t, err)
		require.Equal(t, 503, code, body)
	}
	require.Equal(t, 1, strings.Count(l.Log(), `"msg":"waiting"`), "it says once what it waits for")
	rs.Start()
	l.AwaitReady()
	ready(t, l, 200)
	require.Equal(t, 1, strings.Count(l.Log(), `"msg":"waiting"`))

	nc := ns.Connect(t)
	a := newAttempts()
	require.NoError(t, a.set(t, newClient(t, nc), "a", "1", nil, client.In(0)))
	a.allOnce(t, nc, rs.Client())
}

func TestRedisAwayLater(t *testing.T) {
	t.Parallel()
	for _, kind := range []struct {
		name       string
		leave      func(*timerstest.RedisServer)
		comeBack   func(*timerstest.RedisServer)
		mostUnsure int // sets whose outcome is unknown; -1 for any number
	}{
		// A refused connection tells that nothing was stored; only what was under
		// way at the stop may be unsure, and here nothing is.
		{"refused", (*timerstest.RedisServer).Stop, (*timerstest.RedisServer).Start, 0},
		{"silent", (*timerstest.RedisServer).Pause, (*timerstest.RedisServer).Resume, -1},
	} {
		t.Run(kind.name, func(t *testing.T) {
			t.Parallel()
			rs, ns := timerstest.Redis(t, "--appendfsync", "always"), timerstest.NATS(t)
			l := timerstest.LapseOn(t, rs.URL(), ns.URL(), "LAPSE_REQUEST_TIMEOUT=500ms")
			nc := ns.Connect(t)
			c := newClient(t, nc)
			a := newAttempts()
			due := time.Now().Add(1500 * time.Millisecond)
			a.setMany(t, c, "before", 100, nil, timesIn(due, time.Second, 100))
			require.Equal(t, 100, a.count(delivered))

			kind.leave(rs)
			a.setMany(t, c, "meanwhile", 32, nil, func(int) client.When { return client.In(0) })
			require.Equal(t, 100, a.count(delivered), "a set was answered OK with Redis away")
			if kind.mostUnsure >= 0 {
				require.LessOrEqual(t, len(a.unsure), kind.mostUnsure)
			}
			t.Logf("%d answered nothing was stored, %d may be stored", len(a.refused), len(a.unsure))
			readySays(t, l, 503, `"redis":{"status":"down"`)
			_, err := c.Get(t.Context(), "before", "before0")
			require.ErrorIs(t, err, client.ErrUnavailable)
			_, err = c.Cancel(t.Context(), "before", "before99")
			require.True(t, errors.Is(err, client.ErrUnavailable) || errors.Is(err, client.ErrUnconfirmed), "%v", err)
			if errors.Is(err, client.ErrUnconfirmed) {
				for _, v := range a.lives {
					if v.id == "before99" {
						a.ledger.set(v, maybe)
					}
				}
			}
			require.Equal(t, 0, stored(t, nc)*boolToInt(time.Now().Before(due)), "nothing fired early")
			timerstest.Eventually(t, soon, "all are due", func() bool { return time.Now().After(due.Add(time.Second)) })

			kind.comeBack(rs)
			ready(t, l, 200)
			require.NoError(t, a.set(t, c, "after", "after", nil, client.In(0)))
			require.Equal(t, 101, a.count(delivered)+a.count(maybe), "a set after the trouble is answered OK")
			a.allOnce(t, nc, rs.Client())
		})
	}
}

func boolToInt(b bool) int {
	if b {
		return 1
	}
	return 0
}

// TestStopWhileRedisIsAway sends SIGTERM while timers are due and requests wait.
func TestStopWhileRedisIsAway(t *testing.T) {
	t.Parallel()
	const grace = 4 * time.Second
	for _, kind := range []struct {
		name            string
		leave, comeBack func(*timerstest.RedisServer)
	}{
		{"refused", (*timerstest.RedisServer).Stop, (*timerstest.RedisServer).Start},
		{"silent", (*timerstest.RedisServer).Pause, (*timerstest.RedisServer).Resume},
	} {
		t.Run(kind.name, func(t *testing.T) {
			t.Parallel()
			rs, ns := timerstest.Redis(t, "--appendfsync", "always"), timerstest.NATS(t)
			l := timerstest.LapseOn(t, rs.URL(), ns.URL(), "LAPSE_LEASE=2s", "LAPSE_SHUTDOWN_GRACE="+grace.String(), quickExit)
			nc := ns.Connect(t)
			c := newClient(t, nc)
			a := newAttempts()
			due := time.Now().Add(2 * time.Second)
			const n = 500
			a.setMany(t, c, "stop", n, nil, timesIn(due, time.Second, n))
			require.Equal(t, n, a.count(delivered))
			timerstest.Eventually(t, soon, "it is in the middle", func() bool { return stored(t, nc) > n/10 })
			kind.leave(rs)
			waiting := make(chan error, 1)
			go func() { waiting <- a.set(t, c, "waits", "waits", nil, client.In(0)) }()
			endsWell(t, l, grace)
			require.NoError(t, <-waiting)
			require.Equal(t, n, a.count(delivered), "the set that waited was not answered OK")
			kind.comeBack(rs)
			l.Start()
			a.allOnce(t, nc, rs.Client())
		})
	}
}

// TestRedisKilledWhileTimersFallDue has a lease of half a minute and demands
// all timers long before: a claim that was under way at the kill must be
// taken up again by its claimer.
func TestRedisKilledWhileTimersFallDue(t *testing.T) {
	t.Parallel()
	for _, kind := range []struct {
		name string
		args []string
		save bool
	}{
		{"append-only file", []string{"--appendfsync", "always"}, false},
		// Redis drops keys whose time has passed while it loads a snapshot: no
		// events, and the backup set alone knows of their timers.
		{"snapshot only", []string{"--appendonly", "no"}, true},
	} {
		t.Run(kind.name, func(t *testing.T) {
			t.Parallel()
			rs, ns := timerstest.Redis(t, kind.args...), timerstest.NATS(t)
			l := timerstest.LapseOn(t, rs.URL(), ns.URL())
			nc := ns.Connect(t)
			c := newClient(t, nc)
			r := receive(t, c)
			require.NoError(t, nc.Flush())
			a := newAttempts()
			const n = 800
			due := time.Now().Add(3 * time.Second) // after the last set is answered
			a.setMany(t, c, "kill", n, nil, timesIn(due, time.Second, n))
			require.Equal(t, n, a.count(delivered))
			if kind.save {
				require.NoError(t, rs.Client().Save(t.Context()).Err())
			}
			r.await(t, n/4, soon)
			rs.Kill()
			before := len(r.all())
			readySays(t, l, 503, `"redis":{"status":"down"`)
			timerstest.Eventually(t, soon, "all are due", func() bool { return time.Now().After(due.Add(time.Second)) })
			rs.Start()
			back := time.Now()
			ready(t, l, 200)
			timerstest.Eventually(t, 15*time.Second, "all are on the stream", func() bool { return stored(t, nc) >= n })
			t.Logf("%d fired before the kill, all %v after Redis was back", before, time.Since(back).Round(time.Millisecond))
			require.Less(t, before, n, "it was killed in the middle")
			a.allOnce(t, nc, rs.Client())
		})
	}
}

func TestLostReplies(t *testing.T) {
	t.Parallel()
	rs, ns := timerstest.Redis(t), timerstest.NATS(t)
	p := timerstest.RedisProxy(t, rs)
	timerstest.LapseOn(t, p.URL(), ns.URL())
	rdb, nc := rs.Client(), ns.Connect(t)
	c := newClient(t, nc)
	a := newAttempts()
	// Redis knows every script afterwards, so that no cut meets a NOSCRIPT.
	require.NoError(t, a.set(t, c, "warm", "warm", nil, client.In(0)))
	_, err := c.Cancel(t.Context(), "warm", "none")
	require.ErrorIs(t, err, client.ErrNotFound)
	a.allOnce(t, nc, rdb)

	// Each stage on its own, in order: they share the rule of the proxy.
	cut := func(n int64) {
		t.Helper()
		timerstest.Eventually(t, soon, "the reply is cut", func() bool { return p.Cuts() == n })
	}
	cutNext(p, 1, "set")
	require.NoError(t, a.set(t, c, "set", "set", nil, client.In(time.Hour)))
	cut(1)
	require.True(t, a.unsure["set"], "a set whose reply is lost is answered 504, not 503: it was stored")
	got, err := c.Get(t.Context(), "set", "set")
	require.NoError(t, err)
	require.Equal(t, client.Scheduled, got.State)

	cutNext(p, 1, "cancel")
	_, err = c.Cancel(t.Context(), "set", "set")
	cut(2)
	require.ErrorIs(t, err, client.ErrUnconfirmed)
	_, err = c.Get(t.Context(), "set", "set")
	require.ErrorIs(t, err, client.ErrNotFound)

	for i, script := range []string{"claim", "ack"} {
		due := time.Now().Add(time.Second)
		a.setMany(t, c, script, 50, nil, func(int) client.When { return client.At(due) })
		cutNext(p, 1, script)
		cut(int64(i) + 3)
		a.allOnce(t, nc, rdb)
	}

	// The reply of the claim is lost and Redis is away for a while: the claimer
	// asks again until it knows, not only after the lease of half a minute.
	due := time.Now().Add(time.Second)
	a.setMany(t, c, "away", 50, nil, func(int) client.When { return client.At(due) })
	var away atomic.Bool
	p.Obey(func(c faultproxy.Command) faultproxy.Fault {
		switch {
		case away.Load():
			return faultproxy.CutFirst
		case c.Script == "claim":
			away.Store(true)
			return faultproxy.CutReply
		}
		return faultproxy.Pass
	})
	cut(5)
	time.Sleep(time.Second) // Redis stays away
	p.Obey(passAll)
	timerstest.Eventually(t, 10*time.Second, "all are on the stream", func() bool { return stored(t, nc) >= a.count(delivered) })
	a.allOnce(t, nc, rdb)
	require.Empty(t, a.refused)
}

func TestConnectionsToRedisAreKilled(t *testing.T) {
	t.Parallel()
	rs, ns := timerstest.Redis(t), timerstest.NATS(t)
	l := timerstest.LapseOn(t, rs.URL(), ns.URL(), "LAPSE_LEASE=3s")
	rdb, nc := rs.Client(), ns.Connect(t)
	c := newClient(t, nc)
	a := newAttempts()
	stop := every(t, 100*time.Millisecond, func(ctx context.Context) { rdb.Do(ctx, "CLIENT", "KILL", "TYPE", "normal") })
	const n = 3000
	a.setMany(t, c, "killed", n, []byte("x"), func(i int) client.When { return client.In(time.Duration(i%2000) * time.Millisecond) })
	stop()
	require.Greater(t, a.count(delivered), n/2)
	ready(t, l, 200)
	a.allOnce(t, nc, rdb)
	t.Logf("%d OK, %d unknown, %d refused", a.count(delivered), len(a.unsure), len(a.refused))
}

func TestScriptsAreFlushed(t *testing.T) {
	t.Parallel()
	rs, ns := timerstest.Redis(t), timerstest.NATS(t)
	timerstest.LapseOn(t, rs.URL(), ns.URL())
	rdb, nc := rs.Client(), ns.Connect(t)
	l := newLedger()
	stop := every(t, 50*time.Millisecond, func(ctx context.Context) { rdb.ScriptFlush(ctx) })
	storm(t, newClient(t, nc), l, 3000, 32, 2*time.Second)
	timerstest.Eventually(t, soon, "all are on the stream", func() bool { return stored(t, nc) >= l.count(delivered) })
	nothingLeft(t, rdb)
	stop()
	l.check(t, onStream(t, nc))
}

// Evicted trigger keys are no expired ones: an event that is taken for a
// deadline would fire early, and nobody says that the deadline has come.
func TestTriggerKeysAreEvicted(t *testing.T) {
	t.Parallel()
	rs, ns := timerstest.Redis(t, "--maxmemory", "3mb", "--maxmemory-policy", "volatile-lru"), timerstest.NATS(t)
	l := timerstest.LapseOn(t, rs.URL(), ns.URL())
	require.Contains(t, l.Log(), "maxmemory-policy noeviction")
	rdb, nc := rs.Client(), ns.Connect(t)
	c := newClient(t, nc)
	a := newAttempts()
	payload := []byte(strings.Repeat("x", 20_000))
	due := time.Now().Add(3 * time.Second)
	a.setMany(t, c, "big", 200, payload, timesIn(due, time.Second, 200))
	info, err := rdb.InfoMap(t.Context(), "stats").Result()
	require.NoError(t, err)
	t.Logf("%d accepted, %d refused, %s keys evicted", a.count(delivered), len(a.refused), info["Stats"]["evicted_keys"])
	require.NotEmpty(t, a.refused, "memory was short")
	require.NotEqual(t, "0", info["Stats"]["evicted_keys"], "keys were evicted")
	require.Greater(t, a.count(delivered), 10)
	require.Zero(t, stored(t, nc)*boolToInt(time.Now().Before(due)), "nothing fired early")
	a.allOnce(t, nc, rdb) // and none early, by the time in each event
}

// The subscription is lost and cannot be had again for a while; commands still
// pass.
func TestSubscriberIsKeptAway(t *testing.T) {
	t.Parallel()
	rs, ns := timerstest.Redis(t), timerstest.NATS(t)
	p := timerstest.RedisProxy(t, rs)
	l := timerstest.LapseOn(t, p.URL(), ns.URL())
	rdb, nc := rs.Client(), ns.Connect(t)
	c := newClient(t, nc)
	a := newAttempts()
	var refusals atomic.Int64
	p.Obey(func(c faultproxy.Command) faultproxy.Fault {
		if c.Is("subscribe") {
			refusals.Add(1)
			return faultproxy.CutFirst
		}
		return faultproxy.Pass
	})
	require.NoError(t, rdb.Do(t.Context(), "CLIENT", "KILL", "TYPE", "pubsub").Err())
	lost := time.Now()
	readySays(t, l, 200, `"status":"degraded"`, `"subscription":{"status":"degraded"`)
	require.Less(t, time.Since(lost), 10*time.Second)
	t.Logf("degraded %v after the loss", time.Since(lost).Round(time.Millisecond))
	require.Zero(t, rdb.PubSubNumSub(t.Context(), "__keyevent@0__:expired").Val()["__keyevent@0__:expired"])
	due := time.Now().Add(500 * time.Millisecond)
	a.setMany(t, c, "deaf", 100, nil, timesIn(due, time.Second, 100))
	a.allOnce(t, nc, rdb)
	// Long enough for many attempts: the pause between them ends at a second.
	timerstest.Eventually(t, soon, "many attempts", func() bool { return refusals.Load() > 10 })
	passes(t, lost.Add(seconds(0, 20)))
	require.Equal(t, 1, strings.Count(l.Log(), cannotHear), "told once, not at each attempt")
	p.Obey(passAll)
	opened := time.Now()
	readySays(t, l, 200, `"status":"ok"`, `"subscription":{"status":"ok"`)
	t.Logf("hearing again %v after the subscriber is let in, refused %d times", time.Since(opened).Round(time.Millisecond), refusals.Load())
	require.Equal(t, 1, strings.Count(l.Log(), hearsAgain))
	require.Equal(t, int64(1), rdb.PubSubNumSub(t.Context(), "__keyevent@0__:expired").Val()["__keyevent@0__:expired"])
	require.NoError(t, a.set(t, c, "heard", "heard", nil, client.In(0)))
	a.allOnce(t, nc, rdb)
	fired := onStream(t, nc)
	require.Equal(t, "event", fired[len(fired)-1].Source, fmt.Sprint("the event path works again: ", fired[len(fired)-1].ID))
}
