package page

import (
	"cmp"
	"errors"
	"math/rand/v2"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/lapse-timers/lapse/timers/wire"
)

const (
	tailSample = 10   // fired events of a second that are shown
	lagSample  = 4096 // and whose lag is kept for the percentiles
	dialPause  = 2 * time.Second
	longest    = 256 // bytes of an id

	// What waits for the tap before NATS drops events: seconds of a high rate.
	tapPending      = 16_384
	tapPendingBytes = 32 << 20
)

// fired is a fired event in the tail.
type fired struct {
	At      int64   `json:"at"` // ms, on Redis's clock
	Topic   string  `json:"topic"`
	ID      string  `json:"id"`
	Lag     float64 `json:"lag"` // ms from due to its arrival here
	Source  string  `json:"source"`
	Attempt int     `json:"attempt"`
}

// tap counts the fired events of all instances, as any subscriber sees them.
// Its connection is its own: whatever it costs, requests and deliveries do not
// wait behind it.
type tap struct {
	opt Options

	mu      sync.Mutex
	nc      *nats.Conn
	sub     *nats.Subscription
	dialing bool
	tried   time.Time
	closed  bool
	trouble string        // why nothing is heard
	offset  time.Duration // Redis's clock minus this machine's
	since   time.Time
	n       int
	lags    []float64 // ms
	tail    []fired
	dropped int
}

func newTap(opt Options) *tap { return &tap{opt: opt, since: time.Now()} }

// ensure connects when there is no connection, without waiting for it.
func (t *tap) ensure(wg *sync.WaitGroup) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.nc != nil && t.nc.IsClosed() {
		t.nc, t.sub, t.dropped = nil, nil, 0 // it does not come back by itself
	}
	if t.nc != nil || t.dialing || t.closed || time.Since(t.tried) < dialPause {
		return
	}
	t.dialing, t.tried = true, time.Now()
	wg.Go(t.connect)
}

func (t *tap) connect() {
	nc, err := t.opt.Dial()
	if err == nil {
		err = t.subscribe(nc)
	}
	t.mu.Lock()
	t.dialing = false
	if err != nil {
		t.trouble = err.Error()
	} else if !t.closed {
		t.nc, nc = nc, nil
	} else {
		t.sub = nil
	}
	t.mu.Unlock()
	if nc != nil {
		nc.Close()
	}
}

func (t *tap) subscribe(nc *nats.Conn) error {
	subject := t.opt.Prefix.Fired(">")
	nc.SetErrorHandler(func(_ *nats.Conn, _ *nats.Subscription, err error) {
		if errors.Is(err, nats.ErrPermissionViolation) {
			t.mu.Lock()
			t.trouble = "NATS does not permit Lapse to subscribe to " + subject + ": add it to the rights of its user to see the fires of all instances"
			t.mu.Unlock()
		}
	})
	sub, err := nc.Subscribe(subject, t.hear)
	if err != nil {
		return err
	}
	if err := sub.SetPendingLimits(tapPending, tapPendingBytes); err != nil {
		return err
	}
	t.mu.Lock()
	t.sub, t.trouble, t.since, t.n = sub, "", time.Now(), 0
	t.mu.Unlock()
	return nil
}

// hear takes one fired event. It runs for each of them while somebody looks.
func (t *tap) hear(m *nats.Msg) {
	due, id, source := m.Header[wire.HeaderDue], m.Header.Get(wire.HeaderID), m.Header.Get(wire.HeaderSource)
	if len(due) == 0 || len(id) > longest || len(source) > longest {
		return // no event of Lapse
	}
	at, err := wire.ParseTime(due[0])
	if err != nil {
		return
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	now := time.Now().Add(t.offset)
	lag := max(0, float64(now.Sub(at).Microseconds())/1000)
	t.n++
	// A random sample of each, of equal chance for every event of the second.
	if len(t.lags) < lagSample {
		t.lags = append(t.lags, lag)
	} else if i := rand.IntN(t.n); i < lagSample {
		t.lags[i] = lag
	}
	slot := len(t.tail)
	if slot == tailSample {
		if slot = rand.IntN(t.n); slot >= tailSample {
			return
		}
	} else {
		t.tail = append(t.tail, fired{})
	}
	attempt, _ := strconv.Atoi(m.Header.Get(wire.HeaderAttempt))
	topic := t.opt.Prefix.Topic("fired", m.Subject)
	t.tail[slot] = fired{At: now.UnixMilli(), Topic: topic, ID: id, Lag: lag, Source: source, Attempt: attempt}
}

// second is what was heard since the last look.
type second struct {
	known    bool // the tap listens
	trouble  string
	n        int
	rate     float64 // a second
	p50, p99 float64 // ms
	tail     []fired
	dropped  int // events that NATS dropped since they came too fast
}

func (t *tap) take() second {
	t.mu.Lock()
	s := second{known: t.sub != nil && t.trouble == "" && t.nc != nil && t.nc.IsConnected(), trouble: t.trouble, n: t.n, tail: t.tail}
	lags := t.lags
	now := time.Now()
	passed := now.Sub(t.since)
	t.since, t.n, t.tail, t.lags = now, 0, nil, make([]float64, 0, min(len(lags)+len(lags)/4+16, lagSample))
	if t.sub != nil {
		if d, err := t.sub.Dropped(); err == nil {
			s.dropped, t.dropped = max(0, d-t.dropped), d
		}
	}
	t.mu.Unlock()
	if passed > 0 {
		s.rate = float64(s.n+s.dropped) / passed.Seconds()
	}
	if len(lags) > 0 {
		slices.Sort(lags)
		s.p50, s.p99 = lags[(len(lags)-1)/2], lags[(len(lags)-1)*99/100]
	}
	slices.SortFunc(s.tail, func(a, b fired) int { return cmp.Compare(a.At, b.At) })
	return s
}

// follow learns how far Redis's clock is from this machine's: it said now
// between the two moments here, in whole milliseconds. What lies within that
// is no difference.
func (t *tap) follow(now, before, after time.Time) {
	low, high := now.Sub(after), now.Sub(before)+time.Millisecond
	offset := time.Duration(0)
	if low > 0 || high < 0 {
		offset = (low + high) / 2
	}
	t.mu.Lock()
	t.offset = offset
	t.mu.Unlock()
}

func (t *tap) close() {
	t.mu.Lock()
	nc := t.nc
	t.nc, t.sub, t.closed = nil, nil, true
	t.mu.Unlock()
	if nc != nil {
		nc.Close()
	}
}
