package service

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"regexp"
	"strings"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/micro"
	"golang.org/x/sync/errgroup"

	"github.com/lapse-timers/lapse/timers"
	"github.com/lapse-timers/lapse/timers/wire"
)

// Config is what a [Service] is made of.
type Config struct {
	Conn     *Conn
	Store    *timers.Store
	Prefix   wire.Prefix
	Version  string // any; made a semantic version for micro
	Instance string // random, of this process

	// RequestTimeout is how long a request may wait before Redis sees it; one
	// that waited longer is not carried out.
	RequestTimeout time.Duration
	// MaxSize is the largest message, with headers, that can be delivered.
	MaxSize func() int
	// Scheduled is told of every timer that was set or brought back, so that the reconciler
	// wakes for it. It must not block.
	Scheduled func(partition int, due time.Time)
	// For the reply to a status request: who fires, how it is delivered, the
	// stream's name ("" on core NATS), and how the parts are.
	Firer    *timers.Firer
	Delivery string
	Stream   func() string
	Health   func(ctx context.Context) wire.HealthReply
	// Counts adds what others counted.
	Counts func(*wire.CountStats)
	// Ended is told of each request that was answered, with the word of the
	// error, "" for none, and how long it took from its receipt. It must not
	// block; nil when nobody counts.
	Ended func(verb string, word wire.Word, took time.Duration)

	Logger *slog.Logger
}

// Service answers requests.
type Service struct {
	cfg Config
	svc micro.Service

	sets    *batcher[setRequest]
	cancels *batcher[refRequest]
	retries *batcher[refRequest]
	gets    *batcher[refRequest]
	reads   *batcher[readRequest]

	verbs   map[string]*verbStats
	ignored atomic.Int64
	started time.Time
	deafTo  atomic.Pointer[string] // a subject of requests that NATS refuses us
	muteAt  atomic.Int64           // when NATS last refused a reply to an inbox, Unix ns
}

// verbStats are the true figures of an endpoint, in micro's stats under
// "data": requests are answered behind micro's back, in batches.
type verbStats struct {
	requests, errors, silent atomic.Int64
	nanos                    atomic.Int64 // from receipt to answer, in all
	ignored                  atomic.Int64
	last                     atomic.Pointer[string]
}

// request is what every request has.
type request struct {
	verb     string
	reply    string
	received time.Time
}

type setRequest struct {
	request
	timers.SetItem
}

func (r setRequest) size() int { return len(r.Payload) + len(r.Headers) }

type refRequest struct {
	request
	timers.Ref
}

func (r refRequest) size() int { return 64 }

type readRequest struct {
	request
	topic string
	list  wire.ListRequest
	after timers.Cursor
}

func (r readRequest) size() int { return 64 }

// New prepares the service; it takes requests once [Service.Run] runs.
func New(cfg Config) *Service {
	s := &Service{cfg: cfg, verbs: make(map[string]*verbStats), started: time.Now()}
	if s.cfg.Ended == nil {
		s.cfg.Ended = func(string, wire.Word, time.Duration) {}
	}
	for _, v := range Verbs() {
		s.verbs[v] = &verbStats{}
	}
	s.sets = newBatcher(2, 256, s.runSets)
	s.cancels = newBatcher(2, 256, s.runCancels)
	s.retries = newBatcher(2, 256, s.runRetries)
	s.gets = newBatcher(1, 64, s.runGets)
	s.reads = newBatcher(2, 1, s.runReads)
	return s
}

// Verbs are what requests ask for.
func Verbs() []string { return []string{"set", "get", "cancel", "retry", "list", "status"} }

// Ignored is how many requests had a reply subject that Lapse does not
// publish to.
func (s *Service) Ignored() int64 { return s.ignored.Load() }

