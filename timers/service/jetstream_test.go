package service

import (
	"context"
	"log/slog"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/stretchr/testify/require"

	"github.com/lapse-timers/lapse/timers"
	"github.com/lapse-timers/lapse/timers/timerstest"
	"github.com/lapse-timers/lapse/timers/wire"
)

// answered is how an attempt ends that gets this answer, and the delivery that
// has heard it.
func answered(dead bool, m *nats.Msg) (timers.Delivery, *JetStream) {
	var got timers.Delivery
	j := &JetStream{inbox: "i.", wake: make(chan struct{}, 1), pending: map[uint64]*attempt{}, logger: slog.New(slog.DiscardHandler), health: wire.HealthPart{Status: wire.HealthOK}}
	s := newStream("TIMERS", 0, 0, false)
	j.stream.Store(&s)
	j.pending[1] = &attempt{id: 1, dead: dead, done: func(d timers.Delivery) { got = d }}
	m.Subject = "i.1"
	j.acknowledged(m)
	return got, j
}

// What waits to be announced must not keep the payloads of all that were claimed
// together.
func TestAnnouncerKeepsOneClaim(t *testing.T) {
	a := NewAnnouncer("timers", nil, slog.New(slog.DiscardHandler))
	batch := []timers.Claim{*claimed(), *claimed()}
	a.Announce(&batch[1], "no")
	n := <-a.queue
	require.Equal(t, &batch[1], n.claim)
	require.NotSame(t, &batch[1], n.claim)
}

// A stream without a leader, or made again, refuses nobody: with an end of
// attempts such an answer must not count.
func TestNobodyThereIsAway(t *testing.T) {
	d, _ := answered(false, &nats.Msg{Header: nats.Header{"Status": {"503"}}})
	require.Equal(t, timers.Refused, d.Outcome)
	require.ErrorIs(t, d.Err, timers.ErrAway)
	require.ErrorIs(t, d.Err, nats.ErrNoResponders)
}

// What one stall of NATS takes is missed together. Only when what was sent after that is
// missed too does the stream not acknowledge, as after a critical write error.
func TestSilenceOfTheStream(t *testing.T) {
	j := &JetStream{wait: time.Second, pending: map[uint64]*attempt{}}
	start := time.Now().Add(-20 * time.Second)
	lasts := func(sent, missed time.Duration) bool {
		j.queue = append(j.queue, &attempt{deadline: start.Add(sent + j.wait), done: func(timers.Delivery) {}})
		require.Equal(t, 1, j.expire(start.Add(missed)))
		return j.silent.lasts()
	}
	require.False(t, lasts(0, time.Second))
	require.False(t, lasts(900*time.Millisecond, 2*time.Second))
	require.True(t, lasts(1100*time.Millisecond, 3*time.Second))
	j.settle(&attempt{}, timers.Delivery{Outcome: timers.Refused, Err: timers.ErrAway})
	require.True(t, j.silent.lasts(), "that was not the stream")
	j.settle(&attempt{}, timers.Delivery{Outcome: timers.Delivered})
	require.False(t, j.silent.lasts())
	require.False(t, lasts(5*time.Second, 6*time.Second))
}

// Announcements may be refused where fires are stored, and stored where fires are
// refused: limits may be of a subject.
func TestAnnouncementsDoNotJudgeTheFiring(t *testing.T) {
	refusal := func() *nats.Msg {
		return &nats.Msg{Data: []byte(`{"stream":"TIMERS","error":{"code":503,"err_code":10077,"description":"maximum messages exceeded"}}`)}
	}
	stored := func() *nats.Msg { return &nats.Msg{Data: []byte(`{"stream":"TIMERS","seq":12}`)} }
	_, j := answered(false, refusal())
	require.NotEmpty(t, j.full.why)
	_, j = answered(false, stored())
	require.False(t, j.full.delivered.IsZero())

	d, j := answered(true, refusal())
	require.Equal(t, timers.Refused, d.Outcome)
	require.Zero(t, j.full)
	d, j = answered(true, stored())
	require.Equal(t, timers.Delivered, d.Outcome)
	require.Zero(t, j.full)
}

// The connection may be cut between the answer that opens the gate and the gate,
// when the handler that shuts it has been there already.
func TestGateStaysShutWithoutAConnection(t *testing.T) {
	var g gate
	require.False(t, g.openWhile(func() bool {
		require.True(t, g.isOpen(), "a cut after this look is heard by the handler")
		return false
	}))
	require.False(t, g.isOpen())
	require.True(t, g.openWhile(func() bool { return true }))
	require.True(t, g.isOpen())
}

// A look that ends with the process is no news of NATS.
func TestLookThatEndsWithTheProcessSaysNothing(t *testing.T) {
	ns := timerstest.NATS(t)
	c, err := Connect(ConnConfig{URL: ns.URL()}, "test", true)
	require.NoError(t, err)
	defer c.Close()
	var log timerstest.Log
	j, err := NewJetStream(t.Context(), c, "timers", StreamConfig{Name: "TIMERS", Replicas: 1, Duplicates: time.Minute}, time.Second, slog.New(slog.NewTextHandler(&log, nil)))
	require.NoError(t, err)
	ctx, end := context.WithCancel(t.Context())
	end()
	j.check(ctx)
	require.Equal(t, wire.HealthOK, j.Health().Status)
	require.Empty(t, log.String())
	require.True(t, j.Ready())
}
