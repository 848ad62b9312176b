package chaos

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/lapse-timers/lapse/timers/client"
)

// recorder writes every message of the stream into the ledger, in order and
// without a gap, whatever happens to the server meanwhile; and what a core
// subscriber sees.
type recorder struct {
	nc     *nats.Conn
	js     jetstream.JetStream
	stream string
	ledger *Ledger
	last   atomic.Uint64 // every message up to it is recorded
	gone   atomic.Int64  // removed from the stream before they could be recorded
	undone atomic.Int64  // recorded, and not in the stream after a restart of NATS

	mu    sync.Mutex
	marks []mark // every hundredth message
}

type mark struct {
	seq uint64
	at  time.Time
}

// purgeable is how long a message stays before it may be purged: twice as long
// as a fire can be tried again, since a stream that starts anew knows only the
// message ids that it still holds.
const purgeable = 30 * time.Second

func (r *recorder) subscribe(ctx context.Context, c *client.Client) error {
	_, err := c.Handle(ctx, "", func(_ context.Context, f client.Fired) {
		r.ledger.Arrived(Arrival{Fired: f, At: f.Received})
	})
	return err
}

// run reads the stream until ctx ends. A consumer that fails is replaced by one
// that begins behind the last message read.
func (r *recorder) run(ctx context.Context) {
	for ctx.Err() == nil {
		_ = r.read(ctx) // the next one begins where it ended
		select {
		case <-ctx.Done():
		case <-time.After(50 * time.Millisecond):
		}
	}
}

func (r *recorder) read(ctx context.Context) error {
	ask, cancel := context.WithTimeout(ctx, 2*time.Second)
	defer cancel()
	s, err := r.js.Stream(ask, r.stream)
	if err != nil {
		return err
	}
	if have, last := s.CachedInfo().State.LastSeq, r.last.Load(); have < last {
		r.undone.Add(int64(last - have))
		r.last.Store(have)
	}
	consumer, err := r.js.CreateConsumer(ask, r.stream, jetstream.ConsumerConfig{
		DeliverPolicy: jetstream.DeliverByStartSequencePolicy, OptStartSeq: r.last.Load() + 1,
		AckPolicy: jetstream.AckNonePolicy, MemoryStorage: true, InactiveThreshold: 10 * time.Second,
	})
	if err != nil {
		return err
	}
	for ctx.Err() == nil {
		batch, err := consumer.Fetch(500, jetstream.FetchMaxWait(time.Second))
		if err != nil {
			return err
		}
		for m := range batch.Messages() {
			if err := r.record(m); err != nil {
				return err
			}
		}
		if err := batch.Error(); err != nil {
			return err
		}
		if r.nc.Status() != nats.CONNECTED {
			return nats.ErrDisconnected
		}
	}
	return nil
}

func (r *recorder) record(m jetstream.Msg) error {
	meta, err := m.Metadata()
	if err != nil {
		return err
	}
	seq, want := meta.Sequence.Stream, r.last.Load()+1
	switch {
	case seq < want:
		return nil // it came before
	case seq > want && meta.Sequence.Consumer != 1:
		return fmt.Errorf("message %d came, want %d", seq, want) // one was lost on the way
	case seq > want:
		// The first of a new consumer: what lies before it is there no more.
		r.gone.Add(int64(seq - want))
	}
	f, err := client.ParseFired(m.Headers(), m.Data())
	if err == nil {
		r.ledger.Arrived(Arrival{Fired: f, Seq: seq, At: meta.Timestamp})
	} else {
		r.ledger.Arrived(Arrival{Fired: client.Fired{ID: err.Error()}, Seq: seq, At: meta.Timestamp})
	}
	r.last.Store(seq)
	if seq%100 == 0 {
		r.mu.Lock()
		r.marks = append(r.marks, mark{seq, meta.Timestamp})
		r.mu.Unlock()
	}
	return nil
}

// old is a message below which all may be purged, 0 when there is none.
func (r *recorder) old() uint64 {
	r.mu.Lock()
	defer r.mu.Unlock()
	seq := uint64(0)
	for _, m := range r.marks {
		if time.Since(m.at) > purgeable {
			seq = m.seq
		}
	}
	return seq
}

// caughtUp says whether all of the stream is recorded.
func (r *recorder) caughtUp(ctx context.Context) bool {
	ask, cancel := context.WithTimeout(ctx, 2*time.Second)
	defer cancel()
	s, err := r.js.Stream(ask, r.stream)
	return err == nil && s.CachedInfo().State.LastSeq == r.last.Load()
}
