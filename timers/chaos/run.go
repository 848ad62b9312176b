package chaos

import (
	"context"
	"fmt"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/redis/go-redis/v9"

	"github.com/lapse-timers/lapse/timers/client"
	"github.com/lapse-timers/lapse/timers/timerstest"
)

// Config says what to run.
type Config struct {
	Duration time.Duration // of the faults; a run goes on until each kind has come once, up to three times as long
	Seed     uint64        // replays the sequence of faults
	Rate     int           // ids set for the first time, a second
	Kinds    []string      // names of faults; nil for all
	Settings []string      // further settings of the instances
	Faults   bool          // instances are built with the tag faults
	Lease    time.Duration // of the instances; 0 for [Lease]
	Drain    time.Duration // how long what is due may take once the last fault is over; 0 for [DefaultDrain] and the lease
	Steps    bool          // log each fault
}

const (
	streamName = "TIMERS"
	// worksWithin is how long after a fault a timer that is set must fire.
	worksWithin = 30 * time.Second
	// DefaultDrain is, beside a lease for what nobody gave back, a back-off and
	// time for servers that are slow.
	DefaultDrain = retryMax + 30*time.Second
)

// rig is a running deployment and what watches it.
type rig struct {
	t         testing.TB
	cfg       Config
	redis     *timerstest.RedisServer
	rdb       *redis.Client // past the proxies
	nats      *timerstest.NATSProcessServer
	instances []*instance
	ledger    *Ledger
	recorder  *recorder
	load      *load
	report    *Report
	fullSince time.Time // when the stream was last told to take nothing more
}

type instance struct {
	lapse           *timerstest.LapseServer
	toRedis, toNATS *Proxy
	down            bool // killed by a fault that is not over
}

// Run runs the deployment, breaks it, drains it and reports. It must be called
// from the goroutine of the test, which it fails only for troubles of its own;
// what it found is in the report.
func Run(t testing.TB, cfg Config) *Report {
	t.Helper()
	if cfg.Lease == 0 {
		cfg.Lease = Lease
	}
	if cfg.Drain == 0 {
		cfg.Drain = cfg.Lease + DefaultDrain
	}
	r := &rig{t: t, cfg: cfg, ledger: &Ledger{}, report: newReport(cfg)}
	r.start()

	var background sync.WaitGroup
	loading, stopLoad := context.WithCancel(context.Background())
	recording, stopRecording := context.WithCancel(context.Background())
	defer background.Wait()
	defer stopRecording()
	defer stopLoad()
	background.Go(func() { r.recorder.run(recording) })
	loaded := make(chan struct{})
	go func() { defer close(loaded); r.load.run(loading, cfg.Rate) }()

	began := time.Now()
	r.breakIt(began)
	r.report.Took = time.Since(began)
	stopLoad()
	t.Logf("the last fault is over after %v; waiting for what is due", r.report.Took.Round(time.Second))
	<-loaded
	r.drain()
	r.judge()
	return r.report
}

func (r *rig) start() {
	t := r.t
	r.redis, r.nats = timerstest.RedisTCP(t), timerstest.NATSProcess(t)
	r.rdb = r.redis.Client()
	settings := append([]string{
		"LAPSE_LEASE=" + r.cfg.Lease.String(), "LAPSE_RETRY_MAX=" + retryMax.String(), "GORACE=atexit_sleep_ms=0",
	}, r.cfg.Settings...)
	for range instances {
		in := &instance{toRedis: NewProxy(t, r.redis.Addr()), toNATS: NewProxy(t, strings.TrimPrefix(r.nats.URL(), "nats://"))}
		all := append([]string{"LAPSE_REDIS_URL=redis://" + in.toRedis.Addr(), "LAPSE_NATS_URL=nats://" + in.toNATS.Addr()}, settings...)
		if r.cfg.Faults {
			in.lapse = timerstest.LapseWithFaults(t, all...)
		} else {
			in.lapse = timerstest.Lapse(t, all...)
		}
		r.instances = append(r.instances, in)
	}
	for _, in := range r.instances {
		in.lapse.Launch()
	}
	for _, in := range r.instances {
		in.lapse.AwaitReady()
	}
	// Several connections: what one requester sends waits for what it sent before.
	r.load = &load{ledger: r.ledger, seed: r.cfg.Seed}
	for range 4 {
		r.load.clients = append(r.load.clients, r.client(r.connect()))
	}
	nc := r.connect()
	js, err := jetstream.New(nc)
	if err != nil {
		t.Fatal(err)
	}
	r.recorder = &recorder{nc: nc, js: js, stream: streamName, ledger: r.ledger}
	live := r.connect()
	if err := r.recorder.subscribe(t.Context(), r.client(live)); err != nil {
		t.Fatal(err)
	}
}

