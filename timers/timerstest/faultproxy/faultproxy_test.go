package faultproxy_test

import (
	"context"
	"errors"
	"os"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/lapse-timers/lapse/timers"
	"github.com/lapse-timers/lapse/timers/timerstest"
	"github.com/lapse-timers/lapse/timers/timerstest/faultproxy"
)

func TestMain(m *testing.M) {
	goleak.VerifyTestMain(m)
}

func redisProxy(t *testing.T) (p *faultproxy.Redis, through, direct *redis.Client) {
	rs := timerstest.Redis(t)
	p, err := faultproxy.NewRedis("unix", rs.Addr(), os.DirFS("../../lua"))
	require.NoError(t, err)
	t.Cleanup(p.Close)
	o, err := timers.ParseRedisURL(p.URL() + "?read_timeout=300ms")
	require.NoError(t, err)
	through = redis.NewClient(o)
	t.Cleanup(func() { through.Close() })
	return p, through, rs.Client()
}

// once lets the fault befall the first command of that name, and counts how
// often it comes.
func once(name string, f faultproxy.Fault) (rule func(faultproxy.Command) faultproxy.Fault, seen *atomic.Int64) {
	seen = &atomic.Int64{}
	return func(c faultproxy.Command) faultproxy.Fault {
		if c.Is(name) && seen.Add(1) == 1 {
			return f
		}
		return faultproxy.Pass
	}, seen
}

func TestFaultsOfCommands(t *testing.T) {
	p, through, direct := redisProxy(t)
	ctx := t.Context()
	for _, c := range []struct {
		name  string
		fault faultproxy.Fault
		err   string // part of it; "" for none
		ran   bool
	}{
		{"pass", faultproxy.Pass, "", true},
		{"delay", faultproxy.Delay(20 * time.Millisecond), "", true},
		{"cut before", faultproxy.CutFirst, "EOF", false},
		{"cut after", faultproxy.CutReply, "EOF", true},
		{"stall", faultproxy.Stall, "timeout", false},
		{"reply dropped", faultproxy.DropReply, "timeout", true},
		{"answer", faultproxy.Answer("LOADING later"), "LOADING later", false},
	} {
		t.Run(c.name, func(t *testing.T) {
			require.NoError(t, direct.Del(ctx, "n").Err())
			rule, seen := once("incr", c.fault)
			p.Obey(rule)
			err := through.Incr(ctx, "n").Err()
			if c.err == "" {
				require.NoError(t, err)
			} else {
				require.ErrorContains(t, err, c.err)
			}
			require.EqualValues(t, 1, seen.Load())
			n, err := direct.Get(ctx, "n").Int()
			if c.ran {
				require.NoError(t, err)
				require.Equal(t, 1, n)
			} else {
				require.ErrorIs(t, err, redis.Nil)
			}
			require.NoError(t, through.Incr(ctx, "n").Err(), "the next one passes")
		})
	}
	require.EqualValues(t, 2, p.Cuts())
}

// An answer of the proxy's own keeps its place among the replies.
func TestAnswersKeepTheirOrder(t *testing.T) {
	p, through, _ := redisProxy(t)
	p.Obey(func(c faultproxy.Command) faultproxy.Fault {
		if c.Is("get") {
			return faultproxy.Answer("MISCONF no")
		}
		return faultproxy.Pass
	})
	for range 50 {
		cmds, err := through.Pipelined(t.Context(), func(p redis.Pipeliner) error {
			p.Echo(t.Context(), "a")
			p.Get(t.Context(), "x")
			p.Get(t.Context(), "x")
			p.Echo(t.Context(), "b")
			p.Get(t.Context(), "x")
			return nil
		})
		require.Error(t, err)
		for i, want := range []string{"a", "", "", "b", ""} {
			if want == "" {
				require.ErrorContains(t, cmds[i].Err(), "MISCONF no")
				continue
			}
			got, err := cmds[i].(*redis.StringCmd).Result()
			require.NoError(t, err)
			require.Equal(t, want, got)
		}
	}
}

