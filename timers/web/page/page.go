// Package page is the live page of an instance at /: what an operator would
// rather look at than read. Everything that moves comes over one stream of
// server-sent events per viewer; the figures in it are read once a second and
// shared, and nothing is read while nobody looks (docs/decisions.md, ADR 33).
//
// It speaks to the timers through timers/client like any other service, and
// changes nothing without the token of LAPSE_HTTP_TOKEN.
package page

import (
	"context"
	"embed"
	"io/fs"
	"log/slog"
	"mime"
	"net/http"
	"path"
	"strings"

	"github.com/nats-io/nats.go"

	"github.com/lapse-timers/lapse/timers/client"
	"github.com/lapse-timers/lapse/timers/wire"
)

//go:embed assets
var assets embed.FS

// Options are what a [Page] works with.
type Options struct {
	// Prefix is the deployment's (LAPSE_PREFIX), Version the program's.
	Prefix  wire.Prefix
	Version string

	// Listen is where HTTP listens (LAPSE_HTTP_LISTEN). On loopback, requests
	// that name another host are refused: a foreign page whose name was made to
	// lead to this machine must not read along.
	Listen string

	// Token is the secret of LAPSE_HTTP_TOKEN; "" makes the page read-only.
	// With one, changes need it, and so do payloads and headers of timers.
	Token string

	// Status says how this instance is. It is called about once a second while
	// somebody looks, with a context of a second that it should obey; before
	// the instance is up it may fill in Health alone. Required.
	Status func(ctx context.Context) wire.StatusReply

	// Topics counts pending timers by topic, every five seconds while somebody
	// looks. Required.
	Topics func(ctx context.Context) (Topics, error)

	// Doctor gives the findings of the checks, which are marshalled to JSON as
	// they are. It is called every minute while somebody looks, and when
	// somebody asks, ten seconds apart at least. nil: not available.
	Doctor func(ctx context.Context) (any, error)

	// Client speaks to the deployment; its error says why it cannot yet.
	// Required.
	Client func() (*client.Client, error)

	// Dial opens the connection on which fired events are counted, which the
	// page closes when nobody looks any more. Required.
	Dial func() (*nats.Conn, error)

	// Logger gets what goes wrong; nil means none.
	Logger *slog.Logger
}

// Topics are the pending timers by topic.
type Topics struct {
	List    []TopicCount `json:"list"`    // most pending first
	Pending int64        `json:"pending"` // in all
	Looked  int64        `json:"looked"`  // of these, how many were looked at; below Pending the counts are estimates
}

// TopicCount is how many timers of one topic are pending.
type TopicCount struct {
	Topic   string `json:"topic"`
	Pending int64  `json:"pending"`
}

// Page is the live page. Make it with [New]; it costs nothing until somebody
// looks.
type Page struct {
	opt   Options
	log   *slog.Logger
	guard *guard
	feed  *feed
	calls chan struct{} // a slot for each request under /api/ that runs
}

// New makes a page. It starts nothing.
func New(opt Options) *Page {
	if opt.Status == nil || opt.Topics == nil || opt.Client == nil || opt.Dial == nil {
		panic("page: Status, Topics, Client and Dial are required")
	}
	if opt.Logger == nil {
		opt.Logger = slog.New(slog.DiscardHandler)
	}
	return &Page{
		opt: opt, log: opt.Logger, guard: newGuard(opt.Listen, opt.Token, opt.Logger),
		feed: newFeed(opt), calls: make(chan struct{}, maxCalls),
	}
}

// Close ends all streams and what reads for them, and returns when they have
// ended, after three seconds at most. Later requests for a stream are refused.
func (p *Page) Close() { p.feed.close() }

// Routes adds the page to mux: /page/ for its files, /events for the stream,
// /api/ for what the page asks. The page itself is [Page.Index].
func (p *Page) Routes(mux *http.ServeMux) {
	files, err := fs.Sub(assets, "assets")
	if err != nil {
		panic(err) // the directory is embedded
	}
	mux.Handle("GET /page/{file}", p.guard.wrap(func(w http.ResponseWriter, r *http.Request) {
		p.file(w, files, r.PathValue("file"))
	}))
	mux.Handle("GET /events", p.guard.wrap(p.feed.serve))
	p.routeAPI(mux)
}

// Index answers the page itself.
func (p *Page) Index(w http.ResponseWriter, r *http.Request) {
	p.guard.wrap(func(w http.ResponseWriter, _ *http.Request) {
		files, _ := fs.Sub(assets, "assets") // see Routes
		p.file(w, files, "index.html")
	}).ServeHTTP(w, r)
}

// policy allows the page its own files and nothing else; no script, style or
// handler may stand in the page itself, and no string becomes HTML.
const policy = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; " +
	"base-uri 'none'; form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'; trusted-types 'none'"

func (p *Page) file(w http.ResponseWriter, files fs.FS, name string) {
	b, err := fs.ReadFile(files, name)
	if err != nil || strings.Contains(name, "/") {
		http.Error(w, "there is no such file", http.StatusNotFound)
		return
	}
	kind := mime.TypeByExtension(path.Ext(name))
	switch path.Ext(name) { // what a machine's own table says may differ
	case ".js":
		kind = "text/javascript; charset=utf-8"
	case ".css":
		kind = "text/css; charset=utf-8"
	case ".svg":
		kind = "image/svg+xml"
	case ".html":
		kind = "text/html; charset=utf-8"
		w.Header().Set("Content-Security-Policy", policy)
	}
	w.Header().Set("Content-Type", kind)
	_, _ = w.Write(b) // the client may be gone
}
