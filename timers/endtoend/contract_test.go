package endtoend

import (
	"bufio"
	"bytes"
	"encoding/json"
	"fmt"
	"net"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/lapse-timers/lapse/timers/timerstest"
)

// The contract tests speak to the program as any NATS client may: without
// timers/client, and where a client library would refuse to send it, in the
// NATS protocol itself. They spell names out, so that a change of the
// vocabulary shows.

// request is a set as any NATS client would send it.
func request(subject, id, schedule string) *nats.Msg {
	m := nats.NewMsg(subject)
	if id != "" {
		m.Header.Set("Timer-Id", id)
	}
	if schedule != "" {
		m.Header.Set("Timer-Schedule", schedule)
	}
	m.Data = []byte("payload of " + id)
	return m
}

// with adds headers, name and value in turns, in exactly this spelling.
func with(m *nats.Msg, headers ...string) *nats.Msg {
	for i := 0; i < len(headers); i += 2 {
		m.Header[headers[i]] = append(m.Header[headers[i]], headers[i+1])
	}
	return m
}

// about is a request with the id, or the JSON, as its body.
func about(subject, body string) *nats.Msg {
	m := nats.NewMsg(subject)
	m.Data = []byte(body)
	return m
}

// served is one instance on servers of its own.
type served struct {
	rdb   *redis.Client
	ns    *timerstest.NATSServer
	nc    *nats.Conn
	lapse *timerstest.LapseServer

	connections []string // of the instance, when it was ready
}

// serve starts a Redis and an instance; the settings may name another prefix.
func serve(t *testing.T, ns *timerstest.NATSServer, settings ...string) *served {
	t.Helper()
	rs := timerstest.Redis(t)
	s := &served{rdb: rs.Client(), ns: ns, lapse: timerstest.LapseOn(t, rs.URL(), ns.URL(), settings...)}
	s.nc = ns.Connect(t)
	s.connections = s.connected(t)
	require.Len(t, s.connections, 2, "one connection takes requests, one delivers")
	return s
}

func maxPayload(n int32) func(*server.Options) {
	return func(o *server.Options) { o.MaxPayload = n }
}

// connected is which connections to NATS the instance has.
func (s *served) connected(t *testing.T) []string {
	t.Helper()
	z, err := s.ns.Server().Connz(nil)
	require.NoError(t, err)
	var ids []string
	for _, c := range z.Conns {
		if strings.HasPrefix(c.Name, "lapse ") {
			ids = append(ids, fmt.Sprint(c.Cid))
		}
	}
	return ids
}

// unharmed says that the connections of the instance were never dropped, and
// that a good set still works.
func (s *served) unharmed(t *testing.T) {
	t.Helper()
	require.ElementsMatch(t, s.connections, s.connected(t), "a connection of the service was dropped")
	s.set(t, request("timers.set.unharmed", "good", "@in 1h"))
	s.ok(t, about("timers.cancel.unharmed", "good"))
	timerstest.CheckInvariants(t, s.rdb, "timers")
}

// ask sends a request and awaits its reply.
func (s *served) ask(t *testing.T, m *nats.Msg) *nats.Msg {
	t.Helper()
	reply, err := s.nc.RequestMsg(m, 20*time.Second)
	require.NoError(t, err, "%s", m.Subject)
	return reply
}

// ok is ask for what must not be refused.
func (s *served) ok(t *testing.T, m *nats.Msg) *nats.Msg {
	t.Helper()
	reply := s.ask(t, m)
	require.Empty(t, reply.Header.Get("Nats-Service-Error"))
	return reply
}

// setReply is the reply to a set, as docs/protocol.md has it.
type setReply struct {
	Topic    string    `json:"topic"`
	ID       string    `json:"id"`
	Due      time.Time `json:"due"`
	Rev      int64     `json:"rev"`
	Replaced bool      `json:"replaced"`
	Was      string    `json:"was"`
}

func (s *served) set(t *testing.T, m *nats.Msg) setReply {
	t.Helper()
	var r setReply
	strict(t, s.ok(t, m).Data, &r)
	return r
}

// strict reads JSON that must hold no other fields.
func strict(t *testing.T, body []byte, v any) {
	t.Helper()
	d := json.NewDecoder(bytes.NewReader(body))
	d.DisallowUnknownFields()
	require.NoError(t, d.Decode(v), "%s", body)
}

// listReply is one page of a list.
type listReply struct {
	Timers []listItem `json:"timers"`
	Cursor string     `json:"cursor"`
}

type listItem struct {
	Topic    string    `json:"topic"`
	ID       string    `json:"id"`
	Due      time.Time `json:"due"`
	Rev      int64     `json:"rev"`
	State    string    `json:"state"`
	Attempts int       `json:"attempts"`
}

func (s *served) list(t *testing.T, subject, body string) listReply {
	t.Helper()
	var page listReply
	strict(t, s.ok(t, about(subject, body)).Data, &page)
	return page
}

func names(items []listItem) []string {
	out := make([]string, len(items))
	for i, item := range items {
		out[i] = item.Topic + " " + item.ID
	}
	return out
}

// stored is a picture of what Redis holds: every key, and the counter that
// grows with every set.
func (s *served) stored(t *testing.T) string {
	t.Helper()
	keys := records(t, s.rdb)
	rev := s.rdb.Get(t.Context(), "timers:{0}:rev").Val()
	return fmt.Sprintf("%d keys, rev %s: %q", len(keys), rev, keys)
}

