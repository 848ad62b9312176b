package timers

import (
	"context"
	"fmt"
	"time"
)

// Mate is another instance on the same keys.
type Mate struct {
	Instance string
	Life     time.Duration // what is left, unless it signs again; negative: its liveness key is gone
	Fires    bool          // it says that it can deliver
}

// What an instance says of itself, in its liveness key.
const (
	saysFires = "1"
	saysWaits = "0"
)

// Sign says that the instance lives for the given time, in whole milliseconds,
// and whether it fires timers. It gives the other instances, and whether Redis
// still had the last sign of this one.
func (s *Store) Sign(ctx context.Context, instance string, life time.Duration, fires bool) (mates []Mate, held bool, err error) {
	says := saysWaits
	if fires {
		says = saysFires
	}
	out, err := s.run(ctx, scriptCrew, []string{s.keys.Members(), s.keys.Alive(instance)},
		[]any{instance, life.Milliseconds(), says, s.keys.Alive("")}).Slice()
	if err != nil {
		return nil, false, writeError(err)
	}
	if len(out) == 0 {
		return nil, false, fmt.Errorf("%w: sign answered nothing", ErrUnconfirmed)
	}
	for v := out[1:]; len(v) >= 3; v = v[3:] {
		mates = append(mates, Mate{Instance: text(v[0]), Life: time.Duration(integer(v[1])) * time.Millisecond, Fires: text(v[2]) == saysFires})
	}
	return mates, integer(out[0]) == 1, nil
}

// rescuePage is how many members of the tried set one step looks at.
const rescuePage = 500

// Rescue gives back what the instance has claimed in partition p, to be
// claimed again at once, and says how many. The cost grows with the timers that
// are being fired, not with those that wait. Safe to repeat.
func (s *Store) Rescue(ctx context.Context, p int, instance string) (int, error) {
	total, cursor := 0, uint64(0)
	for {
		// A scan of a set gives what is there all the time, whatever comes and goes.
		page, next, err := s.rdb.ZScan(ctx, s.keys.Tried(p), cursor, "", rescuePage).Result()
		if err != nil {
			return total, fmt.Errorf("%w: %w", ErrUnavailable, err)
		}
		for len(page) > 0 {
			n := min(len(page), 2*MaxBatch)
			keys, args := []string{s.keys.Due(p)}, []any{instance}
			for i := 0; i < n; i += 2 {
				keys = append(keys, s.keys.ShadowPrefix(p)+page[i])
				args = append(args, page[i])
			}
			rescued, err := s.run(ctx, scriptRescue, keys, args).Int()
			if err != nil {
				return total, writeError(err)
			}
			total += rescued
			page = page[n:]
		}
		if cursor = next; cursor == 0 {
			return total, nil
		}
	}
}

// Forget strikes an instance off the members, once nothing of it is left.
func (s *Store) Forget(ctx context.Context, instance string) error {
	return writeError(s.rdb.ZRem(ctx, s.keys.Members(), instance).Err())
}

// Leave gives back what the instance has claimed and not settled, and ends its
// membership and its life.
func (s *Store) Leave(ctx context.Context, instance string) error {
	for p := range s.keys.Partitions() {
		if _, err := s.Rescue(ctx, p, instance); err != nil {
			return err
		}
	}
	if err := s.Forget(ctx, instance); err != nil {
		return err
	}
	return writeError(s.rdb.Unlink(ctx, s.keys.Alive(instance)).Err())
}

// Tell sends a notice to the listeners of all instances, over the channel of the
// expired events of database db. It may be lost.
func (s *Store) Tell(ctx context.Context, db int, n Notice) error {
	return s.rdb.Publish(ctx, ExpiredChannel(db), s.keys.Notice(n)).Err()
}

// Uptime is how long this Redis has been running; 0 when it does not say.
func (s *Store) Uptime(ctx context.Context) time.Duration {
	info, err := s.rdb.InfoMap(ctx, "server").Result()
	if err != nil {
		return 0
	}
	return time.Duration(integer(info["Server"]["uptime_in_seconds"])) * time.Second
}
