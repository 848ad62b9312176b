package client_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"

	"github.com/lapse-timers/lapse/timers/client"
	"github.com/lapse-timers/lapse/timers/timerstest"
	"github.com/lapse-timers/lapse/timers/wire"
)

// answer has a responder on the subject that plays Lapse, or plays it badly,
// and returns what it was asked, one request at a time.
func answer(t *testing.T, nc *nats.Conn, subject string, reply func(req *nats.Msg) *nats.Msg) <-chan *nats.Msg {
	t.Helper()
	asked := make(chan *nats.Msg, 16)
	sub, err := nc.Subscribe(subject, func(req *nats.Msg) {
		asked <- req
		if m := reply(req); m != nil {
			m.Subject = req.Reply
			if err := nc.PublishMsg(m); err != nil {
				t.Errorf("reply: %v", err)
			}
		}
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := sub.Unsubscribe(); err != nil {
			t.Errorf("unsubscribe: %v", err)
		}
	})
	if err := nc.Flush(); err != nil {
		t.Fatal(err)
	}
	return asked
}

func body(s string) func(*nats.Msg) *nats.Msg {
	return func(*nats.Msg) *nats.Msg { return &nats.Msg{Data: []byte(s)} }
}

func silence(*nats.Msg) *nats.Msg { return nil }

