package client_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log"
	"os"
	"time"

	"github.com/nats-io/nats.go"
	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/trace"

	"github.com/lapse-timers/lapse/timers/client"
)

// lapse is the client of the examples: on the connection that a program has
// anyway, to the Lapse that NATS_URL leads to.
var lapse = connect()

func connect() func() *client.Client {
	var c *client.Client
	return func() *client.Client {
		if c != nil {
			return c
		}
		nc, err := nats.Connect(os.Getenv("NATS_URL"), nats.MaxReconnects(-1))
		if err != nil {
			log.Fatal(err)
		}
		if c, err = client.New(nc); err != nil {
			log.Fatal(err)
		}
		return c
	}
}

func Example() {
	ctx := context.Background()
	nc, err := nats.Connect(os.Getenv("NATS_URL"))
	if err != nil {
		log.Fatal(err)
	}
	defer nc.Close()
	lapse, err := client.New(nc)
	if err != nil {
		log.Fatal(err)
	}
	fired := make(chan client.Fired, 1)
	if _, err := lapse.Handle(ctx, "example.close", func(_ context.Context, f client.Fired) { fired <- f }); err != nil {
		log.Fatal(err)
	}
	_, err = lapse.Set(ctx, "example.close", []byte(`{"order":42}`), client.In(50*time.Millisecond), client.ID("order-42"))
	if err != nil {
		log.Fatal(err)
	}
	f := <-fired
	fmt.Println(f.ID, string(f.Payload), f.Attempt, f.Fired.Before(f.Due))
	// Output: order-42 {"order":42} 1 false
}

func ExampleNew() {
	nc, err := nats.Connect(os.Getenv("NATS_URL"), nats.MaxReconnects(-1))
	if err != nil {
		log.Fatal(err)
	}
	defer nc.Close()
	// A deployment with LAPSE_PREFIX=billing.timers, and less patience than
	// client.DefaultTimeout.
	billing, err := client.New(nc, client.Prefix("billing.timers"), client.Timeout(100*time.Millisecond))
	if err != nil {
		log.Fatal(err)
	}
	_, err = billing.Status(context.Background())
	fmt.Println(errors.Is(err, client.ErrUnavailable))
	// Output: true
}

func ExampleOption() {
	opts := []client.Option{client.Timeout(client.DefaultTimeout)}
	if prefix := os.Getenv("LAPSE_PREFIX"); prefix != "" {
		opts = append(opts, client.Prefix(prefix))
	}
	_, err := client.New(nil, opts...)
	fmt.Println(err)
	// Output: lapse client: no NATS connection was given
}

func ExamplePropagator() {
	nc, err := nats.Connect(os.Getenv("NATS_URL"))
	if err != nil {
		log.Fatal(err)
	}
	defer nc.Close()
	// Baggage travels too. It is stored with the timer, and whoever may receive
	// the topic reads it.
	_, err = client.New(nc, client.Propagator(propagation.NewCompositeTextMapPropagator(propagation.TraceContext{}, propagation.Baggage{})))
	fmt.Println(err)
	// Output: <nil>
}

func ExampleClient_Set() {
	due := time.Date(2090, time.January, 2, 9, 0, 0, 0, time.UTC)
	r, err := lapse().Set(context.Background(), "example.remind", []byte("invoice 7"), client.At(due),
		client.ID("invoice-7"), client.Header("Content-Type", "text/plain"))
	switch {
	case errors.Is(err, client.ErrUnconfirmed):
		// It may be stored: setting it again with the same id is safe.
	case errors.Is(err, client.ErrUnavailable), errors.Is(err, client.ErrQuota), errors.Is(err, client.ErrStorageFull):
		// Nothing was stored: try again later.
	case errors.Is(err, client.ErrInvalidTopic), errors.Is(err, client.ErrInvalidID), errors.Is(err, client.ErrInvalidSchedule),
		errors.Is(err, client.ErrInvalidHeader), errors.Is(err, client.ErrTooLarge):
		// It never will be: the request is wrong.
	case errors.Is(err, client.ErrInternal):
		// The log of the service says more.
	case err != nil:
		log.Fatal(err)
	case r.Replaced && r.Was == client.Firing:
		// The old payload was being delivered at this moment and may arrive.
	}
	fmt.Println(r.Topic, r.ID, r.Due.Equal(due))
	// Output: example.remind invoice-7 true
}

