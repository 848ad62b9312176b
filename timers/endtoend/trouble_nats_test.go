package endtoend

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/lapse-timers/lapse/timers/client"
	"github.com/lapse-timers/lapse/timers/timerstest"
)

// claimed is how many timers are claimed, and how much payload their claimers
// hold.
func claimed(t *testing.T, rdb *redis.Client) (n, bytes int) {
	t.Helper()
	got, err := rdb.Eval(t.Context(), `
		local n, bytes = 0, 0
		for _, member in ipairs(redis.call('ZRANGE', KEYS[1], 0, -1)) do
			local shadow = string.gsub(KEYS[1], 'due$', 'h:') .. member
			if redis.call('HEXISTS', shadow, 'k') == 1 then
				n, bytes = n + 1, bytes + redis.call('HSTRLEN', shadow, 'p')
			end
		end
		return {n, bytes}`, []string{"timers:{0}:due"}).Int64Slice()
	require.NoError(t, err)
	return int(got[0]), int(got[1])
}

func TestNATSAway(t *testing.T) {
	t.Parallel()
	rs, ns := timerstest.Redis(t), timerstest.NATSProcess(t)
	l := timerstest.LapseOn(t, rs.URL(), ns.URL())
	rdb, nc := rs.Client(), ns.Connect(t)
	c := newClient(t, nc)
	a := newAttempts()
	due := time.Now().Add(2 * time.Second)
	a.setMany(t, c, "away", 500, nil, timesIn(due, time.Second, 500))
	ns.Stop()
	readySays(t, l, 503, `"nats":{"status":"down"`)
	timerstest.Eventually(t, soon, "all are due", func() bool { return time.Now().After(due.Add(time.Second)) })
	// They wait in Redis: none is claimed again and again.
	timerstest.Eventually(t, soon, "none is claimed", func() bool { n, _ := claimed(t, rdb); return n == 0 })
	calls := func() string {
		info, err := rdb.InfoMap(t.Context(), "commandstats").Result()
		require.NoError(t, err)
		return info["Commandstats"]["cmdstat_hset"]
	}
	before := calls()
	for end := time.Now().Add(time.Second); time.Now().Before(end); time.Sleep(50 * time.Millisecond) {
		n, _ := claimed(t, rdb)
		require.Zero(t, n, "claimed while NATS is away")
	}
	require.Equal(t, before, calls(), "nothing is written while NATS is away")
	ns.Start()
	ready(t, l, 200)
	a.allOnce(t, nc, rdb)
}

// A paused server takes what is written to it until the buffers of the kernel
// are full; none of it counts. What is claimed meanwhile is bounded.
func TestNATSSilentThenKilled(t *testing.T) {
	t.Parallel()
	rs, ns := timerstest.Redis(t), timerstest.NATSProcess(t)
	l := timerstest.LapseOn(t, rs.URL(), ns.URL(), "LAPSE_LEASE=8s")
	rdb, nc := rs.Client(), ns.Connect(t)
	c := newClient(t, nc)
	a := newAttempts()
	const n, size = 900, 80_000 // more than may be claimed at a time
	payload := []byte(strings.Repeat("x", size))
	a.setMany(t, c, "silent", n, payload, anHourAhead)
	require.Equal(t, n, a.count(delivered))
	// In the middle of fires: the service does not know of the silence yet, and
	// claims what falls due next.
	last := fallDue(t, rdb, a.ledger, 200*time.Millisecond, time.Second*timerstest.Slow)
	timerstest.Eventually(t, soon, "it is in the middle", func() bool { return stored(t, nc) > n/50 })
	ns.Pause()
	paused := time.Now()
	require.True(t, paused.Before(last), "it is still in the middle")
	timerstest.Eventually(t, soon, "some are claimed", func() bool { n, _ := claimed(t, rdb); return n > 0 })
	most := 0
	for end := paused.Add(4 * time.Second); time.Now().Before(end); time.Sleep(50 * time.Millisecond) {
		_, bytes := claimed(t, rdb)
		most = max(most, bytes)
	}
	t.Logf("at most %d MB of %d MB were claimed", most>>20, n*size>>20)
	require.LessOrEqual(t, most, 64<<20)
	readySays(t, l, 503)
	ns.Kill()
	ns.Start()
	ready(t, l, 200)
	a.allOnce(t, nc, rdb)
}

