package timers_test

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/lapse-timers/lapse/timers"
	"github.com/lapse-timers/lapse/timers/timerstest"
)

func (r *rig) bury(c timers.Claim, unknown bool, reason string) bool {
	r.Helper()
	dead, err := r.store.Bury(r.Context(), 0, []timers.Burial{{Claim: &c, Unknown: unknown, Reason: reason}})
	require.NoError(r, err)
	return dead[0]
}

func (r *rig) retry(id string) timers.RetryResult {
	r.Helper()
	res, now, err := r.store.Retry(r.Context(), 0, refs(id))
	require.NoError(r, err)
	require.WithinDuration(r, r.now(), now, time.Minute)
	return res[0]
}

func (r *rig) now() time.Time {
	r.Helper()
	now, err := r.rdb.Time(r.Context()).Result()
	require.NoError(r, err)
	return now
}

// dead sets a timer and gives up on it.
func (r *rig) dead(id string, unknown bool) timers.SetResult {
	r.Helper()
	res := r.set(id, 0, "payload of "+id)
	r.past(res.Due)
	require.True(r, r.bury(r.claim("t"+id, time.Minute, id).Claims[0], unknown, "too large"))
	return res
}

func (r *rig) counts() timers.Counts {
	r.Helper()
	c, err := r.store.Count(r.Context())
	require.NoError(r, err)
	return c
}

func (r *rig) list() []timers.Timer {
	r.Helper()
	page, _, more, err := r.store.List(r.Context(), "", "", timers.Cursor{}, 1000)
	require.NoError(r, err)
	require.False(r, more)
	return page
}

func TestDeadIsKeptAndNeverClaimed(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	res := r.set("a", 0, "payload")
	r.past(res.Due)
	c := r.claim("t", time.Minute, "a").Claims[0]
	require.True(t, r.bury(c, false, "too large"))
	want := &timers.Timer{Ref: ref("a"), Rev: res.Rev, Due: res.Due, State: timers.Dead, Attempts: 1, Fired: c.Fired, Reason: "too large", Schedule: "@in 0s",
		Payload: []byte("payload"), Headers: []byte{}}
	require.Equal(t, want, r.get("a"))
	timerstest.CheckInvariants(t, r.rdb, prefix)
	require.Zero(t, r.rdb.Exists(t.Context(), r.keys.Due(0), r.keys.Tried(0), r.keys.Trigger(ref("a"))).Val())
	counts := r.counts()
	require.Zero(t, counts.Pending)
	require.EqualValues(t, 1, counts.Dead)
	require.Equal(t, []timers.Timer{{Ref: ref("a"), Rev: res.Rev, Due: res.Due, State: timers.Dead, Attempts: 1, Reason: "too large"}}, r.list())

	// A hint, as an event that was under way, must not raise it; nor must what
	// its claimer says late, or says again.
	for _, claim := range []func() timers.ClaimResult{
		func() timers.ClaimResult { return r.claim("t2", time.Minute, "a") },
		func() timers.ClaimResult { return r.claimAgain("t", "a") },
	} {
		got := claim()
		require.Empty(t, got.Claims)
		require.Zero(t, got.Repaired)
	}
	require.True(t, r.bury(c, true, "said again"), "the answer to a repetition is the same")
	r.release(c, true, 0)
	r.ack(c)
	require.Equal(t, want, r.get("a"))
	scan, err := r.store.Due(t.Context(), 0, 0, 10, 10)
	require.NoError(t, err)
	require.Empty(t, scan.Overdue)
	timerstest.CheckInvariants(t, r.rdb, prefix)
	require.Equal(t, timers.CancelResult{Outcome: timers.Cancelled, Rev: res.Rev}, r.cancel("a"))
	r.clean()
}

