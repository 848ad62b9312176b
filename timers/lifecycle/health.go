package lifecycle

import (
	"context"
	"log/slog"
	"time"

	"github.com/lapse-timers/lapse/timers/wire"
)

// lookEvery is how often [WatchHealth] looks. What lasts for less may go unsaid.
const lookEvery = time.Second

// WatchHealth looks at the health of the named parts once a second until ctx
// ends, and says one line for each change: degraded, with the status and the
// reason, or recovered. It is for parts that no component speaks for. They count
// as well at first. health obeys its context; an answer without a part says
// nothing of it.
func WatchHealth(ctx context.Context, logger *slog.Logger, health func(context.Context) wire.HealthReply, parts ...string) {
	said := make(map[string]string, len(parts))
	for _, part := range parts {
		said[part] = wire.HealthOK
	}
	tick := time.NewTicker(lookEvery)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		h := health(ctx)
		if ctx.Err() != nil {
			return // what failed now failed for that
		}
		for _, part := range parts {
			now, known := h.Parts[part]
			if !known || now.Status == said[part] {
				continue
			}
			said[part] = now.Status
			if now.Status == wire.HealthOK {
				logger.Info("recovered", "part", part)
			} else {
				logger.Warn("degraded", "part", part, "status", now.Status, "why", now.Why)
			}
		}
	}
}
