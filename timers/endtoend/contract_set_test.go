package endtoend

import (
	"bytes"
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/require"

	"github.com/lapse-timers/lapse/timers/timerstest"
)

// fields are the names in a JSON object.
func fields(t *testing.T, body []byte) []string {
	t.Helper()
	var m map[string]json.RawMessage
	require.NoError(t, json.Unmarshal(body, &m))
	var out []string
	for name := range m {
		out = append(out, name)
	}
	return out
}

func TestRepliesToOneTimer(t *testing.T) {
	t.Parallel()
	s := serve(t, timerstest.NATS(t))

	reply := s.ok(t, request("timers.set.one", "x", "@in 1h"))
	require.ElementsMatch(t, []string{"topic", "id", "due", "rev", "replaced"}, fields(t, reply.Data))
	require.Empty(t, reply.Header)
	require.Regexp(t, `"due":"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z"`, string(reply.Data))
	var first setReply
	strict(t, reply.Data, &first)
	require.Equal(t, setReply{Topic: "one", ID: "x", Due: first.Due, Rev: first.Rev}, first)

	got := s.ok(t, about("timers.get.one", "x"))
	require.Equal(t, "payload of x", string(got.Data))
	require.Equal(t, nats.Header{
		"Timer-Topic": {"one"}, "Timer-Id": {"x"}, "Timer-Rev": {fmt.Sprint(first.Rev)}, "Timer-Schedule": {"@in 1h"},
		"Timer-Due": {first.Due.Format("2006-01-02T15:04:05.000Z")}, "Timer-Attempt": {"0"}, "Timer-State": {"scheduled"},
	}, got.Header)

	// A replace changes payload, headers and schedule in one step.
	m := with(request("timers.set.one", "x", "@in 2h"), "X-Own", "1")
	m.Data = []byte("second")
	reply = s.ok(t, m)
	require.ElementsMatch(t, []string{"topic", "id", "due", "rev", "replaced", "was"}, fields(t, reply.Data))
	var second setReply
	strict(t, reply.Data, &second)
	require.True(t, second.Replaced)
	require.Equal(t, "scheduled", second.Was)
	require.Greater(t, second.Rev, first.Rev)
	require.WithinDuration(t, first.Due.Add(time.Hour), second.Due, 30*time.Second)
	got = s.ok(t, about("timers.get.one", "x"))
	require.Equal(t, "second", string(got.Data))
	require.Equal(t, "1", got.Header.Get("X-Own"))
	require.Equal(t, "@in 2h", got.Header.Get("Timer-Schedule"))
	s.set(t, request("timers.set.one", "x", "@in 1h"))
	require.NotContains(t, s.ok(t, about("timers.get.one", "x")).Header, "X-Own", "a header of the old life")

	reply = s.ok(t, about("timers.cancel.one", "x"))
	require.ElementsMatch(t, []string{"topic", "id", "rev"}, fields(t, reply.Data))
	s.refused(t, about("timers.cancel.one", "x"), 404, "not_found", `"x"`, "one")
	s.refused(t, about("timers.get.one", "x"), 404, "not_found", `"x"`, "one")
	require.False(t, s.set(t, request("timers.set.one", "x", "@in 1h")).Replaced, "a cancelled timer is replaced by nothing")
	s.unharmed(t)
}

// A timer whose delivery has an unknown outcome, as the mark "u" in its shadow
// says (timers/lua/prelude.lua).
func TestRepliesWhileFiring(t *testing.T) {
	t.Parallel()
	s := serve(t, timerstest.NATS(t))
	unsure := func() {
		t.Helper()
		require.NoError(t, s.rdb.HSet(t.Context(), "timers:{0}:h:one:x", "u", "1").Err())
	}
	first := s.set(t, request("timers.set.one", "x", "@in 1h"))
	unsure()
	require.Equal(t, "firing", s.ok(t, about("timers.get.one", "x")).Header.Get("Timer-State"))
	require.Equal(t, "firing", s.list(t, "timers.list.one", "").Timers[0].State)

	reply := s.ask(t, about("timers.cancel.one", "x"))
	isRefusal(t, reply, 409, "conflict", `"x"`, "one", "no further attempt")
	var conflict struct {
		Error, Message, State string
		Rev                   int64
		Stopped               *bool
	}
	strict(t, reply.Data, &conflict)
	require.Equal(t, "firing", conflict.State)
	require.Equal(t, first.Rev, conflict.Rev)
	require.NotNil(t, conflict.Stopped)
	require.True(t, *conflict.Stopped)

	second := s.set(t, request("timers.set.one", "y", "@in 1h"))
	require.NoError(t, s.rdb.HSet(t.Context(), "timers:{0}:h:one:y", "u", "1").Err())
	again := s.set(t, request("timers.set.one", "y", "@in 2h"))
	require.Equal(t, "firing", again.Was)
	require.Greater(t, again.Rev, second.Rev)
	require.Equal(t, "scheduled", s.ok(t, about("timers.get.one", "y")).Header.Get("Timer-State"), "a new life begins anew")
}

