package browsertest

import (
	"context"
	"fmt"
	"io"
	"maps"
	"net/http"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/stretchr/testify/require"

	"github.com/lapse-timers/lapse/timers/timerstest"
	"github.com/lapse-timers/lapse/timers/wire"
)

// fires keeps rate timers a second firing until ctx ends, each set two seconds
// ahead, and returns the lag of every fire, in ms, by the second it was due in,
// when all are over.
func fires(ctx context.Context, t *testing.T, d *deployment, rate int) lags {
	t.Helper()
	in, out := d.ns.Connect(t), d.ns.Connect(t)
	var mu sync.Mutex
	heard, n := lags{}, 0
	sub, err := in.Subscribe("timers.fired.>", func(m *nats.Msg) {
		now := time.Now()
		due, err := wire.ParseTime(m.Header.Get(wire.HeaderDue))
		if err == nil {
			mu.Lock()
			heard[due.Unix()] = append(heard[due.Unix()], float64(now.Sub(due).Microseconds())/1000)
			n++
			mu.Unlock()
		}
	})
	require.NoError(t, err)
	require.NoError(t, sub.SetPendingLimits(-1, -1))
	require.NoError(t, in.Flush())
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	sent, began := 0, time.Now()
	payload := []byte(strings.Repeat("x", 100))
	for ctx.Err() == nil {
		for want := int(time.Since(began).Seconds() * float64(rate)); sent < want; sent++ {
			m := nats.NewMsg(fmt.Sprintf("timers.set.load.t%d", sent%20))
			due := time.Now().Add(2*time.Second + time.Duration(sent%10)*time.Millisecond)
			m.Header = nats.Header{"Timer-Id": {"load-" + strconv.Itoa(sent)}, "Timer-Schedule": {"@at " + due.UTC().Format(time.RFC3339Nano)}}
			m.Data = payload
			require.NoError(t, out.PublishMsg(m))
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
		}
	}
	timerstest.Eventually(t, time.Minute, "all fire", func() bool { mu.Lock(); defer mu.Unlock(); return n >= sent })
	require.NoError(t, in.FlushTimeout(time.Minute))
	in.Close()
	mu.Lock()
	defer mu.Unlock()
	return maps.Clone(heard)
}

// lags are in ms, by second.
type lags map[int64][]float64

func (l lags) String() string {
	return fmt.Sprintf("p50 %.1f ms, p99 %.1f ms, p99 of the median second %.1f ms", l.percentile(.5), l.percentile(.99), l.typical())
}

func (l lags) percentile(p float64) float64 {
	return percentile(slices.Concat(slices.Collect(maps.Values(l))...), p)
}

// typical is the p99 of the median second: what else the machine does for a few
// seconds of a minute does not move it.
func (l lags) typical() float64 {
	var each []float64
	for _, second := range l {
		each = append(each, percentile(second, .99))
	}
	return percentile(each, .5)
}

func percentile(v []float64, p float64) float64 {
	slices.Sort(v)
	return v[int(float64(len(v)-1)*p)]
}

// memory is what the process keeps, in bytes.
func memory(t *testing.T, pid int) int64 {
	t.Helper()
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/statm", pid))
	require.NoError(t, err)
	pages, err := strconv.ParseInt(strings.Fields(string(b))[1], 10, 64)
	require.NoError(t, err)
	return pages * int64(os.Getpagesize())
}

// watch measures in the page how late its own clock ticks, and how long a frame
// is in coming that is asked for twice a second. Asking for every frame would
// have the browser draw sixty times a second, on the cores of the servers, what
// changes once.
const watch = `(() => {
  const m = window.measured = { ticks: [], frames: [], long: 0 };
  let due = performance.now() + 100;
  setInterval(() => { const now = performance.now(); m.ticks.push(Math.max(0, now - due)); due = now + 100; }, 100);
  setInterval(() => { const asked = performance.now(); requestAnimationFrame(() => m.frames.push(performance.now() - asked)); }, 500);
  new PerformanceObserver((l) => { for (const e of l.getEntries()) m.long = Math.max(m.long, e.duration); }).observe({ type: 'longtask' });
})()`