// TestStopWhileNATSIsAway sends SIGTERM while timers are due that cannot be
// delivered, whichever way NATS is away.
func TestStopWhileNATSIsAway(t *testing.T) {
	t.Parallel()
	const grace = 4 * time.Second
	payload := []byte(strings.Repeat("x", 80_000))
	for _, delivery := range []string{"jetstream", "core"} {
		for _, way := range []string{"stopped", "silent"} {
			t.Run(delivery+" "+way, func(t *testing.T) {
				t.Parallel()
				rs, ns := timerstest.Redis(t), timerstest.NATSProcess(t)
				l := timerstest.LapseOn(t, rs.URL(), ns.URL(), "LAPSE_DELIVERY="+delivery, "LAPSE_SHUTDOWN_GRACE="+grace.String(), "LAPSE_LEASE=4s", quickExit)
				rdb, nc := rs.Client(), ns.Connect(t)
				c := newClient(t, nc)
				a := newAttempts()
				const n = 200 // 16 MB, more than the buffers of the kernel take
				a.setMany(t, c, "stop", n, payload, anHourAhead)
				require.Equal(t, n, a.count(delivered))
				if way == "stopped" {
					ns.Stop()
					readySays(t, l, 503)
				} else {
					ns.Pause()
				}
				passes(t, fallDue(t, rdb, a.ledger, 0, 0).Add(300*time.Millisecond))
				endsWell(t, l, grace)
				require.EqualValues(t, n, rdb.ZCard(t.Context(), "timers:{0}:due").Val(), "they wait in Redis")
				ns.Kill()
				ns.Start()
				nc = ns.Connect(t)
				r := receive(t, newClient(t, nc))
				require.NoError(t, nc.Flush())
				l.Start()
				r.await(t, n, soon)
				nothingLeft(t, rdb)
				if delivery == "jetstream" {
					a.check(t, onStream(t, nc))
				}
			})
		}
	}
}

// What meets no stream was refused by nobody, so that it ends no timer, however
// few attempts there may be.
func TestStreamIsDeleted(t *testing.T) {
	t.Parallel()
	rs, ns := timerstest.Redis(t), timerstest.NATS(t)
	l := timerstest.LapseOn(t, rs.URL(), ns.URL(), "LAPSE_MAX_ATTEMPTS=1")
	rdb, nc := rs.Client(), ns.Connect(t)
	c := newClient(t, nc)
	js, err := jetstream.New(nc)
	require.NoError(t, err)
	a := newAttempts()
	for i := range 3 {
		require.NoError(t, js.DeleteStream(t.Context(), "TIMERS"))
		b := newAttempts()
		b.setMany(t, c, fmt.Sprint("gone", i), 100, nil, timesIn(time.Now(), 200*time.Millisecond, 100))
		b.allOnce(t, nc, rdb)
		for k, v := range b.lives {
			a.lives[k] = v
		}
	}
	require.Equal(t, 300, a.count(delivered))
	info, err := js.Stream(t.Context(), "TIMERS")
	require.NoError(t, err)
	require.ElementsMatch(t, []string{"timers.fired.>", "timers.dead.>"}, info.CachedInfo().Config.Subjects)
	ready(t, l, 200)
}

// What is stored without an acknowledgement would be stored again and again.
func TestStreamIsToldNotToAcknowledge(t *testing.T) {
	t.Parallel()
	rs, ns := timerstest.Redis(t), timerstest.NATS(t)
	l := timerstest.LapseOn(t, rs.URL(), ns.URL(), "LAPSE_LEASE=1s", "LAPSE_RETRY_MAX=100ms")
	nc := ns.Connect(t)
	c := newClient(t, nc)
	js, err := jetstream.New(nc)
	require.NoError(t, err)
	noAck := func(is bool) {
		s, err := js.Stream(t.Context(), "TIMERS")
		require.NoError(t, err)
		config := s.CachedInfo().Config
		config.NoAck = is
		_, err = js.UpdateStream(t.Context(), config)
		require.NoError(t, err)
	}
	noAck(true)
	a := newAttempts()
	a.setMany(t, c, "mute", 1, nil, func(int) client.When { return client.In(0) })
	readySays(t, l, 503, "does not acknowledge")
	tries, err := nc.SubscribeSync("timers.fired.>")
	require.NoError(t, err)
	a.setMany(t, c, "after", 1, nil, func(int) client.When { return client.In(0) })
	_, err = tries.NextMsg(3 * time.Second)
	require.ErrorIs(t, err, nats.ErrTimeout, "nothing is published that cannot be confirmed")
	noAck(false)
	a.allOnce(t, nc, rs.Client())
	ready(t, l, 200)
}

