package wire

// What a check found.
const (
	FindingOK      = "ok"
	FindingWarn    = "warn"    // something may go wrong; timers fire on time now
	FindingFail    = "fail"    // timers are lost, late or refused, or will be with the next crash
	FindingUnknown = "unknown" // it could not be looked at, and why
)

// The parts that are looked at, in the order in which they are shown.
var DoctorParts = []string{"redis", "nats", "data", "events", "service"}

// DoctorReport is what lapse doctor --json prints (ADR 31).
type DoctorReport struct {
	Findings []Finding `json:"findings"` // every check, those that found nothing wrong too; by part
	OK       int       `json:"ok"`       // how many of each status
	Warn     int       `json:"warn"`
	Fail     int       `json:"fail"`
	Unknown  int       `json:"unknown"`
}

// Finding is the result of one check.
type Finding struct {
	Check  string `json:"check"`  // names the check, such as notify-flags; stable
	Part   string `json:"part"`   // one of DoctorParts
	Status string `json:"status"` // ok, warn, fail or unknown
	Found  string `json:"found"`  // what is there
	Wanted string `json:"wanted"` // what should be
	Why    string `json:"why"`    // what the difference costs; for unknown, why it could not be looked at

	// Remedy is what mends it, a line each: a command, a line of a file as
	// "redis.conf: hz 100", or a sentence that begins with "#". Empty for ok.
	Remedy  string `json:"remedy"`
	Fixable bool   `json:"fixable"` // lapse doctor --fix does it
	Fixed   bool   `json:"fixed"`   // it has just done so; why says what a restart loses
}

// Find is the finding of the check; ok is false when it was not made.
func (r DoctorReport) Find(check string) (f Finding, ok bool) {
	for _, f := range r.Findings {
		if f.Check == check {
			return f, true
		}
	}
	return Finding{}, false
}

// Blind says that neither server could be looked at, so the report says nothing
// of the deployment.
func (r DoctorReport) Blind() bool {
	rs, _ := r.Find("redis-reachable")
	ns, _ := r.Find("nats-reachable")
	return rs.Status != FindingOK && ns.Status != FindingOK
}