// viewed reads the page's stream until ctx ends, as a page does whose browser has
// cores of its own.
func viewed(ctx context.Context, t *testing.T, d *deployment) (ended chan struct{}) {
	t.Helper()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+d.HTTP+"/events", nil)
	require.NoError(t, err)
	resp, err := http.DefaultClient.Do(req)
	require.NoError(t, err)
	require.Equal(t, http.StatusOK, resp.StatusCode)
	ended = make(chan struct{})
	go func() {
		defer close(ended)
		defer resp.Body.Close()               //nolint:errcheck // only read
		_, _ = io.Copy(io.Discard, resp.Body) // until ctx ends
	}()
	return ended
}

// TestPageUnderLoad holds the page open under 5,000 fires a second, for a
// minute in make test-browser LOAD=1: it stays responsive, and nobody's memory
// grows, and the p99 of the lag does not double, wherever the browser runs. In make
// test it is a few seconds of a tenth of that, and the figures are only printed.
func TestPageUnderLoad(t *testing.T) {
	rate, long := timerstest.Size(300, 5000), timerstest.Size(0, 1) == 1
	run := time.Duration(timerstest.Size(4, 60)) * time.Second
	d := deploy(t)
	load := func(run time.Duration) lags {
		ctx, cancel := context.WithTimeout(t.Context(), run)
		defer cancel()
		return fires(ctx, t, d, rate)
	}
	var without, elsewhere lags
	if long {
		without = load(run)
		ctx, cancel := context.WithCancel(t.Context())
		ended := viewed(ctx, t, d)
		elsewhere = load(run)
		cancel()
		<-ended
	}
	b := newTab(t, d.HTTP)
	b.size(1280, 930, "light")
	b.open("/")
	b.run(js(watch))
	// A browser that has just started is busy with itself for some seconds, and
	// what is kept grows to its size.
	load(time.Duration(timerstest.Size(2, 20)) * time.Second)
	b.run(js(`measured.ticks.length = measured.frames.length = measured.long = 0`))
	var heap, resident [2]int64
	resident[0], heap[0] = memory(t, d.Pid()), heapOf(b)
	with := load(run)
	resident[1], heap[1] = memory(t, d.Pid()), heapOf(b)
	seen := value[float64](b, `Math.max(...[...document.querySelector('#plot-rate svg').getAttribute('aria-label').matchAll(/[\d,]+/g)].map((m) => Number(m[0].replace(/,/g, ''))))`)
	ticks, frames := value[[]float64](b, `measured.ticks`), value[[]float64](b, `measured.frames`)
	longest := value[float64](b, `measured.long`)
	t.Logf("%d fires a second for %v", rate, run)
	if long {
		t.Logf("lag without the page: %v", without)
		t.Logf("lag with its stream read: %v (%.2f times)", elsewhere, elsewhere.typical()/without.typical())
		t.Logf("lag with the browser on the same cores: %v (%.2f times)", with, with.typical()/without.typical())
	} else {
		t.Logf("lag with the browser on the same cores: %v", with)
	}
	t.Logf("page: timers late by p50 %.1f ms, p99 %.1f ms, at most %.1f ms; frames p50 %.1f ms, p99 %.1f ms; longest task %.0f ms; scale of the rate %.0f",
		percentile(ticks, .5), percentile(ticks, .99), ticks[len(ticks)-1], percentile(frames, .5), percentile(frames, .99), longest, seen)
	t.Logf("memory before and after: service %.1f and %.1f MB, page's heap %.2f and %.2f MB",
		mb(resident[0]), mb(resident[1]), mb(heap[0]), mb(heap[1]))
	require.GreaterOrEqual(t, seen, float64(rate)/2, "the page shows the fires")
	b.clean()
	if long {
		require.Less(t, percentile(ticks, .99), 100., "it stays responsive")
		require.Less(t, elsewhere.typical(), 2*without.typical(), "timers are late for who looks")
		require.Less(t, with.typical(), 2*without.typical(), "timers are late for a browser beside the servers")
		require.Less(t, resident[1], resident[0]*5/4, "the service grows")
		require.Less(t, heap[1], heap[0]+4<<20, "the page grows")
	}
}

func mb(n int64) float64 { return float64(n) / (1 << 20) }
