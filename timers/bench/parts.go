package bench

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"time"
)

// measureLag is the parts lag and rate, and each step of growth: timers spread
// evenly over a while, with others pending behind them.
func measureLag(ctx context.Context, r *rig, o Options, out *Result) error {
	if err := r.fill(ctx, o.Pending); err != nil {
		return err
	}
	n := max(1, int(o.Rate*o.Duration.Seconds()))
	v, err := r.fire(ctx, n, o.Duration, o.patience)
	if err != nil {
		return err
	}
	out.Pending, out.Rate, out.Duration, out.Count = r.pending, o.Rate, o.Duration.Seconds(), n
	l := v.arrivals.lag(v.due, v.clock)
	out.Lag, out.Clock, out.CPU = &l, v.read, v.cpu
	out.checkClock()
	return nil
}

// growthSteps measures the lag at ten times as many pending timers each time,
// from 10,000 up to what o asks for, on the same servers.
func growthSteps(o Options) []step {
	var steps []step
	for pending := min(10*kilo, o.Pending); ; pending = min(10*pending, o.Pending) {
		at := o
		at.Pending = pending
		steps = append(steps, step{"growth", at, measureLag})
		if pending >= o.Pending {
			return steps
		}
	}
}

// checkClock says when the servers of this machine seemed to have another
// clock, which would make the method wrong.
func (r *Result) checkClock() {
	// One millisecond more than the estimate says: the machine may have stalled
	// within every sample of it.
	if c := r.Clock; c != nil && c.Same && (c.Offset > c.Uncertainty+1 || c.Offset < -c.Uncertainty-1) {
		r.Notes = append(r.Notes, fmt.Sprintf("the clock of Redis seems to be %.3f ms off, though it runs on this machine", c.Offset))
	}
}

// measureBurst is the part burst: many timers due in one millisecond.
func measureBurst(ctx context.Context, r *rig, o Options, out *Result) error {
	if err := r.fill(ctx, o.Pending); err != nil {
		return err
	}
	type round struct {
		burst Burst
		v     *volley
	}
	var rounds []round
	for range o.Repeat {
		v, err := r.fire(ctx, o.Count, 0, o.patience+time.Duration(o.Count/kilo)*time.Second)
		if err != nil {
			return err
		}
		b := Burst{Lag: v.arrivals.lag(v.due, v.clock), First: never, Last: never}
		if first, last := v.arrivals.span(); last != 0 {
			due := v.due[0] * int64(time.Millisecond)
			b.First = millis(time.Duration(v.clock.redis(first) - due))
			b.Drained = perSecond(b.Arrived, time.Duration(v.clock.redis(last)-due))
			if b.Lost == 0 {
				b.Last = millis(time.Duration(v.clock.redis(last) - due))
			}
		}
		rounds = append(rounds, round{b, v})
	}
	var early int
	var drained []float64
	for _, x := range rounds {
		early += x.burst.Early
		drained = append(drained, x.burst.Drained)
	}
	// The median, but nothing bad of another round goes unseen.
	slices.SortFunc(rounds, func(a, b round) int { return cmp.Compare(a.burst.Drained, b.burst.Drained) })
	middle := rounds[(len(rounds)-1)/2]
	for _, x := range rounds {
		if x.burst.Lost > middle.burst.Lost {
			middle = x
		}
	}
	middle.burst.Early = early
	if o.Repeat > 1 {
		middle.burst.Rounds = drained
	}
	out.Pending, out.Count, out.Burst = r.pending, o.Count, &middle.burst
	out.Clock, out.CPU = middle.v.read, middle.v.cpu
	out.checkClock()
	return nil
}

