package endtoend

import (
	"bufio"
	"crypto/sha1"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lapse-timers/lapse/timers/timerstest"
)

// verdict is what the proxy does with a command.
type verdict int

const (
	pass     verdict = iota // to the server, and its reply back
	cutReply                // to the server; when it has answered, the connection is cut
	cutFirst                // the connection is cut before the server sees it
	hold                    // neither passed nor cut until another rule is given
)

// redisProxy stands between Lapse and Redis and does to single commands what
// networks do. A command whose reply is cut has been carried out: the reply is
// awaited before the cut, so no test depends on who is faster.
type redisProxy struct {
	listener net.Listener
	to       *timerstest.RedisServer
	cuts     atomic.Int64

	mu      sync.Mutex
	rule    func(command []string) verdict
	changed chan struct{} // closed at the next change of the rule
	conns   map[net.Conn]struct{}
}

func newRedisProxy(t *testing.T, to *timerstest.RedisServer) *redisProxy {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	p := &redisProxy{listener: l, to: to, changed: make(chan struct{}), conns: map[net.Conn]struct{}{}}
	p.obey(func([]string) verdict { return pass })
	var serving sync.WaitGroup
	serving.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			serving.Go(func() { p.serve(c) })
		}
	})
	t.Cleanup(func() {
		l.Close()
		p.obey(func([]string) verdict { return cutFirst })
		p.cutAll()
		serving.Wait()
	})
	return p
}

func (p *redisProxy) url() string { return "redis://" + p.listener.Addr().String() }

// obey asks rule about every command from now on, one at a time.
func (p *redisProxy) obey(rule func(command []string) verdict) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.rule = rule
	close(p.changed)
	p.changed = make(chan struct{})
}

// next cuts the replies of the next n commands that are the script's.
func (p *redisProxy) next(n int, script string) {
	p.obey(func(command []string) verdict {
		if n > 0 && scriptOf(command) == script {
			n--
			return cutReply
		}
		return pass
	})
}

func (p *redisProxy) cutAll() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for c := range p.conns {
		c.Close()
	}
}

func (p *redisProxy) judge(command []string) verdict {
	for {
		p.mu.Lock()
		v, changed := p.rule(command), p.changed
		p.mu.Unlock()
		if v != hold {
			return v
		}
		<-changed
	}
}

func (p *redisProxy) track(c net.Conn) (forget func()) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.conns[c] = struct{}{}
	return func() {
		p.mu.Lock()
		defer p.mu.Unlock()
		delete(p.conns, c)
		c.Close()
	}
}

func (p *redisProxy) serve(client net.Conn) {
	defer p.track(client)()
	network := "tcp"
	if strings.HasPrefix(p.to.Addr(), "/") {
		network = "unix"
	}
	server, err := net.Dial(network, p.to.Addr())
	if err != nil {
		return
	}
	defer p.track(server)()

	var cutting atomic.Bool
	var replies sync.WaitGroup
	defer replies.Wait()
	replies.Go(func() {
		defer client.Close()
		defer server.Close()
		b := make([]byte, 64<<10)
		for {
			n, err := server.Read(b)
			if err != nil {
				return
			}
			if cutting.Load() {
				p.cuts.Add(1)
				return
			}
			if _, err := client.Write(b[:n]); err != nil {
				return
			}
		}
	})
	in := bufio.NewReader(client)
	for {
		command, raw, err := readCommand(in)
		if err != nil {
			server.Close()
			return
		}
		switch p.judge(command) {
		case cutFirst:
			client.Close()
			server.Close()
			return
		case cutReply:
			cutting.Store(true)
		}
		if _, err := server.Write(raw); err != nil {
			return
		}
	}
}

// readCommand reads an array of bulk strings, which is all that go-redis sends
// (https://redis.io/docs/latest/develop/reference/protocol-spec/).
func readCommand(in *bufio.Reader) (command []string, raw []byte, err error) {
	line := func(kind byte) (int, error) {
		s, err := in.ReadString('\n')
		if err != nil {
			return 0, err
		}
		raw = append(raw, s...)
		if s[0] != kind {
			return 0, fmt.Errorf("got %q, want a %c", s, kind)
		}
		return strconv.Atoi(strings.TrimSpace(s[1:]))
	}
	n, err := line('*')
	for i := 0; i < n && err == nil; i++ {
		var size int
		if size, err = line('$'); err != nil {
			break
		}
		b := make([]byte, size+2)
		if _, err = io.ReadFull(in, b); err == nil {
			raw = append(raw, b...)
			command = append(command, string(b[:size]))
		}
	}
	return command, raw, err
}

// scriptOf is the name of the script that the command runs, such as "set", or "".
func scriptOf(command []string) string {
	if len(command) < 2 {
		return ""
	}
	switch strings.ToLower(command[0]) {
	case "evalsha":
		return scripts()[command[1]]
	case "eval":
		return scripts()[fmt.Sprintf("%x", sha1.Sum([]byte(command[1])))]
	}
	return ""
}

// scripts are the names of the files in timers/lua by the hash that Redis
// knows them by.
var scripts = sync.OnceValue(func() map[string]string {
	read := func(name string) string {
		b, err := os.ReadFile(filepath.Join("..", "lua", name+".lua"))
		if err != nil {
			panic(err)
		}
		return string(b)
	}
	names := map[string]string{}
	for _, name := range []string{"set", "cancel", "claim", "ack", "release", "bury", "retry"} {
		names[fmt.Sprintf("%x", sha1.Sum([]byte(read("prelude")+read(name))))] = name
	}
	return names
})
