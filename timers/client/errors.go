package client

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"

	"github.com/nats-io/nats.go"

	"github.com/lapse-timers/lapse/timers/wire"
)

// Error is what an error of this package holds: a stable word, a message, and
// for a conflict the state of the timer. Take it out with [errors.As].
type Error = wire.Error

// Sentinels to match with [errors.Is]. For all but [ErrUnconfirmed] and
// [ErrConflict], nothing was stored and nothing cancelled.
var (
	ErrInvalidTopic    = &Error{Word: wire.InvalidTopic, Message: "the topic is not allowed"}
	ErrInvalidID       = &Error{Word: wire.InvalidID, Message: "the id is not allowed"}
	ErrInvalidSchedule = &Error{Word: wire.InvalidSchedule, Message: "the schedule is not understood"}
	ErrInvalidHeader   = &Error{Word: wire.InvalidHeader, Message: "a header is not allowed"}
	ErrInvalidRequest  = &Error{Word: wire.InvalidRequest, Message: "the request is not understood"}
	ErrQuota           = &Error{Word: wire.Quota, Message: "a quota is used up"}
	ErrInternal        = &Error{Word: wire.Internal, Message: "the service failed"}

	// ErrNotFound: no such timer; it was never set, or it is over.
	ErrNotFound = wire.ErrNotFound
	// ErrConflict: too late, the timer is or may be being delivered. When
	// [Error] has Stopped true, no further attempt will be made. Of a retry: the
	// timer is not dead.
	ErrConflict = wire.ErrConflict
	// ErrTooLarge: the fired message would exceed what NATS carries.
	ErrTooLarge = wire.ErrTooLarge
	// ErrUnavailable: no Lapse answered, or it cannot take requests now.
	// Trying again later is safe.
	ErrUnavailable = wire.ErrUnavailable
	// ErrUnconfirmed: the request was sent and its outcome is unknown. Get the
	// timer, or set it again with the same id.
	ErrUnconfirmed = wire.ErrUnconfirmed
	// ErrStorageFull: Redis is out of memory.
	ErrStorageFull = wire.ErrStorageFull
)

// failure is an error found on this side of the wire: the word that callers
// match, and the cause, which they may match as well.
type failure struct {
	err   *Error
	cause error
}

func (f *failure) Error() string   { return f.err.Error() }
func (f *failure) Unwrap() []error { return []error{f.err, f.cause} }

func fail(cause error, w wire.Word, format string, args ...any) error {
	return &failure{err: wire.Errorf(w, format, args...), cause: cause}
}

// errForeign is the cause of an error about a reply that no Lapse wrote.
var errForeign = errors.New("the reply is not one of Lapse")

// foreign explains a reply that no Lapse wrote. Something else listens on the
// subject, and Lapse may have received the request too: a write is
// unconfirmed.
func foreign(subject string, m *nats.Msg, write bool) error {
	word := wire.Unavailable
	if write {
		word = wire.Unconfirmed
	}
	if stream, ok := pubAck(m.Data); ok {
		return fail(errForeign, word,
			"stream %+q covers %s and answered in Lapse's place: change the subjects of the stream (nats stream edit) so that none matches it",
			wire.Cut(stream), subject)
	}
	return fail(errForeign, word,
		"something that is no Lapse answered %s with %s: give Lapse a prefix of its own, or stop what else listens there",
		subject, excerpt(m.Data))
}

// pubAck says whether data is the acknowledgement of a JetStream stream, good
// or bad, and of which.
func pubAck(data []byte) (stream string, ok bool) {
	var ack struct {
		Stream string          `json:"stream"`
		Seq    *uint64         `json:"seq"`
		Error  json.RawMessage `json:"error"`
	}
	if json.Unmarshal(data, &ack) != nil || ack.Stream == "" {
		return "", false
	}
	return ack.Stream, ack.Seq != nil || ack.Error != nil
}

func excerpt(data []byte) string {
	if len(data) == 0 {
		return "an empty message"
	}
	return fmt.Sprintf("%+q", wire.Cut(string(data)))
}

// longestTopic is the service's rule, in bytes, kept here too: nats-server closes
// the connection of who sends a subject above its max_control_line, and nats.go
// does not come back from that.
const longestTopic = 128

// checkTopic refuses what cannot travel as the end of a subject, where it
// would reach nobody or another subject. All other rules are the service's.
func checkTopic(topic string) error {
	rule := ""
	switch {
	case topic == "":
		rule = "it is empty; want something like orders.close"
	case len(topic) > longestTopic:
		rule = fmt.Sprintf("it has %d bytes, at most %d are allowed", len(topic), longestTopic)
	case strings.ContainsFunc(topic, func(r rune) bool { return r <= ' ' || r == 0x7f }):
		rule = "it contains white space or a control character; want tokens of A-Z a-z 0-9 _ - joined by single dots"
	case strings.HasPrefix(topic, "."), strings.HasSuffix(topic, "."), strings.Contains(topic, ".."):
		rule = "it has an empty token; want tokens joined by single dots"
	default:
		return nil
	}
	return fail(nats.ErrBadSubject, wire.InvalidTopic, "topic %+q: %s", wire.Cut(topic), rule)
}

// checkID refuses ids that the headers of a NATS message would change on
// their way (nats.go trims values and turns line breaks into spaces), so that
// another timer than the one meant would be set.
func checkID(id string) error {
	rule := ""
	switch {
	case id == "":
		rule = "it is empty; want 1 to 256 bytes, or leave it out to have one made"
	case strings.ContainsAny(id, "\r\n"):
		rule = "it contains a line break"
	case strings.TrimSpace(id) != id:
		rule = "it begins or ends with a space"
	default:
		return nil
	}
	return fail(nats.ErrBadHeaderMsg, wire.InvalidID, "id %+q: %s", wire.Cut(id), rule)
}