func newClient(t *testing.T, nc *nats.Conn, opts ...client.Option) *client.Client {
	t.Helper()
	c, err := client.New(nc, opts...)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func soon(t *testing.T, d time.Duration) context.Context {
	ctx, cancel := context.WithTimeout(t.Context(), d)
	t.Cleanup(cancel)
	return ctx
}

func TestSetSendsWhatTheProtocolSays(t *testing.T) {
	nc := timerstest.NATS(t).Connect(t)
	asked := answer(t, nc, "dev.timers.set.>", body(`{"topic":"orders.close","id":"order 42","due":"2030-01-02T03:04:05.678Z","rev":7,"replaced":true,"was":"firing","new":1}`))
	c := newClient(t, nc, client.Prefix("dev.timers"))

	got, err := c.Set(t.Context(), "orders.close", []byte("\x00\xff"), client.In(1500*time.Microsecond),
		client.ID("order 42"), client.Header("traceparent", "00-a"), client.Header("X", "1", "2"), client.Header("X", "3"))
	if err != nil {
		t.Fatal(err)
	}
	want := client.Result{
		Topic: "orders.close", ID: "order 42", Rev: 7, Replaced: true, Was: client.Firing,
		Due: time.Date(2030, 1, 2, 3, 4, 5, 678e6, time.UTC),
	}
	if got != want {
		t.Errorf("got %+v, want %+v", got, want)
	}
	m := <-asked
	if m.Subject != "dev.timers.set.orders.close" || string(m.Data) != "\x00\xff" {
		t.Errorf("sent %q on %s", m.Data, m.Subject)
	}
	for name, want := range map[string]string{
		"Timer-Id": "order 42", "Timer-Schedule": "@in 1.5ms", "traceparent": "00-a", "X": "1|2|3",
	} {
		if got := strings.Join(m.Header.Values(name), "|"); got != want {
			t.Errorf("header %s: %q, want %q", name, got, want)
		}
	}
}

func TestSchedules(t *testing.T) {
	zone := time.FixedZone("", 5*3600+1800)
	for _, tt := range []struct {
		when client.When
		want string
	}{
		{client.In(0), "@in 0s"},
		{client.In(30 * time.Minute), "@in 30m0s"},
		{client.In(-time.Second), "@in -1s"},
		{client.At(time.Date(2030, 1, 2, 3, 4, 5, 1, zone)), "@at 2030-01-01T21:34:05.000000001Z"},
		{client.Schedule("@every 1s"), "@every 1s"},
	} {
		if got := tt.when.String(); got != tt.want {
			t.Errorf("got %q, want %q", got, tt.want)
		}
	}
}

func TestGet(t *testing.T) {
	nc := timerstest.NATS(t).Connect(t)
	c := newClient(t, nc)
	// The payload looks like an acknowledgement of a stream: payloads are
	// opaque, and the headers alone tell whose reply it is.
	const payload = `{"stream":"S","seq":1}`
	asked := answer(t, nc, "timers.get.orders", func(*nats.Msg) *nats.Msg {
		return &nats.Msg{Data: []byte(payload), Header: nats.Header{
			"Timer-Topic": {"orders"}, "Timer-Id": {"a:b"}, "Timer-Rev": {"9007199254740993"}, "Timer-Due": {"2030-01-02T03:04:05.678Z"},
			"Timer-State": {"firing"}, "Timer-Attempt": {"2"}, "Timer-Fired": {"2030-01-02T03:04:05.680Z"},
			"Timer-Schedule": {"@in 1h"}, "X": {"1", "2"}, "Nats-Request-Info": {"{}"},
		}}
	})
	got, err := c.Get(t.Context(), "orders", "a:b")
	if err != nil {
		t.Fatal(err)
	}
	if m := <-asked; string(m.Data) != "a:b" {
		t.Errorf("asked for %q", m.Data)
	}
	if got.Rev != 9007199254740993 || got.State != client.Firing || got.Attempts != 2 || got.Schedule != "@in 1h" ||
		string(got.Payload) != payload || !got.Fired.Equal(got.Due.Add(2*time.Millisecond)) {
		t.Errorf("got %+v", got)
	}
	if len(got.Header) != 1 || len(got.Header.Values("X")) != 2 {
		t.Errorf("own headers: %v", got.Header)
	}
}

// TestErrorsOfTheService has one row per word of the one table.
func TestErrorsOfTheService(t *testing.T) {
	nc := timerstest.NATS(t).Connect(t)
	c := newClient(t, nc)
	sentinels := map[wire.Word]error{
		wire.InvalidTopic: client.ErrInvalidTopic, wire.InvalidID: client.ErrInvalidID, wire.InvalidSchedule: client.ErrInvalidSchedule,
		wire.InvalidHeader: client.ErrInvalidHeader, wire.InvalidRequest: client.ErrInvalidRequest, wire.NotFound: client.ErrNotFound,
		wire.Conflict: client.ErrConflict, wire.TooLarge: client.ErrTooLarge, wire.Quota: client.ErrQuota, wire.Internal: client.ErrInternal,
		wire.Unavailable: client.ErrUnavailable, wire.Unconfirmed: client.ErrUnconfirmed, wire.StorageFull: client.ErrStorageFull,
	}
	words := wire.Words()
	if len(words) != len(sentinels) {
		t.Fatalf("%d words, %d sentinels", len(words), len(sentinels))
	}
	var word wire.Word
	asked := answer(t, nc, "timers.*.t", func(*nats.Msg) *nats.Msg {
		code, text, data := wire.Errorf(word, "because of %s", word).Encode()
		return &nats.Msg{Data: data, Header: nats.Header{wire.HeaderErrorCode: {code}, wire.HeaderError: {text}}}
	})
	for _, word = range words {
		_, setErr := c.Set(t.Context(), "t", nil, client.In(0))
		_, getErr := c.Get(t.Context(), "t", "a")
		_, cancelErr := c.Cancel(t.Context(), "t", "a")
		_, retryErr := c.Retry(t.Context(), "t", "a")
		_, listErr := c.ListPage(t.Context(), "t", 0, "")
		for verb, err := range map[string]error{"set": setErr, "get": getErr, "cancel": cancelErr, "retry": retryErr, "list": listErr} {
			<-asked
			for w, sentinel := range sentinels {
				if errors.Is(err, sentinel) != (w == word) {
					t.Errorf("%s, %s: errors.Is(%v, %s) = %v", verb, word, err, w, w != word)
				}
			}
			if err == nil || !strings.Contains(err.Error(), "because of") {
				t.Errorf("%s: %v", word, err)
			}
		}
	}
}

func TestRetryAndDead(t *testing.T) {
	nc := timerstest.NATS(t).Connect(t)
	c := newClient(t, nc)
	asked := answer(t, nc, "timers.retry.t", func(req *nats.Msg) *nats.Msg {
		return &nats.Msg{Data: []byte(`{"topic":"t","id":"` + string(req.Data) + `","due":"2030-01-02T03:04:05.678Z","rev":7}`)}
	})
	got, err := c.Retry(t.Context(), "t", "a b")
	due := time.Date(2030, 1, 2, 3, 4, 5, 678_000_000, time.UTC)
	if err != nil || got != (client.Retried{Topic: "t", ID: "a b", Due: due, Rev: 7}) {
		t.Errorf("retry: %+v, %v", got, err)
	}
	if m := <-asked; string(m.Data) != "a b" || len(asked) != 0 {
		t.Errorf("asked %q, and %d more", m.Data, len(asked))
	}
	if _, err := c.Retry(t.Context(), "", "a"); !errors.Is(err, client.ErrInvalidTopic) {
		t.Errorf("without a topic: %v", err)
	}
	answer(t, nc, "timers.get.t", func(*nats.Msg) *nats.Msg {
		return &nats.Msg{Data: []byte("payload"), Header: nats.Header{
			"Timer-Topic": {"t"}, "Timer-Id": {"a"}, "Timer-Rev": {"7"}, "Timer-Due": {"2030-01-02T03:04:05.678Z"},
			"Timer-State": {"dead"}, "Timer-Attempt": {"3"}, "Timer-Schedule": {"@in 1h"}, "Timer-Reason": {"too large"}, "X": {"1"},
		}}
	})
	timer, err := c.Get(t.Context(), "t", "a")
	if err != nil || timer.State != client.Dead || timer.Reason != "too large" || timer.Attempts != 3 || len(timer.Header) != 1 {
		t.Errorf("get: %+v, %v", timer, err)
	}
}

func TestConflictCarriesTheState(t *testing.T) {
	nc := timerstest.NATS(t).Connect(t)
	c := newClient(t, nc)
	answer(t, nc, "timers.cancel.t", func(*nats.Msg) *nats.Msg {
		return &nats.Msg{
			Data:   []byte(`{"error":"conflict","message":"too late","state":"firing","rev":5,"stopped":true}`),
			Header: nats.Header{wire.HeaderErrorCode: {"409"}, wire.HeaderError: {"too late"}},
		}
	})
	_, err := c.Cancel(t.Context(), "t", "a")
	var e *client.Error
	if !errors.As(err, &e) || e.State != "firing" || e.Rev != 5 || e.Stopped == nil || !*e.Stopped {
		t.Errorf("got %#v from %v", e, err)
	}
}

// TestForeignReplies: whatever else answers on the subject must not pass for
// a stored timer, nor for one that is not there.
func TestForeignReplies(t *testing.T) {
	for name, tt := range map[string]struct{ reply, says string }{
		"acknowledgement of a stream": {`{"stream":"ORDERS","seq":12}`, `"ORDERS" covers timers.`},
		"refusal of a stream":         {`{"error":{"code":503,"description":"no space"},"stream":"ORDERS","seq":0}`, `"ORDERS" covers timers.`},
		"empty":                       {"", "an empty message"},
		"another JSON":                {`{}`, "no Lapse answered"},
		"no JSON":                     {"pong", "pong"},
		"another timer":               {`{"topic":"t","id":"other","due":"2030-01-02T03:04:05.678Z","rev":1}`, "other"},
		"no due":                      {`{"topic":"t","id":"a","rev":1}`, "rev"},
	} {
		t.Run(name, func(t *testing.T) {
			nc := timerstest.NATS(t).Connect(t)
			c := newClient(t, nc)
			answer(t, nc, "timers.>", body(tt.reply))
			_, setErr := c.Set(t.Context(), "t", nil, client.In(0), client.ID("a"))
			_, cancelErr := c.Cancel(t.Context(), "t", "a")
			_, retryErr := c.Retry(t.Context(), "t", "a")
			_, getErr := c.Get(t.Context(), "t", "a")
			_, listErr := c.ListPage(t.Context(), "t", 0, "")
			_, statusErr := c.Status(t.Context())
			check := func(verb string, err, want error) {
				t.Helper()
				if !errors.Is(err, want) || !strings.Contains(err.Error(), tt.says) {
					t.Errorf("%s: %v, want %v that contains %q", verb, err, want, tt.says)
				}
			}
			check("set", setErr, client.ErrUnconfirmed)
			check("retry", retryErr, client.ErrUnconfirmed)
			if name != "no due" { // a cancel has none
				check("cancel", cancelErr, client.ErrUnconfirmed)
			}
			check("get", getErr, client.ErrUnavailable)
			check("list", listErr, client.ErrUnavailable)
			check("status", statusErr, client.ErrUnavailable)
		})
	}
}

// TestRealStreamInTheWay has a real stream over the request subjects.
func TestRealStreamInTheWay(t *testing.T) {
	nc := timerstest.NATS(t).Connect(t)
	js, err := nc.JetStream()
	if err != nil {
		t.Fatal(err)
	}
	if _, err := js.AddStream(&nats.StreamConfig{Name: "GREEDY", Subjects: []string{"timers.>"}}); err != nil {
		t.Fatal(err)
	}
	_, err = newClient(t, nc).Set(t.Context(), "t", nil, client.In(0))
	if !errors.Is(err, client.ErrUnconfirmed) || !strings.Contains(err.Error(), `stream "GREEDY" covers timers.set.t`) {
		t.Errorf("got %v", err)
	}
}

func TestNobodyThere(t *testing.T) {
	nc := timerstest.NATS(t).Connect(t)
	c := newClient(t, nc, client.Prefix("nobody"))
	_, err := c.Set(t.Context(), "t", nil, client.In(0))
	if !errors.Is(err, client.ErrUnavailable) || !errors.Is(err, nats.ErrNoResponders) || !strings.Contains(err.Error(), "prefix nobody") {
		t.Errorf("got %v", err)
	}
}

func TestNoAnswer(t *testing.T) {
	nc := timerstest.NATS(t).Connect(t)
	c := newClient(t, nc, client.Timeout(30*time.Millisecond))
	asked := answer(t, nc, "timers.>", silence)

	_, err := c.Set(t.Context(), "t", nil, client.In(0)) // no deadline: the client's own
	if !errors.Is(err, client.ErrUnconfirmed) || !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("set: %v", err)
	}
	if _, err = c.Cancel(soon(t, 30*time.Millisecond), "t", "a"); !errors.Is(err, client.ErrUnconfirmed) {
		t.Errorf("cancel: %v", err)
	}
	if _, err = c.Retry(soon(t, 30*time.Millisecond), "t", "a"); !errors.Is(err, client.ErrUnconfirmed) {
		t.Errorf("retry: %v", err)
	}
	if _, err = c.Get(t.Context(), "t", "a"); !errors.Is(err, client.ErrUnavailable) || !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("get: %v", err)
	}
	// Each was sent once, but for the get, which may be repeated.
	for _, want := range []string{"timers.set.t", "timers.cancel.t", "timers.retry.t", "timers.get.t", "timers.get.t"} {
		if m := <-asked; m.Subject != want {
			t.Errorf("asked %s, want %s", m.Subject, want)
		}
	}
	if n := len(asked); n != 0 {
		t.Errorf("%d more requests", n)
	}

	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err = c.Set(ctx, "t", nil, client.In(0)); !errors.Is(err, client.ErrUnavailable) || !errors.Is(err, context.Canceled) {
		t.Errorf("set with a context that ended before: %v", err)
	}
}

