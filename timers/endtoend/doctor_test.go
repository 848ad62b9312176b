package endtoend

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/lapse-timers/lapse/timers/client"
	"github.com/lapse-timers/lapse/timers/doctor"
	"github.com/lapse-timers/lapse/timers/service"
	"github.com/lapse-timers/lapse/timers/settings"
	"github.com/lapse-timers/lapse/timers/timerstest"
	"github.com/lapse-timers/lapse/timers/wire"
)

// deployed is what doctor looks at: the default settings on these servers.
func deployed(redisURL, natsURL string) doctor.Deployment {
	return doctor.Deployment{
		Settings: settings.Settings{
			RedisURL: redisURL, NATSURL: natsURL, Prefix: "timers", Delivery: "jetstream", Stream: "TIMERS", Partitions: 1,
			Lease: 30 * time.Second, Grace: 200 * time.Millisecond, RetryMax: 30 * time.Second, NotifyConfig: "auto",
		},
		RedisURL: redisURL, NATS: service.ConnConfig{URL: natsURL},
	}
}

// shown is a report for the log of a test.
func shown(r wire.DoctorReport, statuses ...string) string {
	var b strings.Builder
	for _, f := range r.Findings {
		if len(statuses) == 0 || slices.Contains(statuses, f.Status) {
			fmt.Fprintf(&b, "%+v\n", f)
		}
	}
	return b.String()
}

// named looks, and demands that the check found what is wrong and says what
// mends it.
func named(t *testing.T, d doctor.Deployment, check, status string) wire.Finding {
	t.Helper()
	r := doctor.Run(t.Context(), d)
	f, ok := r.Find(check)
	require.True(t, ok, "no check %s:\n%s", check, shown(r))
	require.Equal(t, status, f.Status, "%+v", f)
	for _, said := range []string{f.Found, f.Wanted, f.Why, f.Remedy} {
		require.NotEmpty(t, said, "%+v", f)
	}
	return f
}

// mended demands that the check finds nothing any more.
func mended(t *testing.T, d doctor.Deployment, check string) {
	t.Helper()
	var last wire.Finding
	defer func() {
		if t.Failed() {
			t.Logf("%+v", last)
		}
	}()
	timerstest.Eventually(t, soon, check+" finds nothing", func() bool {
		last, _ = doctor.Run(t.Context(), d).Find(check)
		return last.Status == wire.FindingOK
	})
}

// apply carries out the lines of a remedy as they stand, and returns those of
// files, without the file's name. A line that it does not know is left to the
// caller: it is an alternative, or what no test can do.
func apply(t *testing.T, natsURL, remedy string) (redisConf, natsConf []string) {
	t.Helper()
	done := 0
	for line := range strings.Lines(remedy) {
		line = strings.TrimSpace(line)
		name, rest, _ := strings.Cut(line, ": ")
		switch {
		case strings.HasPrefix(line, "redis-cli "):
			out, err := exec.Command("sh", "-c", line).CombinedOutput()
			require.NoError(t, err, "%s: %s", line, out)
			require.NotRegexp(t, `^\(?(ERR|error|NOPERM|WRONGTYPE)`, string(out), line)
		case strings.HasPrefix(line, "nats "):
			streamEdit(t, natsURL, line)
		case name == "redis.conf":
			redisConf = append(redisConf, rest)
		case name == "nats-server.conf":
			natsConf = append(natsConf, rest)
		default:
			continue
		}
		done++
	}
	require.NotZero(t, done, "nothing in it can be carried out: %s", remedy)
	return redisConf, natsConf
}