func TestBuryOfWhatIsHeldNoMore(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	res := r.set("a", 0, "A")
	r.past(res.Due)
	old := r.claim("t", time.Minute, "a").Claims[0]
	r.release(old, false, 0)
	require.False(t, r.bury(old, true, "late"))
	require.Equal(t, timers.Scheduled, r.get("a").State, "nor is the doubt of a late answer taken")
	timerstest.Eventually(t, 5*time.Second, "the back-off", func() bool { return len(r.claim("t2", time.Minute, "a").Claims) == 1 })
	require.False(t, r.bury(old, true, "late"), "another holds it")
	require.Equal(t, timers.Firing, r.get("a").State)

	b := r.set("a", time.Hour, "B")
	require.False(t, r.bury(r.claimOf("a", b.Rev, "t2"), true, "late"), "a set drops the token")
	require.Equal(t, timers.Scheduled, r.get("a").State)
	timerstest.CheckInvariants(t, r.rdb, prefix)
	require.Equal(t, timers.Cancelled, r.cancel("a").Outcome)

	// What a cancel had stopped is removed.
	res = r.set("a", 0, "A")
	r.past(res.Due)
	c := r.claim("t3", time.Minute, "a").Claims[0]
	require.Equal(t, timers.CancelTooLate, r.cancel("a").Outcome)
	require.False(t, r.bury(c, false, "too large"))
	require.False(t, r.bury(c, false, "too large"), "and again")
	r.clean()

	// A burial is not that of a later claim of the same life.
	r.dead("a", false)
	require.Equal(t, timers.Retried, r.retry("a").Outcome)
	second := r.claim("t4", time.Minute, "a").Claims[0]
	require.True(t, r.bury(second, false, "again"))
	second.Fired = second.Fired.Add(-time.Millisecond)
	require.False(t, r.bury(second, false, "again"))
}

// claimOf is a claim as somebody may hold it in memory.
func (r *rig) claimOf(id string, rev int64, token string) timers.Claim {
	return timers.Claim{Ref: ref(id), Rev: rev, Token: token}
}

// A cancel may only be answered OK when no attempt may have been delivered.
func TestCancelOfDead(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	for name, tc := range map[string]struct {
		before func(c timers.Claim) timers.Claim
		last   bool // unknown
		want   timers.CancelOutcome
	}{
		"refused": {nil, false, timers.Cancelled},
		"unknown": {nil, true, timers.CancelDead},
		"unknown before": {func(c timers.Claim) timers.Claim {
			r.release(c, true, 0)
			var got []timers.Claim
			timerstest.Eventually(t, 5*time.Second, "the back-off", func() bool { got = r.claim("again", time.Minute, c.ID).Claims; return len(got) == 1 })
			return got[0]
		}, false, timers.CancelDead},
	} {
		res := r.set(name, 0, "A")
		r.past(res.Due)
		c := r.claim("t", time.Minute, name).Claims[0]
		if tc.before != nil {
			c = tc.before(c)
		}
		require.True(t, r.bury(c, tc.last, "no"))
		require.Equal(t, timers.Dead, r.get(name).State, name)
		timerstest.CheckInvariants(t, r.rdb, prefix)
		require.Equal(t, timers.CancelResult{Outcome: tc.want, Rev: res.Rev}, r.cancel(name), name)
		require.Equal(t, timers.CancelNotFound, r.cancel(name).Outcome)
		r.clean()
	}
}

func TestSetOverDead(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	for _, unknown := range []bool{false, true} {
		old := r.dead("a", unknown)
		res := r.set("a", 0, "new")
		require.Equal(t, timers.Dead, res.Was)
		require.Greater(t, res.Rev, old.Rev)
		require.Equal(t, &timers.Timer{Ref: ref("a"), Rev: res.Rev, Due: res.Due, State: timers.Scheduled, Schedule: "@in 0s", Payload: []byte("new"), Headers: []byte{}},
			r.get("a"), "nothing of the old life is left")
		require.Zero(t, r.counts().Dead)
		timerstest.CheckInvariants(t, r.rdb, prefix)
		r.past(res.Due)
		c := r.claim("n", time.Minute, "a").Claims[0]
		require.Equal(t, 1, c.Attempt)
		require.False(t, c.Unsure)
		r.ack(c)
		r.clean()
	}

	// In one batch each says what it met.
	r.dead("a", false)
	later := func(id, payload string) timers.SetItem {
		return timers.SetItem{Ref: ref(id), In: time.Hour, Payload: []byte(payload)}
	}
	res, err := r.store.Set(t.Context(), 0, []timers.SetItem{later("b", "1"), later("a", "1"), later("a", "2"), later("b", "2")})
	require.NoError(t, err)
	require.Equal(t, []timers.State{"", timers.Dead, timers.Scheduled, timers.Scheduled}, []timers.State{res[0].Was, res[1].Was, res[2].Was, res[3].Was})
	require.Equal(t, "2", string(r.get("a").Payload))
	timerstest.CheckInvariants(t, r.rdb, prefix)

	// One that is out of range leaves it as it was.
	r.dead("c", false)
	out, err := r.store.Set(t.Context(), 0, []timers.SetItem{{Ref: ref("c"), In: -1, At: time.Now().Add(timers.MaxDelay).UnixMilli() + 60_000}})
	require.NoError(t, err)
	require.Error(t, out[0].Err)
	require.Equal(t, timers.Dead, r.get("c").State)
}

