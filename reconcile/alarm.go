package reconcile

import "time"

// alarm wakes the one goroutine that waits on both of its channels. On Linux a
// timer of the kernel does it to the microsecond. Go's timer is always set as
// well: a process that is never idle looks at its timers before it looks at its
// files.
type alarm struct {
	C      <-chan time.Time // of Go's timer, which a Reset empties
	kernel chan struct{}    // one slot, may hold a wake of before; nil without one
	timer  *time.Timer
	set    func(ns int64) // of the kernel's timer; nil without one
	close  func()
}

// goAlarm is an alarm of Go's timer alone.
func goAlarm() *alarm {
	t := time.NewTimer(time.Hour)
	return &alarm{C: t.C, timer: t}
}

// Reset sets the alarm d from now, in place of what it was set to. It may still
// wake once for what it was set to, if that had come: by then the kernel's wake
// is under way.
func (a *alarm) Reset(d time.Duration) {
	a.timer.Reset(d)
	if a.set == nil {
		return
	}
	select {
	case <-a.kernel:
	default:
	}
	a.set(int64(d))
}

// Stop ends it for good.
func (a *alarm) Stop() {
	a.timer.Stop()
	if a.close != nil {
		a.close()
	}
}
