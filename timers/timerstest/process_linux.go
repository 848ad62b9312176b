package timerstest

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"syscall"
)

// dieWithParent has the kernel end the server when the test binary is killed
// or times out, where no cleanup runs.
func dieWithParent() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
}

// isStopped says whether every thread is stopped: a signal stops them one by
// one, and a thread that still runs may answer once more.
func isStopped(pid int) bool {
	stats, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/stat", pid))
	if err != nil || len(stats) == 0 {
		return false
	}
	for _, file := range stats {
		b, err := os.ReadFile(file)
		if err != nil {
			return false
		}
		// The state follows the name, which is in parentheses and may hold any.
		if _, state, ok := bytes.Cut(b[max(0, bytes.LastIndexByte(b, ')')):], []byte(") ")); !ok || state[0] != 'T' {
			return false
		}
	}
	return true
}
