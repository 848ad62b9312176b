package client_test

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"

	"github.com/lapse-timers/lapse/timers/client"
	"github.com/lapse-timers/lapse/timers/timerstest"
)

// patient is how long a test waits for what must come.
const patient = 30 * time.Second

// next is what comes on the channel.
func next[T any](t *testing.T, from <-chan T, what string) T {
	t.Helper()
	select {
	case v := <-from:
		return v
	case <-time.After(patient):
		t.Fatalf("not within %v: %s", patient, what)
		panic("unreachable")
	}
}

func ended(t *testing.T, r *client.Receiver) error {
	t.Helper()
	next(t, r.Done(), "the end of the receiver")
	return r.Wait()
}

// firedMsg is a fired event as Lapse publishes it.
func firedMsg(topic, id string) *nats.Msg {
	m := nats.NewMsg("timers.fired." + topic)
	m.Data = []byte("\x00\xff")
	m.Header = nats.Header{
		"Timer-Topic": {topic}, "Timer-Id": {id}, "Timer-Rev": {"3"}, "Timer-Due": {"2030-01-02T03:04:05.678Z"},
		"Timer-Fired": {"2030-01-02T03:04:05.679Z"}, "Timer-Attempt": {"1"}, "Timer-Source": {"event"}, "Nats-Msg-Id": {topic + "-" + id}, "X": {"1", "2"},
	}
	return m
}

func publish(t *testing.T, nc *nats.Conn, msgs ...*nats.Msg) {
	t.Helper()
	for _, m := range msgs {
		if err := nc.PublishMsg(m); err != nil {
			t.Fatal(err)
		}
	}
	if err := nc.Flush(); err != nil {
		t.Fatal(err)
	}
}

func TestHandle(t *testing.T) {
	t.Parallel()
	nc := timerstest.NATS(t).Connect(t)
	c := newClient(t, nc)
	all, below, grouped, troubles := make(chan client.Fired, 8), make(chan client.Fired, 8), make(chan client.Fired, 8), make(chan error, 8)
	into := func(events chan client.Fired) func(context.Context, client.Fired) {
		return func(_ context.Context, f client.Fired) { events <- f }
	}
	for topic, events := range map[string]chan client.Fired{"": all, "orders.>": below} {
		if _, err := c.Handle(t.Context(), topic, into(events), client.OnError(func(err error) { troubles <- err })); err != nil {
			t.Fatal(err)
		}
	}
	for range 2 {
		if _, err := c.Handle(t.Context(), "orders.close", into(grouped), client.Queue("g")); err != nil {
			t.Fatal(err)
		}
	}
	publish(t, nc, &nats.Msg{Subject: "timers.fired.billing", Data: []byte("forged")}, firedMsg("orders.close", "42"))
	for name, events := range map[string]chan client.Fired{"all": all, "below": below, "grouped": grouped} {
		f := next(t, events, name)
		if f.Topic != "orders.close" || f.ID != "42" || f.Rev != 3 || f.Attempt != 1 || f.Source != "event" || f.MsgID != "orders.close-42" ||
			string(f.Payload) != "\x00\xff" || len(f.Header) != 1 || len(f.Header.Values("X")) != 2 || f.Fired.Sub(f.Due) != time.Millisecond {
			t.Errorf("%s: got %+v", name, f)
		}
		if f.Lag() != f.Received.Sub(f.Due) || time.Since(f.Received) > time.Minute || f.Deliveries != 0 {
			t.Errorf("%s: received %v, lag %v", name, f.Received, f.Lag())
		}
	}
	var foreign *client.ForeignError
	if err := next(t, troubles, "the forged message"); !errors.As(err, &foreign) || string(foreign.Msg.Data) != "forged" {
		t.Errorf("forged: %v", err)
	}
	if n := len(all) + len(below) + len(grouped) + len(troubles); n != 0 {
		t.Errorf("%d events too many", n)
	}
	if _, err := c.Handle(t.Context(), "a b", into(all)); !errors.Is(err, client.ErrInvalidTopic) {
		t.Errorf("white space: %v", err)
	}
	if _, err := c.Handle(t.Context(), "t", nil); err == nil {
		t.Error("a subscription without a handler was made")
	}
	if _, err := c.Handle(t.Context(), "t", into(all), client.Concurrency(0), client.Grace(-1), client.Buffer(0), client.OnError(nil)); err == nil {
		t.Error("options that make no sense were taken")
	}
}

func TestHandleDead(t *testing.T) {
	t.Parallel()
	nc := timerstest.NATS(t).Connect(t)
	c := newClient(t, nc)
	dead := make(chan client.DeadTimer, 1)
	if _, err := c.HandleDead(t.Context(), "orders.>", func(_ context.Context, d client.DeadTimer) { dead <- d }); err != nil {
		t.Fatal(err)
	}
	m := firedMsg("orders.close", "42")
	m.Subject = "timers.dead.orders.close"
	m.Header.Set("Timer-Reason", "too large")
	m.Header.Set("Timer-Attempt", "7")
	m.Header.Set("Timer-Omitted", "payload")
	publish(t, nc, m)
	d := next(t, dead, "the announcement")
	if d.Topic != "orders.close" || d.ID != "42" || d.Rev != 3 || d.Attempts != 7 || d.Reason != "too large" || d.Omitted != "payload" || d.MsgID != "orders.close-42" {
		t.Errorf("got %+v", d)
	}
}

