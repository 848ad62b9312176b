package page

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/lapse-timers/lapse/timers/client"
	"github.com/lapse-timers/lapse/timers/timerstest"
	"github.com/lapse-timers/lapse/timers/wire"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const secret = "0123456789abcdef"

// world is a page, without a Lapse behind it unless somebody answers on nc.
type world struct {
	page  *Page
	url   string
	nc    *nats.Conn
	reads atomic.Int64 // of the status
	dials atomic.Int64
	last  atomic.Pointer[http.Request] // that came
	log   timerstest.Log
}

func newWorld(t *testing.T, change func(*Options)) *world {
	t.Helper()
	ns := timerstest.NATS(t)
	w := &world{nc: ns.Connect(t)}
	opt := Options{
		Prefix: "timers", Version: "1.2.3", Listen: "127.0.0.1:8420", Token: secret,
		Status: func(context.Context) wire.StatusReply {
			w.reads.Add(1)
			return wire.StatusReply{Instance: "i", Now: wire.FormatTime(time.Now()), Pending: 7, Health: wire.HealthReply{Status: wire.HealthOK}}
		},
		Topics: func(context.Context) (Topics, error) { return Topics{}, errors.New("no topics here") },
		Client: func() (*client.Client, error) { return client.New(w.nc, client.Timeout(time.Second)) },
		Dial: func() (*nats.Conn, error) {
			w.dials.Add(1)
			return nats.Connect(ns.URL())
		},
		Logger: slog.New(slog.NewTextHandler(&w.log, nil)),
	}
	if change != nil {
		change(&opt)
	}
	w.page = New(opt)
	mux := http.NewServeMux()
	w.page.Routes(mux)
	mux.HandleFunc("GET /{$}", w.page.Index)
	server := httptest.NewServer(http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		w.last.Store(r)
		mux.ServeHTTP(rw, r)
	}))
	w.url = server.URL
	t.Cleanup(server.Close)
	t.Cleanup(w.page.Close)
	t.Cleanup(http.DefaultClient.CloseIdleConnections)
	return w
}

// ask sends a request with headers, name and value in turns.
func (w *world) ask(t *testing.T, method, path, body string, headers ...string) (code int, answer string, head http.Header) {
	t.Helper()
	r, err := http.NewRequest(method, w.url+path, strings.NewReader(body))
	require.NoError(t, err)
	for i := 0; i < len(headers); i += 2 {
		if headers[i] == "Host" {
			r.Host = headers[i+1]
		} else {
			r.Header.Set(headers[i], headers[i+1])
		}
	}
	res, err := http.DefaultClient.Do(r)
	require.NoError(t, err)
	defer res.Body.Close()
	b, err := io.ReadAll(res.Body)
	require.NoError(t, err)
	return res.StatusCode, string(b), res.Header
}

