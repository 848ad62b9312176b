package bench

import (
	"context"
	"fmt"
	"io"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/nats-io/nats.go"
)

// Parts are the names of the parts, in the order in which they run best.
var Parts = []string{"lag", "rate", "burst", "set", "memory", "idle", "growth", "recover"}

// Names of the contestants. Lapse always takes part.
const (
	Lapse     = "lapse"
	JetStream = "jetstream" // scheduled messages of nats-server (ADR-51)
	Event     = "event"     // Redis's expired event with nothing beside it
	Poll      = "poll"      // a sorted set, looked at every second
)

// Contestants are the alternatives that may run beside Lapse.
var Contestants = []string{JetStream, Event, Poll}

// about says which contestants a part can be run with.
var about = map[string][]string{
	"lag":     {JetStream, Event, Poll},
	"rate":    {JetStream, Event, Poll},
	"burst":   {JetStream, Event, Poll},
	"growth":  {JetStream, Event, Poll},
	"set":     {JetStream},
	"memory":  nil,
	"idle":    nil,
	"recover": nil,
}

// Options say what to measure, and where. Zero values of the numbers take the
// defaults of each part.
type Options struct {
	Parts []string // of [Parts]; at least one
	Vs    []string // of [Contestants]; parts that cannot be run with one leave it out

	Pending     int           // timers that wait while a part measures, due in one hour or later
	Rate        float64       // fires per second of lag, rate and growth
	Duration    time.Duration // of the measured fires, and of idle; at least 1s
	Count       int           // timers of burst and recover, sets of set
	Concurrency int           // callers that each await their answer; with 1, set compares with bare requests
	Payload     int           // bytes, 0 to 1 MiB; -1 for none
	Topics      int           // topics that the timers are spread over, 1 to 10,000
	Repeat      int           // rounds of burst, set and recover, of which the median counts; 1 to 99

	// Prefix names the deployment, and Dial opens a connection to its NATS. Dial
	// is not used with Fresh.
	Prefix string
	Dial   func(context.Context) (*nats.Conn, error)
	// RedisURL is the Redis of the deployment, which memory and idle ask and
	// nothing else needs. Not used with Fresh.
	RedisURL string
	// Fresh runs everything on servers of its own; nil measures the deployment
	// that Dial reaches.
	Fresh *Fresh
	// Programs are where the servers of the contestants and of Fresh come from.
	Programs Programs

	Version  string               // of Lapse, for the report
	Progress io.Writer            // gets progress bars; nil for none
	Say      func(string, ...any) // gets a line at each step; nil for none

	patience time.Duration // how long after its due time a timer may arrive; for tests
}

// Programs names what is started. An empty name is looked for: redis-server
// and nats-server beside the lapse program, then on the PATH.
type Programs struct {
	Lapse       string // run with "serve", and with "bench respond"
	RedisServer string
	NATSServer  string
	RedisConf   []byte // the shipped redis.conf
}

// Fresh describes the servers that a run starts for itself.
type Fresh struct {
	Instances int      // of lapse serve, 1 to 16
	Settings  []string // LAPSE_* settings for them, such as "LAPSE_GRACE=50ms"
	RedisSet  []string // directives over redis.conf, such as "hz=10"
	Dir       string   // holds their data while they run; os.TempDir when empty
}

const (
	kilo = 1_000
	mega = 1_000_000
)

// defaults are what a part does when the options say nothing. They are small
// enough for a deployment that others use.
var defaults = map[string]Options{
	"lag":     {Pending: 10 * kilo, Rate: 100, Duration: 10 * time.Second},
	"rate":    {Pending: 10 * kilo, Rate: 5 * kilo, Duration: 10 * time.Second},
	"burst":   {Pending: 2 * kilo, Count: 10 * kilo},
	"set":     {Count: 50 * kilo, Concurrency: 512},
	"memory":  {Pending: 100 * kilo},
	"idle":    {Pending: 10 * kilo, Duration: 20 * time.Second},
	"growth":  {Pending: mega, Rate: 100, Duration: 10 * time.Second},
	"recover": {Count: 10 * kilo},
}

