package chaos

import (
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lapse-timers/lapse/timers/client"
)

// history is a ledger with times of its own.
type history struct {
	Ledger
	t0 time.Time
}

func newHistory() *history { return &history{t0: time.Now().Truncate(time.Millisecond)} }

func (h *history) ms(n int) time.Time { return h.t0.Add(time.Duration(n) * time.Millisecond) }

// set is a set due at 1,000 ms.
func (h *history) set(id string, answer Answer, old *Life, was client.State) *Life {
	v := h.Begin(id, h.ms(1000))
	h.Answered(v, old, answer, client.Result{Due: h.ms(1000), Rev: int64(v.N) + 1, Replaced: was != "", Was: was})
	return v
}

// fire has the life arrive on the stream, and stored is the same for a subscriber.
func (h *history) fire(v *Life, claimed, stored int) { h.copy(v, claimed, stored, uint64(100+stored)) }
func (h *history) seen(v *Life, claimed, seen int)   { h.copy(v, claimed, seen, 0) }

func (h *history) copy(v *Life, claimed, at int, seq uint64) {
	h.Arrived(Arrival{Seq: seq, At: h.ms(at), Fired: client.Fired{ID: v.ID, Rev: int64(v.N) + 1, Due: h.ms(1000), Fired: h.ms(claimed),
		Payload: []byte(strconv.Itoa(v.N)), MsgID: strconv.Itoa(v.N)}})
}

