package timers_test

import (
	"context"
	"fmt"
	"strconv"
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

func newRig(t *testing.T, args ...string) *rig {
	server := timerstest.Redis(t, args...)
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

// redis#1026: a SET over a due key that was not yet reaped emits the event of
// the old life, which must not fire the new one.
func TestEventOfAnEarlierLifeFiresNothing(t *testing.T) {
	r := newRig(t, "--enable-debug-command", "yes")
	require.NoError(t, r.rdb.Do(t.Context(), "DEBUG", "SET-ACTIVE-EXPIRE", "0").Err())
	sub := r.rdb.Subscribe(t.Context(), timers.ExpiredChannel(0))
	defer sub.Close()
	_, err := sub.Receive(t.Context())
	require.NoError(t, err)

	a := r.set("x", 20*time.Millisecond, "A")
	r.past(a.Due)
	b := r.set("x", time.Minute, "B")
	require.Equal(t, timers.Scheduled, b.Was)
	msg, err := sub.ReceiveMessage(t.Context())
	require.NoError(t, err)
	require.Equal(t, r.keys.Trigger(ref("x")), msg.Payload, "the event does come")
	require.Empty(t, r.claim("t", time.Second, "x").Claims)
	require.Equal(t, "B", string(r.get("x").Payload))
}

func TestReplaceWhileFiring(t *testing.T) {
	r := newRig(t)
	a := r.set("x", 0, "A")
	r.past(a.Due)
	c := r.claim("t", time.Minute, "x").Claims[0]
	b := r.set("x", time.Hour, "B")
	require.Equal(t, timers.Firing, b.Was)
	r.ack(c)
	require.Equal(t, "B", string(r.get("x").Payload), "the old ack no longer matches")
	r.release(c, false, 0)
	require.Equal(t, b.Due, r.get("x").Due, "nor does the old release")
	timerstest.CheckInvariants(t, r.rdb, prefix)
	require.Equal(t, timers.Cancelled, r.cancel("x").Outcome)
	r.clean()
}

func TestCancel(t *testing.T) {
	r := newRig(t)
	require.Equal(t, timers.CancelNotFound, r.cancel("none").Outcome)
	a := r.set("x", time.Hour, "A")
	require.Equal(t, timers.CancelResult{Outcome: timers.Cancelled, Rev: a.Rev}, r.cancel("x"))
	r.clean()

	// Due, but not claimed: the claim decides, so it is in time.
	b := r.set("x", 0, "B")
	r.past(b.Due)
	require.Equal(t, timers.Cancelled, r.cancel("x").Outcome)
	require.Empty(t, r.claim("t", time.Second, "x").Claims)
	r.clean()
}

func TestCancelTooLateStopsFurtherAttempts(t *testing.T) {
	for _, end := range []string{"acknowledged", "refused", "unknown", "lapsed"} {
		t.Run(end, func(t *testing.T) {
			r := newRig(t)
			res := r.set("x", 0, "A")
			r.past(res.Due)
			lease := time.Minute
			if end == "lapsed" {
				lease = 20 * time.Millisecond
			}
			c := r.claim("t", lease, "x").Claims[0]
			if end != "lapsed" {
				require.Equal(t, timers.CancelResult{Outcome: timers.CancelTooLate, Rev: res.Rev}, r.cancel("x"))
				require.Equal(t, timers.CancelTooLate, r.cancel("x").Outcome, "and again")
				require.Equal(t, timers.Firing, r.get("x").State)
			}
			switch end {
			case "acknowledged":
				r.ack(c)
			case "refused":
				r.release(c, false, time.Hour)
			case "unknown":
				r.release(c, true, time.Hour)
			case "lapsed":
				r.past(c.Fired.Add(lease))
				require.Equal(t, timers.CancelTooLate, r.cancel("x").Outcome)
			}
			require.Empty(t, r.claim("t2", time.Minute, "x").Claims)
			r.clean()
		})
	}
}

// A claimer that dies after a cancel came too late leaves nothing behind.
func TestStoppedClaimThatLapsesIsRemoved(t *testing.T) {
	r := newRig(t)
	res := r.set("x", 0, "A")
	r.past(res.Due)
	c := r.claim("t", 500*time.Millisecond, "x").Claims[0]
	require.Equal(t, timers.CancelTooLate, r.cancel("x").Outcome)
	r.past(c.Fired.Add(500 * time.Millisecond))
	require.Empty(t, r.claim("t2", time.Minute, "x").Claims)
	r.clean()
}

func TestRefusedIsScheduledAgain(t *testing.T) {
	r := newRig(t)
	res := r.set("x", 0, "A")
	r.past(res.Due)
	c := r.claim("t", time.Minute, "x").Claims[0]
	r.release(c, false, 50*time.Millisecond)
	got := r.get("x")
	require.Equal(t, timers.Scheduled, got.State)
	require.Equal(t, 1, got.Attempts)
	require.Equal(t, res.Due, got.Due, "due stays what it was")
	require.Positive(t, r.rdb.PExpireTime(t.Context(), r.keys.Trigger(ref("x"))).Val(), "its event is armed again")
	timerstest.CheckInvariants(t, r.rdb, prefix)
	require.Empty(t, r.claim("t2", time.Minute, "x").Claims, "not before the back-off")
	timerstest.Eventually(t, 5*time.Second, "the back-off", func() bool { return len(r.claim("t3", time.Minute, "x").Claims) == 1 })
	require.Equal(t, 2, r.get("x").Attempts)
	r.release(c, false, 0)
	require.Equal(t, timers.Firing, r.get("x").State, "an old token changes nothing")
	r.ack(r.claimAgain("t3", "x").Claims[0])
	r.clean()

	// Never handed over: a cancel is in time.
	res = r.set("x", 0, "A")
	r.past(res.Due)
	r.release(r.claim("t4", time.Minute, "x").Claims[0], false, time.Minute)
	require.Equal(t, timers.Cancelled, r.cancel("x").Outcome)
	r.clean()
}

func TestUnknownStaysFiringForGood(t *testing.T) {
	r := newRig(t)
	res := r.set("x", 0, "A")
	r.past(res.Due)
	r.release(r.claim("t", time.Minute, "x").Claims[0], true, 0)
	require.Equal(t, timers.Firing, r.get("x").State)
	var c timers.Claim
	timerstest.Eventually(t, 5*time.Second, "the back-off", func() bool {
		res := r.claim("t2", time.Minute, "x")
		if len(res.Claims) == 1 {
			c = res.Claims[0]
		}
		return len(res.Claims) == 1
	})
	require.True(t, c.Unsure)
	r.release(c, false, time.Minute)
	require.Equal(t, timers.Firing, r.get("x").State, "a refusal later does not undo the doubt")
	timerstest.CheckInvariants(t, r.rdb, prefix)
	require.Equal(t, timers.CancelTooLate, r.cancel("x").Outcome)
	r.clean()
}

func TestLapsedClaimIsUnsure(t *testing.T) {
	r := newRig(t)
	res := r.set("x", 0, "A")
	r.past(res.Due)
	old := r.claim("t", 20*time.Millisecond, "x").Claims[0]
	r.past(old.Fired.Add(20 * time.Millisecond))
	c := r.claim("t2", time.Minute, "x").Claims[0]
	require.True(t, c.Unsure)
	require.Equal(t, 2, c.Attempt)
	require.Equal(t, old.Rev, c.Rev)
	r.ack(old)
	require.NotNil(t, r.get("x"), "the old token settles nothing")
	r.ack(c)
	r.clean()
}

func TestNameTwiceInABatchIsClaimedOnce(t *testing.T) {
	r := newRig(t)
	res := r.set("x", 0, "A")
	r.past(res.Due)
	claimed := r.claim("t", time.Minute, "x", "x")
	require.Len(t, claimed.Claims, 1)
	require.Equal(t, 1, r.get("x").Attempts)
}

func TestClaimStopsAtItsBytes(t *testing.T) {
	r := newRig(t)
	ids := []string{"a", "b", "c"}
	var due time.Time
	for _, id := range ids {
		due = r.set(id, 0, strings.Repeat("x", 1000)).Due
	}
	r.past(due)
	res, err := r.store.Claim(t.Context(), 0, time.Minute, "t", false, 1500, refs(ids...))
	require.NoError(t, err)
	require.Len(t, res.Claims, 2)
	require.Equal(t, refs("c"), res.Later)
	res, err = r.store.Claim(t.Context(), 0, time.Minute, "t2", false, 1, res.Later)
	require.NoError(t, err)
	require.Len(t, res.Claims, 1, "one at least, however large")
}

// Whatever a foreign hand does to the records of one timer, it is repaired or
// removed, and the others of its batch are not held up.
func TestInconsistentRecordsHoldUpNobody(t *testing.T) {
	for name, break_ := range map[string]func(r *rig, k string) (fires bool){
		"member without hash":  func(r *rig, h string) bool { r.rdb.Del(r.Context(), h); return false },
		"hash of another type": func(r *rig, h string) bool { r.rdb.Set(r.Context(), h, "x", 0); return false },
		"hash without rev":     func(r *rig, h string) bool { r.rdb.HDel(r.Context(), h, "r"); return false },
		"hash without due":     func(r *rig, h string) bool { r.rdb.HDel(r.Context(), h, "d"); return false },
		"hash without payload": func(r *rig, h string) bool { r.rdb.HDel(r.Context(), h, "p"); return false },
		"rev is no number":     func(r *rig, h string) bool { r.rdb.HSet(r.Context(), h, "r", "many"); return false },
		"hash without member": func(r *rig, h string) bool {
			r.rdb.ZRem(r.Context(), r.keys.Due(0), "orders:broken")
			return true
		},
		"attempts are no number": func(r *rig, h string) bool { r.rdb.HSet(r.Context(), h, "a", "x"); return true },
		"trigger deleted":        func(r *rig, h string) bool { r.rdb.Del(r.Context(), r.keys.Trigger(ref("broken"))); return true },
		"trigger overwritten": func(r *rig, h string) bool {
			r.rdb.Set(r.Context(), r.keys.Trigger(ref("broken")), "x", 0)
			return true
		},
		"trigger is a list": func(r *rig, h string) bool {
			k := r.keys.Trigger(ref("broken"))
			r.rdb.Del(r.Context(), k)
			r.rdb.LPush(r.Context(), k, "x")
			return true
		},
	} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t)
			r.set("one", 0, "1")
			r.set("broken", 0, "b")
			due := r.set("two", 0, "2").Due
			fires := break_(r, r.keys.Shadow(ref("broken")))
			r.past(due)
			res := r.claim("t", time.Minute, "one", "broken", "two")
			want := 2
			if fires {
				want = 3
			} else {
				require.Equal(t, 1, res.Repaired)
			}
			require.Len(t, res.Claims, want)
			for _, c := range res.Claims {
				r.ack(c)
			}
			r.clean()

			// And none of them stands in the way of a new life, or of a cancel.
			r.set("broken", time.Hour, "b")
			break_(r, r.keys.Shadow(ref("broken")))
			require.NotEqual(t, timers.CancelTooLate, r.cancel("broken").Outcome)
			r.rdb.Del(t.Context(), r.keys.Shadow(ref("broken")))
			r.clean()
			r.set("broken", time.Hour, "b")
			break_(r, r.keys.Shadow(ref("broken")))
			r.set("broken", time.Hour, "b2")
			require.Equal(t, "b2", string(r.get("broken").Payload))
			timerstest.CheckInvariants(t, r.rdb, prefix)
		})
	}
}

