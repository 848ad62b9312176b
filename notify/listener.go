package notify

import (
	"context"
	"crypto/rand"
	"errors"
	"log/slog"
	mathrand "math/rand/v2"
	"sync"
	"sync/atomic"
	"time"

	"github.com/lapse-timers/lapse/timers"
	"github.com/redis/go-redis/v9"
)

// Config is what a [Listener] works with.
type Config struct {
	// Client names the server, the database and the credentials; required.
	// The listener makes its own connections from the options of this client
	// (hooks are not carried over), so that a busy pool cannot delay it.
	Client *redis.Client

	// Keys tells trigger keys from foreign ones; required.
	Keys *timers.Keys

	// Hint is called for each expired trigger key, from one goroutine, in the
	// order of the events. It must not block: while it does, Redis piles up
	// events for us and cuts the connection in the end.
	Hint func(timers.Ref)

	// Other is called, likewise, for the other keys of the channel and says
	// whether it was for Lapse; nil means that none is.
	Other func(key string) bool

	// Gap is called when events may have been lost: after each subscription,
	// the first one included, when one was lost, and when flags had been
	// missing. It must not block.
	Gap func()

	// Instance names this instance in the key of its probe, so that instances
	// do not touch each other's; "" for a random name.
	Instance string

	// Configure allows to add missing letters to notify-keyspace-events
	// (LAPSE_NOTIFY_CONFIG=auto).
	Configure bool

	// Logger gets one line for each change of state; nil means none.
	Logger *slog.Logger
}

// Listener hears the expired events of one Redis server. Make it with [New].
type Listener struct {
	cfg     Config
	channel string
	pace    pace
	log     *slog.Logger
	probe   string        // key
	check   chan struct{} // one slot: look now

	events, ignored, gaps, resubscribed, repairs atomic.Int64
	probes, echoes                               atomic.Int64 // probes sent; events of probes heard, of any instance

	deaf   atomic.Bool // derived from what follows, for cheap reading
	proven atomic.Bool // an event of ours came since the subscription began; written under mu

	// Of the goroutine of Run alone.
	subscribed bool      // at least once
	repaired   time.Time // when added flags were logged last

	mu    sync.Mutex
	up    bool  // subscribed, and the flags were looked at since
	lost  error // why not up; nil before the first attempt ended
	flags flags // of the last look
	// In doubt: probes were not heard, and no event of ours came since. It
	// outlives sessions: a new subscription must prove itself.
	doubt     bool
	pending   bool  // a probe is about to tell whether events come
	unwritten error // why the last probe judged nothing, or nil

	telling sync.Mutex // keeps the log in the order of the changes
	told    condition  // what the log said last
}

// pace is how long the listener waits for what. Tests shorten it.
type pace struct {
	connect    time.Duration // for a connection, for the confirmation, and for one look
	ping, pong time.Duration // between pings, and for the answer to one
	look       time.Duration // between looks at the flags
	checked    time.Duration // at least between looks that Check asks for
	answer     time.Duration // for one command
	backoff    time.Duration // before the second attempt; doubles
	backoffMax time.Duration
	healthy    time.Duration // a session that lived this long starts the back-off anew
	loud       time.Duration // between log lines about repaired flags
	probe      time.Duration // without an event, until one is asked for; 0: never, which only tests want
	touch      time.Duration // from the write of a probe, which expires after a millisecond, to its touch
	heard      time.Duration // from the touch to the event
}

func defaultPace() pace {
	return pace{
		connect: 3 * time.Second,
		ping:    3 * time.Second, pong: 2 * time.Second,
		look: 5 * time.Second, checked: 100 * time.Millisecond,
		answer:  2 * time.Second,
		backoff: 10 * time.Millisecond, backoffMax: time.Second,
		healthy: 100 * time.Millisecond,
		loud:    time.Minute,
		probe:   10 * time.Second, touch: 2 * time.Millisecond, heard: 2 * time.Second,
	}
}

// silentChecks is how many looks that [Listener.Check] asked for may pass
// without an event before a server that hides its flags counts as deaf again.
const silentChecks = 5

