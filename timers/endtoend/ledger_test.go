package endtoend

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/lapse-timers/lapse/timers/client"
	"github.com/lapse-timers/lapse/timers/timerstest"
)

// fate is what must become of a life, by what was answered.
type fate int

const (
	delivered fate = iota // exactly once
	never                 // cancelled, or replaced while scheduled
	maybe                 // the answer said that it was being delivered
)

// life is one set that was answered OK.
type life struct {
	topic, id, payload string
	rev                int64
	due                time.Time
	fate               fate
}

func (l *life) key() string { return fmt.Sprint(l.topic, " ", l.id, " ", l.rev) }

// ledger keeps the lives of a run.
type ledger struct {
	mu    sync.Mutex
	lives map[string]*life
}

func newLedger() *ledger { return &ledger{lives: map[string]*life{}} }

func (l *ledger) add(v *life) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.lives[v.key()] = v
}

func (l *ledger) set(v *life, f fate) {
	l.mu.Lock()
	defer l.mu.Unlock()
	v.fate = f
}

func (l *ledger) count(f fate) int {
	l.mu.Lock()
	defer l.mu.Unlock()
	n := 0
	for _, v := range l.lives {
		if v.fate == f {
			n++
		}
	}
	return n
}

// check compares the ledger with what the stream holds.
func (l *ledger) check(t *testing.T, fired []client.Fired) {
	t.Helper()
	l.mu.Lock()
	defer l.mu.Unlock()
	copies := map[string]int{}
	var wrong []string
	say := func(format string, args ...any) { wrong = append(wrong, fmt.Sprintf(format, args...)) }
	for _, f := range fired {
		v := l.lives[(&life{topic: f.Topic, id: f.ID, rev: f.Rev}).key()]
		switch {
		case v == nil:
			say("fired but never answered: %s %s rev %d", f.Topic, f.ID, f.Rev)
			continue
		case string(f.Payload) != v.payload:
			say("%s has another life's payload %q", v.key(), f.Payload)
		case f.Fired.Before(f.Due) || !f.Due.Equal(v.due):
			say("%s fired at %v, due %v, answered %v", v.key(), f.Fired, f.Due, v.due)
		case v.fate == never:
			say("%s fired though it was cancelled or replaced", v.key())
		}
		copies[v.key()]++
		if copies[v.key()] == 2 {
			say("%s is twice on the stream", v.key())
		}
	}
	for key, v := range l.lives {
		if v.fate == delivered && copies[key] == 0 {
			say("%s was lost", key)
		}
	}
	if len(wrong) > 0 {
		t.Fatalf("%d disagreements, such as:\n%s", len(wrong), strings.Join(wrong[:min(len(wrong), 20)], "\n"))
	}
}

// receiver hears fired events as they come.
type receiver struct {
	mu   sync.Mutex
	got  []client.Fired
	news chan struct{}
}

func receive(t *testing.T, c *client.Client) *receiver {
	t.Helper()
	r := &receiver{news: make(chan struct{}, 1)}
	_, err := c.Handle(t.Context(), "", func(_ context.Context, f client.Fired) {
		r.mu.Lock()
		r.got = append(r.got, f)
		r.mu.Unlock()
		select {
		case r.news <- struct{}{}:
		default:
		}
	})
	require.NoError(t, err)
	return r
}

func (r *receiver) all() []client.Fired {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Clone(r.got)
}

// await waits until n events have come.
func (r *receiver) await(t *testing.T, n int, within time.Duration) []client.Fired {
	t.Helper()
	deadline := time.After(within)
	for {
		r.mu.Lock()
		have := len(r.got)
		r.mu.Unlock()
		if have >= n {
			return r.all()
		}
		select {
		case <-r.news:
		case <-deadline:
			t.Fatalf("%d of %d fired events came within %v", have, n, within)
		}
	}
}

// lags are how late the events came, sorted.
func lags(fired []client.Fired) []time.Duration {
	out := make([]time.Duration, len(fired))
	for i, f := range fired {
		out[i] = f.Lag()
	}
	slices.Sort(out)
	return out
}

func quantile(sorted []time.Duration, q float64) time.Duration {
	if len(sorted) == 0 {
		return 0
	}
	return sorted[int(q*float64(len(sorted)-1))]
}

func report(t *testing.T, what string, fired []client.Fired) []time.Duration {
	t.Helper()
	l := lags(fired)
	sweeps := 0
	for _, f := range fired {
		if f.Source == "sweep" {
			sweeps++
		}
	}
	t.Logf("%s: %d fired (%d by sweep), lag p50 %v p99 %v max %v", what, len(l), sweeps, quantile(l, .5), quantile(l, .99), quantile(l, 1))
	return l
}