func TestGeneratedIDs(t *testing.T) {
	t.Parallel()
	s := serve(t, timerstest.NATS(t))
	ids := map[string]bool{}
	for range 100 {
		r := s.set(t, request("timers.set.made", "", "@in 1h"))
		require.NotEmpty(t, r.ID)
		require.False(t, r.Replaced)
		ids[r.ID] = true
		require.Equal(t, r.ID, s.ok(t, about("timers.get.made", r.ID)).Header.Get("Timer-Id"))
	}
	require.Len(t, ids, 100)
	s.unharmed(t)
}

func TestSetWithoutReplySubject(t *testing.T) {
	t.Parallel()
	s := serve(t, timerstest.NATS(t))
	fired := s.hear(t, "timers.fired.silent")
	require.NoError(t, s.nc.PublishMsg(request("timers.set.silent", "x", "@in 0s")))
	require.Equal(t, "payload of x", string(next(t, fired).Data))
	// A bad one is refused as silently, and harms nobody.
	require.NoError(t, s.nc.PublishMsg(request("timers.set.silent", "y", "tomorrow")))
	require.NoError(t, s.nc.PublishMsg(request("timers.set", "y", "@in 1h")))
	for _, verb := range []string{"get", "cancel", "list"} {
		require.NoError(t, s.nc.Publish("timers."+verb+".silent", []byte("z")))
	}
	isRefusal(t, s.ask(t, about("timers.get.silent", "y")), 404, "not_found")
	s.unharmed(t)
	nothingLeft(t, s.rdb)
}