// Run takes requests until ctx ends, then answers those it has taken. ready is
// called once requests are taken; an error of it ends the service.
func (s *Service) Run(ctx context.Context, ready func(context.Context) error) error {
	s.cfg.Conn.OnError(s.asyncError)
	s.cfg.Conn.Resubscribes()
	// At the reconnect it may have been refused anew already.
	s.cfg.Conn.OnDisconnect(func() { s.deafTo.Store(nil) })
	svc, err := micro.AddService(s.cfg.Conn.Conn, micro.Config{
		Name:        s.cfg.Prefix.ServiceName(),
		Version:     semantic(s.cfg.Version),
		Description: "Lapse timers: set, get, cancel, retry, list, status",
		Metadata: map[string]string{
			wire.MetaPrefix:     string(s.cfg.Prefix),
			wire.MetaDeployment: s.cfg.Store.Deployment(),
			wire.MetaInstance:   s.cfg.Instance,
		},
		StatsHandler: s.endpointStats,
		ErrorHandler: func(_ micro.Service, e *micro.NATSError) {
			if errors.Is(e, nats.ErrBadHeaderMsg) {
				return // answered like one without headers; it must not fill the log
			}
			s.cfg.Logger.Warn("requests may have been lost", "subject", e.Subject, "error", e.Description)
		},
	})
	if err != nil {
		return fmt.Errorf("adding the micro service: %w", err)
	}
	s.svc = svc

	work, stop := context.WithCancel(context.WithoutCancel(ctx))
	var workers errgroup.Group
	for _, w := range []func(context.Context){s.sets.work, s.cancels.work, s.retries.work, s.gets.work, s.reads.work} {
		workers.Go(func() error { w(work); return nil })
	}
	err = s.addEndpoints(svc)
	if err == nil {
		err = s.subscribed(ctx)
	}
	if err == nil {
		err = ready(ctx)
	}
	if err == nil {
		<-ctx.Done()
	}
	// Stop drains: what the server had sent is handled, then no more comes.
	if stopErr := svc.Stop(); stopErr != nil && !errors.Is(stopErr, nats.ErrConnectionClosed) {
		s.cfg.Logger.Warn("stopping the micro service", "error", stopErr)
	}
	if s.cfg.Conn.IsConnected() {
		flush, cancel := context.WithTimeout(context.WithoutCancel(ctx), 2*time.Second)
		s.cfg.Conn.FlushWithContext(flush) //nolint:errcheck // the drain ends with the connection at the latest
		cancel()
	}
	stop()
	workers.Wait() //nolint:errcheck // they return nil
	for _, r := range s.sets.rest() {
		s.fail(r.request, errBusy)
	}
	for _, b := range []*batcher[refRequest]{s.cancels, s.retries, s.gets} {
		for _, r := range b.rest() {
			s.fail(r.request, errBusy)
		}
	}
	for _, r := range s.reads.rest() {
		s.fail(r.request, errBusy)
	}
	return err
}

// subscribed returns once the server has the subscriptions, so that nobody is
// told before that requests are taken. A connection that is cut meanwhile comes
// back by itself and subscribes again.
func (s *Service) subscribed(ctx context.Context) error {
	for {
		flush, cancel := context.WithTimeout(ctx, 5*time.Second)
		err := s.cfg.Conn.FlushWithContext(flush)
		cancel()
		if err == nil || ctx.Err() != nil || s.cfg.Conn.IsClosed() {
			return err
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(100 * time.Millisecond):
		}
	}
}

func (s *Service) addEndpoints(svc micro.Service) error {
	p := s.cfg.Prefix
	for _, e := range []struct {
		name, subject string
		handle        func(micro.Request)
	}{
		{"set", p.Set(">"), s.handleSet},
		{"set-without-topic", p.Set(""), s.handleSet},
		{"get", p.Get(">"), func(r micro.Request) { s.handleRef(r, "get", s.gets) }},
		{"get-without-topic", p.Get(""), func(r micro.Request) { s.handleRef(r, "get", s.gets) }},
		{"cancel", p.Cancel(">"), func(r micro.Request) { s.handleRef(r, "cancel", s.cancels) }},
		{"cancel-without-topic", p.Cancel(""), func(r micro.Request) { s.handleRef(r, "cancel", s.cancels) }},
		{"retry", p.Retry(">"), func(r micro.Request) { s.handleRef(r, "retry", s.retries) }},
		{"retry-without-topic", p.Retry(""), func(r micro.Request) { s.handleRef(r, "retry", s.retries) }},
		{"list", p.List(">"), s.handleList},
		{"list-all", p.List(""), s.handleList},
		{"status", p.Status(), s.handleStatus},
	} {
		if err := svc.AddEndpoint(e.name, micro.HandlerFunc(e.handle), micro.WithEndpointSubject(e.subject)); err != nil {
			return fmt.Errorf("taking requests on %s: %w", e.subject, err)
		}
	}
	return nil
}

// maxReply is the longest reply subject that is answered, in bytes; no library makes
// one of a tenth of it.
const maxReply = 1024

// begin counts a request and says whether it may be carried out. A reply
// subject is not checked against what the requester may publish to, so Lapse
// must not publish there in its place: not into its own subjects, where it
// would be a fired event, and not into the system's. Nor may it be so long that
// the answer exceeds max_control_line of our server, which may be lower than
// that of the requester's, or our line longer than his: it would close our
// connection for good.
func (s *Service) begin(r micro.Request, verb string) (request, bool) {
	st := s.verbs[verb]
	reply := r.Reply()
	if s.cfg.Prefix.Covers(reply) || strings.HasPrefix(reply, "$") || len(reply) > maxReply {
		s.ignored.Add(1)
		st.ignored.Add(1)
		return request{}, false
	}
	st.requests.Add(1)
	if reply == "" {
		st.silent.Add(1)
	}
	return request{verb: verb, reply: reply, received: time.Now()}, true
}

