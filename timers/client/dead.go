package client

import (
	"time"

	"github.com/nats-io/nats.go"

	"github.com/lapse-timers/lapse/timers/wire"
)

// DeadTimer is the announcement of a timer that Lapse gave up on, as
// [Client.HandleDead] and [Client.ConsumeDead] receive it. The timer itself is
// kept: [Client.Get] reads it, [Client.Retry] brings it back, [Client.Cancel]
// drops it. An announcement can be lost; [Client.List] has every dead timer.
type DeadTimer struct {
	Topic    string
	ID       string
	Rev      int64     // which life of the timer
	Due      time.Time // on Redis's clock
	Attempts int       // how often it was tried
	Reason   string    // why it was given up on
	Omitted  string    // what did not fit: "", "payload" or "payload, headers"; Get has it

	MsgID    string      // the same on every copy of the announcement
	Header   nats.Header // the headers given when it was set
	Payload  []byte
	Received time.Time // on this machine's clock

	Deliveries int // as in [Fired]
}

// ParseDead reads the announcement of a dead timer, as [ParseFired] reads a
// fired event.
func ParseDead(header nats.Header, payload []byte) (DeadTimer, error) {
	h := reader{h: header}
	d := DeadTimer{
		Topic:    h.text(wire.HeaderTopic),
		ID:       h.text(wire.HeaderID),
		Rev:      h.number(wire.HeaderRev),
		Due:      h.time(wire.HeaderDue),
		Attempts: int(h.number(wire.HeaderAttempt)),
		Reason:   h.text(wire.HeaderReason),
		Omitted:  header.Get(wire.HeaderOmitted),
		MsgID:    header.Get(wire.HeaderMsgID),
		Header:   own(header),
		Payload:  payload,
		Received: time.Now(),
	}
	if h.err != nil {
		return DeadTimer{}, h.err
	}
	return d, nil
}
