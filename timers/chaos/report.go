package chaos

import (
	"fmt"
	"io"
	"slices"
	"strings"
	"text/tabwriter"
	"time"
)

// Report is what a run did and found.
type Report struct {
	Verdict
	Ended   []string      // troubles of the deployment as a whole
	Took    time.Duration // of the faults and the load beside them
	Drained time.Duration // until nothing was due any more

	Memory int64 // most of one instance, bytes; 0 where the system does not tell

	cfg    Config
	faults map[string]*suffered
}

// suffered is what the faults of one kind cost.
type suffered struct {
	n      int
	works  []time.Duration // from its end to the first fire of a timer set after it; not for pairs
	ends   []time.Time     // likewise
	caught []time.Duration // from its end to the arrival of the last timer due by then
	silent int             // nothing fired within worksWithin
}

func newReport(cfg Config) *Report { return &Report{cfg: cfg, faults: map[string]*suffered{}} }

func (r *Report) fault(s *step, begun, over, works time.Time) {
	for _, k := range s.kinds {
		f := r.faults[k.Name]
		if f == nil {
			f = &suffered{}
			r.faults[k.Name] = f
		}
		f.n++
		switch {
		case works.IsZero():
			f.silent++
			r.Ended = append(r.Ended, fmt.Sprintf("nothing that was set fired within %v of the end of: %s", worksWithin, s))
		case len(s.kinds) == 1:
			f.works = append(f.works, works.Sub(over))
			f.ends = append(f.ends, over)
		}
	}
}

func (r *Report) caughtUp(l *Ledger) {
	for _, f := range r.faults {
		f.caught = l.CaughtUp(f.ends)
		slices.Sort(f.caught)
		slices.Sort(f.works)
	}
}

// count is how many faults there were.
func (r *Report) count() int {
	n := 0
	for _, f := range r.faults {
		n += f.n
	}
	return n
}

// each says whether every kind that was asked for came n times.
func (r *Report) each(names []string, n int) bool {
	for _, k := range Kinds {
		if f := r.faults[k.Name]; (names == nil || slices.Contains(names, k.Name)) && (f == nil || f.n < n) {
			return false
		}
	}
	return true
}

// scaled is the share of a ten-minute measure that the run should reach.
func (r *Report) scaled(inTenMinutes int) int {
	return max(1, int(float64(inTenMinutes)*r.cfg.Duration.Minutes()/10))
}

// Broken are the promises that did not hold, a line each.
func (r *Report) Broken() []string {
	var out []string
	for _, c := range r.columns() {
		for i, line := range c.lines {
			if i == 10 {
				out = append(out, fmt.Sprintf("%s: and %d more", c.name, len(c.lines)-i))
				break
			}
			out = append(out, c.name+": "+line)
		}
	}
	return out
}

// Tame is what the run did too little of to be worth anything.
func (r *Report) Tame() []string {
	var out []string
	if rate := float64(r.Set) / r.Took.Seconds(); rate < 200 {
		out = append(out, fmt.Sprintf("%.0f sets a second were answered OK, want 200", rate))
	}
	if want := r.scaled(500); r.Near < want {
		out = append(out, fmt.Sprintf("%d cancels and replaces within %v of the due time, want %d", r.Near, nearBy, want))
	}
	want := r.scaled(20)
	for _, k := range Kinds {
		n := 0
		if f := r.faults[k.Name]; f != nil {
			n = f.n
		}
		if (r.cfg.Kinds == nil || slices.Contains(r.cfg.Kinds, k.Name)) && n < want {
			out = append(out, fmt.Sprintf("%d times %q, want %d", n, k.Name, want))
		}
	}
	return out
}

type column struct {
	name  string
	lines []string
}

// columns are those that must be 0.
func (r *Report) columns() []column {
	return []column{
		{"lost", r.Lost}, {"early", r.Early}, {"fired after cancel", r.AfterCancel}, {"old life fired", r.OldLife},
		{"duplicates on the stream", r.Duplicates}, {"left-overs in Redis", r.LeftOver},
		{"untrue answers", r.Untrue}, {"troubles", r.Ended},
	}
}

// Print writes the report for people.
func (r *Report) Print(w io.Writer) {
	var b strings.Builder
	fmt.Fprintf(&b, "\nchaos: seed %d, lease %s, %s of faults, drained in %s\n\n", r.cfg.Seed, r.cfg.Lease, r.Took.Round(time.Second), r.Drained.Round(100*time.Millisecond))
	fmt.Fprintf(&b, "set %d (%.0f/s)  replaced %d  cancelled %d  too late %d  fired %d\n", r.Set, float64(r.Set)/r.Took.Seconds(), r.Replaced, r.Cancelled, r.TooLate, r.Fired)
	fmt.Fprintf(&b, "sets without an answer %d  sets refused %d  cancels and replaces within %v of the due time %d\n\n", r.Unknown, r.Refused, nearBy, r.Near)
	for _, c := range r.columns() {
		fmt.Fprintf(&b, "%-26s %d\n", c.name, len(c.lines))
	}
	fmt.Fprintf(&b, "\nduplicates seen by a core subscriber %d\n", r.SeenTwice)
	fmt.Fprintf(&b, "lives that only a core subscriber saw, refused by the full stream and then cancelled or replaced %d\n", r.OnlySeen)
	fmt.Fprintf(&b, "lag, from due to stored: median %s, 99th %s, worst %s\n", ms(at(r.Lag, .5)), ms(at(r.Lag, .99)), ms(at(r.Lag, 1)))
	fmt.Fprintf(&b, "the latest: %s\n", r.Worst)
	if r.Memory > 0 {
		fmt.Fprintf(&b, "most memory of an instance %d MB\n", r.Memory>>20)
	}
	b.WriteString("\nfrom the end of a fault: works again = a timer set after it has fired; caught up = all that was due by then has\n")
	b.WriteString("arrived (faults of instances and of servers overlap, so one may pay for the other)\n\n")
	t := tabwriter.NewWriter(&b, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(t, "fault\ttimes\tworks again, median\tworst\tcaught up, median\tworst\t")
	for _, k := range Kinds {
		if f := r.faults[k.Name]; f != nil {
			fmt.Fprintf(t, "%s\t%d\t%s\t%s\t%s\t%s\t\n", k.Name, f.n, ms(at(f.works, .5)), ms(at(f.works, 1)), ms(at(f.caught, .5)), ms(at(f.caught, 1)))
		}
	}
	t.Flush() //nolint:errcheck // a strings.Builder
	for _, line := range append(r.Broken(), r.Tame()...) {
		fmt.Fprintf(&b, "\nFAILED  %s", line)
	}
	fmt.Fprintf(&b, "\nchaos: seed %d\n", r.cfg.Seed)
	io.WriteString(w, b.String()) //nolint:errcheck // what is printed to
}

func at(sorted []time.Duration, q float64) time.Duration {
	if len(sorted) == 0 {
		return -1
	}
	return sorted[int(q*float64(len(sorted)-1))]
}

func ms(d time.Duration) string {
	if d < 0 {
		return "-"
	}
	return d.Round(time.Millisecond).String()
}
