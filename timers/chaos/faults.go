package chaos

import (
	"context"
	"fmt"
	"time"

	"github.com/nats-io/nats.go/jetstream"
)

// Kind is one way to break the deployment. begin and end are called on the
// goroutine of the test.
type Kind struct {
	Name string
	// Lane is what it breaks: faults of one lane come one after the other, and
	// those of the servers too, but for pairs of one each.
	lane     lane
	min, max time.Duration // how long it holds
	begin    func(*rig, *step)
	end      func(*rig, *step)
}

type lane int

const (
	ofInstance lane = iota
	ofRedis
	ofNATS
)

// Lease is the lease of the instances unless a run asks for another: short
// enough for an instance that is stopped for long to be stopped past it.
const Lease = 3 * time.Second

const retryMax = time.Second // the longest back-off of the instances

// Kinds are all faults. An instance may be any of the three; a proxy is that of
// one instance or all of them.
var Kinds = []Kind{
	{"instance killed", ofInstance, 0, 1500 * time.Millisecond,
		func(r *rig, s *step) { r.salvoNow(s); r.instance(s).lapse.Kill() },
		func(r *rig, s *step) { r.instance(s).lapse.Launch() }},
	{"instance stopped", ofInstance, 100 * time.Millisecond, Lease / 2,
		func(r *rig, s *step) { r.salvoNow(s); r.instance(s).lapse.Pause() },
		func(r *rig, s *step) { r.instance(s).lapse.Resume() }},
	{"instance stopped for long", ofInstance, Lease + Lease/10, Lease * 3 / 2, (*rig).stopForLong, (*rig).goOn},

	{"Redis killed", ofRedis, 0, time.Second,
		(*rig).killRedis,
		func(r *rig, _ *step) { r.redis.Start() }},
	{"Redis stopped", ofRedis, 100 * time.Millisecond, 2 * time.Second,
		func(r *rig, s *step) { r.salvoNow(s); r.redis.Pause() },
		func(r *rig, _ *step) { r.redis.Resume() }},
	{"subscribers killed", ofRedis, 0, 0,
		func(r *rig, _ *step) { r.ask("CLIENT", "KILL", "TYPE", "pubsub") }, nothing},
	{"flags cleared", ofRedis, 0, 0,
		func(r *rig, _ *step) { r.ask("CONFIG", "SET", "notify-keyspace-events", "") }, nothing},
	{"scripts flushed", ofRedis, 0, 0,
		func(r *rig, _ *step) { r.ask("SCRIPT", "FLUSH") }, nothing},
	{"Redis cut", ofRedis, 0, 0,
		func(r *rig, s *step) { r.salvoNow(s); r.proxies(s, ofRedis, (*Proxy).Cut) }, nothing},
	{"Redis stalled", ofRedis, 100 * time.Millisecond, 2 * time.Second,
		func(r *rig, s *step) { r.salvoNow(s); r.proxies(s, ofRedis, (*Proxy).Stall) }, (*rig).pass},
	{"Redis refused", ofRedis, 50 * time.Millisecond, time.Second,
		func(r *rig, s *step) { r.proxies(s, ofRedis, (*Proxy).Refuse) }, (*rig).pass},

	{"NATS killed", ofNATS, 0, time.Second,
		func(r *rig, s *step) { r.salvoNow(s); r.nats.Kill() },
		func(r *rig, _ *step) { r.nats.Start() }},
	{"NATS stopped", ofNATS, 100 * time.Millisecond, 2 * time.Second,
		func(r *rig, s *step) { r.salvoNow(s); r.nats.Pause() },
		func(r *rig, _ *step) { r.nats.Resume() }},
	{"NATS cut", ofNATS, 0, 0,
		func(r *rig, s *step) { r.salvoNow(s); r.proxies(s, ofNATS, (*Proxy).Cut) }, nothing},
	{"NATS stalled", ofNATS, 100 * time.Millisecond, 2 * time.Second,
		func(r *rig, s *step) { r.salvoNow(s); r.proxies(s, ofNATS, (*Proxy).Stall) }, (*rig).pass},
	{"NATS refused", ofNATS, 50 * time.Millisecond, time.Second,
		func(r *rig, s *step) { r.proxies(s, ofNATS, (*Proxy).Refuse) }, (*rig).pass},
	{"slow publishes", ofNATS, 500 * time.Millisecond, 1500 * time.Millisecond,
		func(r *rig, s *step) { r.proxies(s, ofNATS, func(p *Proxy) { p.Slow(s.delay) }) }, (*rig).pass},
	{"stream full", ofNATS, 300 * time.Millisecond, 1500 * time.Millisecond, (*rig).fill, (*rig).makeRoom},
}

func nothing(*rig, *step) {}

// salvoSize is how many timers fall due at the very moment of a fault.
const salvoSize = 100

// salvoNow has timers fall due now, when the step asks for it.
func (r *rig) salvoNow(s *step) {
	if !s.salvo {
		return
	}
	due := time.Now().Add(200 * time.Millisecond)
	r.load.salvo(salvoSize, due, 0)
	until(due.Add(s.after))
}

func (r *rig) instance(s *step) *instance { return r.instances[s.instance] }

// proxies does f to the proxy of one instance, or to all.
func (r *rig) proxies(s *step, of lane, f func(*Proxy)) {
	for i, in := range r.instances {
		if s.all || i == s.instance {
			p := in.toNATS
			if of == ofRedis {
				p = in.toRedis
			}
			f(p)
		}
	}
}

