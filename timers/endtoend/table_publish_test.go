package endtoend

import (
	"encoding/json"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/require"

	"github.com/lapse-timers/lapse/timers/timerstest"
	"github.com/lapse-timers/lapse/timers/timerstest/faultproxy"
)

// publishFault is a way in which the delivery of one fire can fail, and what is
// known of it then.
type publishFault struct {
	name    string
	publish faultproxy.Fault // of the first publish of the timer
	ack     faultproxy.Fault // of what comes to its acknowledgement inbox, or of the answer to its flush
	away    bool             // NATS is away for the delivery
	stored  bool             // the stream has it
	refused bool             // it was definitely not delivered
	strange int              // replies that were no acknowledgement
	alike   bool             // known and stored as an earlier one is: what follows it is tried once
}

// publishFaults are the ways. Acknowledgements may take a second under the lease
// of these tables.
func publishFaults(topic string) []publishFault {
	return []publishFault{
		{name: "never written, the connection is away", away: true, refused: true},
		{name: "cut before NATS sees it", publish: faultproxy.CutFirst},
		{name: "lost before NATS sees it", publish: faultproxy.Drop},
		{name: "silent before NATS sees it", publish: faultproxy.Stall, alike: true},
		{name: "stored, cut before the acknowledgement", ack: faultproxy.CutFirst, stored: true},
		{name: "stored, the acknowledgement is lost", ack: faultproxy.Drop, stored: true},
		{name: "stored, silent before the acknowledgement", ack: faultproxy.Stall, stored: true, alike: true},
		{name: "stored, the acknowledgement comes too late", ack: faultproxy.Delay(1500 * time.Millisecond), stored: true},
		{name: "stored, the acknowledgement is of another stream", ack: faultproxy.Deliver(`{"stream":"OTHER","seq":1}`), stored: true, strange: 1, alike: true},
		{name: "not stored, another stream acknowledges", publish: faultproxy.Deliver(`{"stream":"OTHER","seq":1}`), strange: 1, alike: true},
		{name: "not stored, a subscriber answers", publish: faultproxy.Deliver(`thanks`), strange: 1, alike: true},
		{name: "the stream refuses", publish: faultproxy.Deliver(full), refused: true},
		{name: "nobody takes it", publish: faultproxy.Deliver("NATS/1.0 503\r\n\r\n"), refused: true},
		{name: "not permitted", publish: faultproxy.Answer(`-ERR 'Permissions Violation for Publish to "timers.fired.` + topic + `"'`), refused: true},
	}
}

// befallPublish makes the fault befall the first attempt of the topic.
func (s *tabled) befallPublish(topic string, f publishFault) {
	var published atomic.Int64
	var inbox atomic.Pointer[string]
	s.nats.Obey(func(m faultproxy.Message) faultproxy.Fault {
		switch {
		case m.Published() && m.Subject == "timers.fired."+topic:
			if published.Add(1) == 1 {
				inbox.Store(&m.Reply)
				return f.publish
			}
		case m.Delivered() && inbox.Load() != nil && m.Subject == *inbox.Load() && f.ack != faultproxy.Pass:
			return f.ack
		case m.Server && m.Op == "PONG" && delivering(m) && inbox.Load() != nil && *inbox.Load() == "":
			return f.ack // core delivery: the answer to the flush
		}
		return faultproxy.Pass
	})
}

// delivering says that a connection of the instance is the one that delivers.
func delivering(m faultproxy.Message) bool { return strings.HasSuffix(m.Conn, " delivery") }

