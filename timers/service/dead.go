package service

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go"
	"golang.org/x/sync/errgroup"

	"github.com/lapse-timers/lapse/timers"
	"github.com/lapse-timers/lapse/timers/fault"
	"github.com/lapse-timers/lapse/timers/wire"
)

// Announcer tells on <prefix>.dead.<topic> of timers that were given up on. A
// timer is dead and listed whether or not anybody could be told (ADR 26): what
// waits here is bounded, and what is not taken by NATS in a few tries is
// counted and left.
type Announcer struct {
	prefix wire.Prefix
	out    announcing
	logger *slog.Logger

	queue chan announcement
	bytes atomic.Int64 // of the payloads that wait
	lost  atomic.Int64
	said  atomic.Int64 // when a loss was last logged, Unix ns
}

// announcing is a way to deliver ([JetStream], [Core]) as the announcements see
// it.
type announcing interface {
	// MaxDead is the largest announcement, with headers, that is kept where
	// announcements are kept, as far as can be known.
	MaxDead(ctx context.Context) int
	// Await returns once publishing makes sense.
	Await(ctx context.Context) error
	// PublishDead publishes once, within a bounded time; errors match
	// timers.ErrTooLarge where a smaller message might pass.
	PublishDead(ctx context.Context, m *nats.Msg) error
}

type announcement struct {
	claim  *timers.Claim
	reason string
}

// Bounds of the announcements. Beyond the queue they are lost, and counted.
const (
	announceQueue    = 4096
	announceBytes    = 32 << 20 // payload that may wait
	announceAtOnce   = 64
	announceTries    = 5
	announceAgain    = 200 * time.Millisecond // after the first try; doubles
	announceWait     = time.Minute            // for NATS to be there, in all
	announceAtTheEnd = time.Second            // for what is queued when the process ends
)

// NewAnnouncer announces through out; nothing happens before Run.
func NewAnnouncer(prefix wire.Prefix, out announcing, logger *slog.Logger) *Announcer {
	return &Announcer{prefix: prefix, out: out, logger: logger, queue: make(chan announcement, announceQueue)}
}

// Lost is how many announcements were not taken by NATS.
func (a *Announcer) Lost() int64 { return a.lost.Load() }

// Announce queues the announcement of a timer that is dead now. It never
// blocks, and keeps a copy of the claim: c stands among all that were claimed
// together, whose payloads would wait with it and be counted nowhere.
func (a *Announcer) Announce(c *timers.Claim, reason string) {
	one := *c
	size := int64(len(c.Payload) + len(c.Headers))
	if a.bytes.Add(size) > announceBytes {
		a.bytes.Add(-size)
		a.lose(c, errors.New("too many wait"))
		return
	}
	select {
	case a.queue <- announcement{&one, reason}:
	default:
		a.bytes.Add(-size)
		a.lose(c, errors.New("too many wait"))
	}
}

// Run announces until ctx ends, and for a moment what is queued then.
func (a *Announcer) Run(ctx context.Context) error {
	end, stop := context.WithCancel(context.WithoutCancel(ctx))
	defer stop()
	defer context.AfterFunc(ctx, func() { time.AfterFunc(announceAtTheEnd, stop) })()
	var group errgroup.Group
	group.SetLimit(announceAtOnce)
	one := func(n announcement) {
		group.Go(func() error {
			defer a.bytes.Add(-int64(len(n.claim.Payload) + len(n.claim.Headers)))
			fault.Point("announce")
			if err := a.announce(end, n); err != nil {
				a.lose(n.claim, err)
			}
			fault.Point("announced")
			return nil
		})
	}
	for {
		select {
		case n := <-a.queue:
			one(n)
			continue
		case <-ctx.Done():
		}
		select {
		case n := <-a.queue:
			one(n)
		default:
			return group.Wait()
		}
	}
}

// lose counts an announcement that nobody got, and says so now and then.
func (a *Announcer) lose(c *timers.Claim, err error) {
	a.lost.Add(1)
	now := time.Now()
	if last := a.said.Load(); now.Sub(time.Unix(0, last)) > refusedFor && a.said.CompareAndSwap(last, now.UnixNano()) {
		a.logger.Warn("dead timers could not be announced; lapse list shows them", "topic", c.Topic, "unannounced", a.lost.Load(), "error", err)
	}
}

