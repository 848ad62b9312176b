package endtoend

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/lapse-timers/lapse/timers/client"
	"github.com/lapse-timers/lapse/timers/timerstest"
)

// over is a timer that needs more room than the limit of the tests below.
const over = 5000

func limit(t *testing.T, nc *nats.Conn, change func(*jetstream.StreamConfig)) {
	t.Helper()
	js, err := jetstream.New(nc)
	require.NoError(t, err)
	stream, err := js.Stream(t.Context(), "TIMERS")
	require.NoError(t, err)
	config := stream.CachedInfo().Config
	change(&config)
	_, err = js.UpdateStream(t.Context(), config)
	require.NoError(t, err)
}

// big sets a timer with a payload of the size, and a header of the client's own.
func (s *served) big(t *testing.T, topic, id, schedule string, size int) setReply {
	t.Helper()
	m := with(request("timers.set."+topic, id, schedule), "X-Own", "kept")
	m.Data = []byte(strings.Repeat("x", size))
	return s.set(t, m)
}

// isDead awaits that the timer is dead.
func (s *served) isDead(t *testing.T, topic, id string) *nats.Msg {
	t.Helper()
	var got *nats.Msg
	timerstest.Eventually(t, soon, topic+" "+id+" is dead", func() bool {
		got = s.ask(t, about("timers.get."+topic, id))
		return got.Header.Get("Timer-State") == "dead"
	})
	return got
}

type deadStatus struct {
	Pending, Dead int
	Counts        struct{ Dead, Fired, Refused, Unknown, Unannounced int }
}

func (s *served) deadStatus(t *testing.T) (st deadStatus) {
	t.Helper()
	require.NoError(t, json.Unmarshal(s.ok(t, about("timers.status", "")).Data, &st))
	return st
}

