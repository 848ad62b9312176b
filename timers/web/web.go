// Package web answers HTTP on LAPSE_HTTP_LISTEN: whether the process lives,
// whether it can take and fire timers, and what else is here. Orchestrators
// and operators ask it; it changes nothing.
package web

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"strings"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/lapse-timers/lapse/timers/wire"
)

// Limits of the server. They bound what a slow or broken client can hold.
const (
	headerTimeout = 5 * time.Second
	readTimeout   = 10 * time.Second
	writeTimeout  = 15 * time.Second // above healthTimeout, which it includes
	idleTimeout   = time.Minute
	maxHeader     = 16 << 10 // bytes
	stopTimeout   = 5 * time.Second

	// healthTimeout is how long a readiness request waits for the health of
	// the parts. Probes commonly give up after a second or more; one that does
	// not get an answer must not pile up here.
	healthTimeout = 2 * time.Second

	// healthCalls is how many calls of Options.Health may run at a time. A call
	// that ignores its context outlives its request; more of them than that
	// are not started.
	healthCalls = 8
)

// Options are what a [Server] works with.
type Options struct {
	// Listen is host:port (LAPSE_HTTP_LISTEN); port 0 takes a free one.
	Listen string

	// Health says how the instance is. It is called for each readiness request,
	// with a context of two seconds that it should obey; without an answer in
	// that time the instance counts as down. Required.
	Health func(ctx context.Context) wire.HealthReply

	// Metrics answers /metrics; nil leaves it out.
	Metrics http.Handler

	// Profiles serves /debug/pprof/ (LAPSE_PPROF).
	Profiles bool

	// Version is shown on the index page.
	Version string

	// Page is the live page at /, which browsers get; nil: there is none. The
	// server ends its streams when it stops.
	Page Page

	// Logger gets what goes wrong in the server; nil means none.
	Logger *slog.Logger
}

// Page is what shows the instance to people (timers/web/page).
type Page interface {
	Routes(*http.ServeMux)                        // adds what the page loads and asks
	Index(w http.ResponseWriter, r *http.Request) // answers the page
	Close()                                       // ends its streams
}

// Server is the HTTP server. Make it with [New], then call [Server.Listen] and
// [Server.Serve], once each.
type Server struct {
	opt      Options
	log      *slog.Logger
	http     *http.Server
	listener net.Listener
	calls    chan struct{} // a slot for each running call of Health
	stopping atomic.Bool
}

// New makes a server that does not listen yet.
func New(opt Options) *Server {
	if opt.Health == nil {
		panic("web: Health is required")
	}
	if opt.Logger == nil {
		opt.Logger = slog.New(slog.DiscardHandler)
	}
	s := &Server{opt: opt, log: opt.Logger, calls: make(chan struct{}, healthCalls)}
	mux := http.NewServeMux()
	// GET covers HEAD; the mux answers 405 with Allow for other methods.
	mux.HandleFunc("GET /healthz", s.alive)
	mux.HandleFunc("GET /readyz", s.ready)
	mux.HandleFunc("GET /{$}", s.index)
	if opt.Metrics != nil {
		mux.Handle("GET /metrics", opt.Metrics)
	}
	if opt.Profiles {
		mux.Handle("/debug/pprof/", profiles())
	}
	if opt.Page != nil {
		opt.Page.Routes(mux)
	}
	s.http = &http.Server{
		Handler:           mux,
		ReadHeaderTimeout: headerTimeout,
		ReadTimeout:       readTimeout,
		WriteTimeout:      writeTimeout,
		IdleTimeout:       idleTimeout,
		MaxHeaderBytes:    maxHeader,
		ErrorLog:          slog.NewLogLogger(s.log.Handler(), slog.LevelDebug), // broken clients, mostly
	}
	return s
}

// Handler answers what the server answers, for tests of what it serves.
func (s *Server) Handler() http.Handler { return s.http.Handler }

// Listen takes the address. It is apart from [Server.Serve] so that an address
// that cannot be had is one clear error before anything else has started.
func (s *Server) Listen() error {
	l, err := net.Listen("tcp", s.opt.Listen)
	if err == nil {
		s.listener = newBounded(l, maxConnections)
		if s.opt.Profiles && !l.Addr().(*net.TCPAddr).IP.IsLoopback() {
			s.log.Warn("profiles can be read by whoever reaches the HTTP address; set LAPSE_HTTP_LISTEN to a loopback address, or LAPSE_PPROF=false", "addr", l.Addr().String())
		}
		return nil
	}
	remedy := "set LAPSE_HTTP_LISTEN to host:port, such as 127.0.0.1:8420"
	switch {
	case errors.Is(err, syscall.EADDRINUSE):
		remedy = "another program, perhaps another Lapse, listens there; stop it, or set LAPSE_HTTP_LISTEN to a free address, such as 127.0.0.1:8421"
	case errors.Is(err, syscall.EACCES):
		remedy = "this user may not listen there; set LAPSE_HTTP_LISTEN to a port above 1023"
	case errors.Is(err, syscall.EADDRNOTAVAIL):
		remedy = "this machine does not have that address; set LAPSE_HTTP_LISTEN to one that it has, such as 127.0.0.1:8420"
	}
	return fmt.Errorf("cannot listen for HTTP on %q (LAPSE_HTTP_LISTEN): %w: %s", s.opt.Listen, cause(err), remedy)
}

