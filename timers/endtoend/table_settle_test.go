package endtoend

import (
	"fmt"
	"slices"
	"strconv"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lapse-timers/lapse/timers/timerstest"
	"github.com/lapse-timers/lapse/timers/timerstest/faultproxy"
)

// full is what a full stream answers.
const full = `{"error":{"code":503,"err_code":10077,"description":"maximum messages exceeded"},"stream":"TIMERS","seq":0}`

// firstPublish lets the fault befall the first publish of a topic, in place of
// which befallen counts.
func firstPublish(topic string, f faultproxy.Fault) (rule func(faultproxy.Message) faultproxy.Fault, published *atomic.Int64) {
	published = &atomic.Int64{}
	return func(m faultproxy.Message) faultproxy.Fault {
		if m.Published() && m.Subject == "timers.fired."+topic && published.Add(1) == 1 {
			return f
		}
		return faultproxy.Pass
	}, published
}

// A fire whose claim, acknowledgement or release fails is not lost, not
// doubled on the stream, and leaves nothing, long before the lease is over,
// which is half a minute here.
func TestTableOfFires(t *testing.T) {
	t.Parallel()
	for _, step := range []struct {
		script  string
		attempt int // of the copy that is stored
	}{
		{"claim", 1},
		{"ack", 1},
		{"release", 2}, // of an attempt that the stream refused
		{"due", 1},
	} {
		t.Run(step.script, func(t *testing.T) {
			t.Parallel()
			s := table(t)
			for i, f := range redisFaults() {
				topic := fmt.Sprint(step.script, i)
				rowOf(t, f.name, func(t *testing.T) {
					b := &befalls{script: step.script, member: topic + ":x", faults: f.faults}
					if step.script == "due" {
						b.member = "timers:{0}:due" // it names no timer
					}
					if step.script == "release" {
						rule, _ := firstPublish(topic, faultproxy.Deliver(full))
						s.nats.Obey(rule)
					}
					s.redis.Obey(b.rule)
					began := time.Now()
					set := s.set(t, request("timers.set."+topic, "x", "@in 20ms"))
					copies := s.heardOf(t, topic, 1)
					if f.late {
						// It runs once nobody waits for it any more, and changes nothing.
						timerstest.Eventually(t, soon, "it was repeated", func() bool { return b.reached.Load() > 0 })
						b.release(s)
					}
					timerstest.Eventually(t, soon, "the fault", func() bool { return int(b.seen.Load()) >= len(f.faults) })
					s.clean(t)
					require.Less(t, time.Since(began), 15*time.Second, "it did not wait for the lease")
					require.Equal(t, 1, s.onStream(t, topic))
					require.Len(t, s.copies(topic), 1, "how often it was published")
					require.Equal(t, strconv.FormatInt(set.Rev, 10), copies[0].Header.Get("Timer-Rev"))
					require.Equal(t, strconv.Itoa(step.attempt), copies[0].Header.Get("Timer-Attempt"))
					require.Equal(t, look{}, s.look(t, topic))
				})
			}
			counts := s.status(t, "timers").Counts
			require.Zero(t, counts.Unknown+counts.Duplicates)
			require.Equal(t, len(redisFaults())*boolToInt(step.script == "release"), counts.Refused)
		})
	}
}

// What a claim, an acknowledgement or a release does not get written until the
// lease is over is lost to the claimer: another attempt follows, which the
// stream drops where the first was stored. It is the control of the table above:
// with the repetitions refused, which are its recovery, timers wait for the lease.
func TestFiresWaitForTheLeaseWithoutRepetition(t *testing.T) {
	t.Parallel()
	const lease = 2 * time.Second
	for _, step := range []struct {
		script string
		first  faultproxy.Fault
		copies int // that subscribers hear
	}{
		{"claim", faultproxy.CutReply, 1},
		{"ack", faultproxy.CutFirst, 2},
		{"release", faultproxy.CutFirst, 1},
	} {
		t.Run(step.script, func(t *testing.T) {
			t.Parallel()
			s := table(t, "LAPSE_LEASE="+lease.String())
			topic := step.script
			if step.script == "release" {
				rule, _ := firstPublish(topic, faultproxy.Deliver(full))
				s.nats.Obey(rule)
			}
			var token atomic.Pointer[string]
			var seen atomic.Int64
			s.redis.Obey(func(c faultproxy.Command) faultproxy.Fault {
				if c.Script != step.script || !c.About(topic+":x") {
					return faultproxy.Pass
				}
				// The claimer's own repetitions have its token; those of the next
				// attempt another.
				mine := s.token(c)
				if token.CompareAndSwap(nil, &mine) {
					seen.Add(1)
					return step.first
				}
				if *token.Load() == mine {
					seen.Add(1)
					return loading
				}
				return faultproxy.Pass
			})
			set := s.set(t, request("timers.set."+topic, "x", "@in 20ms"))
			timerstest.Eventually(t, soon, "the repetitions", func() bool { return seen.Load() > 3 })
			require.Equal(t, "firing", s.look(t, topic).state)
			copies := s.heardOf(t, topic, step.copies)
			nothingLeft(t, s.rdb)
			last := copies[len(copies)-1]
			fired, err := time.Parse(time.RFC3339, last.Header.Get("Timer-Fired"))
			require.NoError(t, err)
			require.GreaterOrEqual(t, fired.Sub(set.Due), lease, "it had to wait for the lease")
			require.Equal(t, "2", last.Header.Get("Timer-Attempt"))
			require.Equal(t, copies[0].Header.Get("Nats-Msg-Id"), last.Header.Get("Nats-Msg-Id"))
			require.Equal(t, 1, s.onStream(t, topic))
			require.Len(t, s.copies(topic), step.copies)
			require.Equal(t, step.copies-1, s.status(t, "timers").Counts.Duplicates)
		})
	}
}

