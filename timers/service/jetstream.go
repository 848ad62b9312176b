package service

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/lapse-timers/lapse/timers"
	"github.com/lapse-timers/lapse/timers/wire"
)

// AckWait is how long an acknowledgement may take, under the given lease,
// before its attempt counts as unknown: 5 s, or a quarter of a short lease, so
// that the outcome can be written while the claim still holds.
func AckWait(lease time.Duration) time.Duration { return min(5*time.Second, lease/4) }

// JetStream delivers with acknowledgement: a fire counts as delivered when the
// stream that covers the fired subjects says that it stored it.
//
// The library's own asynchronous publish takes the first reply for the
// acknowledgement, and a subscriber that answers fired events replies too; so
// acknowledgements are told apart here.
type JetStream struct {
	nc     *Conn
	prefix wire.Prefix
	cfg    StreamConfig
	logger *slog.Logger
	wait   time.Duration // for an acknowledgement

	gate   gate
	inbox  string // with the last dot
	sub    *nats.Subscription
	stream atomic.Pointer[stream]
	wake   chan struct{} // one slot: look at the connection and the stream
	lower  atomic.Bool   // the stream refused a message for its size since the last look at its limit
	limit  sync.Mutex    // held by who looks at it for that reason

	mu      sync.Mutex
	next    uint64
	pending map[uint64]*attempt
	queue   []*attempt // oldest first; settled ones are skipped
	health  wire.HealthPart
	denied  deniedSubjects
	full    refusals
	strange atomic.Int64 // replies that were no acknowledgement of ours
}

type attempt struct {
	id       uint64
	subject  string
	deadline time.Time
	dead     bool                  // an announcement, which says nothing of how firing is
	done     func(timers.Delivery) // nil once settled; guarded by JetStream.mu
}

// NewJetStream prepares delivery over nc, which must be a publishing
// connection ([Connect]); wait is from [AckWait]. It looks for the stream, and
// makes it when there is none; errors that match [ErrStream], [ErrNoJetStream] are final, others are
// worth another try.
func NewJetStream(ctx context.Context, nc *Conn, prefix wire.Prefix, cfg StreamConfig, wait time.Duration, logger *slog.Logger) (*JetStream, error) {
	if err := CheckRequests(ctx, nc.Conn, prefix); err != nil {
		return nil, err
	}
	s, err := findStream(ctx, nc.Conn, prefix, cfg)
	if err != nil {
		return nil, err
	}
	j := &JetStream{
		nc:      nc,
		prefix:  prefix,
		cfg:     cfg,
		logger:  logger,
		wait:    wait,
		inbox:   nc.NewInbox() + ".",
		wake:    make(chan struct{}, 1),
		pending: make(map[uint64]*attempt),
		health:  wire.HealthPart{Status: wire.HealthOK},
	}
	j.stream.Store(&s)
	// Acknowledgements cannot outnumber the attempts under way, which the Firer
	// bounds; the library's default limits are far above that.
	if j.sub, err = nc.Subscribe(j.inbox+"*", j.acknowledged); err != nil {
		return nil, fmt.Errorf("subscribing to acknowledgements: %w", err)
	}
	nc.OnDisconnect(func() {
		j.gate.set(false)
		j.failAll(errors.New("the connection to NATS was cut"))
	})
	nc.OnReconnect(func() { j.look() })
	nc.OnError(j.asyncError)
	j.gate.set(true)
	return j, nil
}

// Stream is the name of the stream that confirms.
func (j *JetStream) Stream() string { return j.stream.Load().name }

// Strange is how many replies to fired events were no acknowledgement of the
// stream.
func (j *JetStream) Strange() int64 { return j.strange.Load() }

// Duplicates is the duplicate window of the stream.
func (j *JetStream) Duplicates() time.Duration { return j.stream.Load().duplicates }

// MaxSize is the largest message, with headers, that can be delivered now.
func (j *JetStream) MaxSize() int {
	size := int(j.nc.MaxPayload())
	if s := j.stream.Load(); s.maxMsgSize > 0 {
		size = min(size, s.maxMsgSize)
	}
	return size
}

// Await returns once publishing makes sense.
func (j *JetStream) Await(ctx context.Context) error { return j.gate.await(ctx) }

// Ready says without waiting whether publishing makes sense.
func (j *JetStream) Ready() bool { return j.gate.isOpen() }

// Health is how delivery is.
func (j *JetStream) Health() wire.HealthPart {
	if !j.nc.IsConnected() {
		return wire.HealthPart{Status: wire.HealthDown, Why: "the delivery connection to NATS is cut; it is tried again by itself"}
	}
	j.mu.Lock()
	defer j.mu.Unlock()
	if j.health.Status != wire.HealthOK {
		return j.health
	}
	if h := j.full.health(); h.Status != wire.HealthOK {
		return h
	}
	return j.denied.health()
}