// onStream reads everything the stream holds.
func onStream(t *testing.T, nc *nats.Conn) []client.Fired {
	t.Helper()
	fired, _ := storedAt(t, nc)
	return fired
}

// storedAt is onStream with the times at which they were stored.
func storedAt(t *testing.T, nc *nats.Conn) ([]client.Fired, []time.Time) {
	t.Helper()
	js, err := jetstream.New(nc)
	require.NoError(t, err)
	stream, err := js.Stream(t.Context(), "TIMERS")
	require.NoError(t, err)
	info, err := stream.Info(t.Context())
	require.NoError(t, err)
	out, at := make([]client.Fired, 0, info.State.Msgs), make([]time.Time, 0, info.State.Msgs)
	cons, err := stream.OrderedConsumer(t.Context(), jetstream.OrderedConsumerConfig{})
	require.NoError(t, err)
	for len(out) < int(info.State.Msgs) {
		batch, err := cons.Fetch(min(500, int(info.State.Msgs)-len(out)), jetstream.FetchMaxWait(20*time.Second))
		require.NoError(t, err)
		for m := range batch.Messages() {
			f, err := client.ParseFired(m.Headers(), m.Data())
			require.NoError(t, err)
			meta, err := m.Metadata()
			require.NoError(t, err)
			out, at = append(out, f), append(at, meta.Timestamp)
		}
		require.NoError(t, batch.Error())
	}
	return out, at
}

// storm has requesters set timers over random delays, and replace and cancel a
// fifth of them each, at random moments.
func storm(t *testing.T, c *client.Client, l *ledger, timers, requesters int, longest time.Duration) {
	t.Helper()
	var wg sync.WaitGroup
	errs := make(chan error, requesters)
	for w := range requesters {
		wg.Go(func() {
			random := rand.New(rand.NewPCG(uint64(w), 1))
			for i := w; i < timers; i += requesters {
				if err := one(t.Context(), c, l, random, i, longest); err != nil {
					errs <- err
					return
				}
			}
		})
	}
	wg.Wait()
	close(errs)
	for err := range errs {
		t.Fatal(err)
	}
}

func one(ctx context.Context, c *client.Client, l *ledger, random *rand.Rand, i int, longest time.Duration) error {
	topic, id := fmt.Sprintf("storm.%d", i%7), fmt.Sprintf("timer:%d", i)
	set := func(payload string) (*life, client.Result, error) {
		res, err := c.Set(ctx, topic, []byte(payload), client.In(time.Duration(random.Int64N(int64(longest)))), client.ID(id))
		if err != nil {
			return nil, res, fmt.Errorf("set %s: %w", id, err)
		}
		v := &life{topic: topic, id: id, payload: payload, rev: res.Rev, due: res.Due}
		l.add(v)
		return v, res, nil
	}
	first, _, err := set(fmt.Sprint("first ", i))
	if err != nil {
		return err
	}
	switch i % 5 {
	case 0:
		_, res, err := set(fmt.Sprint("second ", i))
		if err != nil {
			return err
		}
		switch {
		case !res.Replaced: // it was delivered before
		case res.Was == client.Scheduled:
			l.set(first, never)
		default:
			l.set(first, maybe)
		}
	case 1:
		_, err := c.Cancel(ctx, topic, id)
		switch {
		case err == nil:
			l.set(first, never)
		case errors.Is(err, client.ErrConflict):
			l.set(first, maybe)
		case errors.Is(err, client.ErrNotFound): // delivered before
		default:
			return fmt.Errorf("cancel %s: %w", id, err)
		}
	}
	return nil
}

// records are the keys of the database, sorted, without those about the
// instances themselves, which come and go with them.
func records(t *testing.T, rdb *redis.Client) []string {
	t.Helper()
	keys, err := rdb.Keys(t.Context(), "*").Result()
	require.NoError(t, err)
	keys = slices.DeleteFunc(keys, func(k string) bool { return strings.Contains(k, ":{crew}:") })
	slices.Sort(keys)
	return keys
}

// nothingLeft waits until only the bookkeeping keys are there.
func nothingLeft(t *testing.T, rdb *redis.Client) {
	t.Helper()
	timerstest.Eventually(t, 10*time.Second, "only bookkeeping keys are left", func() bool {
		for _, k := range records(t, rdb) {
			if k != "timers:meta" && k != "timers:{0}:rev" {
				return false
			}
		}
		return true
	})
	timerstest.CheckInvariants(t, rdb, "timers")
}

func newClient(t *testing.T, nc *nats.Conn) *client.Client {
	t.Helper()
	c, err := client.New(nc, client.Timeout(20*time.Second))
	require.NoError(t, err)
	return c
}
