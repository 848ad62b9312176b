package timers_test

import (
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lapse-timers/lapse/timers"
	"github.com/lapse-timers/lapse/timers/timerstest"
)

// redis#1026: a SET over a due key that was not yet reaped emits the event of
// the old life, which must not fire the new one.
func TestEventOfAnEarlierLifeFiresNothing(t *testing.T) {
	t.Parallel()
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
	t.Parallel()
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
	t.Parallel()
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
	t.Parallel()
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
	t.Parallel()
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
	t.Parallel()
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
	t.Parallel()
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
	t.Parallel()
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
	t.Parallel()
	r := newRig(t)
	res := r.set("x", 0, "A")
	r.past(res.Due)
	claimed := r.claim("t", time.Minute, "x", "x")
	require.Len(t, claimed.Claims, 1)
	require.Equal(t, 1, r.get("x").Attempts)
}

func TestClaimStopsAtItsBytes(t *testing.T) {
	t.Parallel()
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
