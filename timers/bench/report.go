package bench

import (
	"bytes"
	"encoding/json"
	"math"
	"strconv"
	"time"
)

// Report is the outcome of a run. Its JSON is read by programs: fields are
// added, never renamed.
type Report struct {
	Schema   int       `json:"schema"` // 1
	Run      string    `json:"run"`    // the token in the topics of its timers
	Started  time.Time `json:"started"`
	Where    string    `json:"where"` // "fresh servers", or the deployment's NATS
	Machine  Machine   `json:"machine"`
	Versions Versions  `json:"versions"`
	Settings []string  `json:"settings,omitempty"` // of the service and of Redis, where they are not the shipped ones
	Parts    []Result  `json:"parts"`
	Notes    []string  `json:"notes,omitempty"`
}

// Machine is where the bench ran.
type Machine struct {
	OS         string `json:"os"`
	Arch       string `json:"arch"`
	Kernel     string `json:"kernel,omitempty"`
	CPU        string `json:"cpu,omitempty"`
	Cores      int    `json:"cores"`
	Memory     int64  `json:"memory_bytes,omitempty"`
	FileSystem string `json:"file_system,omitempty"` // of the servers' data, when they are the bench's own
}

// Versions of what took part.
type Versions struct {
	Lapse      string `json:"lapse"`
	Go         string `json:"go"`
	NATSServer string `json:"nats_server,omitempty"`
	Redis      string `json:"redis,omitempty"`
}

// Result is one part with one contestant. The one of the pointers that
// belongs to the part is set.
type Result struct {
	Part       string    `json:"part"`
	Contestant string    `json:"contestant"`
	Started    time.Time `json:"started"`
	Took       float64   `json:"took_s"`
	Parameters

	Clock   *Clock   `json:"clock,omitempty"`
	Lag     *Lag     `json:"lag,omitempty"` // lag, rate, growth
	Burst   *Burst   `json:"burst,omitempty"`
	Set     *Set     `json:"set,omitempty"`
	Memory  *Memory  `json:"memory,omitempty"`
	Idle    *Idle    `json:"idle,omitempty"`
	Recover *Recover `json:"recover,omitempty"`

	// CPU is what each process used for one timer of the part, in microseconds;
	// known for servers of the bench's own, on Linux.
	CPU   map[string]float64 `json:"cpu_us_per_timer,omitempty"`
	Notes []string           `json:"notes,omitempty"`
}

// Parameters of a part as it was run. What it does not use is left out.
type Parameters struct {
	Pending     int     `json:"pending"` // timers of the bench that waited meanwhile
	Rate        float64 `json:"rate_per_s,omitempty"`
	Duration    float64 `json:"duration_s,omitempty"`
	Count       int     `json:"count,omitempty"`
	Concurrency int     `json:"concurrency,omitempty"`
	Payload     int     `json:"payload_bytes"`
	ID          int     `json:"id_bytes"`
	Topics      int     `json:"topics"`
	Instances   int     `json:"instances,omitempty"` // of lapse serve; 0 when not known
}

// Clock is how Redis's clock stood to the one of this machine.
type Clock struct {
	Offset      float64 `json:"offset_ms"`      // Redis's minus ours, in the middle of the measurement
	Uncertainty float64 `json:"uncertainty_ms"` // of the offset, either way
	Drift       float64 `json:"drift_ms"`       // how much the offset moved from the beginning to the end
	Samples     int     `json:"samples"`
	// Same: the servers run on this machine and share its clock, so the offset
	// used is 0, and the estimate above a check of the method.
	Same bool `json:"same_clock"`
}

// Lag is how late timers were at a subscriber.
type Lag struct {
	Due        int     `json:"due"` // how many were to fire
	Arrived    int     `json:"arrived"`
	Lost       int     `json:"lost"`  // did not arrive within 10 s of their due time; infinitely late
	Early      int     `json:"early"` // arrived before they were due, beyond any doubt about the clocks
	Duplicates int     `json:"duplicates"`
	P50        Millis  `json:"p50_ms"`
	P90        Millis  `json:"p90_ms"`
	P99        Millis  `json:"p99_ms"`
	P999       Millis  `json:"p999_ms"`
	Max        Millis  `json:"max_ms"`
	Fires      float64 `json:"fires_per_s"` // arrived, over the time from the first due to the last arrival
}

