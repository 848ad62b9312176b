package bench

import (
	"fmt"
	"math"
)

// target is a figure that Lapse sets out to reach, and what was measured.
type target struct {
	part, wanted, got string
	reached           bool
}

// noise is how far two equal services may be apart in one run: the machine is
// never quite the same twice.
const noise = .95

// find returns the result with the most pending timers among those that
// match, nil when there is none.
func (r *Report) find(part, contestant string, match func(*Result) bool) *Result {
	var out *Result
	for i := range r.Parts {
		p := &r.Parts[i]
		if p.Part == part && p.Contestant == contestant && (match == nil || match(p)) && (out == nil || p.Pending > out.Pending) {
			out = p
		}
	}
	return out
}

func instances(n int) func(*Result) bool { return func(r *Result) bool { return r.Instances == n } }

func callers(n int) func(*Result) bool { return func(r *Result) bool { return r.Concurrency == n } }

// targets judges what was measured.
func (r *Report) targets() []target {
	var out []target
	add := func(part, wanted, got string, reached bool) { out = append(out, target{part, wanted, got, reached}) }
	one := instances(1)
	lagTargets := func(title string, ours, theirs *Result, p50, p99 Millis, times float64) {
		if p50 > 0 {
			add(title, fmt.Sprintf("p50 at most %v", p50), ours.Lag.P50.String(), ours.Lag.P50 <= p50)
		}
		add(title, fmt.Sprintf("p99 at most %v", p99), ours.Lag.P99.String(), ours.Lag.P99 <= p99)
		if theirs != nil {
			ratio := float64(theirs.Lag.P99 / ours.Lag.P99)
			add(title, fmt.Sprintf("p99 at most 1/%.0f of JetStream's", times),
				fmt.Sprintf("1/%.0f (%v against %v)", ratio, ours.Lag.P99, theirs.Lag.P99), ratio >= times)
		}
	}
	if ours := r.find("growth", Lapse, one); ours != nil {
		lagTargets("lag"+ours.title()[len("growth"):], ours, r.find("growth", JetStream, nil), 2.5, 5, 40)
	}
	if ours := r.find("rate", Lapse, one); ours != nil {
		lagTargets("lag"+ours.title()[len("rate"):], ours, r.find("rate", JetStream, nil), 0, 15, 30)
	}
	if most := r.find("growth", Lapse, one); most != nil {
		least := most
		for i := range r.Parts {
			if p := &r.Parts[i]; p.Part == "growth" && p.Contestant == Lapse && p.Pending < least.Pending {
				least = p
			}
		}
		ratio := float64(most.Lag.P99 / least.Lag.P99)
		add("growth", fmt.Sprintf("p99 at %s pending at most 1.25 times that at %s", grouped(float64(most.Pending)), grouped(float64(least.Pending))),
			fmt.Sprintf("%.2f times (%v against %v)", ratio, most.Lag.P99, least.Lag.P99), ratio <= 1.25)
	}
	r.burstTargets(add)
	r.setTargets(add)
	if p := r.find("recover", Lapse, nil); p != nil {
		add(p.title(), "first fire within 100 ms of ready", p.Recover.First.String(), p.Recover.First <= 100)
		if b := r.find("burst", Lapse, one); b != nil {
			ratio := p.Recover.Drained / b.Burst.Drained
			add(p.title(), "the rate of a burst", fmt.Sprintf("%s/s, %.2f times", grouped(p.Recover.Drained), ratio), ratio >= noise)
		}
		add(p.title(), "service under 150 MB resident", megabytes(p.Recover.PeakRSS), p.Recover.PeakRSS < 150e6)
	}
	if p := r.find("memory", Lapse, nil); p != nil {
		add(p.title(), "at most 550 bytes of Redis per timer", fmt.Sprintf("%.0f", p.Memory.PerTimer), p.Memory.PerTimer <= 550)
	}
	if p := r.find("idle", Lapse, nil); p != nil {
		n := float64(max(1, p.Instances))
		add(p.title(), "at most 4 Redis commands a second per instance", fmt.Sprintf("%.2f (and %.2f inside scripts)", p.Idle.Commands/n, p.Idle.Inside/n), p.Idle.Commands/n <= 4)
		if used, ok := p.Idle.CPU["service"]; ok {
			add(p.title(), "at most 1 % of a core per instance", fmt.Sprintf("%.1f %%", used/n), used/n <= 1)
		}
	}
	early := 0
	for _, p := range r.Parts {
		if p.Contestant != Lapse {
			continue
		}
		for _, l := range []*Lag{p.Lag, lagOf(p.Burst), recoverLag(p.Recover)} {
			if l != nil {
				early += l.Early
			}
		}
	}
	add("all parts", "no early fire", fmt.Sprint(early), early == 0)
	return out
}