func TestWhoMayAsk(t *testing.T) {
	w := newWorld(t, nil)
	const json, bearer = "application/json", "Bearer " + secret
	for _, tc := range []struct {
		name, method, path, body string
		headers                  []string
		code                     int
		says                     string
	}{
		{"the page", "GET", "/", "", nil, 200, "<!doctype html>"},
		{"by another loopback name", "GET", "/", "", []string{"Host", "localhost:8420"}, 200, "<!doctype html>"},
		{"by IPv6", "GET", "/", "", []string{"Host", "[::1]:8420"}, 200, ""},
		{"by a name that was made to lead here", "GET", "/", "", []string{"Host", "rebound.example:8420"}, 421, "LAPSE_HTTP_LISTEN"},
		{"the API by such a name", "GET", "/api/timer?topic=a&id=b", "", []string{"Host", "rebound.example"}, 421, ""},
		{"the stream by such a name", "GET", "/events", "", []string{"Host", "rebound.example"}, 421, ""},
		{"by a link elsewhere", "GET", "/", "", []string{"Sec-Fetch-Site", "cross-site", "Sec-Fetch-Mode", "navigate"}, 200, "<!doctype html>"},
		{"the stream from a foreign page", "GET", "/events", "", []string{"Sec-Fetch-Site", "cross-site", "Sec-Fetch-Mode", "no-cors"}, 403, "another page"},
		{"the API from a foreign page", "GET", "/api/timers", "", []string{"Sec-Fetch-Site", "same-site", "Sec-Fetch-Mode", "cors"}, 403, "another page"},
		{"a file", "GET", "/page/page.js", "", nil, 200, "EventSource"},
		{"no file", "GET", "/page/none.js", "", nil, 404, ""},
		{"a directory", "GET", "/page/..%2fpage.go", "", nil, 404, ""},
		{"no token", "POST", "/api/cancel", "{}", []string{"Content-Type", json}, 401, "token is missing"},
		{"wrong token", "POST", "/api/cancel", "{}", []string{"Content-Type", json, "Authorization", "Bearer 0123456789abcdeX"}, 401, "wrong"},
		{"a form", "POST", "/api/cancel", "a=b", []string{"Content-Type", "application/x-www-form-urlencoded", "Authorization", bearer}, 415, ""},
		{"no type", "POST", "/api/cancel", "{}", []string{"Authorization", bearer}, 415, ""},
		{"a foreign page", "POST", "/api/cancel", "{}", []string{"Content-Type", json, "Authorization", bearer, "Sec-Fetch-Site", "cross-site"}, 403, "another page"},
		{"a page of the same site", "POST", "/api/cancel", "{}", []string{"Content-Type", json, "Authorization", bearer, "Sec-Fetch-Site", "same-site"}, 403, ""},
		{"a foreign origin", "POST", "/api/cancel", "{}", []string{"Content-Type", json, "Authorization", bearer, "Origin", "http://evil.example"}, 403, ""},
		{"by GET", "GET", "/api/cancel", "", []string{"Authorization", bearer}, 405, ""},
		{"unknown field", "POST", "/api/cancel", `{"topics":"a"}`, []string{"Content-Type", json, "Authorization", bearer}, 400, "topics"},
		{"too much", "POST", "/api/cancel", `{"topic":"` + strings.Repeat("a", maxBody) + `"}`, []string{"Content-Type", json, "Authorization", bearer}, 400, ""},
		{"no Lapse", "POST", "/api/cancel", `{"topic":"a","id":"b"}`, []string{"Content-Type", json, "Authorization", bearer, "Sec-Fetch-Site", "same-origin"}, 503, "no Lapse answers"},
	} {
		code, body, head := w.ask(t, tc.method, tc.path, tc.body, tc.headers...)
		require.Equal(t, tc.code, code, "%s: %s", tc.name, body)
		require.Contains(t, body, tc.says, tc.name)
		require.NotContains(t, body, secret, tc.name)
		if code != 405 {
			require.Equal(t, "nosniff", head.Get("X-Content-Type-Options"), tc.name)
			require.Equal(t, "no-store", head.Get("Cache-Control"), tc.name)
		}
		if tc.path == "/" && code == 200 {
			policy := head.Get("Content-Security-Policy")
			require.NotContains(t, policy, "unsafe", tc.name)
			require.Contains(t, policy, "default-src 'none'", tc.name)
		}
	}
	require.Zero(t, w.reads.Load()+w.dials.Load(), "nothing is read while nobody looks")

	// Guessing ends after some tries, the right one included, for this address.
	code := 0
	for range wrongTokens {
		code, _, _ = w.ask(t, "POST", "/api/unlock", "{}", "Content-Type", json, "Authorization", "Bearer nonsense")
	}
	require.Equal(t, 429, code)
	code, _, head := w.ask(t, "POST", "/api/unlock", "{}", "Content-Type", json, "Authorization", bearer)
	require.Equal(t, 429, code)
	require.Equal(t, "60", head.Get("Retry-After"))
	require.Equal(t, 1, strings.Count(w.log.String(), "too many wrong tokens"), w.log.String())
	require.NotContains(t, w.log.String(), secret)
}

