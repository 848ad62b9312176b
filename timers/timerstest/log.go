package timerstest

import (
	"strings"
	"sync"
)

// Log keeps what is logged, for a test that reads it while more is written. The
// zero value is ready; it is safe for concurrent use.
type Log struct {
	mu sync.Mutex
	b  strings.Builder
}

// Write implements [io.Writer]. It never fails.
func (l *Log) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

// String is all that was logged so far.
func (l *Log) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}

// Count is how often the text occurs in it so far.
func (l *Log) Count(text string) int { return strings.Count(l.String(), text) }