func ExampleWhen() {
	for _, when := range []client.When{
		client.In(90 * time.Minute),
		client.At(time.Date(2030, time.January, 2, 9, 0, 0, 0, time.FixedZone("", 3600))),
		client.Schedule("@in 30m"),
	} {
		fmt.Println(when.String())
	}
	// Output:
	// @in 1h30m0s
	// @at 2030-01-02T08:00:00Z
	// @in 30m
}

func ExampleSetOption() {
	opts := []client.SetOption{client.ID("order-43"), client.Header("Content-Type", "text/plain")}
	r, err := lapse().Set(context.Background(), "example.options", []byte("43"), client.In(time.Hour), opts...)
	if err != nil {
		log.Fatal(err)
	}
	var again client.Result
	again, err = lapse().Set(context.Background(), "example.options", []byte("43, again"), client.In(time.Hour), opts...)
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(again.Replaced, again.Was, again.Rev > r.Rev)
	// Output: true scheduled true
}

func ExampleClient_Get() {
	ctx := context.Background()
	if _, err := lapse().Set(ctx, "example.get", []byte("hello"), client.In(time.Hour), client.ID("a"), client.Header("Colour", "red")); err != nil {
		log.Fatal(err)
	}
	var timer client.Timer
	timer, err := lapse().Get(ctx, "example.get", "a")
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(timer.State, timer.Attempts, timer.Schedule, timer.Header.Get("Colour"), string(timer.Payload))
	_, err = lapse().Get(ctx, "example.get", "b")
	fmt.Println(errors.Is(err, client.ErrNotFound))
	// Output:
	// scheduled 0 @in 1h0m0s red hello
	// true
}

func ExampleState() {
	ctx := context.Background()
	if _, err := lapse().Set(ctx, "example.state", nil, client.In(time.Hour), client.ID("a")); err != nil {
		log.Fatal(err)
	}
	timer, err := lapse().Get(ctx, "example.state", "a")
	if err != nil {
		log.Fatal(err)
	}
	var state client.State = timer.State
	switch state {
	case client.Scheduled:
		fmt.Println("it waits")
	case client.Firing:
		fmt.Println("it is being delivered, or may have been")
	case client.Dead:
		fmt.Println("given up on:", timer.Reason)
	}
	// Output: it waits
}

func ExampleClient_Cancel() {
	ctx := context.Background()
	r, err := lapse().Set(ctx, "example.cancel", nil, client.In(time.Hour), client.ID("order-42"))
	if err != nil {
		log.Fatal(err)
	}
	rev, err := lapse().Cancel(ctx, "example.cancel", "order-42")
	fmt.Println(rev == r.Rev, err)

	_, err = lapse().Cancel(ctx, "example.cancel", "order-42")
	switch {
	case errors.Is(err, client.ErrNotFound):
		fmt.Println("delivered or cancelled already, or never set")
	case errors.Is(err, client.ErrConflict):
		fmt.Println("too late: it is being delivered")
	}
	// Output:
	// true <nil>
	// delivered or cancelled already, or never set
}

func ExampleError() {
	_, err := lapse().Cancel(context.Background(), "example.cancel", "none")
	var e *client.Error
	if errors.As(err, &e) {
		fmt.Println(e.Word)
		if errors.Is(err, client.ErrConflict) {
			fmt.Println("too late:", e.State, e.Stopped != nil && *e.Stopped)
		}
	}
	// Output: not_found
}

func ExampleClient_Retry() {
	ctx := context.Background()
	if _, err := lapse().Set(ctx, "example.retry", nil, client.In(time.Hour), client.ID("a")); err != nil {
		log.Fatal(err)
	}
	var r client.Retried
	r, err := lapse().Retry(ctx, "example.retry", "a")
	switch {
	case errors.Is(err, client.ErrConflict):
		fmt.Println("it is not dead")
	case err == nil:
		fmt.Println("due now:", r.ID)
	}
	// Output: it is not dead
}

func ExampleClient_List() {
	ctx := context.Background()
	for _, topic := range []string{"example.list.a", "example.list.b"} {
		if _, err := lapse().Set(ctx, topic, nil, client.In(time.Hour), client.ID("one")); err != nil {
			log.Fatal(err)
		}
	}
	for timer, err := range lapse().List(ctx, "example.list") {
		if err != nil {
			log.Fatal(err)
		}
		fmt.Println(timer.Topic, timer.ID, timer.State)
	}
	// Output:
	// example.list.a one scheduled
	// example.list.b one scheduled
}

