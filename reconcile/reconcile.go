// Package reconcile makes timers fire on time and recovers the ones whose
// event was lost.
//
// Redis expires a key when somebody looks at it, or when its sampler meets it,
// and the event comes only then. So for each partition a [Loop] sleeps until
// the next deadline of the backup set and then touches the trigger keys that
// are due: Redis expires them in that very command and their events leave.
// That is the nudge. What is still there after a grace is claimed directly:
// its event was lost, or nobody listens.
//
// The loop keeps no record of what it nudged. Each pass looks at the head of
// the backup set again, where a claim has moved what was heard out of the way;
// the size of that look bounds the events that can be under way, and the cost
// of a pass does not grow with the number of pending timers.
//
// With several instances one nudges each partition and the others stand by; each
// claims its own share of what is overdue (ADR 25). Beside that a slow walk
// through all keys finds records that no set names any more.
//
// notify is the other source of the same hints. The two do not know each
// other; main hands one the other's wake-up.
package reconcile

import (
	"context"
	"errors"
	"log/slog"
	"math"
	"sync"
	"sync/atomic"
	"time"

	"github.com/lapse-timers/lapse/timers"
)

// Store is what a Loop asks of the backup set.
type Store interface {
	Due(ctx context.Context, p int, grace time.Duration, touch, overdue int) (timers.DueScan, error)
	Discard(ctx context.Context, p int, members []string) error
	Patrol(ctx context.Context, p int, cursor string, n int) (next string, mended int, err error)
}

// Config tunes a [Loop].
type Config struct {
	Store      Store
	Partitions int
	Grace      time.Duration // how long an event may take before its timer is claimed directly

	// Sweep claims overdue timers and starts their delivery; it may wait.
	Sweep func(ctx context.Context, p int, refs []timers.Ref) (claimed int, err error)
	// Await returns once firing makes sense: nothing is nudged while it waits.
	Await func(ctx context.Context) error
	// Deaf says that no events come, so that waiting for them is no use.
	Deaf func() bool
	// Missed is told when timers have to be claimed for want of an event while
	// events should come: they were lost, or there are too many at once. It is
	// called once a grace at most and must not block.
	Missed func(n int)

	// Several instances share the work through these (ADR 25); left out, this
	// one is alone. Leads says whether this one nudges a partition, or stands by;
	// Mine whether a timer is its to claim; Tell tells the one that nudges of a
	// timer that was set here and may be the next one due. None may block.
	Leads func(p int) bool
	Mine  func(timers.Ref) bool
	Tell  func(p int, due time.Time)

	Logger *slog.Logger
}

const (
	// touchBatch bounds the nudges that are not answered yet, and with them
	// what Redis must buffer for a subscriber: 2,048 names of at most 500 bytes
	// are 1 MB, far below the limit in redis.conf.
	touchBatch = 2048
	// touchFirst is where a burst begins: a look that touches few is answered
	// sooner, and so is the first fire. Each look that was full doubles it.
	touchFirst = 64
	// sweepBatch is how many overdue timers are claimed at a time.
	sweepBatch = 1024
	// sweepNamed is how many are looked at to find as many of one's own.
	sweepNamed = 4096
	// lookAtLeast is the longest sleep: what another instance has set, or a
	// foreign hand has moved, is seen by then.
	lookAtLeast = time.Second
	// backlog is when to look once more at more due timers than one look takes.
	backlog = 10 * time.Millisecond
	// again is when to look once more at a trigger that was touched in its very
	// millisecond, and when the next look may touch more.
	again = time.Millisecond
	// fruitless is the pause after a sweep that claimed nothing: others are at
	// it, or nothing can be done, and looking at once would be a spin.
	fruitless = 10 * time.Millisecond
	// patrolEvery and patrolKeys are the pace of the search for records that no
	// set names. At ten million keys a look takes Redis a millisecond, for which
	// whatever is due must wait. Each partition is walked by itself: with a million
	// keys a walk takes three hours and 20 minutes for each. lapse doctor --fix does
	// not wait.
	patrolEvery = 1500 * time.Millisecond
	patrolKeys  = 125
	// standBy is the part of the grace that who stands by leaves to who nudges.
	standBy = 2
)