func TestHeldCommandsAreJudgedAnew(t *testing.T) {
	p, through, direct := redisProxy(t)
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	held := make(chan struct{}, 1)
	p.Obey(func(c faultproxy.Command) faultproxy.Fault {
		if c.Is("set") {
			held <- struct{}{}
			return faultproxy.Hold
		}
		return faultproxy.Pass
	})
	require.ErrorContains(t, through.Set(ctx, "k", "v", 0).Err(), "timeout")
	<-held
	require.EqualValues(t, 0, direct.Exists(t.Context(), "k").Val())
	p.Obey(func(faultproxy.Command) faultproxy.Fault { return faultproxy.Pass })
	timerstest.Eventually(t, 10*time.Second, "it is carried out though its sender has gone", func() bool {
		return direct.Exists(t.Context(), "k").Val() == 1
	})
}

func TestRefusedConnectionsToRedis(t *testing.T) {
	p, through, _ := redisProxy(t)
	require.NoError(t, through.Ping(t.Context()).Err())
	p.Refuse()
	p.Refuse()
	timerstest.Eventually(t, 10*time.Second, "the standing connection to be found dead", func() bool {
		err := through.Ping(t.Context()).Err()
		return err != nil && strings.Contains(err.Error(), "dial")
	})
	require.NoError(t, p.Admit())
	require.NoError(t, p.Admit())
	require.NoError(t, through.Ping(t.Context()).Err())
}

func TestSubscriptionsPass(t *testing.T) {
	_, through, direct := redisProxy(t)
	sub := through.Subscribe(t.Context(), "c")
	defer sub.Close()
	_, err := sub.Receive(t.Context())
	require.NoError(t, err)
	for range 3 {
		require.NoError(t, sub.Ping(t.Context()))
		require.NoError(t, direct.Publish(t.Context(), "c", "hello").Err())
	}
	for got := 0; got < 6; {
		m, err := sub.ReceiveTimeout(t.Context(), 10*time.Second)
		require.NoError(t, err)
		switch m := m.(type) {
		case *redis.Message:
			require.Equal(t, "hello", m.Payload)
			got++
		case *redis.Pong:
			got++
		}
	}
}

func TestCommandsAreToldApart(t *testing.T) {
	p, through, direct := redisProxy(t)
	keys, err := timers.NewKeys("timers", 1)
	require.NoError(t, err)
	store := timers.NewStore(through, keys)
	require.NoError(t, store.Open(t.Context()))
	about := map[string]string{}
	p.Obey(func(c faultproxy.Command) faultproxy.Fault {
		if c.Script != "" || c.Is("hmget") {
			about[c.Script] = c.Args[0]
			if !c.About("a:x") || c.About("a:y") {
				about["wrong"] = c.Script
			}
		}
		return faultproxy.Pass
	})
	ref := timers.Ref{Topic: "a", ID: "x"}
	require.NoError(t, direct.ScriptFlush(t.Context()).Err())
	_, err = store.Set(t.Context(), 0, []timers.SetItem{{Ref: ref, In: time.Hour}})
	require.NoError(t, err)
	_, err = store.Get(t.Context(), []timers.Ref{ref})
	require.NoError(t, err)
	_, _, err = store.Cancel(t.Context(), 0, []timers.Ref{ref})
	require.NoError(t, err)
	p.Obey(func(faultproxy.Command) faultproxy.Fault { return faultproxy.Pass })
	require.Equal(t, map[string]string{"set": "eval", "": "hmget", "cancel": "eval"}, about)
}

func natsProxy(t *testing.T) (p *faultproxy.NATS, through, direct *nats.Conn) {
	ns := timerstest.NATS(t)
	p, err := faultproxy.NewNATS(strings.TrimPrefix(ns.URL(), "nats://"))
	require.NoError(t, err)
	t.Cleanup(p.Close)
	through, err = nats.Connect(p.URL(), nats.Name("through"), nats.MaxReconnects(-1), nats.ReconnectWait(10*time.Millisecond))
	require.NoError(t, err)
	t.Cleanup(through.Close)
	return p, through, ns.Connect(t)
}

