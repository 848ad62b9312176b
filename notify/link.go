package notify

import (
	"context"
	"errors"
	"net"
	"sync"

	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/maintnotifications"
)

// link is the connections of one session: that of the subscription and the one
// that the flags are looked at with, dialed together so that they reach the
// same server.
type link struct {
	ctx    context.Context // of the session: go-redis dials in goroutines with contexts of its own
	client *redis.Client
	dialer func(ctx context.Context, network, addr string) (net.Conn, error)

	mu    sync.Mutex
	over  bool
	conns map[*linkConn]struct{}
}

var (
	errOver = errors.New("the session is over")
	errOnce = errors.New("the connection is gone")
)

func newLink(ctx context.Context, from *redis.Options, p pace) *link {
	lk := &link{ctx: ctx, dialer: from.Dialer, conns: map[*linkConn]struct{}{}}
	o := *from
	o.Dialer = lk.dial
	o.DialTimeout = p.connect
	o.DialerRetries = 1 // the listener's back-off does it
	o.ReadTimeout, o.WriteTimeout, o.PoolTimeout = p.answer, p.answer, p.answer
	o.ContextTimeoutEnabled = true
	o.MaxRetries = 1 // reading and adding flags may be done twice
	// One is in use at a time. After as many failed dials as the size, the pool
	// would go on by itself with a goroutine that outlives it.
	o.PoolSize, o.MinIdleConns, o.MaxIdleConns, o.MaxActiveConns = 8, 0, 0, 0
	o.MaxConcurrentDials, o.PipelinePoolSize = 0, -1
	o.Limiter = nil // what trips it for commands says nothing about events
	o.PushNotificationProcessor = nil
	o.ClientSideCache, o.ClientSideCacheConfig = nil, nil
	o.MaintNotificationsConfig = &maintnotifications.Config{Mode: maintnotifications.ModeDisabled}
	lk.client = redis.NewClient(&o)
	return lk
}

// onceKey marks the context of calls that must not dial.
type onceKey struct{}

// onlyOnce keeps go-redis from what it does when a subscription breaks: to
// dial and to subscribe again before it returns the error, unconfirmed and
// unlooked at.
func onlyOnce(ctx context.Context) context.Context {
	return context.WithValue(ctx, onceKey{}, true)
}

func (lk *link) dial(ctx context.Context, network, addr string) (net.Conn, error) {
	if ctx.Value(onceKey{}) != nil {
		return nil, errOnce
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(lk.ctx, cancel)()
	nc, err := lk.dialer(ctx, network, addr)
	if err != nil {
		return nil, err
	}
	c := &linkConn{Conn: nc, link: lk}
	lk.mu.Lock()
	over := lk.over
	lk.conns[c] = struct{}{}
	lk.mu.Unlock()
	if over {
		_ = c.Close() // never used
		return nil, errOver
	}
	return c, nil
}

// cut closes every connection and lets no other come up: whatever waits for
// one of them ends with an error.
func (lk *link) cut() {
	lk.mu.Lock()
	lk.over = true
	open := make([]*linkConn, 0, len(lk.conns))
	for c := range lk.conns {
		open = append(open, c)
	}
	lk.mu.Unlock()
	for _, c := range open {
		_ = c.Close() // it is given up either way
	}
}

// discard frees the client after cut.
func (lk *link) discard() { _ = lk.client.Close() } // says only that connections were closed before

// linkConn forgets itself when it is closed.
type linkConn struct {
	net.Conn
	link *link
}

func (c *linkConn) Close() error {
	c.link.mu.Lock()
	delete(c.link.conns, c)
	c.link.mu.Unlock()
	return c.Conn.Close()
}
