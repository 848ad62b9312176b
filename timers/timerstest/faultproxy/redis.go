package faultproxy

import (
	"bufio"
	"crypto/sha1" //nolint:gosec // Redis names scripts by it
	"fmt"
	"io"
	"io/fs"
	"net"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

// Redis is a proxy before a redis-server. Faults befall commands.
type Redis struct {
	gatehouse[Command]
	dir     string
	scripts map[string]string
	cuts    atomic.Int64

	swallows  atomic.Bool
	swallowed atomic.Int64
}

// Command is one command on its way to Redis.
type Command struct {
	Args   []string // the name of the command first
	Script string   // the file it runs, such as "set"; "" for others and for unknown scripts
}

// Is says whether it is the named command, in any letter case.
func (c Command) Is(name string) bool { return len(c.Args) > 0 && strings.EqualFold(c.Args[0], name) }

// About says whether an argument is the member, or a key that ends with it:
// whether a script or a command is about that timer.
func (c Command) About(member string) bool {
	return slices.ContainsFunc(c.Args, func(arg string) bool {
		return arg == member || strings.HasSuffix(arg, ":"+member)
	})
}

// NewRedis starts a proxy on a unix socket before the redis-server at network
// and addr, which passes everything. lua holds the scripts by which commands
// are told apart: one file each, behind prelude.lua.
func NewRedis(network, addr string, lua fs.FS) (*Redis, error) {
	dir, err := os.MkdirTemp("", "lapse") // the path of a unix socket must be short
	if err != nil {
		return nil, err
	}
	p := &Redis{dir: dir, scripts: map[string]string{}}
	prelude, err := fs.ReadFile(lua, "prelude.lua")
	if err != nil {
		return nil, err
	}
	files, err := fs.Glob(lua, "*.lua")
	if err != nil {
		return nil, err
	}
	for _, f := range files {
		text, err := fs.ReadFile(lua, f)
		if err != nil {
			return nil, err
		}
		p.scripts[hashOf(string(prelude)+string(text))] = strings.TrimSuffix(path.Base(f), ".lua")
	}
	p.network, p.addr, p.gatehouse.serve = network, addr, p.serve
	p.listen = func() (net.Listener, error) { return net.Listen("unix", p.socket()) }
	return p, p.gatehouse.open()
}

// Close ends the proxy.
func (p *Redis) Close() {
	p.gatehouse.Close()
	_ = os.RemoveAll(p.dir)
}

// URL is the address of the proxy for redis.ParseURL, database 0.
func (p *Redis) URL() string { return "unix://" + p.socket() }

func (p *Redis) socket() string { return filepath.Join(p.dir, "proxy.sock") }

// Cuts is how many replies were cut or dropped.
func (p *Redis) Cuts() int64 { return p.cuts.Load() }

// Swallow says whether the proxy keeps the messages of subscriptions to itself
// from now on, while confirmations, answers to pings and everything else pass: a
// subscription that is deaf and shows it nowhere.
func (p *Redis) Swallow(yes bool) { p.swallows.Store(yes) }

// Swallowed is how many messages were kept.
func (p *Redis) Swallowed() int64 { return p.swallowed.Load() }

func hashOf(text string) string { return fmt.Sprintf("%x", sha1.Sum([]byte(text))) } //nolint:gosec // as above

func (p *Redis) command(args []string) Command {
	c := Command{Args: args}
	switch {
	case len(args) < 2:
	case c.Is("evalsha"):
		c.Script = p.scripts[args[1]]
	case c.Is("eval"):
		c.Script = p.scripts[hashOf(args[1])]
	}
	return c
}

// redisConn is one connection: replies in the order of their commands, some of
// which the proxy gives itself.
type redisConn struct {
	mu      sync.Mutex
	client  net.Conn
	waiting []Fault // of the commands that have no reply yet, oldest first
	mute    bool    // nothing goes to the client any more
}

func (p *Redis) serve(client, server net.Conn) {
	c := &redisConn{client: client}
	var replies sync.WaitGroup
	defer replies.Wait()
	replies.Go(func() {
		defer client.Close()
		defer server.Close()
		in := bufio.NewReader(server)
		for {
			reply, first, err := readReply(in)
			if err != nil || !p.reply(c, reply, first) {
				return
			}
		}
	})
	defer server.Close()
	in := bufio.NewReader(client)
	for {
		args, raw, err := readCommand(in)
		if err != nil {
			return
		}
		f := p.judge(p.command(args))
		switch f.kind {
		case cutFirst:
			_ = client.Close()
			return
		case stall:
			c.mu.Lock()
			c.mute = true
			c.mu.Unlock()
			_, _ = io.Copy(io.Discard, client) // until it gives up
			return
		case answer:
			if !c.answer(f) {
				return
			}
			continue
		case delay:
			time.Sleep(f.delay)
		}
		c.mu.Lock()
		c.waiting = append(c.waiting, f)
		c.mu.Unlock()
		if _, err := server.Write(raw); err != nil {
			return
		}
	}
}

// answer gives an answer of the proxy's own when its turn comes.
func (c *redisConn) answer(f Fault) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.waiting = append(c.waiting, f)
	return c.own()
}

