package timers

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/cespare/xxhash/v2"

	"github.com/lapse-timers/lapse/timers/fault"
)

// CrewConfig is what a [Crew] works with.
type CrewConfig struct {
	Instance string // of this process; random
	DB       int    // the database of the keys

	// Fires says whether this instance can deliver now; it must not block.
	Fires func() bool
	// Rescued is told when claims of a dead instance were given back. It must
	// not block.
	Rescued func()
	// Noticed is told of a timer that another instance has set and that may be
	// the next one due. It must not block.
	Noticed func(partition int, due time.Time)

	Logger *slog.Logger
}

// Crew is the instances that share the work on one set of keys (ADR 25). They
// sign a list a few times in their short life, and see who else does:
//
//   - each takes its share of the events and of what is overdue, so that they do
//     not all claim the same;
//   - each partition has one that nudges, and others that stand by;
//   - what an instance had claimed that signs no more is given back at once.
//
// All of this is a matter of speed. The claim script decides, so instances that
// see different lists do no harm, and what falls between them is found by the
// reconciler.
type Crew struct {
	store *Store
	cfg   CrewConfig
	kick  chan struct{} // one slot: sign now
	view  atomic.Pointer[crewView]

	leaving  atomic.Bool
	foreign  chan error             // one slot
	unsigned atomic.Pointer[string] // why Redis takes no sign, once that lasts
	earlier  []atomic.Int64         // per partition: due time that the others are to be told of
	tell     chan struct{}          // one slot

	stats CrewStats
}

// crewView is a list of the instances as one of them has seen it.
type crewView struct {
	size  int // those that fire
	place int // of this one among them; -1 when it does not fire
}

// CrewStats are totals since the start; read them with Load.
type CrewStats struct {
	Deaths  atomic.Int64 // instances whose end this one has noticed
	Rescued atomic.Int64 // claims of theirs that this one gave back
}

const (
	// crewLife is how long an instance counts as alive after a sign. A death is
	// noticed within it; a Redis or a process that stops for longer makes the
	// living look dead, which costs copies that the stream drops.
	crewLife = 2 * time.Second
	// crewBeat leaves room for a lost sign and its repetition.
	crewBeat = 900 * time.Millisecond
	// crewMute is how long no sign may be taken before that is said: a sign is the one
	// write that is tried all the time.
	crewMute = 2 * crewLife
	// crewAnswer is how long a sign may take before it is tried again.
	crewAnswer = 500 * time.Millisecond
	crewRepeat = 150 * time.Millisecond
	// tellPause is the least time between notices of one instance.
	tellPause = time.Millisecond
)

// NewCrew joins nothing before [Crew.Run].
func NewCrew(store *Store, cfg CrewConfig) *Crew {
	if cfg.Logger == nil {
		cfg.Logger = slog.New(slog.DiscardHandler)
	}
	c := &Crew{store: store, cfg: cfg, kick: make(chan struct{}, 1), tell: make(chan struct{}, 1), foreign: make(chan error, 1),
		earlier: make([]atomic.Int64, store.keys.Partitions())}
	for i := range c.earlier {
		c.earlier[i].Store(math.MaxInt64)
	}
	return c
}

// Size is how many instances fire timers, as far as this one knows.
func (c *Crew) Size() int {
	if v := c.view.Load(); v != nil {
		return v.size
	}
	return 0
}

// Unsigned says that Redis has taken no sign of this instance for some seconds, and
// why, or "". Redis may say that it is well then: CLIENT PAUSE, a failover, a want of
// replicas or the reading of its file stop writes and not INFO.
func (c *Crew) Unsigned() string {
	if why := c.unsigned.Load(); why != nil {
		return *why
	}
	return ""
}

// Foreign gives the reason once the data in Redis are of another deployment than
// the one that this instance has begun with: it must not go on.
func (c *Crew) Foreign() <-chan error { return c.foreign }

// Stats are the totals so far.
func (c *Crew) Stats() *CrewStats { return &c.stats }

// Mine says whether a timer is in this instance's share. Where nobody is known
// to fire, everything is.
func (c *Crew) Mine(r Ref) bool {
	v := c.view.Load()
	if v == nil || v.size == 0 || v.size == 1 && v.place == 0 {
		return true
	}
	// Other bits than those that chose the partition.
	return int((xxhash.Sum64String(r.Member())>>32)%uint64(v.size)) == v.place
}

