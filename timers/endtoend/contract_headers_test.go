package endtoend

import (
	"fmt"
	"strings"
	"testing"

	"github.com/nats-io/nats.go"
	"github.com/stretchr/testify/require"

	"github.com/lapse-timers/lapse/timers/timerstest"
)

func TestHeadersRefused(t *testing.T) {
	t.Parallel()
	s := serve(t, timerstest.NATS(t))
	const control, timer, belong = "control message", "Timer-Id, Timer-Schedule and Timer-Time-Zone", "belong to NATS"
	for _, c := range []struct{ name, says string }{
		{"Timer-Foo", timer}, {"Timer-Topic", timer}, {"Timer-Rev", timer}, {"Timer-Due", timer}, {"Timer-Fired", timer}, {"Timer-Attempt", timer},
		{"Timer-Source", timer}, {"Timer-State", timer}, {"Timer-", timer}, {"Timer-Ids", timer},
		{"timer-id", timer}, {"TIMER-ID", timer}, {"Timer-ID", timer}, {"timer-Schedule", timer}, {"Timer-SCHEDULE", timer}, {"timer-time-zone", timer}, {"tImEr-x", timer},

		{"Nats-Msg-Id", belong}, {"Nats-Rollup", belong}, {"Nats-TTL", belong}, {"Nats-Expected-Stream", belong}, {"Nats-Expected-Last-Sequence", belong},
		{"Nats-Expected-Last-Msg-Id", belong}, {"Nats-Expected-Last-Subject-Sequence", belong}, {"Nats-Schedule", belong}, {"Nats-Schedule-Target", belong},
		{"Nats-Scheduler", belong}, {"Nats-Incr", belong}, {"Nats-Batch-Id", belong}, {"Nats-Marker-Reason", belong}, {"Nats-Stream", belong}, {"Nats-Sequence", belong},
		{"Nats-Service-Error", belong}, {"Nats-Service-Error-Code", belong}, {"Nats-Foo", belong}, {"Nats-", belong}, {"Nats-Request-Info2", belong}, {"Nats-Trace", belong},
		{"nats-msg-id", belong}, {"NATS-ROLLUP", belong}, {"nats-request-info", belong}, {"NATS-Trace-Dest", belong}, {"nAtS-x", belong},

		{"Status", control}, {"Description", control},
	} {
		t.Run(c.name, func(t *testing.T) {
			for _, value := range []string{"x", ""} {
				s.refused(t, with(request("timers.set.h", "x", "@in 1h"), c.name, value), 400, "invalid_header", c.name, c.says)
			}
		})
	}

	// A nats-server finds no message id behind these, and would store copies.
	for name, value := range map[string]string{
		"A": "Nats-Msg-IdNats-Msg-Id", "B": "Nats-Msg-Id, Nats-Msg-Id:Nats-Msg-Id", "C-Nats-Msg-Id-Nats-Msg-Id": "",
	} {
		s.refused(t, with(request("timers.set.h", "x", "@in 1h"), name, value), 400, "invalid_header", name, "twice in a row")
	}

	// A second value could mean the one or the other.
	for _, name := range []string{"Timer-Id", "Timer-Schedule", "Timer-Time-Zone"} {
		for _, second := range []string{"x", "@in 1h", ""} {
			m := with(request("timers.set.h", "x", "@in 1h"), name, second)
			if name == "Timer-Time-Zone" {
				with(m, name, second)
			}
			s.refused(t, m, 400, "invalid_header", name, "2 values")
		}
	}
	s.unharmed(t)
}

