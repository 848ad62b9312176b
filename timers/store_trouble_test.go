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

// Whatever a foreign hand does to the records of one timer, it is repaired or
// removed, and the others of its batch are not held up.
func TestInconsistentRecordsHoldUpNobody(t *testing.T) {
	t.Parallel()
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

// What the backup set does not know of leaves nothing in a new life.
func TestSetOverLeftovers(t *testing.T) {
	t.Parallel()
	for name, leave := range map[string]func(r *rig, h string){
		"another type": func(r *rig, h string) { r.rdb.Set(r.Context(), h, "x", 0) },
		"all its fields": func(r *rig, h string) {
			r.rdb.HSet(r.Context(), h, "p", "x", "d", "1", "r", "1", "s", "@in 1s", "h", "x")
		},
		"a claimed one": func(r *rig, h string) {
			r.rdb.HSet(r.Context(), h, "p", "x", "d", "1", "r", "1", "a", "3", "k", "other", "c", "1", "u", "1", "x", "1")
			r.rdb.ZAdd(r.Context(), r.keys.Tried(0), redis.Z{Score: 1, Member: "orders:a"})
		},
	} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t)
			leave(r, r.keys.Shadow(ref("a")))
			res := r.set("a", 0, "new")
			require.Equal(t, &timers.Timer{Ref: ref("a"), Rev: res.Rev, Due: res.Due, State: timers.Scheduled, Schedule: "@in 0s",
				Payload: []byte("new"), Headers: []byte{}}, r.get("a"))
			timerstest.CheckInvariants(t, r.rdb, prefix)
			r.past(res.Due)
			claims := r.claim("t", time.Minute, "a").Claims
			require.Len(t, claims, 1)
			require.Equal(t, 1, claims[0].Attempt)
			require.False(t, claims[0].Unsure)
			r.ack(claims[0])
			r.clean()
		})
	}
}

// A schedule that says what the due time says is not stored, and given all the same.
func TestScheduleIsGivenAsItWasAsked(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	future := time.Now().Add(time.Hour).Truncate(time.Millisecond).UTC()
	for schedule, stored := range map[string]bool{
		"@at " + future.Format("2006-01-02T15:04:05.000Z"):                                   false,
		"@at " + future.Format("2006-01-02T15:04:05.000+00:00"):                              true,
		"@at " + future.Add(time.Hour).Format("2006-01-02T15:04:05Z"):                        true,
		"@at " + future.Add(-2*time.Hour).Format("2006-01-02T15:04:05.000Z"):                 true, // due now
		"@at " + future.In(time.FixedZone("", 3600)).Format("2006-01-02T15:04:05.000Z07:00"): true,
		"@in 3s": true,
	} {
		when, err := timers.ParseSchedule(schedule)
		require.NoError(t, err)
		_, err = r.store.Set(t.Context(), 0, []timers.SetItem{{Ref: ref("a"), In: when.In, At: when.At, Schedule: schedule, Payload: []byte("x")}})
		require.NoError(t, err)
		require.Equal(t, schedule, r.get("a").Schedule)
		require.Equal(t, stored, r.rdb.HExists(t.Context(), r.keys.Shadow(ref("a")), "s").Val(), schedule)
	}
}

// A member that was pulled ahead of its due time must not fire early.
func TestScoreAheadOfDueIsPutRight(t *testing.T) {
	t.Parallel()
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
	t.Parallel()
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
	t.Parallel()
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
	t.Parallel()
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
	t.Parallel()
	r := newRig(t)
	flush := func() { require.NoError(t, r.rdb.ScriptFlush(t.Context()).Err()) }
	flush()
	due := r.set("x", 0, "A").Due
	r.past(due)
	flush()
	scan, err := r.store.Due(t.Context(), 0, time.Minute, 10, 10)
	require.NoError(t, err)
	require.Equal(t, 1, scan.Touched)
	flush()
	c := r.claim("t", time.Minute, "x").Claims[0]
	flush()
	r.release(c, false, 0)
	flush()
	require.Equal(t, timers.Cancelled, r.cancel("x").Outcome)
	flush()
	_, _, _, err = r.store.List(t.Context(), "", "", timers.Cursor{}, 10)
	require.NoError(t, err)
	flush()
	_, err = r.store.Count(t.Context())
	require.NoError(t, err)
}

// Records that the backup set does not know of are met by no claim. Two steps
// of the patrol are more than a small keyspace has.
func TestPatrolFindsWhatNothingNames(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.set("kept", time.Hour, "x")
	r.set("whole", time.Hour, "x")
	r.set("claimed", 0, "x")
	r.past(r.set("torn", 0, "x").Due)
	require.Len(t, r.claim("t", time.Hour, "claimed").Claims, 1)
	ctx := t.Context()
	r.rdb.ZRem(ctx, r.keys.Due(0), "orders:whole", "orders:claimed", "orders:torn")
	r.rdb.HDel(ctx, r.keys.Shadow(ref("torn")), "d")
	r.rdb.Set(ctx, r.keys.Shadow(ref("text")), "x", 0)
	r.rdb.Set(ctx, r.keys.Shadow(ref("short")), "x", time.Hour)
	r.rdb.Set(ctx, r.keys.Trigger(ref("immortal")), "", 0)
	r.rdb.Set(ctx, r.keys.Trigger(ref("mortal")), "", time.Hour)
	mended, cursor := 0, "0"
	for range 2 {
		next, n, err := r.store.Patrol(ctx, 0, cursor, 500)
		require.NoError(t, err)
		mended, cursor = mended+n, next
	}
	require.Equal(t, "0", cursor)
	require.Equal(t, 5, mended)
	require.NotNil(t, r.get("whole"))
	require.NotNil(t, r.get("kept"))
	again := r.claim("u", time.Hour, "whole", "claimed").Claims
	require.Len(t, again, 1, "what was claimed comes again, and is unsure")
	require.True(t, again[0].Unsure)
	require.EqualValues(t, 2, r.rdb.Exists(ctx, r.keys.Trigger(ref("mortal")), r.keys.Shadow(ref("short"))).Val(), "they end by themselves")
	require.Zero(t, r.rdb.Exists(ctx, r.keys.Trigger(ref("immortal")), r.keys.Shadow(ref("torn")), r.keys.Shadow(ref("text"))).Val())
	r.rdb.Del(ctx, r.keys.Trigger(ref("mortal")), r.keys.Shadow(ref("short")))
	timerstest.CheckInvariants(t, r.rdb, prefix)
}