func TestStreamIsFull(t *testing.T) {
	t.Parallel()
	rs, ns := timerstest.Redis(t), timerstest.NATS(t)
	rdb, nc := rs.Client(), ns.Connect(t)
	js, err := jetstream.New(nc)
	require.NoError(t, err)
	stream, err := js.CreateStream(t.Context(), jetstream.StreamConfig{
		Name: "TIMERS", Subjects: []string{"timers.fired.>"}, MaxMsgs: 10, Discard: jetstream.DiscardNew,
	})
	require.NoError(t, err)
	l := timerstest.LapseOn(t, rs.URL(), ns.URL(), "LAPSE_RETRY_MAX=1s")
	c := newClient(t, nc)
	// Core subscribers hear every attempt, kept by the stream or not.
	tries, err := nc.SubscribeSync("timers.fired.>")
	require.NoError(t, err)
	a := newAttempts()
	a.setMany(t, c, "full", 30, nil, func(int) client.When { return client.In(0) })
	timerstest.Eventually(t, soon, "the stream is full", func() bool { return stored(t, nc) == 10 })
	readySays(t, l, 503, "maximum messages exceeded")
	const watched = 11 * time.Second // longer than between looks at the stream
	before, _, err := tries.Pending()
	require.NoError(t, err)
	for end := time.Now().Add(watched); time.Now().Before(end); time.Sleep(50 * time.Millisecond) {
		code, body, err := l.Ready()
		require.NoError(t, err)
		require.Equal(t, 503, code, "it stays down while the stream is full: %s", body)
	}
	after, _, err := tries.Pending()
	require.NoError(t, err)
	rate := float64(after-before) / 20 / watched.Seconds()
	t.Logf("%.1f tries a second of each timer", rate)
	require.Less(t, rate, 5.0)
	require.Greater(t, after, before, "they are tried again")

	var fired []client.Fired
	for range 3 {
		timerstest.Eventually(t, soon, "the stream is full", func() bool { return stored(t, nc) == 10 })
		fired = append(fired, onStream(t, nc)...)
		require.NoError(t, stream.Purge(t.Context()))
	}
	nothingLeft(t, rdb)
	require.Zero(t, stored(t, nc))
	a.check(t, fired)
	ready(t, l, 200)
	// It says that the stream does not take timers and that it is back, not at
	// every look.
	require.LessOrEqual(t, strings.Count(l.Log(), "does not take fired timers"), 4, l.Log())
}

// withUsers lets a user of Lapse be kept from publishing; the function grants.
func withUsers(t *testing.T, deny ...string) (ns *timerstest.NATSServer, url string, grant func()) {
	var options *server.Options
	ns = timerstest.NATS(t, func(o *server.Options) {
		options = o
		o.Users = []*server.User{
			{Username: "lapse", Password: "pw", Permissions: &server.Permissions{
				Publish:   &server.SubjectPermission{Allow: []string{">"}, Deny: deny},
				Subscribe: &server.SubjectPermission{Allow: []string{">"}},
			}},
			{Username: "test", Password: "pw"},
		}
	})
	return ns, strings.Replace(ns.URL(), "://", "://lapse:pw@", 1), func() {
		ns.Stop()
		options.Users[0].Permissions = nil
		ns.Start()
	}
}

