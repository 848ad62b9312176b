package doctor

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/lapse-timers/lapse/timers"
	"github.com/lapse-timers/lapse/timers/wire"
)

// rights are the commands that Lapse's Redis user needs, as README.md has them,
// without those that it can do without: config|get and config|set. What a script
// calls is checked against them as well.
var rights = []string{
	"hello", "ping", "info", "multi", "exec", "eval", "evalsha", "time",
	"get", "set", "exists", "pttl", "scan", "unlink", "hget", "hgetall", "hmget", "hset", "hsetnx", "hdel",
	"zadd", "zrem", "zscore", "zmscore", "zscan", "zcard", "zcount", "zrange", "zrangebyscore",
	"subscribe", "publish",
}

// checkRights tries each command, on keys of its own that are gone at once: what
// counts is what Redis does. Asking instead (ACL DRYRUN) is a right of its own,
// which Lapse's user does not have.
func (e *exam) checkRights(ctx context.Context) {
	r := &e.redis
	ask, cancel := context.WithTimeout(ctx, 2*wait)
	defer cancel()
	if r.user, _ = r.rdb.Do(ask, "ACL", "WHOAMI").Text(); r.user == "" { // also a right of its own
		if r.user = r.opt.Username; r.user == "" {
			r.user = "default"
		}
	}
	refused := map[string]bool{}
	var broken error
	note := func(command string, err error) {
		switch {
		case err == nil, errors.Is(err, redis.Nil):
		case timers.MissesRight(err):
			refused[refusedOf(command, err)] = true
		case !timers.Answered(err):
			broken = err
		}
	}
	e.tryRights(ask, note)
	if broken != nil {
		e.unknown("redis", "redis-rights", "it could not be tried out: "+broken.Error())
		return
	}
	if e.cfg.MinReplicas > 0 {
		note("wait", r.rdb.Do(ask, "WAIT", 0, 1).Err())
	}
	notices := refused["publish"] || refused["channel"] // that of subscribe has a check of its own
	remedy := lines(e.redis.cli+" ACL SETUSER "+quoted(r.user)+" "+e.allRights(refused["keys"], refused["channel"]), "# for good: the same line in redis.conf or the ACL file, or ACL SAVE")
	delete(refused, "publish")
	delete(refused, "channel")
	switch {
	case len(refused) > 0:
		var list []string
		for name := range refused {
			list = append(list, name)
		}
		slices.Sort(list)
		e.found(wire.Finding{Check: "redis-rights", Part: "redis", Found: fmt.Sprintf("user %s is refused: %s", r.user, strings.Join(list, ", ")),
			Wanted: "every command that Lapse uses, on the keys " + e.cfg.Prefix + ":*", Why: "Lapse does not start, or timers are not set or fired", Remedy: remedy}, nil)
	case notices:
		e.found(wire.Finding{Check: "redis-rights", Part: "redis", Status: wire.FindingWarn, Found: fmt.Sprintf("user %s may not publish on %s", r.user, r.channel()),
			Wanted: "+publish on that channel", Why: "with several instances a timer that is the next one due may be late by half of LAPSE_GRACE", Remedy: remedy}, nil)
	default:
		e.ok("redis", "redis-rights", "user %s may do all of it", r.user)
	}
}

// refusedOf names what was refused: the command, its keys, or its channel.
func refusedOf(command string, err error) string {
	switch msg := err.Error(); {
	case strings.Contains(msg, "channel"):
		return "channel"
	case strings.Contains(msg, " key"):
		return "keys"
	}
	return command
}

// allRights are the words for ACL SETUSER. They only add; the patterns only
// where they are missing, since Redis refuses them to a user who has all.
func (e *exam) allRights(keys, channel bool) string {
	var words []string
	if keys {
		words = append(words, quoted("~"+e.cfg.Prefix+":*"))
	}
	if channel {
		words = append(words, quoted("&"+e.redis.channel()))
	}
	for _, c := range rights {
		words = append(words, "+"+c)
	}
	words = append(words, quoted("+config|get"))
	if e.redis.opt.DB != 0 {
		words = append(words, "+select")
	}
	if e.cfg.MinReplicas > 0 {
		words = append(words, "+wait")
	}
	return strings.Join(words, " ")
}

