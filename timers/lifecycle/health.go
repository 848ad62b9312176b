package lifecycle

import (
	"context"
	"log/slog"
	"time"

	"github.com/lapse-timers/lapse/timers/wire"
)

// lookEvery is how often [WatchHealth] looks while all is well: each look costs
// Redis a command, also of an instance that has nothing else to do. What lasts
// for less may go unsaid. lookAgain is how often while something is not.
const (
	lookEvery = 3 * time.Second
	lookAgain = time.Second
)

// WatchHealth looks at the health of the named parts every three seconds, and
// every second while one of them is not well, until ctx ends, and says one line for each change: degraded, with the status and the
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
		h, next := health(ctx), lookEvery
		if ctx.Err() != nil {
			return // what failed now failed for that
		}
		for _, part := range parts {
			now, known := h.Parts[part]
			if known && now.Status != wire.HealthOK {
				next = lookAgain
			}
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
		tick.Reset(next)
	}
}
