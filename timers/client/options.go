package client

import (
	"context"
	"fmt"
	"time"
)

// HandleOption adjusts a [Client.Handle].
type HandleOption interface{ forHandle(*receiving) }

// ConsumeOption adjusts a [Client.Consume].
type ConsumeOption interface{ forConsume(*receiving) }

// ReceiveOption adjusts either.
type ReceiveOption interface {
	HandleOption
	ConsumeOption
}

// receiving is how events are received.
type receiving struct {
	concurrency int
	grace       time.Duration
	onError     func(error)

	// On core NATS.
	queue  string
	buffer int

	// From the stream.
	stream     string
	fromNow    bool
	ackWait    time.Duration
	maxTries   int
	retryMin   time.Duration
	retryMax   time.Duration
	onGivenUp  func(context.Context, *HandlerError)
	badOptions []error
}

func newReceiving() receiving {
	return receiving{
		concurrency: 1,
		grace:       10 * time.Second,
		onError:     logError,
		ackWait:     30 * time.Second,
		retryMin:    time.Second,
		retryMax:    5 * time.Minute,
		onGivenUp:   func(context.Context, *HandlerError) {},
	}
}

func (s *receiving) want(ok bool, format string, args ...any) {
	if !ok {
		s.badOptions = append(s.badOptions, fmt.Errorf(format, args...))
	}
}

type (
	handleOption  func(*receiving)
	consumeOption func(*receiving)
	receiveOption func(*receiving)
)

func (f handleOption) forHandle(s *receiving)   { f(s) }
func (f consumeOption) forConsume(s *receiving) { f(s) }
func (f receiveOption) forHandle(s *receiving)  { f(s) }
func (f receiveOption) forConsume(s *receiving) { f(s) }

// Concurrency is how many handlers run at a time, 1 when it is left out: then
// events are handled one by one, in the order they came. Those that must be
// tried again come out of it.
func Concurrency(n int) ReceiveOption {
	return receiveOption(func(s *receiving) {
		s.want(n > 0, "concurrency %d: want 1 or more", n)
		s.concurrency = max(n, 1)
	})
}

// Grace is how long handlers have to finish what they began once the receiver
// is stopped, 10 s when it is left out. Then their context is cancelled, and
// the end waits for them to return.
func Grace(d time.Duration) ReceiveOption {
	return receiveOption(func(s *receiving) {
		s.want(d >= 0, "grace %v: want 0s or more", d)
		s.grace = d
	})
}

// OnError is told of what goes wrong while events are received: a
// *[HandlerError], *[ForeignError] or *[MissedError], or whatever NATS says.
// It is called from several goroutines at a time and should return soon.
// Without it, each is a warning of [log/slog].
func OnError(f func(error)) ReceiveOption {
	return receiveOption(func(s *receiving) {
		s.want(f != nil, "OnError: no function was given")
		s.onError = f
	})
}

// Queue shares the events among all receivers of the same queue group: each
// event reaches one of them.
func Queue(group string) HandleOption {
	return handleOption(func(s *receiving) { s.queue = group })
}

// Buffer is how many events may wait for a handler; more are dropped, and
// [OnError] gets a *[MissedError]. The default is that of nats.go, about half a
// million events or 64 MB.
func Buffer(events int) HandleOption {
	return handleOption(func(s *receiving) {
		s.want(events > 0, "buffer %d: want 1 or more events", events)
		s.buffer = events
	})
}

// MaxTries bounds how often an event is delivered to the durable. One whose
// last try fails is given up on: [OnGivenUp] and [OnError] are told, and it is
// not delivered again. 0, the default, never gives up.
//
// What counts are deliveries, also those that ended without an outcome because
// the process died, so that an event that kills its handler ends too.
func MaxTries(n int) ConsumeOption {
	return consumeOption(func(s *receiving) {
		s.want(n >= 0, "max tries %d: want 0 or more", n)
		s.maxTries = n
	})
}

// OnGivenUp is told of an event that is not delivered to the durable again:
// after the last of [MaxTries], or because the handler returned [ErrGiveUp]. It
// is the last chance to put it elsewhere, and is called before the stream is
// told; so it may be called twice when the process dies in between. Its context
// is that of the handler. Like the handler, it keeps one of [Concurrency] busy.
func OnGivenUp(f func(context.Context, *HandlerError)) ConsumeOption {
	return consumeOption(func(s *receiving) {
		s.want(f != nil, "OnGivenUp: no function was given")
		s.onGivenUp = f
	})
}

// Backoff is how long an event waits after a failed try: first, then twice as
// long after each, at most most. 1 s and 5 minutes when it is left out.
func Backoff(first, most time.Duration) ConsumeOption {
	return consumeOption(func(s *receiving) {
		s.want(0 < first && first <= most, "back-off from %v to %v: want more than 0s, and the first not above the most", first, most)
		s.retryMin, s.retryMax = first, most
	})
}

// AckWait is after what silence of its receiver an event is delivered again, to
// any receiver of the durable: how soon others take over what a killed process
// had. Handlers may take longer, since the receiver speaks up for them. At
// least 100 ms; 30 s when it is left out. It counts when the durable is made;
// one that exists keeps its own.
func AckWait(d time.Duration) ConsumeOption {
	return consumeOption(func(s *receiving) {
		s.want(d >= 100*time.Millisecond, "ack wait %v: want at least 100ms", d)
		s.ackWait = d
	})
}

// FromNow has a durable that is made now begin with what fires from now on. Left
// out, it begins with the oldest event that the stream still holds. One that
// exists goes on where it was.
func FromNow() ConsumeOption {
	return consumeOption(func(s *receiving) { s.fromNow = true })
}

// Stream names the stream, which is looked for otherwise: for a user who may
// not list streams, or a stream that mirrors Lapse's.
func Stream(name string) ConsumeOption {
	return consumeOption(func(s *receiving) {
		s.want(name != "", "stream: the name is empty")
		s.stream = name
	})
}