// refuse answers from within the handler, so that micro counts the error too.
func (s *Service) refuse(r micro.Request, req request, e *wire.Error) {
	s.ended(req, e)
	if req.reply == "" {
		return
	}
	code, description, body := e.Encode()
	if err := r.Error(code, description, body); err != nil {
		s.replyFailed(err)
	}
}

func (s *Service) handleSet(r micro.Request) {
	req, ok := s.begin(r, "set")
	if !ok {
		return
	}
	item, refusal := s.readSet(r)
	if refusal != nil {
		s.refuse(r, req, refusal)
		return
	}
	if !s.sets.add(setRequest{req, item}) {
		s.refuse(r, req, errBusy)
	}
}

var errBusy = wire.Errorf(wire.Unavailable, "too many requests wait for Redis; nothing was stored, try again later")

// readSet checks a set and reads it.
func (s *Service) readSet(r micro.Request) (timers.SetItem, *wire.Error) {
	var item timers.SetItem
	item.Topic = s.cfg.Prefix.Topic("set", r.Subject())
	if err := timers.CheckTopic(item.Topic); err != nil {
		return item, invalid(err)
	}
	h := nats.Header(r.Headers())
	own, refusal := clientHeaders(h)
	if refusal != nil {
		return item, refusal
	}
	if values, ok := h[wire.HeaderID]; ok {
		item.ID = values[0]
		if err := timers.CheckID(item.ID); err != nil {
			return item, invalid(err)
		}
	} else {
		item.ID = newID()
	}
	schedule, ok := h[wire.HeaderSchedule]
	if !ok {
		return item, wire.Errorf(wire.InvalidSchedule, "header %s is missing, or the headers cannot be read; want @at <RFC 3339 time> or @in <duration>", wire.HeaderSchedule)
	}
	when, err := timers.ParseSchedule(schedule[0])
	if err != nil {
		return item, invalid(err)
	}
	if _, ok := h[wire.HeaderTimeZone]; ok {
		return item, wire.Errorf(wire.InvalidHeader, "header %s goes with cron schedules only; an @at time carries its own offset", wire.HeaderTimeZone)
	}
	item.In, item.At, item.Schedule = when.In, when.At, schedule[0]
	item.Payload = r.Data()
	size, most := deliveredSize(item.Topic, item.ID, item.Schedule, own, item.Payload), s.cfg.MaxSize()
	if n := size - len(item.Payload); n > maxHeaders {
		return item, wire.Errorf(wire.TooLarge, "the fired message would have %d bytes of headers, at most %d can be delivered", n, maxHeaders)
	}
	if size > most {
		return item, wire.Errorf(wire.TooLarge, "the fired message would have %d bytes with its headers, at most %d can be delivered", size, most)
	}
	item.Headers = encodeHeaders(own)
	return item, nil
}

func (s *Service) handleRef(r micro.Request, verb string, to *batcher[refRequest]) {
	req, ok := s.begin(r, verb)
	if !ok {
		return
	}
	ref := timers.Ref{Topic: s.cfg.Prefix.Topic(verb, r.Subject()), ID: string(r.Data())}
	err := timers.CheckTopic(ref.Topic)
	if err == nil {
		err = timers.CheckID(ref.ID)
	}
	if err != nil {
		s.refuse(r, req, invalid(err))
		return
	}
	if !to.add(refRequest{req, ref}) {
		s.refuse(r, req, errBusy)
	}
}

func (s *Service) handleList(r micro.Request) {
	req, ok := s.begin(r, "list")
	if !ok {
		return
	}
	read := readRequest{request: req, topic: s.cfg.Prefix.Topic("list", r.Subject())}
	if read.topic != "" || r.Subject() != s.cfg.Prefix.List("") {
		if err := timers.CheckTopic(read.topic); err != nil {
			s.refuse(r, req, invalid(err))
			return
		}
	}
	var refusal *wire.Error
	if read.list, read.after, refusal = readList(r.Data()); refusal != nil {
		s.refuse(r, req, refusal)
		return
	}
	if !s.reads.add(read) {
		s.refuse(r, req, errBusy)
	}
}

func (s *Service) handleStatus(r micro.Request) {
	req, ok := s.begin(r, "status")
	if !ok {
		return
	}
	if !s.reads.add(readRequest{request: req}) {
		s.refuse(r, req, errBusy)
	}
}

