package bench

import (
	"bytes"
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

// scheduler is JetStream's own scheduled messages (ADR-51), set up as well as
// we know how: nothing on it that its use does not need, and the receiver that
// costs it least.
type scheduler struct {
	servers  *servers
	proc     *process
	version  string
	payload  []byte
	conns    []*nats.Conn
	receiver *nats.Conn
	js       jetstream.JetStream
}

const (
	jsStream = "BENCH"
	jsTarget = "bench.fired"
	// jsSchedule and a timer's id make a subject of 50 bytes, one per timer
	// because each subject holds one schedule.
	jsSchedule = "bench.schedule.orders.eu1."
	jsPull     = 5_000 // messages of one fetch, at most
)

func newScheduler(ctx context.Context, o Options) (_ *scheduler, err error) {
	s := &scheduler{payload: payloadOf(o.Payload)}
	if s.servers, err = newServers(o.dir()); err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, s.close())
		}
	}()
	proc, addr, err := s.servers.nats(ctx, o.Programs)
	if err != nil {
		return nil, err
	}
	s.proc = proc
	for range connections + 1 {
		nc, err := nats.Connect(addr, nats.NoReconnect())
		if err != nil {
			return nil, fmt.Errorf("connect to the nats-server of JetStream: %w", err)
		}
		s.conns = append(s.conns, nc)
	}
	s.receiver, s.conns = s.conns[connections], s.conns[:connections]
	s.version = s.receiver.ConnectedServerVersion()
	if s.js, err = jetstream.New(s.receiver); err != nil {
		return nil, err
	}
	_, err = s.js.CreateStream(ctx, jetstream.StreamConfig{
		Name: jsStream, Subjects: []string{jsSchedule + "*", jsTarget}, Storage: jetstream.FileStorage, AllowMsgSchedules: true,
	})
	if err != nil {
		return nil, fmt.Errorf("make a stream with message schedules (nats-server 2.12 or newer has them): %w", err)
	}
	return s, nil
}

func (s *scheduler) set(_ context.Context, caller, n int, due int64) error {
	m := &nats.Msg{Subject: jsSchedule + timerID(n), Data: s.payload, Header: nats.Header{
		// Written here, because nats.go's own option cuts to whole seconds.
		"Nats-Schedule":        {"@at " + wire.FormatTime(time.UnixMilli(due))},
		"Nats-Schedule-Target": {jsTarget},
	}}
	reply, err := s.conns[caller%len(s.conns)].RequestMsg(m, answerWithin)
	if err != nil {
		return fmt.Errorf("schedule %s: %w", timerID(n), err)
	}
	if !bytes.HasPrefix(reply.Data, []byte(`{"stream":`)) || bytes.Contains(reply.Data, []byte(`"error"`)) {
		return fmt.Errorf("schedule %s: JetStream answered %.160q", timerID(n), reply.Data)
	}
	return nil
}

func (s *scheduler) listen(fired func(n int, at time.Time, early bool)) (stop func() error, err error) {
	ctx, cancel := context.WithTimeout(context.Background(), answerWithin)
	defer cancel()
	// The receiver acknowledges nothing, as ours does not.
	consumer, err := s.js.CreateConsumer(ctx, jsStream, jetstream.ConsumerConfig{
		FilterSubject: jsTarget, DeliverPolicy: jetstream.DeliverNewPolicy, AckPolicy: jetstream.AckNonePolicy,
	})
	if err != nil {
		return nil, fmt.Errorf("make a consumer: %w", err)
	}
	messages, err := consumer.Messages(jetstream.PullMaxMessages(jsPull))
	if err != nil {
		return nil, fmt.Errorf("consume: %w", err)
	}
	var failed error
	var wg sync.WaitGroup
	wg.Go(func() {
		for {
			m, err := messages.Next()
			now := time.Now()
			if err != nil {
				if !errors.Is(err, jetstream.ErrMsgIteratorClosed) {
					failed = fmt.Errorf("the consumer of JetStream failed: %w", err)
				}
				return
			}
			fired(timerNumber(strings.TrimPrefix(m.Headers().Get("Nats-Scheduler"), jsSchedule)), now, false)
		}
	})
	return func() error {
		messages.Stop()
		wg.Wait()
		return failed
	}, nil
}

func (s *scheduler) settle(ctx context.Context, sets int) error { return sleep(ctx, breath(sets)) }

func (s *scheduler) cpu() usage { return processTimes(map[string]*process{"nats": s.proc}) }

func (s *scheduler) sameClock() bool { return true }

func (s *scheduler) readClock(context.Context) (*reading, error) { return nil, nil }

func (s *scheduler) forget(context.Context, []span) error { return nil }

func (s *scheduler) close() error {
	for _, nc := range append(s.conns, s.receiver) {
		if nc != nil {
			nc.Close()
		}
	}
	return s.servers.close()
}
