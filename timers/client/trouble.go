package client

import (
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/lapse-timers/lapse/timers/wire"
)

var (
	// ErrNoStream: no stream covers what [Client.Consume] is to receive.
	ErrNoStream = errors.New("no stream covers the topic")
	// ErrDurable: the durable of that name receives something else, or in
	// another way.
	ErrDurable = errors.New("the durable is another's")
	// ErrGiveUp is for handlers of [Client.Consume] to return, wrapped or bare:
	// the event is not delivered to this durable again, however many tries are left.
	ErrGiveUp = errors.New("the handler gave up")

	// errNoOutcome is said of an event that was delivered as often as it may be,
	// when no handler lived to say what came of it.
	errNoOutcome = errors.New("delivered before, and no handler ended: its process died, or NATS was away")
)

// HandlerError tells [OnError] that a handler failed: it returned an error, or
// panicked. Err matches with [errors.Is] and [errors.As].
type HandlerError struct {
	Topic      string
	ID         string
	Rev        int64
	MsgID      string
	Deliveries int         // how often it was delivered so far; 0 from [Client.Handle]
	Header     nats.Header // the headers given when the timer was set
	Payload    []byte

	Err     error
	RetryIn time.Duration // when it is delivered again, at the earliest
	GivenUp bool          // it is not delivered to this durable again; nor is one of [Client.Handle]
}

// Error names the timer and never holds its payload.
func (e *HandlerError) Error() string {
	then := fmt.Sprintf("again in %v", e.RetryIn)
	if e.GivenUp {
		then = "not again"
	}
	return fmt.Sprintf("handler of %s %+q, delivery %d, %s: %v", wire.Cut(e.Topic), wire.Cut(e.ID), e.Deliveries, then, e.Err)
}

// Unwrap is what the handler said.
func (e *HandlerError) Unwrap() error { return e.Err }

// PanicError is the Err of a [HandlerError] when the handler panicked.
type PanicError struct {
	Value any
	Stack []byte // of the handler's goroutine
}

// Error has the value; the stack is in Stack.
func (e *PanicError) Error() string { return fmt.Sprintf("panic: %v", e.Value) }

// ForeignError tells [OnError] of a message that is not from Lapse. It was
// skipped; a durable does not get it again.
type ForeignError struct {
	Msg *nats.Msg
	Err error // what it lacks
}

// Error names the subject and what is missing.
func (e *ForeignError) Error() string {
	return fmt.Sprintf("skipped a message on %s that is not from Lapse: %v", wire.Cut(e.Msg.Subject), e.Err)
}

// Unwrap is what it lacks.
func (e *ForeignError) Unwrap() error { return e.Err }

// MissedError tells [OnError] that events of a [Client.Handle] were dropped,
// because they came faster than they were handled. It matches
// [nats.ErrSlowConsumer].
type MissedError struct {
	Subject string
	Events  int // dropped since it began; this grows
}

// Error says how many and what helps.
func (e *MissedError) Error() string {
	return fmt.Sprintf("%d events of %s were dropped so far, since the handlers are too slow: raise Concurrency or Buffer, share the work with Queue, or use Consume",
		e.Events, e.Subject)
}

// Unwrap is the error of NATS that it stands for.
func (e *MissedError) Unwrap() error { return nats.ErrSlowConsumer }

// logError is what [OnError] replaces.
func logError(err error) {
	attrs := []any{"error", err}
	var p *PanicError
	if errors.As(err, &p) {
		attrs = append(attrs, "stack", string(p.Stack))
	}
	slog.Warn("receiving timers", attrs...)
}