// Loop nudges and recovers. Make it with [New], run it with [Loop.Run].
type Loop struct {
	cfg   Config
	parts []*part
	stats Stats
	alarm func() *alarm // newAlarm but in tests on a clock of their own
}

// Stats are totals since the start; read them with Load.
type Stats struct {
	Passes    atomic.Int64 // looks at a backup set
	Touched   atomic.Int64 // triggers touched, those of an earlier pass again
	Recovered atomic.Int64 // timers claimed for want of an event
	Failures  atomic.Int64 // passes that Redis did not answer
	Discarded atomic.Int64 // members that were no timer's name
	Mended    atomic.Int64 // records that the backup set did not know of, put back or removed
}

// part is one partition. plan is written by its nudging goroutine and read by
// WakeBefore.
type part struct {
	p       int
	wake    chan struct{}     // one slot
	overdue chan []timers.Ref // one slot, taken by the sweeping goroutine
	busy    atomic.Bool       // the sweeping goroutine has some, or they are in its slot
	more    chan struct{}     // one slot: the sweeping goroutine is done, look again
	plan    atomic.Int64      // a timer due before it wants another look, ms on Redis's clock
	first   atomic.Int64      // of one due before it who nudges may not know, likewise
	missed  time.Time         // when Missed was last called; the nudging goroutine's
	touch   int               // how many the next look may touch; likewise
	named   int               // how many overdue ones it may name; likewise
}

// New makes a loop; nothing happens before Run.
func New(cfg Config) *Loop {
	if cfg.Logger == nil {
		cfg.Logger = slog.New(slog.DiscardHandler)
	}
	if cfg.Leads == nil {
		cfg.Leads = func(int) bool { return true }
	}
	if cfg.Mine == nil {
		cfg.Mine = func(timers.Ref) bool { return true }
	}
	if cfg.Tell == nil {
		cfg.Tell = func(int, time.Time) {}
	}
	l := &Loop{cfg: cfg, alarm: newAlarm}
	for p := range cfg.Partitions {
		l.parts = append(l.parts, &part{
			p:       p,
			wake:    make(chan struct{}, 1),
			overdue: make(chan []timers.Ref, 1),
			more:    make(chan struct{}, 1),
			touch:   touchFirst,
			named:   sweepBatch,
		})
	}
	return l
}

// Stats are the totals so far.
func (l *Loop) Stats() *Stats { return &l.stats }

// Wake makes every partition look now: events may have been lost. It never
// blocks.
func (l *Loop) Wake() {
	for _, p := range l.parts {
		signal(p.wake)
	}
}

// WakeBefore makes partition p look again if due is earlier than it means to:
// a timer was set here that is now the first. Who stands by tells who nudges.
// It never blocks.
func (l *Loop) WakeBefore(p int, due time.Time) {
	part := l.parts[p]
	ms := due.UnixMilli()
	if ms < part.plan.Load() {
		signal(part.wake)
	}
	if first := part.first.Load(); ms < first && !l.cfg.Leads(p) {
		part.first.CompareAndSwap(first, ms)
		l.cfg.Tell(p, due)
	}
}

// Noticed is WakeBefore for a timer that another instance has set; who stands
// by leaves it to who nudges.
func (l *Loop) Noticed(p int, due time.Time) {
	part := l.parts[p]
	if l.cfg.Leads(p) && due.UnixMilli() < part.plan.Load() {
		signal(part.wake)
	}
}

// Run nudges and recovers until ctx ends. It returns nil then.
func (l *Loop) Run(ctx context.Context) error {
	var wg sync.WaitGroup
	for _, p := range l.parts {
		wg.Go(func() { l.nudge(ctx, p) })
		wg.Go(func() { l.sweep(ctx, p) })
	}
	wg.Go(func() { l.patrol(ctx) })
	wg.Wait()
	return nil
}

