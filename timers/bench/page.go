package bench

import (
	"fmt"
	"strings"
)

// What stands between these lines of the page was written by people, and
// stays when the page is written again.
const (
	handBegin = "<!-- written by hand: begin -->"
	handEnd   = "<!-- written by hand: end -->"
)

// written is the part of a page that people wrote.
func written(page string) string {
	_, rest, ok := strings.Cut(page, handBegin)
	text, _, closed := strings.Cut(rest, handEnd)
	if !ok || !closed {
		return "\n"
	}
	return text
}

// renderPage is docs/benchmarks.md.
func renderPage(r *Report, quick bool, byHand string) string {
	var b strings.Builder
	p := func(format string, args ...any) { fmt.Fprintf(&b, format+"\n", args...) }
	p("# Benchmarks")
	p("")
	how, command := "every part at full size", "make bench"
	if quick {
		how, command = "a quick look with small counts, whose figures are rough", "make bench-quick"
	}
	p("Written by `%s` (%s) on %s.", command, how, r.Started.Format("2 January 2006"))
	p("Everything ran on one machine, and the callers and the subscriber ran beside the servers on it; compare")
	p("figures with the alternative in the same table, not with those of another machine.")
	p("")
	p("- Machine: %s", r.Machine.line())
	p("- Versions: %s", r.Versions.line())
	p("- Timers: 100 bytes of payload, ids of %d bytes, over 10 topics with names of two", idSize)
	p("")
	p("## Targets")
	p("")
	p("| part | target | measured | reached |")
	p("|---|---|---|---|")
	for _, t := range r.targets() {
		mark := "yes"
		if !t.reached {
			mark = "**no**"
		}
		p("| %s | %s | %s | %s |", t.part, t.wanted, t.got, mark)
	}
	p("")
	p("%s%s%s", handBegin, byHand, handEnd)
	p("")
	p("## Lag")
	p("")
	p("![Lag by number of pending timers](benchmarks-lag.svg)")
	p("")
	p("From due to received by a subscriber. A timer that did not arrive within 10 s of its due time counts as")
	p("infinitely late.")
	p("")
	p("| pending | fires/s | | p50 | p99 | max | arrived | early |")
	p("|---|---|---|---|---|---|---|---|")
	for _, part := range []string{"growth", "rate"} {
		for _, x := range r.together() {
			if x.Part == part {
				p("| %s | %s | %s | %v | %v | %v | %s of %s | %d |", grouped(float64(x.Pending)), grouped(x.Rate), x.who(),
					x.Lag.P50, x.Lag.P99, x.Lag.Max, grouped(float64(x.Lag.Arrived)), grouped(float64(x.Lag.Due)), x.Lag.Early)
			}
		}
	}
	p("")
	p("## Throughput")
	p("")
	p("![Throughput](benchmarks-throughput.svg)")
	p("")
	p("| burst of | pending | | first after | last after | drained | rounds | arrived | early |")
	p("|---|---|---|---|---|---|---|---|---|")
	for _, x := range r.together() {
		if x.Burst != nil {
			p("| %s | %s | %s | %v | %v | %s/s | %s | %s of %s | %d |", grouped(float64(x.Count)), grouped(float64(x.Pending)), x.who(), x.Burst.First, x.Burst.Last,
				grouped(x.Burst.Drained), rounds(x.Burst.Rounds), grouped(float64(x.Burst.Arrived)), grouped(float64(x.Burst.Due)), x.Burst.Early)
		}
	}
	p("")
	p("| callers | sets | | sets/s | rounds | p50 | p99 | errors |")
	p("|---|---|---|---|---|---|---|---|")
	for _, x := range r.together() {
		if x.Set != nil {
			p("| %d | %s | %s | %s | %s | %v | %v | %d |", x.Concurrency, grouped(float64(x.Count)), x.who(), grouped(x.Set.PerSec), rounds(x.Set.Rounds), x.Set.P50, x.Set.P99, x.Set.Errors)
		}
	}
	p("")
	p("## At rest and at start")
	p("")
	for _, x := range r.together() {
		if x.Memory != nil || x.Idle != nil || x.Recover != nil {
			p("- %s: %s", x.title(), strings.Join(x.figures(), ", "))
		}
	}
	p("")
	p("## Where the time goes")
	p("")
	p("CPU time of each process per timer, in microseconds. `bench` is this program, which plays the callers and the")
	p("subscriber. A core has 1,000,000 of them a second.")
	p("")
	p("| part | | service | Redis | NATS | bench | together |")
	p("|---|---|---|---|---|---|---|")
	for _, x := range r.together() {
		if len(x.CPU) > 0 {
			sum := x.CPU["service"] + x.CPU["redis"] + x.CPU["nats"] + x.CPU["bench"]
			p("| %s | %s | %s | %s | %s | %.1f | %.1f |", x.title(), x.Contestant, cell(x.CPU, "service"), cell(x.CPU, "redis"), cell(x.CPU, "nats"), x.CPU["bench"], sum)
		}
	}
	p("")
	p("## Is the opponent as strong as it can be?")
	p("")
	p("JetStream's scheduled messages (ADR-51) run on a nats-server process of their own with file storage; sets are")
	p("made by as many callers, each awaiting its acknowledgement; the receiver is a pull consumer that asks for up to")
	p("5,000 messages at a time and acknowledges none. Beside its figures here, those of an earlier trial on a machine of")
	p("this kind with 2 cores:")
	p("")
	p("| | earlier trial | here |")
	p("|---|---|---|")
	for _, t := range r.opponent() {
		p("| %s | %s | %s |", t.what, t.earlier, t.here)
	}
	p("")
	p("## How it was measured")
	p("")
	p("- `lapse` is the service in a process of its own, `redis-server` with the shipped `redis.conf` (append-only file,")
	p("  fsync every second) on a unix socket, and `nats-server` with file storage. `event` is Redis's expired event alone,")
	p("  with the same `redis.conf`; `poll` is a sorted set that is looked at every second. Neither of these two sends")
	p("  anything over NATS, so they do less than the others.")
	p("- One contestant at a time, each on servers started for it.")
	p("- Pending timers are due in one to two hours. Those that are measured are set in advance, spread evenly over the time")
	p("  in which they fire. Before anything is measured, a rewrite of Redis's file that is under way is awaited,")
	p("  and what was written is synced to the disk.")
	p("- Drained is the number of timers over the time from due to the last arrival. Where there were several rounds, the")
	p("  median counts.")
	p("- The servers share the machine's clock. That is checked with the method that `lapse bench` uses elsewhere: %s.", r.clockCheck())
	return b.String()
}

// who names the contestant, with its instances when there are several.
func (r *Result) who() string {
	if r.Instances > 1 {
		return fmt.Sprintf("%s, %d instances", r.Contestant, r.Instances)
	}
	return r.Contestant
}

func rounds(all []float64) string {
	var out []string
	for _, v := range all {
		out = append(out, grouped(v))
	}
	return strings.Join(out, ", ")
}

func cell(cpu map[string]float64, name string) string {
	if v, ok := cpu[name]; ok {
		return fmt.Sprintf("%.1f", v)
	}
	return ""
}

// clockCheck is the worst that the estimates of the offset said.
func (r *Report) clockCheck() string {
	worst, uncertainty, n := 0.0, 0.0, 0
	for _, p := range r.Parts {
		if c := p.Clock; c != nil {
			worst, uncertainty = max(worst, c.Offset, -c.Offset), max(uncertainty, c.Uncertainty)
			n++
		}
	}
	if n == 0 {
		return "not in this run"
	}
	return fmt.Sprintf("in %d parts it found Redis's clock at most %.2f ms off, give or take %.2f ms", n, worst, uncertainty)
}
