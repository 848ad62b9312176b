package timers_test

import (
	"testing"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/lapse-timers/lapse/timers"
)

func TestInspect(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	s, err := timers.Inspect(t.Context(), r.rdb)
	require.NoError(t, err)
	require.NoError(t, s.Refusal())
	require.Empty(t, s.Warnings())
	require.NoError(t, r.rdb.ConfigSet(t.Context(), "maxmemory-policy", "volatile-lru").Err())
	s, err = timers.Inspect(t.Context(), r.rdb)
	require.NoError(t, err)
	require.Len(t, s.Warnings(), 1)
	require.Contains(t, s.Warnings()[0], "late by the grace")
	require.NoError(t, r.rdb.ConfigSet(t.Context(), "maxmemory-policy", "allkeys-lru").Err())
	s, err = timers.Inspect(t.Context(), r.rdb)
	require.NoError(t, err)
	require.Len(t, s.Warnings(), 1)
	require.Contains(t, s.Warnings()[0], "LOST")
	require.ErrorContains(t, timers.Server{Version: "6.0.16"}.Refusal(), "6.2")
	require.ErrorContains(t, timers.Server{Version: "7.2.4", Cluster: true}.Refusal(), "Cluster")

	require.NoError(t, r.rdb.ConfigSet(t.Context(), "requirepass", "s3cret").Err())
	opt, err := timers.ParseRedisURL(r.server.URL())
	require.NoError(t, err)
	opt.Password = "wrong"
	bad := redis.NewClient(opt)
	defer bad.Close()
	_, err = timers.Inspect(t.Context(), bad)
	require.ErrorIs(t, err, timers.ErrRedisAuth)
	require.NotContains(t, err.Error(), "wrong ")
}

func TestRedisURLErrorsHideThePassword(t *testing.T) {
	t.Parallel()
	for _, url := range []string{"redis://user:s3cret@host:notaport", "http://user:s3cret@host", "redis://user:s3cret@host?unknown=1", "redis://user:s3cret@ho st", "s3cret"} {
		_, err := timers.ParseRedisURL(url)
		require.Error(t, err, url)
		if url != "s3cret" {
			require.NotContains(t, err.Error(), "s3cret")
		}
	}
}
