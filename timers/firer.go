package timers

import (
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"
	"golang.org/x/sync/semaphore"

	"github.com/lapse-timers/lapse/timers/fault"
)

// Source says which path fired a timer.
type Source string

// The sources of hints.
const (
	FromEvent Source = "event" // Redis's expired event
	FromSweep Source = "sweep" // the reconciler
)

// Outcome is what is known of an attempt to deliver.
type Outcome int

// The outcomes of an attempt. The zero value is the careful one.
const (
	// Unknown: it may have been delivered: a timeout, a cut connection.
	Unknown Outcome = iota
	// Refused: it was definitely not delivered.
	Refused
	// Delivered: stored in the stream, or taken by the server.
	Delivered
)

// Delivery is how an attempt ended.
type Delivery struct {
	Outcome   Outcome
	Duplicate bool  // delivered, and already there from an earlier attempt
	Err       error // why not, when it was not delivered
}

// Publisher hands claimed timers to NATS.
type Publisher interface {
	// Publish starts the delivery of a claim, and calls done exactly once, on
	// any goroutine and within a bounded time. It must not repeat by itself.
	// It may keep the claim until then. A claim past its PublishBy is refused
	// with ErrStale, one that reaches nobody with ErrAway, and one that is larger
	// than the limit of now with ErrTooLarge.
	Publish(c *Claim, source Source, done func(Delivery))
	// Await returns nil once publishing makes sense, or the context's error.
	// It returns at once in steady state.
	Await(ctx context.Context) error
}

// Attempt is how an attempt to deliver ended, for who counts them.
type Attempt struct {
	Delivery
	Topic  string
	Source Source
	Number int  // 1 for the first of this life
	Dead   bool // and with it the timer was given up on
	// Lag is from the due time to now, Took from handing it to the publisher.
	Lag, Took time.Duration
}

// FirerConfig tunes a [Firer]. Zero values of the sizes get defaults.
type FirerConfig struct {
	// Instance names this process in the tokens of its claims, so that they can
	// be given back when it dies; random, without a point. Empty: made up.
	Instance string

	Lease    time.Duration // how long a claim holds; whole milliseconds, at least a second makes sense
	RetryMin time.Duration // back-off after the first failed attempt; doubles; positive
	RetryMax time.Duration // longest back-off; at least RetryMin
	// MaxAttempts is after how many attempts that were not delivered a timer is
	// given up on; 0 for never. What can never be delivered is given up on at
	// once, whatever it says (ADR 26).
	MaxAttempts int
	// Ended is told of each attempt that has ended. It is called from several
	// goroutines and must not block; nil when nobody counts (ADR 32).
	Ended func(Attempt)
	// Buried is told of each timer that was given up on, with the reason, once
	// that is written. It must not block; nil when nobody wants to know.
	Buried func(c *Claim, reason string)
	Settle time.Duration // how long Run waits for attempts under way when it ends; 0: not at all

	InFlight int // most claims not settled yet (4,096)
	Bytes    int // about how much payload these may hold (64 MiB)
	Queue    int // most hints waiting (16,384); beyond it they are dropped, for the reconciler to find

	Logger *slog.Logger
}

// Firer turns hints that a timer may be due into deliveries: claim, publish,
// acknowledge, each in batches and overlapped. Hints may be wrong, late or
// doubled; the claim script decides (ADR 4).
type Firer struct {
	store *Store
	pub   Publisher
	cfg   FirerConfig

	hints   chan Ref
	results chan result         // capacity InFlight, so that a send never blocks
	window  *semaphore.Weighted // claims not settled
	bytes   *semaphore.Weighted // their payload
	token   atomic.Uint64

	inFlight atomic.Int64
	stats    FirerStats
	lag      lagRing
	dead     deadLog
}

