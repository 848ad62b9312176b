package endtoend

import (
	"encoding/json"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/lapse-timers/lapse/timers/timerstest"
	"github.com/lapse-timers/lapse/timers/timerstest/faultproxy"
)

// The failure table: every step of a timer's life fails in every way, without
// effect and after it took effect. A row says what the caller is told, what get
// and list say meanwhile, and what must hold in the end; docs/cases.md lists
// the rows. After each row the invariants are checked and nothing is left.
//
//	step                          rows
//	set, replace, cancel          table_requests_test.go
//	get, list, status             table_requests_test.go
//	claim, ack, release, due      table_settle_test.go
//	publish, acknowledge          table_publish_test.go
//	burial, retry                 table_dead_test.go
//	the same, meanwhile asked for table_meanwhile_test.go

// tabled is one instance between two proxies. Requests of the tests go straight
// to NATS, and looks straight to Redis.
type tabled struct {
	*served
	redis    *faultproxy.Redis
	nats     *faultproxy.NATS
	instance string

	mu    sync.Mutex
	heard map[string][]*nats.Msg // copies of fired events, by topic
}

// table starts servers, proxies and an instance. What Redis does not answer
// within a second is given up on.
func table(t *testing.T, settings ...string) *tabled {
	t.Helper()
	rs, ns := timerstest.Redis(t), timerstest.NATS(t)
	s := &tabled{redis: timerstest.RedisProxy(t, rs), nats: newNATSProxy(t, ns), heard: map[string][]*nats.Msg{}}
	s.served = &served{rdb: rs.Client(), ns: ns, nc: ns.Connect(t)}
	_, err := s.nc.Subscribe("timers.fired.>", func(m *nats.Msg) {
		s.mu.Lock()
		defer s.mu.Unlock()
		topic := m.Header.Get("Timer-Topic")
		s.heard[topic] = append(s.heard[topic], m)
	})
	require.NoError(t, err)
	require.NoError(t, s.nc.Flush())
	s.lapse = timerstest.LapseOn(t, s.redis.URL()+"?read_timeout=1s", s.nats.URL(), append([]string{"LAPSE_REQUEST_TIMEOUT=1s"}, settings...)...)
	// Redis knows every script from here on; a row that wants NOSCRIPT says so.
	s.set(t, request("timers.set.warm", "x", "@in 0s"))
	s.heardOf(t, "warm", 1)
	s.instance = s.status(t, "timers").Instance
	s.set(t, request("timers.set.warm", "y", "@in 1h"))
	s.ok(t, about("timers.cancel.warm", "y"))
	nothingLeft(t, s.rdb)
	return s
}

// rowOf runs a row. One that fails ends its table: what it leaves behind would
// only fail the others.
func rowOf(t *testing.T, name string, row func(t *testing.T)) {
	t.Helper()
	if !t.Run(name, row) {
		t.FailNow()
	}
}

// copies are the fired events of the topic that came so far.
func (s *tabled) copies(topic string) []*nats.Msg {
	s.mu.Lock()
	defer s.mu.Unlock()
	return append([]*nats.Msg(nil), s.heard[topic]...)
}

// heardOf waits until n fired events of the topic have come.
func (s *tabled) heardOf(t *testing.T, topic string, n int) []*nats.Msg {
	t.Helper()
	timerstest.Eventually(t, soon, fmt.Sprintf("%d events of %s come", n, topic), func() bool { return len(s.copies(topic)) >= n })
	return s.copies(topic)
}

// onStream is how many messages of the topic the stream holds.
func (s *tabled) onStream(t *testing.T, topic string) int {
	t.Helper()
	return count(t, s.nc, "TIMERS", "timers.fired."+topic)
}

// look is what get and list say of the timer x of the topic; the state is "" and
// there is no payload when there is none.
type look struct {
	state    string
	attempts int
	payload  string
}