func TestRetryIsTheSameLifeDueNow(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	for _, unknown := range []bool{false, true} {
		old := r.dead("a", unknown)
		want := timers.RetryResult{Outcome: timers.Retried, Rev: old.Rev, Due: old.Due, State: timers.Scheduled}
		if unknown {
			want.State = timers.Firing
		}
		require.Equal(t, want, r.retry("a"))
		want.Outcome = timers.RetryNotDead
		require.Equal(t, want, r.retry("a"), "once")
		got := r.get("a")
		require.Equal(t, want.State, got.State)
		require.Equal(t, 0, got.Attempts)
		require.Empty(t, got.Reason)
		require.Equal(t, old.Due, got.Due)
		require.Zero(t, r.counts().Dead)
		require.EqualValues(t, 1, r.counts().Pending)
		require.Len(t, r.list(), 1)
		timerstest.CheckInvariants(t, r.rdb, prefix)
		r.past(r.now())
		c := r.claim("n", time.Minute, "a").Claims[0]
		require.Equal(t, 1, c.Attempt)
		require.Equal(t, unknown, c.Unsure, "a doubt is for the rest of the life")
		require.Equal(t, old.Rev, c.Rev)
		require.Equal(t, old.Due, c.Due, "and with it the Nats-Msg-Id")
		require.Equal(t, timers.RetryResult{Outcome: timers.RetryNotDead, Rev: old.Rev, Due: old.Due, State: timers.Firing}, r.retry("a"))
		r.release(c, false, time.Hour)
		require.Equal(t, want.State, r.get("a").State)
		timerstest.CheckInvariants(t, r.rdb, prefix)
		r.cancel("a")
		r.clean()
	}
	require.Equal(t, timers.RetryResult{}, r.retry("a"))

	// Twice in one batch.
	r.dead("a", false)
	res, _, err := r.store.Retry(t.Context(), 0, refs("none", "a", "a"))
	require.NoError(t, err)
	require.Equal(t, []timers.RetryOutcome{timers.RetryNotFound, timers.Retried, timers.RetryNotDead}, []timers.RetryOutcome{res[0].Outcome, res[1].Outcome, res[2].Outcome})
	timerstest.CheckInvariants(t, r.rdb, prefix)
	require.Equal(t, timers.Cancelled, r.cancel("a").Outcome)
	r.clean()
}

// Its event is armed: a retried timer fires by the event path.
func TestRetryArmsTheEvent(t *testing.T) {
	t.Parallel()
	r := newRig(t, "--enable-debug-command", "yes")
	require.NoError(t, r.rdb.Do(t.Context(), "DEBUG", "SET-ACTIVE-EXPIRE", "0").Err())
	r.dead("a", false)
	sub := r.rdb.Subscribe(t.Context(), timers.ExpiredChannel(0))
	defer sub.Close()
	_, err := sub.Receive(t.Context())
	require.NoError(t, err)
	require.Equal(t, timers.Retried, r.retry("a").Outcome)
	r.past(r.now())
	scan, err := r.store.Due(t.Context(), 0, time.Minute, 10, 10)
	require.NoError(t, err)
	require.Equal(t, 1, scan.Touched)
	msg, err := sub.ReceiveMessage(t.Context())
	require.NoError(t, err)
	require.Equal(t, r.keys.Trigger(ref("a")), msg.Payload)
}

