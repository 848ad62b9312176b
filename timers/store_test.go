package timers_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/lapse-timers/lapse/timers"
	"github.com/lapse-timers/lapse/timers/timerstest"
)

const prefix = "timers"

type rig struct {
	*testing.T
	server *timerstest.RedisServer
	rdb    *redis.Client
	store  *timers.Store
	keys   *timers.Keys
}

func newRig(t *testing.T, args ...string) *rig { return onRedis(t, timerstest.Redis(t, args...)) }

func onRedis(t *testing.T, server *timerstest.RedisServer) *rig {
	t.Helper()
	opt, err := timers.ParseRedisURL(server.URL())
	require.NoError(t, err)
	rdb := redis.NewClient(opt)
	t.Cleanup(func() { rdb.Close() })
	keys, err := timers.NewKeys(prefix, 1)
	require.NoError(t, err)
	store := timers.NewStore(rdb, keys)
	require.NoError(t, store.Open(t.Context()))
	return &rig{t, server, rdb, store, keys}
}

func (r *rig) set(id string, in time.Duration, payload string) timers.SetResult {
	r.Helper()
	res, err := r.store.Set(r.Context(), 0, []timers.SetItem{{Ref: ref(id), In: in, Payload: []byte(payload), Schedule: "@in " + in.String()}})
	require.NoError(r, err)
	require.NoError(r, res[0].Err)
	return res[0]
}

func (r *rig) cancel(id string) timers.CancelResult {
	r.Helper()
	res, _, err := r.store.Cancel(r.Context(), 0, []timers.Ref{ref(id)})
	require.NoError(r, err)
	return res[0]
}

func (r *rig) claim(token string, lease time.Duration, ids ...string) timers.ClaimResult {
	r.Helper()
	res, err := r.store.Claim(r.Context(), 0, lease, token, false, 1<<20, refs(ids...))
	require.NoError(r, err)
	return res
}

// claimAgain repeats a claim whose reply was lost.
func (r *rig) claimAgain(token string, ids ...string) timers.ClaimResult {
	r.Helper()
	res, err := r.store.Claim(r.Context(), 0, time.Minute, token, true, 1<<20, refs(ids...))
	require.NoError(r, err)
	return res
}

func (r *rig) get(id string) *timers.Timer {
	r.Helper()
	res, err := r.store.Get(r.Context(), refs(id))
	require.NoError(r, err)
	return res[0]
}

func (r *rig) ack(c timers.Claim) {
	r.Helper()
	require.NoError(r, r.store.Ack(r.Context(), 0, []*timers.Claim{&c}))
}

func (r *rig) release(c timers.Claim, unknown bool, after time.Duration) {
	r.Helper()
	require.NoError(r, r.store.Release(r.Context(), 0, []timers.Release{{Claim: &c, Unknown: unknown, After: after}}))
}

// clean says that nothing is left but the bookkeeping keys.
func (r *rig) clean() {
	r.Helper()
	keys, err := r.rdb.Keys(r.Context(), "*").Result()
	require.NoError(r, err)
	require.Subset(r, []string{"timers:meta", "timers:{0}:rev"}, keys)
}

// past waits until Redis's clock is past t.
func (r *rig) past(at time.Time) {
	r.Helper()
	timerstest.Eventually(r, 10*time.Second, "Redis's clock to pass "+at.String(), func() bool {
		now, err := r.rdb.Time(r.Context()).Result()
		return err == nil && now.After(at.Add(time.Millisecond))
	})
}

func ref(id string) timers.Ref { return timers.Ref{Topic: "orders", ID: id} }

func refs(ids ...string) []timers.Ref {
	out := make([]timers.Ref, len(ids))
	for i, id := range ids {
		out[i] = ref(id)
	}
	return out
}