func TestNoPermissionIsSaid(t *testing.T) {
	srv := timerstest.NATS(t, func(o *server.Options) {
		o.Users = []*server.User{
			{Username: "lapse", Password: "x"},
			{Username: "reader", Password: "x", Permissions: &server.Permissions{
				Publish: &server.SubjectPermission{Deny: []string{"timers.set.>"}},
			}},
		}
	})
	answer(t, srv.Connect(t, nats.UserInfo("lapse", "x")), "timers.>", silence)
	nc := srv.Connect(t, nats.UserInfo("reader", "x"), nats.ErrorHandler(func(*nats.Conn, *nats.Subscription, error) {}))
	_, err := newClient(t, nc).Set(soon(t, 500*time.Millisecond), "t", nil, client.In(0))
	if !errors.Is(err, client.ErrUnconfirmed) || !strings.Contains(err.Error(), `Permissions Violation for Publish to "timers.set.t"`) {
		t.Errorf("got %v", err)
	}
}

// TestReconnecting: nothing may be left in a buffer that is sent later.
func TestReconnecting(t *testing.T) {
	srv := timerstest.NATS(t)
	nc := srv.Connect(t)
	lost := nc.StatusChanged(nats.RECONNECTING)
	c := newClient(t, nc)
	srv.Stop()
	<-lost
	_, err := c.Set(soon(t, 50*time.Millisecond), "t", nil, client.In(0))
	if !errors.Is(err, client.ErrUnavailable) || !strings.Contains(err.Error(), "nothing was sent") {
		t.Errorf("while NATS is away: %v", err)
	}
	if n, err := nc.Buffered(); err != nil || n != 0 {
		t.Errorf("%d bytes wait to be sent (%v)", n, err)
	}

	done := make(chan error, 1)
	go func() {
		_, err := c.Set(soon(t, 10*time.Second), "t", nil, client.In(0))
		done <- err
	}()
	srv.Start()
	if err := <-done; !errors.Is(err, nats.ErrNoResponders) {
		t.Errorf("once NATS is back: %v, want it sent, to nobody", err)
	}
	nc.Close()
	if _, err := c.Set(t.Context(), "t", nil, client.In(0)); !errors.Is(err, client.ErrUnavailable) || !errors.Is(err, nats.ErrConnectionClosed) {
		t.Errorf("on a closed connection: %v", err)
	}
}

