package timerstest

import (
	"context"
	_ "embed"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/redis/go-redis/v9"

	"github.com/lapse-timers/lapse/timers"
)

//go:embed invariants.lua
var invariantsSource string

var invariantsScript = redis.NewScript(invariantsSource)

const (
	lapsedMillis = 2000 // a claim whose lease ended longer ago should have been taken up again
	mostReported = 50   // per partition
)

// CheckInvariants fails the test when the records under the prefix contradict
// each other:
//
//   - a shadow hash without its member of due, or the other way round; a dead
//     one (with a reason) without its member of dead, or with one of due or tried
//   - a trigger key without its member of due, or without a TTL
//   - a member of tried without its shadow hash
//   - a claim whose lease lapsed more than two seconds ago, on Redis's clock
//   - the key of a probe of the event path that has no TTL
//   - a key of the wrong type, or one that timers/keys.go does not spell
//
// Each partition is looked at in one step, so the check is right while timers
// are being set and fired; only a claim may lapse for good reason while
// nothing runs. It makes Redis expire the trigger keys that are due, which
// sends their events: a test of lost events checks at its end. It blocks Redis
// for about 10 ms per thousand timers.
func CheckInvariants(t testing.TB, rdb redis.UniversalClient, prefix string) {
	t.Helper()
	wrong, err := violations(context.WithoutCancel(t.Context()), rdb, prefix)
	if err != nil {
		t.Errorf("check the invariants of %s: %v", prefix, err)
	}
	for _, w := range wrong {
		t.Errorf("invariant of %s: %s", prefix, w)
	}
}

func violations(ctx context.Context, rdb redis.UniversalClient, prefix string) (wrong []string, err error) {
	keys, err := scan(ctx, rdb, prefix+":*")
	if err != nil {
		return nil, err
	}
	spelled, err := timers.NewKeys(prefix, 1)
	if err != nil {
		return nil, err
	}
	var bases []string // <prefix>:{p}: of every partition
	for _, key := range keys {
		if _, probe := spelled.ParseEventProbe(key); probe {
			ttl, err := rdb.PTTL(ctx, key).Result()
			if err != nil {
				return nil, err
			}
			if ttl == -1 {
				wrong = append(wrong, "event probe without a TTL: "+key)
			}
			continue
		}
		tag, partition := strings.CutPrefix(key, prefix+":{")
		switch end := strings.Index(tag, "}:"); {
		case key == prefix+":meta":
		case strings.HasPrefix(key, prefix+":{crew}:"): // about instances, not timers
		case partition && end > 0:
			bases = append(bases, prefix+":{"+tag[:end]+"}:")
		default:
			wrong = append(wrong, "unknown key: "+key)
		}
	}
	slices.Sort(bases)
	for _, base := range slices.Compact(bases) {
		lines, err := invariantsScript.Run(ctx, rdb, []string{base + "due"}, base, lapsedMillis, mostReported).StringSlice()
		if err != nil {
			return wrong, fmt.Errorf("partition %s: %w", base, err)
		}
		for _, l := range lines {
			wrong = append(wrong, fmt.Sprintf("%+q", l)) // ids may hold anything printable
		}
	}
	return wrong, nil
}

// scan returns the keys that match, of every master.
func scan(ctx context.Context, rdb redis.UniversalClient, pattern string) ([]string, error) {
	var mu sync.Mutex // masters are visited at the same time
	var keys []string
	one := func(ctx context.Context, c redis.Cmdable) error {
		it := c.Scan(ctx, 0, pattern, 1000).Iterator()
		for it.Next(ctx) {
			mu.Lock()
			keys = append(keys, it.Val())
			mu.Unlock()
		}
		return it.Err()
	}
	if cluster, ok := rdb.(*redis.ClusterClient); ok {
		err := cluster.ForEachMaster(ctx, func(ctx context.Context, c *redis.Client) error { return one(ctx, c) })
		return keys, err
	}
	return keys, one(ctx, rdb)
}
