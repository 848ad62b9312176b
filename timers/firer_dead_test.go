package timers_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lapse-timers/lapse/timers"
	"github.com/lapse-timers/lapse/timers/timerstest"
)

// scripted is a publisher whose attempts end as told, the last for ever after.
type scripted struct {
	mu       sync.Mutex
	ends     []timers.Delivery
	attempts []int
}

func (s *scripted) Await(ctx context.Context) error { return ctx.Err() }

func (s *scripted) Publish(c *timers.Claim, _ timers.Source, done func(timers.Delivery)) {
	s.mu.Lock()
	s.attempts = append(s.attempts, c.Attempt)
	d := s.ends[0]
	if len(s.ends) > 1 {
		s.ends = s.ends[1:]
	}
	s.mu.Unlock()
	done(d)
}

func (s *scripted) seen() []int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return append([]int(nil), s.attempts...)
}

func TestFirerGivesUp(t *testing.T) {
	t.Parallel()
	full := errors.New("stream TIMERS refuses: maximum messages exceeded (10077)")
	refused := timers.Delivery{Outcome: timers.Refused, Err: full}
	unknown := timers.Delivery{Outcome: timers.Unknown, Err: errors.New("timeout")}
	large := timers.Delivery{Outcome: timers.Refused, Err: fmt.Errorf("%w: the stream takes less", timers.ErrTooLarge)}
	stale := timers.Delivery{Outcome: timers.Refused, Err: timers.ErrStale}
	away := timers.Delivery{Outcome: timers.Refused, Err: fmt.Errorf("%w: closed", timers.ErrAway)}
	delivered := timers.Delivery{Outcome: timers.Delivered}
	for _, tc := range []struct {
		name     string
		most     int
		ends     []timers.Delivery
		attempts int
		reason   string // "" for one that is delivered
		cancel   timers.CancelOutcome
	}{
		{"after the last attempt", 3, []timers.Delivery{refused}, 3, "given up on after 3 attempts: " + full.Error(), timers.Cancelled},
		{"after one", 1, []timers.Delivery{refused}, 1, "given up on after 1 attempts: " + full.Error(), timers.Cancelled},
		{"unknown at the end", 2, []timers.Delivery{refused, unknown}, 2, "given up on after 2 attempts: timeout", timers.CancelDead},
		{"unknown before", 2, []timers.Delivery{unknown, refused}, 2, "given up on after 2 attempts: " + full.Error(), timers.CancelDead},
		{"too large, though it never gives up", 0, []timers.Delivery{refused, large}, 2, "too large to be delivered: the stream takes less", timers.Cancelled},
		{"too large after a doubt", 0, []timers.Delivery{unknown, large}, 2, "too large to be delivered: the stream takes less", timers.CancelDead},
		{"never", 0, []timers.Delivery{refused, refused, refused, refused, refused, refused, delivered}, 7, "", 0},
		{"delivered at the last attempt", 2, []timers.Delivery{refused, delivered}, 2, "", 0},
		{"what was never sent says nothing", 1, []timers.Delivery{stale, away, refused}, 3, "given up on after 3 attempts: " + full.Error(), timers.Cancelled},
	} {
		t.Run(tc.name, func(t *testing.T) {
			r := newRig(t)
			pub := &scripted{ends: tc.ends}
			buried := make(chan string, 16)
			f := timers.NewFirer(r.store, pub, timers.FirerConfig{
				Lease: time.Minute, RetryMin: time.Millisecond, RetryMax: 5 * time.Millisecond, MaxAttempts: tc.most,
				Buried: func(c *timers.Claim, reason string) { buried <- c.ID + ": " + reason + ": " + string(c.Payload) },
			})
			ctx, stop := context.WithCancel(t.Context())
			ended := make(chan error, 1)
			go func() { ended <- f.Run(ctx) }()
			defer func() {
				stop()
				require.NoError(t, <-ended)
			}()
			r.set("a", 0, "payload")
			over := func() bool {
				got := r.get("a")
				return got == nil || got.State == timers.Dead
			}
			timerstest.Eventually(t, 10*time.Second, "it is over", func() bool { f.Hint(ref("a")); return over() })
			got := r.get("a")
			if tc.reason == "" {
				require.Nil(t, got)
				require.Zero(t, f.Stats().Dead.Load())
			} else {
				require.Equal(t, "a: "+tc.reason+": payload", <-buried)
				require.Equal(t, tc.reason, got.Reason)
				require.Equal(t, tc.attempts, got.Attempts)
				require.EqualValues(t, 1, f.Stats().Dead.Load())
				// Events that are still under way change nothing.
				for range 20 {
					f.Hint(ref("a"))
				}
				claimed, err := f.Sweep(ctx, 0, refs("a"))
				require.NoError(t, err)
				require.Zero(t, claimed)
				timerstest.CheckInvariants(t, r.rdb, prefix)
				require.Equal(t, tc.cancel, r.cancel("a").Outcome)
			}
			want := make([]int, tc.attempts)
			for i := range want {
				want[i] = i + 1
			}
			require.Equal(t, want, pub.seen())
			require.Empty(t, buried)
			timerstest.Eventually(t, 10*time.Second, "all is settled", func() bool { return f.InFlight() == 0 })
			r.clean()
		})
	}
}

