package cli

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/url"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/spf13/cobra"

	"github.com/lapse-timers/lapse/timers/client"
	"github.com/lapse-timers/lapse/timers/wire"
)

// defaultListen is where the embedded NATS server of lapse serve listens
// when LAPSE_NATS_LISTEN says nothing else.
const defaultListen = "127.0.0.1:4222"

// connection is how one run of a command reaches the service.
type connection struct {
	getenv  func(string) string
	server  string
	creds   string
	prefix  string
	timeout time.Duration
	json    bool
}

// connectionFlags adds to cmd the flags of every command that asks the
// service.
func (a *app) connectionFlags(cmd *cobra.Command) *connection {
	c := &connection{getenv: a.info.Getenv}
	f := cmd.Flags()
	f.StringVar(&c.server, "server", "", "NATS `URL`, several with commas (else LAPSE_NATS_URL, NATS_URL, LAPSE_NATS_LISTEN, nats://"+defaultListen+")")
	f.StringVar(&c.creds, "creds", "", "NATS credentials `file` (else LAPSE_NATS_CREDS)")
	f.StringVar(&c.prefix, "prefix", "", "`prefix` of the deployment (else LAPSE_PREFIX, "+wire.DefaultPrefix+")")
	f.DurationVar(&c.timeout, "timeout", client.DefaultTimeout, "how long to wait for the connection and for each answer")
	f.BoolVar(&c.json, "json", false, "print JSON, one object a line")
	return c
}

// address finds the server and says where that was said. The value "embedded"
// is for lapse serve and names no address.
func (c *connection) address() (urls, from string) {
	if c.server != "" {
		return c.server, "--server"
	}
	for _, name := range []string{"LAPSE_NATS_URL", "NATS_URL"} {
		if v := c.getenv(name); v != "" && v != "embedded" {
			return v, name
		}
	}
	if v := c.getenv("LAPSE_NATS_LISTEN"); v != "" {
		return "nats://" + dialable(v), "LAPSE_NATS_LISTEN"
	}
	return "nats://" + defaultListen, "the default"
}

// dialable is an address to reach a server that listens on the given one,
// [user:password@]host:port: a server that listens everywhere is reached on
// loopback.
func dialable(listen string) string {
	at := strings.LastIndex(listen, "@") + 1
	host, port, err := net.SplitHostPort(listen[at:])
	if err != nil {
		return listen
	}
	if ip := net.ParseIP(host); host == "" || (ip != nil && ip.IsUnspecified()) {
		host = "127.0.0.1"
	}
	return listen[:at] + net.JoinHostPort(host, port)
}

// chosenPrefix is the deployment's prefix, not checked.
func (c *connection) chosenPrefix() string {
	if c.prefix != "" {
		return c.prefix
	}
	if v := c.getenv("LAPSE_PREFIX"); v != "" {
		return v
	}
	return wire.DefaultPrefix
}

// link is an open connection with the client on it.
type link struct {
	*client.Client
	nc    *nats.Conn
	where string // the server, without secrets
	json  bool   // print JSON
}

// open connects. Unless the options say otherwise, a connection that breaks
// stays broken: a command that asks one question fails at once.
func (c *connection) open(ctx context.Context, opts ...nats.Option) (*link, error) {
	if c.timeout <= 0 {
		return nil, usage("--timeout %v: want more than 0s", c.timeout)
	}
	prefix := c.chosenPrefix()
	if err := wire.CheckPrefix(prefix); err != nil {
		return nil, &usageError{err}
	}
	urls, from := c.address()
	where, err := redact(urls)
	if err != nil {
		return nil, usage("the NATS URL of %s cannot be read; want nats://host:port or tls://host:port, with special characters in a password percent-encoded", from)
	}
	creds := c.creds
	if creds == "" {
		creds = c.getenv("LAPSE_NATS_CREDS")
	}
	opts = append([]nats.Option{
		nats.Name("lapse command"), nats.Timeout(c.timeout), nats.NoReconnect(), nats.SetCustomDialer(dialer{ctx, c.timeout}),
		// What goes wrong beside a request is said by the request that fails.
		nats.ErrorHandler(func(*nats.Conn, *nats.Subscription, error) {}),
	}, opts...)
	if creds != "" {
		if _, err := os.Stat(creds); err != nil {
			return nil, fmt.Errorf("credentials: %w; name the file with --creds or LAPSE_NATS_CREDS", err)
		}
		opts = append(opts, nats.UserCredentials(creds))
	}
	nc, err := nats.Connect(urls, opts...)
	switch {
	case ctx.Err() != nil:
		if err == nil {
			nc.Close()
		}
		return nil, errors.New("interrupted before NATS was connected")
	case errors.Is(err, nats.ErrAuthorization), errors.Is(err, nats.ErrAuthExpired):
		return nil, fmt.Errorf("NATS at %s (%s) refused the credentials: give --creds FILE, or user and password in the URL", where, from)
	case wire.TLSRemedy(err) != "":
		return nil, fmt.Errorf("cannot connect to NATS at %s (%s): %s; give %s", where, from, scrub(err.Error(), urls), wire.TLSRemedy(err))
	case err != nil:
		return nil, fmt.Errorf("cannot connect to NATS at %s (%s): %s; start a service with: lapse serve, or name another server with --server",
			where, from, scrub(err.Error(), urls))
	}
	lapse, err := client.New(nc, client.Prefix(prefix), client.Timeout(c.timeout))
	if err != nil {
		nc.Close()
		return nil, err
	}
	return &link{Client: lapse, nc: nc, where: where, json: c.json}, nil
}

// dialer ends a dial with the command, which nats.go on its own does not.
type dialer struct {
	ctx     context.Context
	timeout time.Duration
}

// Dial implements [nats.CustomDialer].
func (d dialer) Dial(network, address string) (net.Conn, error) {
	return (&net.Dialer{Timeout: d.timeout}).DialContext(d.ctx, network, address)
}

// redact is the list of URLs without anything in front of the hosts: a user
// without a password is a token. The error never holds the value.
func redact(urls string) (string, error) {
	parts := strings.Split(urls, ",")
	for i, part := range parts {
		u, err := parse(part)
		if err != nil {
			return "", err
		}
		if u.User != nil {
			u.User = nil
			parts[i] = u.Scheme + "://***@" + u.Host
		} else {
			parts[i] = u.Scheme + "://" + u.Host
		}
	}
	return strings.Join(parts, ","), nil
}

func parse(part string) (*url.URL, error) {
	part = strings.TrimSpace(part)
	if !strings.Contains(part, "://") {
		part = "nats://" + part
	}
	u, err := url.Parse(part)
	if err != nil || u.Host == "" || !slices.Contains([]string{"nats", "tls", "ws", "wss"}, u.Scheme) {
		return nil, errors.New("not a URL")
	}
	return u, nil
}

// scrub takes what the URLs keep secret out of a text that others wrote.
func scrub(text, urls string) string {
	for part := range strings.SplitSeq(urls, ",") {
		u, err := parse(part)
		if err != nil || u.User == nil {
			continue
		}
		text = strings.ReplaceAll(text, u.User.String()+"@", "***@")
		if p, ok := u.User.Password(); ok && p != "" {
			text = strings.ReplaceAll(text, p, "***")
		} else if !ok {
			text = strings.ReplaceAll(text, u.User.Username(), "***")
		}
	}
	return text
}
