package endtoend

import (
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/stretchr/testify/require"

	"github.com/lapse-timers/lapse/timers/timerstest"
)

// refusal runs the program, which must end by itself with a code other than 0,
// and returns what it says of that: one line.
func refusal(t *testing.T, settings ...string) string {
	t.Helper()
	l := timerstest.Lapse(t, append([]string{quickExit}, settings...)...)
	l.Launch()
	ended := make(chan int, 1)
	go func() { ended <- l.Wait() }()
	select {
	case code := <-ended:
		require.Equal(t, 1, code, l.Log())
	case <-time.After(soon):
		t.Fatalf("it does not end; it said\n%s", l.Log())
	}
	var lines []string
	for line := range strings.Lines(l.Log()) {
		if !strings.HasPrefix(line, "{") { // the log
			lines = append(lines, strings.TrimSuffix(line, "\n"))
		}
	}
	require.Len(t, lines, 1, "one line says why: %s", l.Log())
	require.True(t, strings.HasPrefix(lines[0], "lapse: "), lines[0])
	for _, secret := range []string{"s3cret", "wrong"} {
		require.NotContains(t, l.Log(), secret, "a secret is in the output")
	}
	t.Log(lines[0])
	return lines[0]
}

func holds(t *testing.T, line string, words ...string) {
	t.Helper()
	for _, w := range words {
		require.Contains(t, line, w)
	}
}

