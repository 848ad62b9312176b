package timerstest

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/redis/go-redis/v9"
)

func TestRedisKeepsItsDataOverAKill(t *testing.T) {
	for name, start := range map[string]func(testing.TB, ...string) *RedisServer{"unix": Redis, "tcp": RedisTCP} {
		t.Run(name, func(t *testing.T) {
			s := start(t, "--appendfsync", "always", "--hz", "50")
			c := s.Client()
			ctx := t.Context()
			if err := c.Set(ctx, "k", "v", 0).Err(); err != nil {
				t.Fatal(err)
			}
			if hz := c.ConfigGet(ctx, "hz").Val()["hz"]; hz != "50" {
				t.Errorf("hz is %q: the arguments must win over the file", hz)
			}
			if f := c.ConfigGet(ctx, "notify-keyspace-events").Val()["notify-keyspace-events"]; !strings.Contains(f, "x") {
				t.Errorf("flags are %q: the shipped file must be in use", f)
			}
			s.Kill()
			if err := c.Ping(ctx).Err(); err == nil {
				t.Error("a killed server answers")
			}
			s.Start()
			if v, err := c.Get(ctx, "k").Result(); v != "v" {
				t.Errorf("after the kill: %q, %v", v, err)
			}
			s.Stop()
			s.Start()
			o, err := redis.ParseURL(s.URL())
			if err != nil {
				t.Fatal(err)
			}
			other := redis.NewClient(o)
			defer other.Close()
			if v, err := other.Get(ctx, "k").Result(); v != "v" {
				t.Errorf("after the stop: %q, %v", v, err)
			}
		})
	}
}

func TestPausedRedisDoesNotAnswer(t *testing.T) {
	s := Redis(t)
	c := s.Client()
	s.Pause()
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if err := c.Ping(ctx).Err(); err == nil {
		t.Error("a paused server answers")
	}
	s.Resume()
	if err := c.Ping(t.Context()).Err(); err != nil {
		t.Error(err)
	}
	s.Pause() // and the end of the test must get rid of it all the same
}

func TestRedisWithoutConfig(t *testing.T) {
	c := Redis(t, "--rename-command", "CONFIG", "").Client()
	if err := c.ConfigGet(t.Context(), "hz").Err(); err == nil || !strings.Contains(err.Error(), "unknown command") {
		t.Errorf("CONFIG answers %v", err)
	}
}

func TestNATSKeepsPortAndStream(t *testing.T) {
	n := NATS(t, func(o *server.Options) { o.MaxPayload = 5000 })
	keeps(t, n, n.Stop)
	if got := n.Connect(t).MaxPayload(); got != 5000 {
		t.Errorf("max_payload is %d: the option is lost", got)
	}
}

func TestNATSProcessKeepsPortAndStream(t *testing.T) {
	n := NATSProcess(t)
	keeps(t, n, n.Stop)
	keeps(t, n, n.Kill)
}

func keeps(t *testing.T, n interface {
	Connect(testing.TB, ...nats.Option) *nats.Conn
	URL() string
	Start()
}, end func()) {
	t.Helper()
	url := n.URL()
	nc := n.Connect(t)
	js, err := jetstream.New(nc)
	if err != nil {
		t.Fatal(err)
	}
	s, err := js.CreateOrUpdateStream(t.Context(), jetstream.StreamConfig{Name: "S", Subjects: []string{"s.>"}})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := js.Publish(t.Context(), "s.a", []byte("x")); err != nil {
		t.Fatal(err)
	}
	before, err := s.Info(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	end()
	n.Start()
	if n.URL() != url {
		t.Fatalf("the address moved from %s to %s", url, n.URL())
	}
	js, err = jetstream.New(n.Connect(t))
	if err != nil {
		t.Fatal(err)
	}
	s, err = js.Stream(t.Context(), "S")
	if err != nil {
		t.Fatal(err)
	}
	if got := s.CachedInfo().State.Msgs; got != before.State.Msgs {
		t.Errorf("%d messages, had %d", got, before.State.Msgs)
	}
}

func TestPausedNATSDoesNotAnswer(t *testing.T) {
	n := NATSProcess(t)
	nc := n.Connect(t)
	n.Pause()
	if err := nc.FlushTimeout(50 * time.Millisecond); err == nil {
		t.Error("a paused server answers")
	}
	n.Resume()
	if err := nc.FlushTimeout(patience); err != nil {
		t.Error(err)
	}
}
