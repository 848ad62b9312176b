package page

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"sync"
	"time"

	"github.com/lapse-timers/lapse/timers/client"
	"github.com/lapse-timers/lapse/timers/wire"
)

const (
	maxViewers   = 32               // streams at a time
	queued       = 2                // frames that wait for a viewer before it skips some
	writeTimeout = 10 * time.Second // of one frame; a viewer that takes longer is gone
	pace         = time.Second      // between two frames
	linger       = 3 * time.Second  // how long the reading goes on for who reloads the page
	keptPoints   = 300              // five minutes of the plots
	keptFired    = 60               // rows of the tail for who comes later
	frameWait    = 700 * time.Millisecond
	closeWait    = 3 * time.Second
	errorPause   = 5 * time.Second // before what failed is read again

	dueRows, deadRows, topicRows = 12, 20, 12
)

// A source is one part of the page and how it is read. Reads run beside each
// other, one at a time of each source; a frame has what is there.
type source struct {
	name  string
	every time.Duration
	quick bool // the frame waits for it, for frameWait
	read  func(ctx context.Context) (any, error)
	limit time.Duration // of one read

	reading bool
	began   time.Time
	done    chan struct{} // of the read under way
	data    json.RawMessage
	fresh   bool // changed since the last frame
}

// feed reads for all viewers together, while there are any.
type feed struct {
	opt  Options
	stop context.CancelFunc
	ctx  context.Context
	wg   sync.WaitGroup // of the loop, reads and streams

	mu      sync.Mutex
	closed  bool
	running bool
	left    time.Time // when the last viewer left
	viewers map[*viewer]struct{}
	sources []*source
	status  wire.StatusReply
	counted time.Time // when status came
	fires   int64     // of the status before, for want of a tap
	points  []point
	tail    []fired
	tap     *tap
}

// viewer is one stream.
type viewer struct {
	frames chan []byte
	missed bool // it lost a frame and needs the whole
}

// point is a moment in the plots; what is null was not known.
type point struct {
	At      int64    `json:"at"` // ms, on Redis's clock
	Pending *int64   `json:"pending"`
	Rate    *float64 `json:"rate"` // fires a second
	P50     *float64 `json:"p50"`  // ms, null without fires
	P99     *float64 `json:"p99"`
}

func newFeed(opt Options) *feed {
	f := &feed{opt: opt, viewers: map[*viewer]struct{}{}}
	f.ctx, f.stop = context.WithCancel(context.Background())
	list := func(page func(c *client.Client, ctx context.Context) (client.Page, error)) func(context.Context) (any, error) {
		return func(ctx context.Context) (any, error) {
			c, err := opt.Client()
			if err != nil {
				return nil, err
			}
			p, err := page(c, ctx)
			return map[string]any{"timers": listed(p.Timers), "more": p.Cursor != ""}, err
		}
	}
	f.sources = []*source{
		{name: "status", every: pace, quick: true, limit: time.Second, read: f.readStatus},
		{name: "due", every: pace, quick: true, limit: time.Second, read: list(func(c *client.Client, ctx context.Context) (client.Page, error) {
			return c.ListPendingPage(ctx, "", dueRows, "")
		})},
		{name: "dead", every: 3 * time.Second, quick: true, limit: 2 * time.Second, read: list(func(c *client.Client, ctx context.Context) (client.Page, error) {
			return c.ListDeadPage(ctx, "", deadRows, "")
		})},
		{name: "topics", every: 5 * time.Second, quick: true, limit: 2 * time.Second, read: f.readTopics},
		{name: "doctor", every: time.Minute, limit: 30 * time.Second, read: f.readDoctor},
	}
	return f
}

func (f *feed) readStatus(ctx context.Context) (any, error) {
	before := time.Now()
	s := f.opt.Status(ctx)
	after := time.Now()
	f.mu.Lock()
	f.status, f.counted = s, after
	tap := f.tap
	f.mu.Unlock()
	if now, err := wire.ParseTime(s.Now); err == nil && tap != nil {
		tap.follow(now, before, after)
	}
	return s, nil
}

func (f *feed) readTopics(ctx context.Context) (any, error) {
	t, err := f.opt.Topics(ctx)
	if err != nil {
		return nil, err
	}
	out := struct {
		Topics
		More   int   `json:"more"`   // topics that are not in the list
		Others int64 `json:"others"` // their timers
	}{Topics: t}
	if len(t.List) > topicRows {
		out.List, out.More = t.List[:topicRows], len(t.List)-topicRows
		for _, c := range t.List[topicRows:] {
			out.Others += c.Pending
		}
	}
	return out, nil
}

