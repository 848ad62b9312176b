package service

import (
	"context"
	"log/slog"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/lapse-timers/lapse/timers"
	"github.com/lapse-timers/lapse/timers/timerstest"
	"github.com/lapse-timers/lapse/timers/wire"
)

// run runs a service for a NATS user with the permissions, until the test ends.
func run(t *testing.T, permissions *server.Permissions) (*Service, *timerstest.NATSServer) {
	t.Helper()
	ns := timerstest.NATS(t, func(o *server.Options) {
		o.Users = []*server.User{{Username: "lapse", Password: "pw", Permissions: permissions}, {Username: "all", Password: "pw"}}
	})
	opt, err := timers.ParseRedisURL(timerstest.Redis(t).URL())
	require.NoError(t, err)
	rdb := redis.NewClient(opt)
	t.Cleanup(func() { rdb.Close() })
	keys, err := timers.NewKeys("timers", 1)
	require.NoError(t, err)
	store := timers.NewStore(rdb, keys)
	require.NoError(t, store.Open(t.Context()))
	nc, err := Connect(ConnConfig{URL: ns.URL(), Options: []nats.Option{nats.UserInfo("lapse", "pw")}}, "test", false)
	require.NoError(t, err)
	t.Cleanup(nc.Close)
	s := New(Config{Conn: nc, Store: store, Prefix: "timers", RequestTimeout: time.Second, MaxSize: func() int { return 1 << 20 },
		Scheduled: func(int, time.Time) {}, Stream: func() string { return "" }, Firer: timers.NewFirer(store, nil, timers.FirerConfig{}),
		Health: func(context.Context) wire.HealthReply { return wire.HealthReply{} }, Counts: func(*wire.CountStats) {}, Logger: slog.New(slog.DiscardHandler)})
	ctx, cancel := context.WithCancel(context.Background())
	ready, done := make(chan struct{}), make(chan error, 1)
	go func() { done <- s.Run(ctx, func(context.Context) error { close(ready); return nil }) }()
	t.Cleanup(func() {
		cancel()
		require.NoError(t, <-done)
	})
	select {
	case <-ready:
	case <-time.After(10 * time.Second):
		t.Fatal("not ready")
	}
	return s, ns
}

func TestMissingRightToSubscribeShows(t *testing.T) {
	s, _ := run(t, &server.Permissions{Subscribe: &server.SubjectPermission{Deny: []string{"timers.cancel.>"}}})
	timerstest.Eventually(t, 5*time.Second, "health is down", func() bool { return s.Health().Status == wire.HealthDown })
	require.Contains(t, s.Health().Why, "subscribe to timers.cancel.>")
}

func TestMissingRightToReplyShows(t *testing.T) {
	s, ns := run(t, &server.Permissions{Publish: &server.SubjectPermission{Deny: []string{"_INBOX.>", "elsewhere"}}})
	require.Equal(t, wire.HealthOK, s.Health().Status)
	nc := ns.Connect(t, nats.UserInfo("all", "pw"))

	// A requester must not be able to make the service look ill.
	require.NoError(t, nc.PublishRequest("timers.get.a", "elsewhere", []byte("x")))
	require.NoError(t, nc.PublishRequest("timers.get.a", "elsewhere2", []byte("x")))
	sub, err := nc.SubscribeSync("elsewhere2")
	require.NoError(t, err)
	timerstest.Eventually(t, 5*time.Second, "an answer elsewhere", func() bool {
		require.NoError(t, nc.PublishRequest("timers.get.a", "elsewhere2", []byte("x")))
		_, err := sub.NextMsg(50 * time.Millisecond)
		return err == nil
	})
	require.Equal(t, wire.HealthOK, s.Health().Status)

	require.NoError(t, nc.PublishRequest("timers.get.a", nc.NewInbox(), []byte("x")))
	timerstest.Eventually(t, 5*time.Second, "health is degraded", func() bool { return s.Health().Status == wire.HealthDegraded })
}