// fail sets the timer x of the topic and has its first attempt fail. It returns
// when the outcome is written, and keeps further attempts off until the rule of
// the Redis proxy changes.
func (s *tabled) fail(t *testing.T, topic string, f publishFault) setReply {
	t.Helper()
	var first atomic.Pointer[string]
	var seen, reached atomic.Int64
	rule := func(f faultproxy.Fault) func(faultproxy.Command) faultproxy.Fault {
		return func(c faultproxy.Command) faultproxy.Fault {
			if c.Script != "claim" || !c.About(topic+":x") {
				return faultproxy.Pass
			}
			mine := s.token(c)
			if first.CompareAndSwap(nil, &mine); *first.Load() != mine {
				return loading
			}
			seen.Add(1)
			if f.Passes() {
				reached.Add(1)
			}
			return f
		}
	}
	if f.away {
		s.redis.Obey(rule(faultproxy.Hold))
	} else {
		s.redis.Obey(rule(faultproxy.Pass))
		s.befallPublish(topic, f)
	}
	set := s.set(t, request("timers.set."+topic, "x", "@in 20ms"))
	timerstest.Eventually(t, soon, "the claim", func() bool { return seen.Load() > 0 })
	if f.away {
		s.nats.Obey(func(m faultproxy.Message) faultproxy.Fault {
			if delivering(m) {
				return faultproxy.CutFirst
			}
			return faultproxy.Pass
		})
		s.nats.CutNamed(" delivery")
		readySays(t, s.lapse, 503, "the delivery connection to NATS is cut")
		s.redis.Obey(rule(faultproxy.Pass))
	}
	timerstest.Eventually(t, soon, "the attempt", func() bool { return reached.Load() > 0 && s.get(t, topic).attempts > 0 })
	s.settled(t)
	return set
}

// Refused is scheduled again, and a cancel of it is OK; what may have been
// delivered stays firing. Whatever becomes of the first attempt, the stream has
// the life once in the end.
func TestTableOfPublishes(t *testing.T) {
	t.Parallel()
	for _, then := range []string{"left alone", "cancelled", "set anew"} {
		t.Run(then, func(t *testing.T) {
			t.Parallel()
			s := table(t, "LAPSE_LEASE=4s", "LAPSE_RETRY_MIN=20ms")
			for i := range publishFaults("") {
				topic := fmt.Sprint("publish", i)
				f := publishFaults(topic)[i]
				if f.alike && then != "left alone" {
					continue
				}
				rowOf(t, f.name, func(t *testing.T) {
					before := s.status(t, "timers").Counts
					set := s.fail(t, topic, f)
					was := "firing"
					if f.refused {
						was = "scheduled"
					}
					require.Equal(t, look{was, 1, "payload of x"}, s.look(t, topic))
					counts := s.status(t, "timers").Counts
					require.Equal(t, boolToInt(f.refused), counts.Refused-before.Refused)
					require.Equal(t, boolToInt(!f.refused), counts.Unknown-before.Unknown)
					require.Equal(t, before.Fired, counts.Fired)
					require.Equal(t, boolToInt(f.stored), s.onStream(t, topic))
					timerstest.CheckInvariants(t, s.rdb, "timers")

					wanted := 1
					switch {
					case then == "cancelled" && f.refused:
						var gone setReply
						require.NoError(t, json.Unmarshal(s.ok(t, about("timers.cancel."+topic, "x")).Data, &gone))
						require.Equal(t, set.Rev, gone.Rev)
						wanted = 0
					case then == "cancelled":
						s.conflict(t, topic)
						wanted = boolToInt(f.stored)
						// Nobody is at it, so nothing is left to say it twice.
						isRefusal(t, s.ask(t, about("timers.cancel."+topic, "x")), 404, "not_found")
					case then == "set anew":
						require.Equal(t, was, s.setNow(t, topic).Was)
						wanted = 1 + boolToInt(f.stored)
					}
					if f.publish == faultproxy.Stall || f.ack == faultproxy.Stall {
						s.nats.CutNamed(" delivery") // or it would stand until its pings are missed
					}
					s.clean(t)
					require.Equal(t, wanted, s.onStream(t, topic))
					after := s.status(t, "timers").Counts
					require.Equal(t, f.strange, after.Strange-before.Strange)
					if then != "cancelled" {
						require.Equal(t, 1, after.Fired-before.Fired)
						last := s.copies(topic)[len(s.copies(topic))-1]
						if then == "set anew" {
							require.Equal(t, "second", string(last.Data))
						} else {
							// A machine that is busy may need a third.
							require.NotEqual(t, "1", last.Header.Get("Timer-Attempt"))
							if f.stored {
								require.Equal(t, 1, after.Duplicates-before.Duplicates, "it is counted apart")
							}
						}
					}
				})
			}
		})
	}
}

// An acknowledgement that names our stream counts, whoever sends it: the control
// that shows what the strictness above is for. The timer is gone, and the stream
// never had it.
func TestForgedAcknowledgementLosesTheTimer(t *testing.T) {
	t.Parallel()
	s := table(t)
	s.befallPublish("forged", publishFault{publish: faultproxy.Deliver(`{"stream":"TIMERS","seq":1}`)})
	s.set(t, request("timers.set.forged", "x", "@in 0s"))
	timerstest.Eventually(t, soon, "it counts as delivered", func() bool { return s.get(t, "forged") == look{} })
	s.clean(t)
	require.Zero(t, s.onStream(t, "forged"))
}

