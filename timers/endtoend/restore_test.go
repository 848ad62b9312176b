package endtoend

import (
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/stretchr/testify/require"

	"github.com/lapse-timers/lapse/timers/client"
	"github.com/lapse-timers/lapse/timers/timerstest"
)

// commands are the indented lines of the operations' README from one phrase to
// another, without the remarks behind them.
func commands(t *testing.T, from, to string) []string {
	t.Helper()
	_, text, ok := strings.Cut(string(operationsFile(t, "README.md")), from)
	require.True(t, ok, from)
	text, _, ok = strings.Cut(text, to)
	require.True(t, ok, to)
	var out []string
	for line := range strings.Lines(text) {
		if cmd, ok := strings.CutPrefix(line, "    "); ok {
			cmd, _, _ = strings.Cut(cmd, "  #")
			out = append(out, strings.TrimSpace(cmd))
		}
	}
	require.NotEmpty(t, out)
	return out
}

// A back-up is taken of a service that runs, by the commands as they are
// written, and put back by those for it: what was pending then is pending again.
func TestBackupAndRestoreAsWritten(t *testing.T) {
	t.Parallel()
	l, dir, url := embeddedLapse(t)
	l.Start()
	backup := filepath.Join(t.TempDir(), "backup")
	_, port, _ := strings.Cut(freeAddr(t), ":")
	here := strings.NewReplacer("/var/lib/lapse", dir, "/backup", backup, "6400", port)
	run := func(script string) string {
		t.Helper()
		out, err := exec.Command("sh", "-c", "set -e; "+script).CombinedOutput() // redis-cli ends with 0 on an error
		require.NoError(t, err, "%s\n%s", script, out)
		require.NotRegexp(t, regexp.MustCompile(`(?m)^\(?(ERR|error)`), string(out), script)
		return strings.TrimSpace(string(out))
	}

	connect := func() *client.Client {
		nc, err := nats.Connect(url)
		require.NoError(t, err)
		t.Cleanup(nc.Close)
		c, err := client.New(nc)
		require.NoError(t, err)
		return c
	}
	c := connect()
	set := func(id, in string) {
		_, err := c.Set(t.Context(), "restored", []byte(id), client.Schedule("@in "+in), client.ID(id))
		require.NoError(t, err)
	}
	set("later", "1h")
	set("cancelled", "1h")

	last := ""
	for _, cmd := range commands(t, "**Back-up.**", "Or stop Lapse") {
		if !strings.HasSuffix(cmd, "LASTSAVE") {
			run(here.Replace(cmd))
		} else if last == "" {
			// It counts in seconds, and the start of Redis was the first.
			timerstest.Eventually(t, soon, "another second", func() bool {
				last = run(here.Replace(cmd))
				return !strings.Contains(last, strconv.FormatInt(time.Now().Unix(), 10))
			})
		} else {
			timerstest.Eventually(t, soon, "the snapshot is written", func() bool { return run(here.Replace(cmd)) != last })
		}
	}
	_, err := c.Cancel(t.Context(), "restored", "cancelled")
	require.NoError(t, err)
	set("new", "1h")
	endsWell(t, l, soon)

	root := os.Geteuid() == 0
	own := func(uid int) {
		require.NoError(t, filepath.WalkDir(dir, func(path string, _ fs.DirEntry, err error) error {
			if err != nil {
				return err
			}
			return os.Lchown(path, uid, uid)
		}))
	}
	const service = 65534
	if root {
		own(service) // as a service of its own user has it
	}
	script := strings.Join(commands(t, "**Restore.**", "The last line"), "\n")
	before, after, ok := strings.Cut(here.Replace(script), "\nredis-cli -p "+port+" SHUTDOWN")
	require.True(t, ok, script)
	run(before)
	timerstest.Eventually(t, soon, "the append-only file is written", func() bool {
		return strings.Contains(run("redis-cli -p "+port+" INFO persistence"), "aof_rewrite_in_progress:0")
	})
	run("redis-cli -p " + port + " SHUTDOWN\ncd " + filepath.Join(dir, "redis") + after)
	if root {
		require.NoError(t, filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
			if err != nil {
				return err
			}
			info, err := d.Info()
			if err == nil {
				require.EqualValues(t, service, info.Sys().(*syscall.Stat_t).Uid, path)
			}
			return err
		}))
		own(0)
	}

	l.Start()
	c = connect()
	var ids []string
	for item, err := range c.List(t.Context(), "restored") {
		require.NoError(t, err)
		ids = append(ids, item.ID)
	}
	require.ElementsMatch(t, []string{"later", "cancelled"}, ids)
}