// Publish starts the delivery of a claim.
func (j *JetStream) Publish(c *timers.Claim, source timers.Source, done func(timers.Delivery)) {
	if stale(c) {
		done(timers.Delivery{Outcome: timers.Refused, Err: timers.ErrStale})
		return
	}
	j.send(firedMessage(j.prefix, c, source), false, done)
}

// send publishes a message that the stream covers and calls done once, with
// what became of it.
func (j *JetStream) send(msg *nats.Msg, dead bool, done func(timers.Delivery)) {
	a := &attempt{subject: msg.Subject, deadline: time.Now().Add(j.wait), dead: dead, done: done}
	j.mu.Lock()
	j.next++
	a.id = j.next
	j.pending[a.id] = a
	j.queue = append(j.queue, a)
	j.mu.Unlock()

	msg.Reply = j.inbox + strconv.FormatUint(a.id, 36)
	if err := j.nc.PublishMsg(msg); err != nil {
		j.settle(a, notWritten(err))
	}
}

// notWritten is what an error of the library says of a publish.
func notWritten(err error) timers.Delivery {
	switch {
	case errors.Is(err, nats.ErrMaxPayload):
		return timers.Delivery{Outcome: timers.Refused, Err: fmt.Errorf("%w: max_payload of the NATS server is less", timers.ErrTooLarge)}
	case errors.Is(err, nats.ErrReconnectBufExceeded), errors.Is(err, nats.ErrConnectionClosed), errors.Is(err, nats.ErrConnectionDraining):
		return timers.Delivery{Outcome: timers.Refused, Err: fmt.Errorf("%w: %w", timers.ErrAway, err)}
	case neverWritten(err):
		return timers.Delivery{Outcome: timers.Refused, Err: err}
	}
	return timers.Delivery{Outcome: timers.Unknown, Err: err}
}

// neverWritten recognises errors from before a byte left.
func neverWritten(err error) bool {
	for _, e := range []error{
		nats.ErrBadSubject, nats.ErrHeadersNotSupported, nats.ErrBadHeaderMsg, nats.ErrInvalidMsg,
	} {
		if errors.Is(err, e) {
			return true
		}
	}
	return false
}

// Run watches the attempts and the stream until ctx ends, each on a goroutine
// of its own: a JetStream API that is silent must not keep attempts waiting.
func (j *JetStream) Run(ctx context.Context) error {
	var wg sync.WaitGroup
	wg.Go(func() { j.watchAttempts(ctx) })
	wg.Go(func() { j.watchStream(ctx) })
	wg.Wait()
	return nil
}

func (j *JetStream) watchAttempts(ctx context.Context) {
	tick := time.NewTicker(j.wait / 20)
	defer tick.Stop()
	var last time.Time // when one was last missed
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
			if now := time.Now(); j.expire(now) > 0 {
				// They are missed one by one, and the gate opens in between.
				if now.Sub(last) > refusedFor {
					j.logger.Warn("acknowledgements did not come in time", "stream", j.Stream(), "wait", j.wait)
				}
				last = now
				// Nothing is gained by claiming more while NATS does not answer.
				j.gate.set(false)
				j.look()
			}
		}
	}
}

func (j *JetStream) watchStream(ctx context.Context) {
	timer := time.NewTimer(lookEvery)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-timer.C:
		case <-j.wake:
		}
		timer.Reset(j.check(ctx))
	}
}

const (
	lookEvery = 10 * time.Second       // at a stream that is well
	lookAgain = 250 * time.Millisecond // at a server that does not answer
)

func (j *JetStream) look() {
	select {
	case j.wake <- struct{}{}:
	default:
	}
}

// check asks whether NATS answers, which opens the gate, and then whether the
// stream stands, which is for the health: a stream that is gone refuses by
// itself, and one whose API is silent may store all the same. A stream that was
// deleted is made again, as at the start. It returns when to check again.
func (j *JetStream) check(ctx context.Context) time.Duration {
	if !j.nc.IsConnected() {
		j.gate.set(false)
		return lookAgain
	}
	flush, cancel := context.WithTimeout(ctx, 2*time.Second)
	err := j.nc.FlushWithContext(flush)
	cancel()
	if err != nil {
		j.gate.set(false)
		j.setHealth(wire.HealthDown, "NATS does not answer: "+err.Error())
		return lookAgain
	}
	j.gate.set(true)
	if !j.nc.IsConnected() {
		// Cut since it answered, and the handler may have been first.
		j.gate.set(false)
		return lookAgain
	}
	find, cancel := context.WithTimeout(ctx, 3*time.Second)
	defer cancel()
	s, err := findStream(find, j.nc.Conn, j.prefix, j.cfg)
	switch {
	case err == nil:
		if s.made {
			j.logger.Warn("the stream was gone and has been made again", "stream", s.name)
		}
		j.stream.Store(&s)
		j.setHealth(wire.HealthOK, "")
		return lookEvery
	case errors.Is(err, context.DeadlineExceeded):
		j.setHealth(wire.HealthDegraded, "the JetStream API does not answer; what the stream acknowledges is delivered all the same")
	default:
		j.setHealth(wire.HealthDown, err.Error())
	}
	return time.Second
}

