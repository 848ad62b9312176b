package notify

import (
	"context"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/lapse-timers/lapse/timers"
	"github.com/lapse-timers/lapse/timers/timerstest"
	"github.com/redis/go-redis/v9"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) {
	redis.SetLogger(silence{}) // it tells each refused dial of servers that are only starting
	goleak.VerifyTestMain(m)
}

type silence struct{}

func (silence) Printf(context.Context, string, ...any) {}

// within bounds every wait of these tests. What is measured is measured; this
// only says when to give up on a busy machine.
const within = 15 * time.Second

// run is a listener that runs until the test ends, and what it reported.
type run struct {
	*Listener
	t     testing.TB
	keys  *timers.Keys
	admin *redis.Client // may do anything in the listener's database
	hints chan timers.Ref
	gaps  chan struct{} // one slot, as in main
	log   *timerstest.Log
	stop  func()
}

func keysOf(t testing.TB) *timers.Keys {
	t.Helper()
	k, err := timers.NewKeys("timers", 3)
	if err != nil {
		t.Fatal(err)
	}
	return k
}

// listen runs a listener; change may alter it before it starts.
func listen(t testing.TB, admin, client *redis.Client, change func(*Listener)) *run {
	t.Helper()
	r := &run{t: t, admin: admin, keys: keysOf(t), hints: make(chan timers.Ref, 100_000), gaps: make(chan struct{}, 1), log: &timerstest.Log{}}
	r.Listener = New(Config{
		Client: client,
		Keys:   r.keys,
		Hint:   func(ref timers.Ref) { r.hints <- ref },
		Gap: func() {
			select {
			case r.gaps <- struct{}{}:
			default:
			}
		},
		Configure: true,
		Logger:    slog.New(slog.NewTextHandler(r.log, nil)),
	})
	if change != nil {
		change(r.Listener)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- r.Run(ctx) }()
	r.stop = sync.OnceFunc(func() {
		cancel()
		began := time.Now()
		if err := <-done; err != nil {
			t.Errorf("Run: %v", err)
		}
		if took := time.Since(began); took > 500*time.Millisecond {
			t.Errorf("Run took %v to stop", took)
		}
	})
	t.Cleanup(r.stop)
	return r
}

// gap waits for a gap to be reported.
func (r *run) gap() {
	r.t.Helper()
	select {
	case <-r.gaps:
	case <-time.After(within):
		r.t.Fatalf("no gap reported; %+v %+v", r.Health(), r.Stats())
	}
}

// eventually is Eventually with the state and the log for who has to find out why.
func (r *run) eventually(what string, ok func() bool) {
	r.t.Helper()
	deadline := time.AfterFunc(within-time.Second, func() { r.t.Logf("still not %s: %+v %+v\n%s", what, r.Health(), r.Stats(), r.log) })
	defer deadline.Stop()
	timerstest.Eventually(r.t, within, what, ok)
}

// hears expires a timer of ours and waits for its hint.
func (r *run) hears(id string) {
	r.t.Helper()
	ref := timers.Ref{Topic: "orders.close", ID: id}
	expire(r.t, r.admin, r.keys.Trigger(ref))
	for {
		select {
		case got := <-r.hints:
			if got == ref {
				return
			}
		case <-time.After(within):
			r.t.Fatalf("no hint for %v; %+v %+v", ref, r.Health(), r.Stats())
		}
	}
}

// expire makes Redis announce the key as expired before it returns. It is set with
// a time to come, since Valkey 8 deletes at once what is set with one that has passed,
// without an event, and looked at until that time is over.
func expire(t testing.TB, c *redis.Client, key string) {
	t.Helper()
	ctx := context.Background()
	if err := c.Do(ctx, "set", key, "", "px", 1).Err(); err != nil {
		t.Fatal(err)
	}
	for end := time.Now().Add(within); ; {
		if n, err := c.Exists(ctx, key).Result(); err != nil || time.Now().After(end) {
			t.Fatalf("%d, %v", n, err)
		} else if n == 0 {
			return
		}
	}
}

func killSubscribers(t testing.TB, c *redis.Client) {
	t.Helper()
	if err := c.Do(context.Background(), "client", "kill", "type", "pubsub").Err(); err != nil {
		t.Fatal(err)
	}
}

func setFlagsTo(t testing.TB, c *redis.Client, value string) {
	t.Helper()
	if err := c.ConfigSet(context.Background(), setting, value).Err(); err != nil {
		t.Fatal(err)
	}
}

func TestHearsExpiredTimers(t *testing.T) {
	t.Parallel()
	c := timerstest.Redis(t).Client()
	r := listen(t, c, c, nil)
	r.gap()
	if r.Deaf() {
		t.Error("deaf when the gap is reported")
	}
	for _, id := range []string{"1", "a:b:c", "{x}", "sp ace", "⏰"} {
		r.hears(id)
	}
	if h := r.Health(); h != (Health{OK: true}) {
		t.Errorf("%+v", h)
	}
	if s := r.Stats(); s != (Stats{Events: 5, Gaps: 1}) {
		t.Errorf("%+v", s)
	}
	r.stop()
	if !r.Deaf() || r.Health().OK {
		t.Error("not deaf after the end")
	}
	if n := r.log.Count("\n"); n != 1 {
		t.Errorf("%d lines in a quiet life:\n%s", n, r.log)
	}
}