// cause strips what the sentence around it says already.
func cause(err error) error {
	var op *net.OpError
	if errors.As(err, &op) {
		return op.Err
	}
	return err
}

// Addr is the address after [Server.Listen], with the port that was taken; ""
// before.
func (s *Server) Addr() string {
	if s.listener == nil {
		return ""
	}
	return s.listener.Addr().String()
}

// Serve answers requests until ctx ends, lets those under way finish for up to
// five seconds, and returns nil; or the error that ended it before. All that
// it started has ended when it returns, except calls of Options.Health that do
// not obey their context.
func (s *Server) Serve(ctx context.Context) error {
	if s.listener == nil {
		return errors.New("web: Serve without Listen")
	}
	served := make(chan error, 1)
	go func() { served <- s.http.Serve(s.listener) }()
	select {
	case err := <-served:
		return fmt.Errorf("serve HTTP on %s: %w", s.Addr(), err)
	case <-ctx.Done():
	}
	s.stopping.Store(true)
	if s.opt.Page != nil {
		s.opt.Page.Close() // its streams would not end by themselves
	}
	within, cancel := context.WithTimeout(context.WithoutCancel(ctx), stopTimeout)
	defer cancel()
	if err := s.http.Shutdown(within); err != nil {
		s.log.Warn("HTTP requests were cut at the stop", "err", err)
		_ = s.http.Close() // the requests are lost either way
	}
	<-served
	return nil
}

// Close gives the address back when [Server.Serve] will not be called.
func (s *Server) Close() error {
	if s.listener == nil {
		return nil
	}
	return s.listener.Close()
}

// alive asks nothing: an orchestrator that restarts the process because Redis
// or NATS is away would only make things worse.
func (s *Server) alive(w http.ResponseWriter, _ *http.Request) { text(w, "ok\n") }

// ready answers 200 as long as timers still fire, in whatever way.
func (s *Server) ready(w http.ResponseWriter, r *http.Request) {
	h := s.health(r.Context())
	body, err := json.Marshal(h)
	if err != nil { // strings and a map of strings always marshal
		panic(err)
	}
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Cache-Control", "no-store")
	w.Header().Set("X-Content-Type-Options", "nosniff")
	switch h.Status {
	case wire.HealthOK, wire.HealthDegraded:
	default:
		w.WriteHeader(http.StatusServiceUnavailable)
	}
	_, _ = w.Write(append(body, '\n')) // the client may be gone
}

// health calls Options.Health, for no longer than healthTimeout even when it
// does not obey.
func (s *Server) health(ctx context.Context) wire.HealthReply {
	if s.stopping.Load() {
		return down("Lapse is stopping")
	}
	ctx, cancel := context.WithTimeout(ctx, healthTimeout)
	defer cancel()
	select {
	case s.calls <- struct{}{}:
	case <-ctx.Done():
		return down("the health checks of earlier requests have not ended")
	}
	answer := make(chan wire.HealthReply, 1)
	go func() {
		defer func() { <-s.calls }()
		answer <- s.opt.Health(ctx)
	}()
	select {
	case h := <-answer:
		return h
	case <-ctx.Done():
		return down(fmt.Sprintf("the health check did not end within %v", healthTimeout))
	}
}

func down(why string) wire.HealthReply {
	return wire.HealthReply{
		Status: wire.HealthDown,
		Parts:  map[string]wire.HealthPart{"lapse": {Status: wire.HealthDown, Why: why}},
	}
}

// index is the page for browsers, and text for who asks with curl.
func (s *Server) index(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("Vary", "Accept")
	if s.opt.Page != nil && strings.Contains(r.Header.Get("Accept"), "text/html") {
		s.opt.Page.Index(w, r)
		return
	}
	text(w, "Lapse "+s.opt.Version+", a timer service on Redis and NATS\n\n"+
		"/          the live page, in a browser\n"+
		"/healthz   200 while the process lives\n"+
		"/readyz    how it is, part by part, in JSON; 503 when it cannot take or fire timers\n"+
		"/metrics   for Prometheus\n")
}

func text(w http.ResponseWriter, body string) {
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	w.Header().Set("Cache-Control", "no-store")
	w.Header().Set("X-Content-Type-Options", "nosniff")
	_, _ = w.Write([]byte(body)) // the client may be gone
}
