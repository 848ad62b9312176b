package endtoend

import (
	"fmt"
	"os"
	"strconv"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lapse-timers/lapse/timers/timerstest"
	"github.com/lapse-timers/lapse/timers/timerstest/faultproxy"
)

// know makes Redis know the scripts, so that a row meets no NOSCRIPT but its own.
func (s *tabled) know(t *testing.T, scripts ...string) {
	t.Helper()
	prelude, err := os.ReadFile("../lua/prelude.lua")
	require.NoError(t, err)
	for _, script := range scripts {
		text, err := os.ReadFile("../lua/" + script + ".lua")
		require.NoError(t, err)
		require.NoError(t, s.rdb.ScriptLoad(t.Context(), string(prelude)+string(text)).Err())
	}
}

// die sets the timer x of the topic, whose only attempt the stream refuses.
func (s *tabled) die(t *testing.T, topic string) setReply {
	t.Helper()
	rule, _ := firstPublish(topic, faultproxy.Deliver(full))
	s.nats.Obey(rule)
	return s.set(t, request("timers.set."+topic, "x", "@in 0s"))
}

// A burial that fails is repeated until it is written: the timer is dead once,
// told of once and counted once, long before the lease is over, which is half a
// minute here; and a retry or a cancel finds it whatever became of the reply.
func TestTableOfBurials(t *testing.T) {
	t.Parallel()
	s := table(t, "LAPSE_MAX_ATTEMPTS=1")
	s.know(t, "bury", "retry")
	told := s.hear(t, "timers.dead.>")
	for i, f := range redisFaults() {
		topic := fmt.Sprint("bury", i)
		rowOf(t, f.name, func(t *testing.T) {
			before := s.deadStatus(t)
			b := &befalls{script: "bury", member: topic + ":x", faults: f.faults}
			s.redis.Obey(b.rule)
			set := s.die(t, topic)
			m := next(t, told)
			require.Equal(t, "timers.dead."+topic, m.Subject)
			require.Equal(t, strconv.FormatInt(set.Rev, 10), m.Header.Get("Timer-Rev"))
			require.Equal(t, "payload of x", string(m.Data))
			if f.late {
				// It runs once nobody waits for it any more, and changes nothing.
				timerstest.Eventually(t, soon, "it was repeated", func() bool { return b.reached.Load() > 0 })
				b.release(s)
			}
			timerstest.Eventually(t, soon, "the fault", func() bool { return int(b.seen.Load()) >= len(f.faults) })
			s.redis.Obey(passAll)
			require.Equal(t, look{"dead", 1, "payload of x"}, s.look(t, topic))
			timerstest.Eventually(t, soon, "it is counted", func() bool { return s.deadStatus(t).Counts.Dead > before.Counts.Dead })
			after := s.deadStatus(t)
			require.Equal(t, 1, after.Dead)
			require.Equal(t, 1, after.Counts.Dead-before.Counts.Dead)
			require.Equal(t, 1, after.Counts.Refused-before.Counts.Refused)
			require.Zero(t, after.Counts.Unannounced+after.Counts.Unknown)
			timerstest.CheckInvariants(t, s.rdb, "timers")
			if i%2 == 0 {
				s.ok(t, about("timers.retry."+topic, "x"))
				require.Equal(t, strconv.FormatInt(set.Rev, 10), s.heardOf(t, topic, 1)[0].Header.Get("Timer-Rev"), "the same life")
			} else {
				s.ok(t, about("timers.cancel."+topic, "x"))
			}
			s.clean(t)
			require.Equal(t, 1-i%2, s.onStream(t, topic))
			require.NoError(t, s.nc.Flush())
			again, _, err := told.Pending()
			require.NoError(t, err)
			require.Zero(t, again, "it was told of twice")
		})
	}
}

// A retry reaches Redis once at most, whatever becomes of its reply, and its
// answer is true: the timer is dead still, or is delivered, once.
func TestTableOfRetries(t *testing.T) {
	t.Parallel()
	s := table(t, "LAPSE_MAX_ATTEMPTS=1")
	s.know(t, "bury", "retry")
	dead := look{"dead", 1, "payload of x"}
	for i, f := range redisFaults() {
		topic := fmt.Sprint("retry", i)
		rowOf(t, f.name, func(t *testing.T) {
			set := s.die(t, topic)
			s.isDead(t, topic, "x")
			b := &befalls{script: "retry", member: topic + ":x", faults: f.faults}
			s.redis.Obey(b.rule)
			reply := s.ask(t, about("timers.retry."+topic, "x"))
			if f.late {
				require.Zero(t, b.reached.Load())
				require.Equal(t, dead, s.look(t, topic), "before it is carried out late")
				b.release(s)
			}
			if f.code != 0 {
				isRefusal(t, reply, f.code, f.word)
			} else {
				var said setReply
				strict(t, reply.Data, &said)
				require.Equal(t, setReply{Topic: topic, ID: "x", Due: set.Due, Rev: set.Rev}, said)
			}
			if f.ran {
				s.heardOf(t, topic, 1)
			} else {
				require.Equal(t, dead, s.look(t, topic))
				timerstest.CheckInvariants(t, s.rdb, "timers")
			}
			require.EqualValues(t, boolToInt(f.ran), b.reached.Load(), "how often it reached Redis")
			s.redis.Obey(passAll)
			if !f.ran {
				s.ok(t, about("timers.retry."+topic, "x"))
				s.heardOf(t, topic, 1)
			}
			s.clean(t)
			require.Equal(t, 1, s.onStream(t, topic))
			require.Len(t, s.copies(topic), 1)
			isRefusal(t, s.ask(t, about("timers.retry."+topic, "x")), 404, "not_found")
		})
	}
}
