package embedded

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/url"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
)

// SyncInterval is how often JetStream syncs its files to the disk; the server's
// own default is two minutes. A fired timer leaves Redis when the stream has
// acknowledged it, so the stream must not lose more to a power cut than Redis
// does: with one second here, as with appendfsync everysec there, that is the
// last second. When only processes die, neither loses anything.
//
// Syncing every message would close that second and cost most of the
// throughput: 200,000 events of 100 bytes with three headers, 512 awaited at a
// time, were stored at 57,000 to 93,000/s with this interval, at 62,000 to
// 86,000/s with the server's default, and 3,000 of them at 1,300 to 3,900/s when
// each was synced (2 busy cores, a virtual disk, three runs).
const SyncInterval = time.Second

// readyWait bounds the wait for a server that has read its store already.
const readyWait = 10 * time.Second

var errInUse error = syscall.EADDRINUSE

// NATSOptions are what [StartNATS] needs to know.
type NATSOptions struct {
	// Listen is [nats://][user:password@|token@]host:port. Any host but
	// loopback needs a password or a token. Port 0 takes a free one.
	Listen string
	// WebSocket is where the server listens for browsers too, in the form of
	// Listen and without TLS; "" is nowhere. With a secret of its own, that one
	// counts there, else the one of Listen.
	WebSocket string
	// Origins are the web pages that may connect over WebSocket, such as
	// http://localhost:8000. Without a secret it must name them: any page that
	// a browser on this machine opens reaches loopback. With one, none means any.
	Origins []string
	// MaxStore is how many bytes JetStream may store, 0 for three quarters of
	// what the disk has free.
	MaxStore int64
	// Logger gets the server's warnings and errors at their level and its
	// notices at debug; slog.Default by default. No secret is ever logged.
	Logger *slog.Logger
}

// NATS is a NATS server with JetStream in this process.
type NATS struct {
	server atomic.Pointer[server.Server] // another one after a write error
	listen listen

	browsers bool // it listens for WebSocket clients

	stopping chan struct{} // closed by Stop
	revived  chan struct{} // closed when revive has ended
	stop     sync.Once
}

// StartNATS starts a NATS server with JetStream, whose store is in the data
// directory, and returns when it takes connections. Reading a large store
// takes its time. The server leaves signals to its host.
//
// The errors are one line and name their remedy: the address is malformed, is
// not on loopback and has no secret, or is in use. They do not repeat secrets.
func StartNATS(dir *Dir, o NATSOptions) (*NATS, error) {
	l, err := parseListen(o.Listen, settingNATS, false)
	if err != nil {
		return nil, err
	}
	ws, err := o.webSocket(l)
	if err != nil {
		return nil, err
	}
	store, err := dir.sub("nats")
	if err != nil {
		return nil, err
	}
	if err := l.probe(); err != nil {
		return nil, err
	}
	if o.Logger == nil {
		o.Logger = slog.Default()
	}
	options := &server.Options{
		ServerName:             "lapse-embedded",
		Host:                   l.host,
		Port:                   l.port,
		Username:               l.user,
		Password:               l.pass,
		Authorization:          l.token,
		JetStream:              true,
		StoreDir:               store,
		JetStreamMaxStore:      o.MaxStore,
		SyncInterval:           SyncInterval,
		DisableJetStreamBanner: true,
		NoSigs:                 true,
	}
	if ws != nil {
		if err := ws.probe(); err != nil {
			return nil, err
		}
		options.Websocket = server.WebsocketOpts{
			Host: ws.host, Port: ws.port, NoTLS: true, AllowedOrigins: o.Origins,
			Username: ws.user, Password: ws.pass, Token: ws.token,
		}
		if ws.port == 0 {
			options.Websocket.Port = server.RANDOM_PORT
		}
		if ws.host == "" {
			options.Websocket.Host = "0.0.0.0"
		}
	}
	if options.Port == 0 {
		options.Port = server.RANDOM_PORT
	}
	if options.Host == "" {
		options.Host = "0.0.0.0"
	}
	log := &natsLog{to: o.Logger, broken: make(chan struct{}, 1)}
	var secrets []string
	for _, secret := range []string{l.pass, l.token, options.Websocket.Password, options.Websocket.Token} {
		if secret != "" {
			secrets = append(secrets, secret, "<secret>")
		}
	}
	log.secrets = strings.NewReplacer(secrets...)
	s, err := launch(options, log)
	if err != nil {
		return nil, err
	}
	n := &NATS{listen: l, browsers: ws != nil, stopping: make(chan struct{}), revived: make(chan struct{})}
	n.server.Store(s)
	// Where it is found now it must be found again.
	again := options.Clone()
	again.Port = n.Port()
	if ws != nil {
		if u, err := url.Parse(s.WebsocketURL()); err == nil {
			again.Websocket.Port, _ = strconv.Atoi(u.Port())
		}
	}
	go n.revive(again, log, o.Logger)
	return n, nil
}

// launch starts a server and returns when it takes connections.
func launch(options *server.Options, log *natsLog) (*server.Server, error) {
	log.start(false)
	s, err := server.NewServer(options.Clone())
	if err != nil {
		return nil, fmt.Errorf("embedded NATS server: %w", err)
	}
	s.SetLoggerV2(log, false, false, false)
	s.Start()
	if fatal := log.fatal(); fatal != "" || !s.ReadyForConnections(readyWait) {
		if fatal = log.fatal(); fatal == "" {
			fatal = fmt.Sprintf("it takes no connections after %v", readyWait)
		}
		s.Shutdown()
		s.WaitForShutdown()
		return nil, fmt.Errorf("embedded NATS server, store %s: %s", options.StoreDir, fatal)
	}
	log.start(true)
	return s, nil
}