// Headers that no client library would write. nats.go cannot send all names
// that NATS allows, so what it cannot send must not be taken.
func TestHeadersRefusedRaw(t *testing.T) {
	t.Parallel()
	s := serve(t, timerstest.NATS(t))
	good := "Timer-Id: x\r\nTimer-Schedule: @in 1h\r\n"
	for _, c := range []struct{ name, block, word, says string }{
		{"status line", "NATS/1.0 503\r\n" + good + "\r\n", "invalid_header", "Status"},
		{"status line with text", "NATS/1.0 503 No Responders\r\n" + good + "\r\n", "invalid_header", "control message"},
		{"status line, whatever it says", "NATS/1.0 abc\r\n" + good + "\r\n", "invalid_header", "Status"},

		{"space in the name", "NATS/1.0\r\n" + good + "X Y: 1\r\n\r\n", "invalid_header", `"X Y"`},
		{"space behind the name", "NATS/1.0\r\n" + good + "X : 1\r\n\r\n", "invalid_header", `"X "`},
		{"space before the name", "NATS/1.0\r\n" + good + " X: 1\r\n\r\n", "invalid_header", `" X"`},
		{"continued line", "NATS/1.0\r\n" + good + "X: 1\r\n 2: 3\r\n\r\n", "invalid_header", `" 2"`},
		{"tab in the name", "NATS/1.0\r\n" + good + "X\tY: 1\r\n\r\n", "invalid_header", `"X\tY"`},
		{"control in the name", "NATS/1.0\r\n" + good + "X\x01: 1\r\n\r\n", "invalid_header", `"X\x01"`},
		{"NUL in the name", "NATS/1.0\r\n" + good + "X\x00: 1\r\n\r\n", "invalid_header", `"X\x00"`},
		{"CR in the name", "NATS/1.0\r\n" + good + "X\rY: 1\r\n\r\n", "invalid_header", `"X\rY"`},
		{"no ASCII in the name", "NATS/1.0\r\n" + good + "\u00dcber: 1\r\n\r\n", "invalid_header", `"\u00dcber"`},
		{"invalid UTF-8 in the name", "NATS/1.0\r\n" + good + "X\xff: 1\r\n\r\n", "invalid_header", `"X\xff"`},
		{"long s in Nats", "NATS/1.0\r\n" + good + "Nat\u017f-Msg-Id: 1\r\n\r\n", "invalid_header", "header name"},
		{"dotless i in Timer", "NATS/1.0\r\n" + good + "T\u0131mer-Id: 1\r\n\r\n", "invalid_header", "header name"},
		{"reserved with a space", "NATS/1.0\r\n" + good + "Nats-Rollup : all\r\n\r\n", "invalid_header", `"Nats-Rollup "`},
		{"reserved behind a space", "NATS/1.0\r\n" + good + " Nats-Rollup: all\r\n\r\n", "invalid_header", `" Nats-Rollup"`},
		{"Status with a space", "NATS/1.0\r\n" + good + "Status : 503\r\n\r\n", "invalid_header", `"Status "`},
		{"reserved behind a lone LF", "NATS/1.0\r\n" + good + "X: 1\nNats-Rollup: all\r\n\r\n", "invalid_header", `"Nats-Rollup"`},
		{"CR in a value", "NATS/1.0\r\n" + good + "X: a\rb\r\n\r\n", "invalid_header", `"a\rb"`},
		{"reserved behind a lone CR", "NATS/1.0\r\n" + good + "X: a\rNats-Rollup: all\r\n\r\n", "invalid_header", "line break"},
		{"CR at the end of a value", "NATS/1.0\r\n" + good + "X: a\r\r\n\r\n", "invalid_header", `"a\r"`},
		{"NUL in a value", "NATS/1.0\r\n" + good + "X: a\x00b\r\n\r\n", "invalid_header", `"a\x00b"`},

		{"no version", good + "\r\n", "invalid_schedule", "Timer-Schedule"},
		{"another version", "HTTP/1.1\r\n" + good + "\r\n", "invalid_schedule", "Timer-Schedule"},
		{"no end", "NATS/1.0\r\n" + good, "invalid_schedule", "Timer-Schedule"},
		{"line without a colon", "NATS/1.0\r\n" + good + "X\r\n\r\n", "invalid_schedule", "Timer-Schedule"},
		{"status too short", "NATS/1.0 5\r\n" + good + "\r\n", "invalid_schedule", "Timer-Schedule"},
		{"nothing but garbage", "\x00\x01\x02\xff", "invalid_schedule", "Timer-Schedule"},
	} {
		t.Run(c.name, func(t *testing.T) {
			before := s.stored(t)
			isRefusal(t, s.askRaw(t, "timers.set.h", c.block, "x"), 400, c.word, c.says)
			require.Equal(t, before, s.stored(t))
		})
	}
	for _, c := range "\"(),/;<=>?@[\\]{}" {
		t.Run(fmt.Sprintf("%q in the name", c), func(t *testing.T) {
			before := s.stored(t)
			isRefusal(t, s.askRaw(t, "timers.set.h", "NATS/1.0\r\n"+good+"X"+string(c)+": 1\r\n\r\n", "x"), 400, "invalid_header", "header name", fmt.Sprintf(`"X%s"`, strings.Trim(fmt.Sprintf("%q", string(c)), `"`)))
			require.Equal(t, before, s.stored(t))
		})
	}
	require.NotContains(t, s.lapse.Log(), "may have been lost", "a malformed request is not a lost one")
	s.unharmed(t)
}

