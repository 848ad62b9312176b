package bench

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"time"
)

const (
	startPatience = 60 * time.Second // a loaded machine starts slowly
	stopPatience  = 15 * time.Second // longer than the service's own grace of 10 s
)

// process is a server of the bench's own.
type process struct {
	name    string
	cmd     *exec.Cmd
	log     string // path of what it prints
	logFrom int64  // where in it this run began
	exited  chan struct{}
}

// launch starts a program in dir, which keeps its log. It has a process group
// of its own, so that Ctrl-C reaches the bench alone, which still needs it.
func launch(name, bin, dir string, env []string, args ...string) (*process, error) {
	p := &process{name: name, log: filepath.Join(dir, name+".log"), exited: make(chan struct{})}
	out, err := os.OpenFile(p.log, os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		return nil, fmt.Errorf("log of %s: %w", name, err)
	}
	defer out.Close()
	if info, err := out.Stat(); err == nil {
		p.logFrom = info.Size()
	}
	p.cmd = exec.Command(bin, args...)
	p.cmd.Dir, p.cmd.Env, p.cmd.Stdout, p.cmd.Stderr = dir, env, out, out
	p.cmd.SysProcAttr = endsWithParent()
	started := make(chan error, 1)
	go func() {
		defer close(p.exited)
		// Where the kernel ends a child with its parent, it means the thread.
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		err := p.cmd.Start()
		started <- err
		if err == nil {
			_ = p.cmd.Wait() // its log tells more
		}
	}()
	if err := <-started; err != nil {
		<-p.exited
		return nil, fmt.Errorf("start %s: %w", name, err)
	}
	return p, nil
}

func (p *process) pid() int { return p.cmd.Process.Pid }

// await polls ready until it returns nil.
func (p *process) await(ctx context.Context, ready func() error) error {
	ctx, cancel := context.WithTimeout(ctx, startPatience)
	defer cancel()
	for {
		err := ready()
		if err == nil {
			return nil
		}
		select {
		case <-p.exited:
			return fmt.Errorf("%s ended at start; its last words: %s", p.name, p.lastWords())
		case <-ctx.Done():
			return fmt.Errorf("%s is not ready (%w); its last words: %s", p.name, err, p.lastWords())
		case <-time.After(2 * time.Millisecond):
		}
	}
}

// stop ends it with SIGTERM and waits.
func (p *process) stop() error {
	if err := p.cmd.Process.Signal(syscall.SIGTERM); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return fmt.Errorf("stop %s: %w", p.name, err)
	}
	patience := time.NewTimer(stopPatience)
	defer patience.Stop()
	select {
	case <-p.exited:
		return nil
	case <-patience.C:
		p.kill()
		return fmt.Errorf("%s did not stop within %v and was killed", p.name, stopPatience)
	}
}

// kill ends it at once: nobody reads its data any more. The group goes with
// it, since redis-server may have a child that rewrites its file.
func (p *process) kill() {
	select {
	case <-p.exited:
		return // its number may be another's by now
	default:
	}
	_ = syscall.Kill(-p.pid(), syscall.SIGKILL) // it may have ended just now
	<-p.exited
}

// said is what this run printed.
func (p *process) said() []byte {
	b, err := os.ReadFile(p.log)
	if err != nil || int64(len(b)) < p.logFrom {
		return nil
	}
	return b[p.logFrom:]
}

// lastWords are the last lines of the log, as one.
func (p *process) lastWords() string {
	lines := bytes.Split(bytes.TrimSpace(p.said()), []byte("\n"))
	return strings.ReplaceAll(string(bytes.Join(lines[max(0, len(lines)-4):], []byte("; "))), "\r", "")
}

// find returns the path of a program: the one that was named, else one beside
// the lapse program, else one on the PATH.
func find(named, name, lapse, install string) (string, error) {
	if named == "" && lapse != "" {
		beside := filepath.Join(filepath.Dir(lapse), name)
		if info, err := os.Stat(beside); err == nil && info.Mode().IsRegular() && info.Mode()&0o111 != 0 {
			return beside, nil
		}
	}
	if named == "" {
		named = name
	}
	path, err := exec.LookPath(named)
	if err != nil {
		return "", fmt.Errorf("there is no %s (%w); %s", name, err, install)
	}
	return filepath.Abs(path) // it is started from another directory
}

// usage is how much CPU time some processes have had.
type usage map[string]time.Duration

// since is what was used after then, in microseconds for each of n.
func (u usage) since(then usage, n int) map[string]float64 {
	if len(u) == 0 || n == 0 {
		return nil
	}
	out := map[string]float64{}
	for name, d := range u {
		out[name] = round1(float64((d - then[name]).Microseconds()) / float64(n))
	}
	return out
}
