package notify

import (
	"context"
	"net"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/lapse-timers/lapse/timers/timerstest"
	"github.com/redis/go-redis/v9"
)

// as connects with an ACL user that the rules make.
func as(t testing.TB, s *timerstest.RedisServer, rules ...any) *redis.Client {
	t.Helper()
	args := append([]any{"acl", "setuser", "lapse", "on", ">secret", "~*", "+@all"}, rules...)
	if err := s.Client().Do(context.Background(), args...).Err(); err != nil {
		t.Fatal(err)
	}
	o := *s.Client().Options()
	o.Username, o.Password = "lapse", "secret"
	c := redis.NewClient(&o)
	t.Cleanup(func() { _ = c.Close() })
	return c
}

func TestConfigRenamedAway(t *testing.T) {
	t.Parallel()
	c := timerstest.Redis(t, "--rename-command", "CONFIG", "", "--notify-keyspace-events", "").Client()
	r := listen(t, c, c, func(l *Listener) { l.pace.look, l.pace.heard = 2*time.Millisecond, 200*time.Millisecond })
	r.gap()
	h := r.Health()
	if !r.Deaf() || h.OK || !strings.Contains(h.Why, "unknown") || !strings.Contains(h.Why, "notify-keyspace-events Ex") {
		t.Errorf("%v %+v", r.Deaf(), h)
	}
	r.eventually("told", func() bool { return r.log.Count(cannotHear) == 1 })
	before := r.Stats().Resubscriptions
	r.eventually("subscribed again", func() bool { return r.Stats().Resubscriptions >= before+2 })
	expire(t, c, "timers:{0}:t:a:1")
	r.stop()
	if n := r.log.Count("WARN"); n != 1 || !r.Deaf() {
		t.Errorf("warned %d times:\n%s", n, r.log)
	}
}

// A managed Redis hides its flags, but they are right: the first event proves
// it, and events that stay away while timers are recovered refute it, where no
// probe can.
func TestHiddenFlagsAreProvedByAnEvent(t *testing.T) {
	t.Parallel()
	s := timerstest.Redis(t, "--notify-keyspace-events", "Ex")
	r := listen(t, s.Client(), as(t, s, "&*", "-config"), func(l *Listener) {
		l.pace.look, l.pace.checked, l.pace.probe = time.Hour, time.Millisecond, 0
	})
	r.gap()
	if !r.Deaf() {
		t.Error("not deaf before the first event")
	}
	expire(t, s.Client(), "foreign") // says nothing about ours
	r.eventually("foreign key heard", func() bool { return r.Stats().Ignored == 1 })
	if !r.Deaf() {
		t.Error("not deaf after an event of somebody else")
	}
	r.hears("1")
	if h := r.Health(); r.Deaf() || !h.OK || !strings.Contains(h.Why, "unknown") {
		t.Errorf("%v %+v", r.Deaf(), h)
	}
	looks := calls(t, s.Client(), "config|get")

	// One check is no refutation, when events come in between.
	for i := range 3 * silentChecks {
		r.hears(strconv.Itoa(i))
		r.Check()
		timerstest.Eventually(t, within, "check taken", func() bool { return len(r.check) == 0 })
	}
	if r.Deaf() {
		t.Error("deaf although events come")
	}
	setFlagsTo(t, s.Client(), "")
	r.eventually("deaf", func() bool { r.Check(); return r.Deaf() })
	setFlagsTo(t, s.Client(), "Ex")
	r.hears("again")
	if r.Deaf() {
		t.Error("deaf after an event")
	}
	if n := calls(t, s.Client(), "config|get"); n != looks {
		t.Errorf("asked %d more times for what is refused", n-looks)
	}
	// A new subscription needs a new proof.
	killSubscribers(t, s.Client())
	r.eventually("subscribed again", func() bool { return r.Stats().Resubscriptions == 1 })
	if !r.Deaf() {
		t.Error("not deaf after a new subscription")
	}
	r.hears("after")
	if r.Deaf() {
		t.Error("deaf after an event of the new subscription")
	}
}

func TestConfigSetRefused(t *testing.T) {
	t.Parallel()
	s := timerstest.Redis(t, "--notify-keyspace-events", "E")
	r := listen(t, s.Client(), as(t, s, "&*", "-config|set"), func(l *Listener) { l.pace.look = 5 * time.Millisecond })
	r.gap()
	h := r.Health()
	if !r.Deaf() || h.OK || !strings.Contains(h.Why, "x is missing") || !strings.Contains(h.Why, "CONFIG SET was refused (NOPERM") {
		t.Errorf("%v %+v", r.Deaf(), h)
	}
	looks := calls(t, s.Client(), "config|get")
	timerstest.Eventually(t, within, "more looks", func() bool { return calls(t, s.Client(), "config|get") > looks+10 })
	if n := r.log.Count("WARN"); n != 1 {
		t.Errorf("%d warnings:\n%s", n, r.log)
	}
	setFlagsTo(t, s.Client(), "Ex")
	r.gap()
	r.hears("1")
}