func TestRefusedBeforeSending(t *testing.T) {
	nc := timerstest.NATS(t, func(o *server.Options) { o.MaxPayload = 1024 }).Connect(t)
	asked := answer(t, nc, "timers.>", silence)
	c := newClient(t, nc)
	set := func(topic string, when client.When, payload string, opts ...client.SetOption) error {
		_, err := c.Set(soon(t, 5*time.Second), topic, []byte(payload), when, opts...)
		return err
	}
	in := client.In(0)
	for name, tt := range map[string]struct {
		err, want error
		says      string
	}{
		"empty topic":          {set("", in, ""), client.ErrInvalidTopic, "orders.close"},
		"space in the topic":   {set("a b", in, ""), client.ErrInvalidTopic, `"a b"`},
		"line break in topic":  {set("a\r\nPUB x", in, ""), client.ErrInvalidTopic, `"a\r\nPUB x"`},
		"dot at the start":     {set(".a", in, ""), client.ErrInvalidTopic, "empty token"},
		"two dots":             {set("a..b", in, ""), client.ErrInvalidTopic, "empty token"},
		"topic of 4 kB":        {set(strings.Repeat("t", 4100), in, ""), client.ErrInvalidTopic, "at most 128"}, // NATS would end the connection
		"empty id":             {set("t", in, "", client.ID("")), client.ErrInvalidID, "empty"},
		"line break in the id": {set("t", in, "", client.ID("a\nb")), client.ErrInvalidID, "line break"},
		"space after the id":   {set("t", in, "", client.ID("a ")), client.ErrInvalidID, "space"},
		"schedule of two":      {set("t", client.Schedule("@in 1s\r\nX: 1"), ""), client.ErrInvalidSchedule, "line break"},
		"header of two":        {set("t", in, "", client.Header("X", "1\r\nY: 2")), client.ErrInvalidHeader, "line break"},
		"the id as a header":   {set("t", in, "", client.Header("Timer-Id", "a"), client.ID("b")), client.ErrInvalidHeader, `"Timer-Id" is Lapse's own`},
		"a second schedule":    {set("t", in, "", client.Header("Timer-Schedule", "@in 1h")), client.ErrInvalidHeader, `"Timer-Schedule" is Lapse's own`},
		"header name":          {set("t", in, "", client.Header("X Y", "1")), client.ErrInvalidHeader, `"X Y"`},
		"no header name":       {set("t", in, "", client.Header("", "1")), client.ErrInvalidHeader, `""`},
		"too large":            {set("t", in, strings.Repeat("x", 1024)), client.ErrTooLarge, "1024"},
	} {
		if !errors.Is(tt.err, tt.want) || !strings.Contains(tt.err.Error(), tt.says) {
			t.Errorf("%s: %v, want %v that says %s", name, tt.err, tt.want, tt.says)
		}
		var e *client.Error
		if !errors.As(tt.err, &e) {
			t.Errorf("%s: %T holds no *client.Error", name, tt.err)
		}
	}
	if n := len(asked); n != 0 {
		t.Errorf("%d of them were sent", n)
	}
}