func ExampleClient_ListPage() {
	ctx := context.Background()
	for _, id := range []string{"one", "two"} {
		if _, err := lapse().Set(ctx, "example.pages", nil, client.In(time.Hour), client.ID(id)); err != nil {
			log.Fatal(err)
		}
	}
	_, err := lapse().ListPage(ctx, "example.pages", client.MaxPage+1, "")
	fmt.Println(errors.Is(err, client.ErrInvalidRequest))
	var all []client.ListItem
	for cursor := ""; ; {
		var page client.Page
		page, err := lapse().ListPage(ctx, "example.pages", client.MaxPage, cursor)
		if err != nil {
			log.Fatal(err)
		}
		all = append(all, page.Timers...)
		if cursor = page.Cursor; cursor == "" {
			break
		}
	}
	fmt.Println(len(all))
	// Output:
	// true
	// 2
}

func ExampleClient_ListPendingPage() {
	ctx := context.Background()
	if _, err := lapse().Set(ctx, "example.pending", nil, client.In(time.Hour), client.ID("one")); err != nil {
		log.Fatal(err)
	}
	page, err := lapse().ListPendingPage(ctx, "example.pending", 10, "")
	if err != nil {
		log.Fatal(err)
	}
	for _, timer := range page.Timers {
		fmt.Println(timer.ID, timer.State)
	}
	// Output: one scheduled
}

func ExampleClient_ListDeadPage() {
	ctx := context.Background()
	if _, err := lapse().Set(ctx, "example.nonedead", nil, client.In(time.Hour)); err != nil {
		log.Fatal(err)
	}
	page, err := lapse().ListDeadPage(ctx, "example.nonedead", 10, "")
	if err != nil {
		log.Fatal(err)
	}
	for _, timer := range page.Timers {
		fmt.Println(timer.ID, timer.Reason)
	}
	fmt.Println(len(page.Timers), "dead")
	// Output: 0 dead
}

func ExampleClient_Status() {
	var s client.Status
	s, err := lapse().Status(context.Background())
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(s.Health.Status, s.Prefix, s.Stream)
	// Output: ok timers TIMERS
}

func ExampleClient_Handle() {
	ctx := context.Background()
	fired := make(chan string)
	var live *client.Receiver
	live, err := lapse().Handle(ctx, "example.handle.>", func(_ context.Context, f client.Fired) {
		fired <- f.Topic + " " + f.ID
	},
		client.Queue("workers"),     // each event reaches one of the group
		client.Concurrency(4),       // so many at a time
		client.Buffer(10_000),       // so many may wait
		client.Grace(5*time.Second), // at the end
		client.OnError(func(err error) { log.Print(err) }),
	)
	if err != nil {
		log.Fatal(err)
	}
	if _, err := lapse().Set(ctx, "example.handle.a", nil, client.In(0), client.ID("one")); err != nil {
		log.Fatal(err)
	}
	fmt.Println(<-fired)
	live.Stop() // or the end of ctx
	fmt.Println(live.Wait())
	// Output:
	// example.handle.a one
	// <nil>
}

func ExampleClient_Consume() {
	ctx, cancel := context.WithCancel(context.Background())
	if _, err := lapse().Set(ctx, "example.consume", []byte(`{"order":42}`), client.In(0), client.ID("one")); err != nil {
		log.Fatal(err)
	}
	orders, err := lapse().Consume(ctx, "example.consume", "example-billing", func(_ context.Context, f client.Fired) error {
		var order struct{ Order int }
		if err := json.Unmarshal(f.Payload, &order); err != nil {
			return fmt.Errorf("%w: %w", client.ErrGiveUp, err) // never gets better
		}
		if f.Deliveries == 1 {
			return errors.New("the database is away") // again, a little later
		}
		fmt.Println("order", order.Order, "delivery", f.Deliveries)
		cancel()
		return nil // acknowledges
	},
		client.Backoff(10*time.Millisecond, time.Minute),
		client.MaxTries(5),
		client.OnGivenUp(func(_ context.Context, e *client.HandlerError) { log.Print(e.Topic, e.ID, e.Err) }),
		client.OnError(func(error) {}),
	)
	if err != nil {
		log.Fatal(err) // client.ErrNoStream and client.ErrDurable among them
	}
	fmt.Println(orders.Wait())
	// Output:
	// order 42 delivery 2
	// <nil>
}

