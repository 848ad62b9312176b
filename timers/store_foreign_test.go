package timers_test

import (
	"context"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/lapse-timers/lapse/timers"
	"github.com/lapse-timers/lapse/timers/timerstest"
)

// foreign puts a text in the place of a set, until the returned func removes it.
func (r *rig) foreign(key string) (remove func()) {
	r.Helper()
	require.NoError(r, r.rdb.Set(r.Context(), key, "x", 0).Err())
	return func() { require.NoError(r, r.rdb.Del(r.Context(), key).Err()) }
}

// A foreign type in the place of a set that only helps to list leaves nothing
// half done.
func TestForeignTypeInPlaceOfTheTried(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	ids := []string{"set", "cancel", "bury", "retry"}
	var due time.Time
	for _, id := range ids {
		due = r.set(id, 0, "old").Due
	}
	r.past(due)
	c := r.claim("t", time.Minute, ids...).Claims
	r.release(c[0], false, time.Hour)
	r.release(c[1], false, time.Hour)
	require.True(t, r.bury(c[3], false, "no"))
	remove := r.foreign(r.keys.Tried(0))
	r.set("set", time.Hour, "new")
	require.Equal(t, "new", string(r.get("set").Payload))
	require.Equal(t, timers.Cancelled, r.cancel("cancel").Outcome)
	require.True(t, r.bury(c[2], false, "no"))
	require.Equal(t, timers.Dead, r.get("bury").State)
	require.Equal(t, timers.Retried, r.retry("retry").Outcome)
	require.Equal(t, timers.Scheduled, r.get("retry").State)
	r.past(r.set("claim", 0, "x").Due)
	claimed := r.claim("c", time.Minute, "claim").Claims
	require.Len(t, claimed, 1, "it is fired all the same")
	r.ack(claimed[0])
	require.Nil(t, r.get("claim"))
	remove()
	r.past(r.now())
	claims := r.claim("n", time.Minute, "retry").Claims
	require.Len(t, claims, 1)
	r.ack(claims[0])
	timerstest.CheckInvariants(t, r.rdb, prefix)
	require.Equal(t, timers.Cancelled, r.cancel("set").Outcome)
	require.Equal(t, timers.Cancelled, r.cancel("bury").Outcome)
	r.clean()
}

func TestForeignTypeInPlaceOfTheDead(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.dead("cancel", false)
	r.dead("retry", false)
	r.set("pair", time.Hour, "x")
	r.past(r.set("bury", 0, "x").Due)
	c := r.claim("t", time.Minute, "bury").Claims[0]
	remove := r.foreign(r.keys.Dead(0))
	_, err := r.store.Bury(t.Context(), 0, []timers.Burial{{Claim: &c, Reason: "no"}})
	require.ErrorIs(t, err, timers.ErrUnconfirmed, "it had begun")
	require.Equal(t, timers.Firing, r.get("bury").State)
	require.NoError(t, r.rdb.ZScore(t.Context(), r.keys.Due(0), "orders:bury").Err(), "the end of the lease brings it back")
	canceled, _, err := r.store.Cancel(t.Context(), 0, refs("cancel", "pair"))
	require.NoError(t, err)
	require.Equal(t, timers.Cancelled, canceled[0].Outcome)
	require.Equal(t, timers.Cancelled, canceled[1].Outcome)
	require.Equal(t, timers.Retried, r.retry("retry").Outcome)
	require.Equal(t, timers.RetryNotFound, r.retry("none").Outcome)
	remove()
	require.True(t, r.bury(c, false, "no"))
	timerstest.CheckInvariants(t, r.rdb, prefix)
	require.Equal(t, timers.Cancelled, r.cancel("bury").Outcome)
	require.Equal(t, timers.Cancelled, r.cancel("retry").Outcome)
	r.clean()
}

// In the place of the backup set or of the counter it is met before the first
// write, so the answer may say that nothing was stored.
func TestForeignTypeStopsASetBeforeItBegins(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	for name, key := range map[string]string{"due": r.keys.Due(0), "rev": r.keys.Rev(0)} {
		require.NoError(t, r.rdb.HSet(t.Context(), key, "a", "b").Err())
		_, err := r.store.Set(t.Context(), 0, []timers.SetItem{{Ref: ref("x"), In: time.Hour}})
		require.ErrorIs(t, err, timers.ErrUnavailable, name)
		require.Nil(t, r.get("x"))
		require.NoError(t, r.rdb.Del(t.Context(), key).Err())
	}
	r.clean()
}

