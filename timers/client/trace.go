package client

import (
	"context"
	"errors"
	"strings"

	"github.com/nats-io/nats.go"
	"go.opentelemetry.io/otel/propagation"
)

// Propagator replaces how the trace context travels with a timer, which is the
// W3C's (the headers traceparent and tracestate) when nothing else is said:
// for baggage too, for another format, or for none at all with
// propagation.NewCompositeTextMapPropagator(). It must not be nil. What it
// writes is stored with the timer and delivered to every subscriber (ADR 30).
func Propagator(p propagation.TextMapPropagator) Option {
	return func(c *Client) error {
		if p == nil {
			return errors.New("no propagator was given; leave the option out for the W3C's trace context")
		}
		c.propagator = p
		return nil
	}
}

// carrier are the headers of a message as a propagator sees them.
type carrier nats.Header

// Get finds what another language's library wrote, in whatever letter case:
// NATS headers are case-sensitive, those of the W3C are not.
func (h carrier) Get(name string) string {
	if v := nats.Header(h).Get(name); v != "" {
		return v
	}
	for key, values := range h {
		if strings.EqualFold(key, name) && len(values) > 0 {
			return values[0]
		}
	}
	return ""
}

// Set implements [propagation.TextMapCarrier].
func (h carrier) Set(name, value string) { h[name] = []string{value} }

func (h carrier) has(name string) bool {
	for key := range h {
		if strings.EqualFold(key, name) {
			return true
		}
	}
	return false
}

// Keys implements [propagation.TextMapCarrier].
func (h carrier) Keys() []string {
	keys := make([]string, 0, len(h))
	for key := range h {
		keys = append(keys, key)
	}
	return keys
}

// inject adds the trace of ctx to the headers of a set, and leaves alone what
// the caller gave. A tracestate belongs to the traceparent that it came with,
// and never to the caller's.
func (c *Client) inject(ctx context.Context, given nats.Header) error {
	fresh := carrier{}
	c.propagator.Inject(ctx, fresh)
	callers := carrier(given)
	traced := callers.has("traceparent")
	for name, values := range fresh {
		if callers.has(name) || (traced && strings.EqualFold(name, "tracestate")) {
			continue
		}
		if err := Header(name, values...)(&nats.Msg{Header: given}); err != nil {
			return err
		}
	}
	return nil
}
