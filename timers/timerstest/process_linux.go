package timerstest

import "syscall"

// dieWithParent has the kernel end the server when the test binary is killed
// or times out, where no cleanup runs.
func dieWithParent() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
}
