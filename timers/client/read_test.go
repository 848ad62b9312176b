package client_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/lapse-timers/lapse/timers/client"
	"github.com/lapse-timers/lapse/timers/timerstest"
)

// TestReadsAreAskedAgain: an answer that is lost costs a read half of its time,
// and no more. What writes is never asked again: TestNoAnswer.
func TestReadsAreAskedAgain(t *testing.T) {
	t.Parallel()
	nc := timerstest.NATS(t).Connect(t)
	c := newClient(t, nc, client.Timeout(4*time.Second))
	var lost atomic.Bool
	asked := answer(t, nc, "timers.list", func(*nats.Msg) *nats.Msg {
		if lost.CompareAndSwap(false, true) {
			return nil
		}
		return &nats.Msg{Data: []byte(`{"timers":[],"cursor":""}`)}
	})
	if _, err := c.ListPage(t.Context(), "", 0, ""); err != nil || len(asked) != 2 {
		t.Errorf("asked %d times: %v", len(asked), err)
	}
}

// TestNobodyHeard: a read waits a moment for an instance that takes over.
func TestNobodyHeard(t *testing.T) {
	t.Parallel()
	nc := timerstest.NATS(t).Connect(t)
	c := newClient(t, nc)
	for verb, ask := range map[string]func(context.Context) error{
		"get":    func(ctx context.Context) error { _, err := c.Get(ctx, "t", "a"); return err },
		"list":   func(ctx context.Context) error { _, err := c.ListPage(ctx, "", 0, ""); return err },
		"status": func(ctx context.Context) error { _, err := c.Status(ctx); return err },
	} {
		begun := time.Now()
		if err := ask(t.Context()); !errors.Is(err, nats.ErrNoResponders) || time.Since(begun) < 300*time.Millisecond {
			t.Errorf("%s: %v after %v, want it asked three times", verb, err, time.Since(begun))
		}
		ctx, cancel := context.WithTimeout(t.Context(), 150*time.Millisecond)
		if err := ask(ctx); !errors.Is(err, client.ErrUnavailable) || ctx.Err() == nil {
			t.Errorf("%s: %v, want it to go on until its context ends", verb, err)
		}
		cancel()
	}
}

// TestListEndsWithItsContext: also in the middle of a page.
func TestListEndsWithItsContext(t *testing.T) {
	t.Parallel()
	nc := timerstest.NATS(t).Connect(t)
	items := make([]string, 5)
	for i := range items {
		items[i] = fmt.Sprintf(`{"topic":"t","id":"%d","due":"2030-01-02T03:04:05.678Z","rev":1,"state":"scheduled","attempts":0}`, i)
	}
	answer(t, nc, "timers.list", body(`{"timers":[`+strings.Join(items, ",")+`],"cursor":"more"}`))
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var ids []string
	var last error
	for item, err := range newClient(t, nc).List(ctx, "") {
		if last = err; err != nil {
			continue // nothing may follow
		}
		ids = append(ids, item.ID)
		if len(ids) == 2 {
			cancel()
		}
	}
	if len(ids) != 2 || !errors.Is(last, context.Canceled) {
		t.Errorf("listed %v, then %v", ids, last)
	}
}