// A member that was pulled ahead of its due time must not fire early.
func TestScoreAheadOfDueIsPutRight(t *testing.T) {
	r := newRig(t)
	res := r.set("x", time.Hour, "A")
	require.NoError(t, r.rdb.ZAdd(t.Context(), r.keys.Due(0), redis.Z{Score: 1, Member: "orders:x"}).Err())
	claimed := r.claim("t", time.Minute, "x")
	require.Empty(t, claimed.Claims)
	require.Equal(t, 1, claimed.Repaired)
	score, err := r.rdb.ZScore(t.Context(), r.keys.Due(0), "orders:x").Result()
	require.NoError(t, err)
	require.EqualValues(t, res.Due.UnixMilli(), score)
}

func TestRevGrowsThoughTheCounterWasLost(t *testing.T) {
	r := newRig(t)
	a := r.set("x", time.Hour, "A")
	require.NoError(t, r.rdb.Del(t.Context(), r.keys.Rev(0)).Err())
	b := r.set("x", time.Hour, "B")
	require.Greater(t, b.Rev, a.Rev)
	ahead := strconv.FormatInt(b.Rev+1_000_000_000, 10)
	require.NoError(t, r.rdb.Set(t.Context(), r.keys.Rev(0), ahead, 0).Err())
	require.Equal(t, b.Rev+1_000_000_001, r.set("x", time.Hour, "C").Rev, "and when the clock went back")
}

