package service

import (
	"log/slog"
	"testing"

	"github.com/nats-io/nats.go"
	"github.com/stretchr/testify/require"

	"github.com/lapse-timers/lapse/timers"
	"github.com/lapse-timers/lapse/timers/wire"
)

// answered is how an attempt ends that gets this answer, and the delivery that
// has heard it.
func answered(dead bool, m *nats.Msg) (timers.Delivery, *JetStream) {
	var got timers.Delivery
	j := &JetStream{inbox: "i.", wake: make(chan struct{}, 1), pending: map[uint64]*attempt{}, health: wire.HealthPart{Status: wire.HealthOK}}
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
