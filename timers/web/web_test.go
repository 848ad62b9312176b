package web

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"reflect"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/lapse-timers/lapse/timers/wire"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func fine(context.Context) wire.HealthReply {
	return wire.HealthReply{Status: wire.HealthOK, Parts: map[string]wire.HealthPart{"redis": {Status: wire.HealthOK}}}
}

// serve runs a server on a free port until the test ends or stop is called,
// and returns its URL.
func serve(t *testing.T, health func(context.Context) wire.HealthReply) (url string, stop func()) {
	t.Helper()
	s := New(Options{Listen: "127.0.0.1:0", Health: health, Version: "1.2.3"})
	if err := s.Listen(); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- s.Serve(ctx) }()
	stop = sync.OnceFunc(func() {
		cancel()
		if err := <-done; err != nil {
			t.Errorf("Serve: %v", err)
		}
	})
	t.Cleanup(stop)
	t.Cleanup(http.DefaultClient.CloseIdleConnections)
	return "http://" + s.Addr(), stop
}

func do(t *testing.T, method, url string) (*http.Response, string) {
	t.Helper()
	r, err := http.NewRequest(method, url, nil)
	if err != nil {
		t.Fatal(err)
	}
	w, err := http.DefaultClient.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	defer w.Body.Close()
	b, err := io.ReadAll(w.Body)
	if err != nil {
		t.Fatal(err)
	}
	return w, string(b)
}

func TestRoutes(t *testing.T) {
	url, _ := serve(t, fine)
	for _, c := range []struct {
		method, path string
		code         int
		body         string // a part of it
	}{
		{"GET", "/", 200, "Lapse 1.2.3"},
		{"GET", "/", 200, "/readyz"},
		{"GET", "/healthz", 200, "ok\n"},
		{"HEAD", "/healthz", 200, ""},
		{"GET", "/readyz", 200, `"status":"ok"`},
		{"HEAD", "/readyz", 200, ""},
		{"POST", "/", 405, ""},
		{"POST", "/healthz", 405, ""},
		{"DELETE", "/readyz", 405, ""},
		{"GET", "/nothing", 404, ""},
		{"GET", "/healthz/", 404, ""},
		{"GET", "/readyz/redis", 404, ""},
		{"POST", "/nothing", 404, ""},
	} {
		w, body := do(t, c.method, url+c.path)
		if w.StatusCode != c.code || !strings.Contains(body, c.body) {
			t.Errorf("%s %s: %d %q, want %d with %q", c.method, c.path, w.StatusCode, body, c.code, c.body)
		}
		if c.code == 405 && !strings.Contains(w.Header.Get("Allow"), "GET") {
			t.Errorf("%s %s: Allow is %q", c.method, c.path, w.Header.Get("Allow"))
		}
		if c.code == 200 && w.Header.Get("Cache-Control") != "no-store" {
			t.Errorf("%s %s: Cache-Control is %q", c.method, c.path, w.Header.Get("Cache-Control"))
		}
	}
}

func TestReadiness(t *testing.T) {
	for status, code := range map[string]int{wire.HealthOK: 200, wire.HealthDegraded: 200, wire.HealthDown: 503, "": 503, "odd": 503} {
		want := wire.HealthReply{Status: status, Parts: map[string]wire.HealthPart{
			"redis":        {Status: wire.HealthOK},
			"subscription": {Status: status, Why: `put this line into redis.conf: "Ex" <&>`},
		}}
		url, _ := serve(t, func(context.Context) wire.HealthReply { return want })
		w, body := do(t, "GET", url+"/readyz")
		if w.StatusCode != code || w.Header.Get("Content-Type") != "application/json" || w.Header.Get("Cache-Control") != "no-store" {
			t.Errorf("%q: %d %v", status, w.StatusCode, w.Header)
		}
		var got wire.HealthReply
		if err := json.Unmarshal([]byte(body), &got); err != nil || !reflect.DeepEqual(got, want) {
			t.Errorf("%q: %+v, %v", status, got, err)
		}
	}
}