// FirerStats are totals since the start.
type FirerStats struct {
	Event, Sweep   atomic.Int64 // delivered, by source
	Duplicates     atomic.Int64 // of these, already stored by an earlier attempt
	Refused        atomic.Int64 // attempts
	Unknown        atomic.Int64 // attempts
	Repaired       atomic.Int64 // records mended or removed by claims
	HintsDropped   atomic.Int64 // the queue was full
	ClaimErrors    atomic.Int64 // batches whose claim failed, after repeats
	SettleFailures atomic.Int64 // claims whose ack or release could not be written within the lease
	Dead           atomic.Int64 // timers given up on
	Lapsed         atomic.Int64 // claims of timers whose claim before was not settled: lease over, or claimer dead
	Stale          atomic.Int64 // claims not published since half their lease was over
}

type result struct {
	p      int // the partition it was claimed in
	claim  *Claim
	source Source
	weight int64     // of its payload in the window
	sent   time.Time // before the claim was sent; its lease is not older
	lag    time.Duration
	took   time.Duration
	Delivery
}

func (r *result) attempt(dead bool) Attempt {
	return Attempt{
		Delivery: r.Delivery, Topic: r.claim.Topic, Source: r.source, Number: r.claim.Attempt,
		Dead: dead, Lag: r.lag, Took: r.took,
	}
}

const (
	claimBatch = 256     // timers a claim may take: about 5 ms of Redis
	claimBytes = 8 << 20 // payload a claim may hand out
	claimers   = 2       // one claims while the other publishes
	settlers   = 2
)

// NewFirer fires timers of the store through pub. Nothing happens before Run.
func NewFirer(store *Store, pub Publisher, cfg FirerConfig) *Firer {
	if cfg.InFlight == 0 {
		cfg.InFlight = 4096
	}
	if cfg.Bytes == 0 {
		cfg.Bytes = 64 << 20
	}
	if cfg.Queue == 0 {
		cfg.Queue = 16384
	}
	if cfg.Logger == nil {
		cfg.Logger = slog.New(slog.DiscardHandler)
	}
	if cfg.Ended == nil {
		cfg.Ended = func(Attempt) {}
	}
	if cfg.Buried == nil {
		cfg.Buried = func(*Claim, string) {}
	}
	cfg.Bytes = max(cfg.Bytes, claimBytes)
	if cfg.Instance == "" {
		seed := make([]byte, 8)
		for i := range seed {
			seed[i] = byte(rand.Uint32())
		}
		cfg.Instance = hex.EncodeToString(seed)
	}
	return &Firer{
		store:   store,
		pub:     pub,
		cfg:     cfg,
		hints:   make(chan Ref, cfg.Queue),
		results: make(chan result, cfg.InFlight),
		window:  semaphore.NewWeighted(int64(cfg.InFlight)),
		bytes:   semaphore.NewWeighted(int64(cfg.Bytes)),
	}
}

// Hint says that an event named the timer. It never blocks: what does not fit
// is counted and left to the reconciler.
func (f *Firer) Hint(r Ref) {
	select {
	case f.hints <- r:
	default:
		f.stats.HintsDropped.Add(1)
	}
}

// Sweep claims the timers of partition p and starts their delivery, oldest
// first, a few batches at a time: one is claimed while another is published.
// It waits while NATS is away or enough is under way, and returns how many
// were claimed once they are. Claims whose payload did not fit come with later
// sweeps.
func (f *Firer) Sweep(ctx context.Context, p int, refs []Ref) (int, error) {
	var total atomic.Int64
	var group errgroup.Group
	group.SetLimit(claimers)
	for batch := range slices.Chunk(refs, claimBatch) {
		group.Go(func() error {
			claimed, err := f.claim(ctx, p, batch, FromSweep)
			total.Add(int64(claimed))
			return err
		})
	}
	err := group.Wait()
	return int(total.Load()), err
}

// InFlight is how many claims of this instance are not settled yet.
func (f *Firer) InFlight() int { return int(f.inFlight.Load()) }

// Stats are the totals; read them with Load.
func (f *Firer) Stats() *FirerStats { return &f.stats }

// Lag is how late the last deliveries were, from the due time to the
// acknowledgement.
func (f *Firer) Lag() LagSummary { return f.lag.summary() }

