package chaos

import (
	"net"
	"sync"
	"testing"
	"time"
)

// Proxy stands between one instance and one server, and does to all of its
// connections what networks do. It knows nothing of what they carry: a cut may
// fall into the middle of a message.
type Proxy struct {
	addr string // stays the same over a refusal
	to   string

	mu       sync.Mutex
	listener net.Listener  // nil while connections are refused
	stalled  chan struct{} // closed when bytes may pass; nil when they do
	delay    time.Duration // before each piece of what passes
	closed   bool
	conns    map[net.Conn]struct{}
	serving  sync.WaitGroup
}

// NewProxy listens on a free port of 127.0.0.1 and passes everything on to the
// address. It ends with the test.
func NewProxy(t testing.TB, to string) *Proxy {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatalf("listen for the proxy to %s: %v", to, err)
	}
	p := &Proxy{addr: l.Addr().String(), to: to, conns: map[net.Conn]struct{}{}}
	p.serve(l)
	t.Cleanup(p.close)
	return p
}

// Addr is host:port, for as long as the proxy lives.
func (p *Proxy) Addr() string { return p.addr }

// Cut closes all connections; new ones are taken.
func (p *Proxy) Cut() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for c := range p.conns {
		c.Close() //nolint:errcheck // the copying goroutines notice
	}
}

// Refuse closes all connections and takes no new ones, until [Proxy.Pass].
func (p *Proxy) Refuse() {
	p.mu.Lock()
	if p.listener != nil {
		p.listener.Close() //nolint:errcheck // likewise
		p.listener = nil
	}
	p.mu.Unlock()
	p.Cut()
}

// Stall lets nothing through in either direction, until [Proxy.Pass]; all
// connections stay open and new ones are taken.
func (p *Proxy) Stall() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.stalled == nil {
		p.stalled = make(chan struct{})
	}
}

// Slow holds back each piece of what passes, until [Proxy.Pass].
func (p *Proxy) Slow(d time.Duration) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.delay = d
}

// Pass ends whatever was done to connections. The port may be taken by an
// outgoing connection for a moment, so it may take a moment too; an error means
// that it was taken for seconds.
func (p *Proxy) Pass() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.delay = 0
	if p.stalled != nil {
		close(p.stalled)
		p.stalled = nil
	}
	if p.listener != nil || p.closed {
		return nil
	}
	for deadline := time.Now().Add(5 * time.Second); ; time.Sleep(5 * time.Millisecond) {
		l, err := net.Listen("tcp", p.addr)
		if err == nil {
			p.serve(l)
			return nil
		}
		if time.Now().After(deadline) {
			return err
		}
	}
}

// serve takes connections until l is closed. The caller holds mu, or nobody
// else knows of p.
func (p *Proxy) serve(l net.Listener) {
	p.listener = l
	p.serving.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			p.serving.Go(func() { p.relay(c) })
		}
	})
}

func (p *Proxy) close() {
	p.mu.Lock()
	p.closed = true
	p.mu.Unlock()
	p.Refuse()
	_ = p.Pass() // nothing is opened any more; what stalls ends
	p.serving.Wait()
}

func (p *Proxy) relay(client net.Conn) {
	if !p.track(client) {
		return
	}
	defer p.forget(client)
	server, err := net.Dial("tcp", p.to)
	if err != nil || !p.track(server) {
		return
	}
	defer p.forget(server)
	var back sync.WaitGroup
	back.Go(func() {
		p.copy(client, server)
		client.Close() //nolint:errcheck // ends the other direction
		server.Close() //nolint:errcheck // likewise
	})
	p.copy(server, client)
	client.Close() //nolint:errcheck // likewise
	server.Close() //nolint:errcheck // likewise
	back.Wait()
}

func (p *Proxy) copy(to, from net.Conn) {
	b := make([]byte, 32<<10)
	for {
		n, err := from.Read(b)
		if err != nil {
			return
		}
		p.hold()
		if _, err := to.Write(b[:n]); err != nil {
			return
		}
	}
}

// hold waits until bytes may pass.
func (p *Proxy) hold() {
	p.mu.Lock()
	stalled, delay := p.stalled, p.delay
	p.mu.Unlock()
	if stalled != nil {
		<-stalled
	}
	if delay > 0 {
		time.Sleep(delay)
	}
}

func (p *Proxy) track(c net.Conn) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		c.Close() //nolint:errcheck // nobody has used it
		return false
	}
	p.conns[c] = struct{}{}
	return true
}

func (p *Proxy) forget(c net.Conn) {
	p.mu.Lock()
	delete(p.conns, c)
	p.mu.Unlock()
	c.Close() //nolint:errcheck // it may be closed already
}
