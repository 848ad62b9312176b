package web

import (
	"net"
	"sync"
)

// maxConnections is how many clients are connected at a time; others wait until
// one leaves. Without a bound whoever reaches the address could use up the files
// of the process, and with them those of the embedded NATS server, whose stream
// takes nothing more, until a restart, once a write has failed for that.
const maxConnections = 256

// bounded is a listener with so many connections at a time as slots has room for.
type bounded struct {
	net.Listener
	slots  chan struct{}
	once   sync.Once
	closed chan struct{}
}

func newBounded(l net.Listener, most int) *bounded {
	return &bounded{Listener: l, slots: make(chan struct{}, most), closed: make(chan struct{})}
}

// Accept waits for a connection, and before that for a slot.
func (b *bounded) Accept() (net.Conn, error) {
	select {
	case b.slots <- struct{}{}:
	case <-b.closed:
		return nil, net.ErrClosed
	}
	c, err := b.Listener.Accept()
	if err != nil {
		<-b.slots
		return nil, err
	}
	return &counted{Conn: c, leave: sync.OnceFunc(func() { <-b.slots })}, nil
}

// Close ends an Accept that waits for a slot, too.
func (b *bounded) Close() error {
	b.once.Do(func() { close(b.closed) })
	return b.Listener.Close()
}

type counted struct {
	net.Conn
	leave func()
}

// Close gives the slot to another.
func (c *counted) Close() error {
	defer c.leave()
	return c.Conn.Close()
}
