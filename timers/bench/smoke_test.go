package bench

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/require"

	"github.com/lapse-timers/lapse/timers/timerstest"
)

// built holds the program while the tests run.
var built string

func TestMain(m *testing.M) { os.Exit(inDir(m.Run)) }

func inDir(run func() int) int {
	dir, err := os.MkdirTemp("", "lapse-bench-test-")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer os.RemoveAll(dir)
	built = filepath.Join(dir, "lapse")
	return run()
}

// lapseProgram builds Lapse without the race detector, whatever the test has:
// it would be what is measured.
var lapseProgram = sync.OnceValue(func() error {
	out, err := exec.Command("go", "build", "-buildvcs=false", "-o", built, "github.com/lapse-timers/lapse").CombinedOutput()
	if err != nil {
		return fmt.Errorf("build lapse: %w\n%s", err, out)
	}
	return nil
})

// programs are what a bench starts.
func programs(t *testing.T) Programs {
	t.Helper()
	require.NoError(t, lapseProgram())
	conf, err := os.ReadFile(filepath.Join("..", "..", "redis.conf"))
	require.NoError(t, err)
	return Programs{Lapse: built, NATSServer: timerstest.NATSProgram(t), RedisConf: conf}
}

// TestBesideJetStream asserts only what holds on any machine: nothing early,
// nothing lost, and Lapse ahead by what no load turns round.
func TestBesideJetStream(t *testing.T) {
	p := programs(t)
	run := func(o Options) *Report {
		t.Helper()
		o.Programs, o.Fresh, o.Vs = p, &Fresh{Instances: 1}, []string{JetStream}
		o.Say = t.Logf
		r, err := Run(t.Context(), o)
		require.NoError(t, err)
		for i := range r.Parts {
			x := &r.Parts[i]
			for _, l := range []*Lag{x.Lag, lagOf(x.Burst)} {
				if l != nil {
					require.Equal(t, []int{0, 0, 0}, []int{l.Early, l.Lost, l.Due - l.Arrived}, x.Line())
				}
			}
			if x.Set != nil {
				require.Zero(t, x.Set.Errors, x.Line())
			}
			if x.Clock != nil {
				require.Empty(t, x.Notes, "the estimate of a clock that is known")
			}
		}
		return r
	}
	// A stall of the machine is as long as JetStream's lag: three attempts.
	for attempt := 1; ; attempt++ {
		r := run(Options{Parts: []string{"lag"}, Pending: 2 * kilo, Rate: 150, Duration: 2 * time.Second})
		ours, theirs := r.find("lag", Lapse, nil).Lag, r.find("lag", JetStream, nil).Lag
		if ours.P99 < theirs.P99 {
			break
		}
		require.Less(t, attempt, 3, "Lapse's p99 %v, JetStream's %v", ours.P99, theirs.P99)
	}
	r := run(Options{Parts: []string{"burst", "set"}, Count: 3 * kilo, Concurrency: 64})
	require.Len(t, r.Parts, 4)
	require.NotZero(t, r.find("burst", Lapse, nil).Burst.Drained)
}

func TestRecoversAndStands(t *testing.T) {
	t.Parallel()
	r, err := Run(t.Context(), Options{
		Parts: []string{"memory", "idle", "recover"}, Pending: 2 * kilo, Count: 2 * kilo, Duration: time.Second,
		Programs: programs(t), Fresh: &Fresh{Instances: 1, Settings: []string{"LAPSE_GRACE=100ms"}, RedisSet: []string{"hz=50"}}, Say: t.Logf,
	})
	require.NoError(t, err)
	require.Len(t, r.Parts, 3)
	require.Equal(t, []string{"LAPSE_GRACE=100ms", "hz=50"}, r.Settings)
	require.NotZero(t, r.Parts[0].Memory.PerTimer)
	require.NotZero(t, r.Parts[1].Idle.Commands)
	require.Equal(t, []int{0, 0}, []int{r.Parts[2].Recover.Lag.Early, r.Parts[2].Recover.Lag.Lost})
}

// TestLeavesNothingOnADeployment runs against servers that are somebody's, to
// the end and cut off.
func TestLeavesNothingOnADeployment(t *testing.T) {
	t.Parallel()
	rs, ns := timerstest.Redis(t), timerstest.NATSProcess(t)
	timerstest.LapseOn(t, rs.URL(), ns.URL())
	nc := ns.Connect(t)
	js, err := jetstream.New(nc)
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	o := Options{
		Parts: []string{"lag", "set"}, Pending: kilo, Rate: 100, Duration: time.Second, Count: 500, Concurrency: 1, RedisURL: rs.URL(),
		Dial: func(context.Context) (*nats.Conn, error) { return nats.Connect(ns.URL()) },
	}
	clean := func() {
		t.Helper()
		require.Zero(t, rs.Client().ZCard(t.Context(), "timers:{0}:due").Val())
		timerstest.CheckInvariants(t, rs.Client(), "timers")
		stream, err := js.Stream(t.Context(), "TIMERS")
		require.NoError(t, err)
		require.Zero(t, stream.CachedInfo().State.Msgs)
	}
	r, err := Run(ctx, o)
	require.NoError(t, err)
	require.Empty(t, r.Notes)
	require.Equal(t, []int{0, 0, 0}, []int{r.Parts[0].Lag.Early, r.Parts[0].Lag.Lost, r.Parts[1].Set.Errors})
	require.False(t, r.Parts[0].Clock.Same)
	require.NotZero(t, r.Parts[1].Set.Ratio)
	clean()

	o.Parts, o.Duration = []string{"lag"}, 6*time.Second
	o.Say = func(format string, args ...any) { t.Logf(format, args...) }
	cut := make(chan error, 1)
	go func() {
		_, err := Run(ctx, o)
		cut <- err
	}()
	timerstest.Eventually(t, 20*time.Second, "timers of the lag fire", func() bool {
		stream, err := js.Stream(t.Context(), "TIMERS")
		return err == nil && stream.CachedInfo().State.Msgs > 10
	})
	cancel()
	require.ErrorIs(t, <-cut, context.Canceled)
	clean()
}

func TestNobodyThereIsOneLine(t *testing.T) {
	t.Parallel()
	ns := timerstest.NATSProcess(t)
	_, err := Run(t.Context(), Options{Parts: []string{"lag"}, Dial: func(context.Context) (*nats.Conn, error) { return nats.Connect(ns.URL()) }})
	require.ErrorContains(t, err, "lapse serve")
	p := programs(t)
	p.NATSServer = "/nowhere/nats-server"
	_, err = Run(t.Context(), Options{Parts: []string{"lag"}, Programs: p, Fresh: &Fresh{Instances: 1}})
	require.ErrorContains(t, err, "--nats-server")
	p.Lapse, p.NATSServer = "/bin/false", timerstest.NATSProgram(t)
	_, err = Run(t.Context(), Options{Parts: []string{"lag"}, Programs: p, Fresh: &Fresh{Instances: 1}})
	require.ErrorContains(t, err, "ended at start", fmt.Sprint(err))
}
