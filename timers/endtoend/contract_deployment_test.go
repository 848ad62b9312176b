package endtoend

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/lapse-timers/lapse/timers/timerstest"
)

// The prefix names everything, and its dots are as good as any character.
func TestPrefixWithDots(t *testing.T) {
	t.Parallel()
	s := serve(t, timerstest.NATS(t), "LAPSE_PREFIX=acme.timers")
	var ping struct {
		Name     string
		Metadata map[string]string
	}
	require.NoError(t, json.Unmarshal(s.ok(t, about("$SRV.PING.acme-timers", "")).Data, &ping))
	require.Equal(t, "acme.timers", ping.Metadata["lapse-prefix"])
	st := s.status(t, "acme.timers")
	require.Equal(t, "acme.timers", st.Prefix)
	require.Equal(t, "ACME_TIMERS", st.Stream)

	fired := s.hear(t, "acme.timers.fired.>")
	set := s.set(t, request("acme.timers.set.orders.close", "x", "@in 1h"))
	require.Equal(t, "orders.close", set.Topic)
	require.Equal(t, "orders.close", s.ok(t, about("acme.timers.get.orders.close", "x")).Header.Get("Timer-Topic"))
	require.Equal(t, []string{"orders.close x"}, names(s.list(t, "acme.timers.list.orders", "").Timers))
	require.Equal(t, []string{"orders.close x"}, names(s.list(t, "acme.timers.list", "").Timers))
	keys, err := s.rdb.Keys(t.Context(), "*").Result()
	require.NoError(t, err)
	for _, k := range keys {
		require.True(t, strings.HasPrefix(k, "acme.timers:"), k)
	}
	isRefusal(t, s.ask(t, request("acme.timers.set", "x", "@in 1h")), 400, "invalid_topic")
	s.ok(t, about("acme.timers.cancel.orders.close", "x"))
	for _, reply := range []string{"acme.timers", "acme.timers.fired.x"} {
		m := about("acme.timers.get.a", "x")
		m.Reply = reply
		require.NoError(t, s.nc.PublishMsg(m))
	}

	s.set(t, request("acme.timers.set.orders.close", "x", "@in 50ms"))
	m := next(t, fired)
	require.Equal(t, "acme.timers.fired.orders.close", m.Subject)
	require.Equal(t, "event", m.Header.Get("Timer-Source"), "the expired event is heard under this prefix too")
	timerstest.Eventually(t, 10*time.Second, "it is acknowledged", func() bool { return s.status(t, "acme.timers").Counts.Fired == 1 })
	require.Equal(t, 2, s.status(t, "acme.timers").Counts.Ignored)
	require.Equal(t, 1, count(t, s.nc, "ACME_TIMERS", "acme.timers.fired.>"))
	require.Len(t, records(t, s.rdb), 2, "only the bookkeeping is left")
	timerstest.CheckInvariants(t, s.rdb, "acme.timers")
	require.Equal(t, s.connections, s.connected(t))
}

// Two databases of one Redis announce their expired keys on two channels, of
// which each instance must hear its own. One case has the same prefix on two
// NATS, the other two prefixes on one.
func TestTwoDatabasesOfOneRedis(t *testing.T) {
	t.Parallel()
	for _, prefixes := range [][2]string{{"timers", "timers"}, {"timers", "other"}} {
		t.Run(strings.Join(prefixes[:], " and "), func(t *testing.T) {
			rs := timerstest.RedisTCP(t)
			dbs := [2]int{0, 5}
			var on [2]*served
			for i, prefix := range prefixes {
				ns := timerstest.NATS(t)
				if i == 1 && prefixes[0] != prefixes[1] {
					ns = on[0].ns
				}
				rdb := redis.NewClient(&redis.Options{Addr: rs.Addr(), DB: dbs[i]})
				t.Cleanup(func() { rdb.Close() })
				on[i] = &served{rdb: rdb, ns: ns, nc: ns.Connect(t), lapse: timerstest.LapseOn(t, fmt.Sprintf("%s/%d", rs.URL(), dbs[i]), ns.URL(), "LAPSE_PREFIX="+prefix)}
			}
			for i, s := range on {
				fired := s.hear(t, prefixes[i]+".fired.>")
				elsewhere := on[1-i].hear(t, prefixes[1-i]+".fired.>")
				before := records(t, on[1-i].rdb)
				s.set(t, request(prefixes[i]+".set.a", "x", "@in 50ms"))
				require.Equal(t, before, records(t, on[1-i].rdb))
				m := next(t, fired)
				require.Equal(t, "event", m.Header.Get("Timer-Source"), "the events of database %d are heard", dbs[i])
				timerstest.Eventually(t, 10*time.Second, "only the bookkeeping is left", func() bool { return len(records(t, s.rdb)) == 2 })
				require.Equal(t, 1, s.status(t, prefixes[i]).Counts.Fired)
				require.Equal(t, i, on[1-i].status(t, prefixes[1-i]).Counts.Fired, "the other one did not fire it")
				if n, _, err := elsewhere.Pending(); err != nil || n != 0 {
					t.Errorf("%d events at the other deployment, %v", n, err)
				}
				require.NoError(t, fired.Unsubscribe())
				require.NoError(t, elsewhere.Unsubscribe())
			}
		})
	}
}