func TestSchedulesTaken(t *testing.T) {
	t.Parallel()
	s := serve(t, timerstest.NATS(t))
	const century = 36525 * 24 * time.Hour
	ms := func(d time.Duration) string { return time.Now().Add(d).UTC().Format("2006-01-02T15:04:05.000Z") }
	for _, c := range []struct {
		schedule string
		in       time.Duration // from now, when at is empty
		at       string
	}{
		{"@in 0s", 0, ""},
		{"@in 0", 0, ""},
		{"@in -0s", 0, ""},
		{"@in 1ns", 1, ""},
		{"@in 0.4ms", 400 * time.Microsecond, ""},
		{"@in 250ms", 250 * time.Millisecond, ""},
		{"@in 1h30m", 90 * time.Minute, ""},
		{"@in 1.5h", 90 * time.Minute, ""},
		{"@in +5s", 5 * time.Second, ""},
		{"@in 00005s", 5 * time.Second, ""},
		{"@in  5s", 5 * time.Second, ""},
		{"@in 876600h", century, ""}, // the longest
		{"@in 3155760000000ms", century, ""},
		{"@at " + ms(century-time.Minute), century - time.Minute, ""},

		{"@at 2099-01-02T03:04:05Z", 0, "2099-01-02T03:04:05.000Z"},
		{"@at 2099-01-02t03:04:05z", 0, "2099-01-02T03:04:05.000Z"},
		{"@at 2099-01-02T03:04:05.5+05:30", 0, "2099-01-01T21:34:05.500Z"},
		{"@at 2099-01-02T03:04:05-00:00", 0, "2099-01-02T03:04:05.000Z"},
		{"@at 2099-01-02T03:04:05-23:59", 0, "2099-01-03T03:03:05.000Z"},
		{"@at 2099-01-02T03:04:05.123Z", 0, "2099-01-02T03:04:05.123Z"},
		{"@at 2099-01-02T03:04:05.1230000000000Z", 0, "2099-01-02T03:04:05.123Z"},
		{"@at 2099-01-02T03:04:05.1230000000001Z", 0, "2099-01-02T03:04:05.124Z"}, // never down
		{"@at 2099-01-02T03:04:05.9999Z", 0, "2099-01-02T03:04:06.000Z"},
		{"@at 2096-02-29T23:59:59.999999999Z", 0, "2096-03-01T00:00:00.000Z"},

		// The past is now.
		{"@at " + ms(-time.Hour), 0, ""},
		{"@at 2018-11-04T00:00:00-03:00", 0, ""}, // a midnight that Sao Paulo skipped, as an offset has it
		{"@at 1969-12-31T23:59:59.5Z", 0, ""},
		{"@at 1970-01-01T00:00:00Z", 0, ""},
		{"@at 0001-01-01T00:00:00Z", 0, ""},
		{"@at 0000-01-01T00:00:00Z", 0, ""},
	} {
		t.Run(c.schedule, func(t *testing.T) {
			before := s.redisTime(t)
			due := s.set(t, request("timers.set.when", "x", c.schedule)).Due
			after := s.redisTime(t)
			if c.at != "" {
				require.Equal(t, c.at, due.Format("2006-01-02T15:04:05.000Z"))
				pttl := s.rdb.PTTL(t.Context(), "timers:{0}:t:when:x").Val()
				require.WithinDuration(t, due, s.redisTime(t).Add(pttl), 10*time.Second)
				return
			}
			require.Zero(t, due.Nanosecond()%int(time.Millisecond))
			slack := time.Millisecond
			if strings.HasPrefix(c.schedule, "@at") && c.in > 0 {
				slack = time.Minute // it was reckoned from this machine's clock, before
			}
			require.False(t, due.Before(before.Add(c.in-slack+time.Millisecond)), "due %v is before %v + %v", due, before, c.in)
			require.False(t, due.After(after.Add(c.in+slack)), "due %v is later than %v + %v", due, after, c.in)
		})
	}
	s.ask(t, about("timers.cancel.when", "x")) // unless it has fired
	s.unharmed(t)
}

func TestPastAndZeroFireNow(t *testing.T) {
	t.Parallel()
	s := serve(t, timerstest.NATS(t))
	fired := s.hear(t, "timers.fired.now")
	for _, schedule := range []string{"@in 0s", "@in 1ns", "@at 2001-01-01T00:00:00Z", "@at 0001-01-01T00:00:00Z"} {
		set := s.set(t, request("timers.set.now", "x", schedule))
		m := next(t, fired)
		require.Equal(t, fmt.Sprint(set.Rev), m.Header.Get("Timer-Rev"))
		require.Equal(t, set.Due.Format("2006-01-02T15:04:05.000Z"), m.Header.Get("Timer-Due"))
		at, err := time.Parse(time.RFC3339, m.Header.Get("Timer-Fired"))
		require.NoError(t, err)
		require.False(t, at.Before(set.Due))
	}
	nothingLeft(t, s.rdb)
}