// of is o with the defaults of the part where it says nothing.
func (o Options) of(part string) Options {
	d := defaults[part]
	set := func(v *int, to int) {
		if *v == 0 {
			*v = to
		}
	}
	if part == "set" && o.Concurrency == 1 {
		d.Count = 5 * kilo // one at a time: the default would take a minute
	}
	set(&o.Pending, d.Pending)
	set(&o.Count, d.Count)
	set(&o.Concurrency, d.Concurrency)
	set(&o.Concurrency, 512)
	set(&o.Topics, 10)
	set(&o.Repeat, 1)
	set(&o.Payload, 100)
	o.Payload = max(o.Payload, 0)
	if o.Rate == 0 {
		o.Rate = d.Rate
	}
	if o.Duration == 0 {
		o.Duration = d.Duration
	}
	if o.patience == 0 {
		o.patience = 10 * time.Second
	}
	return o
}

// Check says what is wrong with the options, in one line with the remedy.
func (o Options) Check() error {
	if len(o.Parts) == 0 {
		return fmt.Errorf("no part was named; want some of %s", strings.Join(Parts, ", "))
	}
	for i, p := range o.Parts {
		switch {
		case slices.Contains(o.Parts[:i], p):
			return fmt.Errorf("part %s is named twice: want each once; --repeat runs burst and set again", p)
		case !slices.Contains(Parts, p):
			return fmt.Errorf("part %q: want some of %s", p, strings.Join(Parts, ", "))
		case p == "recover" && o.Fresh == nil:
			return fmt.Errorf("part recover stops and starts the service, so it needs servers of its own: add --fresh")
		case (p == "memory" || p == "idle") && o.Fresh == nil && o.RedisURL == "":
			return fmt.Errorf("part %s asks Redis itself: name the Redis of the deployment with --redis URL, or add --fresh", p)
		}
	}
	for _, c := range o.Vs {
		if !slices.Contains(Contestants, c) {
			return fmt.Errorf("contestant %q: want some of %s", c, strings.Join(Contestants, ", "))
		}
	}
	if o.Duration != 0 && (o.Duration < time.Second || o.Duration > time.Hour) {
		return fmt.Errorf("duration %v: want 1s to 1h", o.Duration)
	}
	if o.Rate < 0 || o.Rate > mega || o.Rate > 0 && o.Rate < 1 || math.IsNaN(o.Rate) {
		return fmt.Errorf("rate %g: want 1 to 1,000,000 fires per second, or 0 for what suits the part", o.Rate)
	}
	if n := o.Rate * o.Duration.Seconds(); n > 10*mega {
		return fmt.Errorf("%g fires per second for %v are %s timers: want 10,000,000 at most", o.Rate, o.Duration, grouped(n))
	}
	for _, l := range []struct {
		name             string
		value, low, high int
	}{
		{"pending", o.Pending, 0, 100 * mega}, {"count", o.Count, 0, 10 * mega}, {"concurrency", o.Concurrency, 0, 16_384},
		{"payload", o.Payload, -1, 1 << 20}, {"topics", o.Topics, 0, 10 * kilo}, {"repeat", o.Repeat, 0, 99},
	} {
		if l.value < l.low || l.value > l.high {
			return fmt.Errorf("%s %d: want %d to %d", l.name, l.value, max(l.low, 0), l.high)
		}
	}
	if f := o.Fresh; f != nil {
		if f.Instances < 1 || f.Instances > 16 {
			return fmt.Errorf("instances %d: want 1 to 16", f.Instances)
		}
		for _, s := range f.RedisSet {
			if name, value, ok := strings.Cut(s, "="); !ok || name == "" || value == "" {
				return fmt.Errorf("redis directive %q: want name=value, such as hz=10", s)
			}
		}
	}
	return nil
}