// streamEdit does what the nats command would do: stream rm, or stream edit with the
// flags that doctor prints. The words are those that a shell makes of the line.
func streamEdit(t *testing.T, natsURL, line string) {
	t.Helper()
	out, err := exec.Command("sh", "-c", `printf '%s\n' `+strings.TrimPrefix(line, "nats ")).Output()
	require.NoError(t, err)
	words := strings.Split(strings.TrimSpace(string(out)), "\n")
	require.Equal(t, []string{"--server", natsURL, "stream"}, words[:3], line)
	require.Equal(t, "--force", words[len(words)-1], "it must not ask")
	nc, err := nats.Connect(words[1])
	require.NoError(t, err)
	defer nc.Close()
	js, err := jetstream.New(nc)
	require.NoError(t, err)
	if words[3] == "rm" {
		require.NoError(t, js.DeleteStream(t.Context(), words[4]))
		return
	}
	require.Equal(t, "edit", words[3], line)
	stream, err := js.Stream(t.Context(), words[4])
	require.NoError(t, err)
	c := stream.CachedInfo().Config
	var subjects []string
	flags := words[5 : len(words)-1]
	for ; len(flags) > 0; flags = flags[2:] {
		switch flags[0] {
		case "--subjects":
			subjects = append(subjects, flags[1])
		case "--dupe-window":
			c.Duplicates, err = time.ParseDuration(flags[1])
			require.NoError(t, err)
		case "--discard":
			require.Equal(t, "old", flags[1])
			c.Discard = jetstream.DiscardOld
		default:
			t.Fatalf("%s: the test knows no %s", line, flags[0])
		}
	}
	if subjects != nil {
		c.Subjects = subjects
	}
	_, err = js.UpdateStream(t.Context(), c)
	require.NoError(t, err, line)
}