func TestSchedulesRefused(t *testing.T) {
	t.Parallel()
	s := serve(t, timerstest.NATS(t))
	const recurring = "recurring"
	s.refused(t, request("timers.set.when", "x", ""), 400, "invalid_schedule", "Timer-Schedule", "missing")
	for schedule, says := range map[string]string{
		"": "empty", "0": "@in", "-1": "@in", "-5": "@in", "0.4ms": "@in", " 5 ": "@in", "5": "@in", "+5": "@in", "1e3": "@in",
		"5s": "@in", "NaN": "@in", "00005": "@in", "tomorrow": "@in", "in 5s": "@in", "@": "@in", "@in": "with units",
		"@in ": "with units", "@IN 5s": "@in", "@In 5s": "@in", "@in\t5s": "@in", "@in5s": "@in", "@after 5s": "@in",
		"@in -1": "with units", "@in -5s": "negative", "@in -1ns": "negative", "@in 5": "with units", "@in +5": "with units",
		"@in 1e3": "with units", "@in 1e300s": "with units", "@in NaN": "with units", "@in Inf": "with units", "@in 00005": "with units",
		"@in 5 s": "with units", "@in 5s 5s": "with units", "@in 5S": "with units", "@in 1d": "with units", "@in PT5S": "with units",
		"@in 5\u00b5": "with units", "@in 0x10s": "with units", "@in 1_000s": "with units", "@in \u0665s": "with units", "@in 5s\u00a0": "with units",
		"@in 9223372036854775807": "with units", "@in 9223372036854775807ns": "100 years", "@in 9223372036854775807ms": "100 years",
		"@in 9223372036854775ms": "100 years", "@in 9223372036855ms": "100 years", "@in 18446744073709551616ms": "100 years",
		"@in 876600h0m0.001s": "100 years", "@in 876601h": "100 years", "@in " + strings.Repeat("9", 10_000) + "s": "100 years",
		"@in -9223372036854775808ns": "negative",

		"@at": "RFC 3339", "@at 0": "RFC 3339", "@at 1893553445": "RFC 3339", "@at 2099-01-02": "RFC 3339", "@at 2099-01-02T03:04Z": "RFC 3339",
		"@at 2099-01-02T03:04:05": "RFC 3339", "@at 2099-01-02 03:04:05Z": "RFC 3339", "@at 2099-01-02T03:04:05 Z": "RFC 3339",
		"@at 2099-01-02T03:04:05ZZ": "RFC 3339", "@at 2099-01-02T03:04:05+0530": "RFC 3339", "@at 2099-01-02T03:04:05+05": "RFC 3339",
		"@at 2099-01-02T03:04:05+24:00": "RFC 3339", "@at 2099-01-02T03:04:05-24:00": "RFC 3339", "@at 2099-01-02T03:04:05+05:60": "RFC 3339", "@at 2099-01-02T03:04:05+99:99": "RFC 3339",
		"@at 2099-01-02T03:04:05,5Z": "RFC 3339", "@at 2099-01-02T03:04:05.Z": "RFC 3339", "@at 2099-01-02T24:00:00Z": "RFC 3339",
		"@at 2098-12-31T23:59:60Z": "RFC 3339", "@at 2098-12-31T23:60:00Z": "RFC 3339", "@at 2099-02-29T00:00:00Z": "RFC 3339", "@at 2099-13-01T00:00:00Z": "RFC 3339",
		"@at 2099-00-01T00:00:00Z": "RFC 3339", "@at 2099-01-00T00:00:00Z": "RFC 3339", "@at 12099-01-02T03:04:05Z": "RFC 3339",
		"@at -099-01-02T03:04:05Z": "RFC 3339", "@at 2018-11-04T00:00:00[America/Sao_Paulo]": "RFC 3339", "@at 2099-01-02T03:04:05 EST": "RFC 3339",
		"@at now": "RFC 3339", "@at \u0662\u0660\u0669\u0669-01-02T03:04:05Z": "RFC 3339",
		"@at 9999-12-31T23:59:59Z": "100 years", "@at 9999-12-31T23:59:59.999999999-23:59": "100 years",
		"@at " + time.Now().Add(36525*24*time.Hour+time.Hour).UTC().Format(time.RFC3339): "100 years",

		"@every 5s": recurring, "@every 1h30m": recurring, "@every": recurring, "@every nonsense": recurring, "@yearly": recurring, "@annually": recurring, "@monthly": recurring,
		"@weekly": recurring, "@daily": recurring, "@midnight": recurring, "@hourly": recurring, "0 0 9 * * *": recurring, "*/5 * * * * MON-FRI": recurring,
		"0 30 2 ? * SUN": recurring, "0 9 * * *": "@in", "@reboot": "@in", "@Daily": "@in",
	} {
		t.Run(fmt.Sprintf("%.40q", schedule), func(t *testing.T) {
			m := request("timers.set.when", "x", "")
			m.Header["Timer-Schedule"] = []string{schedule}
			quoted := fmt.Sprintf("%+q", strings.TrimSpace(schedule))
			s.refused(t, m, 400, "invalid_schedule", says, quoted[:min(len(quoted)-1, 60)])
		})
	}
	s.refused(t, with(request("timers.set.when", "x", "@in 1h"), "Timer-Time-Zone", "Europe/Berlin"), 400, "invalid_header", "Timer-Time-Zone", "cron")
	s.unharmed(t)
}