// announce tries a few times, with less in it where the whole does not fit.
func (a *Announcer) announce(ctx context.Context, n announcement) error {
	here, cancel := context.WithTimeout(ctx, announceWait)
	defer cancel()
	pause, less := announceAgain, whole
	for try := 1; ; try++ {
		if err := a.out.Await(here); err != nil {
			return fmt.Errorf("NATS is away: %w", err)
		}
		most, msg := a.out.MaxDead(ctx), deadMessage(a.prefix, n.claim, n.reason, less)
		for less < bare && (messageSize(msg.Header, msg.Data) > most || messageSize(msg.Header, nil) > maxHeaders) {
			less++
			msg = deadMessage(a.prefix, n.claim, n.reason, less)
		}
		err := a.out.PublishDead(ctx, msg)
		if errors.Is(err, timers.ErrTooLarge) && less < bare {
			less++ // the limit is lower than was known
			continue
		}
		if err == nil || try >= announceTries {
			return err
		}
		select {
		case <-ctx.Done():
			return err
		case <-time.After(pause):
		}
		pause *= 2
	}
}

// How much of a dead timer its announcement holds.
const (
	whole     = iota
	noPayload // its headers still
	bare      // neither
)

// deadMessage is the announcement of a timer that was given up on. It has no
// Timer-Fired, by which whoever reads all of the stream tells it from a fired
// event.
func deadMessage(prefix wire.Prefix, c *timers.Claim, reason string, less int) *nats.Msg {
	m := &nats.Msg{Subject: prefix.Dead(c.Topic), Header: make(nats.Header, 12), Data: c.Payload}
	if less < bare {
		decodeHeaders(c.Headers, m.Header)
	}
	for name, value := range map[string]string{
		wire.HeaderTopic: c.Topic, wire.HeaderID: c.ID, wire.HeaderRev: strconv.FormatInt(c.Rev, 10), wire.HeaderDue: wire.FormatTime(c.Due),
		wire.HeaderAttempt: strconv.Itoa(c.Attempt), wire.HeaderReason: reason, wire.HeaderMsgID: deadID(prefix, c),
	} {
		m.Header[name] = []string{value}
	}
	switch less {
	case noPayload:
		m.Data, m.Header[wire.HeaderOmitted] = nil, []string{wire.OmittedPayload}
	case bare:
		m.Data, m.Header[wire.HeaderOmitted] = nil, []string{wire.OmittedHeaders}
	}
	return m
}

// MaxDead is the largest announcement that the stream takes, or NATS where no
// stream covers them. After a refusal it looks at the stream anew, so that core
// subscribers need not hear an announcement that is refused for its size too.
func (j *JetStream) MaxDead(ctx context.Context) int {
	j.limit.Lock()
	if j.lower.Swap(false) {
		find, cancel := context.WithTimeout(ctx, 3*time.Second)
		if s, err := findStream(find, j.nc.Conn, j.prefix, j.cfg); err == nil {
			j.stream.Store(&s)
		}
		cancel()
	}
	j.limit.Unlock()
	if j.stream.Load().dead {
		return j.MaxSize()
	}
	return int(j.nc.MaxPayload())
}

// PublishDead publishes with acknowledgement where the stream covers the
// announcements and has room for such a message, else on core NATS alone.
func (j *JetStream) PublishDead(ctx context.Context, m *nats.Msg) error {
	if s := j.stream.Load(); !s.dead || s.maxMsgSize > 0 && messageSize(m.Header, m.Data) > s.maxMsgSize {
		return publishCore(ctx, j.nc, m, j.wait)
	}
	ended := make(chan timers.Delivery, 1)
	j.send(m, true, func(d timers.Delivery) { ended <- d })
	select {
	case d := <-ended:
		if d.Outcome != timers.Delivered {
			return d.Err
		}
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// MaxDead is the largest announcement that NATS takes.
func (c *Core) MaxDead(context.Context) int { return c.MaxSize() }

// PublishDead publishes and waits until the server has read it.
func (c *Core) PublishDead(ctx context.Context, m *nats.Msg) error {
	return publishCore(ctx, c.nc, m, c.wait)
}

// publishCore publishes and waits until the server has read it. That the server
// did not permit it shows in the health of the delivery.
func publishCore(ctx context.Context, nc *Conn, m *nats.Msg, wait time.Duration) error {
	if err := nc.PublishMsg(m); err != nil {
		return notWritten(err).Err
	}
	flush, cancel := context.WithTimeout(ctx, wait)
	defer cancel()
	return nc.FlushWithContext(flush)
}
