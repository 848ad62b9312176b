package client

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/lapse-timers/lapse/timers/wire"
)

// When says when a timer fires, in the grammar of the Timer-Schedule header.
// Make one with [In], [At] or [Schedule].
type When struct{ schedule string }

// In fires after d, counted on Redis's clock from the moment the set arrives.
// 0 means now; a negative d is refused by the service.
func In(d time.Duration) When { return When{"@in " + d.String()} }

// At fires at t, rounded up to a whole millisecond. A time in the past means
// now.
func At(t time.Time) When { return When{"@at " + t.UTC().Format(time.RFC3339Nano)} }

// Schedule fires as the raw schedule says, such as "@in 30m" or
// "@at 2030-01-02T03:04:05Z". The service refuses what it does not understand.
func Schedule(raw string) When { return When{raw} }

// String is the value of the Timer-Schedule header.
func (w When) String() string { return w.schedule }

// State says where in its life a timer is.
type State string

// The states of a timer.
const (
	Scheduled State = wire.StateScheduled // not handed to NATS yet
	Firing    State = wire.StateFiring    // being delivered, or an attempt ended without a known outcome
	Dead      State = wire.StateDead      // given up on; kept with its payload
)

// Result is the answer to a [Client.Set].
type Result struct {
	Topic string
	ID    string    // as given, or as Lapse made it
	Due   time.Time // on Redis's clock, whole milliseconds
	Rev   int64     // names this life of the timer; grows with every set

	Replaced bool  // there was a timer of that id
	Was      State // its state; when Firing, its payload may still arrive
}

// Timer is a timer as it stands.
type Timer struct {
	Topic    string
	ID       string
	Rev      int64
	Due      time.Time // on Redis's clock
	State    State
	Attempts int       // deliveries tried in this life so far
	Fired    time.Time // when the last of them began; zero before the first
	Reason   string    // why it was given up on, while it is Dead
	Schedule string    // as it was asked for
	Header   nats.Header
	Payload  []byte
}

// SetOption adds to a [Client.Set].
type SetOption func(*nats.Msg) error

// ID names the timer, uniquely within its topic: 1 to 256 bytes of UTF-8, no
// control characters, no space at either end. A set of an id that exists
// replaces it in one step. Without this option Lapse makes an id.
func ID(id string) SetOption {
	return func(m *nats.Msg) error {
		if err := checkID(id); err != nil {
			return err
		}
		m.Header[wire.HeaderID] = []string{id}
		return nil
	}
}

// Header adds values to a header that the fired event will carry. Names are
// case-sensitive; Timer-*, Nats-*, Status and Description are refused by the
// service. NATS trims blanks at the ends of a value, and a line break is
// refused here, since it would arrive as a space; so are the two headers that
// the service does take, Timer-Id and Timer-Schedule, of which [Client.Set]
// makes its own.
func Header(name string, values ...string) SetOption {
	return func(m *nats.Msg) error {
		if name == wire.HeaderID || name == wire.HeaderSchedule {
			return fail(nats.ErrBadHeaderMsg, wire.InvalidHeader, "header %+q is Lapse's own: give the id and the schedule as such, not as headers", name)
		}
		for _, v := range values {
			if strings.ContainsAny(v, "\r\n") {
				return fail(nats.ErrBadHeaderMsg, wire.InvalidHeader, "header %+q: its value %+q contains a line break", wire.Cut(name), wire.Cut(v))
			}
		}
		m.Header[name] = append(m.Header[name], values...)
		return nil
	}
}

// Set schedules a timer of the topic that delivers payload. When it returns
// nil, the timer is stored and will be delivered at or after Result.Due, at
// least once. The trace of ctx goes with it and continues in the handlers of
// [Client.Handle] and [Client.Consume]. Errors match the sentinels of this package; it is never sent
// twice.
func (c *Client) Set(ctx context.Context, topic string, payload []byte, when When, opts ...SetOption) (Result, error) {
	if err := checkTopic(topic); err != nil {
		return Result{}, err
	}
	if strings.ContainsAny(when.schedule, "\r\n") {
		return Result{}, fail(nats.ErrBadHeaderMsg, wire.InvalidSchedule, "schedule %+q: it contains a line break", wire.Cut(when.schedule))
	}
	m := nats.NewMsg(c.prefix.Set(topic))
	m.Data = payload
	m.Header[wire.HeaderSchedule] = []string{when.schedule}
	for _, opt := range opts {
		if err := opt(m); err != nil {
			return Result{}, err
		}
	}
	if err := c.inject(ctx, m.Header); err != nil {
		return Result{}, err
	}
	id := m.Header.Get(wire.HeaderID)
	reply, err := c.write(ctx, m)
	if err != nil {
		return Result{}, fmt.Errorf("set %s: %w", wire.Cut(topic), err)
	}
	var r wire.SetReply
	due, err := decode(reply.Data, &r, func() (time.Time, error) { return wire.ParseTime(r.Due) })
	if err != nil || r.Topic != topic || r.ID == "" || (id != "" && r.ID != id) {
		return Result{}, fmt.Errorf("set %s: %w", wire.Cut(topic), foreign(m.Subject, reply, true))
	}
	return Result{Topic: r.Topic, ID: r.ID, Due: due, Rev: r.Rev, Replaced: r.Replaced, Was: State(r.Was)}, nil
}