func TestTooLargeForTheStreamOfNow(t *testing.T) {
	t.Parallel()
	for _, partitions := range []string{"1", "3"} {
		t.Run(partitions+" partitions", func(t *testing.T) {
			s := serve(t, timerstest.NATS(t), "LAPSE_PARTITIONS="+partitions)
			told, fired := s.hear(t, "timers.dead.>"), s.hear(t, "timers.fired.>")
			set := s.big(t, "orders.close", "order:{42} \u23f0", "@in 1s", over)
			limit(t, s.nc, func(c *jetstream.StreamConfig) { c.MaxMsgSize = 1000 })

			m := next(t, told)
			require.Equal(t, "timers.dead.orders.close", m.Subject)
			due := set.Due.Format("2006-01-02T15:04:05.000Z")
			reason := m.Header.Get("Timer-Reason")
			require.Contains(t, reason, "message size exceeds maximum allowed (10054)")
			require.Regexp(t, `^[ -~]{1,200}$`, reason)
			id := m.Header.Get("Nats-Msg-Id")
			require.Equal(t, nats.Header{
				"Timer-Topic": {"orders.close"}, "Timer-Id": {"order:{42} \u23f0"}, "Timer-Rev": {fmt.Sprint(set.Rev)}, "Timer-Due": {due}, "Timer-Attempt": {"1"},
				"Timer-Reason": {reason}, "Timer-Omitted": {"payload"}, "Nats-Msg-Id": {id}, "X-Own": {"kept"},
			}, m.Header)
			require.Empty(t, m.Data)
			attempt := next(t, fired)
			require.NotEqual(t, attempt.Header.Get("Nats-Msg-Id"), id)
			_, err := client.ParseFired(m.Header, m.Data)
			require.Error(t, err, "an announcement must not pass for a fired event")
			timerstest.Eventually(t, soon, "the stream has the announcement", func() bool { return count(t, s.nc, "TIMERS", "timers.dead.>") == 1 })

			got := s.isDead(t, "orders.close", "order:{42} \u23f0")
			require.Equal(t, reason, got.Header.Get("Timer-Reason"))
			require.Equal(t, "1", got.Header.Get("Timer-Attempt"))
			require.NotEmpty(t, got.Header.Get("Timer-Fired"))
			require.Equal(t, "kept", got.Header.Get("X-Own"))
			require.Len(t, got.Data, over)
			later := s.big(t, "orders.close", "later", "@in 1h", 10)
			items := s.list(t, "timers.list.orders", "").Timers
			require.Equal(t, []listItem{
				{"orders.close", "order:{42} \u23f0", set.Due, set.Rev, "dead", 1}, {"orders.close", "later", later.Due, later.Rev, "scheduled", 0},
			}, items)
			require.JSONEq(t, fmt.Sprintf(`{"timers":[{"topic":"orders.close","id":"order:{42} \u23f0","due":%q,"rev":%d,"state":"dead","attempts":1,"reason":%q}],"cursor":""}`,
				set.Due.Format("2006-01-02T15:04:05.000Z07:00"), set.Rev, reason), string(s.ok(t, about("timers.list", `{"state":"dead"}`)).Data))
			st := s.deadStatus(t)
			require.Equal(t, 1, st.Pending)
			require.Equal(t, 1, st.Dead)
			require.Equal(t, 1, st.Counts.Dead)
			require.Equal(t, 1, st.Counts.Refused, "it is not tried again")
			require.Zero(t, st.Counts.Unannounced)
			var health struct{ Health struct{ Status string } }
			require.NoError(t, json.Unmarshal(s.ok(t, about("timers.status", "")).Data, &health))
			require.Equal(t, "ok", health.Health.Status, "one timer that is too large is no trouble of the stream")
			timerstest.CheckInvariants(t, s.rdb, "timers")

			// Brought back too early it is dead again, and says so again.
			reply := s.ok(t, about("timers.retry.orders.close", "order:{42} \u23f0"))
			require.ElementsMatch(t, []string{"topic", "id", "due", "rev"}, fields(t, reply.Data))
			var r setReply
			strict(t, reply.Data, &r)
			require.Equal(t, setReply{Topic: "orders.close", ID: "order:{42} \u23f0", Due: set.Due, Rev: set.Rev}, r)
			again := next(t, told)
			require.Equal(t, "1", again.Header.Get("Timer-Attempt"), "attempts are counted anew")
			require.NotEqual(t, id, again.Header.Get("Nats-Msg-Id"), "a stream must not swallow the second one")
			require.Equal(t, attempt.Header.Get("Nats-Msg-Id"), next(t, fired).Header.Get("Nats-Msg-Id"), "a fire of the same life")
			s.isDead(t, "orders.close", "order:{42} \u23f0")

			limit(t, s.nc, func(c *jetstream.StreamConfig) { c.MaxMsgSize = -1 })
			s.ok(t, about("timers.retry.orders.close", "order:{42} \u23f0"))
			timerstest.Eventually(t, soon, "it is delivered", func() bool { return count(t, s.nc, "TIMERS", "timers.fired.>") == 1 })
			timerstest.Eventually(t, soon, "it is gone", func() bool {
				return s.ask(t, about("timers.get.orders.close", "order:{42} \u23f0")).Header.Get("Nats-Service-Error-Code") == "404"
			})
			s.ok(t, about("timers.cancel.orders.close", "later"))
			require.Zero(t, s.deadStatus(t).Dead)
			require.Equal(t, 1, s.deadStatus(t).Counts.Fired)
			m = next(t, fired)
			require.Len(t, m.Data, over)
			require.Equal(t, due, m.Header.Get("Timer-Due"))
			if partitions == "1" {
				nothingLeft(t, s.rdb)
			}
			require.Equal(t, 2, count(t, s.nc, "TIMERS", "timers.dead.>"))
			s.unharmed(t)
		})
	}
}

