package metrics

import (
	"log/slog"
	"net/http"
	"runtime"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/lapse-timers/lapse/timers"
	"github.com/lapse-timers/lapse/timers/wire"
)

// Options are what a [Metrics] works with.
type Options struct {
	Version string   // of this build
	Topics  Topics   // which have a label of their own
	Verbs   []string // of requests

	// Sample asks Redis and the parts how they are. It is called at most once a
	// second, while a scrape waits, with a context of a second. Required.
	Sample Sample

	Logger *slog.Logger // of what goes wrong in a scrape; nil means none
}

// Metrics counts. Make it with [New]; its methods are safe for concurrent use.
type Metrics struct {
	registry *prometheus.Registry
	state    *state
	logger   *slog.Logger

	lag      [2]prometheus.Observer // by source
	attempts prometheus.Observer
	publish  [3]prometheus.Observer // by timers.Outcome
	fires    *byTopic[fireCounters]
	verbs    map[string]*verbMetrics
	calls    map[string]*callMetrics
}

// fireCounters are those of one topic: by source, and by how it ended.
type fireCounters [2][len(fireOutcomes)]prometheus.Counter

// How an attempt ended, as the label says it.
var fireOutcomes = [...]string{"delivered", "duplicate", "refused", "unknown", "dead"}

const (
	delivered = iota
	duplicate
	refused
	unknown
	dead
)

var sources = [...]timers.Source{timers.FromEvent, timers.FromSweep}

func sourceIndex(s timers.Source) int {
	if s == timers.FromEvent {
		return 0
	}
	return 1
}

type verbMetrics struct {
	ok    prometheus.Counter
	words map[wire.Word]prometheus.Counter
	took  prometheus.Observer
}

type callMetrics struct {
	took   prometheus.Observer
	errors prometheus.Counter
}

// outcomeOK is what a request without an error has in place of its word.
const outcomeOK = "ok"

// seconds are the bounds of the classic buckets. Lag is a few milliseconds when
// all is well, and minutes after an outage.
var (
	lagSeconds  = []float64{.001, .002, .005, .01, .02, .05, .1, .25, .5, 1, 2.5, 5, 10, 30, 60, 300, 1800, 7200}
	tookSeconds = []float64{.0001, .00025, .0005, .001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5}
	tries       = []float64{1, 2, 3, 5, 10, 20, 50, 100}
)

// histogram is a native and a classic one in one: Prometheus takes the first
// where it is set to, and everybody else the second.
func histogram(name, help string, buckets []float64) prometheus.HistogramOpts {
	return prometheus.HistogramOpts{
		Name: name, Help: help, Buckets: buckets,
		// Each bucket is a tenth wider than the one below. What has more than 160
		// of them is made coarser, or begun anew after an hour.
		NativeHistogramBucketFactor:     1.1,
		NativeHistogramMaxBucketNumber:  160,
		NativeHistogramMinResetDuration: time.Hour,
	}
}

