package cli

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"

	"github.com/lapse-timers/lapse/timers/timerstest"
	"github.com/lapse-timers/lapse/timers/timerstest/faultproxy"
	"github.com/lapse-timers/lapse/timers/wire"
)

// signalled is a standard error that tells when a line was written to it.
type signalled struct {
	io.Writer
	line chan string
}

func (s signalled) Write(p []byte) (int, error) {
	s.line <- string(p)
	return len(p), nil
}

func TestWatch(t *testing.T) {
	srv := timerstest.NATS(t)
	nc := srv.Connect(t)
	fired := &nats.Msg{Subject: "timers.fired.orders.close", Data: []byte(`{"order":42}`), Header: nats.Header{
		"Timer-Topic": {"orders.close"}, "Timer-Id": {"42"}, "Timer-Rev": {"3"}, "Timer-Due": {wire.FormatTime(time.Now())},
		"Timer-Fired": {wire.FormatTime(time.Now())}, "Timer-Attempt": {"2"}, "Timer-Source": {"sweep"}, "Nats-Msg-Id": {"m"},
	}}
	// start runs watch and returns when it is subscribed.
	start := func(ctx context.Context, args ...string) (out *bytes.Buffer, errs chan string, code chan int) {
		out, errs, code = &bytes.Buffer{}, make(chan string, 16), make(chan int, 1)
		root := New(Info{Getenv: env{"NATS_URL": srv.URL()}.get})
		root.SetArgs(append([]string{"watch"}, args...))
		root.SetOut(out)
		root.SetErr(signalled{line: errs})
		go func() { code <- Execute(ctx, root) }()
		if line := <-errs; !strings.HasPrefix(line, "watching timers.fired.") {
			t.Fatalf("stderr: %q", line)
		}
		return out, errs, code
	}
	publish := func(m *nats.Msg) {
		t.Helper()
		if err := nc.PublishMsg(m); err != nil {
			t.Fatal(err)
		}
	}

	out, _, code := start(t.Context(), "--count", "1")
	publish(fired)
	if c := <-code; c != ExitOK || !strings.Contains(out.String(), "orders.close 42  lag ") || !strings.Contains(out.String(), "sweep  attempt 2  "+`{"order":42}`) {
		t.Errorf("exit code %d, stdout %q", c, out)
	}

	out, _, code = start(t.Context(), "orders.>", "--count", "2", "--json")
	publish(fired)
	publish(fired)
	c := <-code
	for line := range strings.Lines(out.String()) {
		var got firedJSON
		if err := json.Unmarshal([]byte(line), &got); err != nil || got.ID != "42" || got.Payload == nil || *got.Payload != `{"order":42}` {
			t.Errorf("line %q: %v", line, err)
		}
	}
	if n := strings.Count(out.String(), "\n"); c != ExitOK || n != 2 {
		t.Errorf("exit code %d, %d lines", c, n)
	}

	// Foreign messages are said; a lost and found connection too; Ctrl-C is
	// no failure.
	ctx, interrupt := context.WithCancel(t.Context())
	_, errs, code := start(ctx)
	publish(&nats.Msg{Subject: "timers.fired.x", Data: []byte("forged")})
	if line := <-errs; !strings.Contains(line, "timers.fired.x") {
		t.Errorf("forged: %q", line)
	}
	srv.Stop()
	if line := <-errs; !strings.Contains(line, "lost") {
		t.Errorf("lost: %q", line)
	}
	srv.Start()
	if line := <-errs; !strings.Contains(line, "connected again") {
		t.Errorf("found: %q", line)
	}
	interrupt()
	if c := <-code; c != ExitOK {
		t.Errorf("interrupted: exit code %d", c)
	}
}

// An error that nats.go does not come back from ends it, since nothing would ever be
// printed again.
func TestWatchWhoseConnectionIsClosedForGood(t *testing.T) {
	srv := timerstest.NATS(t)
	proxy, err := faultproxy.NewNATS(strings.TrimPrefix(srv.URL(), "nats://"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(proxy.Close)
	proxy.Obey(func(m faultproxy.Message) faultproxy.Fault {
		if m.Delivered() {
			return faultproxy.Answer("-ERR 'Maximum Whatever Exceeded'")
		}
		return faultproxy.Pass
	})
	errs := make(chan string, 16)
	root := New(Info{Getenv: env{"NATS_URL": proxy.URL()}.get})
	root.SetArgs([]string{"watch"})
	root.SetErr(signalled{line: errs})
	code := make(chan int, 1)
	go func() { code <- Execute(t.Context(), root) }()
	<-errs // it watches
	if err := srv.Connect(t).Publish("timers.fired.a", nil); err != nil {
		t.Fatal(err)
	}
	if c := <-code; c != ExitFailure {
		t.Errorf("exit code %d", c)
	}
	said := ""
	for len(errs) > 0 {
		said += <-errs
	}
	if !strings.Contains(said, "Whatever") || !strings.Contains(said, strings.TrimPrefix(proxy.URL(), "nats://")) {
		t.Errorf("stderr: %q", said)
	}
}

func TestWatchWithoutPermission(t *testing.T) {
	srv := timerstest.NATS(t, func(o *server.Options) {
		o.Users = []*server.User{{Username: "u", Password: "p", Permissions: &server.Permissions{
			Subscribe: &server.SubjectPermission{Deny: []string{"timers.fired.>"}},
		}}}
	})
	url := strings.Replace(srv.URL(), "//", "//u:p@", 1)
	lapse(t, env{"NATS_URL": url}, "", "watch").says(t, ExitFailure, "timers.fired.>", "permission")
}
