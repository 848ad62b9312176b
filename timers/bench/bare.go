package bench

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"
)

// bareRedis is a redis-server of its own with the shipped redis.conf: what
// the two contestants that use nothing but Redis have in common.
type bareRedis struct {
	servers *servers
	proc    *process
	rdb     *redis.Client
	payload string
}

func newBareRedis(ctx context.Context, o Options) (b bareRedis, err error) {
	b.payload = string(payloadOf(o.Payload))
	if b.servers, err = newServers(o.dir()); err != nil {
		return b, err
	}
	var directives []string
	if o.Fresh != nil {
		directives = o.Fresh.RedisSet
	}
	if b.proc, b.rdb, err = b.servers.redis(ctx, o.Programs, directives); err != nil {
		err = errors.Join(err, b.servers.close())
	}
	return b, err
}

func (b *bareRedis) settle(ctx context.Context, sets int) error {
	return settleRedis(ctx, b.rdb, sets)
}

func (b *bareRedis) cpu() usage { return processTimes(map[string]*process{"redis": b.proc}) }

func (b *bareRedis) sameClock() bool { return true }

func (b *bareRedis) readClock(context.Context) (*reading, error) { return nil, nil }

func (b *bareRedis) forget(context.Context, []span) error { return nil }

func (b *bareRedis) close() error {
	_ = b.rdb.Close() // nothing of it is under way
	return b.servers.close()
}

// eventOnly relies on Redis to expire keys by itself and say so: no nudge, no
// second look, no payload.
type eventOnly struct{ bareRedis }

func (e *eventOnly) set(ctx context.Context, _, n int, due int64) error {
	return e.setBatch(ctx, n, []int64{due})
}

func (e *eventOnly) setBatch(ctx context.Context, first int, due []int64) error {
	_, err := e.rdb.Pipelined(ctx, func(p redis.Pipeliner) error {
		for i, d := range due {
			p.Do(ctx, "SET", timerID(first+i), "", "PXAT", d)
		}
		return nil
	})
	return err
}

func (e *eventOnly) listen(fired func(n int, at time.Time, early bool)) (stop func() error, err error) {
	ctx, cancel := context.WithTimeout(context.Background(), answerWithin)
	defer cancel()
	sub := e.rdb.Subscribe(ctx, "__keyevent@0__:expired")
	if _, err := sub.Receive(ctx); err != nil {
		return nil, errors.Join(fmt.Errorf("subscribe to expired events: %w", err), sub.Close())
	}
	var wg sync.WaitGroup
	wg.Go(func() {
		for {
			m, err := sub.ReceiveMessage(context.Background())
			if err != nil {
				return // closed
			}
			fired(timerNumber(m.Payload), time.Now(), false)
		}
	})
	return func() error {
		err := sub.Close()
		wg.Wait()
		return err
	}, nil
}

// poller keeps timers in a sorted set and takes what is due every second.
type poller struct{ bareRedis }

const (
	pollKey   = "timers"
	pollEvery = time.Second
	pollBatch = 1_000
)

func (p *poller) member(n int) string { return timerID(n) + p.payload }

func (p *poller) set(ctx context.Context, _, n int, due int64) error {
	return p.setBatch(ctx, n, []int64{due})
}

func (p *poller) setBatch(ctx context.Context, first int, due []int64) error {
	members := make([]redis.Z, len(due))
	for i, d := range due {
		members[i] = redis.Z{Score: float64(d), Member: p.member(first + i)}
	}
	return p.rdb.ZAdd(ctx, pollKey, members...).Err()
}

func (p *poller) listen(fired func(n int, at time.Time, early bool)) (stop func() error, err error) {
	ctx, cancel := context.WithCancel(context.Background())
	var failed error
	var wg sync.WaitGroup
	wg.Go(func() {
		tick := time.NewTicker(pollEvery)
		defer tick.Stop()
		for {
			select {
			case <-ctx.Done():
				return
			case <-tick.C:
			}
			if failed = p.take(ctx, fired); failed != nil {
				return
			}
		}
	})
	return func() error {
		cancel()
		wg.Wait()
		if errors.Is(failed, context.Canceled) {
			return nil
		}
		return failed
	}, nil
}

// take delivers all that is due. A timer counts as delivered once it has been
// removed, which is when this poller alone has it.
func (p *poller) take(ctx context.Context, fired func(n int, at time.Time, early bool)) error {
	for {
		members, err := p.rdb.ZRangeByScore(ctx, pollKey, &redis.ZRangeBy{
			Min: "-inf", Max: strconv.FormatInt(time.Now().UnixMilli(), 10), Count: pollBatch,
		}).Result()
		if err != nil || len(members) == 0 {
			return err
		}
		args := make([]any, len(members))
		for i, m := range members {
			args[i] = m
		}
		if err := p.rdb.ZRem(ctx, pollKey, args...).Err(); err != nil {
			return err
		}
		now := time.Now()
		for _, m := range members {
			fired(timerNumber(m[:min(idSize, len(m))]), now, false)
		}
	}
}

// number reads a decimal number at the start of a line of INFO, 0 otherwise.
func number(s string) float64 {
	v, err := strconv.ParseFloat(strings.TrimSpace(s), 64)
	if err != nil {
		return 0
	}
	return v
}