// A form in a GET is no business of ours: nobody may have us keep it in memory
// and files, or hold one of the few slots while it dribbles in.
func TestBodiesOfReadsAreNotRead(t *testing.T) {
	w := newWorld(t, nil)
	for _, path := range []string{"/api/timer", "/api/timers?topic=.", "/page/none.js"} {
		conn, err := net.Dial("tcp", strings.TrimPrefix(w.url, "http://"))
		require.NoError(t, err)
		defer conn.Close()
		require.NoError(t, conn.SetDeadline(time.Now().Add(10*time.Second)))
		_, err = fmt.Fprintf(conn, "GET %s HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: multipart/form-data; boundary=b\r\nContent-Length: 1000000000\r\n\r\n--b\r\n", path)
		require.NoError(t, err)
		answer, err := http.ReadResponse(bufio.NewReader(conn), nil)
		require.NoError(t, err, "%s waits for the body", path)
		require.Equal(t, 4, answer.StatusCode/100)
	}
}

// A timer that fires while it is set anew is taken back, also when whoever asked
// has closed the page meanwhile.
func TestSetAnewIsTakenBack(t *testing.T) {
	w := newWorld(t, nil)
	ctx, leave := context.WithCancel(t.Context())
	taken := make(chan string, 1)
	for subject, answer := range map[string]func(*nats.Msg) *nats.Msg{
		"timers.get.a": func(*nats.Msg) *nats.Msg {
			return &nats.Msg{Header: nats.Header{wire.HeaderID: {"b"}, wire.HeaderRev: {"7"}, wire.HeaderDue: {wire.FormatTime(time.Now())}, wire.HeaderState: {"scheduled"}}}
		},
		"timers.set.a": func(*nats.Msg) *nats.Msg {
			leave()
			<-w.last.Load().Context().Done() // the server has seen it
			return &nats.Msg{Data: []byte(`{"topic":"a","id":"b","due":"2030-01-01T00:00:00Z","rev":8,"replaced":false}`)}
		},
		"timers.cancel.a": func(m *nats.Msg) *nats.Msg {
			taken <- string(m.Data)
			return &nats.Msg{Data: []byte(`{"topic":"a","id":"b","rev":8}`)}
		},
	} {
		sub, err := w.nc.Subscribe(subject, func(m *nats.Msg) { _ = m.RespondMsg(answer(m)) })
		require.NoError(t, err)
		defer sub.Unsubscribe() //nolint:errcheck // the connection ends
	}
	r, err := http.NewRequestWithContext(ctx, "POST", w.url+"/api/set", strings.NewReader(`{"topic":"a","id":"b","rev":7,"schedule":"@in 1h"}`))
	require.NoError(t, err)
	r.Header.Set("Content-Type", "application/json")
	r.Header.Set("Authorization", "Bearer "+secret)
	_, err = http.DefaultClient.Do(r) //nolint:bodyclose // there is none
	require.ErrorIs(t, err, context.Canceled)
	select {
	case id := <-taken:
		require.Equal(t, "b", id)
	case <-time.After(10 * time.Second):
		t.Fatal("the timer that fired is set once more")
	}
}

func TestAddressesAreForgotten(t *testing.T) {
	g := newGuard("127.0.0.1:1", secret, slog.New(slog.DiscardHandler))
	for i := range 2 * maxAddresses {
		g.count(fmt.Sprint("a", i))
	}
	require.LessOrEqual(t, len(g.wrong), maxAddresses+1)
	require.NotZero(t, g.waits("a stranger"), "those beyond share one count")
	require.Zero(t, g.waits("a1"))
}

func TestReadOnlyWithoutToken(t *testing.T) {
	w := newWorld(t, func(o *Options) { o.Token = ""; o.Listen = "0.0.0.0:8420" })
	code, body, _ := w.ask(t, "POST", "/api/cancel", "{}", "Content-Type", "application/json", "Authorization", "Bearer ")
	require.Equal(t, 403, code)
	require.Contains(t, body, "LAPSE_HTTP_TOKEN")
	code, _, _ = w.ask(t, "GET", "/", "", "Host", "lapse.example")
	require.Equal(t, 200, code, "not on loopback, any name may be its own")
}

