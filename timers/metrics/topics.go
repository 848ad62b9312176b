package metrics

import (
	"fmt"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/lapse-timers/lapse/timers"
)

// Topics says which topics have a label of their own (LAPSE_METRICS_TOPICS).
// The zero value gives one to none.
type Topics struct {
	first bool // the first token, up to maxTopics of them
	list  []string
}

// What is bounded: the label has at most maxTopics values, and "other".
const (
	maxTopics  = 32
	otherTopic = "other"
)

// ParseTopics reads the setting: "*" for the first token of a topic, of which
// the first 32 that fire count, a list with commas of at most 32 topics, each of
// which stands for itself and all below it, or "none".
func ParseTopics(s string) (Topics, error) {
	switch s {
	case "*":
		return Topics{first: true}, nil
	case "none":
		return Topics{}, nil
	}
	var t Topics
	for topic := range strings.SplitSeq(s, ",") {
		topic = strings.TrimSpace(topic)
		if err := timers.CheckTopic(topic); err != nil {
			return Topics{}, fmt.Errorf("%w; want topics with commas, such as orders,invoices.remind, or * for the first tokens, or none", err)
		}
		t.list = append(t.list, topic)
	}
	if len(t.list) > maxTopics {
		return Topics{}, fmt.Errorf("%d topics: at most %d can have a label of their own; name what they have in common", len(t.list), maxTopics)
	}
	return t, nil
}

// byTopic gives each topic what is counted for its label. Reading it takes no
// lock: the map is replaced as a whole when a label comes in, which happens at
// most maxTopics times.
type byTopic[T any] struct {
	topics Topics
	other  *T
	make   func(label string) *T

	known atomic.Pointer[map[string]*T]
	mu    sync.Mutex // held by who replaces it
}

func newByTopic[T any](topics Topics, newT func(label string) *T) *byTopic[T] {
	b := &byTopic[T]{topics: topics, make: newT, other: newT(otherTopic)}
	known := make(map[string]*T, len(topics.list))
	for _, topic := range topics.list {
		known[topic] = newT(topic)
	}
	b.known.Store(&known)
	return b
}

func (b *byTopic[T]) of(topic string) *T {
	known := *b.known.Load()
	if !b.topics.first {
		// The longest that is named, which is the nearest.
		for len(known) > 0 {
			if t, ok := known[topic]; ok {
				return t
			}
			dot := strings.LastIndexByte(topic, '.')
			if dot < 0 {
				break
			}
			topic = topic[:dot]
		}
		return b.other
	}
	token, _, _ := strings.Cut(topic, ".")
	if t, ok := known[token]; ok {
		return t
	}
	if len(known) >= maxTopics {
		return b.other
	}
	return b.add(token)
}

func (b *byTopic[T]) add(token string) *T {
	b.mu.Lock()
	defer b.mu.Unlock()
	known := *b.known.Load()
	if t, ok := known[token]; ok {
		return t
	}
	if token == otherTopic || len(known) >= maxTopics {
		return b.other
	}
	more := make(map[string]*T, len(known)+1)
	for k, v := range known {
		more[k] = v
	}
	// The payload of a claim shares its memory with the topic; the label outlives it.
	token = strings.Clone(token)
	more[token] = b.make(token)
	b.known.Store(&more)
	return more[token]
}