// What ends a timer is met by a foreign type in the place of the backup set only once
// all else is done: nobody would come back for it.
func TestForeignTypeInPlaceOfTheBackupSetAtTheEnd(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	for _, id := range []string{"acked", "stopped", "buried"} {
		r.set(id, 0, "x")
	}
	r.past(r.now())
	c := r.claim("t", time.Minute, "acked", "stopped", "buried").Claims
	require.Equal(t, timers.CancelTooLate, r.cancel("stopped").Outcome)
	require.NoError(t, r.rdb.Del(t.Context(), r.keys.Due(0)).Err())
	remove := r.foreign(r.keys.Due(0))
	require.ErrorContains(t, r.store.Ack(t.Context(), 0, []*timers.Claim{&c[0]}), "WRONGTYPE")
	require.ErrorContains(t, r.store.Release(t.Context(), 0, []timers.Release{{Claim: &c[1]}}), "WRONGTYPE")
	_, err := r.store.Bury(t.Context(), 0, []timers.Burial{{Claim: &c[2], Reason: "no"}})
	require.ErrorContains(t, err, "WRONGTYPE")
	remove()
	timerstest.CheckInvariants(t, r.rdb, prefix)
	require.Equal(t, timers.Cancelled, r.cancel("buried").Outcome)
	r.clean()
}

// No repetition changes it, and other partitions want their turn.
func TestForeignTypeHoldsUpNoClaimer(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	f := timers.NewFirer(r.store, &scripted{}, timers.FirerConfig{Lease: time.Hour, RetryMin: time.Millisecond, RetryMax: time.Millisecond})
	remove := r.foreign(r.keys.Due(0))
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	_, err := f.Sweep(ctx, 0, refs("a"))
	require.ErrorContains(t, err, "WRONGTYPE")
	require.NoError(t, ctx.Err(), "it did not wait")
	remove()
	r.clean()
}

// The set of the dead may name what has long been set again after a foreign
// hand; what meets it there removes the name.
func TestStaleNamesOfTheDeadGo(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.dead("a", false)
	require.NoError(t, r.rdb.Del(t.Context(), r.keys.Shadow(ref("a"))).Err())
	r.set("a", time.Hour, "new")
	require.EqualValues(t, 1, r.counts().Dead)
	require.Equal(t, timers.RetryNotDead, r.retry("a").Outcome)
	require.Zero(t, r.counts().Dead)

	r.dead("b", false)
	require.NoError(t, r.rdb.Set(t.Context(), r.keys.Shadow(ref("b")), "x", 0).Err())
	r.set("b", time.Hour, "new")
	require.Zero(t, r.counts().Dead)
	timerstest.CheckInvariants(t, r.rdb, prefix)
}

func TestPatrolGoesOnThoughTheDeadAreOfAForeignType(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.dead("a", false)
	r.set("whole", time.Hour, "x")
	require.NoError(t, r.rdb.ZRem(t.Context(), r.keys.Due(0), "orders:whole").Err())
	remove := r.foreign(r.keys.Dead(0))
	patrol := func() (mended int) {
		for cursor, n := "0", 0; ; {
			var err error
			cursor, n, err = r.store.Patrol(t.Context(), 0, cursor, 100)
			require.NoError(t, err)
			if mended += n; cursor == "0" {
				return mended
			}
		}
	}
	require.Equal(t, 1, patrol())
	remove()
	require.Equal(t, 1, patrol(), "the dead one has its place again")
	timerstest.CheckInvariants(t, r.rdb, prefix)
}

