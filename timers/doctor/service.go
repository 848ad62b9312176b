package doctor

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/lapse-timers/lapse/timers/service"
	"github.com/lapse-timers/lapse/timers/wire"
)

// lookAtService asks who serves the prefix, and one of them how it is.
func (e *exam) lookAtService(ctx context.Context) {
	if e.nats.nc == nil {
		e.unknown("service", "instances", "NATS does not answer")
		return
	}
	ask, cancel := e.nats.asking(ctx)
	found, err := service.Instances(ask, e.nats.nc.Conn, e.prefix)
	cancel()
	if denied := e.nats.refusal(); denied != "" {
		e.unknown("service", "instances", "NATS does not permit to "+denied)
	} else if err != nil {
		e.unknown("service", "instances", "they cannot be asked: "+err.Error())
	} else if e.alive = len(found); e.alive == 0 {
		e.found(wire.Finding{Check: "instances", Part: "service", Status: wire.FindingWarn, Found: "no instance serves " + e.cfg.Prefix, Wanted: "one or more",
			Why: "requests go unanswered and nothing fires", Remedy: "lapse serve"}, nil)
		return
	} else {
		names, versions, deployments := map[string]bool{}, map[string]bool{}, map[string]bool{}
		for _, info := range found {
			names[info.Metadata[wire.MetaInstance]], versions[info.Version], deployments[info.Metadata[wire.MetaDeployment]] = true, true, true
		}
		e.judgeInstances(ctx, keys(names), keys(versions), keys(deployments))
	}
	e.askStatus(ctx)
}

func keys(m map[string]bool) []string { return slices.Sorted(maps.Keys(m)) }

func (e *exam) judgeInstances(ctx context.Context, names, versions, deployments []string) {
	ours := ""
	if e.redis.store != nil {
		ask, cancel := context.WithTimeout(ctx, wait)
		defer cancel()
		if record, err := e.redis.store.Record(ask); err == nil { // the data part tells
			ours = record.Deployment
		}
	}
	list := fmt.Sprintf("%d (%s), version %s", len(names), strings.Join(names, ", "), strings.Join(versions, ", "))
	switch {
	case len(deployments) > 1 || ours != "" && deployments[0] != ours:
		e.found(wire.Finding{Check: "instances", Part: "service", Found: fmt.Sprintf("instances of deployment %s; the data in this Redis is deployment %s", strings.Join(deployments, ", "), ours), Wanted: "one deployment for the prefix",
			Why: "each takes some of the other's requests, and keeps them in another Redis", Remedy: lines("# use that deployment's Redis, another NATS, or:", "LAPSE_PREFIX="+e.cfg.Prefix+"2")}, nil)
	case len(versions) > 1:
		e.found(wire.Finding{Check: "instances", Part: "service", Status: wire.FindingWarn, Found: list, Wanted: "one version, except while you upgrade", Why: "what one of them can do another may not",
			Remedy: "# restart the older ones with the newer release"}, nil)
	default:
		e.ok("service", "instances", list)
	}
}

// askStatus asks the instance that answers first, as lapse status does.
func (e *exam) askStatus(ctx context.Context) {
	ask, cancel := e.nats.asking(ctx)
	defer cancel()
	m, err := e.nats.nc.RequestWithContext(ask, e.prefix.Status(), nil)
	var s wire.StatusReply
	if err == nil {
		err = json.Unmarshal(m.Data, &s)
	}
	if err == nil && s.Instance == "" {
		err = errors.New("it is no answer of Lapse; see request-streams")
	}
	if err != nil {
		if denied := e.nats.refusal(); denied != "" {
			e.unknown("service", "health", "the user of LAPSE_NATS_URL may not "+denied+", so status cannot be asked", "# allow the user to "+denied+", or ask as one who may:", "lapse status --server nats://user:password@host:port")
			return
		}
		if errors.Is(err, nats.ErrNoResponders) {
			err = errors.New("nobody takes requests")
		}
		e.found(wire.Finding{Check: "health", Part: "service", Found: "status is not answered: " + err.Error(), Wanted: "an answer", Why: "requests go unanswered",
			Remedy: "# see the log of lapse serve, and restart it"}, nil)
		return
	}
	for _, name := range slices.Sorted(maps.Keys(s.Health.Parts)) {
		switch p := s.Health.Parts[name]; p.Status {
		case wire.HealthOK:
			e.ok("service", "health-"+name, "ok, says instance %s", s.Instance)
		case wire.HealthDegraded, wire.HealthDown:
			f := wire.Finding{Check: "health-" + name, Part: "service", Found: p.Status + ", says instance " + s.Instance, Wanted: "ok", Why: p.Why, Remedy: "# as it says; lapse status shows it again"}
			if p.Status == wire.HealthDegraded {
				f.Status = wire.FindingWarn
			}
			e.found(f, nil)
		}
	}
	lag := fmt.Sprintf("p50 %.2f ms, p99 %.2f ms over the last %d fires", s.Lag.P50, s.Lag.P99, s.Lag.Samples)
	if limit := max(time.Second, 2*e.cfg.Grace); s.Lag.Samples > 0 && s.Lag.P50 > float64(limit.Milliseconds()) {
		e.found(wire.Finding{Check: "lag", Part: "service", Status: wire.FindingWarn, Found: lag, Wanted: "a median below " + limit.String(), Why: "timers fire late",
			Remedy: lines("# it may be over: these are the last fires of instance "+s.Instance+". What makes it late is in the other findings; docs/tuning.md says what can be set", "lapse status")}, nil)
		return
	}
	if s.Lag.Samples == 0 {
		lag = "nothing has fired yet"
	}
	e.ok("service", "lag", lag)
}