// Redis in bad states, one after the other on the same server. Each is named,
// and its remedy works as it is printed.
func TestDoctorOnRedis(t *testing.T) {
	t.Parallel()
	rs, ns := timerstest.RedisTCP(t), timerstest.NATS(t)
	rdb := rs.Client()
	ctx := t.Context()
	config := func(t *testing.T, kv ...string) {
		t.Helper()
		for i := 0; i < len(kv); i += 2 {
			require.NoError(t, rdb.ConfigSet(ctx, kv[i], kv[i+1]).Err(), kv[i])
		}
	}
	dir := rdb.ConfigGet(ctx, "dir").Val()["dir"]
	user := func(t *testing.T, rules ...any) string {
		t.Helper()
		require.NoError(t, rdb.Do(ctx, append([]any{"ACL", "SETUSER", "lapse", "reset", "on", ">pw"}, rules...)...).Err())
		return "redis://lapse:pw@" + rs.Addr()
	}
	// memory sets maxmemory to a part of what is used, most of which stays the same.
	memory := func(t *testing.T, part float64) {
		t.Helper()
		config(t, "maxmemory", "0")
		require.NoError(t, rdb.SetRange(ctx, "ballast", 20<<20, "x").Err())
		for line := range strings.Lines(rdb.Info(ctx, "memory").Val()) {
			if used, ok := strings.CutPrefix(strings.TrimSpace(line), "used_memory:"); ok {
				n, err := strconv.ParseFloat(used, 64)
				require.NoError(t, err)
				config(t, "maxmemory", fmt.Sprintf("%.0f", part*n))
				return
			}
		}
		t.Fatal("INFO says nothing of used_memory")
	}
	var conf []string
	for _, tc := range []struct {
		check, status string
		broken        func(t *testing.T) (redisURL string) // "" is that of the default user
		cause         func(t *testing.T)                   // removes what no line can
	}{
		{"notify-flags", wire.FindingFail, func(t *testing.T) string { config(t, "notify-keyspace-events", ""); return "" }, nil},
		{"notify-flags", wire.FindingFail, func(t *testing.T) string { config(t, "notify-keyspace-events", "KA"); return "" }, nil},
		{"maxmemory-policy", wire.FindingWarn, func(t *testing.T) string { config(t, "maxmemory-policy", "volatile-lru"); return "" }, nil},
		{"persistence", wire.FindingFail, func(t *testing.T) string { config(t, "appendonly", "no", "save", ""); return "" }, nil},
		{"event-path", wire.FindingFail, func(t *testing.T) string { config(t, "min-replicas-to-write", "1"); return "" }, nil},
		{"rdb-save", wire.FindingFail, func(t *testing.T) string {
			config(t, "save", "3600 1", "stop-writes-on-bgsave-error", "yes")
			require.NoError(t, os.Mkdir(filepath.Join(dir, "dump.rdb"), 0o700)) // in the way of the file, also for root
			require.NoError(t, rdb.Do(ctx, "BGSAVE", "SCHEDULE").Err())         // another child may be at work
			timerstest.Eventually(t, soon, "the save fails", func() bool {
				return strings.Contains(rdb.Info(ctx, "persistence").Val(), "rdb_last_bgsave_status:err")
			})
			return ""
		}, func(t *testing.T) { require.NoError(t, os.Remove(filepath.Join(dir, "dump.rdb"))) }},
		{"redis-role", wire.FindingFail, func(t *testing.T) string {
			require.NoError(t, rdb.ReplicaOf(ctx, "127.0.0.1", "1").Err())
			return ""
		}, nil},
		{"redis-rights", wire.FindingFail, func(t *testing.T) string { return user(t, "~timers:*", "&*", "+@all", "-zadd", "-evalsha") }, nil},
		{"redis-rights", wire.FindingFail, func(t *testing.T) string { return user(t, "~other:*", "&*", "+@all") }, nil},
		{"redis-channel", wire.FindingFail, func(t *testing.T) string { return user(t, "~timers:*", "resetchannels", "+@all") }, nil},
		{"hz", wire.FindingWarn, func(t *testing.T) string { config(t, "hz", "1"); return "" }, nil},
		{"listpack-value", wire.FindingWarn, func(t *testing.T) string { config(t, "hash-max-listpack-value", "64"); return "" }, nil},
		{"listpack-entries", wire.FindingWarn, func(t *testing.T) string { config(t, "hash-max-listpack-entries", "8"); return "" }, nil},
		{"pubsub-buffer", wire.FindingWarn, func(t *testing.T) string {
			config(t, "client-output-buffer-limit", "pubsub 32mb 8mb 60")
			return ""
		}, nil},
		{"redis-memory", wire.FindingFail, func(t *testing.T) string { memory(t, 0.8); return "" }, nil},
		{"redis-memory", wire.FindingWarn, func(t *testing.T) string { memory(t, 1.05); return "" }, nil},
	} {
		ok := t.Run(tc.check, func(t *testing.T) {
			url := tc.broken(t)
			if url == "" {
				url = rs.URL()
			}
			d := deployed(url, ns.URL())
			f := named(t, d, tc.check, tc.status)
			if tc.check == "persistence" {
				// The other order loses all there is: Redis reads no snapshot then.
				now, later, _ := strings.Cut(f.Remedy, "starts empty")
				require.Contains(t, now, "CONFIG SET appendonly yes")
				require.Contains(t, later, "redis.conf: appendonly yes")
			}
			if tc.cause != nil {
				tc.cause(t)
			}
			lines, _ := apply(t, ns.URL(), f.Remedy)
			conf = append(conf, lines...)
			mended(t, d, tc.check)
		})
		if !ok {
			return // the server is as it should not be for the next one
		}
	}
	// The other way of each remedy: the line in the file, on a Redis that has
	// nothing else.
	t.Run("redis.conf", func(t *testing.T) {
		var args []string
		for _, line := range conf {
			name, value, _ := strings.Cut(line, " ")
			args = append(args, "--"+name)
			args = append(args, strings.Fields(value)...)
		}
		fresh := timerstest.Redis(t, append([]string{"--hz", "10", "--appendonly", "no", "--maxmemory-policy", "volatile-lru", "--notify-keyspace-events", "",
			"--hash-max-listpack-value", "64", "--client-output-buffer-limit", "pubsub", "32mb", "8mb", "60"}, args...)...)
		r := doctor.Run(ctx, deployed(fresh.URL(), ns.URL()))
		for _, f := range r.Findings {
			if f.Part == "redis" {
				require.Equal(t, wire.FindingOK, f.Status, "%+v", f)
			}
		}
	})
}

