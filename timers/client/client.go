package client

import (
	"errors"
	"fmt"
	"time"

	"github.com/nats-io/nats.go"
	"go.opentelemetry.io/otel/propagation"

	"github.com/lapse-timers/lapse/timers/wire"
)

// DefaultTimeout bounds a call whose context has no deadline of its own.
// Lapse drops requests that waited longer than its LAPSE_REQUEST_TIMEOUT (2 s
// by default), so that a request given up on here is not carried out late.
const DefaultTimeout = 5 * time.Second

// Client speaks to the Lapse deployment of one prefix. It is safe for
// concurrent use, holds nothing that needs closing, and leaves the connection
// to its owner.
type Client struct {
	nc      *nats.Conn
	prefix  wire.Prefix
	timeout time.Duration

	propagator propagation.TextMapPropagator
}

// Option adjusts a [Client].
type Option func(*Client) error

// Prefix names the deployment, as LAPSE_PREFIX does on the service's side:
// dotted tokens of [A-Za-z0-9_-], at most 64 bytes. The default is "timers".
func Prefix(prefix string) Option {
	return func(c *Client) error {
		if err := wire.CheckPrefix(prefix); err != nil {
			return err
		}
		c.prefix = wire.Prefix(prefix)
		return nil
	}
}

// Timeout replaces [DefaultTimeout] for contexts without a deadline. It must
// be positive.
func Timeout(d time.Duration) Option {
	return func(c *Client) error {
		if d <= 0 {
			return fmt.Errorf("timeout %v: want more than 0s", d)
		}
		c.timeout = d
		return nil
	}
}

// New makes a client on nc, which must not be nil and stays the caller's to
// close. It sends nothing: whether a Lapse answers, the first call tells.
func New(nc *nats.Conn, opts ...Option) (*Client, error) {
	if nc == nil {
		return nil, errors.New("lapse client: no NATS connection was given")
	}
	c := &Client{nc: nc, prefix: wire.DefaultPrefix, timeout: DefaultTimeout, propagator: propagation.TraceContext{}}
	for _, opt := range opts {
		if err := opt(c); err != nil {
			return nil, fmt.Errorf("lapse client: %w", err)
		}
	}
	return c, nil
}