// nudge is the loop of one partition.
func (l *Loop) nudge(ctx context.Context, p *part) {
	alarm := l.alarm()
	defer alarm.Stop()
	pause := time.Duration(0) // after failures
	for {
		// While it waits or looks, whatever is set may be missing from the answer.
		p.plan.Store(math.MaxInt64)
		p.first.Store(math.MaxInt64)
		if l.cfg.Await(ctx) != nil {
			return
		}
		sleep, err := l.pass(ctx, p)
		switch {
		case ctx.Err() != nil:
			return
		case err != nil:
			l.stats.Failures.Add(1)
			// That Redis is away is said once, by who watches its health, and not
			// by each partition.
			if pause == 0 {
				l.cfg.Logger.Debug("cannot look at the backup set, trying again", "partition", p.p, "error", err)
			}
			pause = min(max(2*pause, 20*time.Millisecond), lookAtLeast)
			sleep = pause
			// It looks soon by itself. Sets, also those of meanwhile, must not
			// take the pause from a Redis that is in trouble.
			p.plan.Store(0)
			select {
			case <-p.wake:
			default:
			}
		case pause != 0:
			l.cfg.Logger.Debug("the backup set answers again", "partition", p.p)
			pause = 0
		}
		alarm.Reset(sleep)
		select {
		case <-ctx.Done():
			return
		case <-alarm.C:
		case <-alarm.kernel:
		case <-p.wake:
		case <-p.more:
		}
	}
}

// pass looks once and says how long to sleep.
func (l *Loop) pass(ctx context.Context, p *part) (time.Duration, error) {
	grace := l.cfg.Grace
	deaf := l.cfg.Deaf()
	if deaf {
		// Everything due is overdue: nobody will say so.
		grace = 0
	}
	// What is named while the sweeping goroutine is at earlier ones may be the
	// same timers. It asks for more when it is done.
	free := !p.busy.Load()
	named := 0
	if free {
		named = p.named
	}
	scan, err := l.cfg.Store.Due(ctx, p.p, grace, p.touch, named)
	if err != nil {
		return 0, err
	}
	got := time.Now()
	l.stats.Passes.Add(1)
	l.stats.Touched.Add(int64(scan.Touched))
	if len(scan.Strange) > 0 {
		l.stats.Discarded.Add(int64(len(scan.Strange)))
		l.cfg.Logger.Warn("removing members of the backup set that are no timers", "partition", p.p, "count", len(scan.Strange))
		if err := l.cfg.Store.Discard(ctx, p.p, scan.Strange); err != nil {
			return 0, err
		}
	}
	if len(scan.Overdue) > 0 {
		p.busy.Store(true)
		p.overdue <- l.share(p, scan.Overdue)
		if now := time.Now(); !deaf && now.Sub(p.missed) > grace {
			p.missed = now
			l.cfg.Missed(len(scan.Overdue))
		}
	}

	// Everything below is on Redis's clock, which only Redis reads; the time
	// since its answer is the one thing measured here.
	leads := deaf || l.cfg.Leads(p.p)
	late := time.Millisecond // after a score at which the look comes
	switch {
	case deaf:
		late = 0
	case !leads:
		late = grace / standBy
	}
	wake := scan.Now.Add(lookAtLeast)
	earlier := func(t time.Time) {
		if t.Before(wake) {
			wake = t
		}
	}
	if !scan.Next.IsZero() {
		// A key expires when now is strictly past its time. A deaf instance
		// claims, which may be in that very millisecond.
		earlier(scan.Next.Add(late))
	}
	if !scan.Oldest.IsZero() {
		earlier(scan.Oldest.Add(grace + time.Millisecond))
	}
	full := scan.Touched == p.touch
	// Twice of what was there: the claimed ones of this look make room at the
	// next, and what is still being claimed must not hide what is due behind it.
	p.touch = min(max(2*scan.Touched, touchFirst), touchBatch)
	switch {
	case !leads:
		// The other one is at it, unless it died.
		if scan.Waiting > 0 || full {
			earlier(scan.Now.Add(late))
		}
	case scan.Waiting > 0, full && p.touch < touchBatch:
		earlier(scan.Now.Add(again))
	case full:
		// All of them are expired and wait to be claimed. Looking is no help,
		// and takes from Redis what the claims need.
		earlier(scan.Now.Add(backlog))
	}
	// The look at wake also serves what is due right before it.
	switch {
	case leads:
		p.plan.Store(wake.Add(-late).UnixMilli())
	case !scan.Next.IsZero() && scan.Next.Before(wake):
		p.plan.Store(scan.Next.UnixMilli())
	default:
		p.plan.Store(wake.UnixMilli())
	}
	// Who nudges looks within a second of its own, and so knows of what comes later.
	first := scan.Now.Add(2 * lookAtLeast)
	if !scan.Next.IsZero() && scan.Next.Before(first) {
		first = scan.Next
	}
	p.first.Store(first.UnixMilli())
	return max(wake.Sub(scan.Now)-time.Since(got), 0), nil
}

