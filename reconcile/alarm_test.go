package reconcile

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// Each Reset replaces the one before, and one at once is not lost among them.
func TestAlarm(t *testing.T) {
	a := newAlarm()
	defer a.Stop()
	for _, d := range []time.Duration{0, 1, time.Microsecond, 300 * time.Microsecond, 2300 * time.Microsecond, -time.Second} {
		a.Reset(time.Hour)
		from := time.Now()
		a.Reset(d)
		early := 0 // the kernel's wake of the turn before may still come
		for awaken(t, a, "set to "+d.String()); time.Since(from) < d; awaken(t, a, "set to "+d.String()) {
			early++
		}
		require.LessOrEqual(t, early, 1, "set to %s, it wakes before its time", d)
	}

	a = newAlarm()
	defer a.Stop()
	a.Reset(50 * time.Millisecond)
	a.Reset(time.Hour)
	select {
	case <-a.C:
		t.Fatal("it woke at a time that was replaced")
	case <-a.kernel:
		t.Fatal("it woke at a time that was replaced")
	case <-time.After(150 * time.Millisecond):
	}
}

// Without a timer of the kernel, Go's does it.
func TestAlarmWithoutKernelTimer(t *testing.T) {
	a := goAlarm()
	defer a.Stop()
	for range 2 {
		a.Reset(time.Millisecond)
		awaken(t, a, "without one of the kernel")
	}
}

// awaken waits for it as the loop does.
func awaken(t *testing.T, a *alarm, how string) {
	t.Helper()
	select {
	case <-a.C:
	case <-a.kernel:
	case <-time.After(10 * time.Second):
		t.Fatal("it does not wake: " + how)
	}
}