func TestConfigSetRefusedButFlagsRight(t *testing.T) {
	t.Parallel()
	s := timerstest.Redis(t, "--notify-keyspace-events", "Ex")
	r := listen(t, s.Client(), as(t, s, "&*", "-config|set"), nil)
	r.gap()
	r.hears("1")
	if n := r.log.Count("WARN"); n != 0 || r.Deaf() || r.Health() != (Health{OK: true}) {
		t.Errorf("%+v, log:\n%s", r.Health(), r.log)
	}
}

func TestChannelRefusedByACL(t *testing.T) {
	t.Parallel()
	s := timerstest.Redis(t)
	r := listen(t, s.Client(), as(t, s, "resetchannels"), func(l *Listener) { l.pace.backoffMax = 20 * time.Millisecond })
	r.eventually("explained", func() bool { return strings.Contains(r.Health().Why, "NOPERM") })
	h := r.Health()
	if !r.Deaf() || h.OK || !strings.Contains(h.Why, "ACL SETUSER lapse +subscribe +ping &__keyevent@0__:expired") {
		t.Errorf("%+v", h)
	}
	if strings.Contains(h.Why, "secret") {
		t.Error("the password is in it")
	}
	tries := calls(t, s.Client(), "hello")
	timerstest.Eventually(t, within, "more attempts", func() bool { return calls(t, s.Client(), "hello") > tries+5 })
	if n := r.log.Count("\n"); n != 1 {
		t.Errorf("%d lines:\n%s", n, r.log)
	}
	as(t, s, "&__keyevent@0__:expired")
	r.gap()
	r.hears("1")
	if !r.Health().OK {
		t.Errorf("%+v", r.Health())
	}
}

// The remedy that health names is all that is needed.
func TestLeastACL(t *testing.T) {
	t.Parallel()
	s := timerstest.Redis(t, "--notify-keyspace-events", "Ex")
	c := as(t, s, "-@all", "resetchannels", "+subscribe", "+ping", "&__keyevent@0__:expired")
	r := listen(t, s.Client(), c, nil)
	r.gap()
	r.hears("1")
}

// An ACL without PING answers with an error, which is a sign of life.
func TestPingRefusedByACL(t *testing.T) {
	t.Parallel()
	s := timerstest.Redis(t)
	r := listen(t, s.Client(), as(t, s, "&*", "-ping"), func(l *Listener) { l.pace.ping, l.pace.pong = 5*time.Millisecond, within })
	r.gap()
	timerstest.Eventually(t, within, "pings refused", func() bool {
		info := s.Client().Info(context.Background(), "commandstats").Val()
		_, rest, _ := strings.Cut(info, "cmdstat_ping:")
		line, _, _ := strings.Cut(rest, "\r\n")
		_, rejected, ok := strings.Cut(line, "rejected_calls=")
		rejected, _, _ = strings.Cut(rejected, ",")
		n, _ := strconv.Atoi(rejected)
		return ok && n > 10
	})
	r.hears("1")
	if n := r.Stats().Resubscriptions; n != 0 {
		t.Errorf("%d resubscriptions", n)
	}
}

func TestRedisAwayAndBack(t *testing.T) {
	t.Parallel()
	s := timerstest.RedisTCP(t, "--notify-keyspace-events", "")
	c := s.Client()
	refusals := make(chan struct{}, 1000)
	o := *c.Options()
	dial := o.Dialer
	o.Dialer = func(ctx context.Context, network, addr string) (net.Conn, error) {
		nc, err := dial(ctx, network, addr)
		if err != nil {
			refusals <- struct{}{}
		}
		return nc, err
	}
	listener := redis.NewClient(&o)
	defer listener.Close()
	r := listen(t, c, listener, nil)
	r.gap()
	r.hears("1")
	s.Stop()
	r.gap() // the loss
	if h := r.Health(); !r.Deaf() || h.OK {
		t.Errorf("%+v", h)
	}
	// Away until the back-off has reached its ceiling.
	began := time.Now()
	for range 9 {
		select {
		case <-refusals:
		case <-time.After(within):
			t.Fatal("it does not try again")
		}
	}
	t.Logf("9 attempts in %v", time.Since(began))
	if took := time.Since(began); took < 700*time.Millisecond {
		t.Errorf("9 attempts in %v: the back-off does not grow", took)
	}
	s.Start()
	began = time.Now()
	r.gap()
	took := time.Since(began)
	t.Logf("hearing %v after the start", took)
	if took > 2*time.Second {
		t.Errorf("took %v", took)
	}
	r.hears("2") // so the flags are there again
	if got := r.Stats(); got.Repairs != 2 || got.Resubscriptions != 1 {
		t.Errorf("%+v", got)
	}
	if n := r.log.Count("WARN"); n > 4 { // added flags, lost, refused; not one per attempt
		t.Errorf("%d warnings:\n%s", n, r.log)
	}
}

