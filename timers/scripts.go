package timers

import (
	"context"
	_ "embed"
	"fmt"
	"time"

	"github.com/redis/go-redis/v9"
)

// One file per decision; each says what it takes, gives and promises.
var (
	//go:embed lua/prelude.lua
	luaPrelude string
	//go:embed lua/walk.lua
	luaWalk string
	//go:embed lua/set.lua
	luaSet string
	//go:embed lua/cancel.lua
	luaCancel string
	//go:embed lua/claim.lua
	luaClaim string
	//go:embed lua/ack.lua
	luaAck string
	//go:embed lua/release.lua
	luaRelease string
	//go:embed lua/bury.lua
	luaBury string
	//go:embed lua/retry.lua
	luaRetry string
	//go:embed lua/due.lua
	luaDue string
	//go:embed lua/list.lua
	luaList string
	//go:embed lua/status.lua
	luaStatus string
	//go:embed lua/topics.lua
	luaTopics string
	//go:embed lua/probe.lua
	luaProbe string
	//go:embed lua/patrol.lua
	luaPatrol string
	//go:embed lua/crew.lua
	luaCrew string
	//go:embed lua/rescue.lua
	luaRescue string
	//go:embed lua/strays.lua
	luaStrays string
	//go:embed lua/late.lua
	luaLate string

	scriptSet     = newScript("set", luaPrelude+luaSet)
	scriptCancel  = newScript("cancel", luaPrelude+luaCancel)
	scriptClaim   = newScript("claim", luaPrelude+luaClaim)
	scriptAck     = newScript("ack", luaPrelude+luaAck)
	scriptRelease = newScript("release", luaPrelude+luaRelease)
	scriptBury    = newScript("bury", luaPrelude+luaBury)
	scriptRetry   = newScript("retry", luaPrelude+luaRetry)
	scriptDue     = newScript("due", luaPrelude+luaDue)
	scriptList    = newScript("list", luaPrelude+luaList)
	scriptStatus  = newScript("status", luaPrelude+luaStatus)
	scriptTopics  = newScript("topics", luaTopics)
	scriptPatrol  = newScript("patrol", luaPrelude+luaWalk+luaPatrol)
	scriptCrew    = newScript("crew", luaCrew)
	scriptRescue  = newScript("rescue", luaPrelude+luaRescue)
	scriptProbe   = newScript("probe", luaPrelude+luaProbe)

	// Of doctor alone, whose store is not observed.
	scriptStrays = &script{redis.NewScript(luaPrelude + luaWalk + luaStrays), "strays"}
	scriptLate   = &script{redis.NewScript(luaPrelude + luaLate), "late"}
)

// script is one of them, with the name of its file.
type script struct {
	*redis.Script
	name string
}

// scripts are all of them: newScript adds each.
var scripts []*script

func newScript(name, text string) *script {
	s := &script{redis.NewScript(text), name}
	scripts = append(scripts, s)
	return s
}

// Calls are the names under which [Store.Observe] tells of calls: the scripts,
// and get, which is none.
func Calls() []string {
	names := []string{callGet}
	for _, s := range scripts {
		names = append(names, s.name)
	}
	return names
}

const callGet = "get"

// Observe has the store tell of each call that it makes of Redis, one of
// [Calls], how long the answer took and how it failed, if it did. observe is
// called by whoever called the store, also at the same time, and must not block.
// It must come before [Store.Open] (ADR 32).
func (s *Store) Observe(observe func(call string, took time.Duration, err error)) {
	s.observe = observe
}

// observed tells of a call that began at the given time. A script that is not
// known to the server yet counts with both of its tries.
func (s *Store) observed(call string, began time.Time, err error) {
	if s.observe != nil {
		s.observe(call, time.Since(began), err)
	}
}

// run runs the script by its hash, and by its text where the server does not
// know it. NOSCRIPT says that it did not run, so this is no repetition.
func (s *Store) run(ctx context.Context, script *script, keys []string, args []any) *redis.Cmd {
	began := time.Now()
	cmd := script.EvalSha(ctx, s.rdb, keys, args...)
	if err := cmd.Err(); err != nil && replyIs(err, "NOSCRIPT") {
		cmd = script.Eval(ctx, s.rdb, keys, args...)
	}
	s.observed(script.name, began, cmd.Err())
	return cmd
}

// runKept is run, followed on the same connection by WAIT where replicas are
// asked for (https://redis.io/docs/latest/commands/wait/): it counts those that
// have what this connection has written. With too few the reply is there all
// the same, and short says so. What is observed includes the wait.
func (s *Store) runKept(ctx context.Context, script *script, keys []string, args []any) (cmd *redis.Cmd, short error) {
	if s.replicas == 0 {
		return s.run(ctx, script, keys, args), nil
	}
	began := time.Now()
	var wait *redis.Cmd
	// WAIT waits for its whole time also behind a script that Redis has no text
	// of, so the second try has what is left; 0 would be without an end.
	left := func() int64 { return max(1, (s.within - time.Since(began)).Milliseconds()) }
	send := func(run func(context.Context, redis.Scripter, []string, ...any) *redis.Cmd) {
		pipe := s.rdb.Pipeline()
		cmd = run(ctx, pipe, keys, args...)
		wait = pipe.Do(ctx, "WAIT", s.replicas, left())
		if _, err := pipe.Exec(ctx); err != nil && cmd.Err() == nil && wait.Err() == nil {
			cmd.SetErr(err)
		}
	}
	send(script.EvalSha)
	if err := cmd.Err(); err != nil && replyIs(err, "NOSCRIPT") {
		send(script.Eval)
	}
	s.observed(script.name, began, cmd.Err())
	if cmd.Err() != nil {
		return cmd, nil
	}
	switch have, err := wait.Int(); {
	case err != nil:
		return cmd, fmt.Errorf("%w (WAIT: %w)", ErrReplicas, err)
	case have < s.replicas:
		return cmd, fmt.Errorf("%w: %d of %d have it after %s", ErrReplicas, have, s.replicas, s.within)
	}
	return cmd, nil
}