func TestDeafBeforeRun(t *testing.T) {
	t.Parallel()
	c := timerstest.Redis(t).Client()
	l := New(Config{Client: c, Keys: keysOf(t)})
	if h := l.Health(); !l.Deaf() || h.OK || !strings.Contains(h.Why, "not subscribed") {
		t.Errorf("%v %+v", l.Deaf(), h)
	}
}

func TestListensToTheDatabaseOfTheClient(t *testing.T) {
	t.Parallel()
	s := timerstest.Redis(t)
	o := *s.Client().Options()
	o.DB = 5
	five := redis.NewClient(&o)
	defer five.Close()
	r := listen(t, five, five, nil)
	r.gap()
	expire(t, s.Client(), r.keys.Trigger(timers.Ref{Topic: "a", ID: "of database 0"}))
	r.hears("of database 5")
	if n := r.Stats().Events; n != 1 {
		t.Errorf("%d events", n)
	}
	if !strings.Contains(r.log.String(), "__keyevent@5__:expired") {
		t.Errorf("the log does not name the channel:\n%s", r.log)
	}
}

// A probe asks about the channel of its own database.
func TestProbesOfAnotherDatabase(t *testing.T) {
	t.Parallel()
	s := timerstest.Redis(t)
	o := *s.Client().Options()
	o.DB = 5
	five := redis.NewClient(&o)
	defer five.Close()
	zero := listen(t, s.Client(), s.Client(), func(l *Listener) { l.pace.probe = time.Hour })
	zero.gap()
	r := listen(t, five, five, func(l *Listener) { l.pace.probe, l.pace.heard = 10*time.Millisecond, within })
	r.eventually("some probes heard", func() bool { return r.echoes.Load() >= 5 })
	zero.hears("1")
	if n := zero.echoes.Load(); n != 0 {
		t.Errorf("%d heard in database 0", n)
	}
}

func TestRESP2(t *testing.T) {
	t.Parallel()
	s := timerstest.Redis(t)
	o := *s.Client().Options()
	o.Protocol = 2
	c := redis.NewClient(&o)
	defer c.Close()
	r := listen(t, c, c, func(l *Listener) { l.pace.ping, l.pace.pong = 20*time.Millisecond, within })
	r.gap()
	r.hears("1")
	killSubscribers(t, c)
	r.eventually("subscribed again", func() bool { return r.Stats().Resubscriptions == 1 && !r.Deaf() })
	r.hears("2")
}

func TestForeignKeysAreIgnored(t *testing.T) {
	t.Parallel()
	c := timerstest.Redis(t).Client()
	r := listen(t, c, c, nil)
	r.gap()
	before := r.log.String()
	foreign := []string{"", "x", ":::", "timers", "timers:", "timers:{0}", "timers:{0}:t:", "timers:{0}:t:a", "timers:{0}:t:a:",
		"timers:{99}:t:a:1", "timers:{0}:h:a:1", "timers:{0}:t:a b:1", strings.Repeat("k", 10_000),
		"timers:{crew}:probe:", "timers:{crew}", "timers:{0}:probe:a", "timersx:{crew}:probe:a", "x{crew}:probe:a",
		"timers:{0}:t:a:" + strings.Repeat("i", 10_000), "\x00\xff\r\n", "timers:{0}:t:a:\xff"}
	for _, key := range foreign {
		expire(t, c, key)
	}
	r.hears("1")
	if s := r.Stats(); s.Ignored != int64(len(foreign)) || s.Events != 1 {
		t.Errorf("%+v, want %d ignored", s, len(foreign))
	}
	if after := r.log.String(); after != before {
		t.Errorf("logged:\n%s", after[len(before):])
	}
}

func TestKilledSubscriberComesBack(t *testing.T) {
	t.Parallel()
	c := timerstest.Redis(t).Client()
	r := listen(t, c, c, func(l *Listener) { l.pace.healthy = 0 }) // each kill is the first after a good time
	r.gap()
	var worst time.Duration
	for i := range 20 {
		gaps := r.Stats().Gaps
		killSubscribers(t, c)
		began := time.Now()
		// One gap for the loss, one when hearing again.
		r.eventually("two more gaps", func() bool { return r.Stats().Gaps >= gaps+2 })
		worst = max(worst, time.Since(began))
		r.hears(fmt.Sprint(i))
		if n := c.PubSubNumSub(context.Background(), r.channel).Val()[r.channel]; n != 1 {
			t.Errorf("%d subscriptions", n)
		}
	}
	t.Logf("worst recovery %v", worst)
	if s := r.Stats(); s.Resubscriptions != 20 || s.Gaps != 41 {
		t.Errorf("%+v", s)
	}
}

