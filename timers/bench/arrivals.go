package bench

import (
	"math"
	"sync"
	"sync/atomic"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"
)

// arrivals is the record of the timers of one measurement: numbers first to
// first+len(at)-1. A receiver writes it on its own goroutine.
type arrivals struct {
	first      int
	at         []atomic.Int64 // Unix nanoseconds on our clock; 0: not yet
	arrived    atomic.Int64
	duplicates atomic.Int64
	early      atomic.Int64 // the event itself said that it was fired before its time

	all  chan struct{} // closed when each has arrived
	once sync.Once
}

func newArrivals(first, n int) *arrivals {
	return &arrivals{first: first, at: make([]atomic.Int64, n), all: make(chan struct{})}
}

// record notes timer n, if it is one of ours.
func (a *arrivals) record(n int, at time.Time, early bool) {
	i := n - a.first
	if i < 0 || i >= len(a.at) {
		return
	}
	if !a.at[i].CompareAndSwap(0, at.UnixNano()) {
		a.duplicates.Add(1)
		return
	}
	if early {
		a.early.Add(1)
	}
	if a.arrived.Add(1) == int64(len(a.at)) {
		a.once.Do(func() { close(a.all) })
	}
}

// count is how many have arrived.
func (a *arrivals) count() int { return int(a.arrived.Load()) }

// missing are the numbers of the timers that have not arrived.
func (a *arrivals) missing() []int {
	var out []int
	for i := range a.at {
		if a.at[i].Load() == 0 {
			out = append(out, a.first+i)
		}
	}
	return out
}

// span is the first and the last arrival in Unix nanoseconds on our clock,
// zeros when nothing arrived.
func (a *arrivals) span() (first, last int64) {
	for i := range a.at {
		at := a.at[i].Load()
		if at == 0 {
			continue
		}
		if first == 0 || at < first {
			first = at
		}
		last = max(last, at)
	}
	return first, last
}

// lag compares the arrivals with the due times, in Unix milliseconds on
// Redis's clock.
func (a *arrivals) lag(due []int64, clock clock) Lag {
	l := Lag{Due: len(due), Arrived: a.count(), Early: int(a.early.Load()), Duplicates: int(a.duplicates.Load())}
	l.Lost = l.Due - l.Arrived
	h := newHistogram()
	firstDue := int64(math.MaxInt64)
	for i, d := range due {
		firstDue = min(firstDue, d)
		at := a.at[i].Load()
		if at == 0 {
			continue
		}
		late := time.Duration(clock.redis(at) - d*int64(time.Millisecond))
		if late < -clock.uncertainty {
			l.Early++
		}
		h.record(late)
	}
	l.P50, l.P90, l.P99, l.P999 = h.quantile(.5, l.Lost), h.quantile(.9, l.Lost), h.quantile(.99, l.Lost), h.quantile(.999, l.Lost)
	l.Max = h.quantile(1, l.Lost)
	if _, last := a.span(); last != 0 {
		l.Fires = perSecond(l.Arrived, time.Duration(clock.redis(last)-firstDue*int64(time.Millisecond)))
	}
	return l
}

// never is the lag of what did not arrive.
var never = Millis(math.Inf(1))

func perSecond(n int, d time.Duration) float64 {
	if d <= 0 {
		return 0
	}
	return math.Round(float64(n)/d.Seconds()*10) / 10
}

// histogram holds times in microseconds with three digits, up to an hour.
type histogram struct{ *hdrhistogram.Histogram }

const longest = time.Hour

func newHistogram() histogram {
	return histogram{hdrhistogram.New(1, longest.Microseconds(), 3)}
}

// record takes times beyond the range as its ends.
func (h histogram) record(d time.Duration) {
	_ = h.RecordValue(min(max(d, 0), longest).Microseconds()) // fails only out of the range
}

// quantile is the time below which the share q of all lies, where infinite
// ones come on top of those recorded.
func (h histogram) quantile(q float64, infinite int) Millis {
	n := h.TotalCount()
	rank := int64(math.Ceil(q * float64(n+int64(infinite))))
	if rank > n || n == 0 {
		return never
	}
	return millis(time.Duration(h.ValueAtPercentile(100*float64(rank)/float64(n))) * time.Microsecond)
}
