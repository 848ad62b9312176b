package timerstest

import (
	"context"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/lapse-timers/lapse/timers/timerstest/faultproxy"
)

// RedisServer is a redis-server with the shipped redis.conf and a directory of
// its own, which all its runs share.
type RedisServer struct {
	process
	bin    string
	args   []string
	socket string // path, or ""
	port   int    // of 127.0.0.1, or 0
}

// Redis starts a redis-server with the shipped redis.conf on a unix socket, and
// returns when it answers. The arguments go on its command line, behind ours,
// such as "--hz", "10".
func Redis(t testing.TB, args ...string) *RedisServer {
	t.Helper()
	s := newRedis(t, args)
	s.socket = filepath.Join(s.dir, "redis.sock")
	s.Start()
	return s
}

// RedisTCP is [Redis] on a free port of 127.0.0.1.
func RedisTCP(t testing.TB, args ...string) *RedisServer {
	t.Helper()
	s := newRedis(t, args)
	// Another process may take the port between the choice and the start.
	var err error
	for range 5 {
		if s.port, err = freePort(); err != nil {
			t.Fatal(err)
		}
		if err = s.run(); err == nil {
			return s
		}
		s.Kill()
	}
	t.Fatal(err)
	return nil
}

func newRedis(t testing.TB, args []string) *RedisServer {
	t.Helper()
	bin, err := exec.LookPath("redis-server")
	if err != nil {
		t.Fatal("there is no redis-server on the PATH; install it: apt-get install redis-server (macOS: brew install redis)")
	}
	top, err := root()
	if err != nil {
		t.Fatal(err)
	}
	s := &RedisServer{bin: bin, process: process{t: t, name: "redis-server", dir: tempDir(t)}}
	s.args = append([]string{filepath.Join(top, "redis.conf"), "--daemonize", "no", "--dir", s.dir, "--logfile", ""}, args...)
	t.Cleanup(func() { s.end(9) }) // nobody reads its data any more
	return s
}

// Start runs the server again after [RedisServer.Kill] or [RedisServer.Stop],
// on the same address and data, and returns when it answers.
func (s *RedisServer) Start() {
	s.t.Helper()
	if err := s.run(); err != nil {
		s.t.Fatal(err)
	}
}

func (s *RedisServer) run() error {
	if s.running() {
		return fmt.Errorf("redis-server is running already")
	}
	args := append([]string(nil), s.args[:1]...)
	args = append(args, "--port", strconv.Itoa(s.port))
	if s.socket != "" {
		args = append(args, "--unixsocket", s.socket, "--unixsocketperm", "700")
	}
	if err := s.start(s.bin, append(args, s.args[1:]...)...); err != nil {
		return err
	}
	c := redis.NewClient(s.options())
	defer c.Close()
	return s.await(func() error {
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		defer cancel()
		// go-redis would print every failure to connect, and wait.
		nc, err := net.Dial(s.options().Network, s.Addr())
		if err != nil {
			return err
		}
		_ = nc.Close() // it only had to open
		err = c.Ping(ctx).Err()
		if err != nil && strings.HasPrefix(err.Error(), "NOAUTH") {
			return nil // it answers; who asks it needs a password
		}
		return err
	})
}

// URL is the address of the server for [redis.ParseURL], database 0.
func (s *RedisServer) URL() string {
	if s.socket != "" {
		return "unix://" + s.socket
	}
	return "redis://" + s.Addr()
}

// Addr is host:port of a server that [RedisTCP] started, or the path of the
// socket.
func (s *RedisServer) Addr() string {
	if s.socket != "" {
		return s.socket
	}
	return net.JoinHostPort("127.0.0.1", strconv.Itoa(s.port))
}

// Client connects to database 0. It never retries, so that a test sees every
// failure, and it obeys the deadlines of contexts. It is closed with the test.
func (s *RedisServer) Client() *redis.Client {
	s.t.Helper()
	c := redis.NewClient(s.options())
	s.t.Cleanup(func() { _ = c.Close() }) // the test may have closed it
	return c
}

func (s *RedisServer) options() *redis.Options {
	o := &redis.Options{Network: "tcp", Addr: s.Addr(), MaxRetries: -1, DialerRetries: 1, ContextTimeoutEnabled: true}
	if s.socket != "" {
		o.Network = "unix"
	}
	return o
}

// RedisProxy puts a proxy before the server, which passes everything until the
// test has it do otherwise. It ends with the test.
func RedisProxy(t testing.TB, to *RedisServer) *faultproxy.Redis {
	t.Helper()
	top, err := root()
	if err != nil {
		t.Fatal(err)
	}
	o := to.options()
	p, err := faultproxy.NewRedis(o.Network, o.Addr, os.DirFS(filepath.Join(top, "timers", "lua")))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(p.Close)
	return p
}

func freePort() (int, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return 0, err
	}
	defer l.Close()
	return l.Addr().(*net.TCPAddr).Port, nil
}
