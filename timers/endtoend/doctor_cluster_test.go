package endtoend

import (
	"fmt"
	"net"
	"net/url"
	"strconv"
	"testing"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/require"

	"github.com/lapse-timers/lapse/timers/doctor"
	"github.com/lapse-timers/lapse/timers/timerstest"
	"github.com/lapse-timers/lapse/timers/wire"
)

// natsCluster starts three servers that are one cluster.
func natsCluster(t *testing.T) []*timerstest.NATSServer {
	t.Helper()
	var addrs []string
	var routes []*url.URL
	for range 3 {
		addrs = append(addrs, freeAddr(t))
		routes = append(routes, &url.URL{Scheme: "nats", Host: addrs[len(addrs)-1]})
	}
	var servers []*timerstest.NATSServer
	for i, addr := range addrs {
		host, port, err := net.SplitHostPort(addr)
		require.NoError(t, err)
		n, err := strconv.Atoi(port)
		require.NoError(t, err)
		servers = append(servers, timerstest.NATS(t, func(o *server.Options) {
			o.ServerName, o.Routes = fmt.Sprintf("n%d", i), routes
			o.Tags = []string{o.ServerName}
			o.Cluster = server.ClusterOpts{Name: "three", Host: host, Port: n}
		}))
	}
	return servers
}

// A stream of a cluster with a server that is away, and one without a leader.
func TestDoctorOnACluster(t *testing.T) {
	t.Parallel()
	rs, servers := timerstest.Redis(t), natsCluster(t)
	js, err := jetstream.New(servers[0].Connect(t))
	require.NoError(t, err)
	config := jetstream.StreamConfig{Name: "TIMERS", Subjects: []string{"timers.fired.>", "timers.dead.>"}, Replicas: 3}
	var stream jetstream.Stream
	timerstest.Eventually(t, soon, "the cluster takes a stream", func() bool {
		stream, err = js.CreateStream(t.Context(), config)
		return err == nil
	})
	d := deployed(rs.URL(), servers[0].URL())
	mended(t, d, "stream-replicas")
	mended(t, d, "jetstream-account")

	servers[2].Stop()
	timerstest.Eventually(t, soon, "the replica is missed", func() bool {
		info, err := stream.Info(t.Context())
		if err != nil || info.Cluster == nil || info.Cluster.Leader == "" {
			return false
		}
		for _, r := range info.Cluster.Replicas {
			if r.Name == "n2" && (r.Offline || !r.Current) {
				return true
			}
		}
		return false
	})
	// The cluster may be choosing who leads it, and answers nothing meanwhile.
	var f wire.Finding
	timerstest.Eventually(t, soon, "it is told", func() bool {
		f, _ = doctor.Run(t.Context(), d).Find("stream-replicas")
		return f.Status == wire.FindingWarn
	})
	require.Contains(t, f.Found, "n2")
	require.NotEmpty(t, f.Remedy)
	servers[2].Start()
	mended(t, d, "stream-replicas")

	// Of one replica, on a server that is away.
	timerstest.Eventually(t, soon, "the stream goes", func() bool { return js.DeleteStream(t.Context(), config.Name) == nil })
	config.Replicas, config.Placement = 1, &jetstream.Placement{Tags: []string{"n1"}}
	timerstest.Eventually(t, soon, "the cluster takes another", func() bool {
		_, err := js.CreateStream(t.Context(), config)
		return err == nil
	})
	servers[1].Stop()
	timerstest.Eventually(t, soon, "its server is missed", func() bool {
		f, _ = doctor.Run(t.Context(), d).Find("stream-replicas")
		return f.Status == wire.FindingFail
	})
	require.Contains(t, f.Found, "no leader")
	require.NotEmpty(t, f.Remedy)
	servers[1].Start()
	mended(t, d, "stream-replicas")
}