func TestPublishingIsNotPermitted(t *testing.T) {
	t.Parallel()
	for _, delivery := range []string{"jetstream", "core"} {
		t.Run(delivery, func(t *testing.T) {
			t.Parallel()
			rs := timerstest.Redis(t)
			ns, url, grant := withUsers(t, "timers.fired.>")
			l := timerstest.LapseOn(t, rs.URL(), url, "LAPSE_DELIVERY="+delivery, "LAPSE_RETRY_MAX=1s")
			rdb, nc := rs.Client(), ns.Connect(t, nats.UserInfo("test", "pw"))
			c := newClient(t, nc)
			r := receive(t, c)
			a := newAttempts()
			const n = 200
			a.setMany(t, c, "denied", n, nil, func(i int) client.When { return client.In(time.Duration(i) * time.Millisecond) })
			readySays(t, l, 200, `"status":"degraded"`, "timers.fired.denied")
			for end := time.Now().Add(2 * time.Second); time.Now().Before(end); time.Sleep(50 * time.Millisecond) {
				require.EqualValues(t, n, rdb.ZCard(t.Context(), "timers:{0}:due").Val(), "kept")
			}
			s, err := c.Status(t.Context())
			require.NoError(t, err)
			require.Zero(t, s.Counts.Fired, "none counts as fired")
			require.Zero(t, s.Counts.Unknown, "each was refused, definitely")
			require.Greater(t, s.Counts.Refused, int64(n))
			require.Equal(t, 1, strings.Count(l.Log(), "does not permit publishing"), "it is said once")
			_, err = c.Cancel(t.Context(), "denied", "denied0")
			if err == nil { // refused is not firing, unless it is under way right now
				for _, v := range a.lives {
					if v.id == "denied0" {
						a.ledger.set(v, never)
					}
				}
			} else {
				require.ErrorIs(t, err, client.ErrConflict)
			}
			grant()
			// The cut may end a flush, too.
			timerstest.Eventually(t, soon, "connected again", func() bool { return nc.Flush() == nil })
			r.await(t, n-1, soon)
			nothingLeft(t, rdb)
			if delivery == "jetstream" {
				a.check(t, onStream(t, nc))
			} else {
				a.check(t, r.all())
			}
		})
	}
}

// One topic that NATS refuses must not hold back the others, nor fill the log.
func TestPublishingSomeTopicsIsNotPermitted(t *testing.T) {
	t.Parallel()
	for _, delivery := range []string{"jetstream", "core"} {
		t.Run(delivery, func(t *testing.T) {
			t.Parallel()
			rs := timerstest.Redis(t)
			ns, url, _ := withUsers(t, "timers.fired.secret.>")
			// Whoever is held back by one of these waits for longer than any load
			// makes the others wait.
			const pause = 3 * time.Second
			l := timerstest.LapseOn(t, rs.URL(), url, "LAPSE_DELIVERY="+delivery, "LAPSE_RETRY_MIN="+pause.String(), "LAPSE_RETRY_MAX="+pause.String())
			rdb, nc := rs.Client(), ns.Connect(t, nats.UserInfo("test", "pw"))
			c := newClient(t, nc)
			r := receive(t, c)
			require.NoError(t, nc.Flush())
			secret, open := newAttempts(), newAttempts()
			for i := range 5 {
				secret.setMany(t, c, fmt.Sprint("secret.", i), 40, nil, func(int) client.When { return client.In(0) })
			}
			readySays(t, l, 200, `"status":"degraded"`, "timers.fired.secret.")
			due := time.Now().Add(500 * time.Millisecond)
			const n = 500
			open.setMany(t, c, "open", n, nil, timesIn(due, pause, n)) // the refused ones are tried again meanwhile
			fired := r.await(t, n, soon)
			open.check(t, fired)
			lag := report(t, "beside refused topics", fired)
			require.Less(t, quantile(lag, .99), pause/2)
			s, err := c.Status(t.Context())
			require.NoError(t, err)
			require.Greater(t, s.Counts.Refused, int64(200), "they were tried again")
			require.Less(t, s.Counts.Refused, int64(200*10), "a storm of attempts")
			require.EqualValues(t, 200, rdb.ZCard(t.Context(), "timers:{0}:due").Val(), "the refused ones are kept")
			require.LessOrEqual(t, strings.Count(l.Log(), "does not permit publishing"), 5, "once a topic")
		})
	}
}

