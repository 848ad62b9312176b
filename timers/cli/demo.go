package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"slices"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/spf13/cobra"

	"github.com/lapse-timers/lapse/timers/client"
	"github.com/lapse-timers/lapse/timers/wire"
)

func (a *app) demoCmd() *cobra.Command {
	return &cobra.Command{
		Use:   "demo",
		Short: "Run a private service for ten seconds and check what it does",
		Long: `Run a private service for about ten seconds, on free ports and a temporary
directory: set timers, replace one, cancel one, print each as it fires, and
check what must and must not arrive. Exit code 0 when all was as promised.`,
		Args: asUsage(cobra.NoArgs),
		RunE: func(cmd *cobra.Command, _ []string) error {
			return a.demo(cmd.Context(), cmd.OutOrStdout(), cmd.ErrOrStderr())
		},
	}
}

var errInterrupted = errors.New("interrupted")

// demo runs the service and the script, and removes what they leave.
func (a *app) demo(ctx context.Context, out, errs io.Writer) (err error) {
	began := time.Now()
	exe, err := a.info.Executable()
	if err != nil {
		return fmt.Errorf("find the lapse program: %w", err)
	}
	dir, err := os.MkdirTemp("", "lapse-demo-")
	if err != nil {
		return fmt.Errorf("make a temporary directory: %w", err)
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()

	svc, err := startChild(ctx, exe, dir, os.Environ(), errs)
	if err != nil {
		return err
	}
	fmt.Fprintf(out, "a private lapse serve listens on %s and http://%s, with its data in %s\n\n", svc.natsURL, svc.http, dir)

	s := &script{out: out, step: time.Second}
	playErr := s.play(ctx, svc.natsURL)
	stopErr := svc.stop()
	if ctx.Err() != nil {
		return errInterrupted
	}
	if playErr != nil {
		fmt.Fprint(errs, svc.tail())
		return errors.Join(playErr, stopErr)
	}
	s.check(stopErr == nil, "the service stopped cleanly", fmt.Sprint(stopErr))

	took := time.Since(began).Seconds()
	if s.failed > 0 {
		fmt.Fprintf(out, "\n%d of %d checks FAILED, in %.1f s\n", s.failed, s.checks, took)
		fmt.Fprint(errs, svc.tail())
		return errSaid
	}
	fmt.Fprintf(out, "\nall %d checks passed, in %.1f s; the largest lag was %s\n", s.checks, took, milliseconds(s.maxLag))
	return nil
}

// life is one life of a timer: what a fired event is told apart by.
type life struct {
	topic, id string
	rev       int64
}

// planned is what was set, and what must come of it.
type planned struct {
	payload string
	header  []string // values of demoHeader
	due     time.Time
	fires   bool   // false: replaced or cancelled
	what    string // for the report
}

// script sets the timers of the demo and judges what comes of them.
type script struct {
	out  io.Writer
	step time.Duration // the unit of the delays

	plan   map[life]planned
	maxLag time.Duration
	checks int
	failed int
}

const (
	demoHeader = "Demo-Colour"
	burst      = 5
)

func (s *script) play(ctx context.Context, url string) error {
	nc, err := nats.Connect(url, nats.Name("lapse demo"), nats.NoReconnect())
	if err != nil {
		return fmt.Errorf("connect to %s: %w", url, err)
	}
	defer nc.Close()
	lapse, err := client.New(nc)
	if err != nil {
		return err
	}
	// Room for each life twice: beyond that the demo has failed anyway.
	events := make(chan client.Fired, 64)
	if _, err := lapse.Handle(ctx, "demo.>", func(_ context.Context, f client.Fired) {
		select {
		case events <- f:
		default:
		}
	}); err != nil {
		return err
	}
	if err := s.set(ctx, lapse); err != nil {
		return err
	}
	seen, err := s.watch(ctx, events)
	if err != nil {
		return err
	}
	fmt.Fprintln(s.out)
	s.judge(seen, "live")
	stored, err := stored(ctx, nc)
	if err != nil {
		return err
	}
	s.judge(stored, "in the stream")
	left, err := emptied(ctx, lapse)
	if err != nil {
		return err
	}
	s.check(left == 0, "no timer is left behind", fmt.Sprintf("%d are still listed", left))
	return nil
}

// set sets every timer of the demo and writes the plan.
func (s *script) set(ctx context.Context, lapse *client.Client) (err error) {
	s.plan = map[life]planned{}
	set := func(topic, id, payload, what string, when client.When, header ...string) life {
		if err != nil { // of a set before
			return life{}
		}
		var r client.Result
		if r, err = lapse.Set(ctx, topic, []byte(payload), when, client.ID(id), client.Header(demoHeader, header...)); err != nil {
			return life{}
		}
		l := life{r.Topic, r.ID, r.Rev}
		s.plan[l] = planned{payload: payload, header: header, due: r.Due, fires: true, what: what}
		fmt.Fprintf(s.out, "set    %-15s %-12s %-29s %s\n", topic, id, when, what)
		return l
	}
	old := set("demo.replaced", "invoice-7", "the old payload", "the payload that is replaced", client.In(2*s.step))
	gone := set("demo.cancelled", "call-me", "nobody may read this", "the timer that is cancelled", client.In(3*s.step))
	set("demo.replaced", "invoice-7", "the new payload", "its replacement", client.In(4*s.step))
	if err != nil {
		return err
	}
	if _, err := lapse.Cancel(ctx, gone.topic, gone.id); err != nil {
		return err
	}
	fmt.Fprintf(s.out, "cancel %-15s %s\n", gone.topic, gone.id)
	for _, l := range []life{old, gone} {
		p := s.plan[l]
		p.fires = false
		s.plan[l] = p
	}

	var all [256]byte
	for i := range all {
		all[i] = byte(i)
	}
	set("demo.plain", "order-42", `{"order":42}`, "a plain one", client.In(s.step))
	set("demo.past", "an-hour-ago", "better late", "already past", client.At(time.Now().Add(-time.Hour).Truncate(time.Second)))
	set("demo.binary", "all bytes", string(all[:]), "every byte value, a header with two values", client.In(3*s.step), "red", "green")
	instant := client.At(time.Now().Add(5 * s.step).Truncate(time.Millisecond))
	for i := range burst {
		set("demo.burst", fmt.Sprintf("burst-%d", i+1), "together", fmt.Sprintf("%d of %d at one instant", i+1, burst), instant)
	}
	fmt.Fprintln(s.out)
	return err
}

// watch prints what fires until everything due has come and what may not come
// has had its time, or until waiting longer makes no sense.
func (s *script) watch(ctx context.Context, events <-chan client.Fired) ([]client.Fired, error) {
	var last time.Time
	missing := map[life]bool{}
	for l, p := range s.plan {
		if p.due.After(last) {
			last = p.due
		}
		if p.fires {
			missing[l] = true
		}
	}
	// Whatever is wrong comes late rather than never: a second look at quiet.
	quiet := time.NewTimer(time.Until(last.Add(500 * time.Millisecond)))
	defer quiet.Stop()
	giveUp := time.NewTimer(time.Until(last.Add(5 * time.Second)))
	defer giveUp.Stop()
	var seen []client.Fired
	isQuiet := false
	for !isQuiet || len(missing) > 0 {
		select {
		case f := <-events:
			seen = append(seen, f)
			s.maxLag = max(s.maxLag, f.Lag())
			delete(missing, life{f.Topic, f.ID, f.Rev})
			fmt.Fprintf(s.out, "fired  %-15s %-11s lag %-8s by %s  %s\n", f.Topic, f.ID, milliseconds(f.Lag()), f.Source, preview(f.Payload))
		case <-quiet.C:
			isQuiet = true
		case <-giveUp.C:
			return seen, nil
		case <-ctx.Done():
			return nil, errInterrupted
		}
	}
	return seen, nil
}

// judge compares the events seen in one place with the plan.
func (s *script) judge(events []client.Fired, where string) {
	times := map[life]int{}
	var early, wrong, unasked []string
	for _, f := range events {
		l := life{f.Topic, f.ID, f.Rev}
		times[l]++
		p, ok := s.plan[l]
		switch name := f.Topic + " " + f.ID; {
		case !ok || !p.fires:
			unasked = append(unasked, name)
		case string(f.Payload) != p.payload || fmt.Sprint(f.Header.Values(demoHeader)) != fmt.Sprint(p.header):
			wrong = append(wrong, name)
		case f.Fired.Before(p.due) || !f.Due.Equal(p.due):
			early = append(early, name)
		}
	}
	due, once := 0, 0
	var not []string
	for _, l := range slices.SortedFunc(maps.Keys(s.plan), func(a, b life) int { return cmp.Compare(a.rev, b.rev) }) {
		p := s.plan[l]
		if !p.fires {
			s.check(times[l] == 0, fmt.Sprintf("%s: never %s", where, p.what), fmt.Sprintf("%d times", times[l]))
			continue
		}
		due++
		if times[l] == 1 {
			once++
		} else {
			not = append(not, fmt.Sprintf("%s %s %d times", l.topic, l.id, times[l]))
		}
	}
	s.check(once == due, fmt.Sprintf("%s: each of %d due timers, once", where, due), fmt.Sprint(not))
	s.check(len(wrong) == 0, where+": payloads and headers as they were set, byte for byte", fmt.Sprint(wrong))
	s.check(len(early) == 0, where+": none before it was due", fmt.Sprint(early))
	s.check(len(unasked) == 0, where+": nothing else", fmt.Sprint(unasked))
}

func (s *script) check(ok bool, what, why string) {
	s.checks++
	if ok {
		fmt.Fprintf(s.out, "ok     %s\n", what)
		return
	}
	s.failed++
	fmt.Fprintf(s.out, "FAILED %s: %s\n", what, why)
}

// stored reads every fired event that the stream of the deployment holds.
func stored(ctx context.Context, nc *nats.Conn) ([]client.Fired, error) {
	ctx, cancel := context.WithTimeout(ctx, client.DefaultTimeout)
	defer cancel()
	js, err := jetstream.New(nc)
	if err != nil {
		return nil, fmt.Errorf("JetStream: %w", err)
	}
	name := wire.Prefix(wire.DefaultPrefix).DefaultStream()
	stream, err := js.Stream(ctx, name)
	if err != nil {
		return nil, fmt.Errorf("stream %s: %w", name, err)
	}
	state := stream.CachedInfo().State
	var out []client.Fired
	for seq := state.FirstSeq; seq <= state.LastSeq && state.Msgs > 0; seq++ {
		m, err := stream.GetMsg(ctx, seq)
		if errors.Is(err, jetstream.ErrMsgNotFound) {
			continue // a gap
		}
		if err != nil {
			return nil, fmt.Errorf("message %d of stream %s: %w", seq, name, err)
		}
		f, err := client.ParseFired(m.Header, m.Data)
		if err != nil {
			return nil, fmt.Errorf("message %d of stream %s: %w", seq, name, err)
		}
		out = append(out, f)
	}
	return out, nil
}

// emptied waits until no timer is listed and returns how many still are when
// it gives up: the records of a timer go a moment after its delivery.
func emptied(ctx context.Context, lapse *client.Client) (left int, err error) {
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	for range 60 {
		left = 0
		for _, err := range lapse.List(ctx, "") {
			if err != nil {
				return 0, err
			}
			left++
		}
		if left == 0 {
			return 0, nil
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return left, ctx.Err()
		}
	}
	return left, nil
}