// befall lets the fault befall the messages that the filter picks.
func befall(p *faultproxy.NATS, f faultproxy.Fault, filter func(faultproxy.Message) bool) {
	p.Obey(func(m faultproxy.Message) faultproxy.Fault {
		if m.Conn == "through" && filter(m) {
			return f
		}
		return faultproxy.Pass
	})
}

func TestFaultsOfMessages(t *testing.T) {
	p, through, direct := natsProxy(t)
	heard, err := direct.SubscribeSync("a.b")
	require.NoError(t, err)
	require.NoError(t, direct.Flush())
	inbox, err := through.SubscribeSync("inbox.*")
	require.NoError(t, err)
	require.NoError(t, through.Flush())
	publish := func() {
		t.Helper()
		m := &nats.Msg{Subject: "a.b", Reply: "inbox.1", Data: []byte("body"), Header: nats.Header{"X": {"y"}}}
		require.NoError(t, through.PublishMsg(m))
	}
	mine := func(m faultproxy.Message) bool {
		return m.Published() && m.Subject == "a.b" && m.Reply == "inbox.1" && m.HeaderIs("X", "y") && m.Body == "body"
	}
	nothing := func(s *nats.Subscription) {
		t.Helper()
		_, err := s.NextMsg(50 * time.Millisecond)
		require.ErrorIs(t, err, nats.ErrTimeout)
	}

	publish()
	_, err = heard.NextMsg(10 * time.Second)
	require.NoError(t, err)

	befall(p, faultproxy.Delay(10*time.Millisecond), mine)
	publish()
	_, err = heard.NextMsg(10 * time.Second)
	require.NoError(t, err)

	befall(p, faultproxy.Drop, mine)
	publish()
	require.NoError(t, through.Flush(), "the connection stands")
	nothing(heard)

	befall(p, faultproxy.Deliver("hello"), mine)
	publish()
	m, err := inbox.NextMsg(10 * time.Second)
	require.NoError(t, err)
	require.Equal(t, "inbox.1", m.Subject)
	require.Equal(t, "hello", string(m.Data))
	befall(p, faultproxy.Deliver("NATS/1.0 503\r\n\r\n"), mine)
	publish()
	m, err = inbox.NextMsg(10 * time.Second)
	if err != nil { // what nats.go makes of it on a subscription
		require.ErrorIs(t, err, nats.ErrNoResponders)
	} else {
		require.Equal(t, "503", m.Header.Get("Status"))
	}
	nothing(heard)

	befall(p, faultproxy.Deliver("other"), func(m faultproxy.Message) bool { return m.Delivered() && m.Subject == "inbox.2" })
	require.NoError(t, direct.Publish("inbox.2", []byte("real")))
	m, err = inbox.NextMsg(10 * time.Second)
	require.NoError(t, err)
	require.Equal(t, "other", string(m.Data))
	befall(p, faultproxy.Drop, func(m faultproxy.Message) bool { return m.Delivered() })
	require.NoError(t, direct.Publish("inbox.2", []byte("real")))
	nothing(inbox)

	befall(p, faultproxy.Answer(`-ERR 'Permissions Violation for Publish to "a.b"'`), mine)
	publish()
	timerstest.Eventually(t, 10*time.Second, "the violation to be heard", func() bool {
		return errors.Is(through.LastError(), nats.ErrPermissionViolation)
	})
	nothing(heard)

	cut := through.StatusChanged(nats.RECONNECTING)
	befall(p, faultproxy.CutFirst, mine)
	publish()
	<-cut
	nothing(heard)
	timerstest.Eventually(t, 10*time.Second, "it is back", through.IsConnected)

	befall(p, faultproxy.Stall, mine)
	publish()
	require.Error(t, through.FlushTimeout(50*time.Millisecond), "nothing gets through")
	require.True(t, through.IsConnected())
	nothing(heard)

	p.Refuse()
	timerstest.Eventually(t, 10*time.Second, "it is away", func() bool { return !through.IsConnected() })
	befall(p, faultproxy.Pass, mine)
	require.NoError(t, p.Admit())
	timerstest.Eventually(t, 10*time.Second, "it is back", through.IsConnected)
	publish()
	_, err = heard.NextMsg(10 * time.Second)
	require.NoError(t, err)
}
