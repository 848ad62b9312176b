package timerstest

import (
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/lapse-timers/lapse/timers"
)

// TestViolationsAreFound breaks sound records in one way at a time.
func TestViolationsAreFound(t *testing.T) {
	rdb := Redis(t).Client()
	ctx := t.Context()
	const prefix = "a.b"
	keys, err := timers.NewKeys(prefix, 3)
	if err != nil {
		t.Fatal(err)
	}
	ref := timers.Ref{Topic: "orders.close", ID: "order:{42} *☃"}
	p := keys.Partition(ref)
	sound := func() {
		t.Helper()
		due := time.Now().Add(time.Hour)
		_, err := rdb.Pipelined(ctx, func(pipe redis.Pipeliner) error {
			pipe.FlushDB(ctx)
			pipe.Set(ctx, "foreign", 1, 0)
			pipe.Set(ctx, "a.bc:{0}:x", 1, 0)
			pipe.HSet(ctx, keys.Meta(), "version", 1)
			pipe.Set(ctx, keys.Rev(p), 1, 0)
			pipe.Set(ctx, keys.EventProbe("i"), "", time.Hour)
			pipe.Set(ctx, keys.Trigger(ref), "", time.Hour)
			pipe.HSet(ctx, keys.Shadow(ref), "p", "", "d", due.UnixMilli())
			pipe.ZAdd(ctx, keys.Due(p), redis.Z{Score: float64(due.UnixMilli()), Member: ref.Member()})
			pipe.ZAdd(ctx, keys.Tried(p), redis.Z{Score: 1, Member: ref.Member()})
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	claimed := func(ago time.Duration) func() error {
		return func() error {
			rdb.HSet(ctx, keys.Shadow(ref), "k", "token")
			return rdb.ZAdd(ctx, keys.Due(p), redis.Z{Score: float64(time.Now().Add(-ago).UnixMilli()), Member: ref.Member()}).Err()
		}
	}
	// bury makes the sound timer a sound dead one.
	bury := func() {
		due := rdb.ZScore(ctx, keys.Due(p), ref.Member()).Val()
		rdb.Del(ctx, keys.Trigger(ref), keys.Due(p), keys.Tried(p))
		rdb.HSet(ctx, keys.Shadow(ref), "f", "too large")
		rdb.ZAdd(ctx, keys.Dead(p), redis.Z{Score: due, Member: ref.Member()})
	}
	dead := func(damage func() error) func() error {
		return func() error { bury(); return damage() }
	}
	also := func(key string) func() error {
		return func() error {
			return rdb.ZAdd(ctx, key, redis.Z{Score: float64(time.Now().UnixMilli()), Member: ref.Member()}).Err()
		}
	}
	for _, tc := range []struct {
		name   string
		damage func() error
		want   string // part of the only line; "" for none
	}{
		{"sound", func() error { return nil }, ""},
		{"trigger expired", func() error { return rdb.Del(ctx, keys.Trigger(ref)).Err() }, ""},
		{"claimed", claimed(-time.Second), ""},
		{"claim just lapsed", claimed(time.Second), ""},
		{"claim lapsed", claimed(10 * time.Second), "claim that lapsed 10"},
		{"no TTL", func() error { return rdb.Persist(ctx, keys.Trigger(ref)).Err() }, "without a TTL"},
		{"trigger alone", func() error { return rdb.Del(ctx, keys.Due(p), keys.Shadow(ref), keys.Tried(p)).Err() }, "trigger key without a member"},
		{"shadow alone", func() error { return rdb.Del(ctx, keys.Due(p), keys.Trigger(ref)).Err() }, "shadow without a member"},
		{"shadow gone", func() error { return rdb.Del(ctx, keys.Shadow(ref), keys.Tried(p)).Err() }, "member of due without a shadow"},
		{"tried alone", func() error { return rdb.Del(ctx, keys.Due(p), keys.Shadow(ref), keys.Trigger(ref)).Err() }, "member of tried without"},
		{"shadow expires", func() error { return rdb.Expire(ctx, keys.Shadow(ref), time.Hour).Err() }, "shadow with a TTL"},
		{"wrong type", func() error { return rdb.Set(ctx, keys.Shadow(ref), 1, 0).Err() }, "shadow that is a string"},
		{"rev of a wrong type", func() error { rdb.Del(ctx, keys.Rev(p)); return rdb.SAdd(ctx, keys.Rev(p), 1).Err() }, "a set, want a string"},
		{"dead", dead(func() error { return nil }), ""},
		{"dead without a member", dead(func() error { return rdb.Del(ctx, keys.Dead(p)).Err() }), "dead shadow without a member of dead"},
		{"dead at another score", dead(also(keys.Dead(p))), "score is not its due time"},
		{"dead and due", dead(also(keys.Due(p))), "dead shadow with a member of due"},
		{"dead and tried", dead(also(keys.Tried(p))), "dead shadow with a member of tried"},
		{"dead and claimed", dead(func() error { return rdb.HSet(ctx, keys.Shadow(ref), "k", "token").Err() }), "dead shadow that is claimed"},
		{"dead with a trigger", dead(func() error { return rdb.Set(ctx, keys.Trigger(ref), "", time.Hour).Err() }), "trigger key without a member"},
		{"dead member alone", dead(func() error { return rdb.Del(ctx, keys.Shadow(ref)).Err() }), "member of dead without a shadow"},
		{"not dead any more", also(keys.Dead(p)), "member of dead that is not dead"},
		{"unknown in the partition", func() error { return rdb.Set(ctx, strings.TrimSuffix(keys.Due(p), "due")+"dues", 1, 0).Err() }, "unknown key"},
		{"event probe that stays", func() error { return rdb.Persist(ctx, keys.EventProbe("i")).Err() }, "event probe without a TTL"},
		{"unknown beside it", func() error { return rdb.Set(ctx, prefix+":metal", 1, 0).Err() }, "unknown key"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			sound()
			if err := tc.damage(); err != nil {
				t.Fatal(err)
			}
			got, err := violations(ctx, rdb, prefix)
			if err != nil {
				t.Fatal(err)
			}
			if tc.want == "" && len(got) > 0 || tc.want != "" && (len(got) != 1 || !strings.Contains(got[0], tc.want)) {
				t.Errorf("got %q, want %q", got, tc.want)
			}
		})
	}
	sound()
	CheckInvariants(t, rdb, prefix)
}
