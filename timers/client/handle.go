package client

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/lapse-timers/lapse/timers/wire"
)

// Handle calls handle for every timer of the topic that fires from now on:
// "orders.close", "orders.>" for all topics below orders, "" for all topics.
// When it returns nil, the NATS server knows of it, so a timer that is set then
// is not missed. Events go on coming until ctx ends, or [Receiver.Stop].
//
// It is live delivery on core NATS: what fires while nobody listens, or while
// the connection is lost, is not seen. [Client.Consume] sees every event.
//
// The context of a handler carries the trace of whoever set the timer. A panic
// is caught and reported to [OnError].
func (c *Client) Handle(ctx context.Context, topic string, handle func(context.Context, Fired), opts ...HandleOption) (*Receiver, error) {
	if handle == nil {
		return nil, errNoHandler
	}
	return c.handle(ctx, topic, c.prefix.Fired, opts, func(h nats.Header, data []byte) (event, error) {
		return firedEvent(h, data, 0, func(ctx context.Context, f Fired) error { handle(ctx, f); return nil })
	})
}

// HandleDead is [Client.Handle] for the announcements of timers that Lapse gave
// up on.
func (c *Client) HandleDead(ctx context.Context, topic string, handle func(context.Context, DeadTimer), opts ...HandleOption) (*Receiver, error) {
	if handle == nil {
		return nil, errNoHandler
	}
	return c.handle(ctx, topic, c.prefix.Dead, opts, func(h nats.Header, data []byte) (event, error) {
		return deadEvent(h, data, 0, func(ctx context.Context, d DeadTimer) error { handle(ctx, d); return nil })
	})
}

var errNoHandler = errors.New("lapse client: no handler was given")

// pattern is the subject of a topic that may be a wildcard, or empty for all.
func pattern(topic string, verb func(string) string) (string, error) {
	if topic == "" {
		topic = ">"
	}
	if err := checkTopic(topic); err != nil {
		return "", err
	}
	return verb(topic), nil
}

func (c *Client) handle(ctx context.Context, topic string, verb func(string) string, opts []HandleOption,
	read func(nats.Header, []byte) (event, error)) (*Receiver, error) {
	subject, err := pattern(topic, verb)
	if err != nil {
		return nil, err
	}
	s := newReceiving()
	for _, opt := range opts {
		opt.forHandle(&s)
	}
	if err := errors.Join(s.badOptions...); err != nil {
		return nil, fmt.Errorf("lapse client: %w", err)
	}
	within, cancel := c.bounded(ctx)
	defer cancel()
	if err := c.connected(within); err != nil {
		return nil, fmt.Errorf("subscribe to %s: %w", subject, err)
	}
	w := c.newCrew(ctx, s)
	before := c.nc.LastError()
	sub, err := c.nc.QueueSubscribe(subject, s.queue, func(m *nats.Msg) { w.take(m, read) })
	if err != nil {
		return nil, fail(err, wire.Unavailable, "subscribe to %s: %v", subject, err)
	}
	closed := make(chan struct{})
	sub.SetClosedHandler(func(string) { close(closed) })
	if err := c.subscribed(within, sub, before, s.buffer); err != nil {
		_ = sub.Unsubscribe() // the error at hand says more than one of this
		return nil, err
	}
	slow := sub.StatusChanged(nats.SubscriptionSlowConsumer)
	return start(ctx, func(stopping context.Context) error { return w.serve(stopping, sub, closed, slow) }), nil
}

// subscribed returns when the server has the subscription, or has refused it,
// which it says beside it.
func (c *Client) subscribed(ctx context.Context, sub *nats.Subscription, before error, buffer int) error {
	if buffer > 0 {
		if err := sub.SetPendingLimits(buffer, -1); err != nil {
			return fail(err, wire.Unavailable, "subscribe to %s: %v", sub.Subject, err)
		}
	}
	if err := c.nc.FlushWithContext(ctx); err != nil {
		return fail(err, wire.Unavailable, "subscribe to %s: %v", sub.Subject, err)
	}
	if err := c.nc.LastError(); err != before && errors.Is(err, nats.ErrPermissionViolation) && c.violation(sub.Subject) != "" { //nolint:errorlint // the very one
		return fail(err, wire.Unavailable, "%v; ask for the permission to subscribe to %s", err, sub.Subject)
	}
	return nil
}

// take hands a message to a handler once one is free. NATS keeps what comes
// meanwhile.
func (w *crew) take(m *nats.Msg, read func(nats.Header, []byte) (event, error)) {
	e, err := read(m.Header, m.Data)
	if err != nil {
		w.onError(&ForeignError{Msg: m, Err: err})
		return
	}
	select {
	case w.slots <- struct{}{}:
	case <-w.ctx.Done():
	}
	if w.ctx.Err() != nil {
		return // stopped, and the grace is over
	}
	w.wg.Add(1)
	go func() {
		defer w.wg.Done()
		defer func() { <-w.slots }()
		if err := w.run(e); err != nil {
			e.about.Err, e.about.GivenUp = err, true
			w.onError(&e.about)
		}
	}()
}

// serve returns when the subscription has ended and its handlers too.
func (w *crew) serve(stopping context.Context, sub *nats.Subscription, closed <-chan struct{}, slow <-chan nats.SubStatus) error {
	for {
		select {
		case _, ok := <-slow:
			if !ok {
				slow = nil
				continue
			}
			if n, err := sub.Dropped(); err == nil {
				w.onError(&MissedError{Subject: sub.Subject, Events: n})
			}
		case <-closed:
			w.wait()
			return fail(nats.ErrConnectionClosed, wire.Unavailable, "the subscription to %s ended with its connection", sub.Subject)
		case <-stopping.Done():
			over := time.AfterFunc(w.grace, w.cancel)
			defer over.Stop()
			w.drain(sub, closed)
			w.wait()
			return nil
		}
	}
}

// drain ends the subscription once all that had come is with a handler, or the
// grace is over: take leaves the rest alone then.
func (w *crew) drain(sub *nats.Subscription, closed <-chan struct{}) {
	if !w.client.nc.IsConnected() {
		// A drain would wait for an answer from the server. Nothing more comes.
		for n := 1; n > 0 && w.ctx.Err() == nil; {
			var err error
			if n, _, err = sub.Pending(); err != nil {
				break
			}
			select {
			case <-time.After(5 * time.Millisecond):
			case <-w.ctx.Done():
			}
		}
		_ = sub.Unsubscribe() // fails when it has ended
		<-closed
		return
	}
	_ = sub.Drain() // fails when it has ended
	<-closed
}
