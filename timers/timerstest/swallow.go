package timerstest

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/redis/go-redis/v9"
)

// SwallowProxy stands between a client and a Redis server. It can keep the
// messages of subscriptions to itself, while confirmations, answers to pings
// and everything else pass: a subscription that is deaf and shows it nowhere.
type SwallowProxy struct {
	to        *RedisServer
	listener  net.Listener
	swallows  atomic.Bool
	swallowed atomic.Int64

	mu    sync.Mutex
	conns map[net.Conn]struct{} // nil once the test is over
}

// Swallowing starts a proxy before the server, which passes everything. It
// ends with the test.
func Swallowing(t testing.TB, to *RedisServer) *SwallowProxy {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	p := &SwallowProxy{to: to, listener: l, conns: map[net.Conn]struct{}{}}
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
		_ = l.Close() // it only has to end
		p.mu.Lock()
		for c := range p.conns {
			_ = c.Close()
		}
		p.conns = nil
		p.mu.Unlock()
		serving.Wait()
	})
	return p
}

// Swallow says whether messages are kept from now on.
func (p *SwallowProxy) Swallow(yes bool) { p.swallows.Store(yes) }

// Swallowed is how many messages were kept.
func (p *SwallowProxy) Swallowed() int64 { return p.swallowed.Load() }

// Addr is host:port of the proxy.
func (p *SwallowProxy) Addr() string { return p.listener.Addr().String() }

// URL is the address of the proxy for [redis.ParseURL], database 0.
func (p *SwallowProxy) URL() string { return "redis://" + p.Addr() }

// Client connects to database 0 through the proxy, like [RedisServer.Client].
func (p *SwallowProxy) Client() *redis.Client {
	p.to.t.Helper()
	o := p.to.options()
	o.Network, o.Addr = "tcp", p.Addr()
	c := redis.NewClient(o)
	p.to.t.Cleanup(func() { _ = c.Close() }) // the test may have closed it
	return c
}

// track keeps the connection for the end of the test; false says that it is
// over.
func (p *SwallowProxy) track(c net.Conn) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.conns == nil {
		_ = c.Close()
		return false
	}
	p.conns[c] = struct{}{}
	return true
}

func (p *SwallowProxy) forget(c net.Conn) {
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.conns, c)
	_ = c.Close()
}

func (p *SwallowProxy) serve(client net.Conn) {
	if !p.track(client) {
		return
	}
	defer p.forget(client)
	o := p.to.options()
	server, err := net.Dial(o.Network, o.Addr)
	if err != nil || !p.track(server) {
		return
	}
	defer p.forget(server)
	var replies sync.WaitGroup
	defer replies.Wait()
	replies.Go(func() {
		defer client.Close()
		in := bufio.NewReader(server)
		for {
			reply, first, err := readReply(in)
			if err != nil {
				return
			}
			if first == "message" && p.swallows.Load() {
				p.swallowed.Add(1)
			} else if _, err := client.Write(reply); err != nil {
				return
			}
		}
	})
	_, _ = io.Copy(server, client) // either side may end it
	_ = server.Close()
}

// readReply reads one reply or push as it is, and the first element of an
// array of strings (https://redis.io/docs/latest/develop/reference/protocol-spec/).
func readReply(in *bufio.Reader) (raw []byte, first string, err error) {
	raw, err = in.ReadBytes('\n')
	if err != nil {
		return nil, "", err
	}
	kind, rest := raw[0], strings.TrimSpace(string(raw[1:]))
	switch kind {
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
		if kind == '%' {
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
	case '+', '-', ':', '_', ',', '#', '(':
		return raw, "", nil
	}
	return nil, "", fmt.Errorf("%q is no reply of Redis", raw)
}