// A stream of the operator's own that keeps fired events alone: announcements go
// out on core NATS, whole, since NATS itself has room for them.
func TestAnnouncementsWithoutAStream(t *testing.T) {
	t.Parallel()
	ns := timerstest.NATS(t)
	nc := ns.Connect(t)
	js, err := jetstream.New(nc)
	require.NoError(t, err)
	_, err = js.CreateStream(t.Context(), jetstream.StreamConfig{Name: "TIMERS", Subjects: []string{"timers.fired.>"}})
	require.NoError(t, err)
	s := serve(t, ns)
	told := s.hear(t, "timers.dead.>")
	s.big(t, "a", "x", "@in 1s", over)
	limit(t, nc, func(c *jetstream.StreamConfig) { c.MaxMsgSize = 1000 })
	m := next(t, told)
	require.Len(t, m.Data, over)
	require.Empty(t, m.Header.Get("Timer-Omitted"))
	require.Empty(t, m.Reply)
	require.Equal(t, "kept", m.Header.Get("X-Own"))
	s.isDead(t, "a", "x")
	s.ok(t, about("timers.cancel.a", "x"))
	nothingLeft(t, s.rdb)
}

// Where not even the announcement fits into the stream, those who listen hear it
// all the same; and one whose own headers are too many comes without them.
func TestAnnouncementsThatDoNotFit(t *testing.T) {
	t.Parallel()
	s := serve(t, timerstest.NATS(t))
	told := s.hear(t, "timers.dead.>")
	m := with(request("timers.set.a", "x", "@in 1s"), "X-Long", strings.Repeat("h", 3000))
	s.set(t, m)
	limit(t, s.nc, func(c *jetstream.StreamConfig) { c.MaxMsgSize = 1000 })
	got := next(t, told)
	require.Equal(t, "payload, headers", got.Header.Get("Timer-Omitted"))
	require.Empty(t, got.Header.Get("X-Long"))
	timerstest.Eventually(t, soon, "the stream has the announcement", func() bool { return count(t, s.nc, "TIMERS", "timers.dead.>") == 1 })

	s.set(t, request("timers.set.a", "y", "@in 1s"))
	limit(t, s.nc, func(c *jetstream.StreamConfig) { c.MaxMsgSize = 100 })
	got = next(t, told)
	require.Equal(t, "y", got.Header.Get("Timer-Id"))
	require.Equal(t, "payload, headers", got.Header.Get("Timer-Omitted"))
	require.Empty(t, got.Reply, "no stream can take it")
	s.isDead(t, "a", "y")
	timerstest.Eventually(t, soon, "it was taken", func() bool { return s.deadStatus(t).Counts.Dead == 2 })
	require.Zero(t, s.deadStatus(t).Counts.Unannounced)
	s.ok(t, about("timers.cancel.a", "x"))
	s.ok(t, about("timers.cancel.a", "y"))
	nothingLeft(t, s.rdb)
}

// The NATS server itself takes less than it did when the timer was set.
func TestTooLargeForTheServerOfNow(t *testing.T) {
	t.Parallel()
	for _, delivery := range []string{"jetstream", "core"} {
		t.Run(delivery, func(t *testing.T) {
			t.Parallel()
			var options *server.Options
			ns := timerstest.NATS(t, func(o *server.Options) { options = o })
			rs := timerstest.Redis(t)
			l := timerstest.LapseOn(t, rs.URL(), ns.URL(), "LAPSE_DELIVERY="+delivery)
			s := &served{rdb: rs.Client(), ns: ns, nc: ns.Connect(t), lapse: l}
			s.big(t, "a", "x", "@in 2s", over)
			ns.Stop()
			options.MaxPayload = 2000
			ns.Start()
			ready(t, l, 200)
			told, err := s.nc.SubscribeSync("timers.dead.>")
			require.NoError(t, err)
			m := next(t, told)
			require.Equal(t, "payload", m.Header.Get("Timer-Omitted"))
			require.Contains(t, m.Header.Get("Timer-Reason"), "max_payload")
			// Its payload is kept, though it cannot be read now.
			isRefusal(t, s.ask(t, about("timers.get.a", "x")), 413, "too_large")
			require.Equal(t, "dead", s.list(t, "timers.list", "").Timers[0].State)
			require.Equal(t, 1, s.deadStatus(t).Counts.Refused)

			ns.Stop()
			options.MaxPayload = 1 << 20
			ns.Start()
			ready(t, l, 200)
			fired, err := s.nc.SubscribeSync("timers.fired.>")
			require.NoError(t, err)
			require.NoError(t, s.nc.Flush())
			timerstest.Eventually(t, soon, "it is brought back", func() bool {
				reply, err := s.nc.Request("timers.retry.a", []byte("x"), time.Second)
				return err == nil && reply.Header.Get("Nats-Service-Error-Code") == ""
			})
			require.Len(t, next(t, fired).Data, over)
			nothingLeft(t, s.rdb)
		})
	}
}

