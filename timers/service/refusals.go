package service

import (
	"fmt"
	"time"

	"github.com/lapse-timers/lapse/timers/wire"
)

// refusedFor is how long a refused publish shows in the health. Back-off ends
// at 30 s, so one that goes on shows all the time.
const refusedFor = time.Minute

// refusals remembers that the stream refused lately. Its owner guards it.
type refusals struct {
	at, delivered time.Time // when it last refused, and last stored
	why           string
}

func (r *refusals) add(why string) (first bool) {
	first = time.Since(r.at) > refusedFor
	r.at, r.why = time.Now(), why
	return first
}

func (r *refusals) health() wire.HealthPart {
	switch {
	case r.why == "" || time.Since(r.at) > refusedFor:
		return wire.HealthPart{Status: wire.HealthOK}
	case r.at.Sub(r.delivered) > time.Second:
		return wire.HealthPart{Status: wire.HealthDown, Why: r.why}
	}
	// Some are stored: it refuses one subject, or there is room again.
	return wire.HealthPart{Status: wire.HealthDegraded, Why: r.why}
}

// deniedSubjects remembers which subjects NATS refused lately. Its owner
// guards it.
type deniedSubjects struct {
	at      time.Time
	subject string
	said    map[string]bool // subjects that were logged since the first of them
}

// deniedSaid is how many subjects are logged: each topic is one, and its timers
// are refused again and again.
const deniedSaid = 16

func (d *deniedSubjects) add(subject string) (first bool) {
	if d.said == nil || time.Since(d.at) > refusedFor {
		d.said = map[string]bool{}
	}
	d.at, d.subject = time.Now(), subject
	if d.said[subject] || len(d.said) == deniedSaid {
		return false
	}
	d.said[subject] = true
	return true
}

func (d *deniedSubjects) health() wire.HealthPart {
	if d.subject == "" || time.Since(d.at) > refusedFor {
		return wire.HealthPart{Status: wire.HealthOK}
	}
	more := ""
	if n := len(d.said) - 1; n > 0 {
		more = fmt.Sprintf(" and at least %d more subjects", n)
	}
	return wire.HealthPart{Status: wire.HealthDegraded,
		Why: fmt.Sprintf("NATS does not permit publishing to %s%s; allow the user of Lapse to publish to it", d.subject, more)}
}

// silence is what is known of acknowledgements that did not come. Those of one stall
// of NATS are missed together; it lasts when what was sent after that is missed as well.
type silence struct {
	since, last time.Time // when one was missed first, and last
	again       bool      // also one that was sent after the first was missed
}

func (s *silence) add(sent, now time.Time) {
	if s.since.IsZero() || now.Sub(s.last) > refusedFor {
		*s = silence{since: now}
	}
	s.last, s.again = now, s.again || sent.After(s.since)
}

func (s *silence) lasts() bool { return s.again && time.Since(s.last) < refusedFor }