// Run fires until ctx ends; then it takes no more hints, waits up to
// cfg.Settle for what is under way, and returns. What is not settled by then
// stays claimed: its lease brings it back.
func (f *Firer) Run(ctx context.Context) error {
	var claiming, settling sync.WaitGroup
	for range claimers {
		claiming.Go(func() { f.claimHints(ctx) })
	}
	settle, stop := context.WithCancel(context.WithoutCancel(ctx))
	defer stop()
	for range settlers {
		settling.Go(func() { f.settle(settle) })
	}
	claiming.Wait()

	done, cancel := context.WithTimeout(context.WithoutCancel(ctx), f.cfg.Settle)
	defer cancel()
	// The whole window is free once nothing is under way. Sweeps end with their
	// own context.
	if err := f.window.Acquire(done, int64(f.cfg.InFlight)); err != nil {
		f.cfg.Logger.Warn("stopped with fires under way; their lease brings them back", "in_flight", f.InFlight())
	} else {
		f.window.Release(int64(f.cfg.InFlight))
	}
	stop()
	settling.Wait()
	f.dead.end(f.cfg.Logger)
	return nil
}

func (f *Firer) claimHints(ctx context.Context) {
	batch := make([]Ref, 0, claimBatch)
	byPartition := make(map[int][]Ref)
	for {
		batch = batch[:0]
		select {
		case <-ctx.Done():
			return
		case r := <-f.hints:
			batch = append(batch, r)
		}
		// No hint waits for a batch to fill: only what is there is taken.
	drain:
		for len(batch) < claimBatch {
			select {
			case r := <-f.hints:
				batch = append(batch, r)
			default:
				break drain
			}
		}
		clear(byPartition)
		for _, r := range batch {
			p := f.store.keys.Partition(r)
			byPartition[p] = append(byPartition[p], r)
		}
		for p, refs := range byPartition {
			// A failed claim is counted, and the reconciler finds its timers again.
			if _, err := f.claim(ctx, p, refs, FromEvent); err != nil && ctx.Err() == nil {
				f.cfg.Logger.Debug("claim failed", "error", err)
			}
		}
	}
}

// claim claims at most claimBatch timers and starts their delivery.
func (f *Firer) claim(ctx context.Context, p int, refs []Ref, source Source) (int, error) {
	if err := f.pub.Await(ctx); err != nil {
		return 0, err
	}
	if err := f.window.Acquire(ctx, int64(len(refs))); err != nil {
		return 0, err
	}
	reserved := int64(len(refs))
	defer func() { f.window.Release(reserved) }()
	if err := f.bytes.Acquire(ctx, claimBytes); err != nil {
		return 0, err
	}
	budget := int64(claimBytes)
	defer func() { f.bytes.Release(budget) }()

	sent := time.Now()
	token := f.cfg.Instance + "." + formatToken(f.token.Add(1))
	res, err := f.claimOnce(ctx, p, token, sent, refs)
	if err != nil {
		f.stats.ClaimErrors.Add(1)
		return 0, err
	}
	if res.Repaired > 0 {
		f.stats.Repaired.Add(int64(res.Repaired))
		f.cfg.Logger.Warn("repaired inconsistent records", "count", res.Repaired)
	}
	fault.Point("claimed")
	got := time.Now()
	for i := range res.Claims {
		c := &res.Claims[i]
		weight := min(int64(len(c.Payload)+len(c.Headers)), budget)
		budget -= weight
		reserved--
		r := result{p: p, claim: c, source: source, weight: weight, sent: sent}
		f.inFlight.Add(1)
		c.PublishBy = sent.Add(f.cfg.Lease / 2)
		if c.Lapsed {
			f.stats.Lapsed.Add(1)
		}
		late := res.Now.Sub(c.Due)
		fault.Point("publish")
		handed := time.Now()
		f.pub.Publish(c, source, func(d Delivery) {
			if d.Outcome == Delivered {
				fault.Point("published")
			}
			r.Delivery = d
			now := time.Now()
			r.lag, r.took = late+now.Sub(got), now.Sub(handed)
			f.results <- r
		})
		fault.Point("sent")
	}
	for _, r := range res.Later {
		f.Hint(r)
	}
	return len(res.Claims), nil
}