func (e *exam) tryRights(ctx context.Context, note func(command string, err error)) {
	rdb, keys := e.redis.rdb, e.redis.store.Keys()
	random := make([]byte, 8)
	rand.Read(random) //nolint:errcheck // documented never to fail
	id := hex.EncodeToString(random)
	last := keys.Partitions() - 1
	str, hash, set := keys.Probe(last, id+"1"), keys.Probe(last, id+"2"), keys.Probe(last, id+"3")

	note("unlink", rdb.Unlink(ctx, str, hash, set).Err())
	_, err := rdb.TxPipelined(ctx, func(p redis.Pipeliner) error { p.Ping(ctx); return nil })
	note("multi", err)
	// What follows writes, and must be able to remove it again.
	writes := true
	for _, step := range []struct {
		command string
		args    []any
		write   bool
	}{
		{"hello", nil, false}, {"info", []any{"server"}, false}, {"time", nil, false},
		{"eval", []any{"return 1", 0}, false}, {"evalsha", []any{strings.Repeat("0", 40), 0}, false},
		{"get", []any{str}, false}, {"exists", []any{keys.Members(), keys.Meta(), keys.Due(0)}, false}, {"pttl", []any{keys.Alive(id)}, false},
		{"scan", []any{0, "MATCH", str, "COUNT", 1}, false},
		{"hgetall", []any{keys.Meta()}, false}, {"zcard", []any{keys.Members()}, false}, {"publish", []any{e.redis.channel(), str}, false},
		{"set", []any{str, "", "PX", 1000}, true},
		{"hset", []any{hash, "k", "1"}, true}, {"hsetnx", []any{hash, "k", "1"}, true}, {"hget", []any{hash, "k"}, false}, {"hmget", []any{hash, "k"}, false},
		{"zadd", []any{set, 1, "m"}, true}, {"zscore", []any{set, "m"}, false}, {"zmscore", []any{set, "m"}, false}, {"zscan", []any{set, 0}, false},
		{"zcount", []any{set, 0, 1}, false}, {"zrange", []any{set, 0, 0}, false}, {"zrangebyscore", []any{set, 0, 1}, false},
		{"hdel", []any{hash, "k"}, true}, {"zrem", []any{set, "m"}, true}, {"unlink", []any{str, hash, set}, true},
	} {
		if step.write && !writes {
			continue
		}
		err := rdb.Do(ctx, append([]any{step.command}, step.args...)...).Err()
		note(step.command, err)
		if step.command == "publish" {
			writes = rdb.Unlink(ctx, str, hash, set).Err() == nil
		}
	}
}

// subscribe gives a confirmed subscription to expired events, or nil, and notes
// which.
func (e *exam) subscribe(ctx context.Context) *redis.PubSub {
	r := &e.redis
	ask, cancel := context.WithTimeout(ctx, wait)
	defer cancel()
	sub := r.rdb.Subscribe(ask)
	err := sub.Subscribe(ask, r.channel())
	if err == nil {
		_, err = sub.ReceiveTimeout(ask, wait)
	}
	switch {
	case err == nil:
		e.ok("redis", "redis-channel", r.channel())
		return sub
	case timers.MissesRight(err):
		words := "+subscribe"
		if refusedOf("subscribe", err) == "channel" {
			words += " " + quoted("&"+r.channel())
		}
		e.found(wire.Finding{Check: "redis-channel", Part: "redis", Found: fmt.Sprintf("user %s may not subscribe to %s", r.user, r.channel()), Wanted: "the right to that channel",
			Why:    "no expired event is heard; due timers are claimed without, late by LAPSE_GRACE",
			Remedy: lines(fmt.Sprintf("%s ACL SETUSER %s %s", r.cli, quoted(r.user), words), "# for good: the same words in redis.conf or the ACL file, or ACL SAVE")}, nil)
	default:
		e.unknown("redis", "redis-channel", "subscribing failed: "+err.Error())
	}
	_ = sub.Close() // err says more
	return nil
}

// pause waits, or less when ctx ends.
func pause(ctx context.Context, d time.Duration) {
	select {
	case <-ctx.Done():
	case <-time.After(d):
	}
}
