package timers

import (
	"fmt"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"
)

// Ref names a timer: an id is unique within its topic.
type Ref struct {
	Topic string
	ID    string
}

// Member is the name of the timer in the sorted sets of its partition. The
// topic has no colon, so the first one ends it and the id may hold any.
func (r Ref) Member() string { return r.Topic + ":" + r.ID }

func (r Ref) String() string { return r.Member() }

// ParseMember reads a [Ref.Member]; ok is false for a name that is not one,
// such as a foreign key's.
func ParseMember(s string) (r Ref, ok bool) {
	topic, id, found := strings.Cut(s, ":")
	if !found || CheckTopic(topic) != nil || CheckID(id) != nil {
		return Ref{}, false
	}
	return Ref{Topic: topic, ID: id}, true
}

// State says where in its life a timer is.
type State string

// The states of a timer.
const (
	// Scheduled: never handed to NATS in this life, or every attempt was
	// definitely refused.
	Scheduled State = "scheduled"
	// Firing: claimed, or an attempt ended without a known outcome.
	Firing State = "firing"
	// Dead: given up on, kept with its payload.
	Dead State = "dead"
)

// Timer is one life of a timer as it stands in Redis.
type Timer struct {
	Ref
	Rev      int64     // which life; grows with every set
	Due      time.Time // whole milliseconds, on Redis's clock
	State    State
	Attempts int       // claims of this life so far
	Fired    time.Time // the last claim, on Redis's clock; zero before the first
	Reason   string    // why it was given up on, while it is Dead
	Schedule string    // as it was asked for
	Headers  []byte    // opaque here; the service's encoding of the client's headers
	Payload  []byte
}

// Limits of the vocabulary (docs/protocol.md, "Names").
const (
	MaxTopic       = 128 // bytes
	MaxTopicTokens = 16
	MaxID          = 256 // bytes
)

// Invalid is a value that a rule refuses. Nothing was stored.
type Invalid struct {
	What  string // topic, id or schedule
	Value string // as it came; quote it, and cut it
	Rule  string // what would be right
}

func (e *Invalid) Error() string {
	v := e.Value
	if len(v) > 80 {
		cut := 80
		for cut > 80-utf8.UTFMax && !utf8.RuneStart(v[cut]) { // half a rune would be quoted as garbage
			cut--
		}
		v = v[:cut] + "..."
	}
	return fmt.Sprintf("%s %+q: %s", e.What, v, e.Rule)
}

// CheckTopic says whether s is a topic: 1 to [MaxTopicTokens] tokens of
// [A-Za-z0-9_-]+ joined by dots, at most [MaxTopic] bytes. The error is an
// [*Invalid].
func CheckTopic(s string) error {
	bad := func(rule string) error { return &Invalid{What: "topic", Value: s, Rule: rule} }
	switch {
	case s == "":
		return bad("it is missing; put it behind the verb, as in set.orders.close")
	case len(s) > MaxTopic:
		return bad(fmt.Sprintf("it has %d bytes, at most %d are allowed", len(s), MaxTopic))
	case !isTopic(s):
		return bad("want tokens of A-Z a-z 0-9 _ - joined by single dots")
	case strings.Count(s, ".") >= MaxTopicTokens:
		return bad(fmt.Sprintf("it has %d tokens, at most %d are allowed", strings.Count(s, ".")+1, MaxTopicTokens))
	}
	return nil
}

// isTopic matches ^[A-Za-z0-9_-]+(\.[A-Za-z0-9_-]+)*$ by hand: it runs for every request and every event.
func isTopic(s string) bool {
	start := true // of a token
	for i := range len(s) {
		c := s[i]
		switch {
		case c >= 'a' && c <= 'z', c >= 'A' && c <= 'Z', c >= '0' && c <= '9', c == '_', c == '-':
			start = false
		case c == '.' && !start:
			start = true
		default:
			return false
		}
	}
	return !start
}

// CheckID says whether s is an id: 1 to [MaxID] bytes of valid UTF-8, no
// control characters, no leading or trailing space. The error is an
// [*Invalid].
func CheckID(s string) error {
	bad := func(rule string) error { return &Invalid{What: "id", Value: s, Rule: rule} }
	switch {
	case s == "":
		return bad(fmt.Sprintf("it is empty, want 1 to %d bytes", MaxID))
	case len(s) > MaxID:
		return bad(fmt.Sprintf("it has %d bytes, at most %d are allowed", len(s), MaxID))
	case !utf8.ValidString(s):
		return bad("it is not valid UTF-8")
	case strings.ContainsFunc(s, unicode.IsControl):
		return bad("it contains a control character")
	case strings.TrimFunc(s, unicode.IsSpace) != s:
		return bad("it begins or ends with a space")
	}
	return nil
}
