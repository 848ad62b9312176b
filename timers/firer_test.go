package timers

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"net"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"
)

// Whatever the settings allow, a back-off is positive and within its bounds.
func TestBackOffIsBounded(t *testing.T) {
	t.Parallel()
	for _, s := range [][2]time.Duration{
		{100 * time.Millisecond, 30 * time.Second}, {time.Millisecond, time.Millisecond}, {20 * time.Second, 30 * time.Second},
		{time.Minute, time.Minute}, {time.Hour, time.Hour}, {time.Hour, 24 * time.Hour}, {time.Millisecond, 24 * time.Hour},
	} {
		f := &Firer{cfg: FirerConfig{RetryMin: s[0], RetryMax: s[1]}}
		for _, attempt := range []int{0, 1, 2, 3, 10, 23, 24, 26, 29, 30, 31, 62, 63, 64, 65, 1000, math.MaxInt} {
			want := s[1]
			if attempt <= 1 {
				want = s[0]
			}
			d := f.backOff(attempt)
			require.LessOrEqual(t, d, want, "%v, attempt %d", s, attempt)
			require.GreaterOrEqual(t, d, min(s[0]*4/5, want), "%v, attempt %d", s, attempt)
		}
	}
	f := &Firer{cfg: FirerConfig{RetryMin: time.Second, RetryMax: time.Minute}}
	require.InDelta(t, 8*time.Second, f.backOff(4), float64(1700*time.Millisecond), "it doubles")
}

type reply string

func (r reply) Error() string { return string(r) }
func (reply) RedisError()     {}

// An error may only say that nothing was stored where that is known.
func TestWriteErrorsAreSorted(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		err  error
		want error
	}{
		{dialError{errors.New("connection refused")}, ErrUnavailable},
		{fmt.Errorf("wrapped: %w", dialError{errors.New("connection refused")}), ErrUnavailable},
		{redis.ErrPoolTimeout, ErrUnavailable},
		{redis.ErrClosed, ErrUnavailable},
		{reply("LOADING Redis is loading the dataset in memory"), ErrUnavailable},
		{reply("ERR READONLY You can't write against a read only replica."), ErrUnavailable},
		{reply("MISCONF Redis is configured to save RDB snapshots, but it's currently unable to persist to disk."), ErrUnavailable},
		{reply("ERR Error running script (call to f_c0ffee): @user_script:57: @user_script: 57: -READONLY You can't write against a read only replica. "), ErrUnavailable},
		{reply("OOM command not allowed when used memory > 'maxmemory'. script: c0ffee, on @user_script:57."), ErrOutOfMemory},
		{reply("ERR Error running script (call to f_c0ffee): @user_script:57: @user_script: 57: -OOM command not allowed when used memory > 'maxmemory'. "), ErrOutOfMemory},
		{reply("ERR OOM command not allowed"), ErrOutOfMemory},
		{reply("NOPERM this user has no permissions to run the 'hset' command"), ErrUnconfirmed},
		{reply("ERR Error running script (call to f_c0ffee): @user_script:60: user_script:60: attempt to index nil"), ErrUnconfirmed},
		{reply("ERR upstream failure"), ErrUnconfirmed},
		{reply("WRONGTYPE Operation against a key holding the wrong kind of value script: " + scriptBury.Hash() + ", on @user_script:87."), ErrUnconfirmed},
		{reply("WRONGTYPE Operation against a key holding the wrong kind of value script: " + scriptSet.Hash() + ", on @user_script:59."), ErrUnavailable},
		{reply("ERR Error running script (call to f_" + scriptCancel.Hash() + "): @user_script:55: WRONGTYPE Operation against a key holding the wrong kind of value "), ErrUnavailable},
		{net.ErrClosed, ErrUnconfirmed},
		{errors.New("EOF"), ErrUnconfirmed},
	} {
		require.ErrorIs(t, writeError(c.err), c.want, c.err.Error())
	}
	require.NoError(t, writeError(nil))
}

// Every timer that was given up on is said, though thousands die at once and then
// none, and though the process ends.
func TestAllTheDeadAreSaid(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var log bytes.Buffer
		logger := slog.New(slog.NewJSONHandler(&log, nil))
		var l deadLog
		said := func() (counts []int) {
			l.mu.Lock()
			defer l.mu.Unlock()
			for line := range strings.Lines(log.String()) {
				var l struct{ Count int }
				require.NoError(t, json.Unmarshal([]byte(line), &l))
				counts = append(counts, l.Count)
			}
			return counts
		}
		die := func(n int) {
			for range n {
				l.add(logger, &Burial{Claim: &Claim{Ref: Ref{Topic: "orders", ID: "a"}}, Reason: "full"})
			}
		}
		die(5000)
		require.Equal(t, []int{1}, said(), "the first at once")
		time.Sleep(deadSaid)
		synctest.Wait()
		require.Equal(t, []int{1, 4999}, said())
		time.Sleep(10 * deadSaid)
		synctest.Wait()
		require.Equal(t, []int{1, 4999}, said(), "nothing of nobody")
		die(2)
		l.end(logger)
		require.Equal(t, []int{1, 4999, 1, 1}, said())
		time.Sleep(10 * deadSaid)
		synctest.Wait()
		require.Equal(t, []int{1, 4999, 1, 1}, said())
	})
}
