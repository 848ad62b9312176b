package bench

import (
	"context"
	"encoding/json"
	"encoding/xml"
	"errors"
	"io"
	"math"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestWhatNeverArrivedIsInfinitelyLate(t *testing.T) {
	h := newHistogram()
	for i := range 98 {
		h.record(time.Duration(i+1) * time.Millisecond)
	}
	require.InDelta(t, 50, float64(h.quantile(.5, 2)), 1)
	require.InDelta(t, 98, float64(h.quantile(.98, 2)), 1)
	require.Equal(t, never, h.quantile(.99, 2))
	require.InDelta(t, 98, float64(h.quantile(1, 0)), 1)
	require.Equal(t, never, newHistogram().quantile(.5, 1))
}

func TestArrivals(t *testing.T) {
	a := newArrivals(100, 4)
	due := []int64{1000, 1000, 2000, 2000}
	ms := func(n int64) time.Time { return time.UnixMilli(n) }
	a.record(100, ms(1003), false)
	a.record(100, ms(1009), false) // a copy
	a.record(101, ms(999), false)  // early by the clock
	a.record(102, ms(2001), true)  // early by its own account
	a.record(99, ms(1), false)     // none of ours
	a.record(-1, ms(1), false)
	l := a.lag(due, clock{})
	require.Equal(t, Lag{Due: 4, Arrived: 3, Lost: 1, Early: 2, Duplicates: 1, P50: l.P50, P90: never, P99: never, P999: never, Max: never, Fires: l.Fires}, l)
	require.Equal(t, []int{103}, a.missing())
	require.InDelta(t, 3/1.001, l.Fires, .1)
	select {
	case <-a.all:
		t.Fatal("not all have arrived")
	default:
	}
	a.record(103, ms(2000), false)
	<-a.all
	require.Zero(t, a.lag(due, clock{}).Lost)
}

// The other clock is ahead by something that no single answer tells, because
// answers are cut to milliseconds.
func TestClockIsFoundBetweenMilliseconds(t *testing.T) {
	const ahead = 123*time.Millisecond + 456*time.Microsecond
	r, err := readClock(t.Context(), func(context.Context) (time.Time, error) {
		now := time.Now().Add(ahead).Truncate(time.Millisecond)
		time.Sleep(rand.N(200 * time.Microsecond)) // the way back
		return now, nil
	})
	require.NoError(t, err)
	require.LessOrEqual(t, r.low, ahead)
	require.GreaterOrEqual(t, r.high, ahead)
	require.Less(t, r.high-r.low, time.Millisecond)

	c := newClock(r, r)
	require.InDelta(t, float64(ahead), float64(c.redis(r.at)-r.at), float64(c.uncertainty)+1)
	require.Equal(t, int64(7), clock{}.redis(7), "the same clock")
}

func TestClockThatWasSetIsNoticed(t *testing.T) {
	n := 0
	_, err := readClock(t.Context(), func(context.Context) (time.Time, error) {
		n++
		if n > clockSamples/2 {
			return time.Now().Add(time.Hour), nil
		}
		return time.Now(), nil
	})
	require.ErrorContains(t, err, "a clock was set")
	_, err = readClock(t.Context(), func(context.Context) (time.Time, error) { return time.Time{}, io.EOF })
	require.ErrorIs(t, err, io.EOF)
}

func TestClockDrifts(t *testing.T) {
	at := func(at int64, offset time.Duration) reading {
		return reading{at: at, low: offset - 2, high: offset + 2}
	}
	c := newClock(at(1000, 10), at(3000, 30))
	require.EqualValues(t, 2000+20, c.redis(2000))
	require.EqualValues(t, 2, c.uncertainty)
}

func TestTimerIDs(t *testing.T) {
	for _, n := range []int{0, 7, 123_456_789} {
		require.Len(t, timerID(n), idSize)
		require.Equal(t, n, timerNumber(timerID(n)))
	}
	for _, id := range []string{"", "timer-1", strings.Repeat("x", idSize), idPrefix + strings.Repeat("x", idSize-len(idPrefix))} {
		require.Equal(t, -1, timerNumber(id))
	}
	require.Len(t, jsSchedule+timerID(1), 50)
}

func TestMillis(t *testing.T) {
	b, err := json.Marshal([]Millis{1.5, never})
	require.NoError(t, err)
	require.Equal(t, "[1.500,null]", string(b))
	var holder struct{ A, B Millis }
	require.NoError(t, json.Unmarshal([]byte(`{"A":2.5,"B":null}`), &holder))
	require.True(t, math.IsInf(float64(holder.B), 1))
	for v, want := range map[Millis]string{0.123: "0.12 ms", 12.34: "12.3 ms", 1234.4: "1,234 ms", never: "never", -0.5: "-0.50 ms"} {
		require.Equal(t, want, v.String())
	}
	require.Equal(t, "-1,234,567", grouped(-1234567))
}

func TestOptionsNameTheRemedy(t *testing.T) {
	for want, o := range map[string]Options{
		"no part":           {},
		`part "lags"`:       {Parts: []string{"lags"}},
		"--fresh":           {Parts: []string{"recover"}},
		"--redis":           {Parts: []string{"lag", "memory"}},
		`contestant "cron"`: {Parts: []string{"lag"}, Vs: []string{"cron"}},
		"duration":          {Parts: []string{"lag"}, Duration: time.Millisecond},
		"pending":           {Parts: []string{"lag"}, Pending: -1},
		"instances 0":       {Parts: []string{"lag"}, Fresh: &Fresh{}},
		"name=value":        {Parts: []string{"lag"}, Fresh: &Fresh{Instances: 1, RedisSet: []string{"hz"}}},
	} {
		require.ErrorContains(t, o.Check(), want)
	}
	require.NoError(t, Options{Parts: Parts, Vs: Contestants, Fresh: &Fresh{Instances: 3}}.Check())

	o := Options{Count: 7, Payload: -1}.of("burst")
	require.Equal(t, []int{7, 2 * kilo, 0, 1}, []int{o.Count, o.Pending, o.Payload, o.Repeat})
	require.Equal(t, 5*kilo, Options{Concurrency: 1}.of("set").Count)
}

func TestGrowthSteps(t *testing.T) {
	pending := func(most int) (out []int) {
		for _, s := range growthSteps(Options{Pending: most}) {
			out = append(out, s.options.Pending)
		}
		return out
	}
	require.Equal(t, []int{10 * kilo, 100 * kilo, mega}, pending(mega))
	require.Equal(t, []int{10 * kilo, 30 * kilo}, pending(30*kilo))
	require.Equal(t, []int{500}, pending(500))
}

// sample is a report with something in every part.
func sample() *Report {
	lag := func(p99 Millis) *Lag { return &Lag{Due: 10, Arrived: 10, P50: p99 / 2, P99: p99, Max: p99, Fires: 100} }
	at := func(part, name string, pending int, r Result) Result {
		r.Part, r.Contestant, r.Pending, r.Rate = part, name, pending, 100
		if name == Lapse && r.Instances == 0 {
			r.Instances = 1
		}
		return r
	}
	return &Report{Schema: 1, Parts: []Result{
		at("growth", Lapse, 10_000, Result{Lag: lag(4)}), at("growth", Lapse, 1_000_000, Result{Lag: lag(4.4), Clock: &Clock{Offset: .1, Same: true}}),
		at("growth", JetStream, 1_000_000, Result{Lag: lag(250)}), at("growth", Event, 1_000_000, Result{Lag: lag(never)}),
		at("rate", Lapse, 300_000, Result{Lag: lag(14)}), at("rate", Lapse, 300_000, Result{Lag: lag(15), Parameters: Parameters{Instances: 3}}),
		at("burst", Lapse, 2_000, Result{Burst: &Burst{Lag: *lag(9), First: 12, Drained: 30_000, Rounds: []float64{1, 2, 3}}}),
		at("burst", Lapse, 2_000, Result{Burst: &Burst{Drained: 10_000}, Parameters: Parameters{Instances: 3}}),
		at("burst", JetStream, 2_000, Result{Burst: &Burst{Drained: 27_000}}),
		at("set", Lapse, 2_000, Result{Set: &Set{PerSec: 30_000}, Parameters: Parameters{Concurrency: 512}}),
		at("set", JetStream, 2_000, Result{Set: &Set{PerSec: 25_000}, Parameters: Parameters{Concurrency: 512}}),
		at("set", Lapse, 2_000, Result{Set: &Set{P50: .3, NATS: .2, Script: .05, Ratio: 1.2}, Parameters: Parameters{Concurrency: 1}}),
		at("memory", Lapse, 1_000_000, Result{Memory: &Memory{PerTimer: 540}}),
		at("idle", Lapse, 1_000_000, Result{Idle: &Idle{Commands: 3, CPU: map[string]float64{"service": .5}}}),
		at("recover", Lapse, 2_000, Result{Recover: &Recover{First: 40, Drained: 29_000, PeakRSS: 60e6}, CPU: map[string]float64{"redis": 1, "bench": 2}}),
	}}
}

func TestTargets(t *testing.T) {
	var missed []string
	for _, g := range sample().targets() {
		if !g.reached {
			missed = append(missed, g.part+": "+g.wanted)
		}
	}
	require.Equal(t, []string{
		"burst of 0, 2,000 pending: the stretch: 1.25 times JetStream's rate",
		"burst of 0, 2,000 pending, 3 instances: no slower than one instance (0.95 times, for the noise)",
	}, missed)
}

func TestPageKeepsWhatPeopleWrote(t *testing.T) {
	r := sample()
	page := renderPage(r, false, written(""))
	require.Contains(t, page, "| 1,000,000 | 100 | event | never | never | never |")
	edited := strings.Replace(page, handBegin, handBegin+"\nwhat limits it\n", 1)
	require.Equal(t, edited, renderPage(r, false, written(edited)))
	docs := t.TempDir()
	require.NoError(t, writePage(docs, r, true))
	again, err := earlier(docs)
	require.NoError(t, err)
	require.Equal(t, r.Parts, again, "what is written is read the same, infinity too")
}

func TestPlotsAreXML(t *testing.T) {
	for name, picture := range map[string]string{
		"lag": lagPlot(sample()), "throughput": throughputPlot(sample()), "empty": lagPlot(&Report{}), "no bars": throughputPlot(&Report{}),
	} {
		d := xml.NewDecoder(strings.NewReader(picture))
		for {
			_, err := d.Token()
			if errors.Is(err, io.EOF) {
				break
			}
			require.NoError(t, err, name)
		}
		require.NotContains(t, picture, "NaN", name)
		require.NotContains(t, picture, "Inf", name)
	}
}
