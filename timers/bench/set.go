package bench

import (
	"cmp"
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/redis/go-redis/v9"
)

// measureSet is the part set: callers that each set one timer after another
// and await every answer.
func measureSet(ctx context.Context, r *rig, o Options, out *Result) error {
	// The first requests meet cold caches and growing heaps.
	if err := r.fill(ctx, r.pending+calibration); err != nil {
		return err
	}
	type round struct {
		set Set
		cpu map[string]float64
	}
	var rounds []round
	for range o.Repeat {
		before := r.cpu()
		s, err := r.setRound(ctx, o)
		if err != nil {
			return err
		}
		rounds = append(rounds, round{s, r.cpu().since(before, o.Count)})
		if err := r.settle(ctx, o.Count); err != nil {
			return err
		}
	}
	var rates []float64
	for _, x := range rounds {
		rates = append(rates, x.set.PerSec)
	}
	slices.SortFunc(rounds, func(a, b round) int { return cmp.Compare(a.set.PerSec, b.set.PerSec) })
	middle := rounds[(len(rounds)-1)/2]
	if o.Repeat > 1 {
		middle.set.Rounds = rates
	}
	out.Pending, out.Count, out.Concurrency = r.pending, o.Count, o.Concurrency
	out.Set, out.CPU = &middle.set, middle.cpu
	d, ours := r.contestant.(*deployment)
	if !ours || o.Concurrency != 1 {
		return nil
	}
	if d.redis == nil {
		out.Notes = append(out.Notes, "without --redis or --fresh, a set is not compared with a bare request and a bare script call")
		return nil
	}
	return r.compare(ctx, d, o.Count, out.Set)
}

// setRound sets o.Count far timers and times each.
func (r *rig) setRound(ctx context.Context, o Options) (Set, error) {
	first := r.take(o.Count)
	from := time.Now().Add(time.Hour).UnixMilli()
	took := make([]time.Duration, o.Count)
	var next, failed atomic.Int64
	var sample atomic.Pointer[error]
	follow := r.run.follow(r.name+": setting", o.Count, func() int { return min(int(next.Load()), o.Count) })
	began := time.Now()
	var wg sync.WaitGroup
	for caller := range o.Concurrency {
		wg.Go(func() {
			for ctx.Err() == nil {
				i := int(next.Add(1)) - 1
				if i >= o.Count {
					return
				}
				at := time.Now()
				if err := r.set(ctx, caller, first+i, from+rand.Int64N(time.Hour.Milliseconds())); err != nil {
					failed.Add(1)
					sample.Store(&err)
					took[i] = -1
					continue
				}
				took[i] = time.Since(at)
			}
		})
	}
	wg.Wait()
	elapsed := time.Since(began)
	follow()
	if ctx.Err() != nil {
		return Set{}, ctx.Err()
	}
	s := Set{Errors: int(failed.Load())}
	if s.Errors == o.Count {
		return s, fmt.Errorf("no timer could be set: %w", *sample.Load())
	}
	r.pending += o.Count - s.Errors
	s.PerSec = perSecond(o.Count-s.Errors, elapsed)
	h := newHistogram()
	for _, d := range took {
		if d >= 0 {
			h.record(d)
		}
	}
	s.P50, s.P99, s.Max = h.quantile(.5, s.Errors), h.quantile(.99, s.Errors), h.quantile(1, s.Errors)
	return s, nil
}

// bareScript does nothing: what a script call costs at least.
var bareScript = redis.NewScript("return 1")

// storingScript makes the three records of a timer: what the script call of a
// set costs at least.
var storingScript = redis.NewScript(`
redis.call('ZADD', KEYS[1], ARGV[1], ARGV[2])
redis.call('HSET', KEYS[2], 'p', ARGV[3], 'd', ARGV[1], 'r', ARGV[1])
redis.call('SET', KEYS[3], '', 'PXAT', ARGV[1])
return 1`)

// compare measures a single caller's sets beside what they are made of: a
// request over NATS and a script call. They take turns, so that all see the
// same machine. On fresh servers, whose data nobody wants, a script call that
// stores as much is measured too.
func (r *rig) compare(ctx context.Context, d *deployment, n int, out *Set) error {
	nc := d.conns[0]
	subject := nats.NewInbox() // nobody else listens there
	if d.servers != nil {
		if err := d.servers.responder(ctx, d.programs, d.natsURL, subject); err != nil {
			return err
		}
	} else {
		// Somebody's NATS may ask for credentials, which a process of its own
		// would have to be given: here another connection must do.
		var wg sync.WaitGroup
		respond, cancel := context.WithCancel(ctx)
		defer wg.Wait()
		defer cancel()
		ready := make(readiness)
		wg.Go(func() { _ = Respond(respond, d.receiver, subject, ready) }) // the requests tell
		select {
		case <-ready:
		case <-time.After(answerWithin):
			return fmt.Errorf("the bench may not subscribe to %s on this NATS; allow _INBOX.> or leave out --concurrency 1", subject)
		}
	}
	for _, s := range []*redis.Script{bareScript, storingScript} {
		if err := s.Load(ctx, d.redis).Err(); err != nil {
			return fmt.Errorf("load a script into Redis: %w", err)
		}
	}
	from := time.Now().Add(time.Hour).UnixMilli()
	first := r.take(n)
	sets, requests, scripts, storing := newHistogram(), newHistogram(), newHistogram(), newHistogram()
	request := &nats.Msg{Subject: subject, Data: d.payload, Header: nats.Header{"Timer-Id": {timerID(0)}, "Timer-Schedule": {at(from)}}}
	timed := func(h histogram, do func() error) error {
		at := time.Now()
		err := do()
		h.record(time.Since(at))
		return err
	}
	const turn = 50
	for i := 0; i < n && ctx.Err() == nil; i++ {
		if err := timed(sets, func() error { return d.set(ctx, 0, first+i, from) }); err != nil {
			return err
		}
		if i%turn != turn-1 {
			continue
		}
		for range turn {
			if err := timed(requests, func() error { _, err := nc.RequestMsg(request, answerWithin); return err }); err != nil {
				return fmt.Errorf("bare request: %w", err)
			}
		}
		for range turn {
			if err := timed(scripts, func() error { return bareScript.EvalSha(ctx, d.redis, []string{"bench"}).Err() }); err != nil {
				return fmt.Errorf("bare script call: %w", err)
			}
		}
		if d.servers == nil {
			continue
		}
		for j := range turn {
			name := "bench:" + timerID(i+j)
			keys := []string{"bench", name + ":shadow", name}
			if err := timed(storing, func() error { return storingScript.EvalSha(ctx, d.redis, keys, from, name, d.payload).Err() }); err != nil {
				return fmt.Errorf("bare script call that stores: %w", err)
			}
		}
	}
	if ctx.Err() != nil {
		return ctx.Err()
	}
	r.pending += n
	out.P50, out.P99, out.Max = sets.quantile(.5, 0), sets.quantile(.99, 0), sets.quantile(1, 0)
	out.NATS, out.Script = requests.quantile(.5, 0), scripts.quantile(.5, 0)
	if d.servers != nil {
		out.Storing = storing.quantile(.5, 0)
	}
	if sum := float64(out.NATS + out.Script); sum > 0 {
		out.Ratio = float64(int(float64(out.P50)/sum*100+.5)) / 100
	}
	return nil
}

// readiness is closed when the responder says that it listens.
type readiness chan struct{}

func (r readiness) Write(p []byte) (int, error) {
	close(r)
	return len(p), nil
}