func (j *JetStream) setHealth(status, why string) {
	j.mu.Lock()
	changed := j.health.Status != status
	j.health = wire.HealthPart{Status: status, Why: why}
	j.mu.Unlock()
	switch {
	case !changed:
	case status == wire.HealthOK:
		j.logger.Info("the stream is back", "stream", j.Stream())
	default:
		j.logger.Warn("the stream does not take fired timers", "why", why)
	}
}

// pubAck is the acknowledgement of JetStream
// (https://docs.nats.io/reference/reference-protocols/nats_api_reference).
type pubAck struct {
	Stream    string `json:"stream"`
	Seq       uint64 `json:"seq"`
	Duplicate bool   `json:"duplicate"`
	Error     *struct {
		Code        int    `json:"code"`
		ErrCode     int    `json:"err_code"`
		Description string `json:"description"`
	} `json:"error"`
}

// acknowledged handles whatever came to an acknowledgement inbox. What is not
// an acknowledgement of our stream is somebody's answer to the event and is
// passed over: the acknowledgement is still to come.
func (j *JetStream) acknowledged(m *nats.Msg) {
	id, err := strconv.ParseUint(strings.TrimPrefix(m.Subject, j.inbox), 36, 64)
	if err != nil {
		return
	}
	j.mu.Lock()
	a := j.pending[id]
	j.mu.Unlock()
	var d timers.Delivery
	var ack pubAck
	switch {
	case len(m.Data) == 0 && m.Header.Get("Status") == "503":
		// The server itself says that nobody was there to take it: the stream is
		// gone or has no leader, which is no judgement of the timer.
		d = timers.Delivery{Outcome: timers.Refused, Err: fmt.Errorf("%w: %w", timers.ErrAway, nats.ErrNoResponders)}
		j.look()
	case j.plainAck(m.Data):
		d = timers.Delivery{Outcome: timers.Delivered}
	case json.Unmarshal(m.Data, &ack) != nil, ack.Stream != j.Stream():
		j.strange.Add(1)
		return
	case ack.Error != nil && ack.Error.ErrCode != 0:
		d = timers.Delivery{Outcome: timers.Refused, Err: fmt.Errorf("stream %s refuses: %s (%d)", ack.Stream, ack.Error.Description, ack.Error.ErrCode)}
		if ack.Error.ErrCode == errMessageTooLarge || ack.Error.ErrCode == errHeadersTooLarge {
			d.Err = fmt.Errorf("%w: %w", timers.ErrTooLarge, d.Err)
			j.lower.Store(true)
		} else if a != nil && !a.dead {
			j.refused(d.Err)
		}
	case ack.Seq > 0:
		d = timers.Delivery{Outcome: timers.Delivered, Duplicate: ack.Duplicate}
	default:
		j.strange.Add(1)
		return
	}
	if a != nil {
		j.settle(a, d)
	}
}

// Refusals of nats-server that no repetition changes (jetstream_errors_generated.go:
// JSStreamMessageExceedsMaximumErr, JSStreamHeaderExceedsMaximumErr).
const (
	errMessageTooLarge = 10054
	errHeadersTooLarge = 10097
)

// plainAck recognises the acknowledgement that all but a few are, byte for byte
// as the server writes it: {"stream":"NAME","seq":123}. Whatever differs is
// read as JSON.
func (j *JetStream) plainAck(b []byte) bool {
	s := j.stream.Load()
	rest, ok := bytes.CutPrefix(b, s.ack)
	if !ok || len(rest) < 2 || rest[0] == '0' || rest[len(rest)-1] != '}' {
		return false
	}
	for _, c := range rest[:len(rest)-1] {
		if c < '0' || c > '9' {
			return false
		}
	}
	return true
}

// refused notes that the stream does not store a fire, since it is full or for another
// reason of its own, which only attempts can tell.
func (j *JetStream) refused(err error) {
	j.mu.Lock()
	first := j.full.add(err.Error())
	j.mu.Unlock()
	if first {
		j.logger.Warn("the stream refuses fired timers; they are kept and tried again", "why", err.Error())
	}
}

