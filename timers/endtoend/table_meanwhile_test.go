package endtoend

import (
	"fmt"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lapse-timers/lapse/timers/timerstest"
	"github.com/lapse-timers/lapse/timers/timerstest/faultproxy"
)

// A step of a fire has failed and its repetition is yet to come: what a caller
// is told in that moment, and what becomes of it.
func TestTableOfMeanwhile(t *testing.T) {
	t.Parallel()
	s := table(t)
	type end struct {
		said   string // answer to the cancel: "ok", "conflict", "not found"; "was" of the set
		stored int    // messages on the stream in the end
	}
	for row, step := range []struct {
		name          string
		script        string
		fault         faultproxy.Fault
		publish, ack  faultproxy.Fault // of the first attempt
		state         string
		left          int // messages on the stream when nobody interferes
		cancel, setup end
	}{
		// The claim ran, and its claimer does not know yet. Stopped, the one attempt
		// that is under way may still be made. A new life ends it before it was made.
		{name: "claimed, the reply is lost", script: "claim", fault: faultproxy.CutReply,
			state: "firing", left: 1, cancel: end{"conflict", 1}, setup: end{"firing", 1}},
		{name: "claim never seen", script: "claim", fault: faultproxy.CutFirst,
			state: "scheduled", left: 1, cancel: end{"ok", 0}, setup: end{"scheduled", 1}},
		{name: "delivered, the ack is never seen", script: "ack", fault: faultproxy.CutFirst,
			state: "firing", left: 1, cancel: end{"conflict", 1}, setup: end{"firing", 2}},
		{name: "delivered and acked, the reply is lost", script: "ack", fault: faultproxy.CutReply,
			state: "", left: 1, cancel: end{"not found", 1}, setup: end{"", 2}},
		{name: "refused, the release is never seen", script: "release", fault: faultproxy.CutFirst, publish: faultproxy.Deliver(full),
			state: "firing", left: 1, cancel: end{"conflict", 0}, setup: end{"firing", 1}},
		{name: "refused and released, the reply is lost", script: "release", fault: faultproxy.CutReply, publish: faultproxy.Deliver(full),
			state: "scheduled", left: 1, cancel: end{"ok", 0}, setup: end{"scheduled", 1}},
		{name: "unknown, the release is never seen", script: "release", fault: faultproxy.CutFirst, ack: faultproxy.CutFirst,
			state: "firing", left: 1, cancel: end{"conflict", 1}, setup: end{"firing", 2}},
		{name: "unknown and released, the reply is lost", script: "release", fault: faultproxy.CutReply, ack: faultproxy.CutFirst,
			state: "firing", left: 1, cancel: end{"conflict", 1}, setup: end{"firing", 2}},
	} {
		for _, then := range []string{"left alone", "cancelled", "set anew"} {
			topic := fmt.Sprint("meanwhile", row, then[0:1])
			rowOf(t, step.name+", "+then, func(t *testing.T) {
				s.befallPublish(topic, publishFault{publish: step.publish, ack: step.ack})
				b := &befalls{script: step.script, member: topic + ":x", faults: []faultproxy.Fault{step.fault}, claims: step.script == "release"}
				b.frozen.Store(true)
				s.redis.Obey(b.rule)
				s.set(t, request("timers.set."+topic, "x", "@in 20ms"))
				timerstest.Eventually(t, soon, "the repetition", func() bool { return b.seen.Load() > 1 })
				got := s.look(t, topic)
				require.Equal(t, step.state, got.state)
				if step.state != "" {
					require.Equal(t, boolToInt(step.name != "claim never seen"), got.attempts)
				}
				timerstest.CheckInvariants(t, s.rdb, "timers")
				want := step.left
				switch then {
				case "cancelled":
					want = step.cancel.stored
					switch step.cancel.said {
					case "ok":
						s.ok(t, about("timers.cancel."+topic, "x"))
					case "conflict":
						s.conflict(t, topic)
					default:
						isRefusal(t, s.ask(t, about("timers.cancel."+topic, "x")), 404, "not_found")
					}
				case "set anew":
					want = step.setup.stored
					set := s.setLater(t, topic)
					require.Equal(t, step.setup.said, set.Was)
					// What is repeated of the old life must not touch the new one.
					tries := b.seen.Load()
					b.frozen.Store(false)
					timerstest.Eventually(t, soon, "another repetition", func() bool { return b.seen.Load() > tries || step.script == "claim" })
					s.settled(t)
					require.Equal(t, look{"scheduled", 0, "second"}, s.look(t, topic))
					s.comeDue(t, topic)
				}
				s.clean(t)
				require.Equal(t, want, s.onStream(t, topic))
				if then == "set anew" {
					copies := s.copies(topic)
					require.Equal(t, "second", string(copies[len(copies)-1].Data))
				}
			})
		}
	}
}

// A cancel that meets an attempt under way stops what would follow it, whatever
// becomes of it; a set begins a new life that the end of the old one does not
// touch.
func TestTableOfAttemptsUnderWay(t *testing.T) {
	t.Parallel()
	s := table(t)
	for row, outcome := range []struct {
		name   string
		then   faultproxy.Fault // of the publish, which was held
		stored int
	}{
		{"delivered", faultproxy.Pass, 1},
		{"refused", faultproxy.Deliver(full), 0},
		{"cut", faultproxy.CutFirst, 0},
	} {
		for _, then := range []string{"cancelled", "set anew"} {
			topic := fmt.Sprint("underway", row, then[0:1])
			rowOf(t, outcome.name+", "+then, func(t *testing.T) {
				var published atomic.Int64
				rule := func(f faultproxy.Fault) func(faultproxy.Message) faultproxy.Fault {
					return func(m faultproxy.Message) faultproxy.Fault {
						if m.Published() && m.Subject == "timers.fired."+topic && string(m.Body) != "second" {
							published.Add(1)
							return f
						}
						return faultproxy.Pass
					}
				}
				s.nats.Obey(rule(faultproxy.Hold))
				s.set(t, request("timers.set."+topic, "x", "@in 20ms"))
				timerstest.Eventually(t, soon, "it is being published", func() bool { return published.Load() > 0 })
				require.Equal(t, look{"firing", 1, "payload of x"}, s.look(t, topic))
				wanted := outcome.stored
				if then == "cancelled" {
					s.conflict(t, topic)
					s.conflict(t, topic) // and again, while the claim is alive
				} else {
					require.Equal(t, "firing", s.setLater(t, topic).Was)
					wanted++
				}
				s.nats.Obey(rule(outcome.then))
				s.settled(t)
				if then == "set anew" {
					timerstest.Eventually(t, soon, "the old attempt is over", func() bool { return s.inFlight(t) == 0 })
					require.Equal(t, look{"scheduled", 0, "second"}, s.look(t, topic))
					s.comeDue(t, topic)
				}
				s.clean(t)
				require.Equal(t, wanted, s.onStream(t, topic))
				require.LessOrEqual(t, published.Load(), int64(2), "held and judged anew, and not tried again")
			})
		}
	}
}