// Cancel ends the timer and returns the rev of the life that it ended: that
// life is never delivered. A dead one is dropped. [ErrNotFound] when there is
// none; [ErrConflict] when it is, or may be, or (State dead in the [Error]) may
// have been delivered, with Stopped true when no further attempt will be made.
func (c *Client) Cancel(ctx context.Context, topic, id string) (rev int64, err error) {
	if err := checkTopic(topic); err != nil {
		return 0, err
	}
	m := nats.NewMsg(c.prefix.Cancel(topic))
	m.Data = []byte(id)
	reply, err := c.write(ctx, m)
	if err != nil {
		return 0, fmt.Errorf("cancel %s: %w", wire.Cut(topic), err)
	}
	var r wire.CancelReply
	if json.Unmarshal(reply.Data, &r) != nil || r.Topic != topic || r.ID != id {
		return 0, fmt.Errorf("cancel %s: %w", wire.Cut(topic), foreign(m.Subject, reply, true))
	}
	return r.Rev, nil
}

// Retried is the answer to a [Client.Retry].
type Retried struct {
	Topic string
	ID    string
	Due   time.Time // as it was set, on Redis's clock: a retry does not change it
	Rev   int64     // as before: it is the same life
}

// Retry brings a dead timer back: the same life is due now, and its attempts
// are counted anew. [ErrNotFound] when there is none; [ErrConflict] when it is
// not dead, with its State and Rev in the [Error]. Like a set it is never sent
// twice.
func (c *Client) Retry(ctx context.Context, topic, id string) (Retried, error) {
	if err := checkTopic(topic); err != nil {
		return Retried{}, err
	}
	m := nats.NewMsg(c.prefix.Retry(topic))
	m.Data = []byte(id)
	reply, err := c.write(ctx, m)
	if err != nil {
		return Retried{}, fmt.Errorf("retry %s: %w", wire.Cut(topic), err)
	}
	var r wire.RetryReply
	due, err := decode(reply.Data, &r, func() (time.Time, error) { return wire.ParseTime(r.Due) })
	if err != nil || r.Topic != topic || r.ID != id {
		return Retried{}, fmt.Errorf("retry %s: %w", wire.Cut(topic), foreign(m.Subject, reply, true))
	}
	return Retried{Topic: r.Topic, ID: r.ID, Due: due, Rev: r.Rev}, nil
}

// Get reads the timer. [ErrNotFound] when there is none: never set, cancelled,
// or delivered.
func (c *Client) Get(ctx context.Context, topic, id string) (Timer, error) {
	if err := checkTopic(topic); err != nil {
		return Timer{}, err
	}
	m := nats.NewMsg(c.prefix.Get(topic))
	m.Data = []byte(id)
	reply, err := c.read(ctx, m)
	if err != nil {
		return Timer{}, fmt.Errorf("get %s: %w", wire.Cut(topic), err)
	}
	h := reader{h: reply.Header}
	t := Timer{
		Topic:    topic,
		ID:       h.text(wire.HeaderID),
		Rev:      h.number(wire.HeaderRev),
		Due:      h.time(wire.HeaderDue),
		State:    State(h.text(wire.HeaderState)),
		Reason:   reply.Header.Get(wire.HeaderReason),
		Schedule: reply.Header.Get(wire.HeaderSchedule),
		Header:   own(reply.Header),
		Payload:  reply.Data,
	}
	if reply.Header.Get(wire.HeaderAttempt) != "" {
		t.Attempts = int(h.number(wire.HeaderAttempt))
	}
	if reply.Header.Get(wire.HeaderFired) != "" {
		t.Fired = h.time(wire.HeaderFired)
	}
	if h.err != nil || t.ID != id {
		return Timer{}, fmt.Errorf("get %s: %w", wire.Cut(topic), foreign(m.Subject, reply, false))
	}
	return t, nil
}

// decode reads a JSON reply and one value out of it.
func decode[T any](data []byte, into any, then func() (T, error)) (v T, err error) {
	if err := json.Unmarshal(data, into); err != nil {
		return v, err
	}
	return then()
}

// reader reads Lapse's own headers and remembers the first that is missing or
// malformed.
type reader struct {
	h   nats.Header
	err error
}

func (r *reader) text(name string) string {
	v := r.h.Get(name)
	if v == "" {
		r.fail(name, errors.New("it is missing"))
	}
	return v
}

func (r *reader) number(name string) int64 {
	n, err := strconv.ParseInt(r.text(name), 10, 64)
	r.fail(name, err)
	return n
}

func (r *reader) time(name string) time.Time {
	t, err := wire.ParseTime(r.text(name))
	r.fail(name, err)
	return t
}

func (r *reader) fail(name string, err error) {
	if r.err == nil && err != nil {
		r.err = fmt.Errorf("header %s: %w", name, err)
	}
}

// own is the part of h that the client who set the timer gave: all that is
// neither Lapse's nor NATS's.
func own(h nats.Header) nats.Header {
	out := nats.Header{}
	for name, values := range h {
		if !strings.HasPrefix(name, "Timer-") && !strings.HasPrefix(name, "Nats-") {
			out[name] = values
		}
	}
	return out
}
