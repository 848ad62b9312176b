package client_test

import (
	"context"
	"testing"

	"go.opentelemetry.io/otel/baggage"
	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/trace"

	"github.com/lapse-timers/lapse/timers/client"
)

// traced is a context in the middle of a trace.
func traced(t *testing.T, ctx context.Context) (context.Context, trace.SpanContext) {
	t.Helper()
	state, err := trace.ParseTraceState("vendor=7")
	if err != nil {
		t.Fatal(err)
	}
	span := trace.NewSpanContext(trace.SpanContextConfig{
		TraceID: trace.TraceID{1, 2, 3}, SpanID: trace.SpanID{4, 5}, TraceFlags: trace.FlagsSampled, TraceState: state,
	})
	return trace.ContextWithSpanContext(ctx, span), span
}

// TestTraceContinues: the handler is in the trace of whoever set the timer,
// whichever way the event came.
func TestTraceContinues(t *testing.T) {
	t.Parallel()
	_, c, topic := shared(t)
	live, stored := make(chan trace.SpanContext, 1), make(chan trace.SpanContext, 1)
	if _, err := c.Handle(t.Context(), topic, func(ctx context.Context, _ client.Fired) { live <- trace.SpanContextFromContext(ctx) }); err != nil {
		t.Fatal(err)
	}
	consume(t, c, topic, func(ctx context.Context, _ client.Fired) error {
		stored <- trace.SpanContextFromContext(ctx)
		return nil
	})
	ctx, span := traced(t, t.Context())
	if _, err := c.Set(ctx, topic, nil, client.In(0)); err != nil {
		t.Fatal(err)
	}
	for way, got := range map[string]trace.SpanContext{"live": next(t, live, "live"), "stored": next(t, stored, "stored")} {
		if got.TraceID() != span.TraceID() || got.SpanID() != span.SpanID() || !got.IsSampled() || !got.IsRemote() || got.TraceState().Get("vendor") != "7" {
			t.Errorf("%s: %+v, want that of %+v", way, got, span)
		}
	}
}

// TestTraceHeaders: what the caller gave stays as it is, in any letter case, and
// no tracestate joins a traceparent that it does not belong to.
func TestTraceHeaders(t *testing.T) {
	t.Parallel()
	nc, c, topic := shared(t)
	const own = "00-ffffffffffffffffffffffffffffffff-ffffffffffffffff-01"
	inTrace, _ := traced(t, t.Context())
	both := newClient(t, nc, client.Propagator(propagation.NewCompositeTextMapPropagator(propagation.TraceContext{}, propagation.Baggage{})))
	none := newClient(t, nc, client.Propagator(propagation.NewCompositeTextMapPropagator()))
	member, err := baggage.NewMember("tenant", "7")
	if err != nil {
		t.Fatal(err)
	}
	bag, err := baggage.New(member)
	if err != nil {
		t.Fatal(err)
	}
	withBag := baggage.ContextWithBaggage(inTrace, bag)
	for id, tt := range map[string]struct {
		c    *client.Client
		ctx  context.Context
		opts []client.SetOption
		want map[string]string
	}{
		"trace":         {c, inTrace, nil, map[string]string{"traceparent": "00-01020300000000000000000000000000-0405000000000000-01", "tracestate": "vendor=7"}},
		"no trace":      {c, t.Context(), nil, map[string]string{}},
		"the caller's":  {c, inTrace, []client.SetOption{client.Header("traceparent", own)}, map[string]string{"traceparent": own}},
		"another case":  {c, inTrace, []client.SetOption{client.Header("Traceparent", own)}, map[string]string{"Traceparent": own}},
		"no baggage":    {c, withBag, nil, map[string]string{"traceparent": "00-01020300000000000000000000000000-0405000000000000-01", "tracestate": "vendor=7"}},
		"baggage":       {both, withBag, []client.SetOption{client.Header("traceparent", own)}, map[string]string{"traceparent": own, "baggage": "tenant=7"}},
		"none whatever": {none, withBag, nil, map[string]string{}},
	} {
		if _, err := tt.c.Set(tt.ctx, topic, nil, client.In(1<<40), append(tt.opts, client.ID(id))...); err != nil {
			t.Fatal(err)
		}
		timer, err := c.Get(t.Context(), topic, id)
		if err != nil {
			t.Fatal(err)
		}
		if len(timer.Header) != len(tt.want) {
			t.Errorf("%s: %v, want %v", id, timer.Header, tt.want)
		}
		for name, want := range tt.want {
			if got := timer.Header.Get(name); got != want {
				t.Errorf("%s: %s is %q, want %q", id, name, got, want)
			}
		}
	}
}

// TestTraceInAnyCase: NATS headers are case-sensitive, those of the W3C are not.
func TestTraceInAnyCase(t *testing.T) {
	t.Parallel()
	nc, c, topic := shared(t)
	got := make(chan trace.SpanContext, 1)
	if _, err := c.Handle(t.Context(), topic, func(ctx context.Context, _ client.Fired) { got <- trace.SpanContextFromContext(ctx) }); err != nil {
		t.Fatal(err)
	}
	m := firedMsg(topic, "a")
	m.Header["Traceparent"] = []string{"00-01020300000000000000000000000000-0405000000000000-01"}
	publish(t, nc, m)
	if span := next(t, got, "the event"); span.TraceID() != (trace.TraceID{1, 2, 3}) {
		t.Errorf("got %+v", span)
	}
}
