//go:build !linux

package timerstest

import "syscall"

// dieWithParent cannot be had here: a server may outlive a killed test binary.
func dieWithParent() *syscall.SysProcAttr { return &syscall.SysProcAttr{Setpgid: true} }