// ClientURL is where clients on this machine connect, without the secrets.
func (n *NATS) ClientURL() string {
	return "nats://" + n.listen.reachable(n.Port())
}

// webSocket reads where to listen for browsers; nil is nowhere.
func (o *NATSOptions) webSocket(l listen) (*listen, error) {
	if o.WebSocket == "" {
		return nil, nil
	}
	ws, err := parseListen(o.WebSocket, settingWebSocket, l.isSecured())
	if err != nil {
		return nil, err
	}
	if !ws.isSecured() && !l.isSecured() && len(o.Origins) == 0 {
		return nil, errors.New("the embedded NATS server would let every web page that a browser on this machine opens set and read timers (LAPSE_NATS_WEBSOCKET_LISTEN): " +
			"name yours in LAPSE_NATS_WEBSOCKET_ORIGINS, such as http://localhost:8000, or put a secret before the address: token@" + ws.addr())
	}
	for _, origin := range o.Origins {
		u, err := url.Parse(origin)
		if err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Host == "" || strings.Trim(u.Path, "/") != "" || u.User != nil {
			return nil, fmt.Errorf("LAPSE_NATS_WEBSOCKET_ORIGINS, %+q: want the origin of a web page, such as http://localhost:8000", origin)
		}
	}
	return &ws, nil
}

// WebSocketURL is where browsers on this machine connect, without the secrets;
// "" when they cannot.
func (n *NATS) WebSocketURL() string {
	if !n.browsers {
		return ""
	}
	return n.server.Load().WebsocketURL()
}

// Port is the port it listens on.
func (n *NATS) Port() int { return n.server.Load().Addr().(*net.TCPAddr).Port }

// NeedsSecret says whether clients must present the password or the token.
func (n *NATS) NeedsSecret() bool { return n.listen.isSecured() }

// MaxStore is how many bytes JetStream may store: [NATSOptions.MaxStore], or
// what the server found to be free.
func (n *NATS) MaxStore() int64 {
	if c := n.server.Load().JetStreamConfig(); c != nil {
		return c.MaxStore
	}
	return 0
}

// ConnectOptions let this process connect, with whatever URL, through memory
// and with the secrets.
func (n *NATS) ConnectOptions() []nats.Option {
	o := []nats.Option{nats.InProcessServer(n)}
	switch {
	case n.listen.pass != "":
		o = append(o, nats.UserInfo(n.listen.user, n.listen.pass))
	case n.listen.token != "":
		o = append(o, nats.Token(n.listen.token))
	}
	return o
}

// InProcessConn connects to the server of now, through memory.
func (n *NATS) InProcessConn() (net.Conn, error) { return n.server.Load().InProcessConn() }

// Stop shuts the server down, which syncs its store, and waits for its end
// until ctx ends, which is the only error; the server goes on ending then.
// Calling it again only waits.
func (n *NATS) Stop(ctx context.Context) error {
	done := make(chan struct{})
	go func() {
		defer close(done)
		n.stop.Do(func() { close(n.stopping) })
		<-n.revived
		s := n.server.Load()
		s.Shutdown()
		s.WaitForShutdown()
	}()
	select {
	case <-done:
		return nil
	case <-ctx.Done():
		return errors.New("the embedded NATS server did not end in time; its store is read again at the next start")
	}
}

// natsLog is the server's log: its notices are news to nobody but whoever
// looks for a fault.
type natsLog struct {
	to      *slog.Logger
	secrets *strings.Replacer
	broken  chan struct{} // one slot: a stream or a consumer could not be written

	mu      sync.Mutex // the server logs from everywhere
	first   string     // fatal message of the start; it is for the caller
	started bool       // fatal messages have no caller any more
}

// start says that a start begins, or is done.
func (l *natsLog) start(done bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.first, l.started = "", done
}

// fatal is what ended the start, or "".
func (l *natsLog) fatal() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.first
}

// Fatalf does not end the process, as the server's own logger would.
func (l *natsLog) Fatalf(format string, v ...any) {
	l.mu.Lock()
	defer l.mu.Unlock()
	switch text := l.text(format, v); {
	case l.started:
		l.to.Error("embedded NATS server", "text", text)
	case l.first == "":
		l.first = text
	}
}

func (l *natsLog) Errorf(format string, v ...any) {
	text := l.text(format, v)
	l.to.Error("embedded NATS server", "text", text)
	if isBroken(text) {
		select {
		case l.broken <- struct{}{}:
		default:
		}
	}
}

func (l *natsLog) Warnf(format string, v ...any) {
	if strings.HasPrefix(format, "Plaintext passwords detected") {
		return // it is in our own environment, in plain text
	}
	l.to.Warn("embedded NATS server", "text", l.text(format, v))
}

func (l *natsLog) Noticef(format string, v ...any) { l.debug(format, v) }
func (l *natsLog) Debugf(format string, v ...any)  { l.debug(format, v) }
func (l *natsLog) Tracef(format string, v ...any)  { l.debug(format, v) }

func (l *natsLog) debug(format string, v []any) {
	if l.to.Enabled(context.Background(), slog.LevelDebug) {
		l.to.Debug("embedded NATS server", "text", l.text(format, v))
	}
}

func (l *natsLog) text(format string, v []any) string {
	return l.secrets.Replace(fmt.Sprintf(format, v...))
}
