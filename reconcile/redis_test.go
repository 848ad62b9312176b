package reconcile

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/lapse-timers/lapse/timers"
	"github.com/lapse-timers/lapse/timers/timerstest"
)

// recorder is a real store that keeps what it answered.
type recorder struct {
	*timers.Store
	mu    sync.Mutex
	scans []timers.DueScan
}

func (r *recorder) Due(ctx context.Context, p int, grace time.Duration, touch, overdue int) (timers.DueScan, error) {
	scan, err := r.Store.Due(ctx, p, grace, touch, overdue)
	if err == nil {
		r.mu.Lock()
		r.scans = append(r.scans, scan)
		r.mu.Unlock()
	}
	return scan, err
}

func openStore(t *testing.T, rs *timerstest.RedisServer) (*recorder, *redis.Client) {
	t.Helper()
	opt, err := timers.ParseRedisURL(rs.URL())
	require.NoError(t, err)
	rdb := redis.NewClient(opt)
	t.Cleanup(func() { _ = rdb.Close() }) // nothing depends on how it ends
	keys, err := timers.NewKeys("timers", 1)
	require.NoError(t, err)
	store := timers.NewStore(rdb, keys)
	require.NoError(t, store.Open(t.Context()))
	return &recorder{Store: store}, rs.Client()
}

// pending sets n timers that are due in an hour and later.
func (r *recorder) pending(t *testing.T, n int) {
	t.Helper()
	var items []timers.SetItem
	for i := range n {
		items = append(items, timers.SetItem{Ref: timers.Ref{Topic: "later", ID: fmt.Sprint(i)}, In: time.Hour + time.Duration(i)*time.Millisecond})
	}
	for batch := range slices.Chunk(items, timers.MaxBatch) {
		_, err := r.Set(t.Context(), 0, batch)
		require.NoError(t, err)
	}
}

func runLoop(t *testing.T, cfg Config) *Loop {
	t.Helper()
	cfg.Partitions = 1
	cfg.Await = func(context.Context) error { return nil }
	cfg.Missed = func(int) {}
	loop := New(cfg)
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- loop.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		require.NoError(t, <-done)
	})
	return loop
}

// One timer is due among thousands that are not, and was set last: the first
// look finds it, however many are pending. Redis's own sampler is off, so that
// nobody else can have done it.
func TestDueAmongManyInOneLook(t *testing.T) {
	rs := timerstest.Redis(t, "--enable-debug-command", "yes")
	store, rdb := openStore(t, rs)
	require.NoError(t, rdb.Do(t.Context(), "DEBUG", "SET-ACTIVE-EXPIRE", "0").Err())
	store.pending(t, 5000)
	sub := rdb.Subscribe(t.Context(), timers.ExpiredChannel(0))
	defer sub.Close()
	_, err := sub.Receive(t.Context())
	require.NoError(t, err)

	now := timers.Ref{Topic: "now", ID: "1"}
	set, err := store.Set(t.Context(), 0, []timers.SetItem{{Ref: now}})
	require.NoError(t, err)
	timerstest.Eventually(t, 5*time.Second, "it is due", func() bool {
		at, err := rdb.Time(t.Context()).Result()
		return err == nil && at.Sub(set[0].Due) > time.Millisecond
	})

	t.Run("touched", func(t *testing.T) {
		loop := runLoop(t, Config{Store: store, Grace: time.Minute, Deaf: func() bool { return false }})
		timerstest.Eventually(t, 5*time.Second, "a look", func() bool { return loop.Stats().Passes.Load() > 0 })
		msg, err := sub.ReceiveTimeout(t.Context(), 5*time.Second)
		require.NoError(t, err)
		require.Equal(t, store.Keys().Trigger(now), msg.(*redis.Message).Payload)
		store.mu.Lock()
		defer store.mu.Unlock()
		scan := store.scans[0]
		require.Equal(t, 1, scan.Touched)
		require.Zero(t, scan.Waiting)
		require.Empty(t, scan.Overdue)
		require.Equal(t, set[0].Due, scan.Oldest)
		require.Greater(t, scan.Next.Sub(scan.Now), 50*time.Minute)
	})
	t.Run("swept", func(t *testing.T) {
		store.scans = nil
		swept := make(chan []timers.Ref, 10)
		runLoop(t, Config{Store: store, Grace: time.Minute, Deaf: func() bool { return true },
			Sweep: func(ctx context.Context, p int, refs []timers.Ref) (int, error) {
				res, err := store.Claim(ctx, p, time.Hour, "token", false, 1000, refs)
				swept <- refs
				return len(res.Claims), err
			}})
		require.Equal(t, []timers.Ref{now}, <-swept)
		store.mu.Lock()
		require.Equal(t, []timers.Ref{now}, store.scans[0].Overdue)
		store.mu.Unlock()
		timerstest.Eventually(t, 5*time.Second, "it is claimed", func() bool {
			c, err := store.Count(t.Context())
			return err == nil && c.Overdue == 0 && c.Pending == 5001
		})
	})
}

// What an idle loop costs Redis does not grow with what is pending.
func TestIdleLoopCostsRedisLittle(t *testing.T) {
	store, rdb := openStore(t, timerstest.Redis(t))
	store.pending(t, 50_000)
	loop := runLoop(t, Config{Store: store, Grace: testGrace, Deaf: func() bool { return false }})
	timerstest.Eventually(t, 5*time.Second, "a look", func() bool { return loop.Stats().Passes.Load() > 0 })
	before := commands(t, rdb)
	const seconds = 5
	time.Sleep(seconds * time.Second)
	after := commands(t, rdb)
	done := map[string]int64{}
	for name, calls := range after {
		if n := calls - before[name]; n > 0 && name != "info" {
			done[name] = n
		}
	}
	t.Logf("in %d s: %v", seconds, done)
	sent := done["evalsha"] + done["eval"]
	require.LessOrEqual(t, sent, int64(2*seconds))
	require.GreaterOrEqual(t, sent, int64(seconds-1), "it does look")
	// Redis counts what a script runs as well: the time and the head of the set,
	// and a stretch of the keyspace now and then.
	for name, n := range done {
		require.Contains(t, []string{"hello", "evalsha", "eval", "time", "zrange", "scan", "zmscore"}, name)
		require.LessOrEqual(t, n, sent, name)
	}
}

// commands are the calls that Redis has counted for each command.
func commands(t *testing.T, rdb *redis.Client) map[string]int64 {
	t.Helper()
	info, err := rdb.Info(t.Context(), "commandstats").Result()
	require.NoError(t, err)
	calls := map[string]int64{}
	for line := range strings.Lines(info) {
		name, rest, ok := strings.Cut(strings.TrimPrefix(line, "cmdstat_"), ":calls=")
		if !ok {
			continue
		}
		n, _, _ := strings.Cut(rest, ",")
		calls[name], err = strconv.ParseInt(n, 10, 64)
		require.NoError(t, err)
	}
	return calls
}