// A stream that stays full: what was tried often enough is dead, and each is
// delivered once when it is brought back after the purge.
func TestMaxAttempts(t *testing.T) {
	t.Parallel()
	rs, ns := timerstest.Redis(t), timerstest.NATS(t)
	rdb, nc := rs.Client(), ns.Connect(t)
	js, err := jetstream.New(nc)
	require.NoError(t, err)
	stream, err := js.CreateStream(t.Context(), jetstream.StreamConfig{
		Name: "TIMERS", Subjects: []string{"timers.fired.>"}, MaxMsgs: 10, Discard: jetstream.DiscardNew,
	})
	require.NoError(t, err)
	l := timerstest.LapseOn(t, rs.URL(), ns.URL(), "LAPSE_MAX_ATTEMPTS=4", "LAPSE_RETRY_MIN=20ms", "LAPSE_RETRY_MAX=100ms")
	c := newClient(t, nc)
	told, err := nc.SubscribeSync("timers.dead.full")
	require.NoError(t, err)
	tries, err := nc.SubscribeSync("timers.fired.>")
	require.NoError(t, err)
	a := newAttempts()
	a.setMany(t, c, "full", 30, []byte("payload"), func(int) client.When { return client.In(0) })
	dead := map[string]bool{}
	for range 20 {
		m := next(t, told)
		require.Equal(t, "4", m.Header.Get("Timer-Attempt"))
		require.Contains(t, m.Header.Get("Timer-Reason"), "given up on after 4 attempts: stream TIMERS refuses: maximum messages exceeded")
		require.Equal(t, "payload", string(m.Data))
		dead[m.Header.Get("Timer-Id")] = true
	}
	require.Len(t, dead, 20)
	seen, _, err := tries.Pending()
	require.NoError(t, err)
	require.Equal(t, 10+20*4, seen, "each is tried four times and not more")
	st, err := c.Status(t.Context())
	require.NoError(t, err)
	require.EqualValues(t, 20, st.Dead)
	require.EqualValues(t, 20, st.Counts.Dead)
	require.Zero(t, st.Pending)
	require.LessOrEqual(t, strings.Count(l.Log(), "gave up on timers"), 3, "the log is not filled")
	timerstest.CheckInvariants(t, rdb, "timers")
	for item, err := range c.List(t.Context(), "full") {
		require.NoError(t, err)
		require.Equal(t, client.Dead, item.State)
		require.Equal(t, 4, item.Attempts)
	}
	var conflict *client.Error
	fired := onStream(t, nc)
	_, err = c.Retry(t.Context(), "full", fired[0].ID)
	require.ErrorIs(t, err, client.ErrNotFound)
	require.NoError(t, stream.Purge(t.Context()))
	n := 0
	for id := range dead {
		got, err := c.Get(t.Context(), "full", id)
		require.NoError(t, err)
		require.Equal(t, client.Dead, got.State)
		require.Contains(t, got.Reason, "maximum messages exceeded")
		back, err := c.Retry(t.Context(), "full", id)
		require.NoError(t, err)
		require.Equal(t, client.Retried{Topic: "full", ID: id, Due: got.Due, Rev: got.Rev}, back)
		if n++; n%10 == 0 {
			timerstest.Eventually(t, soon, "ten are delivered", func() bool { return stored(t, nc) == 10 })
			fired = append(fired, onStream(t, nc)...)
			require.NoError(t, stream.Purge(t.Context()))
		}
	}
	nothingLeft(t, rdb)
	a.check(t, fired)

	// What is not dead needs no retry.
	res, err := c.Set(t.Context(), "full", nil, client.In(time.Hour), client.ID("later"))
	require.NoError(t, err)
	_, err = c.Retry(t.Context(), "full", "later")
	require.ErrorAs(t, err, &conflict)
	require.ErrorIs(t, err, client.ErrConflict)
	require.Equal(t, "scheduled", conflict.State)
	require.Equal(t, res.Rev, conflict.Rev)
	require.Nil(t, conflict.Stopped)
	require.ErrorContains(t, err, "not dead")
}

