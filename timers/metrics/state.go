package metrics

import (
	"context"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/lapse-timers/lapse/notify"
	"github.com/lapse-timers/lapse/reconcile"
	"github.com/lapse-timers/lapse/timers"
	"github.com/lapse-timers/lapse/timers/wire"
)

// Sources are who counts for themselves.
type Sources struct {
	Firer    *timers.Firer
	Loop     *reconcile.Loop
	Listener *notify.Listener
	Crew     *timers.Crew

	Ignored     func() int64 // requests with a reply subject that Lapse does not publish to
	Unannounced func() int64 // dead timers that NATS was not told of
	Strange     func() int64 // replies to fired events that were no acknowledgement
}

// Sample is how the parts are, and what Redis knows.
type Sample func(ctx context.Context) Sampled

// Sampled is the outcome of a [Sample]. What Redis did not tell is nil.
type Sampled struct {
	Health wire.HealthReply
	Server *timers.Server
	Counts *timers.Counts
}

const (
	// fresh is how long a sample serves: however many scrape, Redis is asked
	// once a second.
	fresh = time.Second
	// sampleTime is how long one may take.
	sampleTime = time.Second
)

// state is read when somebody scrapes.
type state struct {
	sample  Sample
	sources atomic.Pointer[Sources]

	mu   sync.Mutex // held while a sample is taken: others wait for the same one
	last Sampled
	at   time.Time // when last was complete
}

func (s *state) sampled() Sampled {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.at.IsZero() || time.Since(s.at) > fresh {
		ctx, cancel := context.WithTimeout(context.Background(), sampleTime)
		s.last = s.sample(ctx)
		cancel()
		s.at = time.Now()
	}
	return s.last
}

func desc(name, help string, labels ...string) *prometheus.Desc {
	return prometheus.NewDesc(name, help, labels, nil)
}

// Of the sample.
var (
	descHealth = desc("lapse_part_health", "How a part is: 1 ok, 0.5 degraded (timers still fire, some other way than they should), 0 down. /readyz says why.", "part")
	descReady  = desc("lapse_ready", "1 when /readyz answers 200.")

	descPending     = desc("lapse_timers_pending", "Timers in Redis that are not dead, of all instances.")
	descOverdue     = desc("lapse_timers_overdue", "Timers that are due and not claimed by any instance.")
	descOldest      = desc("lapse_timers_overdue_seconds", "For how long the oldest of these has been due; 0 when there are none.")
	descDead        = desc("lapse_timers_dead", "Timers that were given up on and are kept, of all instances.")
	descMemory      = desc("lapse_redis_memory_bytes", "used_memory of Redis.")
	descMemoryLimit = desc("lapse_redis_memory_limit_bytes", "maxmemory of Redis; 0 for no limit.")
)

// Of the sources.
var (
	descInFlight = desc("lapse_fires_in_flight", "Timers claimed by this instance whose delivery is not settled yet.")
	descHints    = desc("lapse_hints_dropped_total", "Events that came faster than they could be claimed; the reconciler finds their timers.")
	descClaims   = desc("lapse_claim_failures_total", "Batches of timers that could not be claimed; the reconciler finds them again.")
	descSettle   = desc("lapse_settle_failures_total", "Fires whose end could not be written to Redis; they are fired again with the same Nats-Msg-Id.")
	descStale    = desc("lapse_stale_claims_total", "Claims that were not published since half of their lease was over.")
	descStrange  = desc("lapse_strange_acknowledgements_total", "Replies to fired events that were no acknowledgement of the stream.")
	descSilent   = desc("lapse_dead_unannounced_total", "Timers that were given up on without NATS being told.")
	descIgnored  = desc("lapse_requests_ignored_total", "Requests whose reply subject Lapse does not publish to.")

	descNudges   = desc("lapse_nudges_total", "Trigger keys that were touched since they were due; some more than once.")
	descLooks    = desc("lapse_looks_total", "Looks at the timers that are due next.")
	descLookFail = desc("lapse_look_failures_total", "Looks that Redis did not answer.")
	descRecover  = desc("lapse_recoveries_total", "Timers that were recovered, by what from: "+
		"sweep (no event came in time, or there were too many at once), death (claims of a dead instance given back), "+
		"lease (claimed again since a claim was never settled: its lease was over, or its instance dead), "+
		"repaired (records that did not fit together), patrol (records that no set named).", "cause")

	descEvents = desc("lapse_events_total", "Expired events of Redis: heard (of timers), ignored (of others' keys in the same database).", "result")
	descGaps   = desc("lapse_event_gaps_total", "Times that events may have been lost.")
	descResub  = desc("lapse_resubscriptions_total", "Subscriptions to expired events after the first.")
	descFlags  = desc("lapse_flag_repairs_total", "Times that letters had to be added to notify-keyspace-events.")
	descProbes = desc("lapse_event_probes_total", "Probes of the event path.")

	descCrew   = desc("lapse_crew_instances", "Instances that fire timers, as far as this one knows.")
	descDeaths = desc("lapse_crew_deaths_total", "Other instances whose end this one noticed.")
)

