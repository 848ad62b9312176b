package wire

// States of a timer.
const (
	StateScheduled = "scheduled" // never handed to NATS in this life, or definitely refused each time
	StateFiring    = "firing"    // being delivered, or an attempt ended without a known outcome
	StateDead      = "dead"      // given up on; kept with its payload
)

// SetReply is the body of the reply to a set.
type SetReply struct {
	Topic    string `json:"topic"`
	ID       string `json:"id"`
	Due      string `json:"due"` // TimeFormat
	Rev      int64  `json:"rev"`
	Replaced bool   `json:"replaced"`
	Was      string `json:"was,omitempty"` // the state of the replaced life
}

// CancelReply is the body of the reply to a cancel.
type CancelReply struct {
	Topic string `json:"topic"`
	ID    string `json:"id"`
	Rev   int64  `json:"rev"` // of the life that was cancelled
}

// RetryReply is the body of the reply to a retry.
type RetryReply struct {
	Topic string `json:"topic"`
	ID    string `json:"id"`
	Due   string `json:"due"` // TimeFormat; as it was set, which a retry does not change
	Rev   int64  `json:"rev"` // as before: it is the same life
}

// Limits of one page of a list.
const (
	DefaultListLimit = 100
	MaxListLimit     = 1000
)

// ListRequest is the body of a list request; an empty body is the zero value.
type ListRequest struct {
	Limit  int    `json:"limit,omitempty"`  // 1 to MaxListLimit; DefaultListLimit when left out
	Cursor string `json:"cursor,omitempty"` // of the page before
	State  string `json:"state,omitempty"`  // ListDead or ListPending; all when left out
}

// Values of [ListRequest].State.
const (
	ListDead    = StateDead // those that were given up on
	ListPending = "pending" // all others
)

// ListReply is one page of a listing. The listing is finished only when the
// cursor is empty: a page may be short, or empty, before that.
type ListReply struct {
	Timers []ListItem `json:"timers"`
	Cursor string     `json:"cursor"`
}

// ListItem is one timer of a listing.
type ListItem struct {
	Topic    string `json:"topic"`
	ID       string `json:"id"`
	Due      string `json:"due"` // TimeFormat
	Rev      int64  `json:"rev"`
	State    string `json:"state"`
	Attempts int    `json:"attempts"`
	Reason   string `json:"reason,omitempty"` // why it was given up on; in a list of the dead only
}

// StatusReply is the body of the reply to a status request, as seen by the
// instance that answers.
type StatusReply struct {
	Version    string `json:"version"`
	Deployment string `json:"deployment"`
	Instance   string `json:"instance"`
	Prefix     string `json:"prefix"`
	Delivery   string `json:"delivery"`         // jetstream or core
	Stream     string `json:"stream,omitempty"` // the stream that confirms fired events
	Now        string `json:"now"`              // Redis's clock, TimeFormat
	Started    string `json:"started"`          // this instance, its own clock

	// CountError says that Redis did not answer; now, pending, next_due,
	// overdue and dead are empty then.
	CountError string `json:"count_error,omitempty"`

	Pending  int64  `json:"pending"`            // timers in the backup set, of all instances
	NextDue  string `json:"next_due,omitempty"` // the next score in the future, TimeFormat
	Overdue  int64  `json:"overdue"`            // in the backup set with a score that has passed
	Dead     int64  `json:"dead"`               // given up on and kept, of all instances
	InFlight int    `json:"in_flight"`          // claimed by this instance and not settled yet

	Lag    LagStats    `json:"lag"`
	Counts CountStats  `json:"counts"`
	Health HealthReply `json:"health"`
}

// LagStats is how late the last fires of this instance were: the time from
// due to the acknowledgement of the delivery, on Redis's clock.
type LagStats struct {
	Samples int     `json:"samples"` // how many fires the figures are over
	P50     float64 `json:"p50_ms"`
	P99     float64 `json:"p99_ms"`
	Max     float64 `json:"max_ms"`
}

// CountStats are totals of this instance since it started.
type CountStats struct {
	Fired      int64 `json:"fired"`       // delivered
	FiredEvent int64 `json:"fired_event"` // of these, by the expired event
	FiredSweep int64 `json:"fired_sweep"` // of these, by the reconciler
	Duplicates int64 `json:"duplicates"`  // acknowledged as already stored
	Refused    int64 `json:"refused"`     // attempts that NATS definitely refused
	Unknown    int64 `json:"unknown"`     // attempts without a known outcome
	Repaired   int64 `json:"repaired"`    // inconsistent records mended or removed
	Dead       int64 `json:"dead"`        // timers given up on
	Ignored    int64 `json:"ignored"`     // requests with a reply subject Lapse will not publish to

	Recovered      int64 `json:"recovered"`       // timers claimed for want of an event in time
	Deaths         int64 `json:"deaths"`          // other instances whose end this one noticed
	Rescued        int64 `json:"rescued"`         // claims of theirs that it gave back
	Events         int64 `json:"events"`          // expired trigger keys heard
	EventGaps      int64 `json:"event_gaps"`      // times that events may have been lost
	HintsDropped   int64 `json:"hints_dropped"`   // events that came faster than they could be claimed; recovered
	ClaimErrors    int64 `json:"claim_errors"`    // batches that could not be claimed; recovered
	SettleFailures int64 `json:"settle_failures"` // fires whose end could not be written; fired again, same message id
	Stale          int64 `json:"stale"`           // claims not published since half their lease was over
	Unannounced    int64 `json:"unannounced"`     // timers given up on whose announcement was not taken by NATS
	Strange        int64 `json:"strange"`         // replies to fired events that were no acknowledgement
}

// Health of a part, and of the whole.
const (
	HealthOK       = "ok"
	HealthDegraded = "degraded" // timers still fire, some other way than they should
	HealthDown     = "down"     // timers cannot be taken, or cannot be fired
)

// HealthReply says how the instance is, part by part. It is also the body of
// /readyz.
type HealthReply struct {
	Status string                `json:"status"` // the worst of the parts
	Parts  map[string]HealthPart `json:"parts"`  // redis, nats, subscription, stream
}

// HealthPart says how one part is.
type HealthPart struct {
	Status string `json:"status"`
	Why    string `json:"why,omitempty"` // what is wrong and what mends it
}
