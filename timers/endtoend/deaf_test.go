package endtoend

import (
	"context"
	"fmt"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/lapse-timers/lapse/timers/client"
	"github.com/lapse-timers/lapse/timers/timerstest"
	"github.com/lapse-timers/lapse/timers/wire"
)

const (
	cannotHear = `"msg":"cannot hear expired events; due timers are claimed without them"`
	hearsAgain = `"msg":"hearing expired events again"`
)

// sourceOf sets a timer and says which path fired it, and how late.
func sourceOf(t *testing.T, c *client.Client, id string) (source string, lag time.Duration) {
	t.Helper()
	fired := make(chan client.Fired, 1)
	live, err := c.Handle(t.Context(), "probe."+id, func(_ context.Context, f client.Fired) { fired <- f })
	require.NoError(t, err)
	defer live.Stop()
	_, err = c.Set(t.Context(), "probe."+id, nil, client.In(100*time.Millisecond), client.ID(id))
	require.NoError(t, err)
	select {
	case f := <-fired:
		return f.Source, f.Lag()
	case <-time.After(soon):
		t.Fatal("not fired: ", id)
	}
	return "", 0
}

// saysSo demands the same words of /readyz, of the status and of the command.
func saysSo(t *testing.T, l *timerstest.LapseServer, c *client.Client, natsURL, status string, words ...string) {
	t.Helper()
	part := readyz(t, l, 200, "subscription", status).Parts["subscription"]
	s, err := c.Status(t.Context())
	require.NoError(t, err)
	cmd := exec.Command(timerstest.LapseBinary(t), "status", "--server", natsURL)
	out, err := cmd.CombinedOutput()
	require.NoError(t, err, "%s", out)
	for _, w := range words {
		require.Contains(t, part.Why, w, "/readyz")
		require.Contains(t, s.Health.Parts["subscription"].Why, w, "status")
		require.Contains(t, string(out), w, "lapse status")
	}
	require.Equal(t, status, s.Health.Parts["subscription"].Status)
	require.Equal(t, status, s.Health.Status)
	require.Regexp(t, `(?m)^  subscription +`+status, string(out))
}

// Each reason for which events do not come shows everywhere, once in the log,
// with what mends it; timers fire without them; and when it is mended that
// shows as well.
func TestReasonsForDeafness(t *testing.T) {
	t.Parallel()
	as := func(rules ...string) func(*testing.T, *redis.Client) {
		return func(t *testing.T, rdb *redis.Client) {
			t.Helper()
			args := []any{"acl", "setuser", "lapse", "on", ">secret", "~*"}
			for _, r := range rules {
				args = append(args, r)
			}
			require.NoError(t, rdb.Do(t.Context(), args...).Err())
		}
	}
	announce := func(t *testing.T, rdb *redis.Client) {
		t.Helper()
		require.NoError(t, rdb.ConfigSet(t.Context(), "notify-keyspace-events", "Ex").Err())
	}
	const none = "--notify-keyspace-events"
	for _, tc := range []struct {
		name     string
		args     []string // of Redis
		user     func(*testing.T, *redis.Client)
		settings []string
		words    []string
		mend     func(*testing.T, *redis.Client)
	}{
		{"CONFIG renamed away", []string{none, "", "--rename-command", "CONFIG", ""}, nil, nil,
			[]string{"do not come back", "notify-keyspace-events is unknown", "notify-keyspace-events Ex"}, nil},
		{"CONFIG refused", []string{none, ""}, as("+@all", "&*", "-config"), nil,
			[]string{"do not come back", "notify-keyspace-events is unknown", "notify-keyspace-events Ex"}, announce},
		{"CONFIG SET refused", []string{none, "K"}, as("+@all", "&*", "-config|set"), nil,
			[]string{"E and x are missing", "CONFIG SET was refused (NOPERM", "redis.conf: notify-keyspace-events KEx"}, announce},
		{"CONFIG SET switched off", []string{none, "xK"}, nil, []string{"LAPSE_NOTIFY_CONFIG=off"},
			[]string{"E is missing", "LAPSE_NOTIFY_CONFIG=off", "notify-keyspace-events xKE"}, announce},
		{"channel refused", nil, as("+@all", "resetchannels"), nil,
			[]string{"NOPERM", "ACL SETUSER lapse +subscribe +ping &__keyevent@0__:expired"}, as("&__keyevent@0__:expired")},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			rs, ns := timerstest.RedisTCP(t, tc.args...), timerstest.NATS(t)
			rdb, nc := rs.Client(), ns.Connect(t)
			url := rs.URL()
			if tc.user != nil {
				tc.user(t, rdb)
				url = "redis://lapse:secret@" + rs.Addr()
			}
			l := timerstest.LapseOn(t, url, ns.URL(), tc.settings...)
			c := newClient(t, nc)
			timerstest.Eventually(t, soon, "the log says so", func() bool { return strings.Contains(l.Log(), cannotHear) })
			saysSo(t, l, c, ns.URL(), wire.HealthDegraded, tc.words...)
			timerstest.Eventually(t, soon, "the metric says so", func() bool { return scrape(t, l).sum("lapse_part_health", "part", "subscription") == 0.5 })
			for i := range 5 {
				source, lag := sourceOf(t, c, fmt.Sprint("deaf", i))
				require.Equal(t, "sweep", source)
				require.Less(t, lag, 5*time.Second)
			}
			require.Equal(t, 1, strings.Count(l.Log(), cannotHear), "once")
			require.NotContains(t, l.Log(), "secret")
			if tc.mend == nil {
				return
			}
			tc.mend(t, rdb)
			readyz(t, l, 200, "subscription", wire.HealthOK)
			source, _ := sourceOf(t, c, "heard")
			require.Equal(t, "event", source)
			require.Equal(t, 1, strings.Count(l.Log(), cannotHear)) // and one line for the recovery
			require.Equal(t, 1, strings.Count(l.Log(), hearsAgain)+strings.Count(l.Log(), `"msg":"hearing expired events"`))
			nothingLeft(t, rdb)
		})
	}
}

