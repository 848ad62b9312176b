package endtoend

import (
	"bufio"
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/lapse-timers/lapse/timers/timerstest"
	"github.com/lapse-timers/lapse/timers/wire"
)

func readme(t *testing.T) string {
	t.Helper()
	b, err := os.ReadFile("../../README.md")
	require.NoError(t, err)
	return string(b)
}

// The table of settings in the README is the one that lapse help prints.
func TestReadmeHasTheSettings(t *testing.T) {
	help, err := exec.Command(timerstest.LapseBinary(t), "help").Output()
	require.NoError(t, err)
	columns := regexp.MustCompile(`\s{2,}`)
	want := map[string]string{}
	for line := range strings.Lines(string(help)) {
		if strings.HasPrefix(line, "LAPSE_") {
			cells := columns.Split(strings.TrimSpace(line), 3)
			if len(cells) == 2 { // no default
				cells = []string{cells[0], "", cells[1]}
			}
			want[cells[0]] = cells[1] + " | " + cells[2]
		}
	}
	require.NotEmpty(t, want)
	got := map[string]string{}
	for line := range strings.Lines(readme(t)) {
		if strings.HasPrefix(line, "| `LAPSE_") {
			const bar = "\x00" // stands for one that is escaped
			cells := strings.Split(strings.Trim(strings.TrimSpace(strings.ReplaceAll(line, `\|`, bar)), "|"), "|")
			require.Len(t, cells, 3, line)
			plain := func(s string) string { return strings.TrimSpace(strings.NewReplacer("`", "", bar, "|").Replace(s)) }
			got[plain(cells[0])] = plain(cells[1]) + " | " + plain(cells[2])
		}
	}
	require.Equal(t, want, got)
}

// The rights in the README are all that is needed, of which the log of Redis
// is the witness, and enough for events.
func TestReadmeRedisUser(t *testing.T) {
	t.Parallel()
	_, rest, ok := strings.Cut(readme(t), "redis-cli ACL SETUSER lapse on ")
	require.True(t, ok)
	rights, _, ok := strings.Cut(rest, "\n\n")
	require.True(t, ok)
	args := []any{"acl", "setuser", "lapse", "on"}
	for _, right := range strings.Fields(strings.NewReplacer("'", "", "\\", "").Replace(rights)) {
		args = append(args, right)
	}
	rs, ns := timerstest.RedisTCP(t, "--notify-keyspace-events", ""), timerstest.NATS(t)
	rdb, nc := rs.Client(), ns.Connect(t)
	require.NoError(t, rdb.Do(t.Context(), args...).Err())
	l := timerstest.LapseOn(t, "redis://lapse:secret@"+rs.Addr(), ns.URL())
	c := newClient(t, nc)
	expired := rdb.Subscribe(t.Context(), "__keyevent@0__:expired")
	defer expired.Close()
	readyz(t, l, 200, "subscription", wire.HealthOK)
	source, _ := sourceOf(t, c, "rights")
	require.Equal(t, "event", source)
	for m, deadline := (*redis.Message)(nil), time.After(soon); m == nil || !strings.HasPrefix(m.Payload, "timers:{crew}:probe:"); {
		select {
		case m = <-expired.Channel():
		case <-deadline:
			t.Fatal("no probe after a silence")
		}
	}
	refused, err := rdb.Do(t.Context(), "acl", "log").Slice()
	require.NoError(t, err)
	require.Empty(t, refused)
	readyz(t, l, 200, "subscription", wire.HealthOK)
	nothingLeft(t, rdb)
}

// The program in the README is as short as it says, compiles, sets a timer and
// handles it.
func TestReadmeProgram(t *testing.T) {
	t.Parallel()
	_, rest, ok := strings.Cut(readme(t), "```go\npackage main\n")
	require.True(t, ok)
	program, _, ok := strings.Cut(rest, "```")
	require.True(t, ok)
	program = "package main\n" + program
	require.LessOrEqual(t, strings.Count(program, "\n"), 15)
	// Only the address is the test's own.
	require.Contains(t, program, "nats.DefaultURL")
	ns := timerstest.NATS(t)
	dir := t.TempDir()
	file, bin := filepath.Join(dir, "main.go"), filepath.Join(dir, "program")
	require.NoError(t, os.WriteFile(file, []byte(strings.ReplaceAll(program, "nats.DefaultURL", strconv.Quote(ns.URL()))), 0o600))
	out, err := exec.Command("go", "build", "-o", bin, file).CombinedOutput()
	require.NoError(t, err, string(out))
	timerstest.LapseOn(t, timerstest.Redis(t).URL(), ns.URL())

	ctx, end := context.WithTimeout(t.Context(), soon)
	defer end()
	run := exec.CommandContext(ctx, bin)
	printed, err := run.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, run.Start())
	fired := false
	for lines := bufio.NewScanner(printed); !fired && lines.Scan(); {
		fired = strings.HasPrefix(lines.Text(), "fired: order-42 order 42 ")
	}
	require.True(t, fired, "it printed no fired timer")
	end()
	_ = run.Wait() // it was killed
}
