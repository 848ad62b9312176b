package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"
)

const (
	startPatience = 20 * time.Second
	stopPatience  = 15 * time.Second // longer than the service's own grace of 10 s
)

// child is a private lapse serve.
type child struct {
	cmd     *exec.Cmd
	natsURL string
	http    string // host:port
	log     string // path of what it prints
	exited  chan struct{}
	waitErr error // how it ended; read after exited is closed
}

// startChild runs "exe serve" with its data in dir, and returns when it is
// ready. It ends with ctx at the latest. Of env, nothing that would lead it to
// other servers or settings is passed on. When it does not start, what it
// printed goes to errs.
func startChild(ctx context.Context, exe, dir string, env []string, errs io.Writer) (*child, error) {
	ports, err := freePorts(2)
	if err != nil {
		return nil, err
	}
	c := &child{
		natsURL: "nats://" + ports[0], http: ports[1],
		log: filepath.Join(dir, "serve.log"), exited: make(chan struct{}),
	}
	logFile, err := os.Create(c.log)
	if err != nil {
		return nil, fmt.Errorf("the service's log: %w", err)
	}
	defer logFile.Close() // the child has its own handle
	c.cmd = exec.CommandContext(ctx, exe, "serve")
	c.cmd.Env = append(cleaned(env),
		"LAPSE_DATA_DIR="+filepath.Join(dir, "data"), "LAPSE_NATS_LISTEN="+ports[0], "LAPSE_HTTP_LISTEN="+ports[1], "LAPSE_LOG_FORMAT=text")
	c.cmd.Stdout, c.cmd.Stderr = logFile, logFile
	c.cmd.Cancel = func() error { return c.cmd.Process.Signal(syscall.SIGTERM) }
	c.cmd.WaitDelay = stopPatience
	if err := c.cmd.Start(); err != nil {
		return nil, fmt.Errorf("start %s serve: %w", exe, err)
	}
	go func() {
		defer close(c.exited)
		c.waitErr = c.cmd.Wait()
	}()
	if err := c.ready(ctx); err != nil {
		stopErr := c.stop()
		if ctx.Err() != nil {
			return nil, errInterrupted
		}
		fmt.Fprint(errs, c.tail())
		return nil, fmt.Errorf("the private service did not start: %w", errors.Join(err, stopErr))
	}
	return c, nil
}

// cleaned is env without the settings of Lapse and the address of any NATS.
func cleaned(env []string) []string {
	var out []string
	for _, v := range env {
		if !strings.HasPrefix(v, "LAPSE_") && !strings.HasPrefix(v, "NATS_") {
			out = append(out, v)
		}
	}
	return out
}

// freePorts are addresses that nobody listens on. Somebody may, before the
// service does; then it says so and the demo is run again.
func freePorts(n int) ([]string, error) {
	var out []string
	for range n {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			return nil, fmt.Errorf("find a free port: %w", err)
		}
		defer l.Close() // all at the end: no port twice
		out = append(out, l.Addr().String())
	}
	return out, nil
}

// ready waits until the service takes timers.
func (c *child) ready(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, startPatience)
	defer cancel()
	tick := time.NewTicker(25 * time.Millisecond)
	defer tick.Stop()
	last := errors.New("no answer yet")
	for {
		select {
		case <-c.exited:
			return errors.New("it ended before it was ready")
		case <-ctx.Done():
			return fmt.Errorf("not ready on http://%s/readyz: %w", c.http, last)
		case <-tick.C:
		}
		if last = c.probe(ctx); last == nil {
			return nil
		}
	}
}

func (c *child) probe(ctx context.Context) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+c.http+"/readyz", nil)
	if err != nil {
		return err
	}
	req.Close = true // an idle connection would outlive the wait
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return errors.New(resp.Status)
	}
	return nil
}

// stop ends the service and waits for it. An error is an end that was not
// clean.
func (c *child) stop() error {
	select {
	case <-c.exited: // not what was wanted
		return fmt.Errorf("the service ended by itself: %v", c.cmd.ProcessState)
	default:
	}
	if err := c.cmd.Process.Signal(syscall.SIGTERM); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return fmt.Errorf("stop the service: %w", err)
	}
	patience := time.NewTimer(stopPatience)
	defer patience.Stop()
	select {
	case <-c.exited:
	case <-patience.C:
		killErr := c.cmd.Process.Kill()
		<-c.exited
		return errors.Join(fmt.Errorf("the service did not stop within %v and was killed", stopPatience), killErr)
	}
	if c.waitErr != nil {
		return fmt.Errorf("the service did not stop cleanly: %w", c.waitErr)
	}
	return nil
}

// tail is the end of what the service printed.
func (c *child) tail() string {
	const most = 40 // lines
	data, err := os.ReadFile(c.log)
	if err != nil {
		return fmt.Sprintf("(its log cannot be read: %v)\n", err)
	}
	lines := strings.Split(strings.TrimSpace(string(data)), "\n")
	if len(lines) > most {
		lines = lines[len(lines)-most:]
	}
	return "what the service printed last:\n  " + strings.Join(lines, "\n  ") + "\n"
}
