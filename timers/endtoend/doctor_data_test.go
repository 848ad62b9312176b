package endtoend

import (
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/lapse-timers/lapse/timers/timerstest"
	"github.com/lapse-timers/lapse/timers/wire"
)

// Timers that nobody fires, claims that nobody settled, timers that were given up
// on: the remedies are commands of Lapse.
func TestDoctorOnTimersThatAreLeft(t *testing.T) {
	t.Parallel()
	rs, ns := timerstest.Redis(t), timerstest.NATS(t)
	rdb := rs.Client()
	ago := time.Now().Add(-time.Minute).UnixMilli()
	left := func(id, set string, fields ...any) {
		require.NoError(t, rdb.HSet(t.Context(), "timers:{0}:h:a:"+id, append([]any{"p", "x", "d", ago, "r", 1}, fields...)...).Err())
		require.NoError(t, rdb.ZAdd(t.Context(), "timers:{0}:"+set, redis.Z{Score: float64(ago), Member: "a:" + id}).Err())
	}
	left("it's late", "due")
	left("claimed", "due", "k", "gone.1", "a", 1, "c", ago)
	left("it's dead", "dead", "f", "too large", "a", 1, "c", ago)
	d := deployed(rs.URL(), ns.URL())
	f := named(t, d, "overdue", wire.FindingFail)
	require.Contains(t, f.Found, "2 of 2")
	require.Contains(t, f.Found, "1m0s")
	require.True(t, strings.HasSuffix(f.Remedy, "\nlapse serve"), f.Remedy)
	f = named(t, d, "lapsed-claims", wire.FindingWarn)
	require.Contains(t, f.Found, "1 claims")
	require.Contains(t, f.Found, "instance gone")
	require.True(t, strings.HasSuffix(f.Remedy, "\nlapse serve"), f.Remedy)
	f = named(t, d, "dead", wire.FindingWarn)

	timerstest.LapseOn(t, rs.URL(), ns.URL())
	mended(t, d, "overdue")
	mended(t, d, "lapsed-claims")
	var done []string
	for line := range strings.Lines(f.Remedy) {
		command, ok := strings.CutPrefix(strings.TrimSpace(line), "lapse ")
		if !ok || strings.HasPrefix(command, "cancel") { // or to drop it
			continue
		}
		if strings.HasPrefix(command, "get") {
			command += " --json" // into a pipe it is the payload alone
		}
		run := exec.CommandContext(t.Context(), "sh", "-c", timerstest.LapseBinary(t)+" "+command)
		run.Env = append(slices.DeleteFunc(os.Environ(), func(kv string) bool { return strings.HasPrefix(kv, "LAPSE_") }), "LAPSE_NATS_URL="+ns.URL(), quickExit)
		out, err := run.CombinedOutput()
		require.NoError(t, err, "%s: %s", line, out)
		done = append(done, string(out))
	}
	require.Len(t, done, 2)
	require.Contains(t, done[0], "too large")
	mended(t, d, "dead")
	nothingLeft(t, rdb)
}