// Settings that are refused before any server is asked. Each message names the
// setting, its value and what would be right.
func TestBadSettings(t *testing.T) {
	t.Parallel()
	const redisURL, natsURL = "LAPSE_REDIS_URL=redis://127.0.0.1:1", "LAPSE_NATS_URL=nats://127.0.0.1:1"
	for _, tc := range []struct {
		name     string
		settings []string
		want     []string
	}{
		{"unknown", []string{"LAPSE_REDIS_URI=x"}, []string{"LAPSE_REDIS_URI", "nearest is LAPSE_REDIS_URL", "lapse help"}},
		{"slip", []string{"LAPSE_LEAES=3s"}, []string{"LAPSE_LEAES", "nearest is LAPSE_LEASE"}},
		{"unlike any", []string{"LAPSE_FOO=1"}, []string{"LAPSE_FOO is no setting, and none is like it", "lapse help"}},
		{"without LAPSE_", []string{"GRACE=theirs", "NATS_URL=theirs", "LAPSE_RETRY_MIN=x"}, []string{"LAPSE_RETRY_MIN"}}, // read later than the others
		{"nearly injected", []string{"LAPSE_PORTS=1"}, []string{"LAPSE_PORTS"}},
		{"only Redis", []string{redisURL}, []string{"LAPSE_REDIS_URL is set", "LAPSE_NATS_URL is not", "embedded"}},
		{"only NATS", []string{natsURL}, []string{"LAPSE_NATS_URL is set", "LAPSE_REDIS_URL is not", "embedded"}},
		{"empty Redis", []string{"LAPSE_REDIS_URL=", natsURL}, []string{"LAPSE_REDIS_URL", "redis://", "embedded"}},
		{"empty NATS", []string{redisURL, "LAPSE_NATS_URL="}, []string{"LAPSE_NATS_URL", "nats://", "embedded"}},
		{"Redis scheme", []string{"LAPSE_REDIS_URL=http://:s3cret@127.0.0.1:1", natsURL}, []string{"LAPSE_REDIS_URL", "redis://"}},
		{"Redis is no URL", []string{"LAPSE_REDIS_URL=redis://u:s3cret/x@127.0.0.1:1", natsURL}, []string{"LAPSE_REDIS_URL", "redis://", "percent-encoded"}},
		{"Redis option", []string{"LAPSE_REDIS_URL=redis://:s3cret@127.0.0.1:1/0?pool=1", natsURL}, []string{"LAPSE_REDIS_URL", "pool"}},
		{"NATS scheme", []string{redisURL, "LAPSE_NATS_URL=http://a:s3cret@127.0.0.1:1"}, []string{"LAPSE_NATS_URL", "http", "nats://"}},
		{"NATS is no URL", []string{redisURL, "LAPSE_NATS_URL=nats://127.0.0.1:1,nats://a:s3cret/x@127.0.0.1:1"}, []string{"LAPSE_NATS_URL", "nats://", "percent-encoded"}},
		{"no host", []string{redisURL, "LAPSE_NATS_URL=nats://127.0.0.1:1,nats://:4222"}, []string{"LAPSE_NATS_URL", "nats://:4222", "no host"}},
		{"no credentials file", []string{redisURL, natsURL, "LAPSE_NATS_CREDS=/nonexistent/lapse.creds"}, []string{"LAPSE_NATS_CREDS", "/nonexistent/lapse.creds", "no such file"}},
		{"no duration", []string{"LAPSE_LEASE=30"}, []string{"LAPSE_LEASE", `"30"`, "duration such as 30s"}},
		{"empty duration", []string{"LAPSE_GRACE="}, []string{"LAPSE_GRACE", "duration such as 30s"}},
		{"negative", []string{"LAPSE_RETRY_MIN=-1s"}, []string{"LAPSE_RETRY_MIN", "-1s", "1ms"}},
		{"lease too short", []string{"LAPSE_LEASE=10ms"}, []string{"LAPSE_LEASE", "10ms", "1s"}},
		{"grace too long", []string{"LAPSE_GRACE=1h"}, []string{"LAPSE_GRACE", "1h", "10s"}},
		{"retry", []string{"LAPSE_RETRY_MIN=2s", "LAPSE_RETRY_MAX=1s"}, []string{"LAPSE_RETRY_MAX", "1s", "2s"}},
		{"window", []string{"LAPSE_LEASE=90s"}, []string{"LAPSE_LEASE=1m30s", "LAPSE_RETRY_MAX=30s", "LAPSE_STREAM_DUPLICATES=2m0s"}},
		{"window by retry", []string{"LAPSE_RETRY_MAX=90s"}, []string{"LAPSE_RETRY_MAX=1m30s", "below"}},
		{"window itself", []string{"LAPSE_STREAM_DUPLICATES=1m"}, []string{"LAPSE_STREAM_DUPLICATES=1m0s"}},
		{"attempts", []string{"LAPSE_MAX_ATTEMPTS=-1"}, []string{"LAPSE_MAX_ATTEMPTS", "-1", "1 to 1000000", "0 to never"}},
		{"too many attempts", []string{"LAPSE_MAX_ATTEMPTS=1000001"}, []string{"LAPSE_MAX_ATTEMPTS", "1000001"}},
		{"attempts without end", []string{"LAPSE_MAX_ATTEMPTS=never"}, []string{"LAPSE_MAX_ATTEMPTS", "never", "whole number"}},
		{"delivery", []string{"LAPSE_DELIVERY=mail"}, []string{"LAPSE_DELIVERY", "mail", "jetstream or core"}},
		{"prefix", []string{"LAPSE_PREFIX=a b"}, []string{"LAPSE_PREFIX", "a b"}},
		{"topics of metrics", []string{"LAPSE_METRICS_TOPICS=orders,a b"}, []string{"LAPSE_METRICS_TOPICS", "orders,a b", "orders,invoices.remind", "none"}},
		{"profiles", []string{"LAPSE_PPROF=127.0.0.1:6060"}, []string{"LAPSE_PPROF", "127.0.0.1:6060", "true or false"}},
		{"partitions", []string{"LAPSE_PARTITIONS=0"}, []string{"LAPSE_PARTITIONS", "0", "1 to 256"}},
		{"number", []string{"LAPSE_PARTITIONS=many"}, []string{"LAPSE_PARTITIONS", "many", "whole number"}},
		{"level", []string{"LAPSE_LOG_LEVEL=loud"}, []string{"LAPSE_LOG_LEVEL", "loud", "debug, info, warn or error"}},
		{"stream", []string{"LAPSE_STREAM=a.b"}, []string{"LAPSE_STREAM", "a.b"}},
		{"listen", []string{"LAPSE_NATS_LISTEN=0.0.0.0:4222", "LAPSE_DATA_DIR=" + t.TempDir()}, []string{"LAPSE_NATS_LISTEN", "password"}},
		{"stream with a control character", []string{"LAPSE_STREAM=a\x1b[31mb"}, []string{"LAPSE_STREAM", `"a\x1b[31mb"`, "control"}},
		{"stream too long", []string{"LAPSE_STREAM=" + strings.Repeat("s", 256)}, []string{"LAPSE_STREAM", "255"}},
		{"stream's age below its window", []string{"LAPSE_STREAM_MAX_AGE=1m"}, []string{"LAPSE_STREAM_MAX_AGE=1m0s", "LAPSE_STREAM_DUPLICATES=2m0s"}},
		{"replicas of one server", []string{"LAPSE_STREAM_REPLICAS=3"}, []string{"LAPSE_STREAM_REPLICAS=3", "LAPSE_NATS_URL"}},
		{"credentials of nobody", []string{redisURL, natsURL, "LAPSE_NATS_CREDS=/dev/null"}, []string{"LAPSE_NATS_CREDS", `"/dev/null"`, "no seed of a user"}},
		{"credentials directory", []string{redisURL, natsURL, "LAPSE_NATS_CREDS=/"}, []string{"LAPSE_NATS_CREDS", `"/"`, "directory"}},
		{"empty data directory", []string{"LAPSE_DATA_DIR="}, []string{"LAPSE_DATA_DIR", "./lapse-data"}},
		{"empty HTTP listen", []string{"LAPSE_HTTP_LISTEN="}, []string{"LAPSE_HTTP_LISTEN", "host:port"}},
		{"token too long", []string{"LAPSE_HTTP_TOKEN=" + strings.Repeat("s3cret-", 200)}, []string{"LAPSE_HTTP_TOKEN has 1400 characters", "at most 1024"}},
		{"window without end", []string{"LAPSE_STREAM_MAX_AGE=0", "LAPSE_STREAM_DUPLICATES=2000000h"}, []string{"LAPSE_STREAM_DUPLICATES", "2000000h", "876000h"}},
		{"negative window", []string{"LAPSE_DELIVERY=core", "LAPSE_STREAM_DUPLICATES=-1s"}, []string{"LAPSE_STREAM_DUPLICATES", "-1s"}},
		{"HTTP listen", []string{"LAPSE_HTTP_LISTEN=nowhere"}, []string{"LAPSE_HTTP_LISTEN", "nowhere", "host:port"}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			said := refusal(t, tc.settings...)
			holds(t, said, tc.want...)
			require.NotRegexp(t, `\b(strconv|time|slog|redis|nats): `, said, "the words of a library")
		})
	}
}

