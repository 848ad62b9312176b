package endtoend

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lapse-timers/lapse/timers/client"
	"github.com/lapse-timers/lapse/timers/timerstest"
	"github.com/lapse-timers/lapse/timers/timerstest/faultproxy"
)

// A connection to NATS that is cut while an instance starts is no reason to
// end: wherever it is cut, it comes up.
func TestConnectionsAreCutAtEveryStepOfTheStart(t *testing.T) {
	t.Parallel()
	rs, ns := timerstest.Redis(t), timerstest.NATS(t)
	proxy := newNATSProxy(t, ns)
	for step := 2; step < 26; step += timerstest.Size(11, 1) {
		sent := 0
		proxy.Obey(func(m faultproxy.Message) faultproxy.Fault {
			if !m.Delivered() {
				if sent++; sent == step {
					return faultproxy.CutFirst
				}
			}
			return faultproxy.Pass
		})
		l := timerstest.LapseOn(t, rs.URL(), proxy.URL(), quickExit)
		ready(t, l, 200)
		nc := ns.Connect(t)
		_, err := newClient(t, nc).Set(t.Context(), "start", nil, client.In(time.Hour), client.ID("x"))
		require.NoError(t, err, "step %d", step)
		l.Stop()
		require.Zero(t, l.Wait(), "step %d", step)
	}
}
