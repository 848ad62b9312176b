package endtoend

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/stretchr/testify/require"

	"github.com/lapse-timers/lapse/timers/timerstest"
)

func TestTopics(t *testing.T) {
	t.Parallel()
	s := serve(t, timerstest.NATS(t))
	long := strings.Repeat("x", 128)

	for _, topic := range []string{"a", "A-Z_0.9", "-", "_", long, "1.2.3.4.5.6.7.8.9.10.11.12.13.14.15.16"} {
		t.Run("taken "+topic, func(t *testing.T) {
			require.Equal(t, topic, s.set(t, request("timers.set."+topic, "x", "@in 1h")).Topic)
			require.Equal(t, topic, s.ok(t, about("timers.get."+topic, "x")).Header.Get("Timer-Topic"))
			s.ok(t, about("timers.cancel."+topic, "x"))
		})
	}

	for _, c := range []struct {
		topic string
		says  []string
	}{
		{"", []string{`topic ""`, "missing"}},
		{long + "x", []string{"129 bytes", "at most 128", `xxx..."`}},
		{"1.2.3.4.5.6.7.8.9.10.11.12.13.14.15.16.17", []string{"17 tokens", "at most 16"}},
		{"*", []string{`"*"`, "tokens of"}},
		{">", []string{`">"`}},
		{"a.*", []string{`"a.*"`}},
		{"a.>", []string{`"a.>"`}},
		{"a*b", []string{`"a*b"`}},
		{"a>", []string{`"a>"`}},
		{"a:b", []string{`"a:b"`}},
		{"a/b", []string{`"a/b"`}},
		{"{0}", []string{`"{0}"`}},
		{"$SYS", []string{`"$SYS"`}},
		{"a\x01b", []string{`"a\x01b"`}},
		{"a\x7fb", []string{`"a\x7fb"`}},
		{"a\x00b", []string{`"a\x00b"`}},
		{"a\vb", []string{`"a\vb"`}},
		{"caf\u00e9", []string{`"caf\u00e9"`}},
		{"a\u00a0b", []string{`"a\u00a0b"`}},
		{"a\u2028b", []string{`"a\u2028b"`}},
		{"\xff\xfe", []string{`"\xff\xfe"`}},
		{"a%n\"b\\", []string{`"a%n\"b\\"`}},
	} {
		t.Run(fmt.Sprintf("refused %q", c.topic), func(t *testing.T) {
			behind := c.topic
			if behind != "" {
				behind = "." + behind
			}
			s.refused(t, request("timers.set"+behind, "x", "@in 1h"), 400, "invalid_topic", c.says...)
			s.refused(t, about("timers.get"+behind, "x"), 400, "invalid_topic", c.says...)
			s.refused(t, about("timers.cancel"+behind, "x"), 400, "invalid_topic", c.says...)
			s.refused(t, about("timers.retry"+behind, "x"), 400, "invalid_topic", c.says...)
			if c.topic != "" { // a list without a topic is of everything
				s.refused(t, about("timers.list"+behind, ""), 400, "invalid_topic", c.says...)
			}
		})
	}

	// Empty tokens are no subject: NATS answers by itself that nobody takes it.
	for _, topic := range []string{".a", "a.", "a..b"} {
		_, err := s.nc.RequestMsg(request("timers.set."+topic, "x", "@in 1h"), 10*time.Second)
		require.ErrorIs(t, err, nats.ErrNoResponders)
	}
	s.unharmed(t)
}