// Once an attempt may have been delivered, a later one that is refused does not
// undo the doubt, in this life.
func TestDoubtLastsForTheLife(t *testing.T) {
	t.Parallel()
	s := table(t, "LAPSE_RETRY_MIN=20ms", "LAPSE_RETRY_MAX=100ms")
	var published atomic.Int64
	s.nats.Obey(func(m faultproxy.Message) faultproxy.Fault {
		switch {
		case !m.Published() || m.Subject != "timers.fired.doubt":
			return faultproxy.Pass
		case published.Add(1) == 1:
			return faultproxy.CutFirst
		}
		return faultproxy.Deliver(full)
	})
	s.set(t, request("timers.set.doubt", "x", "@in 0s"))
	timerstest.Eventually(t, soon, "it is refused again and again", func() bool { return s.status(t, "timers").Counts.Refused > 3 })
	require.Equal(t, "firing", s.look(t, "doubt").state)
	s.conflict(t, "doubt")
	tried := published.Load()
	s.settled(t)
	require.Equal(t, "", s.look(t, "doubt").state)
	require.LessOrEqual(t, published.Load(), tried+1, "no further attempt but the one under way")

	// The next life has no doubt.
	require.False(t, s.setNow(t, "doubt").Replaced)
	timerstest.Eventually(t, soon, "it is refused too", func() bool { return s.get(t, "doubt").state == "scheduled" })
	s.clean(t)
	require.Equal(t, 1, s.onStream(t, "doubt"))
	require.Equal(t, "second", string(s.copies("doubt")[0].Data))
}

// The first acknowledgement of each of many fires is lost. The copies have the
// same id, and the stream stores them once; one without a duplicate window to
// speak of stores them twice, which is the control.
func TestFirstAcknowledgementsAreLost(t *testing.T) {
	t.Parallel()
	const n = 50
	for _, c := range []struct {
		name   string
		window time.Duration
		stored int
	}{
		{"stored once", 2 * time.Minute, n},
		{"without a duplicate window", 100 * time.Millisecond, 2 * n},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			s := table(t, "LAPSE_LEASE=4s", "LAPSE_STREAM_MAX_AGE=1h")
			js, err := jetstream.New(s.nc)
			require.NoError(t, err)
			stream, err := js.Stream(t.Context(), "TIMERS")
			require.NoError(t, err)
			config := stream.CachedInfo().Config
			config.Duplicates = c.window
			// Made anew: one that has ids of the old window forgets them by it.
			// Lapse makes it anew, too.
			timerstest.Eventually(t, soon, "the stream is ours", func() bool {
				_ = js.DeleteStream(t.Context(), "TIMERS")
				_, err = js.CreateStream(t.Context(), config)
				return err == nil
			})
			var lost atomic.Int64
			inboxes, seen := map[string]bool{}, map[string]bool{} // the rule is asked one at a time
			s.nats.Obey(func(m faultproxy.Message) faultproxy.Fault {
				if m.Published() && m.Subject == "timers.fired.lost" {
					_, id, _ := strings.Cut(m.Header, "\r\nNats-Msg-Id: ")
					if id, _, _ = strings.Cut(id, "\r\n"); !seen[id] {
						seen[id], inboxes[m.Reply] = true, true
					}
				}
				if m.Delivered() && inboxes[m.Subject] {
					lost.Add(1)
					return faultproxy.Drop
				}
				return faultproxy.Pass
			})
			for i := range n {
				s.set(t, request("timers.set.lost", fmt.Sprint(i), "@in 100ms"))
			}
			s.heardOf(t, "lost", 2*n)
			s.clean(t)
			require.EqualValues(t, n, lost.Load())
			require.Equal(t, c.stored, s.onStream(t, "lost"))
			counts := s.status(t, "timers").Counts
			require.Equal(t, n, counts.Unknown)
			require.Equal(t, 2*n-c.stored, counts.Duplicates, "counted apart")
			ids := map[string]int{}
			for _, m := range s.copies("lost") {
				ids[m.Header.Get("Nats-Msg-Id")]++
			}
			require.Len(t, ids, n)
		})
	}
}
