package timers

import (
	"cmp"
	"context"
	"fmt"
	"slices"
)

// TopicSample is how many timers of a partition [Store.Topics] looks at: a
// Redis that does nothing else takes about a millisecond for them.
const TopicSample = 1000

// TopicCount is how many timers of a topic are pending.
type TopicCount struct {
	Topic   string
	Pending int64 // an estimate unless the sample was everything
}

// Topics are the pending timers by topic.
type Topics struct {
	List    []TopicCount // most pending first; rare ones may be missing from a sample
	Pending int64        // timers in all
	Looked  int64        // of these, how many were looked at; equal to Pending when the counts are exact
}

// Topics counts pending timers by topic. It looks at [TopicSample] random ones
// of each partition, at all of them where there are no more, so its cost does
// not depend on how many there are (ADR 33). Like [Store.Count] it errs with
// [ErrUnavailable].
func (s *Store) Topics(ctx context.Context) (Topics, error) {
	var t Topics
	counts := map[string]float64{}
	for p := range s.keys.Partitions() {
		out, err := s.run(ctx, scriptTopics, []string{s.keys.Due(p)}, []any{TopicSample}).Slice()
		if err != nil {
			return Topics{}, fmt.Errorf("%w: %w", ErrUnavailable, err)
		}
		if len(out) < 2 {
			return Topics{}, fmt.Errorf("topics answered %d values", len(out))
		}
		pending, looked := integer(out[0]), integer(out[1])
		t.Pending += pending
		t.Looked += looked
		for v := out[2:]; len(v) >= 2 && looked > 0; v = v[2:] {
			counts[text(v[0])] += float64(integer(v[1])) * float64(pending) / float64(looked)
		}
	}
	for topic, n := range counts {
		t.List = append(t.List, TopicCount{Topic: topic, Pending: int64(n + 0.5)})
	}
	slices.SortFunc(t.List, func(a, b TopicCount) int {
		return cmp.Or(cmp.Compare(b.Pending, a.Pending), cmp.Compare(a.Topic, b.Topic))
	})
	return t, nil
}
