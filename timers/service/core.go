package service

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/lapse-timers/lapse/timers"
	"github.com/lapse-timers/lapse/timers/wire"
)

// Core delivers on core NATS: a fire counts as delivered when the server has
// answered a flush after it and has not refused it. Who is not subscribed at
// that moment misses it.
type Core struct {
	nc     *Conn
	prefix wire.Prefix
	logger *slog.Logger
	wait   time.Duration // for the answer to a flush

	gate  gate
	queue chan coreAttempt // the Firer bounds what is under way

	mu      sync.Mutex
	heard   error // the last error that asyncError saw
	heardCh chan struct{}
	refused map[string]int // publishes refused since the batch began, by subject
	denied  deniedSubjects
}

type coreAttempt struct {
	claim  *timers.Claim
	source timers.Source
	done   func(timers.Delivery)
}

// coreBatch is how many fires one flush confirms.
const coreBatch = 512

// NewCore prepares delivery over nc, which must be a publishing connection.
// Errors that match [ErrStream] are final: a stream that answers requests is in
// the way of core delivery too. It does not wait for a JetStream that it does
// not need.
func NewCore(ctx context.Context, nc *Conn, prefix wire.Prefix, wait time.Duration, logger *slog.Logger) (*Core, error) {
	check, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	switch err := CheckRequests(check, nc.Conn, prefix); {
	case err == nil, errors.Is(err, ErrNoJetStream):
	case errors.Is(err, ErrStream):
		return nil, err
	default:
		logger.Warn("JetStream does not say whether a stream answers requests in Lapse's place", "error", err)
	}
	c := &Core{nc: nc, prefix: prefix, wait: wait, logger: logger,
		queue: make(chan coreAttempt, coreBatch), heardCh: make(chan struct{}, 1), refused: map[string]int{}}
	nc.OnDisconnect(func() { c.gate.set(false) })
	nc.OnReconnect(func() { c.gate.set(true) })
	nc.OnError(c.asyncError)
	c.gate.set(true)
	return c, nil
}

// MaxSize is the largest message, with headers, that can be delivered now.
func (c *Core) MaxSize() int { return int(c.nc.MaxPayload()) }

// Await returns once publishing makes sense.
func (c *Core) Await(ctx context.Context) error { return c.gate.await(ctx) }

// Ready says without waiting whether publishing makes sense.
func (c *Core) Ready() bool { return c.gate.isOpen() }

// Health is how delivery is.
func (c *Core) Health() wire.HealthPart {
	if !c.nc.IsConnected() {
		return wire.HealthPart{Status: wire.HealthDown, Why: "the delivery connection to NATS is cut; it is tried again by itself"}
	}
	if !c.gate.isOpen() {
		return wire.HealthPart{Status: wire.HealthDown, Why: "NATS does not answer"}
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.denied.health()
}

// Publish queues the delivery of a claim; Run carries it out.
func (c *Core) Publish(claim *timers.Claim, source timers.Source, done func(timers.Delivery)) {
	c.queue <- coreAttempt{claim, source, done}
}

// Run delivers until ctx ends, and then refuses what is still queued.
func (c *Core) Run(ctx context.Context) error {
	batch := make([]coreAttempt, 0, coreBatch)
	for {
		batch = batch[:0]
		select {
		case <-ctx.Done():
			for {
				select {
				case a := <-c.queue:
					a.done(timers.Delivery{Outcome: timers.Refused, Err: fmt.Errorf("%w: the process ends", timers.ErrAway)})
				default:
					return nil
				}
			}
		case a := <-c.queue:
			batch = append(batch, a)
		}
	drain:
		for len(batch) < coreBatch {
			select {
			case a := <-c.queue:
				batch = append(batch, a)
			default:
				break drain
			}
		}
		c.deliver(ctx, batch)
	}
}

func (c *Core) deliver(ctx context.Context, batch []coreAttempt) {
	c.mu.Lock()
	clear(c.refused)
	c.mu.Unlock()
	before, reconnects := c.nc.LastError(), c.nc.Stats().Reconnects

	written := make([]coreAttempt, 0, len(batch))
	for _, a := range batch {
		if stale(a.claim) {
			a.done(timers.Delivery{Outcome: timers.Refused, Err: timers.ErrStale})
			continue
		}
		switch err := c.nc.PublishMsg(firedMessage(c.prefix, a.claim, a.source)); {
		case err == nil:
			written = append(written, a)
		default:
			a.done(notWritten(err))
		}
	}
	if len(written) == 0 {
		return
	}
	flush, cancel := context.WithTimeout(context.WithoutCancel(ctx), c.wait)
	defer cancel()
	err := c.nc.FlushWithContext(flush)
	if err == nil && c.nc.Stats().Reconnects != reconnects {
		// Another connection answered for what the old one was given.
		err = nats.ErrConnectionReconnecting
	}
	if err == nil {
		err = c.heardAll(flush, before)
	}
	for _, a := range written {
		switch {
		case err != nil:
			a.done(timers.Delivery{Outcome: timers.Unknown, Err: err})
		case c.takeRefused(c.prefix.Fired(a.claim.Topic)):
			a.done(timers.Delivery{Outcome: timers.Refused, Err: nats.ErrPermissionViolation})
		default:
			a.done(timers.Delivery{Outcome: timers.Delivered})
		}
	}
	if err != nil && c.nc.IsConnected() {
		// It does not answer: hold back until it does.
		c.gate.set(false)
		c.logger.Warn("NATS does not answer a flush", "error", err)
		for ctx.Err() == nil && c.nc.IsConnected() {
			again, cancel := context.WithTimeout(ctx, c.wait)
			err := c.nc.FlushWithContext(again)
			cancel()
			if err == nil {
				c.gate.openWhile(c.nc.IsConnected)
				return
			}
		}
	}
}

// heardAll waits until the error handler, which runs behind the connection,
// has seen the last error that came before the answer to the flush. The
// connection keeps the last error only, but the handler sees them in order.
func (c *Core) heardAll(ctx context.Context, before error) error {
	last := c.nc.LastError()
	if last == nil || last == before {
		return nil
	}
	for {
		c.mu.Lock()
		seen := c.heard == last
		c.mu.Unlock()
		if seen {
			return nil
		}
		select {
		case <-c.heardCh:
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(100 * time.Millisecond):
			// It was no error that the handler is told of.
			if _, ok := deniedSubject(last); !ok {
				return nil
			}
		}
	}
}

func (c *Core) asyncError(_ *nats.Subscription, err error) {
	subject, denied := deniedSubject(err)
	c.mu.Lock()
	c.heard = err
	first := false
	if denied {
		c.refused[subject]++
		first = c.denied.add(subject)
	}
	c.mu.Unlock()
	select {
	case c.heardCh <- struct{}{}:
	default:
	}
	if first {
		sayDenied(c.logger, subject, strings.HasPrefix(subject, c.prefix.Dead("")+"."))
	}
}

func (c *Core) takeRefused(subject string) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.refused[subject] == 0 {
		return false
	}
	c.refused[subject]--
	return true
}