func TestRedisAwayAtStart(t *testing.T) {
	t.Parallel()
	s := timerstest.RedisTCP(t)
	c := s.Client()
	s.Stop()
	r := listen(t, c, c, nil)
	r.eventually("explained", func() bool { return strings.Contains(r.Health().Why, "refused") })
	s.Start()
	r.gap()
	r.hears("1")
}

// Both at once: the flags go while nobody is connected to see it.
func TestKilledAndClearedAgainAndAgain(t *testing.T) {
	t.Parallel()
	c := timerstest.Redis(t).Client()
	r := listen(t, c, c, func(l *Listener) { l.pace.healthy = 0 })
	r.gap()
	for range 15 {
		n := r.Stats().Resubscriptions
		setFlagsTo(t, c, "")
		killSubscribers(t, c)
		r.eventually("subscribed again", func() bool { return r.Stats().Resubscriptions > n && !r.Deaf() })
	}
	r.hears("1")
}

// A master that became a replica behind a connection that stays announces
// nothing, though its flags are right and pings are answered.
func TestDemotedMaster(t *testing.T) {
	t.Parallel()
	c := timerstest.Redis(t).Client()
	r := listen(t, c, c, func(l *Listener) { l.pace.look = 20 * time.Millisecond })
	r.gap()
	ctx := context.Background()
	if err := c.Do(ctx, "replicaof", "127.0.0.1", "1").Err(); err != nil {
		t.Fatal(err)
	}
	r.eventually("deaf", r.Deaf)
	r.eventually("explained", func() bool { return strings.Contains(r.Health().Why, "replica") })
	if err := c.Do(ctx, "replicaof", "no", "one").Err(); err != nil {
		t.Fatal(err)
	}
	r.eventually("not deaf", func() bool { return !r.Deaf() })
	r.hears("1")
}

func TestStopsAtOnce(t *testing.T) {
	t.Parallel()
	s := timerstest.RedisTCP(t)
	c := s.Client()
	t.Run("while listening", func(t *testing.T) {
		r := listen(t, c, c, nil)
		r.gap()
		r.stop() // measures
	})
	t.Run("while Redis is silent", func(t *testing.T) {
		r := listen(t, c, c, nil)
		r.gap()
		s.Pause()
		defer s.Resume()
		r.Check() // a ping that gets no answer
		timerstest.Eventually(t, within, "check taken", func() bool { return len(r.check) == 0 })
		r.stop()
	})
	t.Run("while connecting to a silent Redis", func(t *testing.T) {
		s.Pause()
		defer s.Resume()
		r := listen(t, c, c, nil)
		r.Check()
		r.stop()
	})
}

// With the pace that ships: at most 3 s until a ping and 2 s for its answer,
// whatever else falls due meanwhile.
func TestSilenceIsNoticedInTime(t *testing.T) {
	s := timerstest.RedisTCP(t)
	c := s.Client()
	r := listen(t, c, c, nil)
	r.gap()
	s.Pause()
	defer s.Resume()
	began := time.Now()
	r.gap()
	took := time.Since(began)
	t.Logf("noticed after %v", took)
	if took > 6*time.Second || !r.Deaf() {
		t.Errorf("took %v, deaf %v", took, r.Deaf())
	}
}

func TestRunAndStopUnderStress(t *testing.T) {
	s := timerstest.Redis(t)
	c := s.Client()
	keys := keysOf(t)
	rounds := 60
	for i := range rounds {
		ctx, cancel := context.WithCancel(context.Background())
		first := make(chan struct{}, 1)
		l := New(Config{Client: c, Keys: keys, Configure: true, Gap: func() {
			select {
			case first <- struct{}{}:
			default:
			}
		}})
		var all sync.WaitGroup
		all.Go(func() {
			if err := l.Run(ctx); err != nil {
				t.Errorf("Run: %v", err)
			}
		})
		for range 3 {
			all.Go(func() {
				for ctx.Err() == nil {
					l.Check()
					_, _, _ = l.Deaf(), l.Health(), l.Stats()
					time.Sleep(time.Millisecond) // paces the load, awaits nothing
				}
			})
		}
		if i%2 == 0 {
			<-first // else somewhere in the middle of connecting
		}
		if i%3 == 0 {
			killSubscribers(t, c)
		}
		cancel()
		all.Wait()
	}
	timerstest.Eventually(t, within, "no subscriber left", func() bool {
		return c.PubSubNumSub(context.Background(), "__keyevent@0__:expired").Val()["__keyevent@0__:expired"] == 0
	})
}