// Over maxmemory nothing is half stored, and what is due drains all the same.
func TestOutOfMemory(t *testing.T) {
	r := newRig(t)
	var ids []string
	for i := range 100 {
		id := fmt.Sprint("t", i)
		ids = append(ids, id)
		r.set(id, 0, strings.Repeat("x", 100))
	}
	due := r.set("later", 0, "x").Due
	r.set("hour", time.Hour, "x")
	r.past(due)
	require.NoError(t, r.rdb.ConfigSet(t.Context(), "maxmemory", "1").Err())

	_, err := r.store.Set(t.Context(), 0, []timers.SetItem{{Ref: ref("new"), In: time.Hour, Payload: []byte("x")}, {Ref: ref("hour"), In: 2 * time.Hour}})
	require.ErrorIs(t, err, timers.ErrOutOfMemory)
	require.Nil(t, r.get("new"))
	require.Equal(t, "x", string(r.get("hour").Payload))

	res := r.claim("t", time.Minute, ids...)
	require.Len(t, res.Claims, len(ids))
	r.release(res.Claims[0], true, 0)
	r.release(res.Claims[1], false, 0)
	for _, c := range res.Claims[2:] {
		r.ack(c)
	}
	late := r.claim("t2", time.Minute, "later")
	require.Len(t, late.Claims, 1)
	require.Equal(t, timers.CancelTooLate, r.cancel("later").Outcome)
	r.ack(late.Claims[0])
	require.Equal(t, timers.CancelTooLate, r.cancel(ids[0]).Outcome)
	require.Equal(t, timers.Cancelled, r.cancel(ids[1]).Outcome)
	require.Equal(t, timers.Cancelled, r.cancel("hour").Outcome)
	r.clean()
}