func TestLifeFromSetToAck(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	before, err := r.rdb.Time(t.Context()).Result()
	require.NoError(t, err)
	res := r.set("a", 300*time.Millisecond, "payload")
	require.Empty(t, res.Was)
	require.GreaterOrEqual(t, res.Due.Sub(before), 300*time.Millisecond, "rounded up, never down")
	require.Less(t, res.Due.Sub(before), 400*time.Millisecond)

	require.Equal(t, res.Due.UnixMilli(), r.rdb.PExpireTime(t.Context(), r.keys.Trigger(ref("a"))).Val().Milliseconds())
	score, err := r.rdb.ZScore(t.Context(), r.keys.Due(0), "orders:a").Result()
	require.NoError(t, err)
	require.EqualValues(t, res.Due.UnixMilli(), score)

	got := r.get("a")
	require.Equal(t, &timers.Timer{Ref: ref("a"), Rev: res.Rev, Due: res.Due, State: timers.Scheduled, Schedule: "@in 300ms",
		Payload: []byte("payload"), Headers: []byte{}}, got)

	require.Empty(t, r.claim("early", time.Second, "a").Claims, "never early")
	r.past(res.Due)
	claimed := r.claim("t1", 10*time.Second, "a")
	require.Len(t, claimed.Claims, 1)
	c := claimed.Claims[0]
	require.Equal(t, res.Rev, c.Rev)
	require.Equal(t, 1, c.Attempt)
	require.False(t, c.Unsure)
	require.False(t, c.Fired.Before(c.Due))
	require.Equal(t, "payload", string(c.Payload))
	require.Equal(t, timers.Firing, r.get("a").State)

	require.Empty(t, r.claim("t2", time.Second, "a").Claims, "the lease holds")
	again := r.claimAgain("t1", "a")
	require.Equal(t, claimed.Claims, again.Claims, "a claim whose reply was lost is answered again")
	require.Empty(t, r.claimAgain("t2", "a").Claims, "but only to its own token")

	r.ack(c)
	require.Nil(t, r.get("a"))
	r.ack(c)
	r.clean()
}

func TestPastMeansNow(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	for id, item := range map[string]timers.SetItem{
		"zero": {In: 0}, "past": {In: -1, At: time.Now().Add(-time.Hour).UnixMilli()}, "epoch": {In: -1, At: 0}, "before": {In: -1, At: -5},
	} {
		item.Ref = ref(id)
		before, err := r.rdb.Time(t.Context()).Result()
		require.NoError(t, err)
		res, err := r.store.Set(t.Context(), 0, []timers.SetItem{item})
		require.NoError(t, err)
		require.False(t, res[0].Due.Before(before), "due is not before now")
		r.past(res[0].Due)
		require.Len(t, r.claim("t"+id, time.Second, id).Claims, 1, id)
	}
}

func TestFurthestDelay(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	res := r.set("far", timers.MaxDelay, "")
	ttl := r.rdb.PTTL(t.Context(), r.keys.Trigger(ref("far"))).Val()
	require.InDelta(t, float64(timers.MaxDelay.Milliseconds()), float64(ttl.Milliseconds()), 5000)
	require.InDelta(t, float64(timers.MaxDelay), float64(time.Until(res.Due)), float64(5*time.Second))

	out, err := r.store.Set(t.Context(), 0, []timers.SetItem{
		{Ref: ref("beyond"), In: -1, At: time.Now().Add(timers.MaxDelay).UnixMilli() + 60_000},
		{Ref: ref("fine"), In: time.Hour},
	})
	require.NoError(t, err)
	var inv *timers.Invalid
	require.ErrorAs(t, out[0].Err, &inv)
	require.NoError(t, out[1].Err)
	require.Nil(t, r.get("beyond"), "nothing of it was stored")
	require.NotNil(t, r.get("fine"))
	timerstest.CheckInvariants(t, r.rdb, prefix)
}

func TestReplaceIsOneStep(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	a := r.set("x", time.Hour, "A")
	b := r.set("x", 2*time.Hour, "B")
	require.Equal(t, timers.Scheduled, b.Was)
	require.Greater(t, b.Rev, a.Rev)
	require.Equal(t, "B", string(r.get("x").Payload))
	require.EqualValues(t, 1, r.rdb.ZCard(t.Context(), r.keys.Due(0)).Val())

	// In one batch the last one stays, and each says what it met.
	res, err := r.store.Set(t.Context(), 0, []timers.SetItem{{Ref: ref("y"), In: time.Hour, Payload: []byte("1")}, {Ref: ref("y"), In: time.Minute, Payload: []byte("2")}})
	require.NoError(t, err)
	require.Empty(t, res[0].Was)
	require.Equal(t, timers.Scheduled, res[1].Was)
	require.Greater(t, res[1].Rev, res[0].Rev)
	require.Equal(t, "2", string(r.get("y").Payload))
	require.Equal(t, res[1].Due, r.get("y").Due)
	timerstest.CheckInvariants(t, r.rdb, prefix)
}

