package client

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/lapse-timers/lapse/timers/wire"
)

// How long a pull of the durable stays open, and how often the server says
// meanwhile that it knows of it. After two silences it is asked for anew.
const (
	pullFor   = 30 * time.Second
	pullPulse = 5 * time.Second
)

// Consume calls handle for every timer of the topic that the stream holds or
// will hold, whether or not this program runs when it fires: "orders.close",
// "orders.>" for all topics below orders, "" for all topics. It goes on until
// ctx ends, or [Receiver.Stop].
//
// The durable is a pull consumer of that name in the stream. It remembers what
// was handled, and is made when there is none; all who name it share its events.
// One that exists is used as it is. Its name is 1 to 255 characters without
// blanks and without any of . * > / \.
//
// When handle returns nil, the event is acknowledged. When it returns an error
// or panics, [OnError] is told and the event is delivered again, after a pause
// that grows ([Backoff]), until [MaxTries] or [ErrGiveUp]. A handler may take as
// long as it likes. One whose process dies has its event delivered again after
// [AckWait].
//
// So an event can come more than once: also after a handler that succeeded,
// when NATS was lost before it heard of that. Who must act once remembers
// [Fired.MsgID].
//
// Errors match [ErrNoStream] when nothing keeps the events (LAPSE_DELIVERY=core)
// and [ErrDurable] when the durable is there for something else. Once it
// runs, it outlives any interruption of NATS, given that the connection
// reconnects for as long ([nats.MaxReconnects]).
func (c *Client) Consume(ctx context.Context, topic, durable string, handle func(context.Context, Fired) error, opts ...ConsumeOption) (*Receiver, error) {
	if handle == nil {
		return nil, errNoHandler
	}
	return c.consume(ctx, topic, durable, c.prefix.Fired, opts, func(h nats.Header, data []byte, deliveries int) (event, error) {
		return firedEvent(h, data, deliveries, handle)
	})
}

// ConsumeDead is [Client.Consume] for the announcements of timers that Lapse
// gave up on. The stream that Lapse makes keeps them; one of the operator's own
// may not, and then the error matches [ErrNoStream].
func (c *Client) ConsumeDead(ctx context.Context, topic, durable string, handle func(context.Context, DeadTimer) error, opts ...ConsumeOption) (*Receiver, error) {
	if handle == nil {
		return nil, errNoHandler
	}
	return c.consume(ctx, topic, durable, c.prefix.Dead, opts, func(h nats.Header, data []byte, deliveries int) (event, error) {
		return deadEvent(h, data, deliveries, handle)
	})
}

type readDelivery func(h nats.Header, data []byte, deliveries int) (event, error)

func (c *Client) consume(ctx context.Context, topic, durable string, verb func(string) string, opts []ConsumeOption, read readDelivery) (*Receiver, error) {
	subject, err := pattern(topic, verb)
	if err != nil {
		return nil, err
	}
	s := newReceiving()
	for _, opt := range opts {
		opt.forConsume(&s)
	}
	if err := errors.Join(s.badOptions...); err != nil {
		return nil, fmt.Errorf("lapse client: %w", err)
	}
	js, err := jetstream.New(c.nc)
	if err != nil {
		return nil, fail(err, wire.Unavailable, "consume %s: %v", subject, err)
	}
	within, cancel := c.bounded(ctx)
	defer cancel()
	if err := c.connected(within); err != nil {
		return nil, fmt.Errorf("consume %s: %w", subject, err)
	}
	if s.stream == "" {
		if s.stream, err = findStream(within, js, subject); err != nil {
			return nil, fmt.Errorf("consume %s: %w", subject, err)
		}
	}
	d, err := s.durable(within, js, durable, subject)
	if err != nil {
		return nil, fmt.Errorf("consume %s: %w", subject, err)
	}
	t := &taking{crew: c.newCrew(ctx, s), durable: d, name: durable, read: read, pulse: pulse(d.CachedInfo().Config)}
	if most := d.CachedInfo().Config.MaxDeliver; most > 0 && (s.maxTries == 0 || most < s.maxTries) {
		t.maxTries = most // after which the server would be silent
	}
	return start(ctx, t.serve), nil
}

// findStream finds the stream that has all of the subject. No two overlap.
func findStream(ctx context.Context, js jetstream.JetStream, subject string) (string, error) {
	streams := js.ListStreams(ctx, jetstream.WithStreamListSubject(subject))
	part := ""
	for info := range streams.Info() {
		for _, has := range info.Config.Subjects {
			if covers(has, subject) {
				return info.Config.Name, nil
			}
		}
		part = fmt.Sprintf("; stream %+q has a part of it: consume the topics that it has", wire.Cut(info.Config.Name))
	}
	switch err := streams.Err(); {
	case errors.Is(err, jetstream.ErrJetStreamNotEnabled), errors.Is(err, jetstream.ErrJetStreamNotEnabledForAccount),
		err == nil, errors.Is(err, jetstream.ErrEndOfData):
		return "", fail(ErrNoStream, wire.Unavailable,
			"no stream has %s%s. Lapse makes one at its start (LAPSE_DELIVERY=jetstream); without one, what fires reaches Handle only", subject, part)
	default:
		return "", fail(err, wire.Unavailable, "look for the stream: %v; with the option Stream, no right to list streams is needed", err)
	}
}

