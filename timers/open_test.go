package timers_test

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/lapse-timers/lapse/timers"
)

// Each command that a script runs is asked for at the start: refused half-way,
// a set would leave a timer without its records.
func TestOpenRefusesAUserWithoutARight(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	used := map[string]bool{}
	files, err := filepath.Glob("lua/*.lua")
	require.NoError(t, err)
	for _, file := range files {
		b, err := os.ReadFile(file)
		require.NoError(t, err)
		for _, m := range regexp.MustCompile(`(?:redis\.p?call|each)\('([A-Z]+)'`).FindAllStringSubmatch(string(b), -1) {
			used[strings.ToLower(m[1])] = true
		}
	}
	require.True(t, used["hset"] && used["zrangebyscore"] && used["unlink"], "%v", used)
	require.True(t, used["zrandmember"])
	delete(used, "zrandmember") // of topics.lua alone: the page does without it, a Lapse need not
	for command := range used {
		require.NoError(t, r.rdb.Do(t.Context(), "ACL", "SETUSER", "short", "reset", "on", ">pw", "~*", "+@all", "-"+command).Err())
		opt, err := timers.ParseRedisURL(r.server.URL())
		require.NoError(t, err)
		opt.Username, opt.Password = "short", "pw"
		rdb := redis.NewClient(opt)
		err = timers.NewStore(rdb, r.keys).Open(t.Context())
		rdb.Close()
		require.ErrorIs(t, err, timers.ErrRedisAuth, command)
		require.Contains(t, strings.ToLower(err.Error()), command)
	}
	r.clean()
}

// What is due must drain after a restart over maxmemory too.
func TestOpenOverMaxmemory(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	require.NoError(t, r.rdb.ConfigSet(t.Context(), "maxmemory", "1").Err())
	require.NoError(t, timers.NewStore(r.rdb, r.keys).Open(t.Context()))
	r.clean()
}

func TestServerSaysWhyWritesFail(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	trouble := func() (string, bool) {
		s, err := timers.Inspect(t.Context(), r.rdb)
		require.NoError(t, err)
		return s.Trouble()
	}
	why, down := trouble()
	require.Empty(t, why)
	require.False(t, down)
	require.NoError(t, r.rdb.ConfigSet(t.Context(), "maxmemory", "1").Err())
	why, down = trouble()
	require.Contains(t, why, "maxmemory")
	require.False(t, down, "what is due still fires")
	require.NoError(t, r.rdb.ReplicaOf(t.Context(), "127.0.0.1", "1").Err())
	why, down = trouble()
	require.Contains(t, why, "replica")
	require.True(t, down)
}
