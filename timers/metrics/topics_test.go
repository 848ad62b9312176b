package metrics

import (
	"fmt"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
)

func labels(t *testing.T, setting string) func(topic string) string {
	t.Helper()
	topics, err := ParseTopics(setting)
	require.NoError(t, err)
	b := newByTopic(topics, func(label string) *string { return &label })
	return func(topic string) string { return *b.of(topic) }
}

func TestTopicsHaveTheLabelOfTheSetting(t *testing.T) {
	for setting, want := range map[string]map[string]string{
		"none":                    {"orders": "other", "orders.eu": "other", "other": "other"},
		"*":                       {"orders": "orders", "orders.eu.close": "orders", "mail": "mail", "other.a": "other"},
		"orders, mail.in, mail.x": {"orders": "orders", "orders.eu.close": "orders", "ordersx": "other", "mail": "other", "mail.in": "mail.in", "mail.in.box": "mail.in", "mail.inbox": "other"},
		"a,a.b":                   {"a.b.c": "a.b", "a.c": "a", "b": "other"},
	} {
		of := labels(t, setting)
		for topic, label := range want {
			require.Equal(t, label, of(topic), "%s of %s", topic, setting)
		}
	}
	for _, bad := range []string{"", ",", "a,,b", "a b", "a.*", ">", "a..b", strings.Repeat("a,", maxTopics) + "b"} {
		_, err := ParseTopics(bad)
		require.Error(t, err, "%q", bad)
	}
}

// However many there are, and whoever comes first: the label has its bound.
func TestTopicsAreBounded(t *testing.T) {
	of := labels(t, "*")
	var mu sync.Mutex
	seen := map[string]bool{}
	var group sync.WaitGroup
	for g := range 8 {
		group.Go(func() {
			for i := range 1000 {
				label := of(fmt.Sprintf("t%d.x", (i*7+g)%500))
				mu.Lock()
				seen[label] = true
				mu.Unlock()
			}
		})
	}
	group.Wait()
	require.Len(t, seen, maxTopics+1)
	require.True(t, seen[otherTopic])
}