// What died shortly before the end is in the log as well.
func TestFirerSaysAllTheDeadAtTheEnd(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	var log bytes.Buffer
	f := timers.NewFirer(r.store, &scripted{ends: []timers.Delivery{{Outcome: timers.Refused, Err: timers.ErrTooLarge}}}, timers.FirerConfig{
		Lease: time.Minute, RetryMin: time.Millisecond, RetryMax: time.Millisecond, Settle: 10 * time.Second, Logger: slog.New(slog.NewJSONHandler(&log, nil)),
	})
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- f.Run(ctx) }()
	r.set("a", 0, "x")
	r.past(r.set("b", 0, "x").Due)
	claimed, err := f.Sweep(ctx, 0, refs("a", "b"))
	require.NoError(t, err)
	require.Equal(t, 2, claimed)
	timerstest.Eventually(t, 10*time.Second, "both are dead", func() bool { return f.Stats().Dead.Load() == 2 })
	stop()
	require.NoError(t, <-ended)
	said := 0
	for line := range strings.Lines(log.String()) {
		var l struct{ Count int }
		require.NoError(t, json.Unmarshal([]byte(line), &l))
		said += l.Count
	}
	require.Equal(t, 2, said)
}

// While Redis refuses claims nothing is published, however often it is asked;
// and an attempt whose end cannot be written is not repeated.
func TestNothingIsPublishedThatCannotBeClaimed(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct{ refuse, accept func(r *rig) }{
		"replica": {
			func(r *rig) { require.NoError(r, r.rdb.ReplicaOf(r.Context(), "127.0.0.1", "1").Err()) },
			func(r *rig) { require.NoError(r, r.rdb.ReplicaOf(r.Context(), "NO", "ONE").Err()) },
		},
		"too few replicas": {
			func(r *rig) {
				require.NoError(r, r.rdb.ConfigSet(r.Context(), "min-replicas-to-write", "1").Err())
			},
			func(r *rig) {
				require.NoError(r, r.rdb.ConfigSet(r.Context(), "min-replicas-to-write", "0").Err())
			},
		},
	} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t)
			pub := &scripted{ends: []timers.Delivery{{Outcome: timers.Delivered}}}
			f := timers.NewFirer(r.store, pub, timers.FirerConfig{Lease: time.Minute, RetryMin: time.Millisecond, RetryMax: time.Millisecond, Settle: 10 * time.Second})
			ctx, stop := context.WithCancel(t.Context())
			ended := make(chan error, 1)
			go func() { ended <- f.Run(ctx) }()
			r.past(r.set("a", 0, "payload").Due)
			tc.refuse(r)
			for range 50 {
				_, err := f.Sweep(ctx, 0, refs("a"))
				require.ErrorIs(t, err, timers.ErrUnavailable)
			}
			f.Hint(ref("a"))
			timerstest.Eventually(t, 10*time.Second, "the hint is refused too", func() bool { return f.Stats().ClaimErrors.Load() == 51 })
			require.Empty(t, pub.seen())
			tc.accept(r)
			claimed, err := f.Sweep(ctx, 0, refs("a"))
			require.NoError(t, err)
			require.Equal(t, 1, claimed)
			stop()
			require.NoError(t, <-ended)
			require.Equal(t, []int{1}, pub.seen())
			r.clean()
		})
	}
}