func TestListFollowsTheCursor(t *testing.T) {
	nc := timerstest.NATS(t).Connect(t)
	c := newClient(t, nc)
	pages := map[string]string{
		"":   `{"timers":[{"topic":"t","id":"a","due":"2030-01-02T03:04:05.678Z","rev":1,"state":"scheduled","attempts":0}],"cursor":"c1"}`,
		"c1": `{"timers":[],"cursor":"c2"}`, // empty, and yet not the last
		"c2": `{"timers":null,"cursor":"c3"}`,
		"c3": `{"timers":[{"topic":"t.u","id":"b","due":"2030-01-02T03:04:06Z","rev":2,"state":"dead","attempts":9}],"cursor":""}`,
	}
	asked := answer(t, nc, "timers.list", func(req *nats.Msg) *nats.Msg {
		var r wire.ListRequest
		if err := json.Unmarshal(req.Data, &r); err != nil {
			t.Errorf("asked %q: %v", req.Data, err)
		}
		return &nats.Msg{Data: []byte(pages[r.Cursor])}
	})
	var ids []string
	for item, err := range c.List(t.Context(), "") {
		if err != nil {
			t.Fatal(err)
		}
		ids = append(ids, item.Topic+":"+item.ID)
	}
	if got := strings.Join(ids, " "); got != "t:a t.u:b" || len(asked) != 4 {
		t.Errorf("listed %q in %d pages", got, len(asked))
	}
	for range c.List(t.Context(), "") {
		break
	}
	if len(asked) != 5 {
		t.Errorf("a loop that ended early asked for %d pages in all", len(asked))
	}
}