// New makes a listener for the database of cfg.Client. It does nothing before
// [Listener.Run], and is deaf until then.
func New(cfg Config) *Listener {
	if cfg.Client == nil || cfg.Keys == nil {
		panic("notify: Client and Keys are required")
	}
	if cfg.Hint == nil {
		cfg.Hint = func(timers.Ref) {}
	}
	if cfg.Other == nil {
		cfg.Other = func(string) bool { return false }
	}
	if cfg.Gap == nil {
		cfg.Gap = func() {}
	}
	if cfg.Logger == nil {
		cfg.Logger = slog.New(slog.DiscardHandler)
	}
	l := &Listener{
		cfg:     cfg,
		channel: timers.ExpiredChannel(cfg.Client.Options().DB),
		pace:    defaultPace(),
		check:   make(chan struct{}, 1),
	}
	if cfg.Instance == "" {
		cfg.Instance = rand.Text()
	}
	l.probe = cfg.Keys.EventProbe(cfg.Instance)
	l.log = cfg.Logger.With("channel", l.channel)
	l.deaf.Store(true)
	return l
}

// Run listens until ctx ends and then returns nil; nothing else ends it. All
// that it started has ended when it returns. It must run once at a time.
func (l *Listener) Run(ctx context.Context) error {
	defer l.setDown(errStopped)
	wait := l.pace.backoff
	for {
		heard, err := l.session(ctx)
		if ctx.Err() != nil {
			return nil
		}
		l.setDown(err)
		if heard >= l.pace.healthy && !errors.Is(err, errUnheard) {
			wait = l.pace.backoff
		}
		// Half of it at random: instances that lost the same server must not
		// come back in step.
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(wait/2 + mathrand.N(wait/2+1)):
		}
		wait = min(2*wait, l.pace.backoffMax)
	}
}

var errStopped = errors.New("the listener has stopped")

// Check asks the listener to look at the flags and to ping the subscription
// now, and to probe the path when no event came lately. It is for callers who found a timer whose event should have come; it
// never blocks, and calls that come faster than ten a second are put together.
func (l *Listener) Check() {
	select {
	case l.check <- struct{}{}:
	default:
	}
}

// Deaf says whether it is known that events do not come: there is no
// subscription, the flags lack a letter, probes were not heard, or Redis hides
// the flags and no event has proved since the subscription that they are right.
// It is cheap.
func (l *Listener) Deaf() bool { return l.deaf.Load() }

// Health is how the listener is.
type Health struct {
	OK  bool   // false exactly when [Listener.Deaf]
	Why string // what is wrong and what mends it; may be set although OK
}

// Health says whether events come, and if not, why not and what mends it.
func (l *Listener) Health() Health {
	l.mu.Lock()
	defer l.mu.Unlock()
	_, why := l.state()
	return Health{OK: !l.deaf.Load(), Why: why}
}

// Stats are totals since [New].
type Stats struct {
	Events          int64 // expired trigger keys heard
	Ignored         int64 // other expired keys heard: foreign ones of the same database
	Gaps            int64 // calls of Config.Gap
	Resubscriptions int64 // confirmed subscriptions after the first
	Repairs         int64 // times that letters were added to notify-keyspace-events
	Probes          int64 // probes of the event path that were written
}

// Stats returns the totals.
func (l *Listener) Stats() Stats {
	return Stats{
		Events:          l.events.Load(),
		Ignored:         l.ignored.Load(),
		Gaps:            l.gaps.Load(),
		Resubscriptions: l.resubscribed.Load(),
		Repairs:         l.repairs.Load(),
		Probes:          l.probes.Load(),
	}
}

// gap reports a gap. The state must have been brought up to date before:
// whoever is woken asks Deaf.
func (l *Listener) gap() {
	l.gaps.Add(1)
	l.cfg.Gap()
}

// heard takes one message of the channel.
func (l *Listener) heard(key string) {
	ref, ours := l.cfg.Keys.ParseTrigger(key)
	if ours {
		l.events.Add(1)
	} else if _, probe := l.cfg.Keys.ParseEventProbe(key); probe {
		l.echoes.Add(1)
	} else {
		// A notice of another instance comes over the same channel and says
		// nothing about expired keys.
		if !l.cfg.Other(key) {
			l.ignored.Add(1)
		}
		return
	}
	if !l.proven.Load() {
		l.prove()
	}
	if ours {
		l.cfg.Hint(ref)
	}
}

// signs counts what shows that events come.
func (l *Listener) signs() int64 { return l.events.Load() + l.echoes.Load() }
