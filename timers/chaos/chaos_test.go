package chaos

import (
	"flag"
	"os"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

var (
	minutes = flag.Float64("chaos.minutes", 0.5, "how long to break things")
	seed    = flag.Uint64("chaos.seed", 1, "what replays the sequence of faults; 0 for another one each time")
	lease   = flag.Duration("chaos.lease", Lease, "LAPSE_LEASE of the instances")
	steps   = flag.Bool("chaos.steps", false, "log each fault")
)

// rate leaves room for the time in which nothing can be set.
const rate = 300

// make chaos runs this one for minutes, make test for as long as each fault
// needs to come once.
func TestChaos(t *testing.T) {
	if *seed == 0 {
		*seed = uint64(time.Now().UnixNano())
	}
	t.Logf("seed %d, %v minutes, lease %v", *seed, *minutes, *lease)
	var r *Report
	t.Cleanup(func() { // the last word, after the logs of a run that failed
		if r != nil {
			r.Print(os.Stdout)
		}
	})
	r = Run(t, Config{Duration: time.Duration(*minutes * float64(time.Minute)), Seed: *seed, Rate: rate, Lease: *lease, Steps: *steps})
	require.Empty(t, r.Broken(), "promises that did not hold, with seed %d", *seed)
	require.Empty(t, r.Tame(), "the run was too tame to show anything")
}

// The control: without the reconciler, timers whose events are lost are lost,
// and the judge sees it.
func TestChaosWithoutReconcilerLoses(t *testing.T) {
	r := Run(t, Config{
		Duration: 5 * time.Second, Seed: 1, Rate: rate, Drain: 2 * time.Second, Kinds: []string{"subscribers killed", "flags cleared", "instance killed"},
		Faults: true, Settings: []string{"FAULT_OFF=reconcile"},
	})
	r.Print(os.Stdout)
	require.NotEmpty(t, r.Lost, "timers whose events were lost")
	require.NotEmpty(t, r.LeftOver, "their records")
	require.Empty(t, r.Early)
	require.Empty(t, r.AfterCancel)
	require.Empty(t, r.OldLife)
}