// share gives the overdue timers that this instance is to claim: its own, and
// where it has none among them those of the others, who may be dead.
func (l *Loop) share(p *part, overdue []timers.Ref) []timers.Ref {
	var own []timers.Ref
	for _, r := range overdue {
		if len(own) < sweepBatch && l.cfg.Mine(r) {
			own = append(own, r)
		}
	}
	switch {
	case len(own) == 0:
		return overdue[:min(len(overdue), sweepBatch)]
	case len(own) < sweepBatch && len(overdue) == p.named:
		p.named = min(2*p.named, sweepNamed)
	}
	return own
}

// sweep claims what pass found overdue, apart from the nudging, which must not
// wait while NATS is slow.
func (l *Loop) sweep(ctx context.Context, p *part) {
	for {
		var refs []timers.Ref
		select {
		case <-ctx.Done():
			return
		case refs = <-p.overdue:
		}
		claimed, err := l.cfg.Sweep(ctx, p.p, refs)
		l.stats.Recovered.Add(int64(claimed))
		switch {
		case ctx.Err() != nil:
			return
		case err != nil:
			if !errors.Is(err, timers.ErrUnavailable) {
				l.cfg.Logger.Debug("could not claim overdue timers", "partition", p.p, "error", err)
			}
			// The next look comes by itself: nothing is gained by haste.
			p.busy.Store(false)
		default:
			// Claimed by us or by another instance, they are out of the way now.
			if claimed == 0 {
				select {
				case <-ctx.Done():
					return
				case <-time.After(fruitless):
				}
			}
			p.busy.Store(false)
			signal(p.more)
		}
	}
}

// patrol walks slowly through all keys, one partition after the other, for
// records that no set names any more. Who nudges a partition does it.
func (l *Loop) patrol(ctx context.Context) {
	tick := time.NewTicker(patrolEvery)
	defer tick.Stop()
	p, cursor := 0, "0"
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		if !l.cfg.Leads(p) {
			p, cursor = (p+1)%len(l.parts), "0"
			continue
		}
		next, mended, err := l.cfg.Store.Patrol(ctx, p, cursor, patrolKeys)
		if err != nil {
			continue // the looks say that Redis is in trouble
		}
		if cursor = next; mended > 0 {
			l.stats.Mended.Add(int64(mended))
			l.cfg.Logger.Warn("mended records that the backup set did not know of", "partition", p, "count", mended)
			signal(l.parts[p].wake)
		}
		if cursor == "0" {
			p = (p + 1) % len(l.parts)
		}
	}
}

// signal fills a one-slot channel.
func signal(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}