// New makes the registry. Everything that can be counted is there from the
// start, with zero.
func New(opt Options) *Metrics {
	if opt.Sample == nil {
		panic("metrics: Sample is required")
	}
	if opt.Logger == nil {
		opt.Logger = slog.New(slog.DiscardHandler)
	}
	m := &Metrics{registry: prometheus.NewRegistry(), state: &state{sample: opt.Sample}, logger: opt.Logger}

	lag := prometheus.NewHistogramVec(histogram("lapse_fire_lag_seconds",
		"From the due time to the acknowledgement of the delivery, on Redis's clock, by what fired the timer.", lagSeconds), []string{"source"})
	attempts := prometheus.NewHistogram(histogram("lapse_fire_attempts",
		"Attempts that a timer took until it was delivered or given up on.", tries))
	publish := prometheus.NewHistogramVec(histogram("lapse_publish_duration_seconds",
		"From handing an attempt to NATS to knowing how it ended.", tookSeconds), []string{"outcome"})
	fires := prometheus.NewCounterVec(prometheus.CounterOpts{Name: "lapse_fires_total",
		Help: "Attempts to deliver, by how they ended: delivered, duplicate (delivered, and already stored by an earlier attempt), refused, unknown, or dead (given up on). A timer has one of the first two or of the last in the end."},
		[]string{"source", "outcome", "topic"})
	requests := prometheus.NewCounterVec(prometheus.CounterOpts{Name: "lapse_requests_total",
		Help: "Requests that were answered, by verb and outcome: ok, or the word of the error."}, []string{"verb", "outcome"})
	requestTook := prometheus.NewHistogramVec(histogram("lapse_request_duration_seconds",
		"From the receipt of a request to its answer.", tookSeconds), []string{"verb"})
	callTook := prometheus.NewHistogramVec(histogram("lapse_redis_call_duration_seconds",
		"How long Redis took to answer, by script; a call may be for many timers.", tookSeconds), []string{"call"})
	callErrors := prometheus.NewCounterVec(prometheus.CounterOpts{Name: "lapse_redis_call_errors_total",
		Help: "Calls of Redis that failed or were not answered in time, by script."}, []string{"call"})
	build := prometheus.NewGauge(prometheus.GaugeOpts{Name: "lapse_build_info", Help: "1; the labels say what was built.",
		ConstLabels: prometheus.Labels{"version": opt.Version, "goversion": runtime.Version()}})
	build.Set(1)
	m.registry.MustRegister(lag, attempts, publish, fires, requests, requestTook, callTook, callErrors, build, m.state,
		collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))

	m.attempts = attempts
	for i, source := range sources {
		m.lag[i] = lag.WithLabelValues(string(source))
	}
	for outcome, label := range map[timers.Outcome]int{timers.Delivered: delivered, timers.Refused: refused, timers.Unknown: unknown} {
		m.publish[outcome] = publish.WithLabelValues(fireOutcomes[label])
	}
	m.fires = newByTopic(opt.Topics, func(topic string) *fireCounters {
		c := &fireCounters{}
		for i, source := range sources {
			for j, outcome := range fireOutcomes {
				c[i][j] = fires.WithLabelValues(string(source), outcome, topic)
			}
		}
		return c
	})
	m.verbs = make(map[string]*verbMetrics, len(opt.Verbs))
	for _, verb := range opt.Verbs {
		v := &verbMetrics{ok: requests.WithLabelValues(verb, outcomeOK), words: map[wire.Word]prometheus.Counter{}, took: requestTook.WithLabelValues(verb)}
		for _, word := range wire.Words() {
			v.words[word] = requests.WithLabelValues(verb, string(word))
		}
		m.verbs[verb] = v
	}
	m.calls = make(map[string]*callMetrics)
	for _, call := range timers.Calls() {
		m.calls[call] = &callMetrics{callTook.WithLabelValues(call), callErrors.WithLabelValues(call)}
	}
	return m
}

// Watch says whose counts a scrape reads too. Until then they are left out.
func (m *Metrics) Watch(s Sources) { m.state.sources.Store(&s) }

// Attempt counts how an attempt to deliver ended.
func (m *Metrics) Attempt(a timers.Attempt) {
	source, outcome := sourceIndex(a.Source), unknown
	switch {
	case a.Dead:
		outcome = dead
	case a.Outcome == timers.Delivered && a.Duplicate:
		outcome = duplicate
	case a.Outcome == timers.Delivered:
		outcome = delivered
	case a.Outcome == timers.Refused:
		outcome = refused
	}
	m.fires.of(a.Topic)[source][outcome].Inc()
	m.publish[a.Outcome].Observe(a.Took.Seconds())
	if a.Outcome == timers.Delivered {
		m.lag[source].Observe(a.Lag.Seconds())
	}
	if a.Dead || a.Outcome == timers.Delivered {
		m.attempts.Observe(float64(a.Number))
	}
}

// Request counts a request that was answered; word is that of the error, "" for
// none.
func (m *Metrics) Request(verb string, word wire.Word, took time.Duration) {
	v := m.verbs[verb]
	if v == nil {
		return // no verb of Options
	}
	switch c := v.words[word]; {
	case word == "":
		v.ok.Inc()
	case c != nil:
		c.Inc()
	default:
		v.words[wire.Internal].Inc()
	}
	v.took.Observe(took.Seconds())
}

// Call counts a call of Redis, one of [timers.Calls].
func (m *Metrics) Call(call string, took time.Duration, err error) {
	c := m.calls[call]
	if c == nil {
		return
	}
	c.took.Observe(took.Seconds())
	if err != nil {
		c.errors.Inc()
	}
}

// Limits of a scrape.
const (
	scrapes     = 4 // at a time; more are answered with 503
	scrapeLimit = 8 * time.Second
)

// Handler answers scrapes, as text, or as Protocol Buffers where they ask for
// it, which native histograms need.
func (m *Metrics) Handler() http.Handler {
	return promhttp.HandlerFor(m.registry, promhttp.HandlerOpts{
		ErrorLog:            slog.NewLogLogger(m.logger.Handler(), slog.LevelDebug), // scrapers that went away, mostly
		ErrorHandling:       promhttp.ContinueOnError,
		MaxRequestsInFlight: scrapes,
		Timeout:             scrapeLimit,
	})
}
