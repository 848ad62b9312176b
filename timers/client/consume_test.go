package client_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/lapse-timers/lapse/timers/client"
	"github.com/lapse-timers/lapse/timers/timerstest"
)

// shared is a connection of the test's own to the Lapse that all share, and a
// topic that nobody else has.
func shared(t *testing.T) (nc *nats.Conn, c *client.Client, topic string) {
	t.Helper()
	nc, err := nats.Connect(os.Getenv("NATS_URL"), nats.Name(t.Name()))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(nc.Close)
	return nc, newClient(t, nc), "test." + strings.ReplaceAll(t.Name(), "/", "_")
}

func set(t *testing.T, c *client.Client, topic string, ids ...string) {
	t.Helper()
	for _, id := range ids {
		if _, err := c.Set(t.Context(), topic, []byte("payload of "+id), client.In(0), client.ID(id)); err != nil {
			t.Fatal(err)
		}
	}
}

func consume(t *testing.T, c *client.Client, topic string, handle func(context.Context, client.Fired) error, opts ...client.ConsumeOption) *client.Receiver {
	t.Helper()
	r, err := c.Consume(t.Context(), topic, strings.ReplaceAll(topic, ".", "-"), handle, opts...)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// settled awaits that the stream waits for nothing more from the durable.
func settled(t *testing.T, nc *nats.Conn, topic string) {
	t.Helper()
	js, err := jetstream.New(nc)
	if err != nil {
		t.Fatal(err)
	}
	d, err := js.Consumer(t.Context(), "TIMERS", strings.ReplaceAll(topic, ".", "-"))
	if err != nil {
		t.Fatal(err)
	}
	timerstest.Eventually(t, patient, "everything is settled", func() bool {
		info, err := d.Info(t.Context())
		return err == nil && info.NumAckPending == 0 && info.NumPending == 0
	})
}

// quiet has OnError not clutter the log of a test that provokes errors.
func quiet() client.ReceiveOption { return client.OnError(func(error) {}) }

// TestConsumeTriesAgain: an event that fired before anybody listened is
// delivered; one that fails comes again, later each time, as the same, and holds
// up no other.
func TestConsumeTriesAgain(t *testing.T) {
	t.Parallel()
	nc, c, topic := shared(t)
	set(t, c, topic, "bad", "good")
	type try struct {
		f  client.Fired
		at time.Time
	}
	tries, good, troubles := make(chan try, 8), make(chan client.Fired, 8), make(chan error, 8)
	consume(t, c, topic, func(_ context.Context, f client.Fired) error {
		if f.ID == "good" {
			good <- f
			return nil
		}
		tries <- try{f, time.Now()}
		switch f.Deliveries {
		case 1:
			return errors.New("not yet")
		case 2:
			panic("nor now")
		}
		return nil
	}, client.Backoff(200*time.Millisecond, time.Hour), client.OnError(func(err error) { troubles <- err }))
	if f := next(t, good, "the one that succeeds"); string(f.Payload) != "payload of good" || f.Deliveries != 1 || f.Lag() <= 0 {
		t.Errorf("good: %+v", f)
	}
	var last try
	for i, pause := range []time.Duration{0, 200 * time.Millisecond, 400 * time.Millisecond} {
		got := next(t, tries, "a try")
		if got.f.Deliveries != i+1 || (i > 0 && (got.f.MsgID != last.f.MsgID || got.at.Sub(last.at) < pause)) {
			t.Errorf("try %d: %+v, %v after the one before", i+1, got.f, got.at.Sub(last.at))
		}
		last = got
	}
	var failed *client.HandlerError
	if err := next(t, troubles, "the error"); !errors.As(err, &failed) || failed.ID != "bad" || failed.Deliveries != 1 || failed.RetryIn != 200*time.Millisecond ||
		failed.GivenUp || !strings.Contains(err.Error(), "not yet") || strings.Contains(err.Error(), "payload of") {
		t.Errorf("first: %v", err)
	}
	var panicked *client.PanicError
	if err := next(t, troubles, "the panic"); !errors.As(err, &panicked) || panicked.Value != "nor now" {
		t.Errorf("second: %v", err)
	}
	settled(t, nc, topic)
}

// TestConsumeGivesUp: after the bound, or when the handler says so, somebody is
// told and the event is over.
func TestConsumeGivesUp(t *testing.T) {
	t.Parallel()
	nc, c, topic := shared(t)
	set(t, c, topic, "hopeless", "malformed")
	var mu sync.Mutex
	tries := map[string]int{}
	given := make(chan *client.HandlerError, 8)
	consume(t, c, topic, func(_ context.Context, f client.Fired) error {
		mu.Lock()
		defer mu.Unlock()
		tries[f.ID]++
		if f.ID == "malformed" {
			return fmt.Errorf("%w: no JSON", client.ErrGiveUp)
		}
		return errors.New("never")
	}, client.Backoff(time.Millisecond, time.Millisecond), client.MaxTries(3), quiet(),
		client.OnGivenUp(func(ctx context.Context, e *client.HandlerError) {
			if ctx.Err() != nil {
				t.Error("the context of OnGivenUp has ended")
			}
			given <- e
		}))
	for range 2 {
		e := next(t, given, "what is given up on")
		if want := map[string]int{"hopeless": 3, "malformed": 1}[e.ID]; !e.GivenUp || e.Deliveries != want || string(e.Payload) != "payload of "+e.ID || e.MsgID == "" {
			t.Errorf("%s: %+v", e.ID, e)
		}
	}
	settled(t, nc, topic)
	mu.Lock()
	defer mu.Unlock()
	if tries["hopeless"] != 3 || tries["malformed"] != 1 || len(given) != 0 {
		t.Errorf("tries %v, and %d more", tries, len(given))
	}
}

// TestConsumeAfterAKill: what a receiver had when it died is delivered to
// another, is seen to be the same, and counts as a try.
func TestConsumeAfterAKill(t *testing.T) {
	t.Parallel()
	nc, c, topic := shared(t)
	doomed, dying, _ := shared(t)
	set(t, c, topic, "a")
	forever := make(chan struct{})
	t.Cleanup(func() { close(forever) })
	first := make(chan client.Fired, 1)
	consume(t, dying, topic, func(_ context.Context, f client.Fired) error {
		first <- f
		<-forever
		return nil
	}, client.AckWait(300*time.Millisecond), quiet())
	had := next(t, first, "the first delivery")
	doomed.Close() // as the end of a process closes it

	second := make(chan client.Fired, 2)
	other := consume(t, c, topic, func(_ context.Context, f client.Fired) error {
		second <- f
		return nil
	}, client.MaxTries(2))
	if f := next(t, second, "the second delivery"); f.MsgID != had.MsgID || f.Rev != had.Rev || f.Deliveries != 2 {
		t.Errorf("got %+v after %+v", f, had)
	}
	settled(t, nc, topic)
	other.Stop()
	if err := ended(t, other); err != nil {
		t.Error(err)
	}
}

// TestConsumePoison: an event that was delivered as often as it may be, and
// whose handlers never ended, is given up on without another.
func TestConsumePoison(t *testing.T) {
	t.Parallel()
	nc, c, topic := shared(t)
	doomed, dying, _ := shared(t)
	set(t, c, topic, "a")
	forever, first := make(chan struct{}), make(chan client.Fired, 1)
	t.Cleanup(func() { close(forever) })
	consume(t, dying, topic, func(_ context.Context, f client.Fired) error {
		first <- f
		<-forever
		return nil
	}, client.AckWait(300*time.Millisecond), quiet())
	next(t, first, "the first delivery")
	doomed.Close()
	given := make(chan *client.HandlerError, 1)
	consume(t, c, topic, func(context.Context, client.Fired) error {
		t.Error("handled once more")
		return nil
	}, client.MaxTries(1), quiet(), client.OnGivenUp(func(_ context.Context, e *client.HandlerError) { given <- e }))
	if e := next(t, given, "what is given up on"); e.ID != "a" || e.Deliveries != 2 || !strings.Contains(e.Error(), "no handler ended") {
		t.Errorf("got %v", e)
	}
	settled(t, nc, topic)
}

// TestConsumeSlowly: a handler that takes far longer than AckWait has its event
// for itself.
func TestConsumeSlowly(t *testing.T) {
	t.Parallel()
	nc, c, topic := shared(t)
	set(t, c, topic, "slow")
	var deliveries atomic.Int32
	done := make(chan struct{})
	for range 2 { // another, who would get it
		consume(t, c, topic, func(ctx context.Context, _ client.Fired) error {
			deliveries.Add(1)
			select { // what is slow is the point here
			case <-time.After(1500 * time.Millisecond):
			case <-ctx.Done():
			}
			close(done)
			return nil
		}, client.AckWait(300*time.Millisecond), client.Concurrency(2))
	}
	next(t, done, "the end of the handler")
	settled(t, nc, topic)
	if n := deliveries.Load(); n != 1 {
		t.Errorf("%d deliveries", n)
	}
}

// TestConsumeBounded: never more handlers than asked for, and as many.
func TestConsumeBounded(t *testing.T) {
	t.Parallel()
	nc, c, topic := shared(t)
	const events, bound = 40, 4
	for i := range events {
		set(t, c, topic, fmt.Sprint(i))
	}
	var now, most, all atomic.Int32
	full := make(chan struct{})
	consume(t, c, topic, func(context.Context, client.Fired) error {
		n := now.Add(1)
		for m := most.Load(); n > m && !most.CompareAndSwap(m, n); m = most.Load() {
		}
		if n == bound && all.Load() == 0 {
			close(full)
		}
		<-full // so that the bound is reached
		all.Add(1)
		now.Add(-1)
		return nil
	}, client.Concurrency(bound))
	timerstest.Eventually(t, patient, "all are handled", func() bool { return all.Load() == events })
	settled(t, nc, topic)
	if most.Load() != bound {
		t.Errorf("%d at a time, want %d", most.Load(), bound)
	}
}

// TestConsumeStopsCleanly: what is under way is finished, and what was not begun
// is another's at once.
func TestConsumeStopsCleanly(t *testing.T) {
	t.Parallel()
	nc, c, topic := shared(t)
	ctx, cancel := context.WithCancel(t.Context())
	begun, goOn := make(chan string, 64), make(chan struct{})
	var cut atomic.Int32
	first, err := c.Consume(ctx, topic, strings.ReplaceAll(topic, ".", "-"), func(ctx context.Context, f client.Fired) error {
		begun <- f.ID
		<-goOn
		if ctx.Err() != nil {
			cut.Add(1)
		}
		return nil
	}, client.Concurrency(3), client.AckWait(time.Hour), client.Grace(patient))
	if err != nil {
		t.Fatal(err)
	}
	const events = 12
	for i := range events {
		set(t, c, topic, fmt.Sprint(i))
	}
	var had []string
	for range 3 {
		had = append(had, next(t, begun, "a handler"))
	}
	cancel()
	close(goOn)
	if err := ended(t, first); err != nil || cut.Load() != 0 {
		t.Errorf("%d cut, %v", cut.Load(), err)
	}
	for len(begun) > 0 {
		had = append(had, <-begun)
	}
	rest := make(chan client.Fired, events)
	consume(t, c, topic, func(_ context.Context, f client.Fired) error { rest <- f; return nil })
	for range events - len(had) {
		f := next(t, rest, "what was left")
		if slices.Contains(had, f.ID) {
			t.Errorf("%s twice", f.ID)
		}
	}
	settled(t, nc, topic)
	if len(rest) != 0 {
		t.Errorf("%d too many", len(rest))
	}
}

// TestConsumeForeign: whatever else lies in the stream stops nothing and comes
// once.
func TestConsumeForeign(t *testing.T) {
	t.Parallel()
	nc, c, topic := shared(t)
	half, odd := firedMsg(topic, "half"), firedMsg(topic, "odd")
	half.Header.Del("Timer-Due")
	odd.Header.Set("Timer-Rev", "x")
	// To a pull consumer this looks like the word of the server.
	publish(t, nc, &nats.Msg{Subject: "timers.fired." + topic, Header: nats.Header{"Status": {"409"}, "Description": {"Consumer Deleted"}}})
	publish(t, nc, &nats.Msg{Subject: "timers.fired." + topic, Data: []byte("forged")}, &nats.Msg{Subject: "timers.fired." + topic}, half, odd)
	set(t, c, topic, "good")
	good, troubles := make(chan client.Fired, 8), make(chan error, 8)
	consume(t, c, topic, func(_ context.Context, f client.Fired) error { good <- f; return nil }, client.OnError(func(err error) { troubles <- err }))
	if f := next(t, good, "the event behind them"); f.ID != "good" {
		t.Errorf("got %+v", f)
	}
	if err := next(t, troubles, "a report of the forged word"); !errors.Is(err, jetstream.ErrConsumerDeleted) {
		t.Errorf("got %v", err)
	}
	for range 4 {
		var foreign *client.ForeignError
		if err := next(t, troubles, "a report"); !errors.As(err, &foreign) || !strings.Contains(err.Error(), topic) {
			t.Errorf("got %v", err)
		}
	}
}

func TestConsumeRefuses(t *testing.T) {
	t.Parallel()
	nc, c, topic := shared(t)
	ignore := func(context.Context, client.Fired) error { return nil }
	consume(t, c, topic, ignore) // has the durable
	js, err := jetstream.New(nc)
	if err != nil {
		t.Fatal(err)
	}
	name := strings.ReplaceAll(topic, ".", "-")
	if _, err := js.CreateConsumer(t.Context(), "TIMERS", jetstream.ConsumerConfig{Durable: name + "-none", FilterSubject: "timers.fired." + topic, AckPolicy: jetstream.AckNonePolicy}); err != nil {
		t.Fatal(err)
	}
	for what, tt := range map[string]struct {
		topic, durable string
		want           error
		opts           []client.ConsumeOption
	}{
		"another topic":     {topic + ".x", name, client.ErrDurable, nil},
		"no acks":           {topic, name + "-none", client.ErrDurable, nil},
		"name":              {topic, "a.b", client.ErrInvalidRequest, nil},
		"no name":           {topic, "", client.ErrInvalidRequest, nil},
		"topic":             {"a b", "x", client.ErrInvalidTopic, nil},
		"no such stream":    {topic, "x", client.ErrNoStream, []client.ConsumeOption{client.Stream("NONE")}},
		"tries":             {topic, "x", nil, []client.ConsumeOption{client.MaxTries(-1)}},
		"back-off":          {topic, "x", nil, []client.ConsumeOption{client.Backoff(2, 1)}},
		"ack wait":          {topic, "x", nil, []client.ConsumeOption{client.AckWait(time.Millisecond)}},
		"stream":            {topic, "x", nil, []client.ConsumeOption{client.Stream("")}},
		"no function":       {topic, "x", nil, []client.ConsumeOption{client.OnGivenUp(nil)}},
		"of another prefix": {topic, "x", client.ErrNoStream, nil},
	} {
		who := c
		if what == "of another prefix" {
			who = newClient(t, nc, client.Prefix("nobody"))
		}
		r, err := who.Consume(t.Context(), tt.topic, tt.durable, ignore, tt.opts...)
		if r != nil || err == nil || (tt.want != nil && !errors.Is(err, tt.want)) {
			t.Errorf("%s: %v, want %v", what, err, tt.want)
		}
	}
	if _, err := c.Consume(t.Context(), topic, "x", nil); err == nil {
		t.Error("no handler was accepted")
	}
	if _, err := newClient(t, nc).ConsumeDead(t.Context(), topic, "x", nil); err == nil {
		t.Error("no handler was accepted")
	}
}

// TestConsumeEndsWithItsDurable: it is not made anew, which would deliver all of
// the stream again.
func TestConsumeEndsWithItsDurable(t *testing.T) {
	t.Parallel()
	nc, c, topic := shared(t)
	r := consume(t, c, topic, func(context.Context, client.Fired) error { return nil })
	js, err := jetstream.New(nc)
	if err != nil {
		t.Fatal(err)
	}
	if err := js.DeleteConsumer(t.Context(), "TIMERS", strings.ReplaceAll(topic, ".", "-")); err != nil {
		t.Fatal(err)
	}
	if err := ended(t, r); !errors.Is(err, jetstream.ErrConsumerDeleted) && !errors.Is(err, jetstream.ErrConsumerNotFound) {
		t.Errorf("got %v", err)
	}
}

// TestConsumeWithTheRightsOfTheReadme: what the README lists is enough.
func TestConsumeWithTheRightsOfTheReadme(t *testing.T) {
	t.Parallel()
	page, err := os.ReadFile(filepath.Join("..", "..", "README.md"))
	if err != nil {
		t.Fatal(err)
	}
	rights := regexp.MustCompile(`"(\$JS\.[^"]+)"`).FindAllStringSubmatch(string(page), -1)
	var publishes []string
	for _, r := range rights {
		if r[1] == "$JS.API.STREAM.LIST" || strings.Contains(r[1], "billing") {
			publishes = append(publishes, r[1])
		}
	}
	srv := timerstest.NATS(t, func(o *server.Options) {
		o.Users = []*server.User{
			{Username: "lapse", Password: "x"},
			{Username: "orders", Password: "x", Permissions: &server.Permissions{
				Publish:   &server.SubjectPermission{Allow: publishes},
				Subscribe: &server.SubjectPermission{Allow: []string{"_INBOX.>", "timers.fired.orders.>"}},
			}},
		}
	})
	admin := srv.Connect(t, nats.UserInfo("lapse", "x"))
	js, err := jetstream.New(admin)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := js.CreateStream(t.Context(), jetstream.StreamConfig{Name: "TIMERS", Subjects: []string{"timers.fired.>"}}); err != nil {
		t.Fatal(err)
	}
	refused := make(chan error, 8)
	nc := srv.Connect(t, nats.UserInfo("orders", "x"), nats.ErrorHandler(func(_ *nats.Conn, _ *nats.Subscription, err error) { refused <- err }))
	done := make(chan struct{})
	r, err := newClient(t, nc).Consume(t.Context(), "orders.>", "billing", func(_ context.Context, f client.Fired) error {
		if f.Deliveries == 1 {
			return errors.New("again")
		}
		close(done)
		return nil
	}, client.Backoff(time.Millisecond, time.Millisecond), quiet())
	if err != nil {
		t.Fatal(err)
	}
	publish(t, admin, firedMsg("orders.close", "a"))
	next(t, done, "the second delivery")
	r.Stop()
	if err := ended(t, r); err != nil || len(refused) != 0 {
		t.Errorf("%v, and %d refusals", err, len(refused))
	}
}

func TestConsumeFromNow(t *testing.T) {
	t.Parallel()
	nc, c, topic := shared(t)
	publish(t, nc, firedMsg(topic, "old"))
	js, err := jetstream.New(nc)
	if err != nil {
		t.Fatal(err)
	}
	s, err := js.Stream(t.Context(), "TIMERS")
	if err != nil {
		t.Fatal(err)
	}
	timerstest.Eventually(t, patient, "the stream has the old one", func() bool {
		m, err := s.GetLastMsgForSubject(t.Context(), "timers.fired."+topic)
		return err == nil && m != nil
	})
	seen := make(chan client.Fired, 2)
	consume(t, c, topic, func(_ context.Context, f client.Fired) error { seen <- f; return nil }, client.FromNow())
	set(t, c, topic, "new")
	if f := next(t, seen, "the new one"); f.ID != "new" {
		t.Errorf("got %s", f.ID)
	}
}

func TestConsumeDead(t *testing.T) {
	t.Parallel()
	nc, c, topic := shared(t)
	m := firedMsg(topic, "a")
	m.Subject = "timers.dead." + topic
	m.Header.Set("Timer-Reason", "too large")
	publish(t, nc, m)
	seen := make(chan client.DeadTimer, 2)
	r, err := c.ConsumeDead(t.Context(), topic, "dead-letters", func(_ context.Context, d client.DeadTimer) error { seen <- d; return nil })
	if err != nil {
		t.Fatal(err)
	}
	if d := next(t, seen, "the announcement"); d.ID != "a" || d.Reason != "too large" || d.Deliveries != 1 {
		t.Errorf("got %+v", d)
	}
	r.Stop()
	if err := ended(t, r); err != nil {
		t.Error(err)
	}
}

// TestConsumeThroughARestart: NATS goes while a handler is at work and timers
// wait; every one of them is handled.
func TestConsumeThroughARestart(t *testing.T) {
	t.Parallel()
	srv := timerstest.NATS(t)
	timerstest.LapseOn(t, timerstest.Redis(t).URL(), srv.URL())
	nc := srv.Connect(t)
	c := newClient(t, nc)
	var mu sync.Mutex
	handled := map[string]int{}
	begun, goOn := make(chan struct{}, 8), make(chan struct{})
	if _, err := c.Consume(t.Context(), "t", "d", func(_ context.Context, f client.Fired) error {
		if f.ID == "before" {
			begun <- struct{}{}
			<-goOn
		}
		mu.Lock()
		defer mu.Unlock()
		handled[f.MsgID]++
		return nil
	}, client.Concurrency(2), quiet()); err != nil {
		t.Fatal(err)
	}
	set(t, c, "t", "before")
	if _, err := c.Set(t.Context(), "t", nil, client.In(500*time.Millisecond), client.ID("meanwhile")); err != nil {
		t.Fatal(err)
	}
	next(t, begun, "the handler")
	lost, found := nc.StatusChanged(nats.RECONNECTING), nc.StatusChanged(nats.CONNECTED)
	srv.Stop()
	next(t, lost, "the loss of the connection")
	srv.Start()
	next(t, found, "the connection")
	close(goOn)
	timerstest.Eventually(t, patient, "Lapse takes sets again", func() bool {
		_, err := c.Set(t.Context(), "t", nil, client.In(0), client.ID("after"))
		return err == nil
	})
	timerstest.Eventually(t, patient, "all three are handled", func() bool {
		mu.Lock()
		defer mu.Unlock()
		return len(handled) >= 3
	})
}