// Redis hides its configuration, as managed ones do: that is no fault, and what
// could not be looked at is named. Events come all the same.
func TestDoctorWithoutConfig(t *testing.T) {
	t.Parallel()
	rs, ns := timerstest.RedisTCP(t), timerstest.NATS(t)
	require.NoError(t, rs.Client().Do(t.Context(), "ACL", "SETUSER", "lapse", "on", ">pw", "~timers:*", "&*", "+@all", "-config", "-acl").Err())
	r := doctor.Run(t.Context(), deployed("redis://lapse:pw@"+rs.Addr(), ns.URL()))
	require.Zero(t, r.Fail, shown(r, wire.FindingFail))
	for _, check := range []string{"notify-flags", "hz", "pubsub-buffer", "listpack-value"} {
		f, ok := r.Find(check)
		require.True(t, ok, check)
		require.Equal(t, wire.FindingUnknown, f.Status, "%+v", f)
		require.Contains(t, f.Why, "CONFIG GET was refused", "%+v", f)
		require.Contains(t, f.Remedy, "redis.conf: ", "%+v", f)
	}
	for _, check := range []string{"event-path", "maxmemory-policy", "persistence", "redis-rights"} {
		f, _ := r.Find(check)
		require.Equal(t, wire.FindingOK, f.Status, "%+v", f)
	}
}

// One server does not answer, or not this user: that is named, and the other is
// looked at.
func TestDoctorOnAServerThatIsAway(t *testing.T) {
	t.Parallel()
	rs, ns := timerstest.RedisTCP(t, "--requirepass", "right"), timerstest.NATS(t)
	wrong := deployed("redis://:s3cret@"+rs.Addr(), ns.URL())
	require.Contains(t, named(t, wrong, "redis-reachable", wire.FindingFail).Found, "WRONGPASS")
	right := deployed("redis://:right@"+rs.Addr(), "nats://lapse:s3cret@"+freeAddr(t))
	r := doctor.Run(t.Context(), right)
	f, _ := r.Find("nats-reachable")
	require.Equal(t, wire.FindingFail, f.Status)
	f, _ = r.Find("event-path")
	require.Equal(t, wire.FindingOK, f.Status, "%+v", f)
	require.False(t, r.Blind())
	require.NotContains(t, shown(r)+shown(doctor.Run(t.Context(), wrong)), "s3cret")
	require.True(t, doctor.Run(t.Context(), deployed("redis://"+freeAddr(t), "nats://"+freeAddr(t))).Blind())
}

// Redis's clock is a minute off. No test may set a clock: that of another server
// stands for the mended one.
func TestDoctorOnAWrongClock(t *testing.T) {
	t.Parallel()
	ns := timerstest.NATS(t)
	d := deployed(timerstest.RedisAhead(t, time.Minute).URL(), ns.URL())
	f := named(t, d, "clock-offset", wire.FindingFail)
	require.Contains(t, f.Found, "1m0")
	require.Contains(t, f.Remedy, "timedatectl set-ntp true")
	mended(t, deployed(timerstest.Redis(t).URL(), ns.URL()), "clock-offset")
}