// Servers that are there and do not want us, or that we cannot work with.
func TestRefusedByServers(t *testing.T) {
	t.Parallel()
	ns := timerstest.NATS(t)
	secured := timerstest.NATS(t, func(o *server.Options) { o.Username, o.Password = "lapse", "right" })
	plain := timerstest.NATS(t, func(o *server.Options) { o.JetStream = false })
	rs := timerstest.RedisTCP(t)
	locked := timerstest.RedisTCP(t, "--requirepass", "right")
	cluster := timerstest.RedisTCP(t, "--cluster-enabled", "yes")
	with := func(url, user string) string { return strings.Replace(url, "://", "://"+user+"@", 1) }
	for _, tc := range []struct {
		name, redis, nats string
		want              []string
	}{
		{"Redis password", with(locked.URL(), ":wrong"), ns.URL(), []string{"LAPSE_REDIS_URL", "WRONGPASS", "password"}},
		{"Redis user", with(locked.URL(), "someone:wrong"), ns.URL(), []string{"LAPSE_REDIS_URL", "WRONGPASS", "password"}},
		{"no Redis password", locked.URL(), ns.URL(), []string{"LAPSE_REDIS_URL", "NOAUTH", "password"}},
		{"Redis Cluster", cluster.URL(), ns.URL(), []string{"LAPSE_REDIS_URL", "Cluster", "single master"}},
		{"NATS password", rs.URL(), with(secured.URL(), "lapse:wrong"), []string{"LAPSE_NATS_URL", "Authorization Violation", "password"}},
		{"no NATS password", rs.URL(), secured.URL(), []string{"LAPSE_NATS_URL", "Authorization Violation", "password"}},
		{"no JetStream", rs.URL(), plain.URL(), []string{"JetStream", "-js", "LAPSE_DELIVERY=core"}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			holds(t, refusal(t, "LAPSE_REDIS_URL="+tc.redis, "LAPSE_NATS_URL="+tc.nats), tc.want...)
		})
	}
}