// TestHandleSurvivesItsHandler: a panic is told, and the next event comes.
func TestHandleSurvivesItsHandler(t *testing.T) {
	t.Parallel()
	nc := timerstest.NATS(t).Connect(t)
	seen, troubles := make(chan string, 8), make(chan error, 8)
	_, err := newClient(t, nc).Handle(t.Context(), "t", func(_ context.Context, f client.Fired) {
		if f.ID == "bad" {
			panic("boom")
		}
		seen <- f.ID
	}, client.OnError(func(err error) { troubles <- err }))
	if err != nil {
		t.Fatal(err)
	}
	publish(t, nc, firedMsg("t", "bad"), firedMsg("t", "good"))
	if id := next(t, seen, "the event after the panic"); id != "good" {
		t.Errorf("got %s", id)
	}
	var failed *client.HandlerError
	var panicked *client.PanicError
	if err := next(t, troubles, "the panic"); !errors.As(err, &failed) || failed.ID != "bad" || !errors.As(err, &panicked) || panicked.Value != "boom" || len(panicked.Stack) == 0 {
		t.Errorf("got %v", err)
	}
}

// TestHandleStopsCleanly: what had come is handled, with a context that goes on.
func TestHandleStopsCleanly(t *testing.T) {
	t.Parallel()
	srv := timerstest.NATS(t)
	for _, connected := range []bool{true, false} {
		nc, sender := srv.Connect(t), srv.Connect(t)
		ctx, cancel := context.WithCancel(t.Context())
		begun, goOn := make(chan struct{}, 64), make(chan struct{})
		var handled, cut atomic.Int32
		live, err := newClient(t, nc).Handle(ctx, "t", func(ctx context.Context, _ client.Fired) {
			begun <- struct{}{}
			<-goOn
			if ctx.Err() != nil {
				cut.Add(1)
			}
			handled.Add(1)
		}, client.Concurrency(2), client.Grace(patient))
		if err != nil {
			t.Fatal(err)
		}
		for i := range 20 {
			publish(t, sender, firedMsg("t", fmt.Sprint(i)))
		}
		next(t, begun, "the first")
		if err := nc.Flush(); err != nil { // all have come
			t.Fatal(err)
		}
		if !connected {
			lost := nc.StatusChanged(nats.RECONNECTING)
			srv.Stop()
			next(t, lost, "the loss of the connection")
		}
		cancel()
		select {
		case <-live.Done():
			t.Error("it ended before its handlers")
		default:
		}
		close(goOn)
		if err := ended(t, live); err != nil || handled.Load() != 20 || cut.Load() != 0 {
			t.Errorf("connected %v: %d handled, %d of them cut, %v", connected, handled.Load(), cut.Load(), err)
		}
	}
}

// TestHandleGrace: a handler that does not end is told to.
func TestHandleGrace(t *testing.T) {
	t.Parallel()
	nc := timerstest.NATS(t).Connect(t)
	begun := make(chan struct{}, 8)
	live, err := newClient(t, nc).Handle(t.Context(), "t", func(ctx context.Context, _ client.Fired) {
		begun <- struct{}{}
		<-ctx.Done()
	}, client.Grace(10*time.Millisecond))
	if err != nil {
		t.Fatal(err)
	}
	publish(t, nc, firedMsg("t", "1"), firedMsg("t", "2"), firedMsg("t", "3"))
	next(t, begun, "the first")
	live.Stop()
	if err := ended(t, live); err != nil || len(begun) != 0 {
		t.Errorf("%d begun after the grace, %v", len(begun), err)
	}
}

func TestHandleTellsWhatItMissed(t *testing.T) {
	t.Parallel()
	nc := timerstest.NATS(t).Connect(t, nats.ErrorHandler(func(*nats.Conn, *nats.Subscription, error) {}))
	goOn, troubles := make(chan struct{}), make(chan error, 8)
	_, err := newClient(t, nc).Handle(t.Context(), "t", func(context.Context, client.Fired) { <-goOn },
		client.Buffer(1), client.OnError(func(err error) { troubles <- err }))
	if err != nil {
		t.Fatal(err)
	}
	defer close(goOn)
	for i := range 10 {
		publish(t, nc, firedMsg("t", fmt.Sprint(i)))
	}
	var missed *client.MissedError
	if err := next(t, troubles, "what was missed"); !errors.As(err, &missed) || missed.Events < 1 || !errors.Is(err, nats.ErrSlowConsumer) {
		t.Errorf("got %v", err)
	}
}

func TestHandleEndsWithItsConnection(t *testing.T) {
	t.Parallel()
	nc := timerstest.NATS(t).Connect(t)
	live, err := newClient(t, nc).Handle(t.Context(), "t", func(context.Context, client.Fired) {})
	if err != nil {
		t.Fatal(err)
	}
	nc.Close()
	if err := ended(t, live); !errors.Is(err, nats.ErrConnectionClosed) {
		t.Errorf("got %v", err)
	}
}

func TestHandleWithoutPermission(t *testing.T) {
	t.Parallel()
	srv := timerstest.NATS(t, func(o *server.Options) {
		o.Users = []*server.User{{Username: "u", Password: "p", Permissions: &server.Permissions{
			Subscribe: &server.SubjectPermission{Deny: []string{"timers.fired.secret"}},
		}}}
	})
	nc := srv.Connect(t, nats.UserInfo("u", "p"), nats.ErrorHandler(func(*nats.Conn, *nats.Subscription, error) {}))
	c := newClient(t, nc)
	ignore := func(context.Context, client.Fired) {}
	if _, err := c.Handle(t.Context(), "secret", ignore); !errors.Is(err, nats.ErrPermissionViolation) || !errors.Is(err, client.ErrUnavailable) {
		t.Errorf("got %v", err)
	}
	if _, err := c.Handle(t.Context(), "open", ignore); err != nil {
		t.Errorf("after it: %v", err)
	}
}
