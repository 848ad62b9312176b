package wire

import "time"

// Headers of a set request.
const (
	HeaderID       = "Timer-Id"        // the id, optional: Lapse makes one
	HeaderSchedule = "Timer-Schedule"  // when to fire, required
	HeaderTimeZone = "Timer-Time-Zone" // IANA name, for cron schedules only
)

// Headers that Lapse adds to a get reply, a fired event or the announcement of
// a dead timer, beside [HeaderID].
const (
	HeaderTopic   = "Timer-Topic"   // the topic
	HeaderRev     = "Timer-Rev"     // decimal; names one life of the timer
	HeaderDue     = "Timer-Due"     // TimeFormat, on Redis's clock
	HeaderFired   = "Timer-Fired"   // TimeFormat, on Redis's clock: when it was claimed
	HeaderAttempt = "Timer-Attempt" // 1, 2, …; 0 in a get reply before the first
	HeaderSource  = "Timer-Source"  // SourceEvent or SourceSweep
	HeaderState   = "Timer-State"   // get replies only: one of the states
	HeaderReason  = "Timer-Reason"  // why it was given up on: get replies of dead timers, and announcements
	HeaderOmitted = "Timer-Omitted" // announcements only: what did not fit, one of the values below
	HeaderMsgID   = "Nats-Msg-Id"   // fired events: one value per fire of a life; announcements: one per burial
)

// Headers of an error reply, as NATS micro (ADR-32) has them.
const (
	HeaderErrorCode = "Nats-Service-Error-Code"
	HeaderError     = "Nats-Service-Error"
)

// Values of [HeaderSource]: which path fired the timer.
const (
	SourceEvent = "event" // Redis's expired event
	SourceSweep = "sweep" // the reconciler
)

// Values of [HeaderOmitted]: a get has what was left out.
const (
	OmittedPayload = "payload"
	OmittedHeaders = "payload, headers"
)

// TimeFormat is how Lapse writes times: RFC 3339, UTC, milliseconds.
const TimeFormat = "2006-01-02T15:04:05.000Z07:00"

// FormatTime writes t as [TimeFormat] in UTC.
func FormatTime(t time.Time) string { return t.UTC().Format(TimeFormat) }

// ParseTime reads what [FormatTime] wrote.
func ParseTime(s string) (time.Time, error) { return time.Parse(time.RFC3339Nano, s) }
