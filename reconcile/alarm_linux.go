package reconcile

import (
	"os"

	"golang.org/x/sys/unix"
)

// newAlarm makes an alarm on a timer of the kernel. Go's own timers end an
// epoll_wait, whose time-out counts whole milliseconds: in a process that idles,
// which is what waits for a timer, they come half a millisecond late on average
// (runtime/netpoll_epoll.go). A timerfd is a file like any other to the same
// epoll, and ripe to the microsecond (timerfd_create(2)).
func newAlarm() *alarm {
	a := goAlarm()
	fd, err := unix.TimerfdCreate(unix.CLOCK_MONOTONIC, unix.TFD_NONBLOCK|unix.TFD_CLOEXEC)
	if err != nil {
		return a // out of files: Go's timer is there too
	}
	f := os.NewFile(uintptr(fd), "timerfd")
	raw, err := f.SyscallConn()
	if err != nil {
		f.Close() //nolint:errcheck // only ever opened
		return a
	}
	a.kernel = make(chan struct{}, 1)
	a.set = func(ns int64) {
		raw.Control(func(fd uintptr) { //nolint:errcheck // fails once it is closed
			// A time of zero would disarm it.
			unix.TimerfdSettime(int(fd), 0, &unix.ItimerSpec{Value: unix.NsecToTimespec(max(ns, 1))}, nil) //nolint:errcheck // Go's timer is there too
		})
	}
	a.close = func() { f.Close() } //nolint:errcheck // nothing to lose
	go func() {
		var expirations [8]byte
		for {
			if _, err := f.Read(expirations[:]); err != nil {
				return
			}
			signal(a.kernel)
		}
	}()
	return a
}
