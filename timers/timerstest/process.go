package timerstest

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"syscall"
	"testing"
	"time"
)

// patience bounds every wait for a server. It is generous because the race
// detector and a busy machine stretch start-up; a healthy wait ends early.
const patience = 30 * time.Second

// process is a server of its own: it can be started again after it ended.
type process struct {
	t    testing.TB
	name string
	dir  string   // working directory; holds output.log of all its runs
	env  []string // its environment; nil for that of the test

	cmd    *exec.Cmd
	done   chan struct{} // closed when the current run has ended
	paused bool
}

// start runs the command. Its output goes to a file, since a pipe that nobody
// reads would stop the server.
func (p *process) start(bin string, args ...string) error {
	out, err := os.OpenFile(filepath.Join(p.dir, "output.log"), os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		return err
	}
	defer out.Close()
	cmd := exec.Command(bin, args...)
	cmd.Dir, cmd.Env, cmd.Stdout, cmd.Stderr = p.dir, p.env, out, out
	cmd.SysProcAttr = dieWithParent()

	started := make(chan error)
	done := make(chan struct{})
	go func() {
		defer close(done)
		// Linux sends the death signal when the starting thread ends, so the
		// thread must live as long as the child.
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		err := cmd.Start()
		started <- err
		if err == nil {
			_ = cmd.Wait() // how it ended is in its own log
		}
	}()
	if err := <-started; err != nil {
		<-done
		return err
	}
	p.cmd, p.done, p.paused = cmd, done, false
	return nil
}

// running says whether the current run has not ended yet.
func (p *process) running() bool {
	if p.done == nil {
		return false
	}
	select {
	case <-p.done:
		return false
	default:
		return true
	}
}

// await polls ready until it returns nil, and fails early when the process
// ends before that.
func (p *process) await(ready func() error) error {
	deadline := time.After(patience)
	for {
		err := ready()
		if err == nil {
			return nil
		}
		select {
		case <-p.done:
			return fmt.Errorf("%s ended at start; its last words:\n%s", p.name, p.tail())
		case <-deadline:
			return fmt.Errorf("%s is not ready after %v: %w; its last words:\n%s", p.name, patience, err, p.tail())
		case <-time.After(5 * time.Millisecond):
		}
	}
}

// Pid is the process id of the current or last run.
func (p *process) Pid() int { return p.cmd.Process.Pid }

// Kill ends the server with SIGKILL, as a crash would, and waits for its end.
func (p *process) Kill() {
	p.t.Helper()
	p.end(syscall.SIGKILL)
}

// Stop ends the server with SIGTERM and waits until it has shut down.
func (p *process) Stop() {
	p.t.Helper()
	p.Resume() // a stopped process takes no SIGTERM
	p.end(syscall.SIGTERM)
}

// Pause stops the server with SIGSTOP and waits until all of it stands still:
// connections stay open, nothing answers.
func (p *process) Pause() {
	p.t.Helper()
	p.signal(syscall.SIGSTOP)
	p.paused = true
	Eventually(p.t, patience, p.name+" is paused", func() bool { return !p.running() || isStopped(p.Pid()) })
}

// Resume continues a paused server; without a pause it does nothing.
func (p *process) Resume() {
	p.t.Helper()
	if p.paused && p.running() {
		p.signal(syscall.SIGCONT)
	}
	p.paused = false
}

func (p *process) signal(sig syscall.Signal) {
	p.t.Helper()
	if err := p.cmd.Process.Signal(sig); err != nil && !errors.Is(err, os.ErrProcessDone) {
		p.t.Errorf("%v to %s: %v", sig, p.name, err)
	}
}

func (p *process) end(sig syscall.Signal) {
	p.t.Helper()
	if !p.running() {
		return
	}
	p.signal(sig)
	select {
	case <-p.done:
	case <-time.After(patience):
		_ = p.cmd.Process.Kill()
		<-p.done
		p.t.Errorf("%s did not end within %v of %v; its last words:\n%s", p.name, patience, sig, p.tail())
	}
}

// tail is the end of what the server printed.
func (p *process) tail() string {
	b, err := os.ReadFile(filepath.Join(p.dir, "output.log"))
	if err != nil {
		return err.Error()
	}
	lines := bytes.Split(bytes.TrimSpace(b), []byte("\n"))
	return string(bytes.Join(lines[max(0, len(lines)-15):], []byte("\n")))
}

// tempDir makes a directory with a short name, because the path of a unix
// socket in it is limited to about 100 bytes; t.TempDir's holds the name of
// the test.
func tempDir(t testing.TB) string {
	t.Helper()
	base := os.TempDir()
	if len(base) > 60 {
		base = "/tmp"
	}
	dir, err := os.MkdirTemp(base, "lapse")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := os.RemoveAll(dir); err != nil {
			t.Errorf("remove the server's directory: %v", err)
		}
	})
	return dir
}

// root is the top of this module, where redis.conf and go.mod are. Under
// -trimpath the caller's file is no path; tests run in their package's
// directory, so the way up finds it then.
func root() (string, error) {
	var from []string
	if _, file, _, ok := runtime.Caller(0); ok {
		from = append(from, filepath.Dir(file))
	}
	if wd, err := os.Getwd(); err == nil {
		from = append(from, wd)
	}
	for _, dir := range from {
		for filepath.IsAbs(dir) {
			if _, err := os.Stat(filepath.Join(dir, "redis.conf")); err == nil {
				return dir, nil
			}
			up := filepath.Dir(dir)
			if up == dir {
				break
			}
			dir = up
		}
	}
	return "", errors.New("found no redis.conf above this package")
}

// Eventually polls until ok returns true, and fails the test when it has not
// within the time. It is for what sends no signal, such as the state of a
// server; await a channel where there is one.
func Eventually(t testing.TB, within time.Duration, what string, ok func() bool) {
	t.Helper()
	for deadline := time.Now().Add(within); !ok(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("not within %v: %s", within, what)
		}
	}
}
