package bench

import (
	"bytes"
	"fmt"
	"os"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// endsWithParent has the kernel end the server when the bench is killed,
// where nothing of ours runs any more.
func endsWithParent() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
}

// syncDisks returns when everything that was written is on the disks.
func syncDisks() { syscall.Sync() }

// ticks is the unit of times in /proc: 1/100 s on every architecture that Go
// supports.
const tick = 10 * time.Millisecond

// cpuTime is how long the process has run on a core.
func cpuTime(pid int) (time.Duration, bool) {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return 0, false
	}
	// The name, in parentheses, may hold spaces; utime and stime are the 12th
	// and 13th field behind it.
	fields := strings.Fields(string(b[bytes.LastIndexByte(b, ')')+1:]))
	if len(fields) < 13 {
		return 0, false
	}
	user, err1 := strconv.ParseInt(fields[11], 10, 64)
	system, err2 := strconv.ParseInt(fields[12], 10, 64)
	return time.Duration(user+system) * tick, err1 == nil && err2 == nil
}

// memory is the resident memory of the process in bytes, now and at most; 0
// when it is not known.
func memory(pid int) (now, peak int64) {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		return 0, 0
	}
	return field(string(b), "VmRSS:"), field(string(b), "VmHWM:")
}

// field is a value in kB of a file such as /proc/meminfo, in bytes.
func field(text, name string) int64 {
	for line := range strings.Lines(text) {
		if rest, ok := strings.CutPrefix(line, name); ok {
			n, _ := strconv.ParseInt(strings.TrimSuffix(strings.TrimSpace(rest), " kB"), 10, 64)
			return n << 10
		}
	}
	return 0
}

// describe fills in what the kernel knows.
func (m *Machine) describe(dir string) {
	if b, err := os.ReadFile("/proc/sys/kernel/osrelease"); err == nil {
		m.Kernel = strings.TrimSpace(string(b))
	}
	if b, err := os.ReadFile("/proc/meminfo"); err == nil {
		m.Memory = field(string(b), "MemTotal:")
	}
	if b, err := os.ReadFile("/proc/cpuinfo"); err == nil {
		for line := range strings.Lines(string(b)) {
			if name, value, ok := strings.Cut(line, ":"); ok && strings.TrimSpace(name) == "model name" {
				m.CPU = strings.TrimSpace(value)
				break
			}
		}
	}
	var fs syscall.Statfs_t
	if dir != "" && syscall.Statfs(dir, &fs) == nil {
		m.FileSystem = fileSystems[int64(fs.Type)]
		if m.FileSystem == "" {
			m.FileSystem = fmt.Sprintf("type %#x", fs.Type)
		}
	}
}

// fileSystems are those that tell whether syncing a file costs anything.
var fileSystems = map[int64]string{
	0xEF53: "ext4", 0x58465342: "xfs", 0x9123683E: "btrfs", 0x794C7630: "overlay", 0x01021994: "tmpfs (syncing costs nothing)",
	0x2FC12FC1: "zfs", 0x6969: "nfs",
}