// White space ends a word of the NATS protocol, and a line break ends its
// command: no client library sends them in a subject, but anybody can.
func TestWhiteSpaceInSubjects(t *testing.T) {
	t.Parallel()
	s := serve(t, timerstest.NATS(t))
	const headers = "NATS/1.0\r\nTimer-Schedule: @in 1h\r\nTimer-Id: x\r\n\r\n"

	// NATS itself reads the second word as the reply subject.
	aside := s.hear(t, "b")
	for _, space := range []string{" ", "\t", " \t "} {
		r := s.raw(t)
		r.send("HPUB timers.set.a" + space + fmt.Sprintf("b %d %d\r\n%sx\r\n", len(headers), len(headers)+1, headers))
		r.flush()
		var reply setReply
		strict(t, next(t, aside).Data, &reply)
		require.Equal(t, "a", reply.Topic)
	}
	s.ok(t, about("timers.cancel.a", "x"))

	// A broken command is the trouble of who sent it.
	before := s.stored(t)
	for _, line := range []string{"PUB timers.set.a b c d 1\r\nx\r\n", "PUB timers.set.a\nb 1\r\nx\r\n", "PUB timers.set. \r\n\r\n"} {
		r := s.raw(t)
		r.send(line)
		for err := error(nil); err == nil; { // until NATS closes the connection
			_, err = r.r.ReadString('\n')
		}
	}
	require.Equal(t, before, s.stored(t))
	s.unharmed(t)

	// A lone CR is part of a subject for nats-server and a break for nats.go,
	// which gives the connection up: the service must be back by itself.
	for _, line := range []string{"PUB timers.set.a\rb 1\r\nx\r\n", "PUB timers.get.a in\rbox 1\r\nx\r\n"} {
		known := s.connected(t)
		r := s.raw(t)
		r.send(line)
		r.flush()
		timerstest.Eventually(t, 10*time.Second, "the service has connected again", func() bool {
			now := s.connected(t)
			return len(now) == 2 && !slices.Equal(now, known)
		})
		timerstest.Eventually(t, 10*time.Second, "it answers again", func() bool {
			reply, err := s.nc.RequestMsg(about("timers.get.a", "x"), time.Second)
			return err == nil && reply.Header.Get("Nats-Service-Error-Code") == "404"
		})
	}
	s.connections = s.connected(t)
	s.unharmed(t)
}

func TestIDsRefused(t *testing.T) {
	t.Parallel()
	s := serve(t, timerstest.NATS(t))
	const block = "NATS/1.0\r\nTimer-Schedule: @in 1h\r\nTimer-Id:%s\r\n\r\n"
	for _, c := range []struct {
		name, id string
		header   bool // also as a header; NATS drops white space before its value
		says     []string
	}{
		{"empty", "", true, []string{`id ""`, "1 to 256 bytes"}},
		{"too long", strings.Repeat("x", 257), true, []string{"257 bytes", "at most 256", `xxx..."`}},
		{"too long in bytes", "x" + strings.Repeat("\u00e9", 129), true, []string{"259 bytes", `\u00e9..."`}},
		{"far too long", strings.Repeat("x", 100_000), true, []string{"100000 bytes"}},
		{"control", "a\x01b", true, []string{`"a\x01b"`, "control"}},
		{"tab", "a\tb", true, []string{`"a\tb"`, "control"}},
		{"delete", "a\x7f", true, []string{`"a\x7f"`, "control"}},
		{"C1 control", "a\u0085b", true, []string{`"a\u0085b"`, "control"}},
		{"NUL", "a\x00b", true, []string{`"a\x00b"`, "control"}},
		{"line break", "a\nb", false, []string{`"a\nb"`, "control"}},
		{"line break of echo", "order-42\n", false, []string{`"order-42\n"`, "control"}},
		{"CR", "a\rb", true, []string{`"a\rb"`, "control"}},
		{"invalid UTF-8", "a\xffb", true, []string{`"a\xffb"`, "UTF-8"}},
		{"cut rune", "a\xe2\x8f", true, []string{`"a\xe2\x8f"`, "UTF-8"}},
		{"overlong", "\xc0\xaf", true, []string{"UTF-8"}},
		{"surrogate", "\xed\xa0\x80", true, []string{"UTF-8"}},
		{"leading space", " a", false, []string{`" a"`, "space"}},
		{"trailing space", "a ", true, []string{`"a "`, "space"}},
		{"only space", " ", false, []string{`" "`, "space"}},
		{"leading no-break space", "\u00a0a", true, []string{`"\u00a0a"`, "space"}},
		{"trailing ideographic space", "a\u3000", true, []string{`"a\u3000"`, "space"}},
		{"trailing line separator", "a\u2028", true, []string{"space"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			before := s.stored(t)
			if c.header {
				isRefusal(t, s.askRaw(t, "timers.set.a", fmt.Sprintf(block, c.id), "x"), 400, "invalid_id", c.says...)
				require.Equal(t, before, s.stored(t))
			}
			s.refused(t, about("timers.get.a", c.id), 400, "invalid_id", c.says...)
			s.refused(t, about("timers.cancel.a", c.id), 400, "invalid_id", c.says...)
			s.refused(t, about("timers.retry.a", c.id), 400, "invalid_id", c.says...)
		})
	}
	s.unharmed(t)
}