// NATS in bad states.
func TestDoctorOnNATS(t *testing.T) {
	t.Parallel()
	rs := timerstest.Redis(t)
	t.Run("no JetStream", func(t *testing.T) {
		ns := timerstest.NATS(t, func(o *server.Options) { o.JetStream = false })
		f := named(t, deployed(rs.URL(), ns.URL()), "jetstream", wire.FindingFail)
		_, conf := apply(t, "", f.Remedy)
		require.Len(t, conf, 1)
		require.Contains(t, conf[0], `"/var/lib/nats"`)
		file := filepath.Join(t.TempDir(), "nats-server.conf")
		require.NoError(t, os.WriteFile(file, []byte(strings.Replace(conf[0], "/var/lib/nats", t.TempDir(), 1)+"\n"), 0o600))
		read, err := server.ProcessConfigFile(file)
		require.NoError(t, err)
		again := timerstest.NATS(t, func(o *server.Options) {
			o.JetStream, o.StoreDir, o.SyncInterval = read.JetStream, read.StoreDir, read.SyncInterval
		})
		mended(t, deployed(rs.URL(), again.URL()), "jetstream")

		d := deployed(rs.URL(), ns.URL()) // the other remedy
		d.Settings.Delivery = "core"
		mended(t, d, "jetstream")
	})
	ns := timerstest.NATS(t)
	js, err := jetstream.New(ns.Connect(t))
	require.NoError(t, err)
	// The server removes the directory of the streams with the last of them, which
	// must not meet the next one.
	_, err = js.CreateStream(t.Context(), jetstream.StreamConfig{Name: "NEIGHBOUR", Subjects: []string{"neighbour"}})
	require.NoError(t, err)
	d := deployed(rs.URL(), ns.URL())
	full := jetstream.StreamConfig{Name: "TIMERS", Subjects: []string{"timers.fired.>", "timers.dead.>"}, MaxMsgs: 20, Discard: jetstream.DiscardNew}
	for _, tc := range []struct {
		check, status string
		stream        jetstream.StreamConfig
		filled        int // messages
	}{
		{"request-streams", wire.FindingFail, jetstream.StreamConfig{Name: "ALL", Subjects: []string{"timers.>", "else.>"}}, 0},
		{"request-streams", wire.FindingFail, jetstream.StreamConfig{Name: "SETS", Subjects: []string{"timers.set.>", "else.>"}}, 0},
		{"stream", wire.FindingFail, jetstream.StreamConfig{Name: "PART", Subjects: []string{"timers.fired.orders.>", "else.>"}}, 0},
		{"stream", wire.FindingWarn, jetstream.StreamConfig{Name: "TIMERS", Subjects: []string{"timers.fired.>"}}, 0},
		{"duplicate-window", wire.FindingWarn, jetstream.StreamConfig{Name: "TIMERS", Subjects: []string{"timers.fired.>", "timers.dead.>"}, Duplicates: 30 * time.Second}, 0},
		{"stream-room", wire.FindingWarn, full, 19},
		{"stream-room", wire.FindingFail, full, 20},
	} {
		t.Run(tc.check+" "+tc.stream.Name, func(t *testing.T) {
			_, err := js.CreateStream(t.Context(), tc.stream)
			require.NoError(t, err)
			defer js.DeleteStream(context.WithoutCancel(t.Context()), tc.stream.Name) //nolint:errcheck // the next row would fail
			for range tc.filled {
				_, err := js.Publish(t.Context(), "timers.fired.a", nil)
				require.NoError(t, err)
			}
			f := named(t, d, tc.check, tc.status)
			apply(t, ns.URL(), f.Remedy)
			mended(t, d, tc.check)
			if slices.Contains(tc.stream.Subjects, "else.>") {
				s, err := js.Stream(t.Context(), tc.stream.Name)
				require.NoError(t, err)
				require.Contains(t, s.CachedInfo().Config.Subjects, "else.>", "what is not ours stays")
			}
		})
	}
}

// examined runs the program with --json, which must end with the code.
func examined(t *testing.T, code int, env []string, args ...string) wire.DoctorReport {
	t.Helper()
	out := doctored(t, code, env, append(args, "--json")...)
	var r wire.DoctorReport
	strict(t, []byte(out), &r)
	require.Equal(t, len(r.Findings), r.OK+r.Warn+r.Fail+r.Unknown)
	return r
}

func doctored(t *testing.T, code int, env []string, args ...string) string {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), timerstest.LapseBinary(t), append([]string{"doctor"}, args...)...)
	cmd.Env = append(slices.DeleteFunc(os.Environ(), func(kv string) bool { return strings.HasPrefix(kv, "LAPSE_") }), append(env, quickExit)...)
	out, err := cmd.Output()
	got := 0
	var exit *exec.ExitError
	if errors.As(err, &exit) {
		got = exit.ExitCode()
	} else {
		require.NoError(t, err)
	}
	require.Equal(t, code, got, "%s", out)
	return string(out)
}

