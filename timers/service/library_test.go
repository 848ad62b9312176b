package service

import (
	"encoding/json"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/micro"
	"github.com/stretchr/testify/require"

	"github.com/lapse-timers/lapse/timers/timerstest"
)

// An endpoint that was too slow for a while, so that the library dropped
// requests, goes on: releases of it before 1.55 stopped the whole service at the
// first such report. It is what the service stands on, so an upgrade must keep it.
func TestSlowEndpointGoesOn(t *testing.T) {
	ns := timerstest.NATS(t)
	server, client := ns.Connect(t), ns.Connect(t)
	var reports, handled atomic.Int64
	slow := make(chan struct{})
	svc, err := micro.AddService(server, micro.Config{Name: "slow", Version: "1.0.0",
		ErrorHandler: func(micro.Service, *micro.NATSError) { reports.Add(1) }})
	require.NoError(t, err)
	require.NoError(t, svc.AddEndpoint("slow", micro.HandlerFunc(func(r micro.Request) {
		<-slow
		handled.Add(1)
		_ = r.Respond(nil) // nobody waits for most of them
	}), micro.WithEndpointSubject("slow"), micro.WithEndpointPendingLimits(10, 1<<20)))
	require.NoError(t, server.Flush())
	const n = 500
	for range n {
		require.NoError(t, client.PublishRequest("slow", nats.NewInbox(), nil))
	}
	require.NoError(t, client.Flush())
	timerstest.Eventually(t, 10*time.Second, "the report", func() bool { return reports.Load() > 0 })
	close(slow)
	timerstest.Eventually(t, 10*time.Second, "those that waited are handled", func() bool { return handled.Load() >= 10 })
	require.Less(t, handled.Load(), int64(n), "some were dropped")
	require.False(t, svc.Stopped())
	for _, subject := range []string{"slow", "$SRV.PING.slow", "$SRV.STATS.slow"} {
		m, err := client.Request(subject, nil, 10*time.Second)
		require.NoError(t, err, subject)
		if subject != "slow" {
			require.True(t, json.Valid(m.Data))
		}
	}
}
