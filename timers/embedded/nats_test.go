package embedded

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os/signal"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/lapse-timers/lapse/timers/timerstest"
)

func startNATS(t *testing.T, dir *Dir, o NATSOptions) *NATS {
	t.Helper()
	n, err := StartNATS(dir, o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := n.Stop(soon(t)); err != nil {
			t.Error(err)
		}
	})
	return n
}

func connect(t *testing.T, url string, o ...nats.Option) *nats.Conn {
	t.Helper()
	nc, err := nats.Connect(url, o...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(nc.Close)
	return nc
}

func TestNATSKeepsItsStreams(t *testing.T) {
	dir := lockTemp(t)
	var log timerstest.Log
	n := startNATS(t, dir, NATSOptions{Listen: "127.0.0.1:0", MaxStore: 1 << 30, Logger: logTo(&log, slog.LevelInfo)})
	if n.MaxStore() != 1<<30 {
		t.Errorf("MaxStore is %d", n.MaxStore())
	}
	nc := connect(t, n.ClientURL(), n.ConnectOptions()...)
	js, err := jetstream.New(nc)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := js.CreateStream(t.Context(), jetstream.StreamConfig{Name: "S", Subjects: []string{"s.>"}, Storage: jetstream.FileStorage}); err != nil {
		t.Fatal(err)
	}
	if _, err := js.Publish(t.Context(), "s.a", []byte("x")); err != nil {
		t.Fatal(err)
	}
	outside := connect(t, n.ClientURL()) // over the port, as any other service would
	if outside.ConnectedAddr() == "" {
		t.Error("not connected over the port")
	}
	nc.Close()
	if err := n.Stop(soon(t)); err != nil {
		t.Fatal(err)
	}
	if err := n.Stop(soon(t)); err != nil {
		t.Errorf("a second stop: %v", err)
	}

	n = startNATS(t, dir, NATSOptions{Listen: "127.0.0.1:0"})
	if n.MaxStore() <= 0 {
		t.Errorf("MaxStore is %d", n.MaxStore())
	}
	js, err = jetstream.New(connect(t, n.ClientURL(), n.ConnectOptions()...))
	if err != nil {
		t.Fatal(err)
	}
	s, err := js.Stream(t.Context(), "S")
	if err != nil {
		t.Fatal(err)
	}
	if got := s.CachedInfo().State.Msgs; got != 1 {
		t.Errorf("%d messages, want 1", got)
	}
	if log.String() != "" {
		t.Errorf("a healthy server is not silent:\n%s", log.String())
	}
}

func TestNATSSecrets(t *testing.T) {
	for _, secret := range []string{"ops:s3cr%40t%2fpw@", "s3cr%40t%2fpw@"} {
		var log timerstest.Log
		n := startNATS(t, lockTemp(t), NATSOptions{Listen: secret + "0.0.0.0:0", Logger: logTo(&log, slog.LevelDebug)})
		url := n.ClientURL()
		if !strings.HasPrefix(url, "nats://127.0.0.1:") || !n.NeedsSecret() {
			t.Errorf("url %s, needs secret %v", url, n.NeedsSecret())
		}
		connect(t, url, n.ConnectOptions()...)
		connect(t, "nats://"+secret+strings.TrimPrefix(url, "nats://")) // as clients are told to
		for _, bad := range []string{url, "nats://ops:wrong@" + strings.TrimPrefix(url, "nats://")} {
			if nc, err := nats.Connect(bad); !errors.Is(err, nats.ErrAuthorization) {
				t.Errorf("%s: %v, %v", bad, nc, err)
			}
		}
		if s := log.String(); strings.Contains(s, "s3cr") || !strings.Contains(s, "level=DEBUG") {
			t.Errorf("the log:\n%s", s)
		}
	}
}

func TestNATSListenGrammar(t *testing.T) {
	for in, want := range map[string]listen{
		"127.0.0.1:4222":               {host: "127.0.0.1", port: 4222},
		"nats://localhost:4222":        {host: "localhost", port: 4222},
		"nats://127.0.0.1:0/":          {host: "127.0.0.1"},
		"[::1]:4222":                   {host: "::1", port: 4222},
		"[::ffff:127.0.0.1]:4222":      {host: "::ffff:127.0.0.1", port: 4222},
		"u:p@10.0.0.1:1":               {host: "10.0.0.1", port: 1, user: "u", pass: "p"},
		"nats://u:p:q@r@h:1":           {host: "h", port: 1, user: "u", pass: "p:q@r"},
		"tok%3Aen@:65535":              {port: 65535, token: "tok:en"},
		"nats://t@[::]:4222":           {host: "::", port: 4222, token: "t"},
		"u:%242a%2411%24x@127.0.0.1:1": {},
		"u:$2a$11$x@127.0.0.1:1":       {},
		"$2b$11$x@127.0.0.1:1":         {},
		"":                             {},
		"4222":                         {},
		"127.0.0.1":                    {},
		"127.0.0.1:65536":              {},
		"127.0.0.1:-1":                 {},
		"127.0.0.1:http":               {},
		"hunter2:hunter2":              {},
		"@127.0.0.1:1":                 {},
		":hunter2@127.0.0.1:1":         {},
		"hunter2:@127.0.0.1:1":         {},
		"hunter2%zz@127.0.0.1:1":       {},
		":4222":                        {},
		"0.0.0.0:4222":                 {},
		"[::]:4222":                    {},
		"192.168.1.1:4222":             {},
		"nats.example.com:4222":        {},
	} {
		got, err := parseListen(in, settingNATS, false)
		got.setting = ""
		if want == (listen{}) {
			if err == nil {
				t.Errorf("%q was taken", in)
			} else if s := err.Error(); strings.Contains(s, "hunter2") || !strings.Contains(s, "LAPSE_NATS_LISTEN") || strings.Contains(s, "\n") {
				t.Errorf("%q: %q", in, s)
			}
			continue
		}
		if err != nil || got != want {
			t.Errorf("%q: %+v, %v", in, got, err)
		}
	}
}

func TestNATSNeedsASecretBeyondLoopback(t *testing.T) {
	_, err := StartNATS(lockTemp(t), NATSOptions{Listen: "0.0.0.0:0"})
	if err == nil || !strings.Contains(err.Error(), "password or a token") {
		t.Errorf("%v", err)
	}
}

// Who listens for browsers says who may come: with a secret of its own, that
// of the other listener, or by the origins of the pages.
func TestNATSForBrowsers(t *testing.T) {
	for _, tc := range []struct {
		listen, ws string
		origins    []string
		says       string // "" means that it starts
	}{
		{"127.0.0.1:0", "127.0.0.1:0", nil, "LAPSE_NATS_WEBSOCKET_ORIGINS"},
		{"127.0.0.1:0", "0.0.0.0:0", []string{"http://localhost:8000"}, "LAPSE_NATS_WEBSOCKET_LISTEN"},
		{"127.0.0.1:0", "nowhere", nil, "LAPSE_NATS_WEBSOCKET_LISTEN"},
		{"127.0.0.1:0", "hunter2@127.0.0.1:0", []string{"localhost"}, "LAPSE_NATS_WEBSOCKET_ORIGINS"},
		{"127.0.0.1:0", "127.0.0.1:0", []string{"http://localhost:8000"}, ""},
		{"127.0.0.1:0", "hunter2@127.0.0.1:0", nil, ""},
		{"u:hunter2@127.0.0.1:0", "0.0.0.0:0", nil, ""},
	} {
		n, err := StartNATS(lockTemp(t), NATSOptions{Listen: tc.listen, WebSocket: tc.ws, Origins: tc.origins})
		if tc.says != "" {
			if err == nil || !strings.Contains(err.Error(), tc.says) || strings.Contains(err.Error(), "hunter2") {
				t.Errorf("%+v: %v", tc, err)
			}
			continue
		}
		if err != nil {
			t.Errorf("%+v: %v", tc, err)
			continue
		}
		wants := n.WebSocketURL()
		try := func(url string, o ...nats.Option) error {
			nc, err := nats.Connect(url, append(o, nats.Timeout(soonAfter))...)
			if err == nil {
				nc.Close()
			}
			return err
		}
		switch {
		case tc.listen[0] == 'u':
			if err := try(wants, nats.UserInfo("u", "hunter2")); err != nil {
				t.Errorf("%+v: with the secret: %v", tc, err)
			}
			fallthrough
		case tc.ws[0] == 'h':
			// The server closes right behind its error, which may be lost with that.
			if err := try(wants); err == nil {
				t.Errorf("%+v: came in without the secret", tc)
			}
		default:
			if err := try(wants, nats.WebSocketConnectionHeaders(map[string][]string{"Origin": {"http://localhost:8000"}})); err != nil {
				t.Errorf("%+v: a page of ours: %v", tc, err)
			}
			if err := try(wants, nats.WebSocketConnectionHeaders(map[string][]string{"Origin": {"http://evil.example"}})); err == nil {
				t.Errorf("%+v: a foreign page came in", tc)
			}
		}
		if err := n.Stop(soon(t)); err != nil {
			t.Error(err)
		}
	}
}

const soonAfter = 5 * time.Second

func TestNATSPortInUse(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	for _, secret := range []string{"", "hunter2@"} {
		_, err = StartNATS(lockTemp(t), NATSOptions{Listen: secret + l.Addr().String()})
		if err == nil {
			t.Fatal("it started")
		}
		s := err.Error()
		for _, want := range []string{"LAPSE_NATS_URL=nats://", l.Addr().String(), "LAPSE_REDIS_URL=embedded", "LAPSE_NATS_LISTEN=", "127.0.0.1:"} {
			if !strings.Contains(s, want) {
				t.Errorf("%q does not name %s", s, want)
			}
		}
		if strings.Contains(s, "hunter2") || strings.Contains(s, "\n") {
			t.Errorf("%q: want one line without the secret", s)
		}
	}
}

func TestNATSThatCannotStart(t *testing.T) {
	_, err := StartNATS(lockTemp(t), NATSOptions{Listen: "u:hunter2@192.0.2.1:4222"}) // nobody's address
	if err == nil || !strings.Contains(err.Error(), "192.0.2.1:4222") || strings.Contains(err.Error(), "hunter2") {
		t.Errorf("%v", err)
	}
}

func TestNATSStopIsBounded(t *testing.T) {
	n := startNATS(t, lockTemp(t), NATSOptions{Listen: "127.0.0.1:0"})
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_ = n.Stop(ctx) // either is right: it may have ended at once
}

func FuzzListen(f *testing.F) {
	f.Add("user:pw@127.0.0.1:4222")
	f.Add("nats://t@:1")
	f.Fuzz(func(t *testing.T, s string) {
		l, err := parseListen(s, settingNATS, false)
		if err == nil && !l.isLoopback() && !l.isSecured() {
			t.Errorf("%q is open to the world", s)
		}
		if err == nil && l.port == 0 != strings.HasSuffix(strings.TrimRight(s, "0/"), ":") {
			t.Errorf("%q: port %d", s, l.port)
		}
		_ = fmt.Sprint(l.addr(), l.reachable(1))
	})
}

// A disk that was full for a moment. nats-server stores nothing more from then on and
// answers no publish; it is started again, with all that was acknowledged, where it was.
func TestNATSComesBackFromAFullDisk(t *testing.T) {
	signal.Ignore(syscall.SIGXFSZ) // the error is what counts
	defer signal.Reset(syscall.SIGXFSZ)
	var log timerstest.Log
	n := startNATS(t, lockTemp(t), NATSOptions{Listen: "hunter2@127.0.0.1:0", WebSocket: "127.0.0.1:0", Logger: logTo(&log, slog.LevelInfo)})
	url, browsers := n.ClientURL(), n.WebSocketURL()
	nc := connect(t, url, append(n.ConnectOptions(), nats.MaxReconnects(-1), nats.ReconnectWait(10*time.Millisecond))...)
	js, err := jetstream.New(nc)
	if err != nil {
		t.Fatal(err)
	}
	stream, err := js.CreateStream(t.Context(), jetstream.StreamConfig{Name: "S", Subjects: []string{"s.>"}, Storage: jetstream.FileStorage})
	if err != nil {
		t.Fatal(err)
	}
	publish := func() error {
		ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
		defer cancel()
		_, err := js.Publish(ctx, "s.a", make([]byte, 1000))
		return err
	}
	if err := publish(); err != nil {
		t.Fatal(err)
	}
	var was syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_FSIZE, &was); err != nil {
		t.Fatal(err)
	}
	full := was
	full.Cur = 1500
	if err := syscall.Setrlimit(syscall.RLIMIT_FSIZE, &full); err != nil {
		t.Fatal(err)
	}
	defer syscall.Setrlimit(syscall.RLIMIT_FSIZE, &was)
	if publish() == nil {
		t.Fatal("there was room")
	}
	for !strings.Contains(log.String(), "started again once") {
		time.Sleep(time.Millisecond)
	}
	if err := syscall.Setrlimit(syscall.RLIMIT_FSIZE, &was); err != nil {
		t.Fatal(err)
	}
	for end := time.Now().Add(2 * soonAfter); publish() != nil; {
		if time.Now().After(end) {
			t.Fatalf("it does not come back: %s", log.String())
		}
	}
	if m, err := stream.GetMsg(t.Context(), 1); err != nil || len(m.Data) != 1000 {
		t.Errorf("what was acknowledged: %v, %v", m, err)
	}
	if n.ClientURL() != url || n.WebSocketURL() != browsers {
		t.Errorf("it is at %s and %s, and was at %s and %s", n.ClientURL(), n.WebSocketURL(), url, browsers)
	}
}