// What is taken arrives as it came: every value, in order, in its spelling.
func TestHeadersKept(t *testing.T) {
	t.Parallel()
	s := serve(t, timerstest.NATS(t))
	fired := s.hear(t, "timers.fired.h")
	own := nats.Header{
		"traceparent": {"00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"}, "Content-Type": {"text/plain; charset=utf-8"},
		"X-Many": {"c", "a", "b", "a", ""}, "x-case": {"1"}, "X-CASE": {"2"}, "X-Case": {"3"}, "Empty": {""}, "Inner": {"a  b\tc"},
		"Colons": {"a: b: c"}, "No-Ascii": {"\u00fc \u23f0"}, "Latin-1": {"\xfc"}, "Control": {"a\x01b"}, "status": {"503"}, "description": {"x"}, "STATUS": {"y"},
		"Orig-Nats-Msg-Id": {"z"}, "X-Nats-Rollup": {"all"}, "X-Timer-Id": {"other"}, "Timer": {"1"}, "Nats": {"2"}, "Timers-Id": {"3"}, "Natsy-Rollup": {"4"},
		"!#$%&'*+-.^_`|~0": {"odd but legal"}, "Long": {strings.Repeat("v", 5000)}, "Reply-To": {"someone"},
	}
	set := func(schedule string) {
		t.Helper()
		m := request("timers.set.h", "x", schedule)
		for name, values := range own {
			m.Header[name] = values
		}
		// Servers add these on the way; they are about the request, not the timer.
		with(m, "Nats-Request-Info", `{"acc":"A"}`, "Nats-Trace-Hop", "1", "Nats-Trace-Origin-Account", "A", "Nats-Trace-Dest", "trace.here", "Nats-Request-Info", "twice")
		s.set(t, m)
	}
	same := func(got nats.Header, lapses ...string) {
		t.Helper()
		for name, values := range own {
			require.Equal(t, values, got[name], name)
		}
		require.Len(t, got, len(own)+len(lapses), "%q", got)
		for _, name := range lapses {
			require.Len(t, got[name], 1, name)
		}
	}
	set("@in 1h")
	same(s.ok(t, about("timers.get.h", "x")).Header, "Timer-Topic", "Timer-Id", "Timer-Rev", "Timer-Due", "Timer-Attempt", "Timer-Schedule", "Timer-State")
	set("@in 0s")
	m := next(t, fired)
	same(m.Header, "Timer-Topic", "Timer-Id", "Timer-Rev", "Timer-Due", "Timer-Fired", "Timer-Attempt", "Timer-Source", "Nats-Msg-Id")
	require.Equal(t, "1", m.Header.Get("Timer-Attempt"))
	require.Contains(t, []string{"event", "sweep"}, m.Header.Get("Timer-Source"))
	require.Regexp(t, `^[!-~]+$`, m.Header.Get("Nats-Msg-Id"))
	nothingLeft(t, s.rdb)
	s.unharmed(t)
}

// A stream takes no more than 64 kB of headers, however large the message may
// be: more would be refused for ever.
func TestManyHeaders(t *testing.T) {
	t.Parallel()
	for _, delivery := range []string{"jetstream", "core"} {
		t.Run(delivery, func(t *testing.T) {
			s := serve(t, timerstest.NATS(t), "LAPSE_DELIVERY="+delivery)
			fired := s.hear(t, "timers.fired.h")
			for _, size := range []int{1000, 70_000, 500_000} {
				for name, m := range map[string]*nats.Msg{
					"one long value": with(request("timers.set.h", "x", "@in 0s"), "X", strings.Repeat("v", size)),
					"many headers":   request("timers.set.h", "x", "@in 0s"),
					"many values":    request("timers.set.h", "x", "@in 0s"),
				} {
					for i := 0; i < size/20 && name != "one long value"; i++ {
						if name == "many values" {
							with(m, "X", "12345678901234567")
						} else {
							with(m, fmt.Sprintf("X-%06d", i), "123456789")
						}
					}
					if size > 65_535 {
						s.refused(t, m, 413, "too_large", "headers", "65535")
						continue
					}
					s.set(t, m)
					require.GreaterOrEqual(t, next(t, fired).Size(), size)
					nothingLeft(t, s.rdb)
				}
			}

			// At, one under and one over the limit.
			much := with(request("timers.set.h", "x", "@in 1h"), "X", strings.Repeat("v", 70_000))
			var size int
			_, err := fmt.Sscanf(s.ask(t, much).Header.Get("Nats-Service-Error"), "the fired message would have %d bytes of headers", &size)
			require.NoError(t, err)
			limit := 70_000 - (size - 65_535)
			for _, n := range []int{limit - 1, limit, limit + 1} {
				m := with(request("timers.set.h", "x", "@in 0s"), "X", strings.Repeat("v", n))
				if n > limit {
					s.refused(t, m, 413, "too_large", "65536 bytes")
					continue
				}
				s.set(t, m)
				require.Len(t, next(t, fired).Header.Get("X"), n)
				nothingLeft(t, s.rdb)
			}
			require.Zero(t, s.status(t, "timers").Counts.Refused, "an accepted timer did not fit")
			s.unharmed(t)
		})
	}
}