func TestPayloadsArriveAsTheyAre(t *testing.T) {
	t.Parallel()
	s := serve(t, timerstest.NATS(t))
	fired := s.hear(t, "timers.fired.bytes")
	all := make([]byte, 256)
	for i := range all {
		all[i] = byte(i)
	}
	for name, payload := range map[string][]byte{
		"empty": {}, "every byte": all, "NULs": make([]byte, 1000), "CR LF": []byte("\r\n\r\n"), "like the protocol": []byte("\r\nPUB timers.fired.x 0\r\n\r\n"),
		"like headers": []byte("NATS/1.0\r\nNats-Service-Error-Code: 404\r\n\r\n"), "like an error": []byte(`{"error":"not_found","message":"x"}`),
		"invalid UTF-8": []byte("\xff\xfe\xfd"), "long": bytes.Repeat([]byte("0123456789abcdef"), 10_000), "like an integer": []byte("17"), "float": []byte("1e5"),
	} {
		t.Run(name, func(t *testing.T) {
			m := request("timers.set.bytes", "x", "@in 1h")
			m.Data = payload
			s.set(t, m)
			require.True(t, bytes.Equal(payload, s.ok(t, about("timers.get.bytes", "x")).Data))
			m.Header.Set("Timer-Schedule", "@in 0s")
			s.set(t, m)
			require.True(t, bytes.Equal(payload, next(t, fired).Data))
		})
	}
	nothingLeft(t, s.rdb)
}

// What is accepted can be fired and read; one byte more is refused at the set.
func TestLargestTimer(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name       string
		maxPayload int32
		maxMsg     int32 // of the stream; 0: Lapse makes it
		most       int
	}{
		{"max_payload 4096", 4096, 0, 4096},
		{"max_payload 1 MB", 1 << 20, 0, 1 << 20},
		{"stream with a smaller limit", 1 << 20, 2000, 2000},
		{"stream with a larger limit", 4096, 100_000, 4096},
	} {
		t.Run(c.name, func(t *testing.T) {
			ns := timerstest.NATS(t, maxPayload(c.maxPayload))
			if c.maxMsg > 0 {
				js, err := jetstream.New(ns.Connect(t))
				require.NoError(t, err)
				_, err = js.CreateStream(t.Context(), jetstream.StreamConfig{Name: "TIMERS", Subjects: []string{"timers.fired.>"}, MaxMsgSize: c.maxMsg})
				require.NoError(t, err)
			}
			s := serve(t, ns)
			fired := s.hear(t, "timers.fired.>")
			for _, v := range []struct {
				topic, id, header string
			}{
				{"a", "x", ""},
				{strings.Repeat("t", 128), strings.Repeat("\u20ac", 85), ""},
				{"a.b", "y", strings.Repeat("h", 500)},
				{"a.b", "y", "\u00e9"},
			} {
				set := func(payload int, schedule string) *nats.Msg {
					m := with(request("timers.set."+v.topic, v.id, schedule), "X-Own", v.header)
					m.Data = bytes.Repeat([]byte("p"), payload)
					return m
				}
				// The refusal says how much too large it was.
				much := c.most - len(v.header) - len(v.id) - 100
				refusal := s.ask(t, set(much, "@in 1h"))
				isRefusal(t, refusal, 413, "too_large", fmt.Sprint("at most ", c.most))
				var size int
				_, err := fmt.Sscanf(refusal.Header.Get("Nats-Service-Error"), "the fired message would have %d bytes", &size)
				require.NoError(t, err)
				limit := much - (size - c.most)

				s.refused(t, set(limit+1, "@in 1h"), 413, "too_large", fmt.Sprintf("%d bytes", c.most+1), fmt.Sprint("at most ", c.most))
				for _, n := range []int{limit - 1, limit} {
					s.set(t, set(n, "@in 1h"))
					require.Len(t, s.ok(t, about("timers.get."+v.topic, v.id)).Data, n)
				}
				s.set(t, set(limit, "@in 0s"))
				m := next(t, fired)
				require.Len(t, m.Data, limit)
				require.Less(t, c.most-m.Size()+len(m.Subject)+len(m.Reply), 200, "room is wasted")
				// A subscriber may hear it before Redis has forgotten it.
				nothingLeft(t, s.rdb)
			}
			require.Equal(t, 4, count(t, s.nc, "TIMERS", "timers.fired.>"))
			require.Zero(t, s.status(t, "timers").Counts.Refused, "an accepted timer did not fit")
			s.unharmed(t)
		})
	}
}