// What cannot be seen may be right all the same, and then nothing is wrong.
func TestFlagsThatAreRightAndNotToBeSetOrSeen(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		name, rule, note string
	}{
		{"may be read", "-config|set", ""},
		{"hidden", "-config", "notify-keyspace-events is unknown: CONFIG GET was refused"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			rs, ns := timerstest.RedisTCP(t), timerstest.NATS(t)
			rdb, nc := rs.Client(), ns.Connect(t)
			require.NoError(t, rdb.Do(t.Context(), "acl", "setuser", "lapse", "on", ">secret", "~*", "&*", "+@all", tc.rule).Err())
			l := timerstest.LapseOn(t, "redis://lapse:secret@"+rs.Addr(), ns.URL())
			c := newClient(t, nc)
			saysSo(t, l, c, ns.URL(), wire.HealthOK, tc.note)
			source, _ := sourceOf(t, c, "heard")
			require.Equal(t, "event", source)
			require.NotContains(t, l.Log(), `"level":"WARN"`)
			nothingLeft(t, rdb)
		})
	}
}

// The subscription is confirmed and answers pings, and no message comes: only
// the probe can notice.
func TestSubscriptionThatIsSilentlyDeaf(t *testing.T) {
	t.Parallel()
	rs, ns := timerstest.Redis(t), timerstest.NATS(t)
	proxy := timerstest.RedisProxy(t, rs)
	l := timerstest.LapseOn(t, proxy.URL(), ns.URL())
	rdb, nc := rs.Client(), ns.Connect(t)
	c := newClient(t, nc)
	readyz(t, l, 200, "subscription", wire.HealthOK)
	source, _ := sourceOf(t, c, "before")
	require.Equal(t, "event", source)

	proxy.Swallow(true)
	began := time.Now()
	a := newAttempts()
	a.setMany(t, c, "unnoticed", 100, nil, timesIn(began.Add(time.Second), 3*time.Second, 100))
	saysSo(t, l, c, ns.URL(), wire.HealthDegraded, "do not come back", "has E and x", "proxy")
	t.Logf("noticed after %v", time.Since(began).Round(time.Millisecond))
	require.Equal(t, 1, strings.Count(l.Log(), cannotHear))
	a.setMany(t, c, "noticed", 100, nil, timesIn(time.Now().Add(500*time.Millisecond), time.Second, 100))
	timerstest.Eventually(t, soon, "all are on the stream", func() bool { return stored(t, nc) == 201 })
	require.Positive(t, proxy.Swallowed())
	require.Equal(t, 1, strings.Count(l.Log(), cannotHear), "once")

	proxy.Swallow(false)
	began = time.Now()
	readyz(t, l, 200, "subscription", wire.HealthOK)
	t.Logf("recovered after %v", time.Since(began).Round(time.Millisecond))
	require.Equal(t, 1, strings.Count(l.Log(), hearsAgain))
	source, _ = sourceOf(t, c, "after")
	require.Equal(t, "event", source)
	require.Equal(t, int64(1), rdb.PubSubNumSub(t.Context(), "__keyevent@0__:expired").Val()["__keyevent@0__:expired"])
	nothingLeft(t, rdb)
	fired := onStream(t, nc)
	require.Len(t, fired, 202)
	ids := map[string]bool{}
	for _, f := range fired {
		require.False(t, ids[f.ID], "%s fired twice", f.ID)
		ids[f.ID] = true
	}
}

// A subscription that was killed comes back with events, not only with a
// reconciler that covers for it: what it would claim by itself it claims late.
func TestEventsComeAfterTheSubscriberWasKilled(t *testing.T) {
	t.Parallel()
	rs, ns := timerstest.Redis(t), timerstest.NATS(t)
	l := timerstest.LapseOn(t, rs.URL(), ns.URL(), "LAPSE_GRACE=10s")
	rdb, nc := rs.Client(), ns.Connect(t)
	c := newClient(t, nc)
	readyz(t, l, 200, "subscription", wire.HealthOK)
	require.NoError(t, rdb.Do(t.Context(), "CLIENT", "KILL", "TYPE", "pubsub").Err())
	timerstest.Eventually(t, soon, "it hears again", func() bool { return strings.Contains(l.Log(), hearsAgain) })
	source, lag := sourceOf(t, c, "after")
	require.Equal(t, "event", source)
	require.Less(t, lag, time.Second)
}