// respond answers a request. An empty reply subject is a requester that does
// not want to know.
func (s *Service) respond(req request, h nats.Header, body []byte) {
	s.ended(req, nil)
	s.send(req, h, body)
}

func (s *Service) respondJSON(req request, v any) {
	body, err := encodeJSON(v)
	if err != nil {
		s.fail(req, wire.Errorf(wire.Internal, "cannot write the reply"))
		return
	}
	s.respond(req, nil, body)
}

// encodeJSON leaves <, > and & as they are: nothing here goes into HTML, and
// six bytes for each make an id six times as long.
func encodeJSON(v any) ([]byte, error) {
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	if err := e.Encode(v); err != nil {
		return nil, err
	}
	return bytes.TrimSuffix(b.Bytes(), []byte("\n")), nil
}

func (s *Service) fail(req request, e *wire.Error) {
	s.ended(req, e)
	s.sendError(req, e)
}

func (s *Service) send(req request, h nats.Header, body []byte) {
	if req.reply == "" {
		return
	}
	err := s.cfg.Conn.PublishMsg(&nats.Msg{Subject: req.reply, Header: h, Data: body})
	if errors.Is(err, nats.ErrMaxPayload) {
		// Under a very small max_payload; silence would not tell what is wrong.
		s.sendError(req, tooLong(req.verb, len(body), s.cfg.Conn.MaxPayload()))
		return
	}
	if err != nil {
		s.replyFailed(err)
	}
}

// tooLong is the answer where the reply proper does not fit.
func tooLong(verb string, size int, most int64) *wire.Error {
	if verb == "set" || verb == "cancel" || verb == "retry" {
		return wire.Errorf(wire.Unconfirmed, "it was carried out, but the reply of %d bytes is larger than max_payload of NATS, %d", size, most)
	}
	return wire.Errorf(wire.TooLarge, "the reply of %d bytes is larger than max_payload of NATS, %d", size, most)
}

func (s *Service) sendError(req request, e *wire.Error) {
	if req.reply == "" {
		return
	}
	code, description, body := e.Encode()
	h := nats.Header{wire.HeaderErrorCode: {code}, wire.HeaderError: {description}}
	if err := s.cfg.Conn.PublishMsg(&nats.Msg{Subject: req.reply, Header: h, Data: body}); err != nil {
		s.replyFailed(err)
	}
}

func (s *Service) replyFailed(err error) {
	s.cfg.Logger.Debug("a reply could not be sent", "error", err)
}

func (s *Service) ended(req request, e *wire.Error) {
	st, took, word := s.verbs[req.verb], time.Since(req.received), wire.Word("")
	st.nanos.Add(int64(took))
	if e != nil {
		word = e.Word
		st.errors.Add(1)
		last := e.Error()
		st.last.Store(&last)
	}
	s.cfg.Ended(req.verb, word, took)
}

// endpointStats is "data" in micro's stats: what its own figures cannot show.
func (s *Service) endpointStats(e *micro.Endpoint) any {
	verb, _, _ := strings.Cut(e.Name, "-")
	st := s.verbs[verb]
	if st == nil {
		return nil
	}
	requests := st.requests.Load()
	stats := struct {
		Requests  int64   `json:"requests"` // of the verb, with and without topic
		Errors    int64   `json:"errors"`
		Silent    int64   `json:"without_reply_subject"`
		Ignored   int64   `json:"ignored_reply_subject"`
		AverageMS float64 `json:"average_ms"` // from receipt to answer
		LastError string  `json:"last_error,omitempty"`
	}{requests, st.errors.Load(), st.silent.Load(), st.ignored.Load(), 0, ""}
	if requests > 0 {
		stats.AverageMS = float64(st.nanos.Load()) / float64(requests) / 1e6
	}
	if last := st.last.Load(); last != nil {
		stats.LastError = *last
	}
	return stats
}

var semver = regexp.MustCompile(`^(0|[1-9]\d*)\.(0|[1-9]\d*)\.(0|[1-9]\d*)(-[0-9A-Za-z.-]+)?(\+[0-9A-Za-z.-]+)?$`)

// semantic makes a semantic version of any version text, as micro wants one.
func semantic(v string) string {
	v = strings.TrimPrefix(v, "v")
	if semver.MatchString(v) {
		return v
	}
	clean := strings.Map(func(r rune) rune {
		if r >= '0' && r <= '9' || r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' {
			return r
		}
		return '-'
	}, v)
	if clean = strings.Trim(clean, "-"); clean == "" {
		return "0.0.0"
	}
	return "0.0.0-" + "v" + clean
}
