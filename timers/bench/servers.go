package bench

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/redis/go-redis/v9"
)

const (
	installRedis = "install it (apt-get install redis-server, brew install redis), or name it with --redis-server"
	installNATS  = "install nats-server from https://nats.io/download, build it with make bin/nats-server, or name it with --nats-server"
)

// servers are processes of the bench's own, with their data in one temporary
// directory.
type servers struct {
	dir     string
	started []*process
}

func newServers(parent string) (*servers, error) {
	// A unix socket's path is limited to about 100 bytes, so the name is short.
	dir, err := os.MkdirTemp(parent, "lapse-bench-")
	if err != nil {
		return nil, fmt.Errorf("make a directory for the servers: %w", err)
	}
	return &servers{dir: dir}, nil
}

// run launches a server in a directory of its own below.
func (s *servers) run(name, bin string, env []string, args ...string) (*process, error) {
	dir := filepath.Join(s.dir, name)
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, fmt.Errorf("make a directory for %s: %w", name, err)
	}
	p, err := launch(name, bin, dir, env, args...)
	if err != nil {
		return nil, err
	}
	s.started = append(s.started, p)
	return p, nil
}

// close kills what still runs and removes the data.
func (s *servers) close() error {
	for i := len(s.started) - 1; i >= 0; i-- {
		s.started[i].kill()
	}
	return os.RemoveAll(s.dir)
}

// redis starts a redis-server with the shipped redis.conf on a unix socket.
// The directives, "name=value", stand over the file.
func (s *servers) redis(ctx context.Context, p Programs, directives []string) (*process, *redis.Client, error) {
	bin, err := find(p.RedisServer, "redis-server", p.Lapse, installRedis)
	if err != nil {
		return nil, nil, err
	}
	dir := filepath.Join(s.dir, "redis")
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, nil, fmt.Errorf("make a directory for redis: %w", err)
	}
	conf, socket := filepath.Join(dir, "redis.conf"), filepath.Join(dir, "redis.sock")
	if len(socket) > 100 {
		return nil, nil, fmt.Errorf("the path %s is too long for a unix socket: set TMPDIR to a shorter directory", socket)
	}
	if err := os.WriteFile(conf, p.RedisConf, 0o600); err != nil {
		return nil, nil, fmt.Errorf("write the configuration of redis-server: %w", err)
	}
	args := []string{conf, "--port", "0", "--unixsocket", socket, "--unixsocketperm", "700", "--dir", dir, "--daemonize", "no", "--logfile", ""}
	for _, d := range directives {
		name, value, _ := strings.Cut(d, "=")
		args = append(args, "--"+name)
		args = append(args, strings.Fields(value)...)
	}
	proc, err := s.run("redis", bin, cleaned(os.Environ()), args...)
	if err != nil {
		return nil, nil, err
	}
	client := redis.NewClient(&redis.Options{Network: "unix", Addr: socket, MaxRetries: -1, ContextTimeoutEnabled: true, PoolSize: 64})
	err = proc.await(ctx, func() error {
		c, err := net.Dial("unix", socket) // go-redis would print each failure
		if err != nil {
			return err
		}
		_ = c.Close() // it only had to open
		return client.Ping(ctx).Err()
	})
	if err != nil {
		_ = client.Close() // the error says it all
		return nil, nil, err
	}
	return proc, client, nil
}

// nats starts a nats-server with JetStream on a free port and returns its
// address. The file store is its default.
func (s *servers) nats(ctx context.Context, p Programs) (proc *process, addr string, err error) {
	bin, err := find(p.NATSServer, "nats-server", p.Lapse, installNATS)
	if err != nil {
		return nil, "", err
	}
	dir := filepath.Join(s.dir, "nats")
	proc, err = s.run("nats", bin, cleaned(os.Environ()), "-a", "127.0.0.1", "-p", "-1", "-js", "-sd", filepath.Join(dir, "js"), "--ports_file_dir", dir)
	if err != nil {
		return nil, "", err
	}
	err = proc.await(ctx, func() error {
		files, _ := filepath.Glob(filepath.Join(dir, "*_"+strconv.Itoa(proc.pid())+".ports")) // the pattern is ours
		if len(files) == 0 {
			return errors.New("it has not written its port")
		}
		b, err := os.ReadFile(files[0])
		if err != nil {
			return err
		}
		var ports struct {
			NATS []string `json:"nats"`
		}
		if err := json.Unmarshal(b, &ports); err != nil || len(ports.NATS) == 0 {
			return errors.New("it has not written its port") // half of the file
		}
		addr = ports.NATS[0]
		nc, err := nats.Connect(addr, nats.NoReconnect())
		if err != nil {
			return err
		}
		nc.Close()
		return nil
	})
	return proc, addr, err
}

// lapse starts one instance of the service and returns when it is ready, and
// since when it is.
func (s *servers) lapse(ctx context.Context, p Programs, n int, redisSocket, natsURL string, settings []string) (proc *process, ready time.Time, err error) {
	env := append(cleaned(os.Environ()), settings...)
	env = append(env, "LAPSE_REDIS_URL="+(&url.URL{Scheme: "unix", Path: redisSocket}).String(), "LAPSE_NATS_URL="+natsURL,
		"LAPSE_HTTP_LISTEN=127.0.0.1:0", "LAPSE_LOG_FORMAT=json", "LAPSE_LOG_LEVEL=info")
	proc, err = s.run(fmt.Sprintf("lapse-%d", n), p.Lapse, env, "serve")
	if err != nil {
		return nil, ready, err
	}
	err = proc.await(ctx, func() error {
		for line := range bytes.Lines(proc.said()) {
			var entry struct {
				Time time.Time
				Msg  string
			}
			if json.Unmarshal(line, &entry) == nil && entry.Msg == "ready" {
				ready = entry.Time
				return nil
			}
		}
		return errors.New("it has not said that it is ready")
	})
	return proc, ready, err
}

// responder starts a process that answers requests on the subject and does
// nothing else: what a request over NATS costs at least.
func (s *servers) responder(ctx context.Context, p Programs, natsURL, subject string) error {
	proc, err := s.run("responder", p.Lapse, cleaned(os.Environ()), "bench", "respond", "--server", natsURL, "--subject", subject)
	if err != nil {
		return err
	}
	return proc.await(ctx, func() error {
		if !bytes.Contains(proc.said(), []byte(responderReady)) {
			return errors.New("it has not said that it listens")
		}
		return nil
	})
}

// cleaned is env without what would lead a server to other settings.
func cleaned(env []string) []string {
	var out []string
	for _, v := range env {
		if !strings.HasPrefix(v, "LAPSE_") && !strings.HasPrefix(v, "NATS_") {
			out = append(out, v)
		}
	}
	return out
}
