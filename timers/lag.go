package timers

import (
	"math"
	"slices"
	"sync"
	"time"
)

// lagRing keeps the lag of the last deliveries.
type lagRing struct {
	mu   sync.Mutex
	ring [2048]time.Duration
	n    int // added so far
}

// LagSummary is how late the last deliveries were.
type LagSummary struct {
	Samples       int // at most 2,048
	P50, P99, Max time.Duration
}

func (l *lagRing) add(d time.Duration) {
	l.mu.Lock()
	l.ring[l.n%len(l.ring)] = d
	l.n++
	l.mu.Unlock()
}

func (l *lagRing) summary() LagSummary {
	l.mu.Lock()
	s := slices.Clone(l.ring[:min(l.n, len(l.ring))])
	l.mu.Unlock()
	if len(s) == 0 {
		return LagSummary{}
	}
	slices.Sort(s)
	// Nearest rank: with few samples the 99th percentile is the largest.
	at := func(q float64) time.Duration { return s[int(math.Ceil(q*float64(len(s))))-1] }
	return LagSummary{Samples: len(s), P50: at(0.5), P99: at(0.99), Max: s[len(s)-1]}
}
