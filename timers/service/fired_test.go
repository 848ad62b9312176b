package service

import (
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/stretchr/testify/require"

	"github.com/lapse-timers/lapse/timers"
	"github.com/lapse-timers/lapse/timers/wire"
)

func claimed() *timers.Claim {
	return &timers.Claim{Ref: timers.Ref{Topic: "orders.close", ID: "order-42"}, Rev: 1_700_000_000_000_000, Due: time.UnixMilli(1_700_000_000_001),
		Fired: time.UnixMilli(1_700_000_000_003), Attempt: 1, Payload: []byte("x")}
}

// A released timer may be fired by another release of Lapse: the id of a fire
// must not change between them, or a stream stores it twice.
func TestMsgIDIsStableAndOnePerFire(t *testing.T) {
	c := claimed()
	id := msgID("timers", c)
	require.Equal(t, "4XN4nlat-YDoXtN_I6Iw0SoD", id)
	require.Len(t, id, msgIDLength)

	again := claimed()
	again.Attempt, again.Fired, again.Token = 7, time.Now(), "other"
	require.Equal(t, id, msgID("timers", again), "every attempt has it")

	seen := map[string]bool{id: true}
	for _, change := range []func(*timers.Claim) string{
		func(c *timers.Claim) string { c.Rev++; return "timers" },
		func(c *timers.Claim) string { c.Due = c.Due.Add(time.Millisecond); return "timers" },
		func(c *timers.Claim) string { c.Topic, c.ID = "orders", "close:order-42"; return "timers" },
		func(c *timers.Claim) string { return "other" },
		func(c *timers.Claim) string { c.Topic = "sorders.close"; return "timer" },
	} {
		other := claimed()
		id := msgID(wire.Prefix(change(other)), other)
		require.False(t, seen[id])
		seen[id] = true
	}
}

func TestDeadIDIsOnePerBurial(t *testing.T) {
	c := claimed()
	id := deadID("timers", c)
	require.NotEqual(t, msgID("timers", c), id, "a stream that has the fire must take the announcement")
	again := claimed()
	again.Token, again.Attempt = "other", 9
	require.Equal(t, id, deadID("timers", again))
	again.Fired = again.Fired.Add(time.Millisecond)
	require.NotEqual(t, id, deadID("timers", again), "the same life, given up on once more")
}

func TestHeadersSurviveTheStore(t *testing.T) {
	h := nats.Header{"traceparent": {"00-1-2-03"}, "X-Many": {"a", "", "c: d"}, "x-many": {"é"}, "Empty": {""}}
	b := encodeHeaders(h)
	got := nats.Header{}
	require.True(t, decodeHeaders(b, got))
	require.Equal(t, h, got)
	require.Equal(t, b, encodeHeaders(got), "the same bytes each time")
	require.Nil(t, encodeHeaders(nats.Header{}))
	for cut := 1; cut < len(b); cut++ {
		decodeHeaders(b[:cut], nats.Header{}) // must not panic
	}
	require.False(t, decodeHeaders([]byte("\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01"), nats.Header{}))
}

func FuzzHeaders(f *testing.F) {
	f.Add(encodeHeaders(nats.Header{"A": {"b", "c"}}))
	f.Add([]byte{1, 'a'})
	f.Fuzz(func(t *testing.T, b []byte) {
		h := nats.Header{}
		if !decodeHeaders(b, h) {
			return
		}
		again := nats.Header{}
		if !decodeHeaders(encodeHeaders(h), again) || len(again) != len(h) {
			t.Fatalf("%q became %v, then %v", b, h, again)
		}
	})
}

// The bound that admits a timer must hold for what is sent in the end.
func TestDeliveredSizeIsAnUpperBound(t *testing.T) {
	own := nats.Header{"traceparent": {"00-1-2-03"}, "X-Many": {"a", "b"}}
	c := claimed()
	c.Headers = encodeHeaders(own)
	c.Rev, c.Attempt = 1<<62, 1<<40
	schedule := "@in 5s"
	bound := deliveredSize(c.Topic, c.ID, schedule, own, c.Payload)
	size := func(h nats.Header) int {
		return headerSize(h) + len("NATS/1.0\r\n\r\n") + len(c.Payload)
	}
	require.LessOrEqual(t, size(firedMessage("timers", c, timers.FromEvent).Header), bound)
	tm := &timers.Timer{Ref: c.Ref, Rev: c.Rev, Due: c.Due, State: timers.Scheduled, Attempts: c.Attempt, Fired: c.Fired, Schedule: schedule, Headers: c.Headers}
	require.LessOrEqual(t, size(getHeaders(tm)), bound)
	require.Less(t, bound, size(getHeaders(tm))+150, "and not far from it")
}

func TestOnlyOurStreamAcknowledges(t *testing.T) {
	j := &JetStream{}
	s := newStream("TIMERS", 0, 0, false)
	j.stream.Store(&s)
	require.True(t, j.plainAck([]byte(`{"stream":"TIMERS","seq":12}`)))
	for _, other := range []string{"", `{"stream":"TIMERS","seq":}`, `{"stream":"TIMERS","seq":0}`, `{"stream":"TIMER","seq":12}`, `{"stream":"TIMERS2","seq":12}`,
		`{"stream":"TIMERS","seq":12,"duplicate": true}`, `{"stream":"TIMERS","seq":12`, `{"stream":"TIMERS","seq":1}}`, `ok`} {
		require.False(t, j.plainAck([]byte(other)), other)
	}
}

func TestCovers(t *testing.T) {
	for subject, want := range map[string]bool{
		">": true, "timers.>": true, "timers.fired.>": true, "*.fired.>": true, "*.>": true,
		"timers.fired": false, "timers.fired.*": false, "timers.fired.a": false, "timers.fired.a.>": false, "other.>": false, "timers.fired.*.>": false, "*.*.*": false,
	} {
		require.Equal(t, want, covers([]string{"x", subject}, "timers.fired.>"), subject)
	}
}

func TestSemanticVersion(t *testing.T) {
	for in, want := range map[string]string{"v1.2.3": "1.2.3", "1.2.3-rc.1+x": "1.2.3-rc.1+x", "dev": "0.0.0-vdev", "a1b2c3d-dirty": "0.0.0-va1b2c3d-dirty", "": "0.0.0", "1.2": "0.0.0-v1-2", "01.2.3": "0.0.0-v01-2-3"} {
		require.Equal(t, want, semantic(in), in)
		require.True(t, semver.MatchString(semantic(in)))
	}
}

func TestRedactHidesSecrets(t *testing.T) {
	for in, want := range map[string]string{
		"nats://127.0.0.1:4222":                         "nats://127.0.0.1:4222",
		"nats://user:s3cret@a:4222,tls://s3cret@b:4222": "nats://***@a:4222,tls://***@b:4222",
		"user:s3cret@a:4222":                            "***@a:4222",
		"nats://user:p@ss@host":                         "nats://***@host",
	} {
		require.Equal(t, want, Redact(in))
		require.False(t, strings.Contains(Redact(in), "s3cret"))
	}
}