func TestCancelAndSetOverDead(t *testing.T) {
	t.Parallel()
	s := serve(t, timerstest.NATS(t))
	for _, id := range []string{"cancelled", "doubtful", "replaced"} {
		s.big(t, "a", id, "@in 1s", over)
	}
	limit(t, s.nc, func(c *jetstream.StreamConfig) { c.MaxMsgSize = 1000 })
	for _, id := range []string{"cancelled", "doubtful", "replaced"} {
		s.isDead(t, "a", id)
	}
	reply := s.ok(t, about("timers.cancel.a", "cancelled"))
	require.ElementsMatch(t, []string{"topic", "id", "rev"}, fields(t, reply.Data))
	isRefusal(t, s.ask(t, about("timers.cancel.a", "cancelled")), 404, "not_found")

	// An attempt of unknown outcome, as the mark says.
	require.NoError(t, s.rdb.HSet(t.Context(), "timers:{0}:h:a:doubtful", "u", "1").Err())
	require.Equal(t, "dead", s.ok(t, about("timers.get.a", "doubtful")).Header.Get("Timer-State"))
	reply = s.ask(t, about("timers.cancel.a", "doubtful"))
	isRefusal(t, reply, 409, "conflict", "doubtful", "may have been delivered")
	var conflict struct {
		Error, Message, State string
		Rev                   int64
		Stopped               *bool
	}
	strict(t, reply.Data, &conflict)
	require.Equal(t, "dead", conflict.State)
	require.True(t, *conflict.Stopped)
	isRefusal(t, s.ask(t, about("timers.get.a", "doubtful")), 404, "not_found")

	set := s.set(t, request("timers.set.a", "replaced", "@in 1s"))
	require.True(t, set.Replaced)
	require.Equal(t, "dead", set.Was)
	timerstest.Eventually(t, soon, "the new life is delivered", func() bool { return count(t, s.nc, "TIMERS", "timers.fired.>") == 1 })
	nothingLeft(t, s.rdb)
	require.Equal(t, 1, s.deadStatus(t).Counts.Fired)
	s.unharmed(t)
}

