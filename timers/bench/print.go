package bench

import (
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"text/tabwriter"
)

// Line is the result in one line.
func (r *Result) Line() string {
	return strings.TrimSpace(fmt.Sprintf("%s, %s: %s", r.title(), r.Contestant, strings.Join(r.figures(), ", ")))
}

// title names the part and what it was run with.
func (r *Result) title() string {
	instances := ""
	if r.Instances > 1 {
		instances = fmt.Sprintf(", %d instances", r.Instances)
	}
	switch {
	case r.Lag != nil:
		return fmt.Sprintf("%s, %s pending, %s fires/s%s", r.Part, grouped(float64(r.Pending)), grouped(r.Rate), instances)
	case r.Burst != nil:
		return fmt.Sprintf("burst of %s, %s pending%s", grouped(float64(r.Count)), grouped(float64(r.Pending)), instances)
	case r.Set != nil:
		return fmt.Sprintf("set, %s, %s sets%s", plural(r.Concurrency, "caller"), grouped(float64(r.Count)), instances)
	case r.Recover != nil:
		return fmt.Sprintf("recover, %s overdue%s", grouped(float64(r.Count)), instances)
	}
	return fmt.Sprintf("%s, %s pending%s", r.Part, grouped(float64(r.Pending)), instances)
}

// figures are what was measured, for people.
func (r *Result) figures() []string {
	var out []string
	add := func(format string, args ...any) { out = append(out, fmt.Sprintf(format, args...)) }
	arrived := func(l *Lag) {
		add("%s of %s arrived", grouped(float64(l.Arrived)), grouped(float64(l.Due)))
		add("%d early", l.Early)
		if l.Duplicates > 0 {
			add("%d twice", l.Duplicates)
		}
	}
	switch {
	case r.Lag != nil:
		add("p50 %v", r.Lag.P50)
		add("p99 %v", r.Lag.P99)
		add("max %v", r.Lag.Max)
		add("%s fires/s", grouped(r.Lag.Fires))
		arrived(r.Lag)
	case r.Burst != nil:
		add("first after %v", r.Burst.First)
		add("last after %v", r.Burst.Last)
		add("%s/s drained", grouped(r.Burst.Drained))
		arrived(&r.Burst.Lag)
	case r.Set != nil:
		add("%s sets/s", grouped(r.Set.PerSec))
		add("p50 %v", r.Set.P50)
		add("p99 %v", r.Set.P99)
		add("%d errors", r.Set.Errors)
		if r.Set.Ratio > 0 {
			add("bare NATS request %v, bare script call %v, a set takes %.2f times their sum", r.Set.NATS, r.Set.Script, r.Set.Ratio)
		}
		if r.Set.Storing > 0 {
			add("a script call that stores as much %v", r.Set.Storing)
		}
	case r.Memory != nil:
		add("%.0f bytes of Redis per timer", r.Memory.PerTimer)
		if r.Memory.ServiceRSS > 0 {
			add("resident: service %s, Redis %s", megabytes(r.Memory.ServiceRSS), megabytes(r.Memory.RedisRSS))
		}
	case r.Idle != nil:
		add("%.2f Redis commands/s", r.Idle.Commands)
		add("%.2f more inside scripts", r.Idle.Inside)
		for _, name := range slices.Sorted(maps.Keys(r.Idle.CPU)) {
			if name != "bench" {
				add("%s %.1f %% of a core", name, r.Idle.CPU[name])
			}
		}
	case r.Recover != nil:
		add("first %v after ready", r.Recover.First)
		add("%s/s drained", grouped(r.Recover.Drained))
		if len(r.Recover.Rounds) > 1 {
			add("rounds %s", rounds(r.Recover.Rounds))
		}
		add("ready after %v", r.Recover.Start)
		if r.Recover.PeakRSS > 0 {
			add("service at most %s resident", megabytes(r.Recover.PeakRSS))
		}
		arrived(&r.Recover.Lag)
	}
	return out
}

func megabytes(n int64) string { return grouped(float64(n)/1e6) + " MB" }

// cpuLine says where the time of a timer went, "" when that is not known.
func (r *Result) cpuLine() string {
	if len(r.CPU) == 0 {
		return ""
	}
	var parts []string
	sum := 0.0
	for _, name := range slices.Sorted(maps.Keys(r.CPU)) {
		parts = append(parts, fmt.Sprintf("%s %.1f", name, r.CPU[name]))
		sum += r.CPU[name]
	}
	return fmt.Sprintf("CPU per timer, in us: %s; together %.1f", strings.Join(parts, ", "), sum)
}

// Print writes the report for people.
func (r *Report) Print(w io.Writer) error {
	fmt.Fprintf(w, "%s\n%s\nat %s\n", r.Versions.line(), r.Machine.line(), r.Where)
	if len(r.Settings) > 0 {
		fmt.Fprintf(w, "with %s\n", strings.Join(r.Settings, " "))
	}
	last := ""
	for _, p := range r.together() {
		if p.title() != last {
			last = p.title()
			fmt.Fprintf(w, "\n%s\n", last)
		}
		t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
		fmt.Fprintf(t, "  %-10s\t%s\n", p.Contestant, strings.Join(p.figures(), "\t"))
		if err := t.Flush(); err != nil {
			return err
		}
		notes := p.Notes
		if line := p.cpuLine(); line != "" {
			notes = append([]string{line}, notes...)
		}
		if c := p.Clock; c != nil {
			text := fmt.Sprintf("Redis's clock is %.3f ms from ours, give or take %.3f ms", c.Offset, c.Uncertainty)
			if c.Same {
				text = fmt.Sprintf("Redis shares our clock (estimated %.3f ms off, give or take %.3f ms)", c.Offset, c.Uncertainty)
			}
			notes = append(notes, text)
		}
		for _, n := range notes {
			fmt.Fprintf(w, "  %-10s  %s\n", "", n)
		}
	}
	for _, n := range r.Notes {
		fmt.Fprintf(w, "\nnote: %s\n", n)
	}
	return nil
}

// together are the results with those side by side that were run with the
// same parameters.
func (r *Report) together() []*Result {
	place := map[string]int{} // of the first with this title
	out := make([]*Result, len(r.Parts))
	for i := range r.Parts {
		out[i] = &r.Parts[i]
		if _, ok := place[out[i].title()]; !ok {
			place[out[i].title()] = i
		}
	}
	slices.SortStableFunc(out, func(a, b *Result) int { return place[a.title()] - place[b.title()] })
	return out
}

func (v Versions) line() string {
	parts := []string{"Lapse " + v.Lapse}
	for _, p := range []struct{ name, version string }{{"Redis", v.Redis}, {"nats-server", v.NATSServer}, {"Go", v.Go}} {
		if p.version != "" {
			parts = append(parts, p.name+" "+p.version)
		}
	}
	return strings.Join(parts, ", ")
}

func (m Machine) line() string {
	parts := []string{fmt.Sprintf("%d cores", m.Cores)}
	if m.CPU != "" {
		parts[0] += " (" + m.CPU + ")"
	}
	if m.Memory > 0 {
		parts = append(parts, fmt.Sprintf("%.0f GB of memory", float64(m.Memory)/1e9))
	}
	parts = append(parts, strings.TrimSpace(m.OS+" "+m.Kernel)+" "+m.Arch)
	if m.FileSystem != "" {
		parts = append(parts, "data on "+m.FileSystem)
	}
	return strings.Join(parts, ", ")
}

func plural(n int, thing string) string {
	if n == 1 {
		return "1 " + thing
	}
	return grouped(float64(n)) + " " + thing + "s"
}