// Connections that break in the middle of deliveries leave their outcome
// unknown; the copies of the next attempt must not be stored again.
func TestConnectionsToNATSAreCut(t *testing.T) {
	t.Parallel()
	rs, ns := timerstest.Redis(t), timerstest.NATS(t)
	timerstest.LapseOn(t, rs.URL(), ns.URL())
	rdb, nc := rs.Client(), ns.Connect(t)
	c := newClient(t, nc)
	a := newAttempts()
	due := time.Now().Add(1500 * time.Millisecond)
	const n = 1500
	a.setMany(t, c, "cut", n, nil, timesIn(due, 2*time.Second, n))
	stop := every(t, 150*time.Millisecond, func(context.Context) {
		conns, err := ns.Server().Connz(&server.ConnzOptions{})
		if err != nil {
			return
		}
		for _, conn := range conns.Conns {
			if strings.HasSuffix(conn.Name, " delivery") {
				ns.Server().DisconnectClientByID(conn.Cid) //nolint:errcheck // it may have gone by itself
			}
		}
	})
	timerstest.Eventually(t, soon, "all are due", func() bool { return time.Now().After(due.Add(2 * time.Second)) })
	stop()
	a.allOnce(t, nc, rdb)
	s, err := c.Status(t.Context())
	require.NoError(t, err)
	t.Logf("%d attempts of unknown outcome, %d copies not stored again", s.Counts.Unknown, s.Counts.Duplicates)
}

// A request that reaches an instance while it stops is answered like any
// other, or turned away; one that comes later finds nobody. None is left to
// wait for its timeout.
func TestEveryRequestIsAnsweredAtTheStop(t *testing.T) {
	t.Parallel()
	rs, ns := timerstest.Redis(t), timerstest.NATS(t)
	nc := ns.Connect(t)
	for run := range 3 {
		l := timerstest.LapseOn(t, rs.URL(), ns.URL(), quickExit)
		inbox := nc.NewInbox()
		var sent, ok, unavailable, nobody, strange atomic.Int64
		sub, err := nc.Subscribe(inbox, func(m *nats.Msg) {
			switch {
			case len(m.Data) > 0 && m.Header.Get("Nats-Service-Error-Code") == "":
				ok.Add(1)
			case m.Header.Get("Nats-Service-Error-Code") == "503":
				unavailable.Add(1)
			case m.Header.Get("Status") == "503":
				nobody.Add(1)
			default:
				strange.Add(1)
			}
		})
		require.NoError(t, err)
		stop := make(chan struct{})
		var senders sync.WaitGroup
		for range 2 {
			senders.Go(func() {
				for i := 0; ; i++ {
					m := request("timers.set.stop", fmt.Sprint(run, ".", i%100), "@in 1h")
					m.Reply = inbox
					if nc.PublishMsg(m) != nil {
						return
					}
					sent.Add(1)
					select {
					case <-stop:
						return
					default:
					}
					if i%1000 == 0 { // a backlog, which the program has to work off
						nc.Flush() //nolint:errcheck // only keeps the pace
					}
				}
			})
		}
		timerstest.Eventually(t, soon, "requests are answered", func() bool { return ok.Load() > 500 })
		endsWell(t, l, 10*time.Second)
		close(stop)
		senders.Wait()
		t.Cleanup(func() {
			if t.Failed() {
				t.Logf("%d sent, %d answered", sent.Load(), ok.Load()+unavailable.Load()+nobody.Load())
			}
		})
		timerstest.Eventually(t, 10*time.Second, "every request is answered", func() bool {
			return ok.Load()+unavailable.Load()+nobody.Load() == sent.Load()
		})
		t.Logf("%d sent: %d OK, %d turned away, %d found nobody", sent.Load(), ok.Load(), unavailable.Load(), nobody.Load())
		require.Zero(t, strange.Load())
		require.NoError(t, sub.Unsubscribe())
	}
}

func TestStopInTheMiddleOfABurst(t *testing.T) {
	t.Parallel()
	const n, grace = 1000, 10 * time.Second
	runs := timerstest.Size(3, 50)
	rs, ns := timerstest.Redis(t), timerstest.NATS(t)
	l := timerstest.LapseOn(t, rs.URL(), ns.URL(), "LAPSE_LEASE=2s", quickExit)
	rdb, nc := rs.Client(), ns.Connect(t)
	c := newClient(t, nc)
	r := receive(t, c)
	require.NoError(t, nc.Flush())
	a := newAttempts()
	seen, middle := 0, 0
	for run := range runs {
		a.setMany(t, c, fmt.Sprint("burst", run), n, nil, anHourAhead)
		fallDue(t, rdb, a.ledger, 100*time.Millisecond, 0)
		// A little later in the burst each time.
		r.await(t, seen+1+run*n/runs/2, soon)
		middle += boolToInt(rdb.ZCard(t.Context(), "timers:{0}:due").Val() > 0)
		before := stored(t, nc) - run*n
		endsWell(t, l, grace)
		fired, left := stored(t, nc)-run*n, rdb.ZCard(t.Context(), "timers:{0}:due").Val()
		require.GreaterOrEqual(t, fired+int(left), n, "what was not fired waits")
		t.Logf("%d were on the stream before the stop, %d after it", before, fired)
		l.Start()
		timerstest.Eventually(t, soon, "the rest is delivered after the start", func() bool { return stored(t, nc) >= (run+1)*n })
		require.NoError(t, nc.Flush())
		seen = len(r.all())
	}
	a.allOnce(t, nc, rdb)
	require.GreaterOrEqual(t, middle, (runs+1)/2, "it was stopped in the middle of the burst")
	for _, word := range []string{"panic", "DATA RACE", "fatal error"} {
		require.NotContains(t, l.Log(), word)
	}
}

