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
		select {
		case <-a.C:
			require.GreaterOrEqual(t, time.Since(from), d, "never before its time")
		case <-time.After(10 * time.Second):
			t.Fatalf("set to %s, it does not wake", d)
		}
	}
	a.Reset(50 * time.Millisecond)
	a.Reset(time.Hour)
	select {
	case <-a.C:
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
		select {
		case <-a.C:
		case <-time.After(10 * time.Second):
			t.Fatal("it does not wake")
		}
	}
}
