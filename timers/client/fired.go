package client

import (
	"errors"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/lapse-timers/lapse/timers/wire"
)

// Fired is a timer that was delivered.
type Fired struct {
	Topic string
	ID    string
	Rev   int64     // which life of the timer
	Due   time.Time // on Redis's clock
	Fired time.Time // on Redis's clock: when the delivery began; never before Due

	// Attempt is 1 for the first delivery of this life. Copies of one fire
	// share their MsgID, whatever their Attempt: remember it to handle each
	// fire once.
	Attempt int
	MsgID   string

	Source   string      // "event" or "sweep": which path of Lapse fired it
	Header   nats.Header // the headers given when it was set
	Payload  []byte
	Received time.Time // on this machine's clock
}

// Lag is how long after its due time the event was received. It compares two
// clocks, this machine's and Redis's, and may be negative when they differ.
func (f Fired) Lag() time.Duration { return f.Received.Sub(f.Due) }

// ParseFired reads a fired event, such as one that a JetStream consumer
// received. Received is set to now. The error names the first header that is
// missing or malformed: something else than Lapse published there.
func ParseFired(header nats.Header, payload []byte) (Fired, error) {
	h := reader{h: header}
	f := Fired{
		Topic:    h.text(wire.HeaderTopic),
		ID:       h.text(wire.HeaderID),
		Rev:      h.number(wire.HeaderRev),
		Due:      h.time(wire.HeaderDue),
		Fired:    h.time(wire.HeaderFired),
		Attempt:  int(h.number(wire.HeaderAttempt)),
		Source:   header.Get(wire.HeaderSource),
		MsgID:    header.Get(wire.HeaderMsgID),
		Header:   own(header),
		Payload:  payload,
		Received: time.Now(),
	}
	if h.err != nil {
		return Fired{}, h.err
	}
	return f, nil
}

// SubscribeOption adjusts a [Client.Subscribe].
type SubscribeOption func(*subscribing)

type subscribing struct {
	queue   string
	foreign func(*nats.Msg, error)
}

// Queue shares the events among all subscribers of the same queue group: each
// event reaches one of them.
func Queue(group string) SubscribeOption {
	return func(s *subscribing) { s.queue = group }
}

// OnForeign is called with messages that are no fired events of Lapse, which
// are skipped otherwise.
func OnForeign(f func(*nats.Msg, error)) SubscribeOption {
	return func(s *subscribing) { s.foreign = f }
}

// Subscribe calls handle for every timer of the topic that fires from now on,
// or of all topics when it is empty; "orders.>" has all topics below orders.
// It is live delivery on core NATS: what fires while nobody listens is not
// kept, so subscribers that must see every event consume the stream instead
// and read it with [ParseFired].
//
// Calls come one at a time, from a goroutine of nats.go that ends with the
// subscription (Unsubscribe, Drain). Events that wait for a slow handle are
// bounded by the subscription's pending limits, beyond which NATS drops them
// and reports a slow consumer. A missing permission is reported to the
// connection's error handler.
func (c *Client) Subscribe(topic string, handle func(Fired), opts ...SubscribeOption) (*nats.Subscription, error) {
	if handle == nil {
		return nil, errors.New("subscribe: no handler was given")
	}
	if topic == "" {
		topic = ">"
	}
	if err := checkTopic(topic); err != nil {
		return nil, err
	}
	s := subscribing{foreign: func(*nats.Msg, error) {}}
	for _, opt := range opts {
		opt(&s)
	}
	return c.nc.QueueSubscribe(c.prefix.Fired(topic), s.queue, func(m *nats.Msg) {
		f, err := ParseFired(m.Header, m.Data)
		if err != nil {
			s.foreign(m, err)
			return
		}
		handle(f)
	})
}
