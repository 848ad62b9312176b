package metrics

import (
	"context"
	"errors"
	"net/http/httptest"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/lapse-timers/lapse/timers"
	"github.com/lapse-timers/lapse/timers/wire"
)

func scraped(t *testing.T, m *Metrics) string {
	t.Helper()
	w := httptest.NewRecorder()
	m.Handler().ServeHTTP(w, httptest.NewRequest("GET", "/metrics", nil))
	require.Equal(t, 200, w.Code, w.Body.String())
	return w.Body.String()
}

// Each attempt counts under one outcome, and a histogram has what it is about.
func TestAttemptsCountOnce(t *testing.T) {
	topics, err := ParseTopics("a")
	require.NoError(t, err)
	m := New(Options{Topics: topics, Verbs: []string{"set"}, Sample: func(context.Context) Sampled { return Sampled{} }})
	attempt := func(d timers.Delivery, dead bool) {
		m.Attempt(timers.Attempt{Delivery: d, Topic: "a.b", Source: timers.FromSweep, Number: 3, Dead: dead, Lag: 3 * time.Millisecond, Took: time.Millisecond})
	}
	attempt(timers.Delivery{Outcome: timers.Delivered}, false)
	attempt(timers.Delivery{Outcome: timers.Delivered, Duplicate: true}, false)
	attempt(timers.Delivery{Outcome: timers.Refused, Err: errors.New("no")}, false)
	attempt(timers.Delivery{Outcome: timers.Unknown}, false)
	attempt(timers.Delivery{Outcome: timers.Refused, Err: errors.New("no")}, true)
	m.Request("set", "", time.Millisecond)
	m.Request("set", wire.Conflict, time.Millisecond)
	m.Request("set", "a word of a later release", time.Millisecond)
	m.Request("a verb of a later release", "", time.Millisecond)
	m.Call("claim", time.Millisecond, nil)
	m.Call("claim", time.Millisecond, errors.New("no"))
	m.Call("a script of a later release", time.Millisecond, nil)

	text := scraped(t, m)
	for _, outcome := range fireOutcomes {
		require.Contains(t, text, `lapse_fires_total{outcome="`+outcome+`",source="sweep",topic="a"} 1`+"\n")
		require.Contains(t, text, `lapse_fires_total{outcome="`+outcome+`",source="event",topic="other"} 0`+"\n")
	}
	for _, line := range []string{
		`lapse_fire_lag_seconds_bucket{source="sweep",le="0.002"} 0`,
		`lapse_fire_lag_seconds_bucket{source="sweep",le="0.005"} 2`,
		`lapse_fire_attempts_count 3`, `lapse_fire_attempts_sum 9`,
		`lapse_publish_duration_seconds_count{outcome="delivered"} 2`,
		`lapse_publish_duration_seconds_count{outcome="refused"} 2`,
		`lapse_publish_duration_seconds_count{outcome="unknown"} 1`,
		`lapse_requests_total{outcome="ok",verb="set"} 1`,
		`lapse_requests_total{outcome="conflict",verb="set"} 1`,
		`lapse_requests_total{outcome="internal",verb="set"} 1`,
		`lapse_redis_call_duration_seconds_count{call="claim"} 2`,
		`lapse_redis_call_errors_total{call="claim"} 1`,
		`lapse_redis_call_errors_total{call="get"} 0`,
		`lapse_ready 0`,
	} {
		require.Contains(t, text, line+"\n")
	}
	require.NotContains(t, text, "later release")
}

// However many scrape, Redis is asked once a second.
func TestSamplesServeForASecond(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var asked atomic.Int64
		s := &state{sample: func(context.Context) Sampled {
			return Sampled{Counts: &timers.Counts{Pending: asked.Add(1)}}
		}}
		scrape := func(want int64) {
			t.Helper()
			var group sync.WaitGroup
			for range 10 {
				group.Go(func() { assert.Equal(t, want, s.sampled().Counts.Pending) })
			}
			group.Wait()
		}
		scrape(1)
		time.Sleep(900 * time.Millisecond)
		scrape(1)
		time.Sleep(200 * time.Millisecond)
		scrape(2)
	})
}

// Counting is on the path of each timer: no allocation.
func TestCountingAllocatesNothing(t *testing.T) {
	topics, err := ParseTopics("*")
	require.NoError(t, err)
	m := New(Options{Topics: topics, Verbs: []string{"set"}, Sample: func(context.Context) Sampled { return Sampled{} }})
	count := func() {
		m.Attempt(timers.Attempt{Delivery: timers.Delivery{Outcome: timers.Delivered}, Topic: "orders.close", Source: timers.FromEvent, Number: 1, Lag: 3 * time.Millisecond, Took: time.Millisecond})
		m.Request("set", "", time.Millisecond)
		m.Call("claim", time.Millisecond, nil)
	}
	count() // makes the label, and the buckets of the native histograms
	require.Zero(t, testing.AllocsPerRun(1000, count))
}

func BenchmarkAttempt(b *testing.B) {
	topics, err := ParseTopics("*")
	require.NoError(b, err)
	m := New(Options{Topics: topics, Sample: func(context.Context) Sampled { return Sampled{} }})
	a := timers.Attempt{Delivery: timers.Delivery{Outcome: timers.Delivered}, Topic: "orders.close", Source: timers.FromEvent, Number: 1, Took: time.Millisecond}
	for i := 0; b.Loop(); i++ {
		a.Lag = time.Duration(i%5000) * time.Microsecond
		m.Attempt(a)
	}
}