func (r *rig) pass(s *step) {
	open := func(p *Proxy) {
		if err := p.Pass(); err != nil {
			r.t.Fatalf("open the proxy again: %v", err)
		}
	}
	r.proxies(s, ofRedis, open)
	r.proxies(s, ofNATS, open)
}

// stopForLong stops an instance that has claimed timers and given them to NATS
// without hearing back, for longer than [Lease]. All of them are cancelled while
// it stands still, some of them when its lease is over. What it wrote reaches NATS when it stops,
// or only when it goes on.
func (r *rig) stopForLong(s *step) {
	in := r.instance(s)
	due := time.Now().Add(300 * time.Millisecond)
	r.load.salvo(salvoSize, due, s.hold)
	until(due.Add(-5 * time.Millisecond))
	in.toNATS.Stall()
	until(due.Add(20*time.Millisecond + s.after))
	in.lapse.Pause()
	if !s.late {
		if err := in.toNATS.Pass(); err != nil {
			r.t.Fatalf("open the proxy again: %v", err)
		}
	}
}

func (r *rig) goOn(s *step) {
	in := r.instance(s)
	if err := in.toNATS.Pass(); err != nil {
		r.t.Fatalf("open the proxy again: %v", err)
	}
	in.lapse.Resume()
}

// killRedis kills redis-server at a moment when no sync of its file is under
// way. With appendfsync everysec, Redis answers writes that come during one
// before it has written them to the file, and a kill there loses them (ADR 28):
// that is Redis's promise and not Lapse's. A sync begins with the first write of
// a second of the clock. So here is a write, and once the sync of this second
// is over, the rest of the second has none.
func (r *rig) killRedis(s *step) {
	ctx := context.Background()
	for deadline := time.Now().Add(30 * time.Second); ; {
		second := time.Now().Truncate(time.Second)
		const early, late = 300 * time.Millisecond, 900 * time.Millisecond
		if until(second.Add(early)); time.Since(second) > late/2 {
			until(second.Add(time.Second + early))
			second = second.Add(time.Second)
		}
		r.ask("SET", "chaos:sync", "")
		r.ask("DEL", "chaos:sync")
		r.salvoNow(s)
		for time.Since(second) < late {
			info, err := r.rdb.Info(ctx, "persistence").Result()
			if err == nil && hasLine(info, "aof_pending_bio_fsync:0") && time.Since(second) < late {
				r.redis.Kill()
				return
			}
			time.Sleep(2 * time.Millisecond)
		}
		if time.Now().After(deadline) {
			r.t.Errorf("Redis was syncing its file for %v: the disk is too slow to tell its losses from ours", time.Since(deadline.Add(-30*time.Second)))
			r.redis.Kill()
			return
		}
	}
}

// ask sends Redis a command past the proxies.
func (r *rig) ask(command ...any) {
	if err := r.rdb.Do(context.Background(), command...).Err(); err != nil {
		r.t.Errorf("%v: %v", command, err)
	}
}

// fill leaves the stream no room, for as long as it is told to: what comes is
// refused, for the limit stands at what is there.
func (r *rig) fill(*step) {
	r.fullSince = time.Now()
	r.alter(func(c *jetstream.StreamConfig, state jetstream.StreamState) {
		c.Discard, c.MaxMsgs = jetstream.DiscardNew, int64(state.Msgs)
	})
}

// makeRoom raises the limit again, after a purge of what is old when the step
// asks for it.
func (r *rig) makeRoom(s *step) {
	if s.purge {
		if upTo := r.recorder.old(); upTo > 0 {
			r.jetStream(func(ctx context.Context, stream jetstream.Stream) error {
				return stream.Purge(ctx, jetstream.WithPurgeSequence(upTo))
			})
		}
	}
	r.alter(func(c *jetstream.StreamConfig, _ jetstream.StreamState) { c.MaxMsgs = -1 })
	r.ledger.Full(r.fullSince, time.Now())
}

func (r *rig) alter(change func(*jetstream.StreamConfig, jetstream.StreamState)) {
	r.jetStream(func(ctx context.Context, stream jetstream.Stream) error {
		info, err := stream.Info(ctx)
		if err != nil {
			return err
		}
		change(&info.Config, info.State)
		_, err = r.recorder.js.UpdateStream(ctx, info.Config)
		return err
	})
}

// jetStream does f until it succeeds: the server may have been started just now.
func (r *rig) jetStream(f func(context.Context, jetstream.Stream) error) {
	var err error
	for deadline := time.Now().Add(20 * time.Second); time.Now().Before(deadline); time.Sleep(50 * time.Millisecond) {
		ctx, cancel := context.WithTimeout(context.Background(), 2*time.Second)
		var stream jetstream.Stream
		if stream, err = r.recorder.js.Stream(ctx, streamName); err == nil {
			err = f(ctx, stream)
		}
		cancel()
		if err == nil {
			return
		}
	}
	r.t.Errorf("change the stream: %v", err)
}

func (s *step) String() string {
	where := ""
	if s.all {
		where = " of all instances"
	} else {
		where = fmt.Sprintf(" of instance %d", s.instance+1)
	}
	if s.salvo {
		where += ", with a salvo"
	}
	out := s.kinds[0].Name
	for _, k := range s.kinds[1:] {
		out += " and " + k.Name
	}
	return fmt.Sprintf("%s%s, for %v", out, where, s.hold.Round(time.Millisecond))
}
