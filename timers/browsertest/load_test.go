package browsertest

import (
	"context"
	"fmt"
	"io"
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
// ahead, and returns the lag of every fire, in ms, when all are over.
func fires(ctx context.Context, t *testing.T, d *deployment, rate int) []float64 {
	t.Helper()
	in, out := d.ns.Connect(t), d.ns.Connect(t)
	var mu sync.Mutex
	lags := make([]float64, 0, 1<<19)
	sub, err := in.Subscribe("timers.fired.>", func(m *nats.Msg) {
		now := time.Now()
		due, err := wire.ParseTime(m.Header.Get(wire.HeaderDue))
		if err == nil {
			mu.Lock()
			lags = append(lags, float64(now.Sub(due).Microseconds())/1000)
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
	count := func() int { mu.Lock(); defer mu.Unlock(); return len(lags) }
	timerstest.Eventually(t, time.Minute, "all fire", func() bool { return count() >= sent })
	require.NoError(t, sub.Unsubscribe())
	mu.Lock()
	defer mu.Unlock()
	return slices.Clone(lags)
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
// grows. Timers must be no later for the page where its browser runs elsewhere; how
// late they are with the browser on the cores of the servers is printed, too. In
// make test it is a few seconds of a tenth of that, and the figures are only printed.
func TestPageUnderLoad(t *testing.T) {
	rate, long := timerstest.Size(300, 5000), timerstest.Size(0, 1) == 1
	run := time.Duration(timerstest.Size(4, 60)) * time.Second
	d := deploy(t)
	without, elsewhere := []float64{0}, []float64{0}
	if long {
		ctx, cancel := context.WithTimeout(t.Context(), run)
		without = fires(ctx, t, d, rate)
		cancel()
		ctx, cancel = context.WithTimeout(t.Context(), run)
		ended := viewed(ctx, t, d)
		elsewhere = fires(ctx, t, d, rate)
		cancel()
		<-ended
	}
	b := newTab(t, d.HTTP)
	b.size(1280, 930, "light")
	b.open("/")
	b.run(js(watch))
	ctx, cancel := context.WithTimeout(t.Context(), run)
	defer cancel()
	var heap, resident [2]int64
	looked := make(chan struct{})
	go func() { // what it keeps after a third, and near the end
		defer close(looked)
		for i, after := range []time.Duration{run / 3, run * 5 / 9} {
			select {
			case <-time.After(after):
			case <-t.Context().Done():
				return
			}
			resident[i] = memory(t, d.Pid())
			heap[i] = heapOf(b)
		}
	}()
	with := fires(ctx, t, d, rate)
	<-looked
	seen := value[float64](b, `Math.max(...[...document.querySelector('#plot-rate svg').getAttribute('aria-label').matchAll(/[\d,]+/g)].map((m) => Number(m[0].replace(/,/g, ''))))`)
	ticks, frames := value[[]float64](b, `measured.ticks`), value[[]float64](b, `measured.frames`)
	longest := value[float64](b, `measured.long`)
	t.Logf("%d fires a second for %v", rate, run)
	t.Logf("lag without the page: p50 %.1f ms, p99 %.1f ms; with its stream read: p50 %.1f ms, p99 %.1f ms; with the browser on the same cores: p50 %.1f ms, p99 %.1f ms (%d fires)",
		percentile(without, .5), percentile(without, .99), percentile(elsewhere, .5), percentile(elsewhere, .99), percentile(with, .5), percentile(with, .99), len(with))
	t.Logf("page: timers late by p50 %.1f ms, p99 %.1f ms, at most %.1f ms; frames p50 %.1f ms, p99 %.1f ms; longest task %.0f ms; scale of the rate %.0f",
		percentile(ticks, .5), percentile(ticks, .99), ticks[len(ticks)-1], percentile(frames, .5), percentile(frames, .99), longest, seen)
	t.Logf("memory after a third and near the end: service %.1f and %.1f MB, page's heap %.2f and %.2f MB",
		mb(resident[0]), mb(resident[1]), mb(heap[0]), mb(heap[1]))
	require.GreaterOrEqual(t, seen, float64(rate)/2, "the page shows the fires")
	b.clean()
	if long {
		require.Less(t, percentile(ticks, .99), 100., "it stays responsive")
		require.Less(t, percentile(elsewhere, .99), 2*percentile(without, .99), "timers are late for the page")
		require.Less(t, resident[1], resident[0]*5/4, "the service grows")
		require.Less(t, heap[1], heap[0]+4<<20, "the page grows")
	}
}

func mb(n int64) float64 { return float64(n) / (1 << 20) }