func TestRetryRequestsRefused(t *testing.T) {
	t.Parallel()
	rs, ns := timerstest.Redis(t), timerstest.NATS(t)
	s := &served{rdb: rs.Client(), ns: ns, nc: ns.Connect(t), lapse: timerstest.LapseOn(t, rs.URL(), ns.URL())}
	s.connections = s.connected(t)
	s.set(t, request("timers.set.a", "x", "@in 1h"))
	s.refused(t, about("timers.retry", "x"), 400, "invalid_topic")
	s.refused(t, about("timers.retry.a*", "x"), 400, "invalid_topic")
	s.refused(t, about("timers.retry.a", ""), 400, "invalid_id")
	s.refused(t, about("timers.retry.a", "\xff"), 400, "invalid_id")
	s.refused(t, about("timers.retry.a", "none"), 404, "not_found", `"none"`)
	s.refused(t, about("timers.retry.a", "x"), 409, "conflict", `"x"`, "not dead", "scheduled")
	stats := s.stats(t)
	require.EqualValues(t, 6, stats["retry"].Requests)
	require.EqualValues(t, 6, stats["retry"].Errors)
	require.Contains(t, stats, "retry-without-topic")
	s.unharmed(t)
	rs.Stop()
	timerstest.Eventually(t, soon, "a retry without Redis is refused", func() bool { // the first ones may meet a connection that was cut
		code := s.ask(t, about("timers.retry.a", "x")).Header.Get("Nats-Service-Error-Code")
		require.Contains(t, []string{"503", "504"}, code)
		return code == "503"
	})
}

// The reply of a burial or of a retry is lost, and Redis is away for a retry.
func TestLostRepliesOfTheDead(t *testing.T) {
	t.Parallel()
	rs, ns := timerstest.Redis(t), timerstest.NATS(t)
	p := timerstest.RedisProxy(t, rs)
	l := timerstest.LapseOn(t, p.URL(), ns.URL())
	nc := ns.Connect(t)
	s := &served{rdb: rs.Client(), ns: ns, nc: nc, lapse: l}
	c := newClient(t, nc)
	told := s.hear(t, "timers.dead.>")
	for _, script := range []string{"bury", "retry"} { // so that no cut meets a NOSCRIPT
		prelude, err := os.ReadFile("../lua/prelude.lua")
		require.NoError(t, err)
		text, err := os.ReadFile("../lua/" + script + ".lua")
		require.NoError(t, err)
		require.NoError(t, s.rdb.ScriptLoad(t.Context(), string(prelude)+string(text)).Err())
	}
	cutNext(p, 1, "bury")
	s.big(t, "a", "x", "@in 1s", over)
	limit(t, nc, func(c *jetstream.StreamConfig) { c.MaxMsgSize = 1000 })
	require.Equal(t, "x", next(t, told).Header.Get("Timer-Id"), "it is announced though the reply was lost")
	require.EqualValues(t, 1, p.Cuts())
	s.isDead(t, "a", "x")
	require.Equal(t, 1, s.deadStatus(t).Counts.Dead, "and counted once")

	limit(t, nc, func(c *jetstream.StreamConfig) { c.MaxMsgSize = -1 })
	cutNext(p, 1, "retry")
	_, err := c.Retry(t.Context(), "a", "x")
	require.ErrorIs(t, err, client.ErrUnconfirmed)
	require.EqualValues(t, 2, p.Cuts())
	timerstest.Eventually(t, soon, "it was brought back all the same", func() bool { return count(t, nc, "TIMERS", "timers.fired.a") == 1 })
	nothingLeft(t, s.rdb)
	pending, _, err := told.Pending()
	require.NoError(t, err)
	require.Zero(t, pending, "each was announced once")
}

func TestAnnouncingIsNotPermitted(t *testing.T) {
	t.Parallel()
	for _, delivery := range []string{"jetstream", "core"} {
		t.Run(delivery, func(t *testing.T) {
			t.Parallel()
			ns, url, _ := withUsers(t, "timers.dead.>", "timers.fired.secret")
			rs := timerstest.Redis(t)
			l := timerstest.LapseOn(t, rs.URL(), url, "LAPSE_DELIVERY="+delivery, "LAPSE_MAX_ATTEMPTS=2", "LAPSE_RETRY_MIN=10ms")
			s := &served{rdb: rs.Client(), ns: ns, nc: ns.Connect(t, nats.UserInfo("test", "pw")), lapse: l}
			s.set(t, request("timers.set.secret", "x", "@in 0s"))
			got := s.isDead(t, "secret", "x")
			require.Contains(t, strings.ToLower(got.Header.Get("Timer-Reason")), "permissions violation")
			timerstest.Eventually(t, soon, "it says so", func() bool { return strings.Contains(l.Log(), "does not permit announcing") })
			readySays(t, l, 200, `"status":"degraded"`, "timers.dead.secret")
			require.Equal(t, 1, strings.Count(l.Log(), "does not permit announcing"))
			s.ok(t, about("timers.cancel.secret", "x"))
			nothingLeft(t, s.rdb)
		})
	}
}

