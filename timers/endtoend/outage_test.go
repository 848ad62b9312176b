package endtoend

import (
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lapse-timers/lapse/timers/client"
	"github.com/lapse-timers/lapse/timers/timerstest"
)

// setAll sets n timers of the topic from many callers, all of which must be
// answered OK, and returns when the last one was.
func setAll(t *testing.T, c *client.Client, l *ledger, topic string, n int, payload []byte, when func(i int) client.When) {
	t.Helper()
	parallel(t, 64, n, func(i int) error {
		res, err := c.Set(t.Context(), topic, payload, when(i), client.ID(fmt.Sprint(i)))
		if err == nil {
			l.add(&life{topic: topic, id: res.ID, payload: string(payload), rev: res.Rev, due: res.Due})
		}
		return err
	})
}

// resident is what the process has of memory, in bytes.
func resident(t *testing.T, pid int) int {
	t.Helper()
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	require.NoError(t, err)
	for line := range strings.Lines(string(b)) {
		if v, ok := strings.CutPrefix(line, "VmRSS:"); ok {
			kb, err := strconv.Atoi(strings.TrimSuffix(strings.TrimSpace(v), " kB"))
			require.NoError(t, err)
			return kb << 10
		}
	}
	t.Fatal("no VmRSS")
	return 0
}

// Redis is killed, and is away while all of many timers fall due.
func TestManyFallDueWhileRedisIsDown(t *testing.T) {
	t.Parallel()
	for _, kind := range []struct {
		name string
		args []string
		save bool
	}{
		// Synced always: what is written while a sync is under way is lost with a kill (ADR 28).
		{"append-only file", []string{"--appendfsync", "always"}, false},
		{"snapshot", []string{"--appendonly", "no"}, true},
	} {
		t.Run(kind.name, func(t *testing.T) {
			t.Parallel()
			n := timerstest.Size(4000, 20_000)
			rs, ns := timerstest.Redis(t, kind.args...), timerstest.NATS(t)
			timerstest.LapseOn(t, rs.URL(), ns.URL())
			nc := ns.Connect(t)
			c, l := newClient(t, nc), newLedger()
			setAll(t, c, l, "down", n, []byte("x"), anHourAhead)
			last := fallDue(t, rs.Client(), l, 2*time.Second*timerstest.Slow, time.Duration(n)*time.Millisecond/10)
			if kind.save {
				require.NoError(t, rs.Client().Save(t.Context()).Err())
			}
			rs.Kill()
			require.Zero(t, count(t, nc, "TIMERS", ">"), "it was killed before they were due")
			passes(t, last)
			rs.Start()
			back := time.Now()
			timerstest.Eventually(t, time.Minute, "all are on the stream", func() bool { return count(t, nc, "TIMERS", ">") >= n })
			t.Logf("all on the stream %v after Redis was back", time.Since(back).Round(time.Millisecond))
			nothingLeft(t, rs.Client())
			l.check(t, onStream(t, nc))
		})
	}
}

// NATS stands still while many timers fall due, is killed, and comes back on
// the same store. The service holds no more than it may meanwhile.
func TestManyFallDueWhileNATSStandsStill(t *testing.T) {
	t.Parallel()
	n, size := timerstest.Size(4000, 5000), 20_000 // more than may be under way
	rs, ns := timerstest.Redis(t), timerstest.NATSProcess(t)
	lapse := timerstest.LapseOn(t, rs.URL(), ns.URL())
	nc := ns.Connect(t)
	c, l := newClient(t, nc), newLedger()
	setAll(t, c, l, "still", n, []byte(strings.Repeat("x", size)), anHourAhead)
	// In the middle of fires: the service does not know of the silence yet, and
	// claims what falls due next.
	last := fallDue(t, rs.Client(), l, 200*time.Millisecond, time.Second*timerstest.Slow)
	timerstest.Eventually(t, soon, "it is in the middle", func() bool { return count(t, nc, "TIMERS", ">") > n/100 })
	ns.Pause()
	require.True(t, time.Now().Before(last), "it is still in the middle")
	timerstest.Eventually(t, soon, "some are claimed", func() bool { n, _ := claimed(t, rs.Client()); return n > 0 })
	most := 0
	watch := func(until time.Time) {
		for time.Now().Before(until) {
			most = max(most, resident(t, lapse.Pid()))
			time.Sleep(20 * time.Millisecond) // how often it is looked at
		}
	}
	watch(time.Now().Add(4 * time.Second))
	ns.Kill()
	watch(time.Now().Add(2 * time.Second))
	ns.Start()
	timerstest.Eventually(t, time.Minute, "all are on the stream", func() bool {
		most = max(most, resident(t, lapse.Pid()))
		return count(t, nc, "TIMERS", ">") >= n
	})
	nothingLeft(t, rs.Client())
	l.check(t, onStream(t, nc))
	t.Logf("at most %d MB resident", most>>20)
	require.Less(t, most, 400<<20*timerstest.Slow*timerstest.Slow) // 64 MB of payload, twice, and what the heap has of free room
}

