package page

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/lapse-timers/lapse/timers/client"
	"github.com/lapse-timers/lapse/timers/wire"
)

const (
	maxCalls    = 8                // requests under /api/ at a time
	callTimeout = 5 * time.Second  // of one
	maxBody     = 8 << 10          // bytes of a request
	maxShown    = 256 << 10        // bytes of a payload that are shown
	checkPause  = 10 * time.Second // between two runs of the checks
)

// timer is a timer as the page shows it.
type timer struct {
	Topic    string   `json:"topic"`
	ID       string   `json:"id"`
	Rev      int64    `json:"rev"`
	Due      string   `json:"due"`
	State    string   `json:"state"`
	Attempts int      `json:"attempts"`
	Fired    string   `json:"fired,omitempty"`
	Reason   string   `json:"reason,omitempty"`
	Schedule string   `json:"schedule,omitempty"`
	Withheld bool     `json:"withheld,omitempty"` // headers and payload need the token
	Headers  []header `json:"headers,omitempty"`
	Size     int      `json:"size"`    // bytes of the payload
	Payload  []byte   `json:"payload"` // the first maxShown bytes, in base64
}

type header struct {
	Name  string `json:"name"`
	Value string `json:"value"`
}

func listed(items []client.ListItem) []timer {
	out := make([]timer, 0, len(items))
	for _, t := range items {
		out = append(out, timer{Topic: t.Topic, ID: t.ID, Rev: t.Rev, Due: wire.FormatTime(t.Due), State: string(t.State), Attempts: t.Attempts, Reason: t.Reason})
	}
	return out
}

func (p *Page) routeAPI(mux *http.ServeMux) {
	mux.Handle("GET /api/timer", p.guard.wrap(p.call(p.getTimer)))
	mux.Handle("GET /api/timers", p.guard.wrap(p.call(p.listTimers)))
	for name, do := range map[string]func(ctx context.Context, c *client.Client, r change) (any, error){
		"cancel": cancelTimer, "set": setAnew, "retry": retryTimer,
	} {
		// Who may not, or dribbles, takes no slot.
		mux.Handle("POST /api/"+name, p.guard.wrap(func(w http.ResponseWriter, r *http.Request) {
			var req change
			if !p.guard.writes(w, r) || !p.guard.may(w, r) || !read(w, r, &req) {
				return
			}
			p.call(func(w http.ResponseWriter, r *http.Request, c *client.Client) {
				// A page that is closed does not end a change halfway.
				ctx, cancel := context.WithTimeout(context.WithoutCancel(r.Context()), callTimeout)
				defer cancel()
				done, err := do(ctx, c, req)
				if err != nil {
					failed(w, err)
					return
				}
				// Who may change timers is known to nobody but themselves; what they
				// did is worth a line.
				p.log.Info("a timer was changed from the page", "change", name, "topic", req.Topic, "id", req.ID)
				answer(w, http.StatusOK, done)
			})(w, r)
		}))
	}
	mux.Handle("POST /api/unlock", p.guard.wrap(func(w http.ResponseWriter, r *http.Request) {
		if p.guard.writes(w, r) && p.guard.may(w, r) {
			answer(w, http.StatusOK, struct{}{})
		}
	}))
	mux.Handle("POST /api/check", p.guard.wrap(func(w http.ResponseWriter, r *http.Request) {
		if p.guard.writes(w, r) {
			p.feed.check()
			answer(w, http.StatusAccepted, struct{}{})
		}
	}))
}

// call bounds how many requests run and for how long, and gives them a client.
func (p *Page) call(h func(http.ResponseWriter, *http.Request, *client.Client)) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		select {
		case p.calls <- struct{}{}:
			defer func() { <-p.calls }()
		default:
			w.Header().Set("Retry-After", "1")
			fail(w, http.StatusServiceUnavailable, "busy", "too many requests from pages are under way: try again")
			return
		}
		c, err := p.opt.Client()
		if err != nil {
			fail(w, http.StatusServiceUnavailable, string(wire.Unavailable), err.Error())
			return
		}
		ctx, cancel := context.WithTimeout(r.Context(), callTimeout)
		defer cancel()
		h(w, r.WithContext(ctx), c)
	}
}

// read reads the body of a change.
func read(w http.ResponseWriter, r *http.Request, into *change) bool {
	d := json.NewDecoder(http.MaxBytesReader(w, r.Body, maxBody))
	d.DisallowUnknownFields()
	if err := d.Decode(into); err != nil {
		fail(w, http.StatusBadRequest, string(wire.InvalidRequest), `want JSON {"topic":s,"id":s,"rev":n} (and "schedule" for a set): `+err.Error())
		return false
	}
	return true
}

