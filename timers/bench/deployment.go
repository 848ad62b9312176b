package bench

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/redis/go-redis/v9"

	"github.com/lapse-timers/lapse/timers/client"
	"github.com/lapse-timers/lapse/timers/wire"
)

// answerWithin is how long a caller waits for the answer to one request.
const answerWithin = 10 * time.Second

// deployment is Lapse: somebody's, or one on servers of the bench's own.
type deployment struct {
	prefix  wire.Prefix
	below   string // what the topics of this run begin with
	topics  []string
	payload []byte

	conns    []*nats.Conn // of the callers
	receiver *nats.Conn
	client   *client.Client
	redis    *redis.Client // nil when it is not known

	// The rest is only known of servers of the bench's own.
	servers   *servers
	natsURL   string
	settings  []string
	programs  Programs
	procs     map[string]*process // redis, nats
	instances []*process
}

// newDeployment connects to the deployment that o names.
func newDeployment(ctx context.Context, o Options, run string) (_ *deployment, err error) {
	d := &deployment{prefix: wire.Prefix(o.Prefix), payload: payloadOf(o.Payload), programs: o.Programs}
	if d.prefix == "" {
		d.prefix = wire.DefaultPrefix
	}
	// Servers of the bench's own have nobody else's timers.
	d.below = "bench." + run + "."
	if o.Fresh != nil {
		d.below = ""
	}
	for i := range o.Topics {
		d.topics = append(d.topics, fmt.Sprintf("%st%d", d.below, i))
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, d.close())
		}
	}()
	dial := o.Dial
	if o.Fresh != nil {
		if err := d.start(ctx, o); err != nil {
			return nil, err
		}
		dial = func(context.Context) (*nats.Conn, error) { return nats.Connect(d.natsURL, nats.NoReconnect()) }
	} else if o.RedisURL != "" {
		options, err := redis.ParseURL(o.RedisURL)
		if err != nil {
			return nil, errors.New("the URL of --redis cannot be read; want redis://host:port, rediss://… or unix:///path") // the cause may hold a password
		}
		options.MaxRetries, options.ContextTimeoutEnabled = -1, true
		d.redis = redis.NewClient(options)
		if err := d.redis.Ping(ctx).Err(); err != nil {
			return nil, fmt.Errorf("Redis of --redis does not answer: %w", err) //nolint:staticcheck // a name
		}
	}
	for range connections {
		nc, err := dial(ctx)
		if err != nil {
			return nil, err
		}
		d.conns = append(d.conns, nc)
	}
	if d.receiver, err = dial(ctx); err != nil {
		return nil, err
	}
	if d.client, err = client.New(d.conns[0], client.Prefix(string(d.prefix))); err != nil {
		return nil, err
	}
	// One set and one cancel with the real client, which explains what is wrong
	// where nobody answers, or somebody else than Lapse.
	if _, err := d.client.Set(ctx, d.topics[0], d.payload, client.In(2*time.Hour), client.ID("first")); err != nil {
		return nil, err
	}
	if _, err := d.client.Cancel(ctx, d.topics[0], "first"); err != nil {
		return nil, err
	}
	return d, nil
}

// start runs the servers and the instances of the service.
func (d *deployment) start(ctx context.Context, o Options) (err error) {
	if d.servers, err = newServers(o.Fresh.Dir); err != nil {
		return err
	}
	d.settings, d.prefix = o.Fresh.Settings, wire.DefaultPrefix
	d.procs = map[string]*process{}
	if d.procs["redis"], d.redis, err = d.servers.redis(ctx, d.programs, o.Fresh.RedisSet); err != nil {
		return err
	}
	if d.procs["nats"], d.natsURL, err = d.servers.nats(ctx, d.programs); err != nil {
		return err
	}
	for range o.Fresh.Instances {
		if _, err := d.serve(ctx); err != nil {
			return err
		}
	}
	return nil
}

// serve starts one more instance and returns since when it is ready.
func (d *deployment) serve(ctx context.Context) (ready time.Time, err error) {
	p, ready, err := d.servers.lapse(ctx, d.programs, len(d.instances), d.redis.Options().Addr, d.natsURL, d.settings)
	if err == nil {
		d.instances = append(d.instances, p)
	}
	return ready, err
}

func (d *deployment) topic(n int) string { return d.topics[n%len(d.topics)] }

// at writes a due time for Timer-Schedule.
func at(due int64) string { return "@at " + wire.FormatTime(time.UnixMilli(due)) }

// set asks as plainly as every contestant on NATS is asked: the client would
// decode the answer, which no other does.
func (d *deployment) set(_ context.Context, caller, n int, due int64) error {
	m := &nats.Msg{Subject: d.prefix.Set(d.topic(n)), Data: d.payload, Header: nats.Header{
		wire.HeaderID:       {timerID(n)},
		wire.HeaderSchedule: {at(due)},
	}}
	reply, err := d.conns[caller%len(d.conns)].RequestMsg(m, answerWithin)
	if err != nil {
		return fmt.Errorf("set of %s: %w", timerID(n), err)
	}
	if code := reply.Header.Get(wire.HeaderErrorCode); code != "" {
		return fmt.Errorf("set of %s: %w", timerID(n), wire.DecodeError(code, reply.Header.Get(wire.HeaderError), reply.Data))
	}
	if !bytes.HasPrefix(reply.Data, []byte(`{"topic":`)) {
		return fmt.Errorf("set of %s: the answer is not one of Lapse: %.80q", timerID(n), reply.Data)
	}
	return nil
}

