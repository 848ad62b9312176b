package endtoend

import (
	"encoding/json"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/lapse-timers/lapse/timers/client"
	"github.com/lapse-timers/lapse/timers/timerstest"
	"github.com/lapse-timers/lapse/timers/wire"
)

// readyz reads /readyz until it is as wanted.
func readyz(t *testing.T, l *timerstest.LapseServer, code int, part, status string) wire.HealthReply {
	t.Helper()
	var h wire.HealthReply
	timerstest.Eventually(t, 20*time.Second, "/readyz has "+part+" "+status, func() bool {
		got, body, err := l.Ready()
		require.NoError(t, err)
		h = wire.HealthReply{}
		require.NoError(t, json.Unmarshal([]byte(body), &h))
		return got == code && h.Parts[part].Status == status
	})
	return h
}

// A master that became a replica answers a PING, and takes no timer.
func TestReadinessOnAReplica(t *testing.T) {
	t.Parallel()
	rs, ns := timerstest.Redis(t), timerstest.NATS(t)
	l := timerstest.LapseOn(t, rs.URL(), ns.URL())
	c := newClient(t, ns.Connect(t))
	readyz(t, l, 200, "redis", wire.HealthOK)
	require.NoError(t, rs.Client().ReplicaOf(t.Context(), "127.0.0.1", "1").Err())
	_, err := c.Set(t.Context(), "a", nil, client.In(time.Second))
	require.ErrorIs(t, err, client.ErrUnavailable)
	h := readyz(t, l, 503, "redis", wire.HealthDown)
	require.Contains(t, h.Parts["redis"].Why, "replica")

	require.NoError(t, rs.Client().ReplicaOf(t.Context(), "NO", "ONE").Err())
	readyz(t, l, 200, "subscription", wire.HealthOK)
	_, err = c.Set(t.Context(), "a", nil, client.In(time.Second))
	require.NoError(t, err)
}

// INFO says that all is well where every write is refused, or none is answered.
func TestReadinessWhileNothingCanBeWritten(t *testing.T) {
	t.Parallel()
	rs, ns := timerstest.Redis(t), timerstest.NATS(t)
	l := timerstest.LapseOn(t, rs.URL(), ns.URL())
	c := newClient(t, ns.Connect(t))
	for word, stop := range map[string]func() (resume *redis.StatusCmd){
		"NOREPLICAS": func() *redis.StatusCmd {
			require.NoError(t, rs.Client().ConfigSet(t.Context(), "min-replicas-to-write", "1").Err())
			return redis.NewStatusCmd(t.Context(), "CONFIG", "SET", "min-replicas-to-write", "0")
		},
		"timeout": func() *redis.StatusCmd {
			require.NoError(t, rs.Client().Do(t.Context(), "CLIENT", "PAUSE", "60000", "WRITE").Err())
			return redis.NewStatusCmd(t.Context(), "CLIENT", "UNPAUSE")
		},
	} {
		readyz(t, l, 200, "redis", wire.HealthOK)
		resume := stop()
		h := readyz(t, l, 503, "redis", wire.HealthDown)
		require.Contains(t, h.Parts["redis"].Why, "no write")
		require.Contains(t, h.Parts["redis"].Why, word)
		require.NoError(t, rs.Client().Process(t.Context(), resume))
	}
	readyz(t, l, 200, "redis", wire.HealthOK)
	_, err := c.Set(t.Context(), "a", nil, client.In(time.Second))
	require.NoError(t, err)
}

// Status is asked for when something is wrong, so it answers then too.
func TestStatusWhileRedisIsSilent(t *testing.T) {
	t.Parallel()
	rs, ns := timerstest.Redis(t), timerstest.NATS(t)
	timerstest.LapseOn(t, rs.URL(), ns.URL())
	c := newClient(t, ns.Connect(t))
	rs.Pause()
	s, err := c.Status(t.Context())
	require.NoError(t, err)
	require.Equal(t, wire.HealthDown, s.Health.Status)
	require.Equal(t, wire.HealthDown, s.Health.Parts["redis"].Status)
	require.Equal(t, wire.HealthOK, s.Health.Parts["nats"].Status)
	rs.Resume()
}

