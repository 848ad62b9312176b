package client

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/lapse-timers/lapse/timers/wire"
)

// How often a read is asked for at most, and what lies between two questions
// that nobody heard. An instance that takes over needs no more.
const (
	silentTries = 2
	unheard     = 3
	unheardWait = 100 * time.Millisecond // then twice as long
)

// write sends a request that changes something. It is sent once: what ends the
// wait after that leaves its outcome unconfirmed.
func (c *Client) write(ctx context.Context, m *nats.Msg) (*nats.Msg, error) {
	ctx, cancel := c.bounded(ctx)
	defer cancel()
	return c.request(ctx, m, true)
}

// read sends a request that changes nothing, again when nobody heard it
// (three times in all), or when no answer came in half of the time that there
// is (twice).
func (c *Client) read(ctx context.Context, m *nats.Msg) (*nats.Msg, error) {
	ctx, cancel := c.bounded(ctx)
	defer cancel()
	silent, nobody, wait := 1, 1, unheardWait
	for {
		reply, err := c.readOnce(ctx, m, silent < silentTries)
		switch {
		case err == nil, ctx.Err() != nil:
			return reply, err
		case errors.Is(err, nats.ErrNoResponders) && nobody < unheard:
			nobody++
			select {
			case <-time.After(wait):
			case <-ctx.Done():
				return nil, err
			}
			wait *= 2
		case errors.Is(err, context.DeadlineExceeded) && silent < silentTries:
			silent++
		default:
			return nil, err
		}
	}
}

// readOnce waits for half of what ctx has left when it may be asked again.
func (c *Client) readOnce(ctx context.Context, m *nats.Msg, again bool) (*nats.Msg, error) {
	if deadline, _ := ctx.Deadline(); again {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, time.Until(deadline)/2)
		defer cancel()
	}
	return c.request(ctx, m, false)
}

// bounded is ctx with a deadline.
func (c *Client) bounded(ctx context.Context) (context.Context, context.CancelFunc) {
	if _, ok := ctx.Deadline(); ok {
		return ctx, func() {}
	}
	return context.WithTimeout(ctx, c.timeout)
}

// request sends m once and returns the reply, or the error it holds.
//
// Outcomes of err, by its word: Unavailable: not sent, or sent as a read, or
// nobody there; Unconfirmed: a write was sent and no answer came; TooLarge,
// InvalidTopic, InvalidHeader: NATS refused to carry it; any other: what
// Lapse answered.
func (c *Client) request(ctx context.Context, m *nats.Msg, write bool) (*nats.Msg, error) {
	if err := c.connected(ctx); err != nil {
		return nil, err
	}
	reply, err := c.nc.RequestMsgWithContext(ctx, m)
	if err != nil {
		return nil, c.requestError(err, m, write)
	}
	if code := reply.Header.Get(wire.HeaderErrorCode); code != "" {
		return nil, wire.DecodeError(code, reply.Header.Get(wire.HeaderError), reply.Data)
	}
	return reply, nil
}

// connected waits for the connection. A publish while NATS is away lands in a
// buffer of nats.go that is sent whenever the connection is back, long after
// the caller gave up; so nothing is sent before it is back.
func (c *Client) connected(ctx context.Context) error {
	if err := ctx.Err(); err != nil {
		return fail(err, wire.Unavailable, "nothing was sent: %v", err)
	}
	if c.nc.IsConnected() {
		return nil
	}
	changed := c.nc.StatusChanged(nats.CONNECTED, nats.CLOSED)
	defer c.nc.RemoveStatusListener(changed)
	for !c.nc.IsConnected() { // once more: it may have changed before we listened
		if c.nc.IsClosed() || c.nc.IsDraining() {
			return fail(nats.ErrConnectionClosed, wire.Unavailable, "the NATS connection is closed; nothing was sent")
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return fail(ctx.Err(), wire.Unavailable, "NATS is not connected; nothing was sent")
		}
	}
	return nil
}

func (c *Client) requestError(err error, m *nats.Msg, write bool) error {
	switch {
	case errors.Is(err, nats.ErrNoResponders):
		return fail(err, wire.Unavailable,
			"no Lapse answers on %s: start one (lapse serve) with the prefix %s, or use its prefix and its NATS account",
			m.Subject, c.prefix)
	case errors.Is(err, nats.ErrBadSubject):
		return fail(err, wire.InvalidTopic, "subject %+q: NATS does not carry it", wire.Cut(m.Subject))
	case errors.Is(err, nats.ErrBadHeaderMsg):
		return fail(err, wire.InvalidHeader, "a header name is not allowed: want printable ASCII without spaces and without any of %s; got %s",
			`"(),/:;<=>?@[\]{}`, headerNames(m.Header))
	case errors.Is(err, nats.ErrMaxPayload):
		return fail(err, wire.TooLarge, "payload and headers have %d bytes, the NATS server carries at most %d", m.Size()-len(m.Subject), c.nc.MaxPayload())
	case errors.Is(err, nats.ErrConnectionDraining), errors.Is(err, nats.ErrReconnectBufExceeded), errors.Is(err, nats.ErrHeadersNotSupported):
		return fail(err, wire.Unavailable, "nothing was sent: %v", err)
	case write:
		return fail(err, wire.Unconfirmed,
			"no answer to %s (%v)%s: it may have been carried out; get the timer, or set it again with the same id", m.Subject, err, c.violation(m.Subject))
	default:
		return fail(err, wire.Unavailable, "no answer to %s (%v)%s", m.Subject, err, c.violation(m.Subject))
	}
}

// violation is what the server said about publishing on the subject, if it
// did: NATS reports a missing permission beside the request, which then waits
// for nothing.
func (c *Client) violation(subject string) string {
	last := c.nc.LastError()
	if !errors.Is(last, nats.ErrPermissionViolation) {
		return ""
	}
	// The server quotes the subject; nats.go trims quotes at the end.
	said := strings.TrimSuffix(last.Error(), `"`) + `"`
	if !strings.Contains(said, `"`+subject+`"`) {
		return ""
	}
	return fmt.Sprintf("; the NATS server says: %s", said)
}

func headerNames(h nats.Header) string {
	names := make([]string, 0, len(h))
	for name := range h {
		names = append(names, fmt.Sprintf("%+q", name))
	}
	return wire.Cut(strings.Join(names, " "))
}