// measureRecover is the part recover: what a service does that finds timers
// overdue at its start.
func measureRecover(ctx context.Context, r *rig, o Options, out *Result) error {
	d := r.contestant.(*deployment) // Check and about let no other come here
	if err := r.fill(ctx, max(o.Pending, calibration)); err != nil {
		return err
	}
	type round struct {
		Recover
		cpu map[string]float64
	}
	var all []round
	for range o.Repeat {
		recover, cpu, err := r.restart(ctx, d, o)
		if err != nil {
			return err
		}
		all = append(all, round{recover, cpu})
	}
	var early int
	var drained []float64
	var peak int64
	for _, x := range all {
		early, drained, peak = early+x.Lag.Early, append(drained, x.Drained), max(peak, x.PeakRSS)
	}
	// The median, but nothing bad of another round goes unseen.
	slices.SortFunc(all, func(a, b round) int { return cmp.Compare(a.Drained, b.Drained) })
	middle := all[(len(all)-1)/2]
	for _, x := range all {
		if x.Lag.Lost > middle.Lag.Lost {
			middle = x
		}
	}
	middle.Lag.Early, middle.PeakRSS = early, peak
	if o.Repeat > 1 {
		middle.Rounds = drained
	}
	out.Pending, out.Count, out.Recover, out.CPU = r.pending, o.Count, &middle.Recover, middle.cpu
	return nil
}

// restart stops the service, has timers fall due, and starts it again.
func (r *rig) restart(ctx context.Context, d *deployment, o Options) (result Recover, cpu map[string]float64, err error) {
	lead := time.Duration(float64(o.Count)/r.setRate*float64(2*time.Second)) + 3*time.Second
	due := make([]int64, o.Count)
	base := time.Now().Add(lead).UnixMilli()
	for i := range due {
		due[i] = base
	}
	first := r.next
	r.next += o.Count
	a := newArrivals(first, o.Count)
	stop, err := d.listen(a.record)
	if err != nil {
		return result, nil, err
	}
	defer stop() //nolint:errcheck // said below, where it counts
	if err := r.setMany(ctx, "setting what will be overdue", first, due); err != nil {
		return result, nil, err
	}
	was := len(d.instances)
	for _, p := range d.instances {
		if err := p.stop(); err != nil {
			return result, nil, err
		}
	}
	d.instances = nil
	if time.Now().UnixMilli() >= base || a.count() > 0 {
		return result, nil, fmt.Errorf("setting %d timers took longer than expected, and some were due before the service had stopped; try fewer timers", o.Count)
	}
	if err := sleep(ctx, time.Until(time.UnixMilli(base).Add(time.Second))); err != nil {
		return result, nil, err
	}
	if err := r.settle(ctx, o.Count); err != nil {
		return result, nil, err
	}
	before := d.cpu()
	began := time.Now()
	var ready time.Time
	for i := range was {
		at, err := d.serve(ctx)
		if err != nil {
			return result, nil, err
		}
		if i == 0 {
			ready = at
		}
	}
	follow := r.run.follow(r.name+": waiting for what was overdue", o.Count, a.count)
	defer follow()
	over := time.NewTimer(o.patience + time.Duration(o.Count/kilo)*time.Second)
	defer over.Stop()
	select {
	case <-a.all:
		if err := sleep(ctx, 100*time.Millisecond); err != nil { // for copies
			return result, nil, err
		}
	case <-over.C:
	case <-ctx.Done():
		return result, nil, ctx.Err()
	}
	cpu = d.cpu().since(before, o.Count)
	if err := stop(); err != nil {
		return result, nil, err
	}
	late := make([]int64, o.Count)
	for i := range late {
		late[i] = ready.UnixMilli()
	}
	result = Recover{First: never, Last: never, Start: millis(ready.Sub(began))}
	result.Lag = a.lag(late, clock{})
	result.Lag.Early = int(a.early.Load()) // what came before ready was due long before
	if at, last := a.span(); last != 0 {
		result.First, result.Last = millis(time.Duration(at-ready.UnixNano())), millis(time.Duration(last-ready.UnixNano()))
		result.Drained = perSecond(a.count(), time.Duration(last-min(at, ready.UnixNano())))
	}
	for _, p := range d.instances {
		_, peak := memory(p.pid())
		result.PeakRSS = max(result.PeakRSS, peak)
	}
	return result, cpu, nil
}
