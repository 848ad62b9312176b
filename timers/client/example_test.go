package client_test

import (
	"context"
	"errors"
	"fmt"
	"log"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/lapse-timers/lapse/timers/client"
)

func Example() {
	nc, err := nats.Connect("nats://127.0.0.1:4222")
	if err != nil {
		log.Fatal(err)
	}
	defer nc.Close()
	lapse, err := client.New(nc)
	if err != nil {
		log.Fatal(err)
	}
	fired := make(chan client.Fired, 1)
	if _, err := lapse.Handle(context.Background(), "orders.close", func(_ context.Context, f client.Fired) { fired <- f }); err != nil {
		log.Fatal(err)
	}
	_, err = lapse.Set(context.Background(), "orders.close", []byte(`{"order":42}`), client.In(2*time.Second), client.ID("order-42"))
	if err != nil {
		log.Fatal(err)
	}
	f := <-fired
	fmt.Println(f.ID, string(f.Payload), f.Lag())
}

func ExampleClient_Set() {
	var lapse *client.Client // see client.New
	due := time.Date(2030, time.January, 2, 9, 0, 0, 0, time.UTC)
	r, err := lapse.Set(context.Background(), "invoices.remind", []byte("invoice 7"), client.At(due),
		client.ID("invoice-7"), client.Header("Content-Type", "text/plain"))
	switch {
	case errors.Is(err, client.ErrUnconfirmed):
		// It may be stored: setting it again with the same id is safe.
	case errors.Is(err, client.ErrUnavailable):
		// Nothing was stored: try again later.
	case err != nil:
		log.Fatal(err)
	case r.Replaced && r.Was == client.Firing:
		// The old payload was being delivered at this moment and may arrive.
	}
}

func ExampleClient_Cancel() {
	var lapse *client.Client // see client.New
	_, err := lapse.Cancel(context.Background(), "orders.close", "order-42")
	var e *client.Error
	switch {
	case errors.Is(err, client.ErrNotFound):
		// Delivered already, or never set.
	case errors.Is(err, client.ErrConflict) && errors.As(err, &e):
		log.Printf("too late: %s; stopped: %v", e.State, e.Stopped != nil && *e.Stopped)
	case err != nil:
		log.Fatal(err)
	}
}

func ExampleClient_List() {
	var lapse *client.Client // see client.New
	for timer, err := range lapse.List(context.Background(), "orders") {
		if err != nil {
			log.Fatal(err)
		}
		fmt.Println(timer.Due, timer.Topic, timer.ID, timer.State)
	}
}
