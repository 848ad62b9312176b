//go:build !linux

package bench

import (
	"syscall"
	"time"
)

// endsWithParent cannot be had here: a server may outlive a killed bench.
func endsWithParent() *syscall.SysProcAttr { return &syscall.SysProcAttr{Setpgid: true} }

func syncDisks() {}

func cpuTime(int) (time.Duration, bool) { return 0, false }

func memory(int) (now, peak int64) { return 0, 0 }

func (m *Machine) describe(string) {}