// connect connects past the proxies. That NATS is gone for a moment is no news.
func (r *rig) connect() *nats.Conn {
	return r.nats.Connect(r.t, nats.ErrorHandler(func(*nats.Conn, *nats.Subscription, error) {}))
}

func (r *rig) client(nc *nats.Conn) *client.Client {
	c, err := client.New(nc, client.Timeout(4*time.Second))
	if err != nil {
		r.t.Fatal(err)
	}
	return c
}

// turn is a lane of faults on its way through its plan.
type turn struct {
	plan  *plan
	step  *step     // nil between faults
	ended bool      // the step is over, and has not worked yet
	at    time.Time // when to go on
	begun time.Time
	over  time.Time
	watch *Watch
}

// breakIt carries out the plans of the two lanes, which overlap, on this
// goroutine alone.
func (r *rig) breakIt(began time.Time) {
	turns := []*turn{
		{plan: newPlan(r.cfg.Seed, func(l lane) bool { return l == ofInstance }, 3*time.Second, r.cfg.Kinds), at: began.Add(500 * time.Millisecond)},
		{plan: newPlan(r.cfg.Seed, func(l lane) bool { return l != ofInstance }, 200*time.Millisecond, r.cfg.Kinds), at: began.Add(500 * time.Millisecond)},
	}
	sampled, told := began, began
	for !r.t.Failed() {
		if time.Since(sampled) > 500*time.Millisecond {
			sampled = time.Now()
			r.sample()
		}
		if time.Since(told) > 30*time.Second {
			told = time.Now()
			r.t.Logf("after %v: %d sets, %d faults, %d timers due and not there yet", time.Since(began).Round(time.Second), r.ledger.Sets(), r.report.count(), r.ledger.Outstanding(told))
		}
		over := time.Since(began) > r.cfg.Duration && (r.report.each(r.cfg.Kinds, 1) || time.Since(began) > 3*r.cfg.Duration)
		busy := false
		for _, tn := range turns {
			r.advance(tn, over)
			busy = busy || tn.step != nil
		}
		if over && !busy {
			return
		}
		time.Sleep(5 * time.Millisecond)
	}
}

func (r *rig) advance(tn *turn, over bool) {
	now := time.Now()
	switch {
	case tn.step == nil:
		if over || now.Before(tn.at) {
			return
		}
		if tn.step = tn.plan.next(); tn.step == nil {
			return
		}
		r.alive()
		if r.cfg.Steps {
			r.t.Logf("%s", tn.step)
		}
		tn.begun = now
		for _, k := range tn.step.kinds {
			r.mark(tn.step, k, true)
			k.begin(r, tn.step)
		}
		tn.at = time.Now().Add(tn.step.hold)
	case !tn.ended:
		if now.Before(tn.at) {
			return
		}
		for _, k := range tn.step.kinds {
			k.end(r, tn.step)
			r.mark(tn.step, k, false)
		}
		tn.ended, tn.over, tn.watch = true, time.Now(), r.ledger.Watch()
	default:
		works := r.ledger.Works(tn.watch)
		if works.IsZero() && now.Sub(tn.over) < worksWithin {
			return
		}
		r.ledger.Forget(tn.watch)
		r.report.fault(tn.step, tn.begun, tn.over, works)
		tn.at = now.Add(tn.step.pause)
		tn.step, tn.ended = nil, false
	}
}

