package page

import (
	"crypto/sha256"
	"crypto/subtle"
	"encoding/json"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"strings"
	"sync"
	"time"
)

// Limits of guessing. A token has 16 characters at least, so they only keep
// the log and the machine quiet.
const (
	wrongTokens  = 10          // from one address, within wrongWindow, before it must wait
	wrongWindow  = time.Minute // also how long it waits
	maxAddresses = 1024        // that are remembered; beyond, strangers share one count
)

// guard decides who may ask.
type guard struct {
	loopback bool
	listen   string // the host
	token    [sha256.Size]byte
	writable bool
	origin   *http.CrossOriginProtection
	log      *slog.Logger

	mu    sync.Mutex
	wrong map[string]*guesses // by address
}

type guesses struct {
	n     int
	since time.Time
}

func newGuard(listen, token string, log *slog.Logger) *guard {
	host, _, _ := net.SplitHostPort(listen) // "" is every address
	return &guard{
		loopback: isLoopback(host), listen: host, token: sha256.Sum256([]byte(token)), writable: token != "",
		origin: http.NewCrossOriginProtection(), log: log, wrong: map[string]*guesses{},
	}
}

func isLoopback(host string) bool {
	host = strings.TrimSuffix(strings.TrimPrefix(host, "["), "]")
	if strings.EqualFold(host, "localhost") {
		return true
	}
	ip, err := netip.ParseAddr(host)
	return err == nil && ip.Unmap().IsLoopback()
}

// wrap refuses requests for another host, and sets what every answer has.
func (g *guard) wrap(h http.HandlerFunc) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		head := w.Header()
		head.Set("Cache-Control", "no-store")
		head.Set("X-Content-Type-Options", "nosniff")
		head.Set("Referrer-Policy", "no-referrer")
		head.Set("Cross-Origin-Resource-Policy", "same-origin")
		head.Set("Cross-Origin-Opener-Policy", "same-origin")
		head.Set("X-Frame-Options", "DENY")
		if !g.knows(r.Host) {
			fail(w, http.StatusMisdirectedRequest, "host", "Lapse listens on loopback only (LAPSE_HTTP_LISTEN) and answers no other name than localhost: open it as http://127.0.0.1 with its port; a proxy on this machine must send that as Host")
			return
		}
		if !ours(r) {
			fail(w, http.StatusForbidden, "origin", foreignPage)
			return
		}
		h(w, r)
	})
}

const foreignPage = "the request comes from another page than this server's own"

// ours says whether the request can be of our own page, of a program that is no
// browser, or of somebody who follows a link. What another page loads it could
// not read, but streams would be held open for it.
func ours(r *http.Request) bool {
	switch r.Header.Get("Sec-Fetch-Site") {
	case "cross-site", "same-site":
		return r.Header.Get("Sec-Fetch-Mode") == "navigate"
	}
	return true
}

// knows says whether host, from a request, can mean this server. Any name can
// be made to lead to loopback; only a browser that was fooled sends it.
func (g *guard) knows(host string) bool {
	if !g.loopback {
		return true
	}
	if h, _, err := net.SplitHostPort(host); err == nil {
		host = h
	}
	return isLoopback(host) || strings.EqualFold(host, g.listen)
}

// may says whether the request has the token. Where it has not, the answer is
// written.
func (g *guard) may(w http.ResponseWriter, r *http.Request) bool {
	if !g.writable {
		fail(w, http.StatusForbidden, "read_only", "this page is read-only: set LAPSE_HTTP_TOKEN to a secret of at least 16 characters to change timers here")
		return false
	}
	given, ok := strings.CutPrefix(r.Header.Get("Authorization"), "Bearer ")
	if !ok {
		fail(w, http.StatusUnauthorized, "token", "the token is missing: Authorization: Bearer, with the value of LAPSE_HTTP_TOKEN")
		return false
	}
	from := address(r)
	if wait := g.waits(from); wait > 0 {
		w.Header().Set("Retry-After", "60")
		fail(w, http.StatusTooManyRequests, "token", "too many wrong tokens came from this address: wait a minute")
		return false
	}
	sum := sha256.Sum256([]byte(given))
	if subtle.ConstantTimeCompare(sum[:], g.token[:]) != 1 {
		g.count(from)
		fail(w, http.StatusUnauthorized, "token", "the token is wrong: it is the value of LAPSE_HTTP_TOKEN")
		return false
	}
	return true
}

// address is who asks, as far as it can be counted: of IPv6 the network that
// one customer has.
func address(r *http.Request) string {
	ap, err := netip.ParseAddrPort(r.RemoteAddr)
	if err != nil {
		return ""
	}
	ip := ap.Addr().Unmap().WithZone("")
	if ip.Is6() {
		if p, err := ip.Prefix(64); err == nil {
			return p.String()
		}
	}
	return ip.String()
}

// waits is how long the address must wait.
func (g *guard) waits(from string) time.Duration {
	g.mu.Lock()
	defer g.mu.Unlock()
	t := g.wrong[g.key(from)]
	if t == nil || t.n < wrongTokens {
		return 0
	}
	return wrongWindow - time.Since(t.since)
}

// key is from, or the count that strangers share when there are too many.
func (g *guard) key(from string) string {
	if _, known := g.wrong[from]; known || len(g.wrong) < maxAddresses {
		return from
	}
	return ""
}

func (g *guard) count(from string) {
	g.mu.Lock()
	defer g.mu.Unlock()
	for key, t := range g.wrong {
		if time.Since(t.since) > wrongWindow {
			delete(g.wrong, key)
		}
	}
	key := g.key(from)
	t := g.wrong[key]
	if t == nil {
		t = &guesses{since: time.Now()}
		g.wrong[key] = t
	}
	if t.n++; t.n == wrongTokens {
		t.since = time.Now()
		g.log.Warn("too many wrong tokens for the page; the address must wait a minute", "address", from)
	}
}

// writes refuses what a foreign page could have a browser send: anything but
// JSON from the page itself, or from a program that is no browser.
func (g *guard) writes(w http.ResponseWriter, r *http.Request) bool {
	if kind, _, _ := strings.Cut(r.Header.Get("Content-Type"), ";"); !strings.EqualFold(strings.TrimSpace(kind), "application/json") {
		fail(w, http.StatusUnsupportedMediaType, "content_type", "want Content-Type: application/json")
		return false
	}
	if err := g.origin.Check(r); err != nil {
		fail(w, http.StatusForbidden, "origin", foreignPage)
		return false
	}
	return true
}

// fail answers with an error: a word to compare, a message to read.
func fail(w http.ResponseWriter, code int, word, message string) {
	answer(w, code, map[string]string{"error": word, "message": message})
}

func answer(w http.ResponseWriter, code int, v any) {
	b, err := json.Marshal(v)
	if err != nil {
		code, b = http.StatusInternalServerError, []byte(`{"error":"internal","message":"the answer cannot be written as JSON"}`)
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(code)
	_, _ = w.Write(append(b, '\n')) // the client may be gone
}
