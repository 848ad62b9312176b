package bench

import (
	"context"
	"fmt"
	"math"
	"math/rand/v2"
	"time"
)

const (
	clockSamples = 200
	// clockPause keeps the samples from falling into the same part of each
	// millisecond, which would bound the offset on one side only.
	clockPause = 3 * time.Millisecond
)

// reading bounds the offset between Redis's clock and ours at one moment.
type reading struct {
	at        int64 // Unix nanoseconds on our clock
	low, high time.Duration
	samples   int
}

func (r reading) middle() time.Duration { return (r.low + r.high) / 2 }

// readClock asks for Redis's time many times. The answer was cut to whole
// milliseconds some time between the question and the answer, so each bounds
// the offset to [now-after, now+1ms-before]; the truth is in all of them.
func readClock(ctx context.Context, ask func(context.Context) (time.Time, error)) (reading, error) {
	r := reading{low: math.MinInt64, high: math.MaxInt64}
	for range clockSamples {
		before := time.Now()
		now, err := ask(ctx)
		after := time.Now()
		if err != nil {
			return r, fmt.Errorf("ask for Redis's time: %w", err)
		}
		low, high := now.Sub(after), now.Add(time.Millisecond).Sub(before)
		r.add(low, high)
		select {
		case <-ctx.Done():
			return r, ctx.Err()
		case <-time.After(rand.N(clockPause)):
		}
	}
	r.at = time.Now().UnixNano()
	if r.low > r.high {
		return r, fmt.Errorf("a clock was set while it was read (the offset would be above %v and below %v): let the clocks settle and run it again", r.low, r.high)
	}
	return r, nil
}

func (r *reading) add(low, high time.Duration) {
	r.low, r.high = max(r.low, low), min(r.high, high)
	r.samples++
}

// clock turns times of ours into Redis's, between two readings. Its zero
// value is that of servers on this machine, which have the same clock.
type clock struct {
	before, after reading
	differs       bool
	uncertainty   time.Duration
}

func newClock(before, after reading) clock {
	return clock{
		before: before, after: after, differs: true,
		uncertainty: max(before.high-before.low, after.high-after.low) / 2,
	}
}

// redis is Redis's time, in Unix nanoseconds, when ours was at.
func (c clock) redis(at int64) int64 {
	if !c.differs {
		return at
	}
	share := 0.0
	if c.after.at > c.before.at {
		share = float64(at-c.before.at) / float64(c.after.at-c.before.at)
	}
	return at + int64(c.before.middle()) + int64(share*float64(c.after.middle()-c.before.middle()))
}

// report states the readings. When the clock is the same, what was read is
// only a check.
func (c clock) report(same bool) *Clock {
	return &Clock{
		Offset:      float64(millis((c.before.middle() + c.after.middle()) / 2)),
		Uncertainty: float64(millis(c.uncertainty)),
		Drift:       float64(millis(c.after.middle() - c.before.middle())),
		Samples:     c.before.samples + c.after.samples,
		Same:        same,
	}
}
