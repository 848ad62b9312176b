package endtoend

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/lapse-timers/lapse/timers/client"
	"github.com/lapse-timers/lapse/timers/timerstest"
)

// embeddedLapse is an instance with nothing set but where its data and its
// port are.
func embeddedLapse(t *testing.T, settings ...string) (l *timerstest.LapseServer, dir, url string) {
	t.Helper()
	dir = shortDir(t)
	addr := freeAddr(t)
	l = timerstest.Lapse(t, append([]string{"LAPSE_DATA_DIR=" + dir, "LAPSE_NATS_LISTEN=" + addr, quickExit}, settings...)...)
	// A killed Lapse leaves its redis-server behind, and so may a failed test.
	t.Cleanup(func() {
		l.Kill()
		for _, pid := range redisServers(t, dir) {
			if p, err := os.FindProcess(pid); err == nil {
				p.Kill() //nolint:errcheck // it may have ended
			}
		}
		timerstest.Eventually(t, soon, "no redis-server is left", func() bool { return len(redisServers(t, dir)) == 0 })
	})
	return l, dir, "nats://" + addr
}

// shortDir is a directory whose sockets have short enough names.
func shortDir(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "lapse")
	require.NoError(t, err)
	t.Cleanup(func() { os.RemoveAll(dir) })
	return dir
}

// redisServers are the pids of the redis-server processes that run in the data
// directory, whoever started them. Where there is no /proc, it is the one that
// its lock names, if that lives.
func redisServers(t *testing.T, dir string) (pids []int) {
	t.Helper()
	if _, err := os.Stat("/proc/self/cwd"); err != nil {
		b, _ := os.ReadFile(filepath.Join(dir, "redis", "redis.lock")) // none before the first start
		if pid, err := strconv.Atoi(strings.TrimSpace(string(b))); err == nil && syscall.Kill(pid, 0) == nil {
			pids = append(pids, pid)
		}
		return pids
	}
	want, err := filepath.EvalSymlinks(filepath.Join(dir, "redis"))
	if err != nil {
		return nil // there is none yet
	}
	entries, err := filepath.Glob("/proc/[0-9]*")
	require.NoError(t, err)
	for _, e := range entries {
		cwd, err := os.Readlink(filepath.Join(e, "cwd"))
		if err != nil || cwd != want {
			continue
		}
		name, err := os.ReadFile(filepath.Join(e, "comm"))
		pid, notNumber := strconv.Atoi(filepath.Base(e))
		if err == nil && notNumber == nil && bytes.HasPrefix(name, []byte("redis-")) {
			pids = append(pids, pid)
		}
	}
	return pids
}

func dial(t *testing.T, url string) *nats.Conn {
	t.Helper()
	nc, err := nats.Connect(url, nats.MaxReconnects(-1), nats.ReconnectWait(20*time.Millisecond), nats.ReconnectJitter(0, 0))
	require.NoError(t, err)
	t.Cleanup(nc.Close)
	return nc
}

func embeddedRedis(t *testing.T, dir string) *redis.Client {
	t.Helper()
	rdb := redis.NewClient(&redis.Options{Network: "unix", Addr: filepath.Join(dir, "redis", "redis.sock")})
	t.Cleanup(func() { rdb.Close() })
	return rdb
}

func TestEmbeddedKeepsItsData(t *testing.T) {
	t.Parallel()
	l, dir, url := embeddedLapse(t)
	l.Start()
	ready(t, l, 200)
	require.Len(t, redisServers(t, dir), 1)
	nc := dial(t, url)
	c := newClient(t, nc)
	a := newAttempts()
	require.NoError(t, a.set(t, c, "now", "now", []byte("x"), client.In(0)))
	timerstest.Eventually(t, soon, "it fired", func() bool { return stored(t, nc) == 1 })
	due := time.Now().Add(2 * time.Second)
	a.setMany(t, c, "later", 100, []byte("y"), timesIn(due, time.Second, 100))
	require.NoError(t, a.set(t, c, "far", "far", []byte("z"), client.In(time.Hour)))
	before, err := c.Get(t.Context(), "far", "far")
	require.NoError(t, err)

	endsWell(t, l, 10*time.Second)
	require.Empty(t, redisServers(t, dir), "the redis-server ends with its Lapse")
	timerstest.Eventually(t, soon, "all are due", func() bool { return time.Now().After(due.Add(time.Second)) })
	l.Start()
	timerstest.Eventually(t, soon, "they fire", func() bool { return stored(t, nc) == 101 })
	after, err := c.Get(t.Context(), "far", "far")
	require.NoError(t, err)
	require.Equal(t, before, after)
	_, err = c.Cancel(t.Context(), "far", "far")
	require.NoError(t, err)
	for _, v := range a.lives {
		if v.id == "far" {
			a.ledger.set(v, never)
		}
	}
	a.allOnce(t, nc, embeddedRedis(t, dir))
}