// Records that do not fit together: named, and mended by the command that the
// remedy is. What is whole fires.
func TestDoctorOnOrphans(t *testing.T) {
	t.Parallel()
	rs, ns := timerstest.Redis(t), timerstest.NATS(t)
	env := []string{"LAPSE_REDIS_URL=" + rs.URL(), "LAPSE_NATS_URL=" + ns.URL()}
	rdb := rs.Client()
	due := time.Now().Add(time.Hour).UnixMilli()
	for i := range 3 {
		require.NoError(t, rdb.HSet(t.Context(), fmt.Sprintf("timers:{0}:h:a:it's %d", i), "p", "x", "d", due, "r", i+1).Err())
	}
	// What Lua takes for a number and Redis does not must not keep the rest from being mended.
	for i, d := range []string{"nan", " 5", "inf", "0x", "-1", "1e400", "999999999999999"} {
		require.NoError(t, rdb.HSet(t.Context(), fmt.Sprintf("timers:{0}:h:a:no time %d", i), "p", "x", "d", d, "r", i+1).Err())
	}
	require.NoError(t, rdb.HSet(t.Context(), "timers:{0}:h:a:half", "p", "x").Err())
	require.NoError(t, rdb.Set(t.Context(), "timers:{0}:t:a:bare", "", 0).Err())

	r := examined(t, 5, env)
	f, _ := r.Find("orphans")
	require.Equal(t, wire.FindingFail, f.Status, shown(r))
	require.True(t, f.Fixable)
	require.Contains(t, f.Found, "12 ")
	words := strings.Fields(f.Remedy)
	require.Equal(t, []string{"lapse", "doctor"}, words[:2])
	r = examined(t, 0, env, words[2:]...)
	f, _ = r.Find("orphans")
	require.Equal(t, wire.FindingOK, f.Status, shown(r))
	require.True(t, f.Fixed)
	require.EqualValues(t, 3, rdb.ZCard(t.Context(), "timers:{0}:due").Val(), "what was whole waits again")
	require.Zero(t, rdb.Exists(t.Context(), "timers:{0}:h:a:half", "timers:{0}:t:a:bare", "timers:{0}:h:a:no time 0", "timers:{0}:h:a:no time 1").Val(), "what was not is gone")

	// The other way round, with a redis-cli line each.
	require.NoError(t, rdb.Set(t.Context(), "timers:{0}:t:a:it's 0", "", 0).Err())
	require.NoError(t, rdb.ZAdd(t.Context(), "timers:{0}:due", redis.Z{Score: float64(due), Member: "a:no body"}).Err())
	d := deployed(rs.URL(), ns.URL())
	apply(t, "", named(t, d, "immortal-triggers", wire.FindingWarn).Remedy)
	apply(t, "", named(t, d, "hollow-members", wire.FindingWarn).Remedy)
	mended(t, d, "immortal-triggers")
	mended(t, d, "hollow-members")
	require.Greater(t, rdb.PTTL(t.Context(), "timers:{0}:t:a:it's 0").Val(), 50*time.Minute)
}