// Describe sends nothing: what there is depends on what is known at a scrape.
func (s *state) Describe(chan<- *prometheus.Desc) {}

// Collect is called by the registry for each scrape.
func (s *state) Collect(out chan<- prometheus.Metric) {
	gauge := func(d *prometheus.Desc, v float64, labels ...string) {
		out <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, v, labels...)
	}
	counter := func(d *prometheus.Desc, v int64, labels ...string) {
		out <- prometheus.MustNewConstMetric(d, prometheus.CounterValue, float64(v), labels...)
	}

	sampled := s.sampled()
	for part, h := range sampled.Health.Parts {
		gauge(descHealth, healthValue(h.Status), part)
	}
	ready := 0.0
	if sampled.Health.Status == wire.HealthOK || sampled.Health.Status == wire.HealthDegraded {
		ready = 1
	}
	gauge(descReady, ready)
	if r := sampled.Server; r != nil {
		gauge(descMemory, float64(r.Used))
		gauge(descMemoryLimit, float64(r.Memory))
	}
	if c := sampled.Counts; c != nil {
		gauge(descPending, float64(c.Pending))
		gauge(descOverdue, float64(c.Overdue))
		gauge(descDead, float64(c.Dead))
		age := 0.0
		if !c.Oldest.IsZero() {
			age = max(c.Now.Sub(c.Oldest).Seconds(), 0)
		}
		gauge(descOldest, age)
	}

	src := s.sources.Load()
	if src == nil {
		return
	}
	fired, loop, heard, crew := src.Firer.Stats(), src.Loop.Stats(), src.Listener.Stats(), src.Crew.Stats()
	gauge(descInFlight, float64(src.Firer.InFlight()))
	counter(descHints, fired.HintsDropped.Load())
	counter(descClaims, fired.ClaimErrors.Load())
	counter(descSettle, fired.SettleFailures.Load())
	counter(descStale, fired.Stale.Load())
	counter(descStrange, src.Strange())
	counter(descSilent, src.Unannounced())
	counter(descIgnored, src.Ignored())

	counter(descNudges, loop.Touched.Load())
	counter(descLooks, loop.Passes.Load())
	counter(descLookFail, loop.Failures.Load())
	counter(descRecover, loop.Recovered.Load(), "sweep")
	counter(descRecover, crew.Rescued.Load(), "death")
	counter(descRecover, fired.Lapsed.Load(), "lease")
	counter(descRecover, fired.Repaired.Load(), "repaired")
	counter(descRecover, loop.Mended.Load(), "patrol")

	counter(descEvents, heard.Events, "heard")
	counter(descEvents, heard.Ignored, "ignored")
	counter(descGaps, heard.Gaps)
	counter(descResub, heard.Resubscriptions)
	counter(descFlags, heard.Repairs)
	counter(descProbes, heard.Probes)

	gauge(descCrew, float64(src.Crew.Size()))
	counter(descDeaths, crew.Deaths.Load())
}

func healthValue(status string) float64 {
	switch status {
	case wire.HealthOK:
		return 1
	case wire.HealthDegraded:
		return 0.5
	}
	return 0
}