// Redis refuses claims: due timers are not published again and again meanwhile,
// and all of them once it takes claims again.
func TestNoStormWhileClaimsCannotBeWritten(t *testing.T) {
	t.Parallel()
	for _, kind := range []struct {
		name           string
		refuse, accept func(t *testing.T, rdb *redis.Client)
	}{
		{"cannot persist", func(t *testing.T, rdb *redis.Client) {
			dir, err := rdb.ConfigGet(t.Context(), "dir").Result()
			require.NoError(t, err)
			// A directory where the snapshot should go.
			require.NoError(t, os.Mkdir(filepath.Join(dir["dir"], "dump.rdb"), 0o700))
			require.NoError(t, rdb.ConfigSet(t.Context(), "stop-writes-on-bgsave-error", "yes").Err())
			require.NoError(t, rdb.ConfigSet(t.Context(), "save", "3600 1000000").Err())
			require.NoError(t, rdb.BgSave(t.Context()).Err())
			timerstest.Eventually(t, soon, "it refuses writes", func() bool {
				err := rdb.Set(t.Context(), "foreign", 1, 0).Err()
				return err != nil && strings.HasPrefix(err.Error(), "MISCONF")
			})
		}, func(t *testing.T, rdb *redis.Client) {
			require.NoError(t, rdb.ConfigSet(t.Context(), "stop-writes-on-bgsave-error", "no").Err())
			require.NoError(t, rdb.Del(t.Context(), "foreign").Err())
		}},
		{"is a replica", func(t *testing.T, rdb *redis.Client) {
			require.NoError(t, rdb.ReplicaOf(t.Context(), "127.0.0.1", "1").Err())
		}, func(t *testing.T, rdb *redis.Client) {
			require.NoError(t, rdb.ReplicaOf(t.Context(), "NO", "ONE").Err())
		}},
	} {
		t.Run(kind.name, func(t *testing.T) {
			t.Parallel()
			rs, ns := timerstest.Redis(t), timerstest.NATS(t)
			l := timerstest.LapseOn(t, rs.URL(), ns.URL(), "LAPSE_LEASE=1s")
			rdb, nc := rs.Client(), ns.Connect(t)
			c := newClient(t, nc)
			tries, err := nc.SubscribeSync("timers.fired.>")
			require.NoError(t, err)
			require.NoError(t, nc.Flush())
			a := newAttempts()
			due := time.Now().Add(2 * time.Second)
			const n = 200
			a.setMany(t, c, "storm", n, nil, timesIn(due, time.Second, n))
			require.Equal(t, n, a.count(delivered))
			// In the middle, so that some are claimed whose end cannot be written.
			timerstest.Eventually(t, soon, "it is in the middle", func() bool { return stored(t, nc) > n/4 })
			kind.refuse(t, rdb)
			timerstest.Eventually(t, soon, "all are due, and their leases over", func() bool { return time.Now().After(due.Add(3 * time.Second)) })
			published := map[string]int{}
			heard, _, err := tries.Pending()
			require.NoError(t, err)
			for range heard {
				published[next(t, tries).Header.Get("Timer-Id")]++
			}
			for id, times := range published {
				require.LessOrEqual(t, times, 1, id)
			}
			require.Less(t, len(published), n, "claims were refused in the middle")
			kind.accept(t, rdb)
			ready(t, l, 200)
			a.allOnce(t, nc, rdb)
		})
	}
}