// stream reads events until the test ends; it gives the data of those called
// name.
func (w *world) stream(t *testing.T, name string) (events <-chan string, leave func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	r, err := http.NewRequestWithContext(ctx, "GET", w.url+"/events", nil)
	require.NoError(t, err)
	res, err := http.DefaultClient.Do(r)
	require.NoError(t, err)
	require.Equal(t, 200, res.StatusCode)
	require.Equal(t, "text/event-stream", res.Header.Get("Content-Type"))
	out := make(chan string, 1000)
	done := make(chan struct{})
	go func() {
		defer close(done)
		defer res.Body.Close()
		defer close(out)
		current := ""
		for s := bufio.NewScanner(res.Body); s.Scan(); {
			if v, ok := strings.CutPrefix(s.Text(), "event: "); ok {
				current = v
			} else if v, ok := strings.CutPrefix(s.Text(), "data: "); ok && current == name {
				out <- v
			}
		}
	}()
	leave = func() { cancel(); <-done }
	t.Cleanup(leave)
	return out, leave
}

func await(t *testing.T, events <-chan string, what string, good func(string) bool) string {
	t.Helper()
	late := time.After(20 * time.Second)
	last := ""
	for {
		select {
		case e, open := <-events:
			require.True(t, open, "%s: the stream ended after %s", what, last)
			if last = e; good(e) {
				return e
			}
		case <-late:
			t.Fatalf("%s: the last was %s", what, last)
		}
	}
}

func TestStream(t *testing.T) {
	w := newWorld(t, nil)
	firedEvents, leave := w.stream(t, "fired")
	points, leavePoints := w.stream(t, "points")
	topics, leaveTopics := w.stream(t, "topics")
	await(t, topics, "an error of a part is shown in it", func(e string) bool { return e == `{"error":"no topics here"}` })
	timerstest.Eventually(t, 10*time.Second, "it listens", func() bool {
		w.page.feed.mu.Lock()
		defer w.page.feed.mu.Unlock()
		tap := w.page.feed.tap
		tap.mu.Lock()
		defer tap.mu.Unlock()
		return tap.sub != nil
	})
	const many = 500
	due := time.Now().Add(-20 * time.Millisecond)
	for i := range many {
		m := nats.NewMsg("timers.fired.orders.close")
		m.Header = nats.Header{"Timer-Due": {wire.FormatTime(due)}, "Timer-Id": {fmt.Sprint("a", i)}, "Timer-Source": {"event"}, "Timer-Attempt": {"1"}}
		require.NoError(t, w.nc.PublishMsg(m))
	}
	require.NoError(t, w.nc.Publish("timers.fired.foreign", nil)) // no event of Lapse
	total, rows := 0, 0
	await(t, firedEvents, "all are counted, some are shown", func(e string) bool {
		var f struct {
			Rows []fired
			Of   int
			All  bool
		}
		require.NoError(t, json.Unmarshal([]byte(e), &f))
		if f.All {
			return false
		}
		require.LessOrEqual(t, len(f.Rows), tailSample)
		for _, r := range f.Rows {
			require.Equal(t, "orders.close", r.Topic)
			require.GreaterOrEqual(t, r.Lag, 19.)
		}
		total += f.Of
		rows += len(f.Rows)
		return total == many && rows >= tailSample
	})
	await(t, points, "the plots have it", func(e string) bool {
		var p []point
		require.NoError(t, json.Unmarshal([]byte(e), &p))
		return len(p) == 1 && p[0].Rate != nil && *p[0].Rate > 10 && p[0].P99 != nil && *p[0].P99 >= 19 && p[0].Pending != nil && *p[0].Pending == 7
	})
	require.EqualValues(t, 1, w.dials.Load(), "viewers share what is read")
	leave()
	leavePoints()
	leaveTopics()
	timerstest.Eventually(t, 15*time.Second, "nothing runs when nobody looks", func() bool {
		w.page.feed.mu.Lock()
		defer w.page.feed.mu.Unlock()
		return !w.page.feed.running
	})
	reads := w.reads.Load()
	history, _ := w.stream(t, "history")
	e := await(t, history, "who comes later sees what was", func(string) bool { return true })
	require.Greater(t, strings.Count(e, `"at"`), 1)
	timerstest.Eventually(t, 10*time.Second, "it reads again", func() bool { return w.reads.Load() > reads })
}