// own gives the answers of the proxy that are next. The caller holds mu.
func (c *redisConn) own() bool {
	for len(c.waiting) > 0 && c.waiting[0].kind == answer {
		if !c.write([]byte("-" + c.waiting[0].answer + "\r\n")) {
			return false
		}
		c.waiting = c.waiting[1:]
	}
	return true
}

func (c *redisConn) write(b []byte) bool {
	if c.mute {
		return true
	}
	_, err := c.client.Write(b)
	return err == nil
}

// reply passes a reply on, unless a fault says otherwise, and says whether the
// connection stands. What is pushed, such as a message of a subscription,
// answers nothing.
func (p *Redis) reply(c *redisConn, reply []byte, first string) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if first == "message" && p.swallows.Load() {
		p.swallowed.Add(1)
		return true
	}
	if len(c.waiting) == 0 || first == "message" {
		return c.write(reply)
	}
	f := c.waiting[0]
	c.waiting = c.waiting[1:]
	switch f.kind {
	case cutReply:
		p.cuts.Add(1)
		return false
	case dropReply:
		p.cuts.Add(1)
		c.mute = true
	}
	return c.write(reply) && c.own()
}

// readCommand reads an array of bulk strings, which is all that go-redis sends
// (https://redis.io/docs/latest/develop/reference/protocol-spec/).
func readCommand(in *bufio.Reader) (args []string, raw []byte, err error) {
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
			args = append(args, string(b[:size]))
		}
	}
	return args, raw, err
}

// readReply reads one reply or push as it is, and the first element of an
// array of strings.
func readReply(in *bufio.Reader) (raw []byte, first string, err error) {
	raw, err = in.ReadBytes('\n')
	if err != nil {
		return nil, "", err
	}
	rest := strings.TrimSpace(string(raw[1:]))
	switch raw[0] {
	case '$', '=', '!':
		size, err := strconv.Atoi(rest)
		if err != nil || size < 0 {
			return raw, "", err
		}
		body := make([]byte, size+2)
		if _, err := io.ReadFull(in, body); err != nil {
			return nil, "", err
		}
		return append(raw, body...), string(body[:size]), nil
	case '*', '>', '~', '%':
		n, err := strconv.Atoi(rest)
		if err != nil {
			return raw, "", err
		}
		if raw[0] == '%' {
			n *= 2
		}
		for i := range n {
			element, name, err := readReply(in)
			if err != nil {
				return nil, "", err
			}
			raw = append(raw, element...)
			if i == 0 {
				first = name
			}
		}
		return raw, first, nil
	}
	return raw, "", nil
}
