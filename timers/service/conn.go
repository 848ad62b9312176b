package service

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/url"
	"regexp"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
)

// ErrAuth is a refusal that waiting does not mend.
var ErrAuth = errors.New("NATS refuses the credentials")

// ConnConfig says how to reach NATS.
type ConnConfig struct {
	URL     string // several with commas
	Creds   string // credentials file, or ""
	Options []nats.Option
	Logger  *slog.Logger
}

// Conn is a connection to NATS and who wants to hear what becomes of it.
type Conn struct {
	*nats.Conn

	mu           sync.Mutex
	disconnected []func()
	reconnected  []func()
	asyncError   []func(*nats.Subscription, error)
	closing      bool       // by us
	lost         chan error // one slot
}

// Connect opens a connection that reconnects for ever. With publishing it
// keeps no buffer while it is away: a publish then fails, definitely, where a
// buffer would say yes and might drop it (ADR 6). It tries once; errors that
// match [ErrAuth] are not worth another try. No error repeats a password.
func Connect(cfg ConnConfig, name string, publishing bool) (*Conn, error) {
	c := &Conn{lost: make(chan error, 1)}
	opts := []nats.Option{
		nats.Name(name),
		nats.MaxReconnects(-1),
		nats.ReconnectWait(100 * time.Millisecond),
		nats.ReconnectJitter(100*time.Millisecond, 100*time.Millisecond),
		nats.IgnoreAuthErrorAbort(),
		nats.Timeout(2 * time.Second),
		// A server that stands still takes no bytes, and the library writes under
		// its lock: for a minute by default, in which nothing else of it moves.
		nats.FlusherTimeout(5 * time.Second),
		nats.ReconnectOnFlusherError(),
		nats.PingInterval(5 * time.Second),
		nats.MaxPingsOutstanding(2),
		nats.DisconnectErrHandler(func(_ *nats.Conn, err error) { c.each(func() []func() { return c.disconnected }) }),
		nats.ReconnectHandler(func(*nats.Conn) { c.each(func() []func() { return c.reconnected }) }),
		nats.ClosedHandler(func(nc *nats.Conn) {
			c.mu.Lock()
			defer c.mu.Unlock()
			if !c.closing {
				c.lost <- fmt.Errorf("NATS closed the connection for good (%v); start Lapse again, it then connects anew and goes on where it was", nc.LastError())
			}
		}),
		nats.ErrorHandler(func(_ *nats.Conn, sub *nats.Subscription, err error) {
			c.mu.Lock()
			handlers := c.asyncError
			c.mu.Unlock()
			for _, h := range handlers {
				h(sub, err)
			}
		}),
	}
	if publishing {
		opts = append(opts, nats.ReconnectBufSize(-1))
	}
	if cfg.Creds != "" {
		opts = append(opts, nats.UserCredentials(cfg.Creds))
	}
	opts = append(opts, cfg.Options...)
	nc, err := nats.Connect(cfg.URL, opts...)
	switch {
	case err == nil:
	case errors.Is(err, nats.ErrAuthorization), errors.Is(err, nats.ErrAuthExpired), errors.Is(err, nats.ErrAuthRevoked), errors.Is(err, nats.ErrAccountAuthExpired):
		return nil, fmt.Errorf("%w at %s: %w; correct the user and password in LAPSE_NATS_URL, or the file of LAPSE_NATS_CREDS", ErrAuth, Redact(cfg.URL), err)
	default:
		var ue *url.Error
		if errors.As(err, &ue) {
			err = ue.Err
		}
		return nil, fmt.Errorf("connecting to NATS at %s: %w", Redact(cfg.URL), err)
	}
	c.Conn = nc
	return c, nil
}

// Lost gives the reason once the connection is closed for good, otherwise than
// by [Conn.Close]: the library comes back from any cut but not from a -ERR of
// the server that it does not know, such as that of a message above a
// max_payload that was just lowered. Nothing can be done on it any more.
func (c *Conn) Lost() <-chan error { return c.lost }

// Close closes the connection. It may be called again.
func (c *Conn) Close() {
	c.mu.Lock()
	c.closing = true
	c.mu.Unlock()
	c.Conn.Close()
}

const (
	resubscribeMin = 2 * time.Second // doubles
	resubscribeMax = time.Minute
)

// Resubscribes makes the connection anew while NATS refuses a subscription, after
// growing pauses. A server whose rules change ends what is permitted no more and does
// not take it up again when it is, and the library subscribes anew on a new
// connection only: Lapse would stay deaf for good.
func (c *Conn) Resubscribes() {
	var (
		pause   = resubscribeMin // c.mu guards these
		last    time.Time
		waiting bool
	)
	anew := func() {
		c.mu.Lock()
		waiting, last = false, time.Now()
		pause = min(2*pause, resubscribeMax)
		closing := c.closing
		c.mu.Unlock()
		if !closing {
			c.ForceReconnect() //nolint:errcheck // it is closed then, or reconnects by itself
		}
	}
	c.OnError(func(_ *nats.Subscription, err error) {
		if right, _, ok := deniedRight(err); !ok || right != rightToSubscribe {
			return
		}
		c.mu.Lock()
		defer c.mu.Unlock()
		if waiting || c.closing {
			return
		}
		if time.Since(last) > pause {
			pause = resubscribeMin // it was permitted in between
		}
		waiting = true
		time.AfterFunc(pause, anew)
	})
}