// failed answers with an error of the client, in the protocol's words and codes.
func failed(w http.ResponseWriter, err error) {
	var e *client.Error
	if !errors.As(err, &e) {
		fail(w, http.StatusBadGateway, string(wire.Internal), err.Error())
		return
	}
	answer(w, e.Code(), e)
}

func (p *Page) getTimer(w http.ResponseWriter, r *http.Request, c *client.Client) {
	ask := r.URL.Query() // FormValue would read a body, also of a GET, into memory and files
	t, err := c.Get(r.Context(), ask.Get("topic"), ask.Get("id"))
	if err != nil {
		failed(w, err)
		return
	}
	out := timer{
		Topic: t.Topic, ID: t.ID, Rev: t.Rev, Due: wire.FormatTime(t.Due), State: string(t.State), Attempts: t.Attempts,
		Reason: t.Reason, Schedule: t.Schedule, Size: len(t.Payload),
	}
	if !t.Fired.IsZero() {
		out.Fired = wire.FormatTime(t.Fired)
	}
	if p.guard.writable && r.Header.Get("Authorization") == "" {
		out.Withheld = true
		answer(w, http.StatusOK, out)
		return
	}
	if p.guard.writable && !p.guard.may(w, r) {
		return
	}
	out.Payload = t.Payload[:min(len(t.Payload), maxShown)]
	for name, values := range t.Header {
		for _, v := range values {
			out.Headers = append(out.Headers, header{name, v})
		}
	}
	slices.SortStableFunc(out.Headers, func(a, b header) int { return strings.Compare(a.Name, b.Name) })
	answer(w, http.StatusOK, out)
}

func (p *Page) listTimers(w http.ResponseWriter, r *http.Request, c *client.Client) {
	ask := r.URL.Query() // see getTimer
	limit, _ := strconv.Atoi(ask.Get("limit"))
	list := c.ListPage
	switch ask.Get("state") {
	case wire.ListDead:
		list = c.ListDeadPage
	case wire.ListPending:
		list = c.ListPendingPage
	}
	page, err := list(r.Context(), ask.Get("topic"), max(1, min(limit, 200)), ask.Get("cursor"))
	if err != nil {
		failed(w, err)
		return
	}
	answer(w, http.StatusOK, map[string]any{"timers": listed(page.Timers), "cursor": page.Cursor})
}

// change names the timer that is to be changed, in the life that the page
// showed; rev 0 is whichever there is.
type change struct {
	Topic    string `json:"topic"`
	ID       string `json:"id"`
	Rev      int64  `json:"rev"`
	Schedule string `json:"schedule"`
}

// same reads the timer and sees that it is the life that was shown.
func (r change) same(ctx context.Context, c *client.Client) (client.Timer, error) {
	t, err := c.Get(ctx, r.Topic, r.ID)
	if err == nil && r.Rev != 0 && t.Rev != r.Rev {
		err = wire.Errorf(wire.Conflict, "the timer was set anew meanwhile: look at it again")
	}
	return t, err
}

func cancelTimer(ctx context.Context, c *client.Client, r change) (any, error) {
	if _, err := r.same(ctx, c); err != nil {
		return nil, err
	}
	_, err := c.Cancel(ctx, r.Topic, r.ID)
	return struct{}{}, err
}

func retryTimer(ctx context.Context, c *client.Client, r change) (any, error) {
	if _, err := r.same(ctx, c); err != nil {
		return nil, err
	}
	_, err := c.Retry(ctx, r.Topic, r.ID)
	return struct{}{}, err
}

// setAnew sets the timer again, with its payload and headers and another
// schedule. The protocol has no set that depends on what is there, so the
// timer may fire between the look and the set; then the new one is taken back.
func setAnew(ctx context.Context, c *client.Client, r change) (any, error) {
	t, err := r.same(ctx, c)
	if err != nil {
		return nil, err
	}
	if t.State == client.Firing {
		return nil, wire.Errorf(wire.Conflict, "too late: it is or may be being delivered")
	}
	opts := []client.SetOption{client.ID(t.ID)}
	for name, values := range t.Header {
		opts = append(opts, client.Header(name, values...))
	}
	res, err := c.Set(ctx, t.Topic, t.Payload, client.Schedule(r.Schedule), opts...)
	if err != nil {
		return nil, err
	}
	if !res.Replaced {
		back, cancel := context.WithTimeout(context.WithoutCancel(ctx), callTimeout) // however late it is
		defer cancel()
		if _, err := c.Cancel(back, t.Topic, t.ID); err != nil {
			return nil, wire.Errorf(wire.Conflict, "it fired meanwhile, or was cancelled, and so was set once more: %s", err.Error())
		}
		return nil, wire.Errorf(wire.Conflict, "too late: it fired meanwhile, or was cancelled; nothing was set")
	}
	return map[string]any{"due": wire.FormatTime(res.Due), "rev": res.Rev, "was": string(res.Was)}, nil
}