// An instance that stood still past its lease finds that another has fired its
// timers, and that timers it knew of were cancelled.
func TestInstanceStandsStill(t *testing.T) {
	t.Parallel()
	const lease = "LAPSE_LEASE=1s"
	rs, ns := timerstest.Redis(t), timerstest.NATS(t)
	rdb, nc := rs.Client(), ns.Connect(t)
	c := newClient(t, nc)
	first := timerstest.LapseOn(t, rs.URL(), ns.URL(), lease)
	a := newAttempts()
	const n, late = 2000, 60
	a.setMany(t, c, "still", n, nil, anHourAhead)
	fallDue(t, rdb, a.ledger, 200*time.Millisecond, 300*time.Millisecond)
	a.setMany(t, c, "late", late, nil, anHourAhead)
	timerstest.Eventually(t, soon, "it is in the middle", func() bool { return stored(t, nc) > n/10 })
	first.Pause()
	paused := stored(t, nc)
	timerstest.LapseOn(t, rs.URL(), ns.URL(), lease)
	timerstest.Eventually(t, soon, "the other fires the rest", func() bool { return stored(t, nc) >= n })
	t.Logf("%d on the stream at the pause", paused)
	require.Less(t, paused, n)

	// About half of the requests reach the one that stands still, which carries
	// out none of them before they are sent again; it does later, in vain.
	hasty, err := client.New(nc, client.Timeout(200*time.Millisecond))
	require.NoError(t, err)
	var wg sync.WaitGroup
	for _, v := range a.lives {
		if v.topic == "late" {
			wg.Go(func() {
				for {
					_, err := hasty.Cancel(t.Context(), v.topic, v.id)
					if err == nil {
						a.ledger.set(v, never)
						return
					}
					if !errors.Is(err, client.ErrUnconfirmed) {
						t.Errorf("cancel: %v", err)
						return
					}
				}
			})
		}
	}
	wg.Wait()
	require.Equal(t, late, a.count(never))
	first.Resume()
	ready(t, first, 200)
	require.NoError(t, a.set(t, c, "after", "after", nil, client.In(0)))
	a.allOnce(t, nc, rdb)
}

// A message above a max_payload that was just lowered ends a connection in a way
// that the library does not come back from. An instance that is mute for good
// must not look alive: it ends, and the next run goes on.
func TestConnectionIsClosedForGood(t *testing.T) {
	t.Parallel()
	rs := timerstest.Redis(t)
	ns := timerstest.NATS(t)
	l := timerstest.LapseOn(t, rs.URL(), ns.URL())
	c := newClient(t, ns.Connect(t))
	r := receive(t, c)
	for id, size := range map[string]int{"large": 4000, "small": 10} {
		_, err := c.Set(t.Context(), "sizes", make([]byte, size), client.In(5*time.Second), client.ID(id))
		require.NoError(t, err)
	}
	ns.Reload(func(o *server.Options) { o.MaxPayload = 2000 })
	require.Equal(t, 1, l.Wait(), "it ends with an error")
	require.Contains(t, l.Log(), "NATS closed the connection for good (nats: Maximum Payload Violation)")

	l.Start()
	r.await(t, 1, soon)
	require.Equal(t, "small", r.all()[0].ID)
	var dead client.Page
	timerstest.Eventually(t, soon, "the large one is given up on", func() bool {
		var err error
		dead, err = c.ListDeadPage(t.Context(), "sizes", 0, "")
		return err == nil && len(dead.Timers) == 1
	})
	require.Equal(t, "large", dead.Timers[0].ID)
}
