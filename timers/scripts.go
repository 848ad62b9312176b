package timers

import (
	"context"
	_ "embed"

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
	//go:embed lua/due.lua
	luaDue string
	//go:embed lua/list.lua
	luaList string
	//go:embed lua/status.lua
	luaStatus string
	//go:embed lua/probe.lua
	luaProbe string
	//go:embed lua/crew.lua
	luaCrew string
	//go:embed lua/rescue.lua
	luaRescue string

	scriptSet     = redis.NewScript(luaPrelude + luaSet)
	scriptCancel  = redis.NewScript(luaPrelude + luaCancel)
	scriptClaim   = redis.NewScript(luaPrelude + luaClaim)
	scriptAck     = redis.NewScript(luaPrelude + luaAck)
	scriptRelease = redis.NewScript(luaPrelude + luaRelease)
	scriptDue     = redis.NewScript(luaPrelude + luaDue)
	scriptList    = redis.NewScript(luaPrelude + luaList)
	scriptStatus  = redis.NewScript(luaPrelude + luaStatus)
	scriptCrew    = redis.NewScript(luaPrelude + luaCrew)
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