// Whatever an id holds, it comes back as it was, on every way.
func TestOddIDsRoundTrip(t *testing.T) {
	t.Parallel()
	s := serve(t, timerstest.NATS(t))
	fired := s.hear(t, "timers.fired.now")
	for _, id := range []string{
		"a:b/{c} \u23f0", ":", "::", ":a", "b:", "{", "}", "{}", "}{", "{a}{b}", "{0}:t:odd:x", "/", "//..", ".", "*", ">", "a.*.>",
		"a b  c", "\u00e9", "e\u0301", "\u65e5\u672c", "\U0001f389", "\u200b", "a\u2028b", "\ufeffa", "\ufffd", "\U0010ffff",
		"null", "0", "-1", "%s%n", "$1", `"`, `\`, `\x00`, "'", "<&>", "a,b;c=d", "timers:{0}:due", "@in 1h",
		strings.Repeat("x", 256), strings.Repeat("\U0001f389", 64),
	} {
		t.Run(fmt.Sprintf("%.20q", id), func(t *testing.T) {
			set := s.set(t, request("timers.set.odd", id, "@in 1h"))
			require.Equal(t, id, set.ID)
			require.False(t, set.Replaced, "it fell together with another")
			got := s.ok(t, about("timers.get.odd", id))
			require.Equal(t, []string{id}, got.Header["Timer-Id"])
			require.Equal(t, "payload of "+id, string(got.Data))
			require.Equal(t, []string{"odd " + id}, names(s.list(t, "timers.list.odd", "").Timers))
			var cancelled struct {
				Topic, ID string
				Rev       int64
			}
			strict(t, s.ok(t, about("timers.cancel.odd", id)).Data, &cancelled)
			require.Equal(t, id, cancelled.ID)
			require.Equal(t, "odd", cancelled.Topic)
			require.Equal(t, set.Rev, cancelled.Rev)

			isRefusal(t, s.ask(t, about("timers.get.odd", id)), 404, "not_found")
			isRefusal(t, s.ask(t, about("timers.cancel.odd", id)), 404, "not_found")

			s.set(t, request("timers.set.now", id, "@in 0s"))
			m := next(t, fired)
			require.Equal(t, []string{id}, m.Header["Timer-Id"])
			require.Equal(t, "payload of "+id, string(m.Data))
		})
	}
	nothingLeft(t, s.rdb)
	s.unharmed(t)
}

// Topic and id are joined by a colon in Redis; no two timers may share a key.
func TestNamesDoNotCollide(t *testing.T) {
	t.Parallel()
	s := serve(t, timerstest.NATS(t))
	refs := [][2]string{{"a", "b:c"}, {"a", "b"}, {"a", "b.c"}, {"a.b", "c"}, {"a.b", ":c"}, {"a", ":b:c"}, {"a", "b:c:"}, {"a.b.c", "d"}, {"A", "b:c"}, {"a", "B:c"}}
	fired := s.hear(t, "timers.fired.>")
	all := func(f func(i int, topic, id string)) {
		for i, r := range refs {
			f(i, r[0], r[1])
		}
	}
	all(func(i int, topic, id string) {
		m := request("timers.set."+topic, id, "@in 1h")
		m.Data = []byte(fmt.Sprint(i))
		require.False(t, s.set(t, m).Replaced, "%s %s fell together with another", topic, id)
	})
	s.ok(t, about("timers.cancel.a", "b:c"))
	all(func(i int, topic, id string) {
		if i == 0 {
			isRefusal(t, s.ask(t, about("timers.get."+topic, id)), 404, "not_found", `"b:c"`)
			return
		}
		require.Equal(t, fmt.Sprint(i), string(s.ok(t, about("timers.get."+topic, id)).Data))
	})
	heard := map[string]string{}
	all(func(i int, topic, id string) {
		m := request("timers.set."+topic, id, "@in 0s")
		m.Data = []byte(fmt.Sprint(i))
		require.Equal(t, i != 0, s.set(t, m).Replaced)
	})
	for range refs {
		m := next(t, fired)
		heard[m.Header.Get("Timer-Topic")+" "+m.Header.Get("Timer-Id")] = string(m.Data)
		require.Equal(t, "timers.fired."+m.Header.Get("Timer-Topic"), m.Subject)
	}
	all(func(i int, topic, id string) { require.Equal(t, fmt.Sprint(i), heard[topic+" "+id]) })
	nothingLeft(t, s.rdb)
}