// refused sends a request that must be refused with the code and the word,
// with all of says in its message, and must leave nothing.
func (s *served) refused(t *testing.T, m *nats.Msg, code int, word string, says ...string) {
	t.Helper()
	before := s.stored(t)
	isRefusal(t, s.ask(t, m), code, word, says...)
	require.Equal(t, before, s.stored(t), "a refused request left something")
}

func isRefusal(t *testing.T, reply *nats.Msg, code int, word string, says ...string) {
	t.Helper()
	require.Equal(t, []string{strconv.Itoa(code)}, reply.Header["Nats-Service-Error-Code"], "%s", reply.Data)
	require.Len(t, reply.Header["Nats-Service-Error"], 1)
	line := reply.Header.Get("Nats-Service-Error")
	require.Regexp(t, `^[ -~]+$`, line, "one line of ASCII")
	require.Less(t, len(line), 1000, "the value is cut")
	var body struct{ Error, Message string }
	require.NoError(t, json.Unmarshal(reply.Data, &body), "%s", reply.Data)
	require.Equal(t, word, body.Error, line)
	require.Equal(t, line, body.Message)
	for _, text := range says {
		require.Contains(t, line, text)
	}
}

// hear subscribes; what the server gets after it returned is heard.
func (s *served) hear(t *testing.T, subject string) *nats.Subscription {
	t.Helper()
	sub, err := s.nc.SubscribeSync(subject)
	require.NoError(t, err)
	require.NoError(t, s.nc.Flush())
	return sub
}

func next(t *testing.T, sub *nats.Subscription) *nats.Msg {
	t.Helper()
	m, err := sub.NextMsg(20 * time.Second)
	require.NoError(t, err, "nothing came on %s", sub.Subject)
	return m
}

// redisTime is Redis's clock.
func (s *served) redisTime(t *testing.T) time.Time {
	t.Helper()
	now, err := s.rdb.Time(t.Context()).Result()
	require.NoError(t, err)
	return now
}

// status is the part of the status that the tests compare.
type status struct {
	Prefix, Delivery, Stream, Instance string
	Counts                             struct {
		Fired, Duplicates, Refused, Unknown, Ignored, Strange, Events int
		ClaimErrors                                                   int `json:"claim_errors"`
	}
}

func (s *served) status(t *testing.T, prefix string) status {
	t.Helper()
	var st status
	require.NoError(t, json.Unmarshal(s.ok(t, about(prefix+".status", "")).Data, &st))
	return st
}

// count is how many messages the stream holds on the subject.
func count(t *testing.T, nc *nats.Conn, stream, subject string) int {
	t.Helper()
	js, err := jetstream.New(nc)
	require.NoError(t, err)
	st, err := js.Stream(t.Context(), stream)
	require.NoError(t, err)
	info, err := st.Info(t.Context(), jetstream.WithSubjectFilter(subject))
	require.NoError(t, err)
	n := uint64(0)
	for _, on := range info.State.Subjects {
		n += on
	}
	return int(n)
}

// rawConn speaks the NATS protocol by hand
// (https://docs.nats.io/reference/reference-protocols/nats-protocol), for what
// no client library would send.
type rawConn struct {
	t testing.TB
	c net.Conn
	r *bufio.Reader
}

func (s *served) raw(t *testing.T) *rawConn {
	t.Helper()
	c, err := net.Dial("tcp", strings.TrimPrefix(s.ns.URL(), "nats://"))
	require.NoError(t, err)
	t.Cleanup(func() { c.Close() })
	require.NoError(t, c.SetDeadline(time.Now().Add(30*time.Second)))
	r := &rawConn{t: t, c: c, r: bufio.NewReader(c)}
	r.send("CONNECT {\"verbose\":false,\"pedantic\":false,\"headers\":true,\"no_responders\":true}\r\n")
	r.flush()
	return r
}

func (r *rawConn) send(s string) {
	r.t.Helper()
	_, err := r.c.Write([]byte(s))
	require.NoError(r.t, err)
}

// flush returns once the server has read everything, and fails the test when
// it has complained.
func (r *rawConn) flush() {
	r.t.Helper()
	r.send("PING\r\n")
	for {
		line, err := r.r.ReadString('\n')
		require.NoError(r.t, err)
		if strings.HasPrefix(line, "PONG") {
			return
		}
		require.NotContains(r.t, line, "-ERR")
	}
}

// askRaw sends a request with exactly these bytes as subject and header block,
// and awaits the reply.
func (s *served) askRaw(t *testing.T, subject, headers, payload string) *nats.Msg {
	t.Helper()
	inbox := s.nc.NewInbox()
	sub := s.hear(t, inbox)
	defer sub.Unsubscribe() //nolint:errcheck // the connection closes with the test
	r := s.raw(t)
	if headers == "" {
		r.send(fmt.Sprintf("PUB %s %s %d\r\n%s\r\n", subject, inbox, len(payload), payload))
	} else {
		r.send(fmt.Sprintf("HPUB %s %s %d %d\r\n%s%s\r\n", subject, inbox, len(headers), len(headers)+len(payload), headers, payload))
	}
	r.flush()
	return next(t, sub)
}