func (f *feed) readDoctor(ctx context.Context) (any, error) {
	if f.opt.Doctor == nil {
		return nil, errors.New("not available in this build")
	}
	report, err := f.opt.Doctor(ctx)
	return map[string]any{"at": time.Now().UnixMilli(), "report": report}, err
}

// check has the doctor look again, soon.
func (f *feed) check() {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, s := range f.sources {
		if s.name == "doctor" && time.Since(s.began) > checkPause {
			s.began = time.Time{}
		}
	}
}

// run reads and sends until nobody looks.
func (f *feed) run() {
	tick := time.NewTicker(pace)
	defer tick.Stop()
	for {
		f.tap.ensure(&f.wg)
		f.refresh()
		f.send(f.tap.take())
		select {
		case <-tick.C:
		case <-f.ctx.Done():
		}
		f.mu.Lock()
		if f.ctx.Err() != nil || len(f.viewers) == 0 && time.Since(f.left) > linger {
			f.running = false
			tap := f.tap
			f.tap = nil
			f.mu.Unlock()
			tap.close()
			return
		}
		f.mu.Unlock()
	}
}

// refresh starts the reads whose time has come, and waits for the quick ones.
func (f *feed) refresh() {
	var wait []chan struct{}
	f.mu.Lock()
	for _, s := range f.sources {
		// A little early is better than a frame late.
		if !s.reading && time.Since(s.began) >= s.every-pace/10 {
			s.reading, s.began, s.done = true, time.Now(), make(chan struct{})
			f.wg.Go(func() { f.read(s) })
		}
		if s.quick && s.reading {
			wait = append(wait, s.done)
		}
	}
	f.mu.Unlock()
	enough := time.NewTimer(frameWait)
	defer enough.Stop()
	for _, done := range wait {
		select {
		case <-done:
		case <-enough.C:
			return
		}
	}
}

func (f *feed) read(s *source) {
	ctx, cancel := context.WithTimeout(f.ctx, s.limit)
	defer cancel()
	v, err := s.read(ctx)
	if err != nil {
		v = map[string]string{"error": err.Error()}
	}
	data, broken := json.Marshal(v)
	if broken != nil {
		data = []byte(`{"error":"it cannot be written as JSON"}`)
	}
	f.mu.Lock()
	s.fresh = s.fresh || !bytes.Equal(data, s.data)
	s.data, s.reading = data, false
	if err != nil && s.every < errorPause {
		s.began = time.Now().Add(errorPause - s.every) // what is refused is refused again
	}
	close(s.done)
	f.mu.Unlock()
}

// send makes the frame of this second and hands it to every viewer.
func (f *feed) send(s second) {
	f.mu.Lock()
	defer f.mu.Unlock()
	pt := f.point(s)
	f.points = append(f.points, pt)
	if over := len(f.points) - keptPoints; over > 0 {
		f.points = append(f.points[:0], f.points[over:]...)
	}
	f.tail = append(f.tail, s.tail...)
	if over := len(f.tail) - keptFired; over > 0 {
		f.tail = append(f.tail[:0], f.tail[over:]...)
	}
	heard := map[string]any{"rows": s.tail, "of": s.n + s.dropped}
	if s.tail == nil {
		heard["rows"] = []fired{}
	}
	if s.trouble != "" {
		heard["trouble"] = s.trouble
	}
	var frame bytes.Buffer
	for _, src := range f.sources {
		if src.fresh {
			event(&frame, src.name, src.data)
			src.fresh = false
		}
	}
	event(&frame, "fired", marshal(heard))
	event(&frame, "points", marshal([]point{pt}))
	var whole []byte
	for v := range f.viewers {
		b := frame.Bytes()
		if v.missed {
			if whole == nil {
				whole = f.whole(heard)
			}
			b = whole
		}
		select {
		case v.frames <- b:
			v.missed = false
		default:
			v.missed = true
		}
	}
}

