package client

import (
	"context"
	"runtime/debug"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
)

// Receiver is a [Client.Handle] or [Client.Consume] that runs. It ends with the
// context it was made with, or by Stop, and then cleanly: nothing new is taken,
// what has been taken is finished. Handlers do not see that context end; theirs
// is cancelled when [Grace] is over.
type Receiver struct {
	stop context.CancelFunc
	done chan struct{}
	err  error // written before done is closed
}

// start has run go on until stopping ends, or an error ends it.
func start(ctx context.Context, run func(stopping context.Context) error) *Receiver {
	stopping, stop := context.WithCancel(ctx)
	r := &Receiver{stop: stop, done: make(chan struct{})}
	go func() {
		defer close(r.done)
		defer stop()
		r.err = run(stopping)
	}()
	return r
}

// Stop begins the end and does not wait for it. It may be called again.
func (r *Receiver) Stop() { r.stop() }

// Done is closed when the end has come and no handler runs any more.
func (r *Receiver) Done() <-chan struct{} { return r.done }

// Wait returns when Done is closed: nil after a clean stop, else the reason why
// nothing more is received, such as a closed connection or a durable that was
// deleted.
func (r *Receiver) Wait() error {
	<-r.done
	return r.err
}

// crew runs the handlers of one receiver, so many at a time.
type crew struct {
	receiving
	client *Client
	slots  chan struct{} // holds one for each handler that runs, or is about to
	wg     sync.WaitGroup
	ctx    context.Context // of the handlers
	cancel context.CancelFunc
}

func (c *Client) newCrew(ctx context.Context, s receiving) *crew {
	w := &crew{receiving: s, client: c, slots: make(chan struct{}, s.concurrency)}
	w.ctx, w.cancel = context.WithCancel(context.WithoutCancel(ctx))
	return w
}

// event is a message that was read, and what handles it.
type event struct {
	about  HandlerError // without an outcome
	handle func(context.Context) error
}

// firedEvent and deadEvent read a message for the caller's handler.
func firedEvent(h nats.Header, data []byte, deliveries int, handle func(context.Context, Fired) error) (event, error) {
	f, err := ParseFired(h, data)
	f.Deliveries = deliveries
	return event{
		about:  HandlerError{Topic: f.Topic, ID: f.ID, Rev: f.Rev, MsgID: f.MsgID, Deliveries: deliveries, Header: f.Header, Payload: data},
		handle: func(ctx context.Context) error { return handle(ctx, f) },
	}, err
}

func deadEvent(h nats.Header, data []byte, deliveries int, handle func(context.Context, DeadTimer) error) (event, error) {
	d, err := ParseDead(h, data)
	d.Deliveries = deliveries
	return event{
		about:  HandlerError{Topic: d.Topic, ID: d.ID, Rev: d.Rev, MsgID: d.MsgID, Deliveries: deliveries, Header: d.Header, Payload: data},
		handle: func(ctx context.Context) error { return handle(ctx, d) },
	}, err
}

// run calls the handler in the trace of whoever set the timer. A panic is an
// error like another.
func (w *crew) run(e event) (err error) {
	defer func() {
		if v := recover(); v != nil {
			err = &PanicError{Value: v, Stack: debug.Stack()}
		}
	}()
	return e.handle(w.client.propagator.Extract(w.ctx, carrier(e.about.Header)))
}

// wait returns when no handler runs any more. When the grace is over, it tells
// them so.
func (w *crew) wait() {
	over := time.AfterFunc(w.grace, w.cancel)
	w.wg.Wait()
	over.Stop()
	w.cancel()
}