// Redis is full while many timers fall due. They leave, and make room.
func TestManyFallDueWhileRedisIsFull(t *testing.T) {
	t.Parallel()
	n := timerstest.Size(4000, 10_000)
	rs, ns := timerstest.Redis(t), timerstest.NATS(t)
	timerstest.LapseOn(t, rs.URL(), ns.URL())
	rdb, nc := rs.Client(), ns.Connect(t)
	c, l := newClient(t, nc), newLedger()
	before := usedMemory(t, rs)
	setAll(t, c, l, "full", n, []byte(strings.Repeat("x", 200)), anHourAhead)
	fallDue(t, rdb, l, time.Second*timerstest.Slow, time.Duration(n)*time.Millisecond/5)
	full := usedMemory(t, rs)
	require.NoError(t, rdb.ConfigSet(t.Context(), "maxmemory", strconv.Itoa(full/2)).Err())
	_, err := c.Set(t.Context(), "more", []byte("x"), client.In(time.Hour))
	require.ErrorIs(t, err, client.ErrStorageFull)
	timerstest.Eventually(t, time.Minute, "all are on the stream", func() bool { return count(t, nc, "TIMERS", ">") >= n })
	nothingLeft(t, rdb)
	l.check(t, onStream(t, nc))
	timerstest.Eventually(t, time.Minute, "memory comes back, and sets are taken again", func() bool {
		_, err := c.Set(t.Context(), "more", []byte("x"), client.In(time.Hour), client.ID("last"))
		require.True(t, err == nil || errors.Is(err, client.ErrStorageFull), "%v", err)
		return err == nil
	})
	left := usedMemory(t, rs) - before
	t.Logf("%d KB of %d KB are still in use", left>>10, (full-before)>>10)
	require.Less(t, left, (full-before)/4)
}

func usedMemory(t *testing.T, rs *timerstest.RedisServer) int {
	t.Helper()
	info, err := rs.Client().InfoMap(t.Context(), "memory").Result()
	require.NoError(t, err)
	n, err := strconv.Atoi(info["Memory"]["used_memory"])
	require.NoError(t, err)
	return n
}

// The service's clock and Redis's disagree by minutes: Redis's counts.
func TestClocksDisagree(t *testing.T) {
	for _, ahead := range []time.Duration{5 * time.Minute, -5 * time.Minute} {
		t.Run(ahead.String(), func(t *testing.T) {
			t.Parallel()
			rs, ns := timerstest.RedisAhead(t, ahead), timerstest.NATS(t)
			at, err := rs.Client().Time(t.Context()).Result()
			require.NoError(t, err)
			require.InDelta(t, ahead.Seconds(), time.Until(at).Seconds(), 2, "Redis's clock")
			timerstest.LapseOn(t, rs.URL(), ns.URL())
			nc := ns.Connect(t)
			c, l := newClient(t, nc), newLedger()
			r := receive(t, c)
			require.NoError(t, nc.Flush())
			began := time.Now()
			for i := range 20 {
				res, err := c.Set(t.Context(), "clock", []byte("x"), client.In(time.Duration(1500+50*i)*time.Millisecond), client.ID(fmt.Sprint("in", i)))
				require.NoError(t, err)
				l.add(&life{topic: "clock", id: res.ID, payload: "x", rev: res.Rev, due: res.Due})
			}
			// On Redis's clock, which this is not.
			res, err := c.Set(t.Context(), "clock", []byte("x"), client.At(began.Add(ahead+2*time.Second)), client.ID("at"))
			require.NoError(t, err)
			l.add(&life{topic: "clock", id: res.ID, payload: "x", rev: res.Rev, due: res.Due})
			r.await(t, 21, 20*time.Second)
			took := time.Since(began)
			require.Greater(t, took, 2400*time.Millisecond)
			require.Less(t, took, 2450*time.Millisecond+time.Second*timerstest.Slow)
			nothingLeft(t, rs.Client())
			l.check(t, onStream(t, nc))
		})
	}
}