func TestListEndsWithAnError(t *testing.T) {
	nc := timerstest.NATS(t).Connect(t)
	c := newClient(t, nc)
	answer(t, nc, "timers.list.t", body(`{"timers":[],"cursor":"same"}`))
	var errs []error
	for _, err := range c.List(t.Context(), "t") {
		errs = append(errs, err)
	}
	if len(errs) != 1 || !errors.Is(errs[0], client.ErrUnavailable) {
		t.Errorf("a cursor that does not move: %v", errs)
	}
}

func TestParseFiredNamesTheHeader(t *testing.T) {
	good := nats.Header{
		"Timer-Topic": {"t"}, "Timer-Id": {"a"}, "Timer-Rev": {"3"}, "Timer-Due": {"2030-01-02T03:04:05.678Z"},
		"Timer-Fired": {"2030-01-02T03:04:05.679Z"}, "Timer-Attempt": {"1"},
	}
	if _, err := client.ParseFired(good, nil); err != nil {
		t.Fatal(err)
	}
	for name := range good {
		bad := nats.Header{}
		for k, v := range good {
			if k != name {
				bad[k] = v
			}
		}
		if _, err := client.ParseFired(bad, nil); err == nil || !strings.Contains(err.Error(), name) {
			t.Errorf("without %s: %v", name, err)
		}
	}
}

func TestNewRefuses(t *testing.T) {
	nc := timerstest.NATS(t).Connect(t)
	if _, err := client.New(nil); err == nil {
		t.Error("no connection was accepted")
	}
	if _, err := client.New(nc, client.Prefix("a b")); err == nil || !strings.Contains(err.Error(), `"a b"`) {
		t.Errorf("prefix: %v", err)
	}
	if _, err := client.New(nc, client.Timeout(0)); err == nil {
		t.Error("no timeout at all was accepted")
	}
}

// TestNoRedisInACallersBuild holds the promise of the package comment.
func TestNoRedisInACallersBuild(t *testing.T) {
	out, err := exec.CommandContext(t.Context(), "go", "list", "-deps", ".").CombinedOutput()
	if err != nil {
		t.Fatalf("go list: %v\n%s", err, out)
	}
	seen := false
	for pkg := range strings.Lines(string(out)) {
		pkg = strings.TrimSpace(pkg)
		switch module := "github.com/lapse-timers/lapse/"; {
		case pkg == module+"timers/client", pkg == module+"timers/wire":
			seen = true
		case strings.HasPrefix(pkg, module), strings.Contains(pkg, "go-redis"), strings.Contains(pkg, "nats-server"):
			t.Errorf("the client pulls in %s", pkg)
		}
	}
	if !seen {
		t.Errorf("no package of ours in:\n%s", out)
	}
}

// TestProtocolPageHasTheErrorTable keeps docs/protocol.md, which clients in
// other languages are written from, in step with the one table of errors.
func TestProtocolPageHasTheErrorTable(t *testing.T) {
	page, err := os.ReadFile(filepath.Join("..", "..", "docs", "protocol.md"))
	if err != nil {
		t.Fatal(err)
	}
	for _, w := range wire.Words() {
		if row := fmt.Sprintf("| %d | `%s` |", w.Code(), w); !strings.Contains(string(page), row) {
			t.Errorf("docs/protocol.md has no row %s", row)
		}
	}
	for _, h := range []string{
		wire.HeaderID, wire.HeaderSchedule, wire.HeaderTimeZone, wire.HeaderTopic, wire.HeaderRev, wire.HeaderDue, wire.HeaderFired,
		wire.HeaderAttempt, wire.HeaderSource, wire.HeaderState, wire.HeaderMsgID, wire.HeaderErrorCode, wire.HeaderError,
	} {
		if !strings.Contains(string(page), "`"+h+"`") {
			t.Errorf("docs/protocol.md does not name %s", h)
		}
	}
}
