package endtoend

import (
	"fmt"
	"sync/atomic"
	"testing"

	"github.com/nats-io/nats.go"
	"github.com/stretchr/testify/require"

	"github.com/lapse-timers/lapse/timers/timerstest"
	"github.com/lapse-timers/lapse/timers/timerstest/faultproxy"
)

// What was answered is true, and a set or a cancel reaches Redis once at most,
// whatever becomes of its reply.
func TestTableOfRequests(t *testing.T) {
	t.Parallel()
	for _, step := range []struct {
		name, script string
		before       look // of the timer that is there
		after        look // once the step took effect
	}{
		{"set", "set", look{}, look{"scheduled", 0, "second"}},
		{"replace", "set", look{"scheduled", 0, "payload of x"}, look{"scheduled", 0, "second"}},
		{"cancel", "cancel", look{"scheduled", 0, "payload of x"}, look{}},
	} {
		t.Run(step.name, func(t *testing.T) {
			t.Parallel()
			s := table(t)
			row := 0
			run := func(name string, f redisFault, between func(t *testing.T, topic string, b *befalls) *nats.Msg) {
				row++
				topic := fmt.Sprint(step.name, row)
				rowOf(t, name, func(t *testing.T) {
					var old setReply
					if step.before != (look{}) {
						old = s.set(t, request("timers.set."+topic, "x", "@in 1h"))
					}
					b := &befalls{script: step.script, member: topic + ":x", faults: f.faults}
					s.redis.Obey(b.rule)
					reply := between(t, topic, b)
					want := step.before
					if f.ran {
						want = step.after
					}
					if f.code != 0 {
						isRefusal(t, reply, f.code, f.word)
					} else {
						require.Empty(t, reply.Header.Get("Nats-Service-Error"))
						var said setReply
						strict(t, reply.Data, &said)
						switch step.name {
						case "replace":
							require.True(t, said.Replaced)
							require.Equal(t, "scheduled", said.Was)
							require.Greater(t, said.Rev, old.Rev)
						case "set":
							require.False(t, said.Replaced, "a repetition met what the first one had stored")
						case "cancel":
							require.Equal(t, old.Rev, said.Rev)
						}
					}
					timerstest.Eventually(t, soon, "the step to have taken effect, or not", func() bool {
						return b.reached.Load() >= int64(boolToInt(f.ran))
					})
					if f.late {
						timerstest.Eventually(t, soon, "the late one is carried out", func() bool { return s.get(t, topic) == want })
					}
					require.Equal(t, want, s.look(t, topic))
					require.EqualValues(t, boolToInt(f.ran), b.reached.Load(), "how often it reached Redis")
					timerstest.CheckInvariants(t, s.rdb, "timers")

					// The hour has passed.
					if want != (look{}) {
						s.comeDue(t, topic)
						s.heardOf(t, topic, 1)
					}
					s.clean(t)
					require.Equal(t, boolToInt(want != look{}), s.onStream(t, topic))
					for _, m := range s.copies(topic) {
						require.Equal(t, want.payload, string(m.Data))
					}
					require.EqualValues(t, boolToInt(f.ran), b.reached.Load(), "how often it reached Redis, in the end")
				})
			}
			send := func(topic string) *nats.Msg {
				if step.name == "cancel" {
					return about("timers.cancel."+topic, "x")
				}
				m := request("timers.set."+topic, "x", "@in 1h")
				m.Data = []byte("second")
				return m
			}
			for _, f := range redisFaults() {
				run(f.name, f, func(t *testing.T, topic string, b *befalls) *nats.Msg {
					reply := s.ask(t, send(topic))
					if f.late {
						require.Zero(t, b.reached.Load())
						require.Equal(t, step.before, s.look(t, topic), "before it is carried out late")
						b.release(s)
					}
					return reply
				})
			}
			run("connections are refused", redisFault{code: 503, word: "unavailable"}, func(t *testing.T, topic string, _ *befalls) *nats.Msg {
				s.redis.Refuse()
				reply := s.ask(t, send(topic))
				require.NoError(t, s.redis.Admit())
				ready(t, s.lapse, 200)
				return reply
			})
		})
	}
}

// A read that fails says that it cannot be read now, and changes nothing.
func TestTableOfReads(t *testing.T) {
	t.Parallel()
	s := table(t)
	s.set(t, request("timers.set.reads", "x", "@in 1h"))
	for _, read := range []struct {
		name string
		ask  *nats.Msg
		is   func(faultproxy.Command) bool
		text bool // a script: after NOSCRIPT its text is sent
	}{
		{"get", about("timers.get.reads", "x"), func(c faultproxy.Command) bool { return c.Is("hmget") && c.About("reads:x") }, false},
		{"list", about("timers.list.reads", ""), func(c faultproxy.Command) bool { return c.Script == "list" }, true},
	} {
		for _, f := range redisFaults() {
			if f.late || read.text && (f.faults[0] == faultproxy.Stall || f.faults[0] == faultproxy.DropReply) {
				continue // a read that runs late has nobody to tell; silence is the same for both
			}
			rowOf(t, read.name+" "+f.name, func(t *testing.T) {
				var seen atomic.Int64
				s.redis.Obey(func(c faultproxy.Command) faultproxy.Fault {
					if !read.is(c) {
						return faultproxy.Pass
					}
					if n := int(seen.Add(1)); n <= len(f.faults) {
						return f.faults[n-1]
					}
					return faultproxy.Pass
				})
				reply := s.ask(t, read.ask)
				if f.code == 0 && (read.text || f.name == "slow") {
					require.Empty(t, reply.Header.Get("Nats-Service-Error"))
				} else {
					isRefusal(t, reply, 503, "unavailable")
				}
				s.redis.Obey(passAll)
				require.Equal(t, look{"scheduled", 0, "payload of x"}, s.look(t, "reads"))
				timerstest.CheckInvariants(t, s.rdb, "timers")
			})
		}
	}
	s.ok(t, about("timers.cancel.reads", "x"))
	s.clean(t)
}
