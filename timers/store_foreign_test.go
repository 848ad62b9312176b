package timers_test

import (
	"context"
	"testing"
	"time"

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

// Lua takes these for numbers, ZADD does not: met in the midst of a batch they must not
// keep the rest from what was asked for. Of the counter they would make every rev the same.
func TestForeignNumbersHoldUpNobody(t *testing.T) {
	t.Parallel()
	for _, number := range []string{"nan", "inf", "-5", " 5", "0x10", "1e300", "10000000000000000"} {
		r := newRig(t)
		require.NoError(t, r.rdb.Set(t.Context(), r.keys.Rev(0), number, 0).Err())
		for _, id := range []string{"broken", "dead", "lapsed", "next"} {
			r.set(id, 0, "x")
		}
		first := r.get("next").Rev
		r.past(r.set("next", 0, "x").Due)
		require.Greater(t, r.get("next").Rev, first, number)
		spoil := func(id string) {
			require.NoError(t, r.rdb.HSet(t.Context(), r.keys.Shadow(ref(id)), "d", number).Err())
		}

		spoil("broken")
		claims := r.claim("gone.1", time.Minute, "broken", "dead", "lapsed", "next").Claims
		require.Len(t, claims, 3, number)
		require.EqualValues(t, 3, r.rdb.ZCard(t.Context(), r.keys.Tried(0)).Val(), "where a rescue finds them: %s", number)
		spoil("dead")
		require.False(t, r.bury(claims[0], false, "no"), number)
		spoil("lapsed")
		n, err := r.store.Rescue(t.Context(), 0, "gone")
		require.NoError(t, err, number)
		require.Equal(t, 1, n, number)
		require.Equal(t, timers.CancelTooLate, r.cancel("next").Outcome, number)
		require.Equal(t, timers.CancelTooLate, r.cancel("lapsed").Outcome, number)
		r.ack(claims[1])
		r.ack(claims[2])
		r.clean()
	}
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