// While only JetStream's API is silent, the stream stores and acknowledges, so
// firing must go on.
func TestFiringWhileTheJetStreamAPIIsSilent(t *testing.T) {
	t.Parallel()
	rs := timerstest.Redis(t)
	user := func(deny ...string) []*server.User {
		p := &server.Permissions{}
		if len(deny) > 0 {
			p.Publish = &server.SubjectPermission{Deny: deny}
		}
		return []*server.User{{Username: "lapse", Password: "pw", Permissions: p}, {Username: "all", Password: "pw"}}
	}
	ns := timerstest.NATS(t, func(o *server.Options) { o.Users = user() })
	l := timerstest.LapseOn(t, rs.URL(), "nats://lapse:pw@"+ns.URL()[len("nats://"):])
	nc := ns.Connect(t, nats.UserInfo("all", "pw"))
	c := newClient(t, nc)
	r := receive(t, c)
	require.NoError(t, nc.Flush())

	ns.Reload(func(o *server.Options) { o.Users = user("$JS.API.>") })
	readyz(t, l, 200, "stream", wire.HealthDegraded)
	for i := range 20 {
		_, err := c.Set(t.Context(), "a", nil, client.In(50*time.Millisecond))
		require.NoError(t, err)
		r.await(t, i+1, 5*time.Second)
	}
	readyz(t, l, 200, "stream", wire.HealthDegraded)
	nothingLeft(t, rs.Client())
}

// Rights that are taken away while it runs: Redis answers that it is well, and
// nothing is fired. The health says so, with the words of Redis.
func TestRightsAreTakenAway(t *testing.T) {
	t.Parallel()
	rs, ns := timerstest.Redis(t), timerstest.NATS(t)
	admin := rs.Client()
	acl := func(rules ...any) {
		t.Helper()
		require.NoError(t, admin.Do(t.Context(), append([]any{"ACL", "SETUSER", "lapse"}, rules...)...).Err())
	}
	acl("on", ">pw", "~*", "&*", "+@all")
	u, err := url.Parse(rs.URL())
	require.NoError(t, err)
	u.User = url.UserPassword("lapse", "pw")
	l := timerstest.LapseOn(t, u.String(), ns.URL())
	c := newClient(t, ns.Connect(t))
	r := receive(t, c)
	acl("-zadd")
	_, err = c.Set(t.Context(), "rights", nil, client.In(0), client.ID("refused"))
	require.Error(t, err)
	readySays(t, l, 503, "refuses what Lapse needs", "lapse doctor")
	acl("+zadd")
	_, err = c.Set(t.Context(), "rights", nil, client.In(0), client.ID("granted"))
	require.NoError(t, err)
	r.await(t, 1, soon)
	ready(t, l, 200)
}

// A server that is told of other rights ends subscriptions, and does not take them up
// again when they are given back.
func TestSubscribingIsNotPermittedForAWhile(t *testing.T) {
	t.Parallel()
	user := func(deny ...string) []*server.User {
		return []*server.User{{Username: "test", Password: "pw"}, {Username: "lapse", Password: "pw", Permissions: &server.Permissions{
			Subscribe: &server.SubjectPermission{Allow: []string{">"}, Deny: deny},
		}}}
	}
	rs, ns := timerstest.Redis(t), timerstest.NATS(t, func(o *server.Options) { o.Users = user() })
	l := timerstest.LapseOn(t, rs.URL(), strings.Replace(ns.URL(), "://", "://lapse:pw@", 1), "LAPSE_LEASE=1s")
	nc := ns.Connect(t, nats.UserInfo("test", "pw"))
	c := newClient(t, nc)
	a := newAttempts()
	for of, denied := range map[string]string{"requests": "timers.>", "acknowledgements": "_INBOX.>"} {
		a.setMany(t, c, of, 3, nil, func(int) client.When { return client.In(500 * time.Millisecond) })
		ns.Reload(func(o *server.Options) { o.Users = user(denied) })
		said := "NATS does not permit Lapse to subscribe"
		readySays(t, l, 503, said)
		quiet := 0 // a moment of it, while it connects anew after 2 s
		for end := time.Now().Add(4 * time.Second); time.Now().Before(end); time.Sleep(20 * time.Millisecond) {
			if _, body, err := l.Ready(); err != nil || !strings.Contains(body, said) {
				quiet++
			}
		}
		require.Less(t, quiet, 40)
		ns.Reload(func(o *server.Options) { o.Users = user() })
		ready(t, l, 200)
		a.allOnce(t, nc, rs.Client())
	}
}