// Leads says whether this instance is the one that nudges partition p.
func (c *Crew) Leads(p int) bool {
	v := c.view.Load()
	return v == nil || v.size == 0 || p%v.size == v.place
}

// Tell tells the one that nudges partition p of a timer that may be the next one due there.
// It does not block; notices that come faster than one a millisecond are put
// together, and any may be lost.
func (c *Crew) Tell(p int, due time.Time) {
	if c.Leads(p) {
		return
	}
	ms := max(due.UnixMilli(), 1) // 0 says that the crew has changed
	for {
		was := c.earlier[p].Load()
		if was <= ms {
			return // its turn comes
		}
		if c.earlier[p].CompareAndSwap(was, ms) {
			break
		}
	}
	select {
	case c.tell <- struct{}{}:
	default:
	}
}

// Hear takes the name of an expired key, or what looks like one, and says
// whether it was for the crew. It does not block.
func (c *Crew) Hear(key string) bool {
	if n, ok := c.store.keys.ParseNotice(key); ok {
		switch {
		case n.Instance == c.cfg.Instance:
		case n.Due == 0:
			c.again()
		default:
			c.cfg.Noticed(n.Partition, time.UnixMilli(n.Due))
		}
		return true
	}
	if _, ok := c.store.keys.ParseAlive(key); ok {
		c.again()
		return true
	}
	return false
}

// Retire tells the others that this instance takes no share any more. It goes
// on to sign that it lives until [Crew.Run] ends. It does not block.
func (c *Crew) Retire() {
	c.leaving.Store(true)
	c.again()
}

func (c *Crew) again() {
	select {
	case c.kick <- struct{}{}:
	default:
	}
}

// Run signs until ctx ends and returns nil then. [Crew.Leave] comes after it.
func (c *Crew) Run(ctx context.Context) error {
	var wg sync.WaitGroup
	defer wg.Wait()
	wg.Go(func() { c.tellOthers(ctx) })

	var (
		signed  time.Time    // when the last sign was sent that Redis took
		last    = time.Now() // likewise, or the start
		watched time.Time    // since when nobody can have signed unseen
		failing bool
		confirm bool                // the deployment's record may be gone, too
		told    string              // what the others were last told of
		rescues = make(chan string) // instances that nothing is left of, or whose rescue failed
		under   = map[string]bool{} // rescues under way
	)
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case id := <-rescues:
			delete(under, id)
			continue
		case <-timer.C:
		case <-c.kick:
		}
		fires := c.cfg.Fires() && !c.leaving.Load()
		sent := time.Now()
		within, cancel := context.WithTimeout(ctx, crewAnswer)
		if signed.IsZero() {
			// Of a Redis that has been up for long, all signs are there to see.
			watched = sent.Add(-min(crewLife, c.store.Uptime(within)))
		}
		mates, held, err := c.store.Sign(within, c.cfg.Instance, crewLife, fires)
		cancel()
		if ctx.Err() != nil {
			return nil
		}
		if err != nil {
			if sent.Sub(last) > crewMute {
				why := fmt.Sprintf("Redis answers and has carried out no write for %s: %s", sent.Sub(last).Round(time.Second), err)
				c.unsigned.Store(&why)
			}
			// The others share without this one by now, and whom it knows may be
			// dead. Alone it misses nothing.
			if !failing && sent.Sub(signed) > crewLife && c.view.Swap(nil) != nil {
				failing = true
				c.cfg.Logger.Warn("cannot tell the other instances that this one lives; it works as if it were alone", "error", err)
			}
			timer.Reset(crewRepeat)
			continue
		}
		c.unsigned.Store(nil)
		if failing {
			failing = false
			c.cfg.Logger.Info("the other instances know that this one lives")
		}
		if !signed.IsZero() && !held {
			// Our own sign was lost or late, so theirs may have been too.
			watched, confirm = sent, true
		}
		confirm = confirm && !c.confirmed(ctx)
		if now := fmt.Sprint(fires); told != now && c.changed(ctx) {
			told = now
		}
		signed, last = sent, sent
		wait := crewBeat
		firing := []string{}
		if fires {
			firing = append(firing, c.cfg.Instance)
		}
		for _, m := range mates {
			switch unseen := crewLife - sent.Sub(watched); {
			case m.Life >= 0:
				wait = min(wait, m.Life+time.Millisecond)
				if m.Fires {
					firing = append(firing, m.Instance)
				}
			case unseen > 0:
				wait = min(wait, unseen)
			case !under[m.Instance]:
				under[m.Instance] = true
				wg.Go(func() {
					c.rescue(ctx, m.Instance)
					select {
					case rescues <- m.Instance:
					case <-ctx.Done():
					}
				})
			}
		}
		slices.Sort(firing)
		v := crewView{size: len(firing), place: slices.Index(firing, c.cfg.Instance)}
		if was := c.view.Swap(&v); was != nil && was.size != v.size {
			c.cfg.Logger.Debug("the crew has changed", "firing", v.size)
		}
		timer.Reset(wait)
	}
}

