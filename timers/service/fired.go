package service

import (
	"crypto/sha256"
	"encoding/base64"
	"encoding/binary"
	"strconv"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/lapse-timers/lapse/timers"
	"github.com/lapse-timers/lapse/timers/wire"
)

// msgIDLength is the length of a message id: 144 bits in base64.
const msgIDLength = 24

// msgID is the same for every attempt and every path of one fire of one life,
// and another for every other: a stream stores the copies once as long as they
// fall into its duplicate window, and never swallows an id that was set again.
func msgID(prefix wire.Prefix, c *timers.Claim) string { return hashID(prefix, c) }

// deadID is the message id of an announcement: the same for every copy of one
// burial, and another for the next one of the same life.
func deadID(prefix wire.Prefix, c *timers.Claim) string {
	return hashID(prefix, c, "dead", strconv.FormatInt(c.Fired.UnixMilli(), 10))
}

func hashID(prefix wire.Prefix, c *timers.Claim, more ...string) string {
	b := make([]byte, 0, 160)
	for _, s := range [...]string{string(prefix), c.Topic, c.ID} {
		b = binary.AppendUvarint(b, uint64(len(s)))
		b = append(b, s...)
	}
	b = binary.BigEndian.AppendUint64(b, uint64(c.Rev))
	b = binary.BigEndian.AppendUint64(b, uint64(c.Due.UnixMilli()))
	for _, s := range more {
		b = append(b, s...)
	}
	sum := sha256.Sum256(b)
	return base64.RawURLEncoding.EncodeToString(sum[:msgIDLength*6/8])
}

// firedHeaders are Lapse's own headers of a fired event, in the order in which
// firedMessage fills them.
var firedHeaders = [...]string{
	wire.HeaderTopic, wire.HeaderID, wire.HeaderRev, wire.HeaderDue, wire.HeaderFired,
	wire.HeaderAttempt, wire.HeaderSource, wire.HeaderMsgID,
}

// firedMessage is what a claimed timer becomes on NATS. Headers that a foreign
// hand has damaged are left out from the damage on: a timer without them is
// worth more than none.
func firedMessage(prefix wire.Prefix, c *timers.Claim, source timers.Source) *nats.Msg {
	h := make(nats.Header, 12)
	decodeHeaders(c.Headers, h)
	// One allocation for all values; each header gets its own piece.
	values := [...]string{
		c.Topic, c.ID, strconv.FormatInt(c.Rev, 10), wire.FormatTime(c.Due), wire.FormatTime(c.Fired),
		strconv.Itoa(c.Attempt), string(source), msgID(prefix, c),
	}
	own := values[:]
	for i, name := range firedHeaders {
		h[name] = own[i : i+1 : i+1]
	}
	return &nats.Msg{Subject: prefix.Fired(c.Topic), Header: h, Data: c.Payload}
}

// getHeaders are the headers of the reply to a get.
func getHeaders(t *timers.Timer) nats.Header {
	h := make(nats.Header, 12)
	decodeHeaders(t.Headers, h)
	h.Set(wire.HeaderTopic, t.Topic)
	h.Set(wire.HeaderID, t.ID)
	h.Set(wire.HeaderRev, strconv.FormatInt(t.Rev, 10))
	h.Set(wire.HeaderDue, wire.FormatTime(t.Due))
	h.Set(wire.HeaderAttempt, strconv.Itoa(t.Attempts))
	h.Set(wire.HeaderSchedule, t.Schedule)
	h.Set(wire.HeaderState, string(t.State))
	if t.State == timers.Dead {
		h.Set(wire.HeaderReason, t.Reason)
	}
	if !t.Fired.IsZero() {
		h.Set(wire.HeaderFired, wire.FormatTime(t.Fired))
	}
	return h
}

// stale refuses a claim that came too late to be published.
func stale(c *timers.Claim) bool { return !c.PublishBy.IsZero() && time.Now().After(c.PublishBy) }