func TestClearedFlagsAreRepairedAtCheck(t *testing.T) {
	t.Parallel()
	c := timerstest.Redis(t).Client()
	r := listen(t, c, c, func(l *Listener) { l.pace.look = time.Hour })
	r.gap()
	var worst time.Duration
	for i := range 10 {
		setFlagsTo(t, c, "g$K")
		began := time.Now()
		r.Check()
		r.gap()
		worst = max(worst, time.Since(began))
		r.hears(fmt.Sprint(i))
		if got := c.ConfigGet(context.Background(), setting).Val()[setting]; !strings.Contains(got, "g") || !strings.Contains(got, "$") || !strings.Contains(got, "K") {
			t.Errorf("a neighbour's flags are lost: %q", got)
		}
	}
	t.Logf("worst repair %v", worst)
	if s := r.Stats(); s.Repairs != 10 || s.Gaps != 11 || s.Resubscriptions != 0 {
		t.Errorf("%+v", s)
	}
	if n := r.log.Count("added missing notification flags"); n != 1 {
		t.Errorf("logged %d times:\n%s", n, r.log)
	}
}

func TestClearedFlagsAreRepairedByThePeriodicLook(t *testing.T) {
	t.Parallel()
	c := timerstest.Redis(t).Client()
	r := listen(t, c, c, func(l *Listener) { l.pace.look = 50 * time.Millisecond })
	r.gap()
	setFlagsTo(t, c, "")
	r.gap()
	r.hears("1")
	if s := r.Stats(); s.Repairs != 1 {
		t.Errorf("%+v", s)
	}
}

func TestSufficientFlagsAreLeftAlone(t *testing.T) {
	t.Parallel()
	for _, flags := range []string{"Ex", "KEA", "AE", "Egx"} {
		c := timerstest.Redis(t, "--notify-keyspace-events", flags).Client()
		r := listen(t, c, c, func(l *Listener) { l.pace.look = 5 * time.Millisecond })
		r.gap()
		r.hears("1")
		timerstest.Eventually(t, within, "some looks", func() bool { return calls(t, c, "config|get") > 10 })
		r.stop()
		if n := calls(t, c, "config|set"); n != 0 {
			t.Errorf("%s: %d times CONFIG SET", flags, n)
		}
		if n := r.log.Count("WARN"); n != 0 {
			t.Errorf("%s: warned:\n%s", flags, r.log)
		}
	}
}

// calls is how often Redis ran the command.
func calls(t testing.TB, c *redis.Client, command string) (n int) {
	t.Helper()
	info, err := c.Info(context.Background(), "commandstats").Result()
	if err != nil {
		t.Fatal(err)
	}
	_, rest, ok := strings.Cut(info, "cmdstat_"+command+":calls=")
	if !ok {
		return 0
	}
	if _, err := fmt.Sscanf(rest, "%d", &n); err != nil {
		t.Fatal(err)
	}
	return n
}

func TestMissingFlagsWithConfigureOff(t *testing.T) {
	t.Parallel()
	c := timerstest.Redis(t, "--notify-keyspace-events", "Kx").Client()
	r := listen(t, c, c, func(l *Listener) { l.cfg.Configure, l.pace.look = false, 5*time.Millisecond })
	r.gap()
	if h := r.Health(); !r.Deaf() || h.OK || !strings.Contains(h.Why, "E is missing") || !strings.Contains(h.Why, "xKE") {
		t.Errorf("%v %+v", r.Deaf(), h)
	}
	looks := calls(t, c, "config|get")
	timerstest.Eventually(t, within, "more looks", func() bool { return calls(t, c, "config|get") > looks+10 })
	if n := r.log.Count("WARN"); n != 1 {
		t.Errorf("%d warnings:\n%s", n, r.log)
	}
	setFlagsTo(t, c, "Ex") // by the operator
	r.gap()
	if r.Deaf() || !r.Health().OK {
		t.Errorf("%+v", r.Health())
	}
	r.hears("1")
}

func TestSilentSocketIsNoticed(t *testing.T) {
	t.Parallel()
	s := timerstest.RedisTCP(t)
	c := s.Client()
	r := listen(t, c, c, func(l *Listener) { l.pace.ping, l.pace.pong = 100*time.Millisecond, 200*time.Millisecond })
	r.gap()
	r.hears("1")
	s.Pause()
	began := time.Now()
	r.gap()
	if !r.Deaf() {
		t.Error("not deaf")
	}
	t.Logf("noticed after %v with a ping every 100 ms and 200 ms for the answer", time.Since(began))
	if h := r.Health(); !strings.Contains(h.Why, "did not answer a ping") {
		t.Errorf("%+v", h)
	}
	s.Resume()
	began = time.Now()
	r.gap()
	t.Logf("hearing %v after it answers again", time.Since(began))
	r.hears("2")
}

func TestQuietSubscriptionStays(t *testing.T) {
	t.Parallel()
	c := timerstest.Redis(t).Client()
	r := listen(t, c, c, func(l *Listener) { l.pace.ping, l.pace.pong = time.Millisecond, within })
	r.gap()
	timerstest.Eventually(t, within, "many pings", func() bool { return calls(t, c, "ping") > 300 })
	r.hears("1")
	if s := r.Stats(); s.Resubscriptions != 0 || s.Gaps != 1 {
		t.Errorf("%+v", s)
	}
}