// point is this second in the plots.
func (f *feed) point(s second) point {
	pt := point{At: time.Now().UnixMilli()}
	known := time.Since(f.counted) < 2*pace && f.status.Instance != ""
	if now, err := wire.ParseTime(f.status.Now); err == nil && known {
		pt.At = now.UnixMilli()
		pending := f.status.Pending
		pt.Pending = &pending
	}
	switch {
	case s.known:
		pt.Rate = &s.rate
		if s.n > 0 {
			pt.P50, pt.P99 = &s.p50, &s.p99
		}
	case known: // this instance alone, and its lag over more than this second
		if last := f.fires; last > 0 || f.status.Counts.Fired == 0 {
			rate := float64(f.status.Counts.Fired - last)
			pt.Rate = &rate
			if rate > 0 {
				p50, p99 := f.status.Lag.P50, f.status.Lag.P99
				pt.P50, pt.P99 = &p50, &p99
			}
		}
	}
	f.fires = f.status.Counts.Fired
	return pt
}

// whole is everything that a viewer needs to begin with.
func (f *feed) whole(heard map[string]any) []byte {
	var b bytes.Buffer
	event(&b, "about", marshal(map[string]any{
		"version": f.opt.Version, "prefix": f.opt.Prefix, "writable": f.opt.Token != "",
	}))
	for _, src := range f.sources {
		if src.data != nil {
			event(&b, src.name, src.data)
		}
	}
	all := map[string]any{"rows": f.tail, "all": true}
	if f.tail == nil {
		all["rows"] = []fired{}
	}
	for _, k := range []string{"of", "trouble"} {
		if v, ok := heard[k]; ok {
			all[k] = v
		}
	}
	event(&b, "fired", marshal(all))
	event(&b, "history", marshal(f.points))
	return b.Bytes()
}

func event(b *bytes.Buffer, name string, data []byte) {
	b.WriteString("event: ")
	b.WriteString(name)
	b.WriteString("\ndata: ")
	b.Write(data) // JSON has no line breaks
	b.WriteString("\n\n")
}

func marshal(v any) []byte {
	b, err := json.Marshal(v)
	if err != nil { // numbers, strings and maps of them always marshal
		panic(err)
	}
	return b
}

// serve answers /events: a stream until the viewer or the server goes.
func (f *feed) serve(w http.ResponseWriter, r *http.Request) {
	v := &viewer{frames: make(chan []byte, queued)}
	first, full := f.join(v)
	if first == nil {
		why := "Lapse is stopping"
		if full {
			why = "too many pages are open: close one"
		}
		w.Header().Set("Retry-After", "5")
		fail(w, http.StatusServiceUnavailable, "busy", why)
		return
	}
	defer f.leave(v)
	// The limits of ordinary requests are not those of a stream.
	rc := http.NewResponseController(w)
	_ = rc.SetReadDeadline(time.Time{}) // a real connection has deadlines
	w.Header().Set("Content-Type", "text/event-stream")
	w.Header().Set("X-Accel-Buffering", "no") // nginx would gather frames
	// A viewer that does not read must not hold up the stop.
	defer context.AfterFunc(f.ctx, func() { _ = rc.SetWriteDeadline(time.Now()) })()
	for b := first; ; {
		_ = rc.SetWriteDeadline(time.Now().Add(writeTimeout)) // likewise
		if f.ctx.Err() != nil {
			return
		}
		if _, err := w.Write(b); err != nil {
			return
		}
		if err := rc.Flush(); err != nil {
			return
		}
		select {
		case b = <-v.frames:
		case <-r.Context().Done():
			return
		case <-f.ctx.Done():
			return
		}
	}
}

// join adds a viewer and gives what it begins with; nil when it cannot be
// added, and whether that is since there are too many.
func (f *feed) join(v *viewer) (first []byte, full bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.closed || len(f.viewers) >= maxViewers {
		return nil, !f.closed
	}
	f.wg.Add(1)
	f.viewers[v] = struct{}{}
	if !f.running {
		f.running, f.tap, f.fires = true, newTap(f.opt), 0
		for _, s := range f.sources { // of the last time; old news
			if s.name != "doctor" && !s.reading {
				s.data, s.began = nil, time.Time{}
			}
		}
		f.status, f.counted = wire.StatusReply{}, time.Time{}
		f.wg.Go(f.run)
	}
	return f.whole(nil), false
}

func (f *feed) leave(v *viewer) {
	f.mu.Lock()
	delete(f.viewers, v)
	f.left = time.Now()
	f.mu.Unlock()
	f.wg.Done()
}

func (f *feed) close() {
	f.mu.Lock()
	f.closed = true
	f.mu.Unlock()
	f.stop()
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		f.wg.Wait()
	}()
	select {
	case <-ended:
	case <-time.After(closeWait): // something that is read does not obey its context
	}
}
