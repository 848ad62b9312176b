//go:build !linux

package timerstest

import (
	"bytes"
	"os/exec"
	"strconv"
	"syscall"
)

// dieWithParent cannot be had here: a server may outlive a killed test binary.
func dieWithParent() *syscall.SysProcAttr { return &syscall.SysProcAttr{Setpgid: true} }

// isStopped says whether the process is stopped.
func isStopped(pid int) bool {
	out, err := exec.Command("ps", "-o", "stat=", "-p", strconv.Itoa(pid)).Output()
	return err == nil && bytes.HasPrefix(bytes.TrimSpace(out), []byte("T"))
}
