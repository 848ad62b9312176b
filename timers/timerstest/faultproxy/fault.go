package faultproxy

import (
	"fmt"
	"net"
	"sync"
	"time"
)

// Fault is what befalls a command or a message.
type Fault struct {
	kind   kind
	delay  time.Duration
	answer string
}

type kind int

const (
	pass kind = iota
	cutFirst
	cutReply
	stall
	dropReply
	hold
	delay
	answer
	deliver
	drop
)

var (
	// Pass: nothing. It is the zero value.
	Pass = Fault{}
	// CutFirst: the connection is cut before the other side sees it.
	CutFirst = Fault{kind: cutFirst}
	// CutReply: passed on; once the reply to it has come, the connection is cut
	// in the reply's place. Commands of Redis only.
	CutReply = Fault{kind: cutReply}
	// Stall: neither it nor anything after it on this connection gets through,
	// in either direction, and the connection stays open.
	Stall = Fault{kind: stall}
	// DropReply: passed on; its reply and all that would follow never come, and
	// the connection stays open. Commands of Redis only.
	DropReply = Fault{kind: dropReply}
	// Drop: it alone is lost. Messages of NATS only.
	Drop = Fault{kind: drop}
	// Hold: not passed on, and nothing read behind it, until the rule changes;
	// the new one is asked then.
	Hold = Fault{kind: hold}
)

// Delay: passed on after d, and what follows it behind it.
func Delay(d time.Duration) Fault { return Fault{kind: delay, delay: d} }

// Answer: not passed on; the proxy answers in the server's place. For Redis
// the text is an error reply without its first dash, such as "READONLY You
// can't write against a read only replica.". For NATS it is a line of the
// protocol, such as "-ERR 'Permissions Violation for Publish to \"a\"'".
func Answer(text string) Fault { return Fault{kind: answer, answer: text} }

// Deliver: a publish is not passed on; the body comes to the inbox that it
// names for replies, as if somebody had answered it. Instead of a message to a
// client the body comes in its place. Messages of NATS only.
func Deliver(body string) Fault { return Fault{kind: deliver, answer: body} }

// Passes says whether what the fault befalls reaches the other side, now or
// after a delay.
func (f Fault) Passes() bool {
	switch f.kind {
	case pass, cutReply, dropReply, delay:
		return true
	}
	return false
}

// Holds says whether the rule is asked again, once it has changed.
func (f Fault) Holds() bool { return f.kind == hold }

// gatehouse is what both proxies have: a listener that may be shut, the
// connections that stand, and a rule that may change while something waits.
type gatehouse[T any] struct {
	network, addr string // where the server listens
	listen        func() (net.Listener, error)
	serve         func(client, server net.Conn)

	serving sync.WaitGroup

	mu       sync.Mutex
	listener net.Listener // nil while it refuses
	rule     func(T) Fault
	changed  chan struct{} // closed at the next change of the rule
	conns    map[net.Conn]struct{}
	closed   bool
}

func (g *gatehouse[T]) open() error {
	g.rule, g.changed = func(T) Fault { return Pass }, make(chan struct{})
	g.conns = map[net.Conn]struct{}{}
	return g.accept()
}

func (g *gatehouse[T]) accept() error {
	l, err := g.listen()
	if err != nil {
		return fmt.Errorf("a proxy before %s: %w", g.addr, err)
	}
	g.mu.Lock()
	g.listener = l
	g.mu.Unlock()
	g.serving.Go(func() {
		for {
			client, err := l.Accept()
			if err != nil {
				return
			}
			g.serving.Go(func() {
				defer g.track(client)()
				server, err := net.Dial(g.network, g.addr)
				if err != nil {
					return
				}
				defer g.track(server)()
				g.serve(client, server)
			})
		}
	})
	return nil
}

// Obey asks rule about everything from now on, one at a time; it must not
// block. What is held is judged anew.
func (g *gatehouse[T]) Obey(rule func(T) Fault) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.rule = rule
	close(g.changed)
	g.changed = make(chan struct{})
}

// Cut cuts all connections that stand.
func (g *gatehouse[T]) Cut() {
	g.mu.Lock()
	defer g.mu.Unlock()
	for c := range g.conns {
		_ = c.Close()
	}
}

// Refuse cuts all connections, and refuses new ones until [gatehouse.Admit].
func (g *gatehouse[T]) Refuse() {
	g.mu.Lock()
	l := g.listener
	g.listener = nil
	g.mu.Unlock()
	if l != nil {
		_ = l.Close()
	}
	g.Cut()
}

// Admit takes connections again, on the same address.
func (g *gatehouse[T]) Admit() error {
	g.mu.Lock()
	open := g.listener != nil
	g.mu.Unlock()
	if open {
		return nil
	}
	// The port may be in use for a moment by an outgoing connection.
	var err error
	for range 500 {
		if err = g.accept(); err == nil {
			return nil
		}
		time.Sleep(10 * time.Millisecond)
	}
	return err
}

// Close ends the proxy and waits for everything that it started.
func (g *gatehouse[T]) Close() {
	g.mu.Lock()
	g.closed = true
	g.mu.Unlock()
	g.Obey(func(T) Fault { return CutFirst })
	g.Refuse()
	g.serving.Wait()
}

// judge asks the rule, and waits while it says to hold.
func (g *gatehouse[T]) judge(what T) Fault {
	for {
		g.mu.Lock()
		f, changed := g.rule(what), g.changed
		g.mu.Unlock()
		if f.kind != hold {
			return f
		}
		<-changed
	}
}

// track keeps the connection to be cut; the returned function closes it.
func (g *gatehouse[T]) track(c net.Conn) (end func()) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.closed {
		_ = c.Close()
	}
	g.conns[c] = struct{}{}
	return func() {
		g.mu.Lock()
		defer g.mu.Unlock()
		delete(g.conns, c)
		_ = c.Close()
	}
}
