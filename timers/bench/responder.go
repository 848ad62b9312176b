package bench

import (
	"context"
	"fmt"
	"io"

	"github.com/nats-io/nats.go"
)

const responderReady = "listening"

// Respond answers every request on the subject with the same few bytes, until
// ctx ends: the least that a service on NATS can do. It says so on out once it
// listens.
func Respond(ctx context.Context, nc *nats.Conn, subject string, out io.Writer) error {
	answer := []byte(`{"topic":"bench","id":"000000000000000000000000","due":"2030-01-02T03:04:05.678Z","rev":1,"replaced":false}`)
	_, err := nc.Subscribe(subject, func(m *nats.Msg) {
		_ = m.Respond(answer) // a requester that is gone waits for nothing
	})
	if err == nil {
		err = nc.FlushTimeout(answerWithin)
	}
	if err != nil {
		return fmt.Errorf("listen on %s: %w", subject, err)
	}
	fmt.Fprintln(out, responderReady)
	<-ctx.Done()
	return nil
}
