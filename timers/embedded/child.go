package embedded

import (
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"time"
)

// child is one run of redis-server.
type child struct {
	cmd     *exec.Cmd
	started time.Time
	log     string        // path of the log
	logFrom int64         // where in it this run began
	exited  chan struct{} // closed when the run has ended
}

// launch starts redis-server. It is in a process group of its own, so that
// Ctrl-C reaches Lapse alone, which still needs it to finish; and it inherits
// the lock.
func (r *Redis) launch() (*child, error) {
	path := filepath.Join(r.dir, logFile)
	if info, err := os.Stat(path); err == nil && info.Size() > maxLog {
		_ = os.Rename(path, path+".old") // a log too many is no reason not to start
	}
	// What it says before it has opened its log goes into the same file.
	out, err := os.OpenFile(path, os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		return nil, fmt.Errorf("log of redis-server: %w", err)
	}
	defer out.Close()
	info, err := out.Stat()
	if err != nil {
		return nil, fmt.Errorf("log of redis-server: %w", err)
	}
	cmd := exec.Command(r.binary, r.args...)
	cmd.Dir, cmd.Env = r.dir, environ()
	cmd.Stdout, cmd.Stderr = out, out
	cmd.ExtraFiles = []*os.File{r.lock}
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if err := cmd.Start(); err != nil {
		return nil, fmt.Errorf("start %s: %w", r.binary, err)
	}
	c := &child{cmd: cmd, started: time.Now(), log: path, logFrom: info.Size(), exited: make(chan struct{})}
	go func() {
		defer close(c.exited)
		_ = cmd.Wait() // how tells
	}()
	if err := writePid(r.lock, c.pid()); err != nil {
		c.end(r.kill, 0)
		return nil, fmt.Errorf("lock of redis-server: %w", err)
	}
	return c, nil
}

func (c *child) pid() int { return c.cmd.Process.Pid }

// end sends SIGTERM, and SIGKILL when kill is closed or, unless it is
// negative, the patience is over. It returns when the child has ended, and
// whether it had to be killed.
func (c *child) end(kill <-chan struct{}, patience time.Duration) (killed bool) {
	var over <-chan time.Time
	if patience >= 0 {
		over = time.After(patience)
	}
	_ = c.cmd.Process.Signal(syscall.SIGTERM) // it may have ended meanwhile
	select {
	case <-c.exited:
		return false
	case <-kill:
	case <-over:
	}
	// The group: a child of its own may be rewriting the append-only file.
	_ = syscall.Kill(-c.pid(), syscall.SIGKILL)
	select {
	case <-c.exited:
	case <-time.After(killWait): // stuck in the kernel, on a dead disk; the lock guards the data
	}
	return true
}

// how says how an ended run ended, such as "exit status 1".
func (c *child) how() string {
	if c.cmd.ProcessState == nil {
		return "unknown"
	}
	return c.cmd.ProcessState.String()
}

// stamp is what redis-server puts before a line of its log: the process, its
// role, the time, and the level, of which # is the highest. Before it reads its
// configuration it puts nothing. chatter is of a lower level, or the advice on
// memory that every start gives.
var (
	stamp   = regexp.MustCompile(stamped + `# `)
	chatter = regexp.MustCompile(stamped + `[*.-] |overcommit`)
)

const stamped = `^[0-9]+:[A-Z] [0-9]+ [A-Z][a-z]+ [0-9]+ [0-9:.]+ `

// lastWords is the end of what this run logged, as far as it tells why it ended.
func (c *child) lastWords() string {
	const lines, most = 10, 8 << 10
	f, err := os.Open(c.log)
	if err != nil {
		return err.Error()
	}
	defer f.Close()
	from := c.logFrom
	if info, err := f.Stat(); err == nil && info.Size()-from > most {
		from = info.Size() - most
	}
	b, err := io.ReadAll(io.NewSectionReader(f, from, most))
	if err != nil {
		return err.Error()
	}
	all := strings.Split(strings.TrimSpace(string(b)), "\n")
	told := slices.DeleteFunc(slices.Clone(all), func(line string) bool { return chatter.MatchString(line) })
	if len(told) == 0 {
		told = all
	}
	for i, line := range told {
		told[i] = stamp.ReplaceAllString(line, "")
	}
	return strings.Join(told[max(0, len(told)-lines):], "\n")
}