// mark notes that an instance is down on purpose.
func (r *rig) mark(s *step, k *Kind, down bool) {
	if k.Name == "instance killed" {
		r.instance(s).down = down
	}
}

// alive finds instances that ended by themselves, and starts them again.
func (r *rig) alive() {
	for i, in := range r.instances {
		if !in.down && !in.lapse.Running() {
			r.report.Ended = append(r.report.Ended, fmt.Sprintf("instance %d ended by itself with exit code %d", i+1, in.lapse.Wait()))
			in.lapse.Launch()
		}
	}
}

// drain waits until nothing is due any more, as long as that may take, and
// ends the instances.
func (r *rig) drain() {
	r.alive()
	began := time.Now()
	var left []string
	for deadline := began.Add(r.cfg.Drain); ; time.Sleep(50 * time.Millisecond) {
		left = r.leftOver()
		if r.ledger.Outstanding(time.Now().Add(longestDelay)) == 0 && len(left) == 0 && r.recorder.caughtUp(context.Background()) || time.Now().After(deadline) {
			break
		}
	}
	r.report.Drained = time.Since(began)
	r.report.LeftOver = left
	for i, in := range r.instances {
		in.lapse.AwaitReady()
		in.lapse.Stop()
		if code := in.lapse.Wait(); code != 0 {
			r.report.Ended = append(r.report.Ended, fmt.Sprintf("instance %d ended with exit code %d after SIGTERM", i+1, code))
		}
	}
	// What a stopping instance published is recorded too.
	for deadline := time.Now().Add(10 * time.Second); !r.recorder.caughtUp(context.Background()); time.Sleep(20 * time.Millisecond) {
		if time.Now().After(deadline) {
			r.report.Ended = append(r.report.Ended, "the recorder did not read the whole stream")
			break
		}
	}
}

// leftOver is every key that a deployment with no timers would not have.
func (r *rig) leftOver() []string {
	keys, err := r.rdb.Keys(context.Background(), "*").Result()
	if err != nil {
		return []string{"Redis does not say: " + err.Error()}
	}
	var left []string
	for _, k := range keys {
		if k != "timers:meta" && k != "timers:{0}:rev" && !strings.HasPrefix(k, "timers:{crew}:") {
			left = append(left, k)
		}
	}
	return left
}

func (r *rig) judge() {
	d := &r.report.Verdict
	left := r.report.LeftOver
	*d = r.ledger.Judge()
	d.LeftOver = left
	if n := r.recorder.undone.Load(); n > 0 {
		r.report.Ended = append(r.report.Ended, fmt.Sprintf("the stream lost %d messages that it had delivered", n))
	}
	if n := r.recorder.gone.Load(); n > 0 {
		r.report.Ended = append(r.report.Ended, fmt.Sprintf("%d messages left the stream before they were recorded", n))
	}
	r.report.caughtUp(r.ledger)
}

// sample looks at the memory of the instances, where the system tells.
func (r *rig) sample() {
	for _, in := range r.instances {
		r.report.Memory = max(r.report.Memory, resident(in.lapse.Pid()))
	}
}

// resident is the memory of a process in bytes, 0 where it is not known.
func resident(pid int) int64 {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/statm", pid))
	if err != nil {
		return 0
	}
	var size, pages int64
	if _, err := fmt.Sscan(string(b), &size, &pages); err != nil {
		return 0
	}
	return pages * int64(os.Getpagesize())
}

func hasLine(text, line string) bool {
	for l := range strings.Lines(text) {
		if strings.TrimSpace(l) == line {
			return true
		}
	}
	return false
}
