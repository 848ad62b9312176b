package doctor

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"fmt"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/lapse-timers/lapse/timers/wire"
)

// The probes of the event path: so many, and so long for each.
const (
	probes   = 3
	heardBy  = 2 * time.Second
	probeLag = 100 * time.Millisecond // slower than this at best is worth a warning
)

// lookAtEvents lets keys of its own expire as a trigger does, touched as the
// nudge touches them, and waits for their events (ADR 27). A running instance
// hears them as it hears its own.
func (e *exam) lookAtEvents(ctx context.Context) {
	if e.redis.store == nil {
		e.unknown("events", "event-path", "Redis does not answer")
		return
	}
	sub := e.subscribe(ctx)
	if sub == nil {
		e.unknown("events", "event-path", "the channel cannot be subscribed to; see redis-channel")
		return
	}
	defer sub.Close() //nolint:errcheck // it only reads
	if e.status("redis-role") == wire.FindingFail {
		e.unknown("events", "event-path", "a replica takes no writes; see redis-role")
		return
	}
	heard, best := 0, time.Hour
	for range probes {
		lag, ok, err := e.probe(ctx, sub)
		if err != nil {
			if isRefusal(err, "NOREPLICAS") {
				e.found(wire.Finding{Check: "event-path", Part: "events", Found: "Redis takes no writes: " + err.Error(), Wanted: "writes, and an event of a key that expires",
					Why:    "no timer can be set, cancelled or fired: requests are answered 503",
					Remedy: lines("# connect the replicas that min-replicas-to-write wants (redis-cli INFO replication), or do without:", e.configLines("min-replicas-to-write", "0"))}, nil)
				return
			}
			e.unknown("events", "event-path", "Redis takes no key that expires: "+err.Error())
			return
		}
		if !ok {
			break // each one takes its time
		}
		heard++
		best = min(best, lag)
	}
	f := wire.Finding{Check: "event-path", Part: "events", Found: "a key expired and its event did not come within " + heardBy.String(), Wanted: "its event within milliseconds"}
	switch {
	case heard == 0 && e.status("notify-flags") == wire.FindingFail:
		f.Why = "Redis announces nothing; see notify-flags"
		f.Remedy = e.configLines(flagsSetting, "Ex")
		if i := e.find("notify-flags"); i != nil {
			f.Remedy = i.Remedy
		}
		e.found(f, nil)
	case heard == 0:
		f.Why = "due timers are claimed without, late by LAPSE_GRACE"
		f.Remedy = lines("# name in LAPSE_REDIS_URL one server, or a proxy that passes Pub/Sub; where CONFIG is hidden, set the provider's parameter:", "redis.conf: "+flagsSetting+" Ex")
		e.found(f, nil)
	case heard < probes:
		f.Status, f.Found = wire.FindingWarn, fmt.Sprintf("%d of %d expired keys were heard", heard, heard+1)
		f.Why = "events get lost; the timers they belong to are late by LAPSE_GRACE"
		f.Remedy = lines("# see what stands between Lapse and Redis, and whether Redis is busy:", e.redis.cli+" INFO clients")
		e.found(f, nil)
	case best > probeLag:
		f.Status, f.Found = wire.FindingWarn, "an event takes "+best.Round(time.Millisecond).String()+" at best"
		f.Why = "every timer is late by that"
		f.Remedy = lines("# what Redis is busy with:", e.redis.cli+" SLOWLOG GET 10", e.redis.cli+" LATENCY LATEST")
		e.found(f, nil)
	default:
		e.ok("events", "event-path", "expired keys are heard after %s", best.Round(10*time.Microsecond))
	}
}

func (e *exam) find(check string) *wire.Finding {
	for i := range e.findings {
		if e.findings[i].Check == check {
			return &e.findings[i]
		}
	}
	return nil
}

// probe writes a key that expires, touches it, and gives how long its event took
// from then.
func (e *exam) probe(ctx context.Context, sub *redis.PubSub) (lag time.Duration, heard bool, err error) {
	random := make([]byte, 6)
	rand.Read(random) //nolint:errcheck // documented never to fail
	key := e.redis.store.Keys().EventProbe("doctor-" + hex.EncodeToString(random))
	ask, cancel := context.WithTimeout(ctx, wait)
	defer cancel()
	if err := e.redis.rdb.Set(ask, key, "", time.Millisecond).Err(); err != nil {
		return 0, false, err
	}
	began := time.Now()
	for there := int64(1); there != 0; {
		pause(ask, 2*time.Millisecond) // Redis expires it only when it is strictly past its time
		began = time.Now()
		if there, err = e.redis.rdb.Exists(ask, key).Result(); err != nil {
			return 0, false, err
		}
	}
	for deadline := began.Add(heardBy); ; {
		left := time.Until(deadline)
		if left <= 0 || ctx.Err() != nil {
			return 0, false, ctx.Err()
		}
		got, err := sub.ReceiveTimeout(ctx, left)
		if err != nil {
			return 0, false, ctx.Err() // not heard, for whatever reason
		}
		if m, ok := got.(*redis.Message); ok && m.Payload == key {
			return time.Since(began), true, nil
		}
	}
}
