package endtoend

import (
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/stretchr/testify/require"

	"github.com/lapse-timers/lapse/timers/timerstest"
	"github.com/lapse-timers/lapse/timers/timerstest/faultproxy"
)

func newNATSProxy(t *testing.T, to *timerstest.NATSServer) *faultproxy.NATS {
	t.Helper()
	p, err := faultproxy.NewNATS(strings.TrimPrefix(to.URL(), "nats://"))
	require.NoError(t, err)
	t.Cleanup(p.Close)
	return p
}

// passAll is the rule that nothing befalls.
func passAll[T any](T) faultproxy.Fault { return faultproxy.Pass }

// cutNext cuts the replies of the next n commands that are the script's.
func cutNext(p *faultproxy.Redis, n int, script string) {
	p.Obey(func(c faultproxy.Command) faultproxy.Fault {
		if n > 0 && c.Script == script {
			n--
			return faultproxy.CutReply
		}
		return faultproxy.Pass
	})
}

// connectThrough connects a client of the service to NATS by way of a proxy.
func connectThrough(t *testing.T, p *faultproxy.NATS) *nats.Conn {
	t.Helper()
	nc, err := nats.Connect(p.URL(), nats.MaxReconnects(-1), nats.ReconnectWait(20*time.Millisecond), nats.ReconnectJitter(0, 0))
	require.NoError(t, err)
	t.Cleanup(nc.Close)
	return nc
}