// A health check that hangs makes the instance not ready, never the process
// dead, and never more than a few of its calls run.
func TestHangingHealthIsBounded(t *testing.T) {
	release := make(chan struct{})
	running := make(chan struct{}, 1000)
	var calls sync.WaitGroup
	url, _ := serve(t, func(context.Context) wire.HealthReply {
		calls.Add(1)
		defer calls.Done()
		running <- struct{}{}
		<-release // deaf to its context
		return wire.HealthReply{Status: wire.HealthOK}
	})
	var all sync.WaitGroup
	began := time.Now()
	for range 3 * healthCalls {
		all.Go(func() {
			w, err := http.Get(url + "/readyz")
			if err != nil {
				t.Error(err)
				return
			}
			defer w.Body.Close()
			b, _ := io.ReadAll(w.Body)
			if w.StatusCode != 503 || !strings.Contains(string(b), "health check") {
				t.Errorf("%d %s", w.StatusCode, b)
			}
		})
	}
	<-running
	if w, body := do(t, "GET", url+"/healthz"); w.StatusCode != 200 || body != "ok\n" {
		t.Errorf("healthz meanwhile: %d %q", w.StatusCode, body)
	}
	all.Wait()
	if took := time.Since(began); took > healthTimeout+3*time.Second {
		t.Errorf("took %v", took)
	}
	if n := len(running) + 1; n > healthCalls {
		t.Errorf("%d calls at a time", n)
	}
	close(release)
	calls.Wait()
}

func TestHealthIsToldItsDeadline(t *testing.T) {
	url, _ := serve(t, func(ctx context.Context) wire.HealthReply {
		if d, ok := ctx.Deadline(); !ok || time.Until(d) > healthTimeout {
			t.Errorf("deadline %v, %v", d, ok)
		}
		return fine(ctx)
	})
	do(t, "GET", url+"/readyz")
}

func TestPortInUse(t *testing.T) {
	first := New(Options{Listen: "127.0.0.1:0", Health: fine})
	if first.Addr() != "" {
		t.Errorf("Addr before Listen: %q", first.Addr())
	}
	if err := first.Listen(); err != nil {
		t.Fatal(err)
	}
	err := New(Options{Listen: first.Addr(), Health: fine}).Listen()
	if err == nil {
		t.Fatal("two on one port")
	}
	for _, part := range []string{first.Addr(), "LAPSE_HTTP_LISTEN", "in use", "stop it, or set"} {
		if !strings.Contains(err.Error(), part) {
			t.Errorf("%q does not say %q", err, part)
		}
	}
	if strings.Contains(err.Error(), "\n") {
		t.Errorf("more than one line: %q", err)
	}
	// Given back, it can be taken.
	if err := first.Close(); err != nil {
		t.Fatal(err)
	}
	again := New(Options{Listen: first.Addr(), Health: fine})
	if err := again.Listen(); err != nil {
		t.Fatal(err)
	}
	if err := again.Close(); err != nil {
		t.Fatal(err)
	}
}

func TestAddressThatCannotBe(t *testing.T) {
	for _, listen := range []string{"8420", "127.0.0.1:http:1", "127.0.0.1:99999", "192.0.2.1:0", "host with space:1"} {
		err := New(Options{Listen: listen, Health: fine}).Listen()
		if err == nil {
			t.Errorf("%q: no error", listen)
			continue
		}
		for _, part := range []string{listen, "set LAPSE_HTTP_LISTEN to"} {
			if !strings.Contains(err.Error(), part) {
				t.Errorf("%q does not say %q", err, part)
			}
		}
	}
}

func TestServeWithoutListen(t *testing.T) {
	if err := New(Options{Health: fine}).Serve(t.Context()); err == nil {
		t.Error("no error")
	}
	if err := New(Options{Health: fine}).Close(); err != nil {
		t.Error(err)
	}
}

// A request under way at the stop gets its answer.
func TestStopLetsRequestsFinish(t *testing.T) {
	entered, release := make(chan struct{}), make(chan struct{})
	url, stop := serve(t, func(ctx context.Context) wire.HealthReply {
		close(entered)
		<-release
		return fine(ctx)
	})
	answered := make(chan int, 1)
	go func() {
		w, err := http.Get(url + "/readyz")
		if err != nil {
			t.Error(err)
			answered <- 0
			return
		}
		w.Body.Close()
		answered <- w.StatusCode
	}()
	<-entered
	stopped := make(chan struct{})
	go func() { stop(); close(stopped) }()
	// The port is given up first.
	for {
		c, err := net.Dial("tcp", strings.TrimPrefix(url, "http://"))
		if err != nil {
			break
		}
		c.Close()
	}
	close(release)
	if code := <-answered; code != 200 {
		t.Errorf("answered %d", code)
	}
	<-stopped
}

