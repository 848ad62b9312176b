package timerstest

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"hash/crc32"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
)

// LapseServer is lapse serve as a process of its own: the real program, which
// can be killed and paused.
type LapseServer struct {
	process
	bin    string
	logged int // how much it had printed before this run

	// HTTP is host:port of its /readyz, once it is ready. A new run may have
	// another.
	HTTP string
}

// Lapse builds the program and prepares an instance with the settings, such as
// "LAPSE_LEASE=2s". It has none of the environment's own LAPSE_* settings, and
// listens for HTTP on a free port. The caller starts it.
func Lapse(t testing.TB, settings ...string) *LapseServer {
	t.Helper()
	return newLapse(t, LapseBinary(t), settings)
}

// LapseWithFaults is [Lapse] built with the tag faults: it obeys settings such
// as "FAULT_KILL=claimed:1" (timers/fault).
func LapseWithFaults(t testing.TB, settings ...string) *LapseServer {
	t.Helper()
	bin, err := faultsBinary()
	if err != nil {
		t.Fatalf("build lapse with the tag faults: %v", err)
	}
	return newLapse(t, bin, settings)
}

func newLapse(t testing.TB, bin string, settings []string) *LapseServer {
	t.Helper()
	l := &LapseServer{bin: bin, process: process{t: t, name: "lapse", dir: t.TempDir()}}
	for _, kv := range os.Environ() {
		if !strings.HasPrefix(kv, "LAPSE_") {
			l.env = append(l.env, kv)
		}
	}
	l.env = append(l.env, "LAPSE_HTTP_LISTEN=127.0.0.1:0", "LAPSE_LOG_FORMAT=json")
	l.env = append(l.env, settings...)
	t.Cleanup(func() {
		l.Resume()
		l.Kill()
		if t.Failed() {
			t.Logf("lapse said:\n%s", l.Log())
		}
	})
	return l
}

// LapseBinary is the path of the program built from this tree.
func LapseBinary(t testing.TB) string {
	t.Helper()
	bin, err := lapseBinary()
	if err != nil {
		t.Fatalf("build lapse: %v", err)
	}
	return bin
}

// LapseOn is [Lapse] on the given servers, started and ready.
func LapseOn(t testing.TB, redisURL, natsURL string, settings ...string) *LapseServer {
	t.Helper()
	l := Lapse(t, append([]string{"LAPSE_REDIS_URL=" + redisURL, "LAPSE_NATS_URL=" + natsURL}, settings...)...)
	l.Start()
	return l
}

// Start runs the instance and returns when it takes requests.
func (l *LapseServer) Start() {
	l.t.Helper()
	l.Launch()
	l.AwaitReady()
}

// Launch runs the instance and does not wait.
func (l *LapseServer) Launch() {
	l.t.Helper()
	l.HTTP = ""
	l.logged = len(l.Log())
	if err := l.start(l.bin, "serve"); err != nil {
		l.t.Fatalf("start lapse: %v", err)
	}
}

// AwaitReady returns when the instance of this run takes requests.
func (l *LapseServer) AwaitReady() {
	l.t.Helper()
	if err := l.await(func() error {
		for line := range bytes.Lines([]byte(l.Log()[l.logged:])) {
			var entry struct{ Msg, HTTP string }
			if json.Unmarshal(line, &entry) == nil && entry.Msg == "ready" {
				l.HTTP = entry.HTTP
				return nil
			}
		}
		return errors.New("it has not said that it is ready")
	}); err != nil {
		l.t.Fatal(err)
	}
}

// Set changes a setting, such as "LAPSE_LEASE=2s", for the runs to come.
func (l *LapseServer) Set(setting string) { l.env = append(l.env, setting) }

// Running says whether the current run has not ended yet.
func (l *LapseServer) Running() bool { return l.running() }

// Wait waits for the end of the current run, and returns its exit code, -1
// for a signal.
func (l *LapseServer) Wait() int {
	<-l.done
	return l.cmd.ProcessState.ExitCode()
}

// Log is what the instance has printed in all its runs.
func (l *LapseServer) Log() string {
	b, _ := os.ReadFile(filepath.Join(l.dir, "output.log")) // none before the first run
	return string(b)
}

// Ready is the answer of /readyz: its code and its body.
func (l *LapseServer) Ready() (code int, body string, err error) {
	resp, err := http.Get("http://" + l.HTTP + "/readyz")
	if err != nil {
		return 0, "", err
	}
	defer resp.Body.Close()
	var b bytes.Buffer
	if _, err := b.ReadFrom(resp.Body); err != nil {
		return 0, "", err
	}
	return resp.StatusCode, b.String(), nil
}

// lapseBinary builds the program from this tree once per test binary, with the race detector
// when the test has it; faultsBinary with the tag faults as well.
var (
	lapseBinary  = sync.OnceValues(func() (string, error) { return build("lapse") })
	faultsBinary = sync.OnceValues(func() (string, error) { return build("lapse-faults", "-tags", "faults") })
)

func build(name string, flags ...string) (string, error) {
	top, err := root()
	if err != nil {
		return "", err
	}
	cache, err := os.UserCacheDir()
	if err != nil {
		return "", err
	}
	// Each checkout has its own, or two that are tested together would swap them.
	bin := filepath.Join(cache, "lapse-test", fmt.Sprintf("%s-%08x", name, crc32.ChecksumIEEE([]byte(top))))
	args := append([]string{"build"}, flags...)
	if raceEnabled {
		bin += "-race"
		args = append(args, "-race")
	}
	// Built under a name of its own and renamed: another test may be running it.
	fresh := fmt.Sprintf("%s.%d", bin, os.Getpid())
	cmd := exec.Command("go", append(args, "-o", fresh, ".")...)
	cmd.Dir = top
	if out, err := cmd.CombinedOutput(); err != nil {
		return "", fmt.Errorf("%w\n%s", err, out)
	}
	return bin, os.Rename(fresh, bin)
}
