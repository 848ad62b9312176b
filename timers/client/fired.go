package client

import (
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

	// Deliveries is how often the durable of a [Client.Consume] has delivered
	// the event, this time included. 0 from [Client.Handle], where there is
	// one delivery only.
	Deliveries int
}

// Lag is how long after its due time the event was received. It compares two
// clocks, this machine's and Redis's, and may be negative when they differ.
func (f Fired) Lag() time.Duration { return f.Received.Sub(f.Due) }

// ParseFired reads a fired event, such as one that a JetStream consumer of the
// caller's own received. Received is set to now. The error names the first
// header that is missing or malformed: something else than Lapse published
// there.
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