func TestWriteErrorsSayWhatWasStored(t *testing.T) {
	r := newRig(t)
	set := func() error {
		_, err := r.store.Set(t.Context(), 0, []timers.SetItem{{Ref: ref("x"), In: time.Hour}})
		return err
	}
	require.NoError(t, r.rdb.ConfigSet(t.Context(), "min-replicas-to-write", "1").Err())
	require.ErrorIs(t, set(), timers.ErrUnavailable, "NOREPLICAS")
	require.NoError(t, r.rdb.ConfigSet(t.Context(), "min-replicas-to-write", "0").Err())
	require.NoError(t, r.rdb.ReplicaOf(t.Context(), "127.0.0.1", "1").Err())
	require.ErrorIs(t, set(), timers.ErrUnavailable, "READONLY")
	require.NoError(t, r.rdb.ReplicaOf(t.Context(), "NO", "ONE").Err())
	require.NoError(t, set())

	r.server.Pause()
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	_, err := r.store.Set(ctx, 0, []timers.SetItem{{Ref: ref("y"), In: time.Hour}})
	cancel()
	require.ErrorIs(t, err, timers.ErrUnconfirmed, "the reply did not come")
	r.server.Resume()
	r.server.Stop()
	timerstest.Eventually(t, 5*time.Second, "connections to be found dead", func() bool {
		err := set()
		require.Error(t, err)
		return err != nil && !strings.Contains(err.Error(), "EOF")
	})
	require.ErrorIs(t, set(), timers.ErrUnavailable, "refused before anything was sent")
}