// covers says whether pattern matches every subject that the other one matches.
func covers(pattern, other string) bool {
	have, want := strings.Split(pattern, "."), strings.Split(other, ".")
	for i, token := range have {
		switch {
		case i >= len(want):
			return false
		case token == ">":
			return true
		case want[i] == ">", token != "*" && token != want[i]:
			return false
		}
	}
	return len(have) == len(want)
}

// durable finds the consumer, or makes it. Two may do so at a time.
func (s *receiving) durable(ctx context.Context, js jetstream.JetStream, name, subject string) (jetstream.Consumer, error) {
	d, err := js.Consumer(ctx, s.stream, name)
	if errors.Is(err, jetstream.ErrConsumerNotFound) {
		config := jetstream.ConsumerConfig{
			Durable: name, FilterSubject: subject, AckPolicy: jetstream.AckExplicitPolicy, AckWait: s.ackWait,
			// Tries are counted here, where somebody can be told of the last. And
			// what waits for another try must not hold up the rest.
			MaxDeliver: -1, MaxAckPending: -1,
		}
		if s.fromNow {
			config.DeliverPolicy = jetstream.DeliverNewPolicy
		}
		if d, err = js.CreateConsumer(ctx, s.stream, config); errors.Is(err, jetstream.ErrConsumerExists) {
			d, err = js.Consumer(ctx, s.stream, name)
		}
	}
	switch {
	case errors.Is(err, jetstream.ErrInvalidConsumerName):
		return nil, fail(err, wire.InvalidRequest, `durable %+q: want a name without blanks and without any of . * > / \`, wire.Cut(name))
	case errors.Is(err, jetstream.ErrStreamNotFound), errors.Is(err, jetstream.ErrInvalidStreamName):
		return nil, fail(ErrNoStream, wire.Unavailable, "there is no stream %+q", wire.Cut(s.stream))
	case errors.Is(err, jetstream.ErrNotPullConsumer):
		return nil, fail(ErrDurable, wire.InvalidRequest, "durable %+q of stream %+q is a push consumer: take another name", wire.Cut(name), wire.Cut(s.stream))
	case err != nil:
		return nil, fail(err, wire.Unavailable, "durable %+q of stream %+q: %v", wire.Cut(name), wire.Cut(s.stream), err)
	}
	config := d.CachedInfo().Config
	filters := config.FilterSubjects
	if config.FilterSubject != "" {
		filters = []string{config.FilterSubject}
	}
	if len(filters) != 1 || filters[0] != subject {
		return nil, fail(ErrDurable, wire.InvalidRequest, "durable %+q of stream %+q receives %s: take another name, or delete it (nats consumer rm)",
			wire.Cut(name), wire.Cut(s.stream), wire.Cut(fmt.Sprint(filters)))
	}
	if config.AckPolicy != jetstream.AckExplicitPolicy {
		return nil, fail(ErrDurable, wire.InvalidRequest, "durable %+q of stream %+q has the acknowledgement policy %v, want explicit: take another name",
			wire.Cut(name), wire.Cut(s.stream), config.AckPolicy)
	}
	return d, nil
}

// pulse is how often the server hears that a handler is at work.
func pulse(config jetstream.ConsumerConfig) time.Duration {
	wait := config.AckWait
	for _, d := range config.BackOff {
		wait = min(wait, d)
	}
	return max(wait/3, 10*time.Millisecond)
}

// taking takes events from a durable.
type taking struct {
	*crew
	durable jetstream.Consumer
	name    string
	read    readDelivery
	pulse   time.Duration
}

// serve takes as many events as there are free handlers and not one more: an
// event that waits here would be nobody else's, and its AckWait would run.
func (t *taking) serve(stopping context.Context) error {
	defer t.end()
	for {
		select {
		case t.slots <- struct{}{}:
		case <-stopping.Done():
			return nil
		}
		free := 1
		for more := true; more; {
			select {
			case t.slots <- struct{}{}:
				free++
			default:
				more = false
			}
		}
		taken, err := t.pull(stopping, free)
		for range free - taken {
			<-t.slots
		}
		if err != nil || stopping.Err() != nil {
			return err
		}
	}
}

// end waits for the handlers, and for the server to know what came of them.
func (t *taking) end() {
	t.wait()
	if t.client.nc.IsConnected() {
		if err := t.client.nc.FlushTimeout(time.Second); err != nil {
			t.onError(fmt.Errorf("the last acknowledgements may be lost: %w", err))
		}
	}
}

// pull hands up to free events to handlers, and says how many. Each of them has
// the slot of its handler.
func (t *taking) pull(stopping context.Context, free int) (taken int, err error) {
	messages, err := t.durable.Messages(jetstream.PullMaxMessages(free), jetstream.StopAfter(free),
		jetstream.PullExpiry(pullFor), jetstream.PullHeartbeat(pullPulse))
	if err != nil {
		return 0, fail(err, wire.Unavailable, "durable %s: %v", t.name, err)
	}
	defer messages.Stop()
	defer context.AfterFunc(stopping, func() {
		if !t.client.nc.IsConnected() {
			messages.Stop() // a drain would wait for an answer from the server
			return
		}
		messages.Drain() // hands over what has come already, so that it can be given back
	})()
	for taken < free {
		m, err := messages.Next()
		switch {
		case err == nil && stopping.Err() != nil:
			t.settle(m.Nak()) // another receiver has it at once
		case err == nil:
			taken++
			t.wg.Go(func() {
				defer func() { <-t.slots }()
				t.deliver(m)
			})
		case stopping.Err() != nil:
			return taken, nil
		case errors.Is(err, jetstream.ErrNoHeartbeat):
			if err := t.exists(stopping, err); err != nil {
				return taken, err
			}
		case errors.Is(err, jetstream.ErrConnectionClosed):
			return taken, fail(nats.ErrConnectionClosed, wire.Unavailable, "durable %s: the NATS connection is closed", t.name)
		default:
			// The library takes a message with the header Status and no body for
			// the server's word, so who forges one could end this.
			return taken, t.exists(stopping, err)
		}
	}
	return taken, nil
}

// exists says whether going on makes sense after err, and waits a moment if so.
func (t *taking) exists(stopping context.Context, why error) error {
	ctx, cancel := context.WithTimeout(stopping, pullPulse)
	defer cancel()
	_, err := t.durable.Info(ctx)
	if errors.Is(err, jetstream.ErrConsumerNotFound) || errors.Is(err, jetstream.ErrStreamNotFound) {
		return fail(err, wire.Unavailable, "durable %s: %v", t.name, err)
	}
	if stopping.Err() == nil {
		t.onError(fmt.Errorf("durable %s: asking again: %w", t.name, why))
	}
	select {
	case <-time.After(time.Second):
	case <-stopping.Done():
	}
	return nil
}

// deliver has the event handled and tells the stream what came of it.
func (t *taking) deliver(m jetstream.Msg) {
	meta, err := m.Metadata()
	if err != nil {
		t.onError(fmt.Errorf("durable %s: %w", t.name, err)) // the server never sends this
		return
	}
	deliveries := int(meta.NumDelivered)
	e, err := t.read(m.Headers(), m.Data(), deliveries)
	if err != nil {
		t.onError(&ForeignError{Msg: &nats.Msg{Subject: m.Subject(), Header: m.Headers(), Data: m.Data()}, Err: err})
		t.settle(m.TermWithReason("not from Lapse"))
		return
	}
	quiet := t.keep(m)
	defer quiet()
	if t.maxTries > 0 && deliveries > t.maxTries {
		err = errNoOutcome
	} else {
		err = t.run(e)
	}
	if err == nil {
		quiet()
		t.settle(m.Ack())
		return
	}
	failed := &e.about
	failed.Err = err
	failed.GivenUp = errors.Is(err, ErrGiveUp) || (t.maxTries > 0 && deliveries >= t.maxTries)
	switch {
	case failed.GivenUp:
		t.giveUp(e, failed)
	case t.ctx.Err() != nil:
		// It was told to stop, and has not failed by itself.
	default:
		failed.RetryIn = t.pause(deliveries)
	}
	t.onError(failed)
	quiet()
	switch {
	case failed.GivenUp:
		t.settle(m.TermWithReason(fmt.Sprintf("given up at delivery %d", deliveries)))
	case failed.RetryIn == 0:
		t.settle(m.Nak())
	default:
		t.settle(m.NakWithDelay(failed.RetryIn))
	}
}

// giveUp calls [OnGivenUp], a panic of which is reported and changes nothing.
func (t *taking) giveUp(e event, failed *HandlerError) {
	e.handle = func(ctx context.Context) error { t.onGivenUp(ctx, failed); return nil }
	if err := t.run(e); err != nil {
		t.onError(fmt.Errorf("OnGivenUp: %w", err))
	}
}

// keep tells the server that the event is being handled, until quiet is called.
// An event that has been settled is never kept after that.
func (t *taking) keep(m jetstream.Msg) (quiet func()) {
	var mu sync.Mutex
	over := false
	var beat *time.Timer
	mu.Lock()
	defer mu.Unlock()
	beat = time.AfterFunc(t.pulse, func() {
		mu.Lock()
		defer mu.Unlock()
		if over {
			return
		}
		_ = m.InProgress() // the next one says it too
		beat.Reset(t.pulse)
	})
	return func() {
		mu.Lock()
		defer mu.Unlock()
		over = true
		beat.Stop()
	}
}

// pause is the back-off after so many deliveries.
func (s *receiving) pause(deliveries int) time.Duration {
	d := s.retryMin
	for i := 1; i < deliveries && d < s.retryMax; i++ {
		d *= 2
	}
	return min(d, s.retryMax)
}

// settle reports an outcome that could not be told: the event comes again.
func (t *taking) settle(err error) {
	if err != nil {
		t.onError(fmt.Errorf("durable %s: the outcome of an event could not be told to NATS, it comes again: %w", t.name, err))
	}
}