func lagOf(b *Burst) *Lag {
	if b == nil {
		return nil
	}
	return &b.Lag
}

func recoverLag(r *Recover) *Lag {
	if r == nil {
		return nil
	}
	return &r.Lag
}

type addTarget func(part, wanted, got string, reached bool)

func (r *Report) burstTargets(add addTarget) {
	ours := r.find("burst", Lapse, instances(1))
	if ours != nil {
		add(ours.title(), "first fire within 20 ms", ours.Burst.First.String(), ours.Burst.First <= 20)
		if theirs := r.find("burst", JetStream, nil); theirs != nil {
			ratio := ours.Burst.Drained / theirs.Burst.Drained
			got := fmt.Sprintf("%.2f times (%s/s against %s/s)", ratio, grouped(ours.Burst.Drained), grouped(theirs.Burst.Drained))
			add(ours.title(), "drained at JetStream's rate or better", got, ratio >= 1)
			add(ours.title(), "the stretch: 1.25 times JetStream's rate", got, ratio >= 1.25)
		}
	}
	if several := r.find("burst", Lapse, instances(3)); several != nil && ours != nil {
		ratio := several.Burst.Drained / ours.Burst.Drained
		add(several.title(), fmt.Sprintf("no slower than one instance (%.2f times, for the noise)", noise), fmt.Sprintf("%.2f times", ratio), ratio >= noise)
	}
	ours, several := r.find("rate", Lapse, instances(1)), r.find("rate", Lapse, instances(3))
	if ours != nil && several != nil {
		ratio := several.Lag.Fires / ours.Lag.Fires
		add(several.title(), fmt.Sprintf("no slower than one instance (%.2f times, for the noise)", noise),
			fmt.Sprintf("%.2f times, p99 %v against %v", ratio, several.Lag.P99, ours.Lag.P99), ratio >= noise)
	}
}

func (r *Report) setTargets(add addTarget) {
	if ours := r.find("set", Lapse, callers(512)); ours != nil {
		if theirs := r.find("set", JetStream, callers(512)); theirs != nil {
			ratio := ours.Set.PerSec / theirs.Set.PerSec
			add(ours.title(), "at least JetStream's rate", fmt.Sprintf("%.2f times (%s/s against %s/s)", ratio, grouped(ours.Set.PerSec), grouped(theirs.Set.PerSec)), ratio >= 1)
		}
	}
	if ours := r.find("set", Lapse, callers(1)); ours != nil && !math.IsInf(float64(ours.Set.P50), 0) {
		add(ours.title(), "p50 at most 1.3 times a bare NATS request and a bare script call",
			fmt.Sprintf("%.2f times (%v against %v + %v; a script call that stores as much takes %v)", ours.Set.Ratio, ours.Set.P50, ours.Set.NATS, ours.Set.Script, ours.Set.Storing), ours.Set.Ratio <= 1.3)
	}
}

// trial is a figure of JetStream from an earlier trial on a machine of this
// kind, so that an opponent that was set up badly is seen.
type trial struct{ what, earlier, here string }

func (r *Report) opponent() []trial {
	var out []trial
	lag := func(part, title, earlier string) {
		if p := r.find(part, JetStream, nil); p != nil {
			out = append(out, trial{title, earlier, fmt.Sprintf("p50 %v, p99 %v at %s pending, %s/s", p.Lag.P50, p.Lag.P99, grouped(float64(p.Pending)), grouped(p.Rate))})
		}
	}
	lag("growth", "lag, 1,000,000 pending, 100/s", "p50 128 ms, p99 251 ms")
	lag("rate", "lag, 300,000 pending, 10,000/s", "p50 355 ms, p99 536 ms")
	if p := r.find("set", JetStream, callers(512)); p != nil {
		out = append(out, trial{"set, 512 callers", "23,000 to 27,000/s", grouped(p.Set.PerSec) + "/s"})
	}
	if p := r.find("burst", JetStream, nil); p != nil {
		out = append(out, trial{"burst of 100,000", "drained at 25,000 to 28,000/s", fmt.Sprintf("%s/s of %s", grouped(p.Burst.Drained), grouped(float64(p.Count)))})
	}
	return out
}