func ExampleConsumeOption() {
	opts := []client.ConsumeOption{
		client.Stream("TIMERS"),     // instead of looking for it
		client.FromNow(),            // a durable that is new has no past
		client.AckWait(time.Minute), // until others take over from a process that died
		client.Concurrency(8),
	}
	r, err := lapse().Consume(context.Background(), "example.options", "example-options",
		func(context.Context, client.Fired) error { return nil }, opts...)
	switch {
	case errors.Is(err, client.ErrNoStream):
		log.Fatal("Lapse keeps no stream: use Handle")
	case errors.Is(err, client.ErrDurable):
		log.Fatal("the name is taken")
	case err != nil:
		log.Fatal(err)
	}
	r.Stop()
	<-r.Done()
	fmt.Println(r.Wait())
	// Output: <nil>
}

// Options that either way of receiving takes.
func ExampleReceiveOption() {
	both := []client.ReceiveOption{client.Concurrency(8), client.Grace(time.Minute)}
	var live []client.HandleOption
	var stored []client.ConsumeOption
	for _, opt := range both {
		live, stored = append(live, opt), append(stored, opt)
	}
	fmt.Println(len(live), len(stored))
	// Output: 2 2
}

func ExampleClient_HandleDead() {
	live, err := lapse().HandleDead(context.Background(), "", func(ctx context.Context, d client.DeadTimer) {
		log.Printf("%s %s is dead after %d attempts: %s", d.Topic, d.ID, d.Attempts, d.Reason)
	})
	if err != nil {
		log.Fatal(err)
	}
	live.Stop()
	fmt.Println(live.Wait())
	// Output: <nil>
}

func ExampleClient_ConsumeDead() {
	letters, err := lapse().ConsumeDead(context.Background(), "example.>", "example-letters", func(ctx context.Context, d client.DeadTimer) error {
		_, err := lapse().Retry(ctx, d.Topic, d.ID)
		if errors.Is(err, client.ErrConflict) || errors.Is(err, client.ErrNotFound) {
			return nil // somebody else saw to it
		}
		return err
	})
	if err != nil {
		log.Fatal(err)
	}
	letters.Stop()
	fmt.Println(letters.Wait())
	// Output: <nil>
}

// What OnError is told of.
func ExampleOnError() {
	report := func(err error) {
		var failed *client.HandlerError
		var panicked *client.PanicError
		var foreign *client.ForeignError
		var missed *client.MissedError
		switch {
		case errors.As(err, &panicked):
			fmt.Println("a bug:", panicked.Value)
		case errors.As(err, &failed):
			fmt.Println(failed.Topic, failed.ID, "failed, again in", failed.RetryIn)
		case errors.As(err, &foreign):
			fmt.Println("not from Lapse:", foreign.Msg.Subject)
		case errors.As(err, &missed):
			fmt.Println("too slow:", missed.Events)
		}
	}
	report(&client.HandlerError{Topic: "t", ID: "a", Err: &client.PanicError{Value: "boom"}})
	report(&client.HandlerError{Topic: "t", ID: "a", Err: context.DeadlineExceeded, RetryIn: time.Second})
	_ = client.OnError(report)
	// Output:
	// a bug: boom
	// t a failed, again in 1s
}

// Where a JetStream consumer of one's own received the message.
func ExampleParseFired() {
	m := nats.NewMsg("timers.fired.orders.close")
	m.Data = []byte("forged")
	_, err := client.ParseFired(m.Header, m.Data)
	fmt.Println(err)
	_, err = client.ParseDead(m.Header, m.Data)
	fmt.Println(err)
	// Output:
	// header Timer-Topic: it is missing
	// header Timer-Topic: it is missing
}

func ExampleFired_Lag() {
	due := time.Date(2030, time.January, 2, 9, 0, 0, 0, time.UTC)
	f := client.Fired{Due: due, Received: due.Add(3 * time.Millisecond)}
	fmt.Println(f.Lag())
	// Output: 3ms
}

// The trace of the set is that of the handler. A program with the SDK of
// OpenTelemetry starts its spans from the handler's context.
func ExampleClient_Handle_trace() {
	ids := make(chan trace.TraceID)
	live, err := lapse().Handle(context.Background(), "example.trace", func(ctx context.Context, _ client.Fired) {
		ids <- trace.SpanContextFromContext(ctx).TraceID()
	})
	if err != nil {
		log.Fatal(err)
	}
	defer live.Stop()
	ctx := trace.ContextWithSpanContext(context.Background(), // a program has this already
		trace.NewSpanContext(trace.SpanContextConfig{TraceID: trace.TraceID{1}, SpanID: trace.SpanID{2}}))
	if _, err := lapse().Set(ctx, "example.trace", nil, client.In(10*time.Millisecond)); err != nil {
		log.Fatal(err)
	}
	fmt.Println(<-ids)
	// Output: 01000000000000000000000000000000
}
