package reconcile

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/lapse-timers/lapse/timers"
)

const (
	testGrace = 200 * time.Millisecond
	// oneWay is how long a message takes between the loop and its store. It is
	// not zero, so that a loop that spins still lets the time of the test pass.
	oneWay = 50 * time.Microsecond
	// skew is how far Redis's clock is ahead: whoever mixes the two sleeps wrong.
	skew = 90 * time.Minute
	// mostLooks is where the store stops answering: far beyond what any test
	// allows, so that a loop that spins fails it and does not hold it up.
	mostLooks = 3000
	// lease is where a claim moves a score.
	lease = time.Hour
)

// fakeStore is a backup set with its triggers, read as due.lua reads the real
// one. Times are since the start of the test.
type fakeStore struct {
	start time.Time

	mu        sync.Mutex
	entries   map[string]*entry
	looks     []look
	discarded []string
	err       error         // what looks and discards answer
	reply     time.Duration // how long an answer takes in addition
	hang      bool          // it does not answer at all
	unheard   bool          // events are lost
	discards  time.Duration // how long a discard takes in addition
	patrols   []patrol
	mend      int  // what the next patrol mends
	long      bool // a partition takes two steps
}

type patrol struct {
	p      int
	cursor string
}

type entry struct {
	p       int
	score   time.Duration // whole milliseconds
	trigger bool          // the key is there
	stuck   bool          // and does not expire when it is touched
	expired time.Duration // when it did
}

type look struct {
	p              int
	at             time.Duration
	grace          time.Duration
	named, touched int
}

func (f *fakeStore) now() time.Duration { return time.Since(f.start) }

// redis is a time of the test on Redis's clock.
func (f *fakeStore) redis(at time.Duration) time.Time { return f.start.Add(skew + at) }

func (f *fakeStore) set(p int, member string, score time.Duration) *entry {
	f.mu.Lock()
	defer f.mu.Unlock()
	e := &entry{p: p, score: score, trigger: true}
	f.entries[member] = e
	return e
}

// claim moves the scores of what is due, as a claim does.
func (f *fakeStore) claim(refs []timers.Ref) (n int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, r := range refs {
		if e := f.entries[r.Member()]; e != nil && e.score <= f.now() {
			e.score = f.now().Truncate(time.Millisecond) + lease
			n++
		}
	}
	return n
}

func (f *fakeStore) change(how func()) {
	f.mu.Lock()
	defer f.mu.Unlock()
	how()
}

// since gives the looks from a time on.
func (f *fakeStore) since(at time.Duration) (out []look) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, l := range f.looks {
		if l.at >= at {
			out = append(out, l)
		}
	}
	return out
}

func (f *fakeStore) Due(ctx context.Context, p int, grace time.Duration, touch, overdue int) (timers.DueScan, error) {
	f.mu.Lock()
	hang := f.hang
	f.mu.Unlock()
	if hang {
		<-ctx.Done()
		return timers.DueScan{}, ctx.Err()
	}
	time.Sleep(oneWay)
	scan, reply, err := f.look(p, grace, touch, overdue)
	time.Sleep(oneWay + reply)
	return scan, err
}

func (f *fakeStore) look(p int, grace time.Duration, touch, overdue int) (timers.DueScan, time.Duration, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	now := f.now()
	l := look{p: p, at: now, grace: grace}
	defer func() {
		f.looks = append(f.looks, l)
		f.hang = f.hang || len(f.looks) == mostLooks
	}()
	if f.err != nil {
		return timers.DueScan{}, f.reply, f.err
	}
	type named struct {
		m string
		*entry
	}
	var all []named
	for m, e := range f.entries {
		if e.p == p {
			all = append(all, named{m, e})
		}
	}
	slices.SortFunc(all, func(a, b named) int { return cmp.Or(cmp.Compare(a.score, b.score), strings.Compare(a.m, b.m)) })
	scan := timers.DueScan{Now: f.redis(now)}
	ms := now.Truncate(time.Millisecond)
	for _, e := range all {
		switch {
		case e.score > ms:
			if scan.Next.IsZero() {
				scan.Next = f.redis(e.score)
			}
		case e.score <= ms-grace:
			if l.named < overdue {
				l.named++
				if r, ok := timers.ParseMember(e.m); ok {
					scan.Overdue = append(scan.Overdue, r)
				} else {
					scan.Strange = append(scan.Strange, e.m)
				}
			}
		case scan.Touched < touch:
			if scan.Touched++; scan.Touched == 1 {
				scan.Oldest = f.redis(e.score)
			}
			if e.trigger && (e.stuck || ms <= e.score) {
				scan.Waiting++
			} else if e.trigger {
				e.trigger, e.expired = false, now
				if !f.unheard {
					e.score = ms + lease
				}
			}
		}
	}
	l.touched = scan.Touched
	return scan, f.reply, nil
}

