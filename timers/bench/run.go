package bench

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"math"
	"os"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/logging"
	"github.com/schollz/progressbar/v3"
)

// cleanupWithin is how long the timers of an interrupted run may take to be
// cancelled.
const cleanupWithin = 2 * time.Minute

// Run measures and returns the report. With an error, the report holds what
// was measured before it.
func Run(ctx context.Context, o Options) (*Report, error) {
	if err := o.Check(); err != nil {
		return nil, err
	}
	redis.SetLogger(&logging.VoidLogger{}) // what it says is in the errors too
	r := newRunner(o)
	for _, part := range o.Parts {
		err := r.part(ctx, part, o.of(part))
		if err != nil {
			return r.report, fmt.Errorf("part %s: %w", part, err)
		}
	}
	return r.report, nil
}

// runner carries out one run.
type runner struct {
	options Options
	token   string // of the run
	report  *Report
}

func newRunner(o Options) *runner {
	b := make([]byte, 4)
	rand.Read(b) //nolint:errcheck // documented never to fail
	r := &runner{options: o, token: hex.EncodeToString(b)}
	machine := Machine{OS: runtime.GOOS, Arch: runtime.GOARCH, Cores: runtime.NumCPU()}
	r.report = &Report{Schema: 1, Run: r.token, Started: time.Now().UTC().Truncate(time.Second), Where: "fresh servers",
		Versions: Versions{Lapse: o.Version, Go: strings.TrimPrefix(runtime.Version(), "go")}}
	if f := o.Fresh; f != nil {
		machine.describe(o.dir())
		r.report.Settings = append(slices.Clone(f.Settings), f.RedisSet...)
	} else {
		machine.describe("")
		r.report.Where = "a deployment" // until it is connected
	}
	r.report.Machine = machine
	return r
}

// dir is where servers of the bench's own keep their data.
func (o Options) dir() string {
	if o.Fresh != nil && o.Fresh.Dir != "" {
		return o.Fresh.Dir
	}
	return os.TempDir()
}

// measurement is one part on one contestant.
type measurement func(context.Context, *rig, Options, *Result) error

// part runs a part, contestant after contestant.
func (r *runner) part(ctx context.Context, part string, o Options) error {
	run := map[string]measurement{
		"lag": measureLag, "rate": measureLag, "burst": measureBurst, "set": measureSet,
		"memory": measureMemory, "idle": measureIdle, "recover": measureRecover,
	}[part]
	for _, name := range append([]string{Lapse}, o.Vs...) {
		if name != Lapse && !slices.Contains(about[part], name) {
			continue
		}
		var err error
		if part == "growth" {
			err = r.measure(ctx, name, growthSteps(o))
		} else {
			err = r.measure(ctx, name, []step{{part, o, run}})
		}
		if err != nil && name != Lapse {
			err = fmt.Errorf("%s: %w", name, err)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// step is a measurement with its options; several share the same servers.
type step struct {
	part    string
	options Options
	measure measurement
}

// measure runs steps on one contestant, and cleans up behind them.
func (r *runner) measure(ctx context.Context, name string, steps []step) (err error) {
	rig, err := r.open(ctx, name, steps[0].options)
	if err != nil {
		return err
	}
	defer func() {
		clean, cancel := context.WithTimeout(context.WithoutCancel(ctx), cleanupWithin)
		defer cancel()
		// What may fire any moment goes first.
		if forgetErr := rig.forget(clean, append(rig.stray, rig.far...)); forgetErr != nil {
			r.report.Notes = append(r.report.Notes, forgetErr.Error())
			r.say("%v", forgetErr)
		}
		err = errors.Join(err, rig.close())
	}()
	for _, s := range steps {
		result := Result{Part: s.part, Contestant: name, Started: time.Now().UTC().Truncate(time.Second), Parameters: Parameters{
			Payload: s.options.Payload, ID: idSize, Topics: rig.topics, Instances: rig.instances,
		}}
		began := time.Now()
		if err := s.measure(ctx, rig, s.options, &result); err != nil {
			return err
		}
		result.Took = round1(time.Since(began).Seconds())
		r.report.Parts = append(r.report.Parts, result)
		r.say("%s", result.Line())
	}
	return nil
}

// open starts or connects to a contestant.
func (r *runner) open(ctx context.Context, name string, o Options) (*rig, error) {
	rig := &rig{name: name, run: r, topics: 1}
	switch name {
	case JetStream:
		s, err := newScheduler(ctx, o)
		if err != nil {
			return nil, err
		}
		rig.contestant = s
		setIfEmpty(&r.report.Versions.NATSServer, s.version)
	case Event, Poll:
		b, err := newBareRedis(ctx, o)
		if err != nil {
			return nil, err
		}
		if name == Poll {
			rig.contestant = &poller{b}
		} else {
			rig.contestant = &eventOnly{b}
		}
	default:
		d, err := newDeployment(ctx, o, r.token)
		if err != nil {
			return nil, err
		}
		rig.contestant, rig.instances, rig.topics = d, len(d.instances), len(d.topics)
		setIfEmpty(&r.report.Versions.NATSServer, d.receiver.ConnectedServerVersion())
		if d.redis != nil {
			if info, err := d.redis.Info(ctx, "server").Result(); err == nil {
				setIfEmpty(&r.report.Versions.Redis, infoText(info, "redis_version"))
			}
		}
		if d.servers == nil {
			r.report.Where = d.receiver.ConnectedUrlRedacted()
			s, err := d.client.Status(ctx)
			if err != nil {
				return nil, errors.Join(err, d.close())
			}
			r.report.Versions.Lapse = s.Version
		}
	}
	return rig, nil
}

func (r *runner) say(format string, args ...any) {
	if r.options.Say != nil {
		r.options.Say(format, args...)
	}
}

// follow shows how far something has come, until stop. The count is read
// now and then, so that what is measured pays nothing for it.
func (r *runner) follow(what string, total int, done func() int) (stop func()) {
	if r.options.Progress == nil || total == 0 {
		return func() {}
	}
	bar := progressbar.NewOptions(total, progressbar.OptionSetWriter(r.options.Progress), progressbar.OptionSetDescription(what),
		progressbar.OptionShowCount(), progressbar.OptionSetWidth(24), progressbar.OptionClearOnFinish(), progressbar.OptionSetPredictTime(true))
	end, ended := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(ended)
		tick := time.NewTicker(250 * time.Millisecond)
		defer tick.Stop()
		for {
			select {
			case <-end:
				_ = bar.Clear() // a bar that stays is no harm
				return
			case <-tick.C:
				_ = bar.Set(done())
			}
		}
	}()
	return func() {
		close(end)
		<-ended
	}
}

// ownTime is the CPU time of this process.
func ownTime() time.Duration {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		return 0
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

func infoText(info, name string) string {
	for line := range strings.Lines(info) {
		if value, ok := strings.CutPrefix(line, name+":"); ok {
			return strings.TrimSpace(value)
		}
	}
	return ""
}

func setIfEmpty(s *string, to string) {
	if *s == "" {
		*s = to
	}
}

func round1(v float64) float64 { return math.Round(v*10) / 10 }