// A claim that reaches Redis when its claimer has long given up holds a later
// life of the timer, which nobody then fires: it is late by the lease, and not
// lost; meanwhile a cancel is answered as if it were being delivered.
func TestClaimThatComesTooLate(t *testing.T) {
	t.Parallel()
	const lease = time.Second
	s := table(t, "LAPSE_LEASE="+lease.String())
	for i, end := range []string{"left alone", "cancelled"} {
		rowOf(t, end, func(t *testing.T) {
			topic := fmt.Sprint("late", i)
			var first atomic.Pointer[string]
			var began, repeated atomic.Int64 // Unix ms
			rule := func(f faultproxy.Fault) func(faultproxy.Command) faultproxy.Fault {
				return func(c faultproxy.Command) faultproxy.Fault {
					mine, now := s.token(c), time.Now().UnixMilli()
					switch {
					case c.Script != "claim" || !c.About(topic+":x"):
						return faultproxy.Pass
					case first.CompareAndSwap(nil, &mine):
						began.Store(now)
						return f
					case *first.Load() != mine:
						return loading // nobody is before the late one
					case slices.Contains(c.Args, "again"):
						repeated.Store(now)
						return loading
					}
					return f
				}
			}
			s.redis.Obey(rule(faultproxy.Hold))
			s.set(t, request("timers.set."+topic, "x", "@in 20ms"))
			timerstest.Eventually(t, soon, "its claimer has given up", func() bool {
				now := time.Now().UnixMilli()
				return began.Load() > 0 && now-began.Load() > lease.Milliseconds()+1000 && now-repeated.Load() > 1000
			})
			second := s.setNow(t, topic)
			require.Equal(t, "scheduled", second.Was)
			passes(t, second.Due.Add(time.Millisecond)) // else it would come too early instead
			s.redis.Obey(rule(faultproxy.Pass))
			timerstest.Eventually(t, soon, "the late claim holds the timer", func() bool { return s.get(t, topic).state == "firing" })
			if end == "cancelled" {
				s.conflict(t, topic)
			}
			s.redis.Obey(passAll)
			if end != "cancelled" {
				copies := s.heardOf(t, topic, 1)
				require.NotEqual(t, "1", copies[0].Header.Get("Timer-Attempt"))
				require.Equal(t, "second", string(copies[0].Data))
			}
			s.clean(t)
			require.Equal(t, boolToInt(end != "cancelled"), s.onStream(t, topic))
		})
	}
}

// Where neither events nor the reconciler's look get through, nothing fires:
// the control of what the table says of due. Afterwards everything does, once.
func TestNothingFiresWithoutEventsAndLooks(t *testing.T) {
	t.Parallel()
	s := table(t)
	var subscribing, looking atomic.Int64
	s.redis.Obey(func(c faultproxy.Command) faultproxy.Fault {
		switch {
		case c.Is("subscribe"):
			subscribing.Add(1)
			return faultproxy.CutFirst
		case c.Script == "due":
			looking.Add(1)
			return loading
		}
		return faultproxy.Pass
	})
	require.NoError(t, s.rdb.Do(t.Context(), "CLIENT", "KILL", "TYPE", "pubsub").Err())
	timerstest.Eventually(t, soon, "it is deaf and blind", func() bool { return subscribing.Load() > 0 && looking.Load() > 0 })
	for i := range 20 {
		s.set(t, request("timers.set.blind", strconv.Itoa(i), "@in 0s"))
	}
	before := looking.Load()
	timerstest.Eventually(t, soon, "more looks", func() bool { return looking.Load() > before+2 })
	require.Empty(t, s.copies("blind"))
	require.Len(t, s.list(t, "timers.list.blind", "").Timers, 20)
	s.redis.Obey(passAll)
	s.heardOf(t, "blind", 20)
	s.clean(t)
	require.Equal(t, 20, s.onStream(t, "blind"))
	require.Len(t, s.copies("blind"), 20)
}
