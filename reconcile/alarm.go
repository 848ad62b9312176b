package reconcile

import "time"

// alarm wakes one goroutine at a time, once for each Reset, give or take a wake
// that an earlier Reset left behind. On Linux a timer of the kernel does it to
// the microsecond. Go's timer is always set as well: a process that is never
// idle looks at its timers before it looks at its files.
type alarm struct {
	C     chan struct{} // one slot
	timer *time.Timer
	set   func(ns int64) // of the kernel's timer; nil without one
	close func()
}

// goAlarm is an alarm of Go's timer alone.
func goAlarm() *alarm { return &alarm{C: make(chan struct{}, 1)} }

// Reset sets the alarm d from now, in place of what it was set to.
func (a *alarm) Reset(d time.Duration) {
	select {
	case <-a.C: // of the time before
	default:
	}
	if a.timer == nil {
		a.timer = time.AfterFunc(d, func() { signal(a.C) })
	} else {
		a.timer.Reset(d)
	}
	if a.set != nil {
		a.set(int64(d))
	}
}

// Stop ends it for good.
func (a *alarm) Stop() {
	if a.timer != nil {
		a.timer.Stop()
	}
	if a.close != nil {
		a.close()
	}
}
