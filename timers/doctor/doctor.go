// Package doctor looks at a deployment and explains what it finds: what is
// there, what should be, what the difference costs, and the line or command that
// mends it (docs/decisions.md, ADR 31).
//
// It looks from the outside, over two connections of its own, with the settings
// of lapse serve: so it works before the first start, beside a running instance,
// and from within one. It writes nothing that stays. Every look is bounded:
// nothing grows with the number of timers.
//
//	redis.go, config.go  what Redis is, and how it is set
//	rights.go            what Redis lets the user do
//	nats.go, stream.go   what NATS is, its streams, its permissions
//	data.go              the records under the prefix
//	events.go            a key that is made to expire, and the way of its event
//	service.go           the instances, and what they say of themselves
//	fix.go               what can safely be set at run time
package doctor

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/lapse-timers/lapse/timers"
	"github.com/lapse-timers/lapse/timers/service"
	"github.com/lapse-timers/lapse/timers/settings"
	"github.com/lapse-timers/lapse/timers/wire"
)

// Deployment is what is looked at, and how to reach it.
type Deployment struct {
	Settings settings.Settings // checked ([settings.Settings.Check])
	RedisURL string            // where Redis is, also when Settings say embedded
	NATS     service.ConnConfig

	// Absent says why there is no embedded server to connect to: RedisURL or
	// NATS.URL is "" then, or nobody listens there. It is shown with both.
	Absent string
}

// Embedded puts the addresses of embedded servers where the settings ask for
// such, and absent for when nobody is there.
func (d *Deployment) Embedded(redisURL, natsURL, absent string) {
	d.Absent = absent
	if d.Settings.RedisURL == settings.Embedded {
		d.RedisURL = redisURL
	}
	if d.Settings.NATSURL == settings.Embedded {
		d.NATS.URL = natsURL
	}
}

// wait bounds each question to a server, and look the whole of [Run].
const (
	wait = 3 * time.Second
	look = time.Minute
)

// Run looks at the deployment and takes about a second, at most a minute. It
// opens one connection to Redis, one for a subscription and one to NATS, and
// closes them. It is safe to call at any time, also from a running instance;
// not more often than somebody looks, since it costs Redis some hundred
// commands.
func Run(ctx context.Context, d Deployment) wire.DoctorReport {
	e := examine(ctx, d)
	defer e.close()
	return e.report()
}

// exam is one look at a deployment.
type exam struct {
	d        Deployment
	cfg      settings.Settings
	prefix   wire.Prefix
	findings []wire.Finding
	fixes    []fix

	redis redisSide
	nats  natsSide
	alive int // instances that serve the prefix; -1 when not known
}

func examine(ctx context.Context, d Deployment) *exam {
	ctx, cancel := context.WithTimeout(ctx, look)
	defer cancel()
	e := &exam{d: d, cfg: d.Settings, prefix: wire.Prefix(d.Settings.Prefix), alive: -1}
	e.lookAtRedis(ctx)
	e.lookAtNATS(ctx)
	e.lookAtService(ctx) // before the data: whether they are late depends on who is there
	e.lookAtData(ctx)
	e.lookAtEvents(ctx)
	return e
}

func (e *exam) close() {
	e.redis.close()
	e.nats.close()
}

func (e *exam) report() wire.DoctorReport {
	r := wire.DoctorReport{Findings: []wire.Finding{}}
	for _, part := range wire.DoctorParts {
		for _, f := range e.findings {
			if f.Part == part {
				r.Findings = append(r.Findings, f)
			}
		}
	}
	for _, f := range r.Findings {
		switch f.Status {
		case wire.FindingOK:
			r.OK++
		case wire.FindingWarn:
			r.Warn++
		case wire.FindingFail:
			r.Fail++
		default:
			r.Unknown++
		}
	}
	return r
}

// ok notes a check that found nothing wrong.
func (e *exam) ok(part, check, found string, args ...any) {
	if len(args) > 0 {
		found = fmt.Sprintf(found, args...)
	}
	e.findings = append(e.findings, wire.Finding{Check: check, Part: part, Status: wire.FindingOK, Found: found})
}

// unknown notes a check that could not be made.
func (e *exam) unknown(part, check, why string, remedy ...string) {
	e.findings = append(e.findings, wire.Finding{Check: check, Part: part, Status: wire.FindingUnknown, Why: why, Remedy: lines(remedy...)})
}

// found notes a check that found something. repair does what the remedy says
// where that is safe at run time, else it is nil.
func (e *exam) found(f wire.Finding, repair func(context.Context) error) {
	if f.Status == "" {
		f.Status = wire.FindingFail
	}
	f.Fixable = repair != nil
	e.findings = append(e.findings, f)
	if repair != nil {
		e.fixes = append(e.fixes, fix{check: f.Check, do: repair})
	}
}

// status is that of a check already made, "" before.
func (e *exam) status(check string) string {
	i := slices.IndexFunc(e.findings, func(f wire.Finding) bool { return f.Check == check })
	if i < 0 {
		return ""
	}
	return e.findings[i].Status
}

func lines(l ...string) string { return strings.Join(l, "\n") }

// quoted makes s one word of a shell: names of timers hold nearly anything.
func quoted(s string) string {
	if s != "" && !strings.ContainsFunc(s, func(r rune) bool {
		return !strings.ContainsRune("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-./:=,@%+", r)
	}) {
		return s
	}
	return "'" + strings.ReplaceAll(s, "'", `'\''`) + "'"
}

// redisSide is the connection to Redis, and what it said of itself.
type redisSide struct {
	rdb   *redis.Client // nil when it does not answer
	opt   *redis.Options
	store *timers.Store
	cli   string            // the redis-cli command that reaches it
	info  map[string]string // INFO; nil when it was refused
	user  string
	conf  map[string]string // CONFIG GET
	noCfg string            // why conf is empty, or ""
}

func (r *redisSide) close() {
	if r.rdb != nil {
		_ = r.rdb.Close() // it holds no data
	}
}

func (r *redisSide) channel() string { return timers.ExpiredChannel(r.opt.DB) }