// look asks get and list, which must agree: it is for what changes no more.
func (s *tabled) look(t *testing.T, topic string) look {
	t.Helper()
	got := s.get(t, topic)
	items := s.list(t, "timers.list."+topic, "").Timers
	if got == (look{}) {
		require.Empty(t, items, "get does not know what list shows")
		return got
	}
	require.Len(t, items, 1, "get knows what list does not show")
	require.Equal(t, got.state, items[0].State)
	require.Equal(t, got.attempts, items[0].Attempts)
	return got
}

// get asks get alone.
func (s *tabled) get(t *testing.T, topic string) look {
	t.Helper()
	reply := s.ask(t, about("timers.get."+topic, "x"))
	if reply.Header.Get("Nats-Service-Error-Code") != "" {
		isRefusal(t, reply, 404, "not_found")
		return look{}
	}
	attempts, err := strconv.Atoi(reply.Header.Get("Timer-Attempt"))
	require.NoError(t, err)
	return look{reply.Header.Get("Timer-State"), attempts, string(reply.Data)}
}

// comeDue moves the due time of the timer x of the topic to now, for no test
// waits an hour.
func (s *tabled) comeDue(t *testing.T, topic string) {
	t.Helper()
	err := redis.NewScript(`
		local now = redis.call('TIME')
		local due = string.format('%.0f', now[1] * 1000 + math.floor(now[2] / 1000) + 1)
		redis.call('HSET', KEYS[1], 'd', due)
		redis.call('PEXPIREAT', KEYS[2], due)
		return redis.call('ZADD', KEYS[3], 'XX', 'CH', due, ARGV[1])`).
		Run(t.Context(), s.rdb, []string{"timers:{0}:h:" + topic + ":x", "timers:{0}:t:" + topic + ":x", "timers:{0}:due"}, topic+":x").Err()
	require.NoError(t, err)
}

// settled waits until no timer is claimed: the attempt that was under way is over.
func (s *tabled) settled(t *testing.T) {
	t.Helper()
	timerstest.Eventually(t, soon, "no claim is alive", func() bool { n, _ := claimed(t, s.rdb); return n == 0 })
}

// clean ends a row: nothing is left, and what is left agrees.
func (s *tabled) clean(t *testing.T) {
	t.Helper()
	s.redis.Obey(passAll)
	s.nats.Obey(passAll)
	nothingLeft(t, s.rdb)
}

// conflict is the answer to a cancel that may be too late: no further attempt
// is made.
func (s *tabled) conflict(t *testing.T, topic string) {
	t.Helper()
	reply := s.ask(t, about("timers.cancel."+topic, "x"))
	isRefusal(t, reply, 409, "conflict")
	var body struct {
		State   string
		Stopped *bool
	}
	require.NoError(t, json.Unmarshal(reply.Data, &body))
	require.Equal(t, "firing", body.State)
	require.NotNil(t, body.Stopped)
	require.True(t, *body.Stopped)
}

// setNow sets the timer x of the topic, due now, to "second".
func (s *tabled) setNow(t *testing.T, topic string) setReply {
	t.Helper()
	m := request("timers.set."+topic, "x", "@in 0s")
	m.Data = []byte("second")
	return s.set(t, m)
}

// setLater sets the timer x of the topic, due in an hour, to "second".
func (s *tabled) setLater(t *testing.T, topic string) setReply {
	t.Helper()
	m := request("timers.set."+topic, "x", "@in 1h")
	m.Data = []byte("second")
	return s.set(t, m)
}

// inFlight is how many claims the instance has not settled.
func (s *tabled) inFlight(t *testing.T) int {
	t.Helper()
	var st struct {
		InFlight int `json:"in_flight"`
	}
	require.NoError(t, json.Unmarshal(s.ok(t, about("timers.status", "")).Data, &st))
	return st.InFlight
}

// token is the token of the claim that a script makes or ends, or "".
func (s *tabled) token(c faultproxy.Command) string {
	for _, arg := range c.Args {
		if strings.HasPrefix(arg, s.instance+".") {
			return arg
		}
	}
	return ""
}

// befalls is a rule for the commands of one script about one timer: the first
// ones meet the faults, in order, and then, while it is frozen, LOADING.
type befalls struct {
	script, member string
	faults         []faultproxy.Fault
	frozen         atomic.Bool
	released       atomic.Bool  // no fault any more
	seen           atomic.Int64 // came to the proxy
	reached        atomic.Int64 // were passed on to Redis
	claims         bool         // freeze the claims too, once the script has come
}