// confirmed looks after the deployment's record, once this instance's own sign was
// gone: so may be all that was there. It says whether that needs no repetition.
func (c *Crew) confirmed(ctx context.Context) bool {
	within, cancel := context.WithTimeout(ctx, crewAnswer)
	defer cancel()
	wrote, err := c.store.Confirm(within)
	switch {
	case errors.Is(err, ErrDeployment):
		select {
		case c.foreign <- err:
		default:
		}
	case err != nil:
		c.cfg.Logger.Debug("could not look at the deployment's record, trying again", "error", err)
		return false
	case wrote:
		c.cfg.Logger.Warn("Redis has lost the deployment's record, and perhaps timers; the record has been written again")
	}
	return true
}

// changed tells the others to look at the crew, since they have to share anew.
func (c *Crew) changed(ctx context.Context) bool {
	within, cancel := context.WithTimeout(ctx, crewAnswer)
	defer cancel()
	err := c.store.Tell(within, c.cfg.DB, Notice{Instance: c.cfg.Instance})
	if err != nil {
		c.cfg.Logger.Debug("a notice could not be sent", "error", err)
	}
	return err == nil
}

// rescue gives back what a dead instance had claimed, and strikes it off.
func (c *Crew) rescue(ctx context.Context, instance string) {
	total := 0
	fault.Point("rescue")
	for p := range c.store.keys.Partitions() {
		n, err := c.store.Rescue(ctx, p, instance)
		total += n
		if err != nil {
			c.cfg.Logger.Debug("could not give back the claims of a dead instance, trying again", "died", instance, "error", err)
			return
		}
	}
	fault.Point("rescued")
	c.stats.Deaths.Add(1)
	c.stats.Rescued.Add(int64(total))
	if total > 0 {
		c.cfg.Logger.Warn("another instance died; what it had claimed was given back", "died", instance, "claims", total)
		c.cfg.Rescued()
	}
	if err := c.store.Forget(ctx, instance); err != nil {
		c.cfg.Logger.Debug("could not strike off a dead instance, trying again", "died", instance, "error", err)
	}
}

// tellOthers sends the notices.
func (c *Crew) tellOthers(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-c.tell:
		}
		pause := tellPause
		for p := range c.earlier {
			due := c.earlier[p].Swap(math.MaxInt64)
			if due == math.MaxInt64 {
				continue
			}
			if err := c.store.Tell(ctx, c.cfg.DB, Notice{Instance: c.cfg.Instance, Partition: p, Due: due}); err != nil {
				// It may be for want of a right. Those that stand by find the timer.
				c.cfg.Logger.Debug("a notice could not be sent", "error", err)
				pause = time.Second
			}
		}
		if sleep(ctx, pause) != nil {
			return
		}
	}
}

// Leave strikes this instance off after [Crew.Run], once nothing of it is under
// way any more. Claims that it could not settle are given back; where Redis does
// not answer, the others find it dead and do that.
func (c *Crew) Leave(ctx context.Context) {
	err := c.store.Leave(ctx, c.cfg.Instance)
	if err != nil {
		c.cfg.Logger.Debug("could not leave the crew; the others will notice", "error", err)
		return
	}
	c.changed(ctx)
}