func (d *deployment) listen(fired func(n int, at time.Time, early bool)) (stop func() error, err error) {
	sub, err := d.receiver.Subscribe(d.prefix.Fired(d.below+">"), func(m *nats.Msg) {
		now := time.Now()
		// The times in the headers have one format, so they compare as text.
		early := m.Header.Get(wire.HeaderFired) < m.Header.Get(wire.HeaderDue)
		fired(timerNumber(m.Header.Get(wire.HeaderID)), now, early)
	})
	if err != nil {
		return nil, fmt.Errorf("subscribe to fired events: %w", err)
	}
	// What waits here is counted as late, not dropped.
	err = errors.Join(sub.SetPendingLimits(-1, -1), d.receiver.FlushTimeout(answerWithin))
	return func() error {
		if err := sub.Unsubscribe(); err != nil {
			return fmt.Errorf("the subscriber's connection broke while it was measured; figures would be wrong: %w", err)
		}
		return nil
	}, err
}

// settle waits while Redis rewrites its file, where that is known: many sets
// in one go bring it about, and it would share the cores with what comes next.
func (d *deployment) settle(ctx context.Context, sets int) error {
	return settleRedis(ctx, d.redis, sets)
}

func settleRedis(ctx context.Context, rdb *redis.Client, sets int) error {
	pause := breath(sets)
	for range 600 {
		if err := sleep(ctx, pause); err != nil || rdb == nil {
			return err
		}
		pause = time.Second
		info, err := rdb.Info(ctx, "persistence").Result()
		if err != nil || infoValue(info, "aof_rewrite_in_progress") == 0 && infoValue(info, "aof_rewrite_scheduled") == 0 &&
			infoValue(info, "rdb_bgsave_in_progress") == 0 {
			return ctx.Err() // a Redis that tells nothing has had its second
		}
	}
	return errors.New("Redis has been rewriting its file for ten minutes: is its disk full or very slow?") //nolint:staticcheck // a name
}

func (d *deployment) cpu() usage {
	if d.servers == nil {
		return nil
	}
	u := processTimes(d.procs)
	for _, p := range d.instances {
		if t, ok := cpuTime(p.pid()); ok {
			u["service"] += t
		}
	}
	return u
}

// processTimes is the CPU time of the processes, and of this one, which plays
// callers and subscriber.
func processTimes(procs map[string]*process) usage {
	u := usage{}
	for name, p := range procs {
		if t, ok := cpuTime(p.pid()); ok {
			u[name] = t
		}
	}
	if len(u) > 0 {
		u["bench"] = ownTime()
	}
	return u
}

func (d *deployment) sameClock() bool { return d.servers != nil }

func (d *deployment) readClock(ctx context.Context) (*reading, error) {
	r, err := readClock(ctx, func(ctx context.Context) (time.Time, error) {
		s, err := d.client.Status(ctx)
		if err != nil {
			return time.Time{}, err
		}
		return wire.ParseTime(s.Now)
	})
	return &r, err
}

// forget cancels the timers and purges the events of this run from the
// stream. Servers of the bench's own end anyway.
func (d *deployment) forget(ctx context.Context, timers []span) error {
	if d.servers != nil {
		return nil
	}
	var failed atomic.Int64
	numbers := make(chan int)
	var wg sync.WaitGroup
	for caller := range 64 {
		nc := d.conns[caller%len(d.conns)]
		wg.Go(func() {
			for n := range numbers {
				reply, err := nc.Request(d.prefix.Cancel(d.topic(n)), []byte(timerID(n)), answerWithin)
				if err != nil {
					failed.Add(1)
					continue
				}
				switch reply.Header.Get(wire.HeaderErrorCode) {
				case "", "404", "409": // cancelled; not there; being delivered, and gone with that
				default:
					failed.Add(1)
				}
			}
		})
	}
feed:
	for _, s := range timers {
		for n := s.first; n < s.end; n++ {
			select {
			case numbers <- n:
			case <-ctx.Done():
				failed.Add(1)
				break feed
			}
		}
	}
	close(numbers)
	wg.Wait()
	var left error
	if failed.Load() > 0 {
		left = fmt.Errorf("some timers of this run could not be cancelled; find them with: lapse list %s", strings.TrimSuffix(d.below, "."))
	}
	// What was being delivered while it was to be cancelled has its moment.
	if err := sleep(ctx, 500*time.Millisecond); err != nil {
		return errors.Join(left, err)
	}
	return errors.Join(left, d.purge(ctx))
}

func (d *deployment) purge(ctx context.Context) error {
	s, err := d.client.Status(ctx)
	if err != nil || s.Stream == "" {
		return err
	}
	subject := d.prefix.Fired(d.below + ">")
	js, err := jetstream.New(d.conns[0])
	if err == nil {
		var stream jetstream.Stream
		if stream, err = js.Stream(ctx, s.Stream); err == nil {
			err = stream.Purge(ctx, jetstream.WithPurgeSubject(subject))
		}
	}
	if err != nil {
		return fmt.Errorf("the fired events of this run stay in stream %s (%w); purge them with: nats stream purge %s --subject '%s'", s.Stream, err, s.Stream, subject)
	}
	return nil
}

func (d *deployment) close() error {
	for _, nc := range append(d.conns, d.receiver) {
		if nc != nil {
			nc.Close()
		}
	}
	if d.redis != nil {
		_ = d.redis.Close() // nothing of it is under way
	}
	if d.servers != nil {
		return d.servers.close()
	}
	return nil
}

// infoValue reads a number out of what INFO answers, 0 when it is not there.
func infoValue(info, name string) float64 {
	for line := range strings.Lines(info) {
		if value, ok := strings.CutPrefix(line, name+":"); ok {
			return number(value)
		}
	}
	return 0
}
