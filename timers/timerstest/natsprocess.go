package timerstest

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"syscall"
	"testing"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
)

// NATSProcessServer is a nats-server as a process of its own, which can be
// killed and paused.
type NATSProcessServer struct {
	process
	bin  string
	args []string
	port int
}

// NATSProcess starts a nats-server process with JetStream on a free port of
// 127.0.0.1 and returns when it takes clients. The arguments go on its command
// line, such as "-c" and a file. The program is built from the version of the
// library in go.mod, once per user and machine.
func NATSProcess(t testing.TB, args ...string) *NATSProcessServer {
	t.Helper()
	bin, err := natsBinary()
	if err != nil {
		t.Fatal(err)
	}
	n := &NATSProcessServer{bin: bin, args: args, port: server.RANDOM_PORT,
		process: process{t: t, name: "nats-server", dir: tempDir(t)}}
	t.Cleanup(func() { n.end(syscall.SIGKILL) })
	n.Start()
	return n
}

// Start runs the server again after Kill or Stop, on the same port and store,
// and returns when it takes clients.
func (n *NATSProcessServer) Start() {
	n.t.Helper()
	if n.running() {
		n.t.Fatal("nats-server is running already")
	}
	ports := filepath.Join(n.dir, "ports")
	if err := os.MkdirAll(ports, 0o700); err != nil {
		n.t.Fatal(err)
	}
	args := append([]string{"-a", "127.0.0.1", "-p", strconv.Itoa(n.port), "-js", "-sd", filepath.Join(n.dir, "js"),
		"--ports_file_dir", ports}, n.args...)
	if err := n.start(n.bin, args...); err != nil {
		n.t.Fatal(err)
	}
	err := n.await(func() error {
		if n.port == server.RANDOM_PORT {
			port, err := readPort(filepath.Join(ports, fmt.Sprintf("%s_%d.ports", filepath.Base(n.bin), n.Pid())))
			if err != nil {
				return err
			}
			n.port = port
		}
		return greets(n.port)
	})
	if err != nil {
		n.t.Fatal(err)
	}
}

// URL is the address of the server, without credentials.
func (n *NATSProcessServer) URL() string { return natsURL(n.port) }

// Connect connects to the server; see [NATSServer.Connect].
func (n *NATSProcessServer) Connect(t testing.TB, options ...nats.Option) *nats.Conn {
	t.Helper()
	return connect(t, n.URL(), options)
}

// readPort reads the client port from the file that nats-server writes.
func readPort(file string) (int, error) {
	b, err := os.ReadFile(file)
	if err != nil {
		return 0, err
	}
	var p struct {
		Nats []string `json:"nats"`
	}
	if err := json.Unmarshal(b, &p); err != nil {
		return 0, err // half written
	}
	if len(p.Nats) == 0 {
		return 0, errors.New("the ports file names no client port")
	}
	u, err := url.Parse(p.Nats[0])
	if err != nil {
		return 0, err
	}
	return strconv.Atoi(u.Port())
}

// natsBinary returns the path of the nats-server program, building it when no
// earlier run has. The build takes most of a minute, so the result is kept in
// the user's cache; packages that are tested at the same time build it once.
func natsBinary() (string, error) {
	cache, err := os.UserCacheDir()
	if err != nil {
		cache = os.TempDir() // there is no HOME, as in some CI
	}
	cache = filepath.Join(cache, "lapse-test")
	if err := os.MkdirAll(cache, 0o700); err != nil {
		return "", err
	}
	bin := filepath.Join(cache, fmt.Sprintf("nats-server-%s-%s-%s", server.VERSION, runtime.GOOS, runtime.GOARCH))

	lock, err := os.OpenFile(bin+".lock", os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return "", err
	}
	defer lock.Close() // and with it the lock
	if err := syscall.Flock(int(lock.Fd()), syscall.LOCK_EX); err != nil {
		return "", fmt.Errorf("lock the cache of nats-server: %w", err)
	}
	if _, err := os.Stat(bin); err == nil {
		return bin, nil
	}
	top, err := root()
	if err != nil {
		return "", err
	}
	half := bin + ".new" // renamed when whole, so that an interrupted build leaves nothing to run
	cmd := exec.Command("go", "build", "-o", half, "github.com/nats-io/nats-server/v2")
	cmd.Dir = top
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		return "", fmt.Errorf("build nats-server: %w\n%s", err, out)
	}
	return bin, os.Rename(half, bin)
}