// Over maxmemory a burial is written, and what is dead can be brought back or
// dropped: all of these make room in the end.
func TestDeadOutOfMemory(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	ids := []string{"a", "b", "c"}
	var due time.Time
	for _, id := range ids {
		due = r.set(id, 0, "x").Due
	}
	r.past(due)
	claims := r.claim("t", time.Minute, ids...).Claims
	require.NoError(t, r.rdb.ConfigSet(t.Context(), "maxmemory", "1").Err())
	for i, c := range claims {
		require.True(t, r.bury(c, i == 2, "too large"))
	}
	_, err := r.store.Set(t.Context(), 0, []timers.SetItem{{Ref: ref("a"), In: time.Hour, Payload: []byte("new")}})
	require.ErrorIs(t, err, timers.ErrOutOfMemory)
	require.Equal(t, timers.Dead, r.get("a").State, "a set that was refused has changed nothing")
	timerstest.CheckInvariants(t, r.rdb, prefix)
	require.Equal(t, timers.Retried, r.retry("a").Outcome)
	require.Equal(t, timers.Cancelled, r.cancel("b").Outcome)
	require.Equal(t, timers.CancelDead, r.cancel("c").Outcome)
	r.past(r.now())
	r.ack(r.claim("n", time.Minute, "a").Claims[0])
	r.clean()
}

// Whatever a foreign hand does to a dead timer, it fires nothing, and nothing of
// it stays.
func TestInconsistentDeadRecords(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	later := func(key string) {
		require.NoError(t, r.rdb.ZAdd(t.Context(), key, redis.Z{Score: 1, Member: "orders:a"}).Err())
	}
	// Put back into the backup set by hand: the reason decides.
	r.dead("a", false)
	later(r.keys.Due(0))
	later(r.keys.Tried(0))
	require.Len(t, r.list(), 1)
	res := r.claim("n", time.Minute, "a")
	require.Empty(t, res.Claims)
	require.Equal(t, 1, res.Repaired)
	require.Equal(t, timers.Dead, r.get("a").State)
	timerstest.CheckInvariants(t, r.rdb, prefix)

	// Its member is lost: it is found by name all the same.
	require.NoError(t, r.rdb.Del(t.Context(), r.keys.Dead(0)).Err())
	require.Empty(t, r.claim("n", time.Minute, "a").Claims)
	require.Equal(t, timers.Retried, r.retry("a").Outcome)
	require.Equal(t, timers.Cancelled, r.cancel("a").Outcome)
	r.clean()

	// Its shadow is lost, or of another type.
	for _, drop := range []func(id string) any{
		func(id string) any { return r.retry(id).Outcome == timers.RetryNotFound },
		func(id string) any { return r.cancel(id).Outcome == timers.CancelNotFound },
	} {
		r.dead("a", false)
		require.NoError(t, r.rdb.Del(t.Context(), r.keys.Shadow(ref("a"))).Err())
		require.Empty(t, r.list())
		require.Equal(t, true, drop("a"))
		r.clean()
	}
	r.dead("a", false)
	require.NoError(t, r.rdb.Set(t.Context(), r.keys.Shadow(ref("a")), "x", 0).Err())
	require.Equal(t, timers.RetryNotFound, r.retry("a").Outcome)
	require.Equal(t, timers.CancelNotFound, r.cancel("a").Outcome)
	r.clean()

	// A set where the set of the dead has another type is not stopped half-way.
	r.dead("a", false)
	require.NoError(t, r.rdb.Set(t.Context(), r.keys.Dead(0), "x", 0).Err())
	require.Equal(t, timers.Dead, r.set("a", time.Hour, "new").Was)
	require.NoError(t, r.rdb.Del(t.Context(), r.keys.Dead(0)).Err())
	timerstest.CheckInvariants(t, r.rdb, prefix)
}