// Who may publish there can forge events: what is larger than any of Lapse's is
// none, and must not fill the frames of all viewers.
func TestTapLeavesOutWhatIsTooLarge(t *testing.T) {
	tap := newTap(Options{Prefix: "timers"})
	for _, m := range []struct{ id, source string }{{strings.Repeat("x", 257), "event"}, {"x", strings.Repeat("x", 257)}, {"good", "sweep"}} {
		tap.hear(&nats.Msg{Subject: "timers.fired.a", Header: nats.Header{wire.HeaderDue: {wire.FormatTime(time.Now())}, wire.HeaderID: {m.id}, wire.HeaderSource: {m.source}}})
	}
	s := tap.take()
	require.Len(t, s.tail, 1)
	require.Equal(t, "good", s.tail[0].ID)
	require.Equal(t, 1, s.n)
}

// A viewer that does not read costs nobody anything: its frames are dropped,
// and it gets the whole when it reads again.
func TestSlowViewer(t *testing.T) {
	f := newFeed(Options{Prefix: "timers"})
	slow, quick := &viewer{frames: make(chan []byte, queued)}, &viewer{frames: make(chan []byte, queued)}
	f.viewers[slow], f.viewers[quick] = struct{}{}, struct{}{}
	for range 10 {
		f.send(second{})
		<-quick.frames
	}
	require.Len(t, slow.frames, queued)
	require.True(t, slow.missed)
	for range queued {
		<-slow.frames
	}
	f.send(second{})
	require.Contains(t, string(<-slow.frames), "event: history")
	require.NotContains(t, string(<-quick.frames), "event: history")
	require.False(t, slow.missed)
}

// Nor does it hold up the stop, with a frame that it does not take.
func TestStopDoesNotWaitForASlowViewer(t *testing.T) {
	more := strings.Repeat("x", 32<<20) // than any socket takes
	w := newWorld(t, func(o *Options) {
		o.Status = func(context.Context) wire.StatusReply { return wire.StatusReply{Instance: more} }
	})
	conn, err := net.Dial("tcp", strings.TrimPrefix(w.url, "http://"))
	require.NoError(t, err)
	defer conn.Close()
	_, err = fmt.Fprint(conn, "GET /events HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
	require.NoError(t, err)
	for r := bufio.NewReader(conn); ; {
		line, err := r.ReadString('\n')
		require.NoError(t, err)
		if line == "event: status\n" {
			break
		}
	}
	began := time.Now()
	w.page.Close()
	require.Less(t, time.Since(began), closeWait-time.Second)
}

func TestViewersAreBounded(t *testing.T) {
	w := newWorld(t, nil)
	for range maxViewers {
		w.stream(t, "about")
	}
	code, body, _ := w.ask(t, "GET", "/events", "")
	require.Equal(t, 503, code)
	require.Contains(t, body, "too many pages")
	w.page.Close()
	code, body, _ = w.ask(t, "GET", "/events", "")
	require.Equal(t, 503, code)
	require.Contains(t, body, "stopping")
}

// What a clock tells within a round trip is no difference between clocks.
func TestOffsetOfClocks(t *testing.T) {
	at := time.UnixMilli(1_700_000_000_000)
	tap := newTap(Options{})
	for _, tc := range []struct{ redis, low, high time.Duration }{
		{0, 0, 0}, {4 * time.Millisecond, 0, 0}, {time.Minute, 59990 * time.Millisecond, time.Minute}, {-time.Minute, -60010 * time.Millisecond, -59990 * time.Millisecond},
	} {
		tap.follow(at.Add(tc.redis), at, at.Add(10*time.Millisecond))
		require.GreaterOrEqual(t, tap.offset, tc.low, "%v", tc.redis)
		require.LessOrEqual(t, tap.offset, tc.high, "%v", tc.redis)
	}
}