// A judge that sees nothing would pass everything.
func TestTheJudgeSees(t *testing.T) {
	type found struct{ lost, early, afterCancel, oldLife, duplicates, untrue int }
	for name, tc := range map[string]struct {
		happened func(h *history)
		want     found
	}{
		"a timer that arrives": {func(h *history) { h.fire(h.set("a", Stored, nil, ""), 1001, 1002) }, found{}},
		"a timer that is lost": {func(h *history) { h.set("a", Stored, nil, "") }, found{lost: 1}},
		"one that only a subscriber saw": {func(h *history) {
			h.seen(h.set("a", Stored, nil, ""), 1001, 1002)
		}, found{lost: 1}},
		"claimed early":            {func(h *history) { h.fire(h.set("a", Stored, nil, ""), 999, 1002) }, found{early: 1}},
		"stored early":             {func(h *history) { h.fire(h.set("a", Stored, nil, ""), 1001, 999) }, found{early: 1}},
		"seen early":               {func(h *history) { v := h.set("a", Stored, nil, ""); h.fire(v, 1001, 1002); h.seen(v, 1001, 998) }, found{early: 1}},
		"twice on the stream":      {func(h *history) { v := h.set("a", Stored, nil, ""); h.fire(v, 1001, 1002); h.fire(v, 1003, 1004) }, found{duplicates: 1}},
		"a refused set":            {func(h *history) { h.set("a", Refused, nil, "") }, found{}},
		"a refused set that fires": {func(h *history) { h.fire(h.set("a", Refused, nil, ""), 1001, 1002) }, found{untrue: 1}},
		"an unknown set":           {func(h *history) { h.set("a", Unknown, nil, "") }, found{}},
		"an unknown set that fires": {func(h *history) {
			h.fire(h.set("a", Unknown, nil, ""), 1001, 1002)
		}, found{}},
		"an unknown set that fires twice": {func(h *history) {
			v := h.set("a", Unknown, nil, "")
			h.fire(v, 1001, 1002)
			h.fire(v, 1003, 1004)
		}, found{duplicates: 1}},
		"a set without an answer": {func(h *history) { h.Begin("a", h.ms(1000)) }, found{untrue: 1}},
		"due before it was asked for": {func(h *history) {
			v := h.Begin("a", h.ms(1001))
			h.Answered(v, nil, Stored, client.Result{Due: h.ms(1000), Rev: 1})
			h.fire(v, 1001, 1002)
		}, found{early: 1, untrue: 1}},

		"cancelled": {func(h *history) { h.Ended(h.set("a", Stored, nil, ""), Cancelled, 1) }, found{}},
		"cancelled, of another rev": {func(h *history) {
			h.Ended(h.set("a", Stored, nil, ""), Cancelled, 7)
		}, found{untrue: 1}},
		"cancelled and fired": {func(h *history) {
			v := h.set("a", Stored, nil, "")
			h.Ended(v, Cancelled, 1)
			h.fire(v, 1001, 1002)
		}, found{afterCancel: 1}},
		"cancelled and seen": {func(h *history) {
			v := h.set("a", Stored, nil, "")
			h.Ended(v, Cancelled, 1)
			h.seen(v, 1001, 1002)
		}, found{afterCancel: 1}},
		"cancelled after the full stream refused it": {func(h *history) {
			v := h.set("a", Stored, nil, "")
			h.Full(h.ms(900), h.ms(1100))
			h.seen(v, 1001, 1002)
			h.Ended(v, Cancelled, 1)
		}, found{}},
		"cancelled and stored in the full stream": {func(h *history) {
			v := h.set("a", Stored, nil, "")
			h.Full(h.ms(900), h.ms(1100))
			h.fire(v, 1001, 1002)
			h.Ended(v, Cancelled, 1)
		}, found{afterCancel: 1}},
		"too late to cancel": {func(h *history) {
			v := h.set("a", Stored, nil, "")
			h.Ended(v, TooLate, 1)
			h.fire(v, 60_001, 60_002)
		}, found{afterCancel: 1}},
		"too late to cancel, never fired": {func(h *history) { h.Ended(h.set("a", Stored, nil, ""), TooLate, 1) }, found{}},
		"gone and never delivered":        {func(h *history) { h.Ended(h.set("a", Stored, nil, ""), Gone, 0) }, found{lost: 1}},
		"gone before it was delivered": {func(h *history) {
			v := h.set("a", Stored, nil, "")
			h.Ended(v, Gone, 0)
			h.fire(v, 60_000, 60_000)
		}, found{untrue: 1}},
		"a cancel without an answer": {func(h *history) { h.Ended(h.set("a", Stored, nil, ""), CancelInDoubt, 0) }, found{}},

		"replaced": {func(h *history) {
			h.fire(h.set("a", Stored, h.set("a", Stored, nil, ""), client.Scheduled), 1001, 1002)
		}, found{}},
		"replaced, and the new one is lost": {func(h *history) {
			h.set("a", Stored, h.set("a", Stored, nil, ""), client.Scheduled)
		}, found{lost: 1}},
		"replaced, and the old one fires": {func(h *history) {
			old := h.set("a", Stored, nil, "")
			h.fire(h.set("a", Stored, old, client.Scheduled), 1001, 1002)
			h.fire(old, 1001, 1003)
		}, found{oldLife: 1}},
		"replaced while firing": {func(h *history) {
			old := h.set("a", Stored, nil, "")
			h.fire(h.set("a", Stored, old, client.Firing), 60_001, 60_002)
		}, found{}},
		"replaced while firing, and tried again": {func(h *history) {
			old := h.set("a", Stored, nil, "")
			h.fire(h.set("a", Stored, old, client.Firing), 60_001, 60_002)
			h.fire(old, 60_003, 60_004)
		}, found{oldLife: 1}},
		"replaced nothing, and the old one is lost": {func(h *history) {
			h.fire(h.set("a", Stored, h.set("a", Stored, nil, ""), ""), 1001, 1002)
		}, found{lost: 1}},
		"replaced something with a new id": {func(h *history) {
			h.fire(h.set("a", Stored, nil, client.Scheduled), 1001, 1002)
		}, found{untrue: 1}},
		"replaced without an answer, and the old one fires": {func(h *history) {
			old := h.set("a", Stored, nil, "")
			h.set("a", Unknown, old, "")
			h.fire(old, 1001, 1002)
		}, found{}},
		"replaced without an answer, and the new one fires": {func(h *history) {
			h.fire(h.set("a", Unknown, h.set("a", Stored, nil, ""), ""), 1001, 1002)
		}, found{}},
		"replaced without an answer, and none fires": {func(h *history) {
			h.set("a", Unknown, h.set("a", Stored, nil, ""), "")
		}, found{lost: 1}},
		"a refused replacement changes nothing": {func(h *history) {
			old := h.set("a", Stored, nil, "")
			h.set("a", Refused, old, "")
			h.fire(old, 1001, 1002)
		}, found{}},
		"something nobody set": {func(h *history) {
			h.Arrived(Arrival{Seq: 1, Fired: client.Fired{ID: "a", Payload: []byte("7")}})
		}, found{untrue: 1}},
	} {
		t.Run(name, func(t *testing.T) {
			h := newHistory()
			tc.happened(h)
			d := h.Judge()
			require.Equal(t, tc.want, found{len(d.Lost), len(d.Early), len(d.AfterCancel), len(d.OldLife), len(d.Duplicates), len(d.Untrue)}, "%+v", d)
			require.Equal(t, tc.want.lost, h.Outstanding(h.ms(1000)))
		})
	}
}

func TestCaughtUp(t *testing.T) {
	h := newHistory()
	h.fire(h.set("a", Stored, nil, ""), 1001, 1500)
	h.set("b", Stored, nil, "")
	require.Equal(t, []time.Duration{0, 400 * time.Millisecond, 0}, h.CaughtUp([]time.Time{h.ms(900), h.ms(1100), h.ms(1600)}))
}