// settle ends an attempt, once.
func (j *JetStream) settle(a *attempt, d timers.Delivery) {
	j.mu.Lock()
	done := a.done
	a.done = nil
	if d.Outcome == timers.Delivered && !a.dead {
		j.full.delivered = time.Now()
	}
	delete(j.pending, a.id)
	for len(j.queue) > 0 && j.queue[0].done == nil {
		j.queue[0] = nil
		j.queue = j.queue[1:]
	}
	j.mu.Unlock()
	if done != nil {
		done(d)
	}
}

// expire ends the attempts whose acknowledgement did not come in time, and says
// how many of them were fires.
func (j *JetStream) expire(now time.Time) int {
	var late []*attempt
	fires := 0
	j.mu.Lock()
	for _, a := range j.queue {
		if a.deadline.After(now) {
			break
		}
		if a.done != nil {
			late = append(late, a)
			if !a.dead {
				fires++
			}
		}
	}
	j.mu.Unlock()
	for _, a := range late {
		j.settle(a, timers.Delivery{Outcome: timers.Unknown, Err: nats.ErrTimeout})
	}
	return fires
}

func (j *JetStream) failAll(err error) {
	j.mu.Lock()
	all := make([]*attempt, 0, len(j.pending))
	for _, a := range j.pending {
		all = append(all, a)
	}
	j.mu.Unlock()
	for _, a := range all {
		j.settle(a, timers.Delivery{Outcome: timers.Unknown, Err: err})
	}
}

// asyncError hears that the server refused a publish. It says so once for each
// message and in their order, so the oldest attempt on the subject is meant.
func (j *JetStream) asyncError(_ *nats.Subscription, err error) {
	subject, ok := deniedSubject(err)
	dead := strings.HasPrefix(subject, j.prefix.Dead("")+".")
	if !ok || !dead && !strings.HasPrefix(subject, j.prefix.Fired("")+".") {
		return
	}
	j.mu.Lock()
	first := j.denied.add(subject)
	var denied *attempt
	for _, a := range j.queue {
		if a.done != nil && a.subject == subject {
			denied = a
			break
		}
	}
	j.mu.Unlock()
	if first {
		sayDenied(j.logger, subject, dead)
	}
	if denied != nil {
		j.settle(denied, timers.Delivery{Outcome: timers.Refused, Err: err})
	}
}

func sayDenied(logger *slog.Logger, subject string, dead bool) {
	if dead {
		logger.Error("NATS does not permit announcing dead timers; lapse list shows them", "subject", subject)
		return
	}
	logger.Error("NATS does not permit publishing fired timers; they are kept and tried again", "subject", subject)
}

// deniedSubject is the subject that the server refused to have published to.
func deniedSubject(err error) (string, bool) {
	right, subject, ok := deniedRight(err)
	return subject, ok && right == rightToPublish
}

// refusedFor is how long a refused publish shows in the health. Back-off ends
// at 30 s, so one that goes on shows all the time.
const refusedFor = time.Minute

// refusals remembers that the stream refused lately. Its owner guards it.
type refusals struct {
	at, delivered time.Time // when it last refused, and last stored
	why           string
}

func (r *refusals) add(why string) (first bool) {
	first = time.Since(r.at) > refusedFor
	r.at, r.why = time.Now(), why
	return first
}

func (r *refusals) health() wire.HealthPart {
	switch {
	case r.why == "" || time.Since(r.at) > refusedFor:
		return wire.HealthPart{Status: wire.HealthOK}
	case r.at.Sub(r.delivered) > time.Second:
		return wire.HealthPart{Status: wire.HealthDown, Why: r.why}
	}
	// Some are stored: it refuses one subject, or there is room again.
	return wire.HealthPart{Status: wire.HealthDegraded, Why: r.why}
}

// deniedSubjects remembers which subjects NATS refused lately. Its owner
// guards it.
type deniedSubjects struct {
	at      time.Time
	subject string
	said    map[string]bool // subjects that were logged since the first of them
}

// deniedSaid is how many subjects are logged: each topic is one, and its timers
// are refused again and again.
const deniedSaid = 16

func (d *deniedSubjects) add(subject string) (first bool) {
	if d.said == nil || time.Since(d.at) > refusedFor {
		d.said = map[string]bool{}
	}
	d.at, d.subject = time.Now(), subject
	if d.said[subject] || len(d.said) == deniedSaid {
		return false
	}
	d.said[subject] = true
	return true
}

func (d *deniedSubjects) health() wire.HealthPart {
	if d.subject == "" || time.Since(d.at) > refusedFor {
		return wire.HealthPart{Status: wire.HealthOK}
	}
	more := ""
	if n := len(d.said) - 1; n > 0 {
		more = fmt.Sprintf(" and at least %d more subjects", n)
	}
	return wire.HealthPart{Status: wire.HealthDegraded,
		Why: fmt.Sprintf("NATS does not permit publishing to %s%s; allow the user of Lapse to publish to it", d.subject, more)}
}