// A Lapse that is killed in the middle of fires leaves its redis-server behind.
// The next one ends it: two on one directory would write to one file.
func TestEmbeddedIsKilledInTheMiddleOfFires(t *testing.T) {
	t.Parallel()
	l, dir, url := embeddedLapse(t, "LAPSE_LEASE=2s")
	l.Start()
	nc := dial(t, url)
	c := newClient(t, nc)
	a := newAttempts()
	for run := range 3 {
		const n = 1000
		have := stored(t, nc)
		due := time.Now().Add(2500 * time.Millisecond)
		a.setMany(t, c, fmt.Sprint("run", run), n, []byte("x"), timesIn(due, 300*time.Millisecond, n))
		require.True(t, time.Now().Before(due), "the sets were answered before the due time")
		timerstest.Eventually(t, soon, "some fired", func() bool { return stored(t, nc) > have+n/20 })
		l.Kill()
		orphans := redisServers(t, dir)
		require.Len(t, orphans, 1, "the redis-server survives a killed Lapse")

		l.Launch()
		// Never two, from the first moment on.
		timerstest.Eventually(t, soon, "the new one is there", func() bool {
			now := redisServers(t, dir)
			require.LessOrEqual(t, len(now), 1, "two redis-servers on one directory: %v", now)
			return len(now) == 1 && now[0] != orphans[0]
		})
		l.AwaitReady()
		require.NotContains(t, redisServers(t, dir), orphans[0])
		timerstest.Eventually(t, soon, "all are on the stream", func() bool { return stored(t, nc) >= a.count(delivered) })
	}
	a.allOnce(t, nc, embeddedRedis(t, dir))
	require.Equal(t, 3, strings.Count(l.Log(), "survived its Lapse"))
	endsWell(t, l, 10*time.Second)
	require.Empty(t, redisServers(t, dir))
}

// The redis-server alone dies: it is started again, and what was answered is
// still there.
func TestEmbeddedRedisIsKilled(t *testing.T) {
	t.Parallel()
	l, dir, url := embeddedLapse(t)
	l.Start()
	nc := dial(t, url)
	c := newClient(t, nc)
	a := newAttempts()
	const n = 600
	due := time.Now().Add(2 * time.Second)
	a.setMany(t, c, "dies", n, []byte("x"), timesIn(due, time.Second, n))
	require.Equal(t, n, a.count(delivered))
	timerstest.Eventually(t, soon, "some fired", func() bool { return stored(t, nc) > n/10 })
	pids := redisServers(t, dir)
	require.Len(t, pids, 1)
	p, err := os.FindProcess(pids[0])
	require.NoError(t, err)
	require.NoError(t, p.Kill())
	timerstest.Eventually(t, soon, "another is there", func() bool {
		now := redisServers(t, dir)
		return len(now) == 1 && now[0] != pids[0]
	})
	ready(t, l, 200)
	require.NoError(t, a.set(t, c, "after", "after", nil, client.In(0)))
	a.allOnce(t, nc, embeddedRedis(t, dir))
}

func TestSecondServeOnTheSameData(t *testing.T) {
	t.Parallel()
	l, dir, url := embeddedLapse(t)
	l.Start()
	holds(t, refusal(t, "LAPSE_DATA_DIR="+dir, "LAPSE_NATS_LISTEN="+freeAddr(t)),
		dir, fmt.Sprint("pid ", l.Pid()), "LAPSE_DATA_DIR")
	// One embedded server is enough to need the directory.
	holds(t, refusal(t, "LAPSE_DATA_DIR="+dir, "LAPSE_REDIS_URL=embedded", "LAPSE_NATS_URL="+url), dir, "LAPSE_DATA_DIR")
	require.Len(t, redisServers(t, dir), 1)
	ready(t, l, 200)
}

// SIGTERM while the data are read, or while the orphan of a killed Lapse is
// being ended, is no failure either.
func TestEmbeddedStopsAtAnyMoment(t *testing.T) {
	t.Parallel()
	l, dir, _ := embeddedLapse(t)
	for run, after := range []time.Duration{0, 10, 30, 60, 100, 200, 400} {
		l.Launch()
		timerstest.Eventually(t, soon, "it hears signals", func() bool { return strings.Count(l.Log(), `"starting"`) == run+1 })
		time.Sleep(after * time.Millisecond) // a moment of the start, not a wait for anything
		endsWell(t, l, 10*time.Second)
		require.Empty(t, redisServers(t, dir), "after %v", after*time.Millisecond)
	}
	l.Start()
	ready(t, l, 200)
}