func TestScriptsSurviveFlush(t *testing.T) {
	r := newRig(t)
	flush := func() { require.NoError(t, r.rdb.ScriptFlush(t.Context()).Err()) }
	flush()
	due := r.set("x", 0, "A").Due
	r.past(due)
	flush()
	scan, err := r.store.Due(t.Context(), 0, time.Minute, 10, 0, 10)
	require.NoError(t, err)
	require.Equal(t, 1, scan.Touched)
	flush()
	c := r.claim("t", time.Minute, "x").Claims[0]
	flush()
	r.release(c, false, 0)
	flush()
	require.Equal(t, timers.Cancelled, r.cancel("x").Outcome)
	flush()
	_, _, _, err = r.store.List(t.Context(), "", timers.Cursor{}, 10)
	require.NoError(t, err)
	flush()
	_, err = r.store.Count(t.Context())
	require.NoError(t, err)
}

// The nudge itself: a due key that nobody looks at is expired, with its event,
// by the look at the backup set.
func TestDueTouchesTriggers(t *testing.T) {
	r := newRig(t, "--enable-debug-command", "yes")
	require.NoError(t, r.rdb.Do(t.Context(), "DEBUG", "SET-ACTIVE-EXPIRE", "0").Err())
	sub := r.rdb.Subscribe(t.Context(), timers.ExpiredChannel(0))
	defer sub.Close()
	_, err := sub.Receive(t.Context())
	require.NoError(t, err)

	due := r.set("x", 10*time.Millisecond, "A").Due
	next := r.set("y", time.Hour, "B").Due
	r.past(due)
	scan, err := r.store.Due(t.Context(), 0, time.Minute, 10, 0, 10)
	require.NoError(t, err)
	require.Equal(t, timers.DueScan{Now: scan.Now, Next: next, Touched: 1, Oldest: due}, scan)
	msg, err := sub.ReceiveMessage(t.Context())
	require.NoError(t, err)
	require.Equal(t, r.keys.Trigger(ref("x")), msg.Payload)

	require.NoError(t, r.rdb.ZAdd(t.Context(), r.keys.Due(0), redis.Z{Score: -1, Member: "nonsense"}).Err())
	scan, err = r.store.Due(t.Context(), 0, 0, 10, 0, 10)
	require.NoError(t, err)
	require.Equal(t, refs("x"), scan.Overdue, "without a grace it is overdue at once")
	require.Equal(t, []string{"nonsense"}, scan.Strange)
	require.NoError(t, r.store.Discard(t.Context(), 0, scan.Strange))
	timerstest.CheckInvariants(t, r.rdb, prefix)
}

func TestOpenRefusesOtherData(t *testing.T) {
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
						page, cursor, more, err = store.List(t.Context(), topic, cursor, limit)
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

func TestInspect(t *testing.T) {
	r := newRig(t)
	s, err := timers.Inspect(t.Context(), r.rdb)
	require.NoError(t, err)
	require.NoError(t, s.Refusal())
	require.Empty(t, s.Warnings())
	require.NoError(t, r.rdb.ConfigSet(t.Context(), "maxmemory-policy", "volatile-lru").Err())
	s, err = timers.Inspect(t.Context(), r.rdb)
	require.NoError(t, err)
	require.Len(t, s.Warnings(), 1)
	require.ErrorContains(t, timers.Server{Version: "6.0.16"}.Refusal(), "6.2")
	require.ErrorContains(t, timers.Server{Version: "7.2.4", Cluster: true}.Refusal(), "Cluster")

	require.NoError(t, r.rdb.ConfigSet(t.Context(), "requirepass", "s3cret").Err())
	opt, err := timers.ParseRedisURL(r.server.URL())
	require.NoError(t, err)
	opt.Password = "wrong"
	bad := redis.NewClient(opt)
	defer bad.Close()
	_, err = timers.Inspect(t.Context(), bad)
	require.ErrorIs(t, err, timers.ErrRedisAuth)
	require.NotContains(t, err.Error(), "wrong ")
}

func TestRedisURLErrorsHideThePassword(t *testing.T) {
	for _, url := range []string{"redis://user:s3cret@host:notaport", "http://user:s3cret@host", "redis://user:s3cret@host?unknown=1", "redis://user:s3cret@ho st", "s3cret"} {
		_, err := timers.ParseRedisURL(url)
		require.Error(t, err, url)
		if url != "s3cret" {
			require.NotContains(t, err.Error(), "s3cret")
		}
	}
}