// Burst is what became of many timers due in one millisecond.
type Burst struct {
	Lag
	First   Millis    `json:"first_ms"` // from due to the first arrival
	Last    Millis    `json:"last_ms"`  // from due to the last arrival
	Drained float64   `json:"drained_per_s"`
	Rounds  []float64 `json:"rounds,omitempty"` // drained_per_s of each, when there were several
}

// Set is how fast timers were set.
type Set struct {
	Errors int       `json:"errors"`
	PerSec float64   `json:"sets_per_s"`
	P50    Millis    `json:"p50_ms"`
	P99    Millis    `json:"p99_ms"`
	Max    Millis    `json:"max_ms"`
	Rounds []float64 `json:"rounds,omitempty"` // sets_per_s of each, when there were several

	// With one caller: the least that a set over NATS into Redis can cost.
	NATS    Millis  `json:"bare_nats_p50_ms,omitempty"`      // a request to a responder that only answers
	Script  Millis  `json:"bare_script_p50_ms,omitempty"`    // EVALSHA of "return 1"
	Storing Millis  `json:"storing_script_p50_ms,omitempty"` // EVALSHA of the writes of a set; on fresh servers only
	Ratio   float64 `json:"ratio,omitempty"`                 // p50 over the sum of the first two
}

// Memory is what waiting timers occupy.
type Memory struct {
	PerTimer   float64 `json:"redis_bytes_per_timer"` // of used_memory
	ServiceRSS int64   `json:"service_rss_bytes,omitempty"`
	RedisRSS   int64   `json:"redis_rss_bytes,omitempty"`
}

// Idle is what a service costs while nothing is due.
type Idle struct {
	Commands float64            `json:"commands_per_s"` // of all clients of that Redis but the bench, those inside scripts left out
	Inside   float64            `json:"inside_per_s"`   // those inside scripts
	ByName   map[string]float64 `json:"by_name_per_s"`  // both, by the name of the command

	// CPU of the processes in percent of one core, all instances together;
	// known for servers of the bench's own, on Linux.
	CPU map[string]float64 `json:"cpu_percent,omitempty"`
}

// Recover is what a service did that found timers overdue at its start.
type Recover struct {
	Lag     Lag     `json:"lag"`      // as if due when the service was ready
	First   Millis  `json:"first_ms"` // from ready to the first arrival; negative when it fired before it took requests
	Last    Millis  `json:"last_ms"`
	Drained float64 `json:"drained_per_s"` // from the first to the last arrival or from ready, whichever is earlier
	PeakRSS int64   `json:"service_peak_rss_bytes"`
	Start   Millis  `json:"start_ms"` // from the start of the process to ready

	Rounds []float64 `json:"rounds,omitempty"` // drained_per_s of each, when there were several
}

// Millis is a time in milliseconds. In JSON, infinity (a timer that never
// arrived) is null.
type Millis float64

func millis(d time.Duration) Millis { return Millis(float64(d) / float64(time.Millisecond)) }

// MarshalJSON writes infinity as null, which JSON has no number for.
func (m Millis) MarshalJSON() ([]byte, error) {
	if math.IsInf(float64(m), 0) {
		return []byte("null"), nil
	}
	return strconv.AppendFloat(nil, float64(m), 'f', 3, 64), nil
}

// UnmarshalJSON reads what MarshalJSON wrote.
func (m *Millis) UnmarshalJSON(b []byte) error {
	if bytes.Equal(b, []byte("null")) {
		*m = Millis(math.Inf(1))
		return nil
	}
	return json.Unmarshal(b, (*float64)(m))
}

// String shows it with the digits that matter.
func (m Millis) String() string {
	switch v := float64(m); {
	case math.IsInf(v, 0):
		return "never"
	case math.Abs(v) >= 100:
		return grouped(v) + " ms"
	case math.Abs(v) >= 10:
		return strconv.FormatFloat(v, 'f', 1, 64) + " ms"
	default:
		return strconv.FormatFloat(v, 'f', 2, 64) + " ms"
	}
}

// grouped is a whole number with commas between thousands.
func grouped(v float64) string {
	s := strconv.FormatFloat(math.Abs(math.Round(v)), 'f', 0, 64)
	for i := len(s) - 3; i > 0; i -= 3 {
		s = s[:i] + "," + s[i:]
	}
	if v <= -0.5 {
		s = "-" + s
	}
	return s
}
