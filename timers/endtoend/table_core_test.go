package endtoend

import (
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lapse-timers/lapse/timers/client"
	"github.com/lapse-timers/lapse/timers/timerstest"
	"github.com/lapse-timers/lapse/timers/timerstest/faultproxy"
)

// Core delivery has no acknowledgement but the answer to a flush: what was
// written and not answered for is unknown, what the server refused is refused.
func TestTableOfCoreDelivery(t *testing.T) {
	t.Parallel()
	for _, then := range []string{"left alone", "cancelled", "set anew"} {
		t.Run(then, func(t *testing.T) {
			t.Parallel()
			s := table(t, "LAPSE_DELIVERY=core", "LAPSE_LEASE=4s", "LAPSE_RETRY_MIN=20ms")
			for i, f := range []publishFault{
				{name: "never written, the connection is away", away: true, refused: true},
				{name: "cut before NATS sees it", publish: faultproxy.CutFirst},
				{name: "silent before NATS sees it", publish: faultproxy.Stall},
				{name: "taken, cut before the answer to the flush", ack: faultproxy.CutFirst, stored: true},
				{name: "taken, silent before the answer to the flush", ack: faultproxy.Stall, stored: true},
				{name: "not permitted", publish: faultproxy.Answer(`-ERR 'Permissions Violation for Publish to "timers.fired.%s"'`), refused: true},
			} {
				topic := fmt.Sprint("core", i)
				if f.name == "not permitted" {
					f.publish = faultproxy.Answer(fmt.Sprintf(`-ERR 'Permissions Violation for Publish to "timers.fired.%s"'`, topic))
				}
				rowOf(t, f.name, func(t *testing.T) {
					before := s.status(t, "timers").Counts
					s.fail(t, topic, f)
					was := "firing"
					if f.refused {
						was = "scheduled"
					}
					require.Equal(t, look{was, 1, "payload of x"}, s.look(t, topic))
					counts := s.status(t, "timers").Counts
					require.Equal(t, boolToInt(f.refused), counts.Refused-before.Refused)
					require.Equal(t, boolToInt(!f.refused), counts.Unknown-before.Unknown)
					timerstest.CheckInvariants(t, s.rdb, "timers")
					wanted := 1 + boolToInt(f.stored) // copies: nobody drops the second
					switch {
					case then == "cancelled" && f.refused:
						s.ok(t, about("timers.cancel."+topic, "x"))
						wanted = 0
					case then == "cancelled":
						s.conflict(t, topic)
						wanted = boolToInt(f.stored)
					case then == "set anew":
						require.Equal(t, was, s.setNow(t, topic).Was)
					}
					if f.publish == faultproxy.Stall || f.ack == faultproxy.Stall {
						s.nats.CutNamed(" delivery") // or it would stand until its pings are missed
					}
					s.clean(t)
					s.heardOf(t, topic, wanted)
					require.NoError(t, s.nc.Flush())
					copies := s.copies(topic)
					if then == "cancelled" {
						require.Len(t, copies, wanted)
						return
					}
					ids := map[string]int{}
					for _, m := range copies {
						ids[m.Header.Get("Nats-Msg-Id")]++
					}
					require.Len(t, ids, 1+boolToInt(then == "set anew" && f.stored), "the copies of a life have one id")
				})
			}
		})
	}
}

// Requests of the client are sent once: a set or a cancel whose answer is lost
// is unconfirmed, and neither the client nor its library sends it again, not even
// over a new connection.
func TestRequestsAreSentOnce(t *testing.T) {
	t.Parallel()
	s := table(t)
	way := newNATSProxy(t, s.ns)
	nc := connectThrough(t, way)
	c, err := client.New(nc, client.Timeout(300*time.Millisecond))
	require.NoError(t, err)
	for i, f := range []struct {
		name    string
		request faultproxy.Fault
		reply   faultproxy.Fault
		ran     bool
	}{
		{name: "cut before NATS sees it", request: faultproxy.CutFirst},
		{name: "lost before NATS sees it", request: faultproxy.Drop},
		{name: "the reply is lost", reply: faultproxy.Drop, ran: true},
		{name: "cut in the reply's place", reply: faultproxy.CutFirst, ran: true},
	} {
		t.Run(f.name, func(t *testing.T) {
			topic := fmt.Sprint("once", i)
			for _, verb := range []string{"set", "cancel"} {
				timerstest.Eventually(t, soon, "the client is connected", nc.IsConnected)
				s.setLater(t, topic)
				var sent atomic.Int64
				var inbox atomic.Pointer[string]
				way.Obey(func(m faultproxy.Message) faultproxy.Fault {
					switch {
					case m.Published() && m.Subject == "timers."+verb+"."+topic:
						sent.Add(1)
						inbox.Store(&m.Reply)
						return f.request
					case m.Delivered() && inbox.Load() != nil && m.Subject == *inbox.Load():
						return f.reply
					}
					return faultproxy.Pass
				})
				if verb == "set" {
					_, err = c.Set(t.Context(), topic, []byte("third"), client.In(time.Hour), client.ID("x"))
				} else {
					_, err = c.Cancel(t.Context(), topic, "x")
				}
				require.ErrorIs(t, err, client.ErrUnconfirmed)
				timerstest.Eventually(t, soon, "the client is connected", nc.IsConnected)
				require.NoError(t, nc.Flush())
				require.EqualValues(t, 1, sent.Load())
				want := look{"scheduled", 0, "second"}
				switch {
				case f.ran && verb == "set":
					want.payload = "third"
				case f.ran:
					want = look{}
				}
				require.Equal(t, want, s.look(t, topic))
				way.Obey(passAll)
			}
			if !f.ran {
				s.ok(t, about("timers.cancel."+topic, "x"))
			}
		})
	}
	s.clean(t)
}