// Errors of attempts that reached nobody, and so say nothing of the timer.
var (
	// ErrStale is why a claim was not published after its PublishBy.
	ErrStale = errors.New("half the lease was over before it could be published")
	// ErrAway is matched where NATS was not connected, where the server says that
	// nobody was there to take it, or where the process ended.
	ErrAway = errors.New("it reached nobody")
)

// claimOnce sends the claim. Once a reply was lost it sends the claim again with
// the same token until there is an answer, however long Redis is away: what the
// first one claimed is answered again. Given up, those timers would wait for the
// end of their lease, so only that ends it. An answer that comes too late to
// publish by is still worth having: its claims are given back.
func (f *Firer) claimOnce(ctx context.Context, p int, token string, sent time.Time, refs []Ref) (ClaimResult, error) {
	lost, pause := false, 20*time.Millisecond
	for {
		fault.Point("claim")
		res, err := f.store.Claim(ctx, p, f.cfg.Lease, token, lost, claimBytes, refs)
		// A foreign type stops it each time, and before a token is written.
		lost = lost || errors.Is(err, ErrUnconfirmed) && !foreignType(err)
		if err == nil || !lost || time.Since(sent) > f.cfg.Lease || sleep(ctx, pause) != nil {
			return res, err
		}
		pause = min(2*pause, 500*time.Millisecond)
	}
}

// settle acknowledges what was delivered, and releases or buries what was not.
func (f *Firer) settle(ctx context.Context) {
	batch := make([]result, 0, claimBatch)
	for {
		batch = batch[:0]
		select {
		case <-ctx.Done():
			return
		case r := <-f.results:
			batch = append(batch, r)
		}
	drain:
		for len(batch) < claimBatch {
			select {
			case r := <-f.results:
				batch = append(batch, r)
			default:
				break drain
			}
		}
		f.settleBatch(ctx, batch)
	}
}

func (f *Firer) settleBatch(ctx context.Context, batch []result) {
	acks := make(map[int][]*Claim)
	releases := make(map[int][]Release)
	burials := make(map[int][]burial)
	oldest := batch[0].sent
	for i := range batch {
		r := &batch[i]
		p := r.p
		if r.sent.Before(oldest) {
			oldest = r.sent
		}
		f.count(r)
		reason, over := f.givenUp(r)
		if !over {
			f.cfg.Ended(r.attempt(false))
		}
		switch {
		case r.Outcome == Delivered:
			acks[p] = append(acks[p], r.claim)
		case over:
			burials[p] = append(burials[p], burial{r, Burial{Claim: r.claim, Unknown: r.Outcome == Unknown, Reason: reason}})
		default:
			releases[p] = append(releases[p], Release{Claim: r.claim, Unknown: r.Outcome == Unknown, After: f.backOff(r.claim.Attempt)})
		}
	}
	for p, claims := range acks {
		fault.Point("ack")
		f.untilWritten(ctx, oldest, len(claims), func(ctx context.Context) error { return f.store.Ack(ctx, p, claims) })
		fault.Point("acked")
	}
	for p, list := range releases {
		fault.Point("release")
		f.untilWritten(ctx, oldest, len(list), func(ctx context.Context) error { return f.store.Release(ctx, p, list) })
		fault.Point("released")
	}
	for p, list := range burials {
		f.bury(ctx, oldest, p, list)
	}
	var weight int64
	for i := range batch {
		weight += batch[i].weight
	}
	f.inFlight.Add(-int64(len(batch)))
	f.bytes.Release(weight)
	f.window.Release(int64(len(batch)))
}

