package service

import (
	"encoding/binary"
	"slices"
	"strings"

	"github.com/nats-io/nats.go"

	"github.com/lapse-timers/lapse/timers/wire"
)

// clientHeaders takes from the headers of a set what is the client's own, and
// refuses what must not be delivered (docs/protocol.md, "Headers on a set").
// NATS headers are case-sensitive, so "timer-id" would be lost silently: the
// reserved names are refused in any other spelling.
func clientHeaders(h nats.Header) (nats.Header, *wire.Error) {
	own := make(nats.Header, len(h))
	for name, values := range h {
		lower := strings.ToLower(name)
		switch {
		case name == wire.HeaderID, name == wire.HeaderSchedule, name == wire.HeaderTimeZone:
			if len(values) > 1 {
				return nil, wire.Errorf(wire.InvalidHeader, "header %s has %d values; want one", name, len(values))
			}
		case name == "Nats-Request-Info", strings.HasPrefix(name, "Nats-Trace-"):
			// Added by NATS servers on the way, not by the client.
		case name == "Status", name == "Description":
			return nil, wire.Errorf(wire.InvalidHeader, "header %s is refused: NATS clients read it as a control message", name)
		case strings.HasPrefix(lower, "timer-"):
			return nil, wire.Errorf(wire.InvalidHeader, "header %+q is refused: of the Timer-* headers a set takes %s, %s and %s, in exactly this spelling", wire.Cut(name), wire.HeaderID, wire.HeaderSchedule, wire.HeaderTimeZone)
		case strings.HasPrefix(lower, "nats-"):
			return nil, wire.Errorf(wire.InvalidHeader, "header %+q is refused: Nats-* headers belong to NATS and would change what it does with the fired event", wire.Cut(name))
		case !validHeaderName(name):
			return nil, wire.Errorf(wire.InvalidHeader, "header name %+q: want A-Z a-z 0-9 and !#$%%&'*+-.^_`|~", wire.Cut(name))
		case hidesMsgID(name) || slices.ContainsFunc(values, hidesMsgID):
			return nil, wire.Errorf(wire.InvalidHeader, "header %+q has %s twice in a row: a NATS server would not find that of the fired event any more; put more than one character between them", wire.Cut(name), wire.HeaderMsgID)
		default:
			for _, v := range values {
				if i := strings.IndexAny(v, "\r\n\x00"); i >= 0 {
					return nil, wire.Errorf(wire.InvalidHeader, "header %s has a line break or NUL in its value %+q", name, wire.Cut(v))
				}
			}
			own[name] = values
		}
	}
	return own, nil
}

// hidesMsgID recognises the bytes behind which nats-server (2.15, getHeaderKeyIndex)
// finds no message id, so that copies would be stored twice: it searches all headers for
// the name, and gives up when it meets it again within a byte of where it was no header.
func hidesMsgID(s string) bool {
	_, rest, found := strings.Cut(s, wire.HeaderMsgID)
	for found {
		s = rest
		if _, rest, found = strings.Cut(s, wire.HeaderMsgID); found && len(s)-len(rest) <= len(wire.HeaderMsgID)+1 {
			return true
		}
	}
	return false
}

// validHeaderName is the rule of nats.go for what it publishes, the one of
// HTTP. It is stricter than what it receives: a timer that was set with another
// name could never be delivered.
func validHeaderName(s string) bool {
	for i := range len(s) {
		switch c := s[i]; {
		case c >= 'a' && c <= 'z', c >= 'A' && c <= 'Z', c >= '0' && c <= '9':
		case strings.IndexByte("!#$%&'*+-.^_`|~", c) >= 0:
		default:
			return false
		}
	}
	return s != ""
}

// headerSize is the length of h on the wire, without the version line and the
// final line break.
func headerSize(h nats.Header) int {
	n := 0
	for name, values := range h {
		for _, v := range values {
			n += len(name) + len(": ") + len(v) + len("\r\n")
		}
	}
	return n
}

// messageSize is the length of a message on the wire, as max_payload counts it.
func messageSize(h nats.Header, payload []byte) int {
	return len("NATS/1.0\r\n\r\n") + headerSize(h) + len(payload)
}

// Most that Lapse adds to a message: the version line, the last line break,
// and its own headers beside topic, id and schedule, at their longest.
const ownHeaders = len("NATS/1.0\r\n\r\n") +
	len("Timer-Topic: \r\nTimer-Id: \r\nTimer-Schedule: \r\n") +
	len("Timer-Rev: 9223372036854775807\r\n") +
	len("Timer-Due: 2006-01-02T15:04:05.000Z\r\n") +
	len("Timer-Fired: 2006-01-02T15:04:05.000Z\r\n") +
	len("Timer-Attempt: 9223372036854775807\r\n") +
	len("Timer-Source: event\r\n") +
	len("Timer-State: scheduled\r\n") +
	len("Nats-Msg-Id: \r\n") + msgIDLength

// maxHeaders is what a stream takes of headers, however large the message may
// be (nats-server: "header size exceeds maximum allowed of 64k"). It holds for
// core delivery too, since the next start may deliver to a stream.
const maxHeaders = 65535

// deliveredSize bounds the size of the fired message and of the get reply.
func deliveredSize(topic, id, schedule string, own nats.Header, payload []byte) int {
	return ownHeaders + len(topic) + len(id) + len(schedule) + headerSize(own) + len(payload)
}

// encodeHeaders writes h for the shadow hash: name and value pairs in order of
// names, each with its length before it, so that any byte may stand in them.
func encodeHeaders(h nats.Header) []byte {
	if len(h) == 0 {
		return nil
	}
	names := make([]string, 0, len(h))
	for name := range h {
		names = append(names, name)
	}
	slices.Sort(names)
	b := make([]byte, 0, headerSize(h))
	for _, name := range names {
		for _, v := range h[name] {
			b = binary.AppendUvarint(b, uint64(len(name)))
			b = append(b, name...)
			b = binary.AppendUvarint(b, uint64(len(v)))
			b = append(b, v...)
		}
	}
	return b
}

// decodeHeaders adds to h what encodeHeaders wrote, and says whether all of it
// could be read.
func decodeHeaders(b []byte, h nats.Header) bool {
	next := func() (string, bool) {
		n, size := binary.Uvarint(b)
		if size <= 0 || uint64(len(b)-size) < n {
			return "", false
		}
		s := string(b[size : size+int(n)])
		b = b[size+int(n):]
		return s, true
	}
	for len(b) > 0 {
		name, ok := next()
		if !ok {
			return false
		}
		value, ok := next()
		if !ok {
			return false
		}
		if !validHeaderName(name) {
			return false // nats.go would refuse the whole message for it
		}
		h[name] = append(h[name], value)
	}
	return true
}
