package timers_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/lapse-timers/lapse/timers"
	"github.com/lapse-timers/lapse/timers/timerstest"
)

func TestTopicsByPending(t *testing.T) {
	r := newRig(t)
	for _, partitions := range []int{1, 3} {
		prefix := fmt.Sprintf("topics%d", partitions)
		keys, err := timers.NewKeys(prefix, partitions)
		require.NoError(t, err)
		store := timers.NewStore(r.rdb, keys)
		got, err := store.Topics(t.Context())
		require.NoError(t, err)
		require.Equal(t, timers.Topics{}, got)
		set := func(topic string, n int) {
			t.Helper()
			for i := range n {
				ref := timers.Ref{Topic: topic, ID: fmt.Sprint("a:b ", i)}
				_, err := store.Set(t.Context(), keys.Partition(ref), []timers.SetItem{{Ref: ref, In: time.Hour, Schedule: "@in 1h"}})
				require.NoError(t, err)
			}
		}
		set("orders.close", 40)
		set("orders", 30)
		set("a", 30)
		got, err = store.Topics(t.Context())
		require.NoError(t, err)
		require.Equal(t, timers.Topics{
			List: []timers.TopicCount{{Topic: "orders.close", Pending: 40}, {Topic: "a", Pending: 30}, {Topic: "orders", Pending: 30}}, Pending: 100, Looked: 100,
		}, got)

		// Too many to look at each: the sample still tells a tenth from nine.
		pipe := r.rdb.Pipeline()
		for i := range 20 * timers.TopicSample {
			topic := "many"
			if i%10 == 0 {
				topic = "few"
			}
			ref := timers.Ref{Topic: topic, ID: fmt.Sprint(i)}
			pipe.ZAdd(t.Context(), keys.Due(keys.Partition(ref)), redis.Z{Score: 4e12, Member: ref.Member()})
		}
		_, err = pipe.Exec(t.Context())
		require.NoError(t, err)
		got, err = store.Topics(t.Context())
		require.NoError(t, err)
		require.EqualValues(t, 20*timers.TopicSample+100, got.Pending)
		require.EqualValues(t, partitions*timers.TopicSample, got.Looked)
		require.Equal(t, "many", got.List[0].Topic)
		require.InDelta(t, 18*timers.TopicSample, got.List[0].Pending, 1.5*timers.TopicSample)
		require.Equal(t, "few", got.List[1].Topic)
		require.InDelta(t, 2*timers.TopicSample, got.List[1].Pending, 1.5*timers.TopicSample)
	}
}

func TestListOfOneKind(t *testing.T) {
	r := newRig(t)
	for i := range 3 {
		r.dead(fmt.Sprint("dead", i), false)
	}
	firing := r.set("firing", 0, "x")
	r.past(firing.Due)
	r.claim("t", time.Minute, "firing")
	r.set("waits", time.Hour, "x")
	for which, want := range map[string][]string{
		"":                 {"dead0", "dead1", "dead2", "firing", "waits"},
		timers.ListDead:    {"dead0", "dead1", "dead2"},
		timers.ListPending: {"firing", "waits"},
	} {
		for _, limit := range []int{1, 100} {
			var ids []string
			var at timers.Cursor
			for more := true; more; {
				var page []timers.Timer
				var err error
				page, at, more, err = r.store.List(t.Context(), "", which, at, limit)
				require.NoError(t, err)
				for _, item := range page {
					ids = append(ids, item.ID)
					require.Equal(t, item.State == timers.Dead, item.Reason == "too large", "%+v", item)
				}
			}
			require.Equal(t, want, ids, "%q, %d at a time", which, limit)
		}
	}
	timerstest.CheckInvariants(t, r.rdb, prefix)
}