// The patrol must not raise what nothing but the set of the dead names, and
// finds one that not even that names.
func TestPatrolLeavesTheDead(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.dead("a", false)
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
	require.Zero(t, patrol())
	require.Equal(t, timers.Dead, r.get("a").State)
	timerstest.CheckInvariants(t, r.rdb, prefix)
	require.NoError(t, r.rdb.Del(t.Context(), r.keys.Dead(0)).Err())
	require.Equal(t, 1, patrol())
	require.Len(t, r.list(), 1)
	timerstest.CheckInvariants(t, r.rdb, prefix)
}

// Scheduled, firing, refused, brought back and dead ones are listed together in
// the order of their due times, whatever the size of a page.
func TestListMergesTheDead(t *testing.T) {
	t.Parallel()
	for _, partitions := range []int{1, 5} {
		t.Run(fmt.Sprint(partitions, " partitions"), func(t *testing.T) {
			r := newRig(t)
			require.NoError(t, r.rdb.FlushAll(t.Context()).Err())
			keys, err := timers.NewKeys(prefix, partitions)
			require.NoError(t, err)
			store := timers.NewStore(r.rdb, keys)
			require.NoError(t, store.Open(t.Context()))
			type entry struct {
				due   time.Time
				name  string
				state timers.State
			}
			var want []entry
			for i := range 200 {
				ref := timers.Ref{Topic: []string{"a", "a.b", "ab"}[i%3], ID: fmt.Sprintf("%c%d", "aZ_é:"[i%5], i)}
				p := keys.Partition(ref)
				item := timers.SetItem{Ref: ref, In: 0}
				if i%5 == 0 {
					item.In = time.Hour
				}
				set, err := store.Set(t.Context(), p, []timers.SetItem{item})
				require.NoError(t, err)
				e := entry{set[0].Due, ref.Member(), timers.Scheduled}
				if i%5 != 0 {
					r.past(e.due)
					res, err := store.Claim(t.Context(), p, 2*time.Hour, "t", false, 1, []timers.Ref{ref})
					require.NoError(t, err)
					require.Len(t, res.Claims, 1)
					c := &res.Claims[0]
					switch i % 5 {
					case 1:
						e.state = timers.Firing
					case 2:
						require.NoError(t, store.Release(t.Context(), p, []timers.Release{{Claim: c, After: time.Hour}}))
					default:
						e.state = timers.Dead
						dead, err := store.Bury(t.Context(), p, []timers.Burial{{Claim: c, Reason: "x"}})
						require.NoError(t, err)
						require.Equal(t, []bool{true}, dead)
						if i%5 == 4 {
							e.state = timers.Scheduled
							_, _, err := store.Retry(t.Context(), p, []timers.Ref{ref})
							require.NoError(t, err)
						}
					}
				}
				want = append(want, e)
			}
			slices.SortFunc(want, func(a, b entry) int { return cmp.Or(a.due.Compare(b.due), strings.Compare(a.name, b.name)) })
			below := func(topic string) (out []entry) {
				for _, e := range want {
					if of, _, _ := strings.Cut(e.name, ":"); topic == "" || of == topic || strings.HasPrefix(of, topic+".") {
						out = append(out, e)
					}
				}
				return out
			}
			for _, topic := range []string{"", "a", "ab"} {
				for _, limit := range []int{1000, 7, 1} {
					var got []entry
					var cursor timers.Cursor
					for more := true; more; {
						var page []timers.Timer
						page, cursor, more, err = store.List(t.Context(), topic, "", cursor, limit)
						require.NoError(t, err)
						require.LessOrEqual(t, len(page), limit)
						for _, item := range page {
							got = append(got, entry{item.Due, item.Member(), item.State})
						}
					}
					require.Equal(t, below(topic), got, "topic %q, limit %d", topic, limit)
				}
			}
			timerstest.CheckInvariants(t, r.rdb, prefix)
		})
	}
}

func TestReasonIsOneLine(t *testing.T) {
	t.Parallel()
	for in, want := range map[string]string{
		"": "not known", " \n": "?", "a\r\nb": "a??b", "caf\u00e9": "caf?", " x ": "x", strings.Repeat("y", 200): strings.Repeat("y", 200),
		strings.Repeat("z", 201): strings.Repeat("z", 197) + "...",
	} {
		require.Equal(t, want, timers.Reason(in), "%q", in)
	}
}
