package lifecycle

import (
	"bytes"
	"context"
	"encoding/json"
	"log/slog"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lapse-timers/lapse/timers/wire"
)

// Each change is one line, however long it lasts and whatever the words are.
func TestHealthIsSaidOnceForEachChange(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var log bytes.Buffer
		var parts atomic.Pointer[map[string]wire.HealthPart]
		parts.Store(&map[string]wire.HealthPart{})
		looks := 0
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan struct{})
		go func() {
			defer close(ended)
			WatchHealth(ctx, slog.New(slog.NewJSONHandler(&log, nil)), func(context.Context) wire.HealthReply {
				looks++
				return wire.HealthReply{Parts: *parts.Load()}
			}, "redis", "nats")
		}()
		for _, step := range []struct {
			part, status, why string
		}{
			{"redis", wire.HealthOK, ""},
			{"redis", wire.HealthDown, "port 1"},
			{"redis", wire.HealthDown, "port 2"},
			{"redis", wire.HealthDegraded, "memory"},
			{"redis", wire.HealthOK, ""},
			{"nats", wire.HealthOK, ""},
			{"nats", wire.HealthDown, "cut"},
		} {
			parts.Store(&map[string]wire.HealthPart{"other": {Status: wire.HealthDown}, step.part: {Status: step.status, Why: step.why}})
			time.Sleep(3 * lookEvery)
			synctest.Wait()
		}
		cancel()
		<-ended
		require.Equal(t, 3+7+9+9+3+3+9, looks, "every three seconds while all is well, else every second")
		type line struct{ Level, Msg, Part, Status, Why string }
		var got []line
		for d := json.NewDecoder(&log); d.More(); {
			var l line
			require.NoError(t, d.Decode(&l))
			got = append(got, l)
		}
		require.Equal(t, []line{
			{"WARN", "degraded", "redis", "down", "port 1"},
			{"WARN", "degraded", "redis", "degraded", "memory"},
			{"INFO", "recovered", "redis", "", ""},
			{"WARN", "degraded", "nats", "down", "cut"},
		}, got)
	})
}