var loading = faultproxy.Answer("LOADING Redis is loading the dataset in memory")

func (b *befalls) rule(c faultproxy.Command) faultproxy.Fault {
	if b.claims && c.Script == "claim" && c.About(b.member) && b.frozen.Load() && b.seen.Load() > 0 {
		return loading
	}
	if c.Script != b.script || !c.About(b.member) {
		return faultproxy.Pass
	}
	f := faultproxy.Pass
	switch n := int(b.seen.Load()); {
	case b.released.Load():
	case n < len(b.faults):
		f = b.faults[n]
	case b.frozen.Load():
		f = loading
	}
	b.seen.Add(1)
	if f.Passes() {
		b.reached.Add(1)
	}
	return f
}

// release lets the one command that was held go on.
func (b *befalls) release(s *tabled) {
	b.released.Store(true)
	b.seen.Add(-1) // it comes again
	s.redis.Obey(b.rule)
}

// redisFault is a way in which a script can fail, and what a caller is told
// whose request runs it.
type redisFault struct {
	name   string
	faults []faultproxy.Fault // of the first commands, in order
	ran    bool               // it took effect
	late   bool               // it is held until the caller was answered, and takes effect then
	code   int                // of the error; 0 for none
	word   string
}

// redisFaults are the ways: cut, silent, slow, refused by a server that did not
// run it, or by something that proves nothing.
func redisFaults() []redisFault {
	one := func(f faultproxy.Fault) []faultproxy.Fault { return []faultproxy.Fault{f} }
	list := []redisFault{
		{name: "cut before Redis sees it", faults: one(faultproxy.CutFirst), code: 504, word: "unconfirmed"},
		{name: "cut before the reply", faults: one(faultproxy.CutReply), ran: true, code: 504, word: "unconfirmed"},
		{name: "silent, never seen", faults: one(faultproxy.Stall), code: 504, word: "unconfirmed"},
		{name: "silent after it ran", faults: one(faultproxy.DropReply), ran: true, code: 504, word: "unconfirmed"},
		{name: "runs after everybody gave up", faults: one(faultproxy.Hold), ran: true, late: true, code: 504, word: "unconfirmed"},
		{name: "slow", faults: one(faultproxy.Delay(50 * time.Millisecond)), ran: true},
		{name: "an error that proves nothing", faults: one(faultproxy.Answer("ERR upstream failure")), code: 504, word: "unconfirmed"},
		{name: "an error of a script that stopped half-way", faults: one(faultproxy.Answer("ERR user_script:9: attempt to index nil script: c0ffee, on @user_script:9.")), code: 504, word: "unconfirmed"},
	}
	for _, says := range []string{
		"LOADING Redis is loading the dataset in memory",
		"READONLY You can't write against a read only replica.",
		"MISCONF Redis is configured to save RDB snapshots, but it's currently unable to persist to disk.",
		"OOM command not allowed when used memory > 'maxmemory'.",
		"NOSCRIPT No matching script. Please use EVAL.",
		"NOREPLICAS Not enough good replicas to write.",
		"MASTERDOWN Link with MASTER is down and replica-serve-stale-data is set to 'no'.",
		"CLUSTERDOWN The cluster is down",
		"BUSY Redis is busy running a script.",
	} {
		word, _, _ := strings.Cut(says, " ")
		for _, before := range []string{"", "ERR "} {
			answer := faultproxy.Answer(before + says)
			f := redisFault{name: before + word, faults: one(answer), code: 503, word: "unavailable"}
			switch word {
			case "OOM":
				f.code, f.word = 507, "storage_full"
			case "NOSCRIPT": // it did not run, so its text may be sent
				f.code, f.word, f.ran = 0, "", true
				list = append(list, redisFault{name: before + word + " to the text as well", faults: []faultproxy.Fault{answer, answer}, code: 503, word: "unavailable"})
			}
			list = append(list, f)
		}
	}
	return list
}