// An id that was delivered can be set again at once: another life, another
// message, which the stream's duplicate window must not swallow.
func TestSetAgainAfterItFired(t *testing.T) {
	t.Parallel()
	s := serve(t, timerstest.NATS(t))
	fired := s.hear(t, "timers.fired.again")
	ids, revs := map[string]bool{}, map[string]bool{}
	const lives = 5
	for i := range lives {
		set := s.set(t, request("timers.set.again", "x", "@in 0s"))
		m := next(t, fired)
		require.Equal(t, fmt.Sprint(set.Rev), m.Header.Get("Timer-Rev"))
		ids[m.Header.Get("Nats-Msg-Id")], revs[m.Header.Get("Timer-Rev")] = true, true
		if i%2 == 0 { // otherwise at once, while the last life may still be settled
			nothingLeft(t, s.rdb)
		}
	}
	nothingLeft(t, s.rdb)
	require.Len(t, ids, lives)
	require.Len(t, revs, lives)
	require.Equal(t, lives, count(t, s.nc, "TIMERS", "timers.fired.again"))
	require.Zero(t, s.status(t, "timers").Counts.Duplicates)

	// A cancelled and a replaced life leave no message.
	s.set(t, request("timers.set.again", "y", "@in 1h"))
	s.ok(t, about("timers.cancel.again", "y"))
	s.set(t, request("timers.set.again", "y", "@in 1h"))
	require.Equal(t, "scheduled", s.set(t, request("timers.set.again", "y", "@in 0s")).Was)
	next(t, fired)
	nothingLeft(t, s.rdb)
	require.Equal(t, lives+1, count(t, s.nc, "TIMERS", "timers.fired.again"))
}

// Whatever else expires in the database is not ours, whatever its name.
func TestForeignKeysExpire(t *testing.T) {
	t.Parallel()
	s := serve(t, timerstest.NATS(t))
	s.set(t, request("timers.set.a", "pending", "@in 1h"))
	foreign := []string{
		"", "x", ":", ":::", "timers", "timers:", "timers:x", "timers::", "timers:{", "timers:{0}", "timers:{0}:", "timers:{0}:t", "timers:{0}:t:", "timers:{0}:t:a", "timers:{0}:t:a:",
		"timers:{0}:t::b", "timers:{0}:t:a:b", "timers:{0}:t:a..b:c", "timers:{0}:t:*:>", "timers:{0}:t:a: b", "timers:{1}:t:a:pending", "timers:{0}:h:a:b", "timers:{00}:t:a:pending", "timers:{0}:x:a:pending",
		"Timers:{0}:t:a:pending", "other:{0}:t:a:pending", "timers:{0}:t:a:\xff\xfe", "timers:{0}:t:a:b\r\nc", "\x00\x01\xff", "\r\n", "%s%n", strings.Repeat("x", 10_000),
		"timers:{0}:t:a:" + strings.Repeat("y", 10_000), "timers:{0}:t:" + strings.Repeat("a.", 5_000) + ":z", strings.Repeat("{", 1000), "__keyevent@0__:expired",
	}
	ctx := t.Context()
	events := s.rdb.Subscribe(ctx, "__keyevent@0__:expired")
	defer events.Close()
	_, err := events.Receive(ctx)
	require.NoError(t, err)
	heard := events.Channel(redis.WithChannelSize(1000))
	for round := range 3 {
		for _, key := range foreign {
			require.NoError(t, s.rdb.Set(ctx, key, "theirs", time.Duration(1+round)*time.Millisecond).Err())
		}
		waiting := map[string]bool{}
		for _, key := range foreign {
			waiting[key] = true
		}
		deadline := time.After(20 * time.Second)
		for len(waiting) > 0 {
			for key := range waiting {
				s.rdb.Exists(ctx, key) // a key that is touched expires at once
			}
			select {
			case m := <-heard:
				delete(waiting, m.Payload)
			case <-time.After(10 * time.Millisecond):
			case <-deadline:
				t.Fatalf("%d keys did not expire", len(waiting))
			}
		}
	}
	fired := s.hear(t, "timers.fired.a")
	s.set(t, request("timers.set.a", "ours", "@in 50ms"))
	m := next(t, fired)
	require.Equal(t, "ours", m.Header.Get("Timer-Id"), "a foreign key fired something")
	require.Equal(t, "event", m.Header.Get("Timer-Source"))
	require.Equal(t, []string{"a pending"}, func() []string {
		timerstest.Eventually(t, 10*time.Second, "it is acknowledged", func() bool { return s.status(t, "timers").Counts.Fired == 1 })
		return names(s.list(t, "timers.list", "").Timers)
	}())
	for line := range strings.Lines(s.lapse.Log()) {
		if strings.Contains(line, `"WARN"`) || strings.Contains(line, `"ERROR"`) || strings.Contains(line, "panic") {
			t.Errorf("it complains of what is not its own: %s", line)
		}
	}
	s.unharmed(t)
}