// What Lua takes for a number and Redis does not, or takes for another, costs the
// timer that it stands in, and none of those that one call handles with it.
func TestForeignNumbersCostNoOtherTimer(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	spoil := func(id, field, value string) {
		r.Helper()
		require.NoError(r, r.rdb.HSet(r.Context(), r.keys.Shadow(ref(id)), field, value).Err())
	}
	// A year that no reply can say.
	r.set("far", time.Hour, "x")
	spoil("far", "d", "999999999999999")
	r.set("near", time.Hour, "x")
	page, _, _, err := r.store.List(t.Context(), "", "", timers.Cursor{}, 10)
	require.NoError(t, err)
	require.Len(t, page, 1)
	require.Nil(t, r.get("far"))
	r.cancel("far")
	r.cancel("near")
	// Beyond what Lua counts in ones.
	require.NoError(t, r.rdb.Set(t.Context(), r.keys.Rev(0), "9999999999999999", 0).Err())
	before := r.set("first", time.Hour, "x").Rev
	require.Greater(t, r.set("last", time.Hour, "x").Rev, before)
	r.cancel("last")
	r.cancel("first")
	for _, bad := range []string{"nan", "-nan", "inf", " 5", "0x10", "-1", "1e400", "abc", ""} {
		require.NoError(t, r.rdb.Set(t.Context(), r.keys.Rev(0), bad, 0).Err())
		first := r.set("first", 0, "x")
		require.Greater(t, first.Rev, int64(1e15), "rev %q", bad)
		due := r.set("bad", 0, "x").Due
		r.set("last", 0, "x")
		r.past(due)
		both := refs("first", "bad", "last")

		for _, field := range []string{"d", "r"} {
			was := r.rdb.HGet(t.Context(), r.keys.Shadow(ref("bad")), field).Val()
			spoil("bad", field, bad)
			page, _, _, err := r.store.List(t.Context(), "", "", timers.Cursor{}, 10)
			require.NoError(t, err)
			require.Len(t, page, 2, "the others are listed; %s %q", field, bad)
			spoil("bad", field, was)
		}

		claims := r.claim("dead.1", time.Minute, "first", "bad", "last").Claims
		require.Len(t, claims, 3)
		spoil("bad", "d", bad)
		n, err := r.store.Rescue(t.Context(), 0, "dead")
		require.NoError(t, err, "%q", bad)
		require.Equal(t, 2, n, "%q", bad)

		// The end of the lease.
		require.NoError(t, r.rdb.ZAdd(t.Context(), r.keys.Due(0), redis.Z{Score: 1, Member: ref("bad").Member()}).Err())
		claimed := r.claim("t", time.Minute, "first", "bad", "last")
		require.Len(t, claimed.Claims, 2, "%q", bad)
		require.Nil(t, r.get("bad"), "what is no timer is removed")
		r.set("bad", 0, "x")
		r.past(r.now())
		claims = append(claimed.Claims, r.claim("t", time.Minute, "bad").Claims...)
		require.Len(t, claims, 3)
		spoil("bad", "d", bad)
		var burials []timers.Burial
		for i := range claims {
			burials = append(burials, timers.Burial{Claim: &claims[i], Reason: "no"})
		}
		dead, err := r.store.Bury(t.Context(), 0, burials)
		require.NoError(t, err, "%q", bad)
		require.Equal(t, []bool{true, true, false}, dead, "%q", bad)

		r.dead("bad", false)
		spoil("bad", "d", bad)
		back, _, err := r.store.Retry(t.Context(), 0, both)
		require.NoError(t, err)
		require.Equal(t, []timers.RetryOutcome{timers.Retried, timers.RetryNotFound, timers.Retried}, []timers.RetryOutcome{back[0].Outcome, back[1].Outcome, back[2].Outcome}, "%q", bad)
		require.EqualValues(t, 2, r.rdb.ZCard(t.Context(), r.keys.Tried(0)).Val(), "a listing needs them there")
		spoil("first", "r", bad)
		out, _, err := r.store.Cancel(t.Context(), 0, both)
		require.NoError(t, err)
		require.Equal(t, timers.CancelNotFound, out[0].Outcome, "rev %q", bad)
		require.Equal(t, timers.CancelTooLate, out[2].Outcome, "the dead instance may have delivered it")
		require.NoError(t, r.rdb.Del(t.Context(), r.keys.Shadow(ref("bad"))).Err())
	}
	r.clean()
}

// A right that is taken away while Lapse runs: the life that is not replaced stays.
func TestReplacementThatMayNotBeWritten(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.set("a", time.Hour, "old")
	set := func(in time.Duration) error {
		_, err := r.store.Set(t.Context(), 0, []timers.SetItem{{Ref: ref("a"), In: in, Schedule: "@in", Payload: []byte("new")}})
		return err
	}
	require.NoError(t, r.rdb.Do(t.Context(), "ACL", "SETUSER", "default", "-hset").Err())
	require.NotEmpty(t, timers.LastingRefusal(set(0)))
	require.NotEmpty(t, timers.LastingRefusal(set(2*time.Hour)))
	timerstest.CheckInvariants(t, r.rdb, prefix)
	require.NoError(t, r.rdb.Do(t.Context(), "ACL", "SETUSER", "default", "+hset").Err())
	require.Equal(t, "old", string(r.get("a").Payload))
	require.NoError(t, set(time.Hour))
	require.Equal(t, "new", string(r.get("a").Payload))
	require.Equal(t, timers.Cancelled, r.cancel("a").Outcome)
	r.clean()
}

// A right that is taken away while Lapse runs: nothing is claimed, and nothing looks as if
// it were, so that the next look says what is refused, and fires once it may.
func TestClaimThatMayNotBeWritten(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.past(r.set("a", 0, "x").Due)
	right := func(rule string) {
		require.NoError(t, r.rdb.Do(t.Context(), "ACL", "SETUSER", "default", rule).Err())
	}
	right("-hset")
	for _, token := range []string{"a", "b"} {
		_, err := r.store.Claim(t.Context(), 0, time.Hour, token, false, 1<<20, refs("a"))
		require.NotEmpty(t, timers.LastingRefusal(err), "%v", err)
	}
	require.Equal(t, timers.Scheduled, r.get("a").State)
	right("+hset")
	claims := r.claim("c", time.Hour, "a").Claims
	require.Len(t, claims, 1)
	require.False(t, claims[0].Unsure)
	r.ack(claims[0])
	r.clean()
}