// A deployment as it should be has no finding at all, while it works.
func TestDoctorOnAHealthyDeployment(t *testing.T) {
	t.Parallel()
	rs, ns := timerstest.Redis(t), timerstest.NATS(t)
	env := []string{"LAPSE_REDIS_URL=" + rs.URL(), "LAPSE_NATS_URL=" + ns.URL()}
	before := examined(t, 0, env) // before the first start
	f, _ := before.Find("instances")
	require.Equal(t, wire.FindingWarn, f.Status)
	require.Equal(t, 1, before.Warn, shown(before, wire.FindingWarn))
	require.Zero(t, before.Fail+before.Unknown, shown(before, wire.FindingFail, wire.FindingUnknown))
	require.Empty(t, rs.Client().Keys(t.Context(), "*").Val(), "it leaves nothing behind")
	examined(t, 5, env, "--strict")

	timerstest.LapseOn(t, rs.URL(), ns.URL())
	nc := ns.Connect(t)
	c := newClient(t, nc)
	for i := range 20 {
		_, err := c.Set(t.Context(), "a", nil, client.In(time.Duration(i)*time.Hour))
		require.NoError(t, err)
	}
	timerstest.Eventually(t, soon, "one fires", func() bool { return stored(t, nc) == 1 })
	r := examined(t, 0, env, "--strict")
	require.Zero(t, r.Warn+r.Fail+r.Unknown, shown(r, wire.FindingWarn, wire.FindingFail, wire.FindingUnknown))
	require.Greater(t, r.OK, 40)
	require.Contains(t, doctored(t, 0, env, "--fix"), "healthy:")
	timerstest.CheckInvariants(t, rs.Client(), "timers")
}

// The users of README.md lack nothing, so there is nothing to be told of.
func TestDoctorWithTheUsersOfTheReadme(t *testing.T) {
	t.Parallel()
	rs := timerstest.RedisTCP(t)
	_, block, ok := strings.Cut(readme(t), "### A NATS user for Lapse")
	require.True(t, ok)
	_, block, ok = strings.Cut(block, "```\n")
	require.True(t, ok)
	block, _, ok = strings.Cut(block, "```\n")
	require.True(t, ok)
	file := filepath.Join(t.TempDir(), "nats-server.conf")
	require.NoError(t, os.WriteFile(file, []byte("authorization { users: [\n"+block+"] }\n"), 0o600))
	read, err := server.ProcessConfigFile(file)
	require.NoError(t, err)
	ns := timerstest.NATS(t, func(o *server.Options) { o.Users = read.Users })
	_, line, ok := strings.Cut(readme(t), "redis-cli ACL SETUSER lapse on")
	require.True(t, ok)
	line, _, ok = strings.Cut(line, "\n\n")
	require.True(t, ok)
	_, port, _ := strings.Cut(rs.Addr(), ":")
	out, err := exec.Command("sh", "-c", "redis-cli -p "+port+" ACL SETUSER lapse on"+line).CombinedOutput()
	require.NoError(t, err, "%s", out)
	require.Equal(t, "OK\n", string(out))
	redisURL, natsURL := "redis://lapse:secret@"+rs.Addr(), strings.Replace(ns.URL(), "://", "://lapse:secret@", 1)
	timerstest.LapseOn(t, redisURL, natsURL)
	r := doctor.Run(t.Context(), deployed(redisURL, natsURL))
	require.Zero(t, r.Warn+r.Fail, shown(r, wire.FindingWarn, wire.FindingFail))
	for _, f := range r.Findings {
		if f.Status == wire.FindingUnknown {
			require.Contains(t, []string{"publish-rights", "subscribe-rights", "jetstream-account", "health"}, f.Check, "%+v", f)
		}
	}
	text, err := json.Marshal(r)
	require.NoError(t, err)
	require.NotContains(t, string(text), "secret")
}

// With the servers of its own it finds those of a running Lapse, and says so
// when none runs.
func TestDoctorOnEmbeddedServers(t *testing.T) {
	t.Parallel()
	l, dir, url := embeddedLapse(t)
	env := []string{"LAPSE_DATA_DIR=" + dir, "LAPSE_NATS_LISTEN=" + strings.TrimPrefix(url, "nats://")}
	r := examined(t, 1, env)
	f, _ := r.Find("redis-reachable")
	require.Contains(t, f.Remedy, "lapse serve\n# ", "and where one may run already")
	l.Start()
	r = examined(t, 0, env, "--strict")
	require.Zero(t, r.Unknown, shown(r, wire.FindingUnknown))
	f, _ = r.Find("redis-reachable")
	require.Contains(t, f.Found, "running lapse serve")
}