func TestOversizedHeaderIsRefused(t *testing.T) {
	url, _ := serve(t, fine)
	c, err := net.Dial("tcp", strings.TrimPrefix(url, "http://"))
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	_ = c.SetDeadline(time.Now().Add(10 * time.Second)) // fails only on a closed connection
	go func() {
		_, _ = io.WriteString(c, "GET /healthz HTTP/1.1\r\nHost: x\r\nX-Long: ") // cut by the server
		_, _ = c.Write(bytes.Repeat([]byte("a"), 4*maxHeader))
		_, _ = io.WriteString(c, "\r\n\r\n")
	}()
	answer := make([]byte, 64)
	n, err := io.ReadAtLeast(c, answer, 12)
	if err != nil || !strings.HasPrefix(string(answer[:n]), "HTTP/1.1 431") {
		t.Errorf("%q, %v", answer[:n], err)
	}
}

// What is served besides is given, and profiles only when they are asked for. Who
// serves them to everybody is told.
func TestMetricsAndProfiles(t *testing.T) {
	var log bytes.Buffer
	s := New(Options{
		Listen: "0.0.0.0:0", Health: fine, Profiles: true, Logger: slog.New(slog.NewTextHandler(&log, nil)),
		Metrics: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "metrics") }),
	})
	if err := s.Listen(); err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	if n := strings.Count(log.String(), "profiles can be read"); n != 1 || !strings.Contains(log.String(), "LAPSE_PPROF=false") {
		t.Errorf("it says %q", log.String())
	}
	for path, want := range map[string]int{"/metrics": 200, "/debug/pprof/": 200, "/debug/pprof/heap": 200, "/debug/pprof/cmdline": 200, "/debug/pprof/nothing": 404, "/debug/vars": 404} {
		w := httptest.NewRecorder()
		s.http.Handler.ServeHTTP(w, httptest.NewRequest("GET", path, nil))
		if w.Code != want {
			t.Errorf("%s: %d, want %d", path, w.Code, want)
		}
	}
	foreign := httptest.NewRequest("GET", "/debug/pprof/profile?seconds=86400", nil)
	foreign.Header.Set("Sec-Fetch-Site", "cross-site")
	w := httptest.NewRecorder()
	s.http.Handler.ServeHTTP(w, foreign)
	if w.Code != 403 {
		t.Errorf("a page of somebody else has a profile taken: %d", w.Code)
	}
	plain := New(Options{Listen: "127.0.0.1:0", Health: fine})
	for _, path := range []string{"/metrics", "/debug/pprof/"} {
		w := httptest.NewRecorder()
		plain.http.Handler.ServeHTTP(w, httptest.NewRequest("GET", path, nil))
		if w.Code != 404 {
			t.Errorf("%s is there unasked: %d", path, w.Code)
		}
	}
}

// However many connect, no more than so many files are open for them; who waits
// is served once another leaves, and a stop does not wait for a slot.
func TestConnectionsAreBounded(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	b := newBounded(l, 1)
	accepted, ended := make(chan net.Conn), make(chan error)
	go func() {
		for {
			c, err := b.Accept()
			if err != nil {
				ended <- err
				return
			}
			accepted <- c
		}
	}()
	for range 2 {
		c, err := net.Dial("tcp", b.Addr().String())
		require.NoError(t, err)
		defer c.Close()
	}
	first := <-accepted
	select {
	case <-accepted:
		t.Fatal("there was no slot")
	case <-time.After(50 * time.Millisecond):
	}
	require.NoError(t, first.Close())
	_ = first.Close() // gives no second slot
	second := <-accepted
	require.NoError(t, b.Close())
	require.ErrorIs(t, <-ended, net.ErrClosed)
	require.NoError(t, second.Close())
}