// OnDisconnect, OnReconnect and OnError add handlers. They run one at a time
// on a goroutine of the connection and must not wait for it.
func (c *Conn) OnDisconnect(f func()) { c.add(&c.disconnected, f) }

// OnReconnect: see [Conn.OnDisconnect].
func (c *Conn) OnReconnect(f func()) { c.add(&c.reconnected, f) }

// OnError hears errors that belong to no call, such as a refused publish.
func (c *Conn) OnError(f func(*nats.Subscription, error)) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.asyncError = append(c.asyncError[:len(c.asyncError):len(c.asyncError)], f)
}

func (c *Conn) add(list *[]func(), f func()) {
	c.mu.Lock()
	defer c.mu.Unlock()
	*list = append((*list)[:len(*list):len(*list)], f)
}

func (c *Conn) each(list func() []func()) {
	c.mu.Lock()
	handlers := list()
	c.mu.Unlock()
	for _, h := range handlers {
		h()
	}
}

// CheckURLs says what is wrong with NATS URLs, without their secrets. The
// library takes what it does not understand for the name of a host, which
// would be waited for.
func CheckURLs(urls string) error {
	bad := func(u, why string) error {
		return fmt.Errorf("%+q: %s; want nats://[user:password@|token@]host:port or tls://..., several with commas, or embedded", Redact(u), why)
	}
	found := false
	for u := range strings.SplitSeq(urls, ",") {
		u = strings.TrimSpace(u)
		if u == "" {
			continue
		}
		found = true
		full := u
		if !strings.Contains(u, "://") {
			full = "nats://" + u
		}
		parsed, err := url.Parse(full)
		switch {
		case err != nil:
			return bad(u, "it is no URL (special characters in a password are percent-encoded)")
		case !slices.Contains([]string{"nats", "tls", "ws", "wss"}, parsed.Scheme):
			return bad(u, "NATS does not speak "+parsed.Scheme)
		case parsed.Hostname() == "":
			return bad(u, "it names no host")
		}
	}
	if !found {
		return bad(urls, "it is empty")
	}
	return nil
}

// The rights that NATS may refuse.
const (
	rightToPublish   = "publish"
	rightToSubscribe = "subscription"
)

var permissionViolation = regexp.MustCompile(`(?i)permissions violation for (subscription|publish) to "([^"]+)"`)

// deniedRight reads which right an asynchronous error says is missing, and for
// which subject. The library keeps the server's text and nothing more.
func deniedRight(err error) (right, subject string, ok bool) {
	if !errors.Is(err, nats.ErrPermissionViolation) {
		return "", "", false
	}
	m := permissionViolation.FindStringSubmatch(err.Error())
	if m == nil {
		return "", "", false
	}
	return strings.ToLower(m[1]), m[2], true
}

// Redact hides the user and password of NATS URLs.
func Redact(urls string) string {
	parts := strings.Split(urls, ",")
	for i, p := range parts {
		scheme, rest, ok := strings.Cut(p, "://")
		if !ok {
			scheme, rest = "", p
		} else {
			scheme += "://"
		}
		if at := strings.LastIndex(rest, "@"); at >= 0 {
			rest = "***@" + rest[at+1:]
		}
		parts[i] = scheme + rest
	}
	return strings.Join(parts, ",")
}

// gate lets callers wait for a condition. The zero value is shut.
type gate struct {
	mu   sync.Mutex
	open chan struct{} // closed while the gate is open; nil until first used
	is   bool
}

func (g *gate) set(open bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.open == nil {
		g.open = make(chan struct{})
	}
	if open == g.is {
		return
	}
	g.is = open
	if open {
		close(g.open)
	} else {
		g.open = make(chan struct{})
	}
}

// openWhile opens the gate for a server that has just answered, and says whether it
// stays open: the connection may be cut since, and who hears of that have been first.
func (g *gate) openWhile(connected func() bool) bool {
	g.set(true)
	if connected() {
		return true
	}
	g.set(false)
	return false
}

func (g *gate) isOpen() bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.is
}

func (g *gate) await(ctx context.Context) error {
	g.mu.Lock()
	if g.open == nil {
		g.open = make(chan struct{})
	}
	open, is := g.open, g.is
	g.mu.Unlock()
	if is {
		return ctx.Err()
	}
	select {
	case <-open:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}