func TestOtherPartitionCountThanInTheData(t *testing.T) {
	t.Parallel()
	rs, ns := timerstest.Redis(t), timerstest.NATS(t)
	l := timerstest.LapseOn(t, rs.URL(), ns.URL(), "LAPSE_PARTITIONS=4")
	l.Stop()
	holds(t, refusal(t, "LAPSE_REDIS_URL="+rs.URL(), "LAPSE_NATS_URL="+ns.URL(), "LAPSE_PARTITIONS=2"),
		"timers:meta has 4 partitions", "LAPSE_PARTITIONS is 2", "set it to 4", "LAPSE_PREFIX")
	timerstest.LapseOn(t, rs.URL(), ns.URL(), "LAPSE_PARTITIONS=2", "LAPSE_PREFIX=others", "LAPSE_STREAM=OTHERS")
}

// What the embedded servers need of the machine.
func TestRefusedByTheMachine(t *testing.T) {
	t.Parallel()
	busy, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	t.Cleanup(func() { busy.Close() })
	addr := busy.Addr().String()
	file := filepath.Join(t.TempDir(), "file")
	require.NoError(t, os.WriteFile(file, nil, 0o600))
	free := "LAPSE_NATS_LISTEN=127.0.0.1:0"
	for _, tc := range []struct {
		name     string
		settings []string
		want     []string
	}{
		{"NATS port", []string{"LAPSE_NATS_LISTEN=" + addr}, []string{addr, "in use", "LAPSE_NATS_URL=nats://" + addr + " LAPSE_REDIS_URL=embedded", "LAPSE_NATS_LISTEN=127.0.0.1:"}},
		{"HTTP port", []string{free, "LAPSE_HTTP_LISTEN=" + addr}, []string{addr, "in use", "LAPSE_HTTP_LISTEN"}},
		{"data directory is a file", []string{free, "LAPSE_DATA_DIR=" + file}, []string{file, "not a directory", "LAPSE_DATA_DIR"}},
		{"data directory below a file", []string{free, "LAPSE_DATA_DIR=" + file + "/below"}, []string{file, "LAPSE_DATA_DIR"}},
		{"no redis-server", []string{free, "PATH=" + t.TempDir()}, []string{"redis-server", "apt-get install redis-server", "LAPSE_REDIS_URL"}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			settings := append([]string{"LAPSE_DATA_DIR=" + t.TempDir()}, tc.settings...)
			holds(t, refusal(t, settings...), tc.want...)
		})
	}
}

// A Service called lapse, or lapse-something, has Kubernetes set these in every
// pod of its namespace.
func TestNamesThatKubernetesInjects(t *testing.T) {
	t.Parallel()
	rs, ns := timerstest.Redis(t), timerstest.NATS(t)
	timerstest.LapseOn(t, rs.URL(), ns.URL(),
		"LAPSE_SERVICE_HOST=10.0.0.1", "LAPSE_SERVICE_PORT=8420", "LAPSE_SERVICE_PORT_HTTP=8420",
		"LAPSE_PORT=tcp://10.0.0.1:8420", "LAPSE_PORT_8420_TCP=tcp://10.0.0.1:8420", "LAPSE_PORT_8420_TCP_PROTO=tcp",
		"LAPSE_PORT_8420_TCP_PORT=8420", "LAPSE_PORT_8420_TCP_ADDR=10.0.0.1", "LAPSE_REDIS_SERVICE_HOST=10.0.0.2",
		"LAPSE_NATS_PORT_4222_TCP_ADDR=10.0.0.3", "LAPSE_NATS_SERVICE_PORT_CLIENT=4222")
}

func TestStopWhileWaitingForAServer(t *testing.T) {
	t.Parallel()
	rs := timerstest.Redis(t)
	nobody := freeAddr(t)
	for _, tc := range []struct{ name, redis, nats string }{
		{"Redis", "redis://" + nobody, "nats://" + nobody},
		{"NATS", rs.URL(), "nats://" + nobody},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			l := timerstest.Lapse(t, "LAPSE_REDIS_URL="+tc.redis, "LAPSE_NATS_URL="+tc.nats, quickExit)
			l.Launch()
			timerstest.Eventually(t, soon, "it waits", func() bool { return strings.Contains(l.Log(), `"what":"`+tc.name+`"`) })
			endsWell(t, l, 5*time.Second)
			require.NotContains(t, l.Log(), "lapse: ", "it was asked to stop, which is no error")
		})
	}
}
