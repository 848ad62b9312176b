package endtoend

import (
	"fmt"
	"net"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/lapse-timers/lapse/timers/client"
	"github.com/lapse-timers/lapse/timers/timerstest"
)

// replicaOf starts a replica and waits until it has caught up.
func replicaOf(t *testing.T, master *timerstest.RedisServer) *timerstest.RedisServer {
	t.Helper()
	host, port, err := net.SplitHostPort(master.Addr())
	require.NoError(t, err)
	replica := timerstest.RedisTCP(t, "--replicaof", host+" "+port)
	timerstest.Eventually(t, soon, "the replica has caught up", func() bool {
		return master.Client().Do(t.Context(), "WAIT", 1, 100).Val() == int64(1)
	})
	return replica
}

// An instance that was pointed at a replica by mistake says so, takes no
// requests, and doubles nothing of what the others do.
func TestInstanceOnAReplica(t *testing.T) {
	t.Parallel()
	const n = 100
	master, ns := timerstest.RedisTCP(t), timerstest.NATS(t)
	timerstest.LapseOn(t, master.URL(), ns.URL())
	replica := replicaOf(t, master)
	addr := freeAddr(t)
	astray := timerstest.Lapse(t, "LAPSE_REDIS_URL="+replica.URL(), "LAPSE_NATS_URL="+ns.URL(), "LAPSE_HTTP_LISTEN="+addr)
	astray.Launch()
	astray.HTTP = addr
	readySays(t, astray, 503, "waiting for Redis")
	timerstest.Eventually(t, soon, "the log says why", func() bool { return strings.Contains(astray.Log(), "read only replica") })
	nc := ns.Connect(t)
	c, l := newClient(t, nc), newLedger()
	r := receive(t, c)
	require.NoError(t, nc.Flush())
	setAll(t, c, l, "replica", n, []byte("x"), func(int) client.When { return client.In(500 * time.Millisecond) })
	r.await(t, n, soon)
	nothingLeft(t, master.Client())
	l.check(t, onStream(t, nc))
	require.NoError(t, nc.Flush())
	require.Len(t, r.all(), n, "each was published once")
}

// What was answered OK with a replica asked for is there after a failover: sets
// fire, once, and cancelled timers do not. A replica that stands still meanwhile
// costs answers, and no promise.
func TestAnswersSurviveAFailover(t *testing.T) {
	t.Parallel()
	const n = 400
	master, ns := timerstest.RedisTCP(t), timerstest.NATS(t)
	replica := replicaOf(t, master)
	old := timerstest.LapseOn(t, master.URL(), ns.URL(), "LAPSE_MIN_REPLICAS=1", "LAPSE_REQUEST_TIMEOUT=2s")
	nc := ns.Connect(t)
	c, a := newClient(t, nc), newAttempts()
	a.setMany(t, c, "cancelled", 50, nil, anHourAhead)
	require.Equal(t, 50, a.count(delivered))
	for _, v := range a.lives {
		_, err := c.Cancel(t.Context(), v.topic, v.id)
		require.NoError(t, err)
		a.ledger.set(v, never)
	}

	var asked atomic.Int64
	done := make(chan error, 1)
	go func() {
		for i := range n {
			if err := a.set(t, c, "failover", fmt.Sprint("failover", i), nil, anHourAhead(i)); err != nil {
				done <- err
				return
			}
			asked.Add(1)
		}
		done <- nil
	}()
	timerstest.Eventually(t, soon, "some are set", func() bool { return asked.Load() > n/4 })
	replica.Pause() // it is connected, and takes nothing
	stood := asked.Load()
	timerstest.Eventually(t, soon, "sets are not confirmed meanwhile", func() bool { return asked.Load() > stood+2 })
	replica.Resume()
	timerstest.Eventually(t, soon, "sets go on", func() bool { return asked.Load() > n/2 })
	master.Kill()
	require.NoError(t, <-done)
	old.Kill()
	promise := a.count(delivered)
	t.Logf("%d sets answered OK, %d may be stored, %d refused", promise, len(a.unsure), len(a.refused))
	require.NotEmpty(t, a.unsure)
	require.NotEmpty(t, a.refused)

	require.NoError(t, replica.Client().ReplicaOf(t.Context(), "NO", "ONE").Err())
	rdb := redis.NewClient(&redis.Options{Addr: replica.Addr()})
	defer rdb.Close()
	timerstest.LapseOn(t, replica.URL(), ns.URL())
	fallDue(t, rdb, a.ledger, 100*time.Millisecond, time.Second)
	a.allOnce(t, nc, rdb)
	require.Equal(t, promise, a.count(delivered))
}

// Several instances that stood still together find the same overdue timers at
// the same moment: each is claimed by one of them.
func TestInstancesGoOnTogether(t *testing.T) {
	t.Parallel()
	const n, instances = 200, 4
	rs, ns := timerstest.Redis(t), timerstest.NATS(t)
	var all []*timerstest.LapseServer
	for range instances {
		all = append(all, timerstest.LapseOn(t, rs.URL(), ns.URL()))
	}
	nc := ns.Connect(t)
	c, a := newClient(t, nc), newAttempts()
	r := receive(t, c)
	a.setMany(t, c, "together", n, nil, anHourAhead)
	for _, l := range all {
		l.Pause()
	}
	passes(t, fallDue(t, rs.Client(), a.ledger, 0, 0).Add(300*time.Millisecond))
	for _, l := range all {
		l.Resume()
	}
	a.allOnce(t, nc, rs.Client())
	require.NoError(t, nc.Flush())
	require.Len(t, r.await(t, n, soon), n, "each was published once")
}

// Sets without a reply subject come faster than they can be stored: what was
// taken is stored, and what was not is counted.
func TestSetsThatNobodyAwaits(t *testing.T) {
	t.Parallel()
	n := timerstest.Size(5000, 20_000)
	s := serve(t, timerstest.NATS(t))
	began := time.Now()
	for i := range n {
		require.NoError(t, s.nc.PublishMsg(request("timers.set.flood", fmt.Sprint(i), "@in 1h")))
	}
	require.NoError(t, s.nc.Flush())
	var set endpointStats
	timerstest.Eventually(t, soon, "all are stored or counted", func() bool {
		set = s.stats(t)["set"]
		return set.Requests == int64(n) && s.rdb.ZCard(t.Context(), "timers:{0}:due").Val() == set.Requests-set.Errors
	})
	t.Logf("%d sets in %v: %d stored, %d refused", n, time.Since(began).Round(time.Millisecond), set.Requests-set.Errors, set.Errors)
	require.EqualValues(t, n, set.Silent)
	require.ElementsMatch(t, s.connections, s.connected(t), "a connection of the service was dropped")
	timerstest.CheckInvariants(t, s.rdb, "timers")
}