// The nudge itself: a due key that nobody looks at is expired, with its event,
// by the look at the backup set.
func TestDueTouchesTriggers(t *testing.T) {
	t.Parallel()
	r := newRig(t, "--enable-debug-command", "yes")
	require.NoError(t, r.rdb.Do(t.Context(), "DEBUG", "SET-ACTIVE-EXPIRE", "0").Err())
	sub := r.rdb.Subscribe(t.Context(), timers.ExpiredChannel(0))
	defer sub.Close()
	_, err := sub.Receive(t.Context())
	require.NoError(t, err)

	due := r.set("x", 10*time.Millisecond, "A").Due
	next := r.set("y", time.Hour, "B").Due
	r.past(due)
	scan, err := r.store.Due(t.Context(), 0, time.Minute, 10, 10)
	require.NoError(t, err)
	require.Equal(t, timers.DueScan{Now: scan.Now, Next: next, Touched: 1, Oldest: due}, scan)
	msg, err := sub.ReceiveMessage(t.Context())
	require.NoError(t, err)
	require.Equal(t, r.keys.Trigger(ref("x")), msg.Payload)

	require.NoError(t, r.rdb.ZAdd(t.Context(), r.keys.Due(0), redis.Z{Score: -1, Member: "nonsense"}).Err())
	scan, err = r.store.Due(t.Context(), 0, 0, 10, 10)
	require.NoError(t, err)
	require.Equal(t, refs("x"), scan.Overdue, "without a grace it is overdue at once")
	require.Equal(t, []string{"nonsense"}, scan.Strange)
	require.NoError(t, r.store.Discard(t.Context(), 0, scan.Strange))
	timerstest.CheckInvariants(t, r.rdb, prefix)
}

func TestOpenRefusesOtherData(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	again := timers.NewStore(r.rdb, r.keys)
	require.NoError(t, again.Open(t.Context()))
	require.Equal(t, r.store.Deployment(), again.Deployment())
	require.Len(t, again.Deployment(), 16)

	four, err := timers.NewKeys(prefix, 4)
	require.NoError(t, err)
	err = timers.NewStore(r.rdb, four).Open(t.Context())
	require.ErrorIs(t, err, timers.ErrDeployment)
	require.ErrorContains(t, err, "LAPSE_PARTITIONS is 4; set it to 1")

	require.NoError(t, r.rdb.HSet(t.Context(), r.keys.Meta(), "version", "2").Err())
	require.ErrorIs(t, timers.NewStore(r.rdb, r.keys).Open(t.Context()), timers.ErrDeployment)
}

func TestListIsInOrderOfDueAndComplete(t *testing.T) {
	t.Parallel()
	for _, partitions := range []int{1, 5} {
		t.Run(fmt.Sprint(partitions, " partitions"), func(t *testing.T) {
			r := newRig(t)
			require.NoError(t, r.rdb.FlushAll(t.Context()).Err())
			keys, err := timers.NewKeys(prefix, partitions)
			require.NoError(t, err)
			store := timers.NewStore(r.rdb, keys)
			require.NoError(t, store.Open(t.Context()))
			set := func(topic, id string, in time.Duration) {
				ref := timers.Ref{Topic: topic, ID: id}
				_, err := store.Set(t.Context(), keys.Partition(ref), []timers.SetItem{{Ref: ref, In: in}})
				require.NoError(t, err)
			}
			at := time.Now().Add(time.Hour).UnixMilli()
			for i := range 300 {
				// A third in one millisecond, with bytes that locales order in their own ways.
				ref := timers.Ref{Topic: []string{"a", "a.b", "ab", "B"}[i%4], ID: fmt.Sprintf("%c%d", "aZ_é:"[i%5], i)}
				item := timers.SetItem{Ref: ref, In: -1, At: at + int64(i%3)*int64(i)}
				_, err := store.Set(t.Context(), keys.Partition(ref), []timers.SetItem{item})
				require.NoError(t, err)
			}
			// Claimed ones have another score, and belong first all the same.
			for i := range 20 {
				set("a", fmt.Sprint("now", i), 0)
			}
			now, err := r.rdb.Time(t.Context()).Result()
			require.NoError(t, err)
			r.past(now)
			for i := range 20 {
				ref := timers.Ref{Topic: "a", ID: fmt.Sprint("now", i)}
				res, err := store.Claim(t.Context(), keys.Partition(ref), 2*time.Hour, "t", false, 1, []timers.Ref{ref})
				require.NoError(t, err)
				require.Len(t, res.Claims, 1)
			}
			for topic, want := range map[string]int{"": 320, "a": 170, "a.b": 75, "ab": 75, "B": 75, "none": 0} {
				for _, limit := range []int{1000, 7} {
					seen := map[string]bool{}
					var last timers.Timer
					var cursor timers.Cursor
					for more, pages := true, 0; more; pages++ {
						require.Less(t, pages, 1000)
						var page []timers.Timer
						page, cursor, more, err = store.List(t.Context(), topic, "", cursor, limit)
						require.NoError(t, err)
						require.LessOrEqual(t, len(page), limit)
						for _, item := range page {
							require.False(t, item.Due.Before(last.Due), "%v after %v", item, last)
							require.False(t, seen[item.Member()], "twice: %v", item)
							seen[item.Member()] = true
							require.Equal(t, strings.HasPrefix(item.ID, "now"), item.State == timers.Firing)
							last = item
						}
					}
					require.Len(t, seen, want, "topic %q, limit %d", topic, limit)
				}
			}
		})
	}
}
