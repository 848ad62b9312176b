package service

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/lapse-timers/lapse/timers/wire"
)

func (s *Service) runStatus(ctx context.Context, r readRequest) {
	s.respondJSON(r.request, s.Status(ctx))
}

// Status is what this instance knows, and what Redis says of all of them. It
// answers without Redis too: that is when people ask.
func (s *Service) Status(ctx context.Context) wire.StatusReply {
	stats, lag := s.cfg.Firer.Stats(), s.cfg.Firer.Lag()
	milliseconds := func(d time.Duration) float64 { return float64(d.Microseconds()) / 1000 }
	event, sweep := stats.Event.Load(), stats.Sweep.Load()
	reply := wire.StatusReply{
		Version: s.cfg.Version, Deployment: s.cfg.Store.Deployment(), Instance: s.cfg.Instance,
		Prefix: string(s.cfg.Prefix), Delivery: s.cfg.Delivery, Stream: s.cfg.Stream(), Started: wire.FormatTime(s.started),
		InFlight: s.cfg.Firer.InFlight(),
		Lag:      wire.LagStats{Samples: lag.Samples, P50: milliseconds(lag.P50), P99: milliseconds(lag.P99), Max: milliseconds(lag.Max)},
		Counts: wire.CountStats{
			Fired: event + sweep, FiredEvent: event, FiredSweep: sweep, Duplicates: stats.Duplicates.Load(),
			Refused: stats.Refused.Load(), Unknown: stats.Unknown.Load(), Stale: stats.Stale.Load(), Dead: stats.Dead.Load(), Repaired: stats.Repaired.Load(),
			HintsDropped: stats.HintsDropped.Load(), ClaimErrors: stats.ClaimErrors.Load(), SettleFailures: stats.SettleFailures.Load(),
			Ignored: s.ignored.Load(),
		},
	}
	s.cfg.Counts(&reply.Counts)
	ask, cancel := context.WithTimeout(ctx, s.cfg.RequestTimeout/2)
	c, err := s.cfg.Store.Count(ask)
	cancel()
	if err != nil {
		reply.CountError = "Redis cannot be read now: pending, next_due, overdue, dead and now are not known"
	} else {
		reply.Now, reply.Pending, reply.Overdue, reply.Dead = wire.FormatTime(c.Now), c.Pending, c.Overdue, c.Dead
		if !c.Next.IsZero() {
			reply.NextDue = wire.FormatTime(c.Next)
		}
	}
	reply.Health = s.cfg.Health(ctx)
	return reply
}

// Health is how requests come in and replies go out. A right that NATS does
// not give shows nowhere else: a subscription without it just stays silent.
func (s *Service) Health() wire.HealthPart {
	if !s.cfg.Conn.IsConnected() {
		return wire.HealthPart{Status: wire.HealthDown, Why: "NATS is not connected; it is tried again by itself"}
	}
	if subject := s.deafTo.Load(); subject != nil {
		return notPermitted(*subject)
	}
	if last := s.muteAt.Load(); last != 0 && time.Since(time.Unix(0, last)) < refusedFor {
		return wire.HealthPart{Status: wire.HealthDegraded, Why: "NATS does not permit Lapse to publish to _INBOX.>, so replies are lost; README.md lists the rights of its user"}
	}
	return wire.HealthPart{Status: wire.HealthOK}
}

func notPermitted(subject string) wire.HealthPart {
	return wire.HealthPart{Status: wire.HealthDown, Why: fmt.Sprintf("NATS does not permit Lapse to subscribe to %s; README.md lists the rights of its user", subject)}
}

// asyncError notes rights that NATS does not give. A refused subscription is
// final for the connection. A refused reply counts for inboxes only: any other
// reply subject is the requester's choice, who must not be able to make us
// look ill.
func (s *Service) asyncError(_ *nats.Subscription, err error) {
	right, subject, ok := deniedRight(err)
	switch {
	case !ok:
	case right == rightToSubscribe:
		if s.deafTo.CompareAndSwap(nil, &subject) {
			s.cfg.Logger.Error("NATS does not permit a subscription: requests go unanswered", "subject", subject)
		}
	case strings.HasPrefix(subject, "_INBOX."):
		now := time.Now()
		if last := s.muteAt.Swap(now.UnixNano()); now.Sub(time.Unix(0, last)) > refusedFor {
			s.cfg.Logger.Error("NATS does not permit publishing replies to _INBOX.>", "subject", subject)
		}
	}
}