func (f *fakeStore) Discard(_ context.Context, _ int, members []string) error {
	time.Sleep(2*oneWay + f.discards)
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.err != nil {
		return f.err
	}
	for _, m := range members {
		delete(f.entries, m)
	}
	f.discarded = append(f.discarded, members...)
	return nil
}

func (f *fakeStore) Patrol(_ context.Context, p int, cursor string, _ int) (string, int, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.patrols = append(f.patrols, patrol{p, cursor})
	n := f.mend
	f.mend = 0
	if cursor == "0" && f.long {
		return "7", n, f.err
	}
	return "0", n, f.err
}

// rig is a loop on a fake store. What it calls is recorded.
type rig struct {
	*testing.T
	*fakeStore
	loop       *Loop
	partitions int
	deaf       atomic.Bool
	standsBy   atomic.Bool           // another instance leads
	mine       func(timers.Ref) bool // nil: all
	gate       chan struct{}         // Await returns once it is closed
	sweep      func(ctx context.Context, refs []timers.Ref) (int, error)
	log        bytes.Buffer
	stop       func() // ends the loop and waits for it

	mu     sync.Mutex
	sweeps []swept
	missed []time.Duration
	told   []time.Duration // due times, of the test, that others were told of
}

type swept struct {
	at   time.Duration
	refs []timers.Ref
}

func (r *rig) swept() []swept {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Clone(r.sweeps)
}

// bubble runs f with a rig in the time of a bubble. The bubble waits for every
// goroutine that was started in it, and fails when one of them stays.
func bubble(t *testing.T, f func(t *testing.T, r *rig)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		r := &rig{T: t, fakeStore: &fakeStore{start: time.Now(), entries: map[string]*entry{}}, partitions: 1, gate: make(chan struct{})}
		close(r.gate)
		r.sweep = func(_ context.Context, refs []timers.Ref) (int, error) {
			time.Sleep(2 * oneWay)
			return r.claim(refs), nil
		}
		f(t, r)
	})
}

// run starts the loop.
func (r *rig) run() {
	r.loop = New(Config{
		Store: r.fakeStore, Partitions: r.partitions, Grace: testGrace,
		Sweep: func(ctx context.Context, _ int, refs []timers.Ref) (int, error) {
			r.mu.Lock()
			r.sweeps = append(r.sweeps, swept{r.now(), refs})
			r.mu.Unlock()
			return r.sweep(ctx, refs)
		},
		Await: func(ctx context.Context) error {
			select {
			case <-ctx.Done():
				return ctx.Err()
			case <-r.gate:
				return nil
			}
		},
		Deaf:  r.deaf.Load,
		Leads: func(int) bool { return !r.standsBy.Load() },
		Mine:  r.mine,
		Tell: func(_ int, due time.Time) {
			r.mu.Lock()
			defer r.mu.Unlock()
			r.told = append(r.told, due.Sub(r.redis(0)))
		},
		Missed: func(int) {
			r.mu.Lock()
			defer r.mu.Unlock()
			r.missed = append(r.missed, r.now())
		},
		Logger: slog.New(slog.NewTextHandler(&r.log, &slog.HandlerOptions{Level: slog.LevelDebug})),
	})
	r.loop.alarm = goAlarm // a kernel's timer knows nothing of the bubble's clock
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- r.loop.Run(ctx) }()
	r.Cleanup(func() { r.stop() })
	r.stop = sync.OnceFunc(func() {
		r.Helper()
		asked := time.Now()
		cancel()
		assert.NoError(r, <-done)
		assert.Less(r, time.Since(asked), 50*time.Millisecond)
	})
}

// until lets time pass up to a moment of the test, and half a millisecond, so
// that the test is never in the middle of what happens at that moment.
func (r *rig) until(at time.Duration) {
	r.Helper()
	time.Sleep(at - r.now() + 500*time.Microsecond)
	synctest.Wait()
}

// almost says that a time is the wanted one, but for the way to the store.
func (r *rig) almost(want, got time.Duration, what string) {
	r.Helper()
	require.GreaterOrEqual(r, got, want, what)
	require.Less(r, got, want+500*time.Microsecond, what)
}

// forever is a sweep that waits for NATS.
func forever(ctx context.Context, _ []timers.Ref) (int, error) {
	<-ctx.Done()
	return 0, ctx.Err()
}

var errAway = errors.New("away")
