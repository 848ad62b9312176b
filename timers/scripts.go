package timers

import (
	"context"
	_ "embed"
	"fmt"

	"github.com/redis/go-redis/v9"
)

// One file per decision; each says what it takes, gives and promises.
var (
	//go:embed lua/prelude.lua
	luaPrelude string
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
	//go:embed lua/probe.lua
	luaProbe string
	//go:embed lua/patrol.lua
	luaPatrol string
	//go:embed lua/crew.lua
	luaCrew string
	//go:embed lua/rescue.lua
	luaRescue string

	scriptSet     = redis.NewScript(luaPrelude + luaSet)
	scriptCancel  = redis.NewScript(luaPrelude + luaCancel)
	scriptClaim   = redis.NewScript(luaPrelude + luaClaim)
	scriptAck     = redis.NewScript(luaPrelude + luaAck)
	scriptRelease = redis.NewScript(luaPrelude + luaRelease)
	scriptBury    = redis.NewScript(luaPrelude + luaBury)
	scriptRetry   = redis.NewScript(luaPrelude + luaRetry)
	scriptDue     = redis.NewScript(luaPrelude + luaDue)
	scriptList    = redis.NewScript(luaPrelude + luaList)
	scriptStatus  = redis.NewScript(luaPrelude + luaStatus)
	scriptPatrol  = redis.NewScript(luaPatrol)
	scriptCrew    = redis.NewScript(luaCrew)
	scriptRescue  = redis.NewScript(luaPrelude + luaRescue)
	scriptProbe   = redis.NewScript(luaPrelude + luaProbe)
)

// run runs the script by its hash, and by its text where the server does not
// know it. NOSCRIPT says that it did not run, so this is no repetition.
func (s *Store) run(ctx context.Context, script *redis.Script, keys []string, args []any) *redis.Cmd {
	cmd := script.EvalSha(ctx, s.rdb, keys, args...)
	if err := cmd.Err(); err != nil && replyIs(err, "NOSCRIPT") {
		cmd = script.Eval(ctx, s.rdb, keys, args...)
	}
	return cmd
}

// runKept is run, followed on the same connection by WAIT where replicas are
// asked for (https://redis.io/docs/latest/commands/wait/): it counts those that
// have what this connection has written. With too few the reply is there all
// the same, and short says so.
func (s *Store) runKept(ctx context.Context, script *redis.Script, keys []string, args []any) (cmd *redis.Cmd, short error) {
	if s.replicas == 0 {
		return s.run(ctx, script, keys, args), nil
	}
	var wait *redis.Cmd
	send := func(run func(context.Context, redis.Scripter, []string, ...any) *redis.Cmd) {
		pipe := s.rdb.Pipeline()
		cmd = run(ctx, pipe, keys, args...)
		wait = pipe.Do(ctx, "WAIT", s.replicas, s.within.Milliseconds())
		if _, err := pipe.Exec(ctx); err != nil && cmd.Err() == nil && wait.Err() == nil {
			cmd.SetErr(err)
		}
	}
	send(script.EvalSha)
	if err := cmd.Err(); err != nil && replyIs(err, "NOSCRIPT") {
		send(script.Eval)
	}
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
