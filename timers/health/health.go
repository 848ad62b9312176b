// Package health says how one instance is: how far its start has come, and how
// Redis, NATS, the subscription and the stream are as it sees them. /readyz, the
// status reply, the metrics, the log and the page all show this one answer.
package health

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/lapse-timers/lapse/timers"
	"github.com/lapse-timers/lapse/timers/wire"
)

// ErrStarting says that the parts cannot be asked yet.
var ErrStarting = errors.New("Lapse is starting")

// askRedis is how long Redis may take to say how it is.
const askRedis = time.Second

// Phase is how far an instance has come: "starting", "waiting for Redis" and the
// like, "" once it is ready, "stopping". It is safe for concurrent use.
type Phase struct {
	mu sync.Mutex
	is string
}

// Set makes it phase.
func (p *Phase) Set(phase string) {
	p.mu.Lock()
	p.is = phase
	p.mu.Unlock()
}

// Up gives [ErrStarting] until all that is made at the start is there.
func (p *Phase) Up() error {
	_, err := p.look()
	return err
}

func (p *Phase) look() (string, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.is == "starting" || strings.HasPrefix(p.is, "waiting") {
		return p.is, ErrStarting
	}
	return p.is, nil
}

// Parts are what is asked. They are read once the phase is up.
type Parts struct {
	// Redis has it say what it is, under the deadline of ctx.
	Redis       func(ctx context.Context) (timers.Server, error)
	MinReplicas int // LAPSE_MIN_REPLICAS
	// Refused says what Redis refuses although it answers, or ""; see [Refused].
	Refused func() string
	// Unwritten says that Redis carries out no writes although it answers, or ""; see
	// [timers.Crew.Unsigned].
	Unwritten func() string

	NATS, Stream func() wire.HealthPart
	// Listening says whether expired events are heard, and why not.
	Listening func() (ok bool, why string)
}

// Inspect asks the parts, Redis for at most a second, and gives what Redis said
// of itself too. The error says that Redis was not asked ([ErrStarting]) or did
// not answer; the health holds then as well.
func Inspect(ctx context.Context, phase *Phase, ask func() Parts) (h wire.HealthReply, server timers.Server, err error) {
	is, err := phase.look()
	h = wire.HealthReply{Parts: map[string]wire.HealthPart{}}
	part := func(name, status, why string) { h.Parts[name] = wire.HealthPart{Status: status, Why: why} }
	if is != "" {
		part("service", wire.HealthDown, is)
	}
	if err != nil {
		return worst(h), server, err
	}
	p := ask()
	ctx, cancel := context.WithTimeout(ctx, askRedis)
	defer cancel()
	server, err = p.Redis(ctx)
	switch why, down := server.Trouble(); {
	case err != nil:
		part("redis", wire.HealthDown, "Redis does not answer: "+err.Error())
	case down:
		part("redis", wire.HealthDown, why)
	case p.Refused() != "":
		part("redis", wire.HealthDown, p.Refused())
	case p.Unwritten() != "":
		part("redis", wire.HealthDown, p.Unwritten())
	case why != "":
		part("redis", wire.HealthDegraded, why)
	case server.Replicas < p.MinReplicas:
		part("redis", wire.HealthDegraded, fmt.Sprintf("Redis has %d replicas and LAPSE_MIN_REPLICAS wants %d: sets and cancels are carried out and answered 504; connect replicas, or lower it", server.Replicas, p.MinReplicas))
	default:
		part("redis", wire.HealthOK, "")
	}
	h.Parts["nats"], h.Parts["stream"] = p.NATS(), p.Stream()
	if ok, why := p.Listening(); ok {
		part("subscription", wire.HealthOK, why)
	} else {
		part("subscription", wire.HealthDegraded, why)
	}
	return worst(h), server, err
}

// worst gives the whole the status of its worst part.
func worst(h wire.HealthReply) wire.HealthReply {
	h.Status = wire.HealthOK
	for _, p := range h.Parts {
		if p.Status == wire.HealthDown || h.Status == wire.HealthOK {
			h.Status = p.Status
		}
	}
	return h
}
