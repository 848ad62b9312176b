package embedded

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
)

// Dir is a data directory that this process has locked.
type Dir struct {
	path string // absolute
	lock *os.File
}

// Lock creates the data directory, with mode 0700, when there is none, and
// locks it until [Dir.Unlock] or the end of this process, however that comes.
// The error is one line that names the directory and the remedy: another
// Lapse runs on it (with its pid), or it cannot be written.
func Lock(dataDir string) (*Dir, error) {
	path, err := filepath.Abs(dataDir)
	if err != nil {
		return nil, fmt.Errorf("data directory %s: %w", dataDir, err)
	}
	unusable := func(err error) error {
		return fmt.Errorf("data directory %s cannot be used: %w; make it writable for this user or set LAPSE_DATA_DIR to another", path, err)
	}
	if err := os.MkdirAll(path, 0o700); err != nil {
		return nil, unusable(err)
	}
	lock, err := tryLock(filepath.Join(path, "lapse.lock"))
	switch {
	case errors.Is(err, errHeld):
		return nil, fmt.Errorf("data directory %s is in use by another Lapse (pid %s): stop that one, or set LAPSE_DATA_DIR to another directory for this one",
			path, readPid(filepath.Join(path, "lapse.lock")))
	case err != nil:
		return nil, unusable(err)
	}
	if err := writePid(lock, os.Getpid()); err != nil {
		lock.Close()
		return nil, unusable(err)
	}
	return &Dir{path: path, lock: lock}, nil
}

// Path is the absolute path of the directory.
func (d *Dir) Path() string { return d.path }

// Unlock lets another Lapse have the directory. Stop the servers first.
func (d *Dir) Unlock() error { return d.lock.Close() }

// sub makes a directory below and returns its path.
func (d *Dir) sub(name string) (string, error) {
	path := filepath.Join(d.path, name)
	if err := os.MkdirAll(path, 0o700); err != nil {
		return "", fmt.Errorf("data directory %s: %w", d.path, err)
	}
	return path, nil
}

// errHeld: another process holds the lock.
var errHeld = errors.New("the lock is held")

// tryLock opens the file and takes its lock, or returns errHeld. The lock
// belongs to the open file: it lasts until every process that inherited the
// file has closed it.
func tryLock(path string) (*os.File, error) {
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o600) // Go sets close-on-exec
	if err != nil {
		return nil, err
	}
	if err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); err != nil {
		f.Close()
		if errors.Is(err, syscall.EWOULDBLOCK) {
			return nil, errHeld
		}
		return nil, fmt.Errorf("lock %s: %w", path, err)
	}
	return f, nil
}

func writePid(f *os.File, pid int) error {
	if err := f.Truncate(0); err != nil {
		return err
	}
	_, err := f.WriteAt([]byte(strconv.Itoa(pid)+"\n"), 0)
	return err
}

// readPid is for messages: the file may just be being written.
func readPid(path string) string {
	b, err := os.ReadFile(path)
	if pid := strings.TrimSpace(string(b)); err == nil && pid != "" {
		return pid
	}
	return "unknown"
}