// givenUp says whether no further attempt is made after this one, and why. An
// attempt that reached nobody says nothing of the timer, or a stream without a
// leader would kill all that falls due meanwhile.
func (f *Firer) givenUp(r *result) (reason string, over bool) {
	switch {
	case r.Outcome == Delivered, errors.Is(r.Err, ErrStale), errors.Is(r.Err, ErrAway):
		return "", false
	case r.Outcome == Refused && errors.Is(r.Err, ErrTooLarge):
		return Reason(r.Err.Error()), true
	case f.cfg.MaxAttempts > 0 && r.claim.Attempt >= f.cfg.MaxAttempts:
		why := "not known"
		if r.Err != nil {
			why = r.Err.Error()
		}
		return Reason(fmt.Sprintf("given up on after %d attempts: %s", r.claim.Attempt, why)), true
	}
	return "", false
}

// burial is what a last attempt led to.
type burial struct {
	*result
	Burial
}

// bury writes that timers are given up on, and tells of those that are now dead.
func (f *Firer) bury(ctx context.Context, oldest time.Time, p int, burials []burial) {
	list := make([]Burial, len(burials))
	for i, b := range burials {
		list[i] = b.Burial
	}
	var dead []bool
	fault.Point("bury")
	f.untilWritten(ctx, oldest, len(list), func(ctx context.Context) (err error) {
		dead, err = f.store.Bury(ctx, p, list)
		return err
	})
	fault.Point("buried")
	for i := range list {
		is := i < len(dead) && dead[i] // else a cancel had stopped it, or it could not be written
		f.cfg.Ended(burials[i].attempt(is))
		if is {
			f.stats.Dead.Add(1)
			f.dead.add(f.cfg.Logger, &list[i])
			f.cfg.Buried(list[i].Claim, list[i].Reason)
		}
	}
}

// untilWritten repeats write, which is safe to repeat, until Redis has taken
// it. What is known of a fire is worth keeping for as long as nobody else can
// have claimed it, and while Redis is away nobody can. Once Redis answers, and
// the lease of the oldest claim is over, an error is the end of it.
func (f *Firer) untilWritten(ctx context.Context, oldest time.Time, n int, write func(context.Context) error) {
	pause := 10 * time.Millisecond
	for {
		err := write(ctx)
		if err == nil {
			return
		}
		if answered(err) && time.Since(oldest) > f.cfg.Lease || sleep(ctx, pause) != nil {
			f.stats.SettleFailures.Add(int64(n))
			f.cfg.Logger.Warn("could not settle fires; they will be fired again with the same Nats-Msg-Id", "count", n, "error", err)
			return
		}
		pause = min(2*pause, 100*time.Millisecond)
	}
}

func (f *Firer) count(r *result) {
	switch r.Outcome {
	case Delivered:
		if r.source == FromEvent {
			f.stats.Event.Add(1)
		} else {
			f.stats.Sweep.Add(1)
		}
		if r.Duplicate {
			f.stats.Duplicates.Add(1)
		}
		f.lag.add(r.lag)
	case Refused:
		f.stats.Refused.Add(1)
		if errors.Is(r.Err, ErrStale) {
			f.stats.Stale.Add(1)
		}
	default:
		f.stats.Unknown.Add(1)
	}
}

// backOff doubles with every attempt, with a fifth of jitter so that what was
// refused together does not come back together.
func (f *Firer) backOff(attempt int) time.Duration {
	d := f.cfg.RetryMax
	// Shifted the other way round, since the product may overflow.
	if shift := max(attempt-1, 0); shift < 63 && f.cfg.RetryMin <= d>>shift {
		d = f.cfg.RetryMin << shift
	}
	return max(d-time.Duration(rand.Int64N(int64(d)/5+1)), time.Millisecond)
}

func formatToken(n uint64) string {
	const digits = "0123456789abcdefghijklmnopqrstuv"
	var b [13]byte
	i := len(b)
	for {
		i--
		b[i] = digits[n&31]
		if n >>= 5; n == 0 {
			return string(b[i:])
		}
	}
}

func sleep(ctx context.Context, d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-t.C:
		return nil
	}
}
