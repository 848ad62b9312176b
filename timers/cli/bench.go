package cli

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/spf13/cobra"

	"github.com/lapse-timers/lapse/timers/bench"
)

// benchFlags are what lapse bench is told beside how to connect.
type benchFlags struct {
	options  bench.Options
	fresh    bench.Fresh
	isFresh  bool
	progress bool
	out      string
	suite    string
	docs     string
}

func (a *app) benchCmd() *cobra.Command {
	var b benchFlags
	cmd := &cobra.Command{
		Use:   "bench part...",
		Short: "Measure how late timers fire, how fast they are set, what they cost",
		Long: `Measure a deployment, or with --fresh servers that are started for it and
removed again. The parts:

  lag      how late timers are at a subscriber, on Redis's clock
  rate     the same at a high rate of fires
  burst    how fast timers drain that are due in one millisecond
  set      how fast concurrent callers set timers; with --concurrency 1, what a
           set takes beside a bare NATS request and a bare script call
  growth   the lag at 10,000, 100,000, ... up to --pending timers (1,000,000)
  memory   what a waiting timer takes in Redis (needs --redis or --fresh)
  idle     what waiting timers cost while none is due (needs --redis or --fresh)
  recover  how a service starts that finds timers overdue (needs --fresh)

A deployment that others use feels it: the parts set, fire and cancel many
timers, under topics of their own (bench.RUN.t0, ...). They are cancelled at
the end, and their events purged from the stream where that is permitted.

--vs runs alternatives beside each part, on servers of their own: jetstream
(scheduled messages of nats-server), event (Redis's expired event alone), poll
(a sorted set, looked at every second).`,
		Example: `  lapse bench lag burst
  lapse bench lag --pending 1000000 --fresh --vs jetstream,event,poll
  lapse bench set --concurrency 1 --fresh`,
		ValidArgs: bench.Parts,
	}
	conn := a.connectionFlags(cmd)
	f, o := cmd.Flags(), &b.options
	f.IntVar(&o.Pending, "pending", 0, "timers that wait meanwhile; 0: what suits the part")
	f.Float64Var(&o.Rate, "rate", 0, "fires per second of lag, rate and growth; 0: what suits the part")
	f.DurationVar(&o.Duration, "duration", 0, "how long timers fire in lag, rate and growth, and how long idle watches; 0: what suits the part")
	f.IntVar(&o.Count, "count", 0, "timers of burst and recover, sets of set; 0: what suits the part")
	f.IntVar(&o.Concurrency, "concurrency", 0, "callers of set, each awaiting its answer; 0: 512")
	f.IntVar(&o.Payload, "payload", 100, "`bytes` of payload")
	f.IntVar(&o.Topics, "topics", 10, "topics that the timers are spread over")
	f.IntVar(&o.Repeat, "repeat", 1, "rounds of burst, set and recover, of which the median counts")
	f.StringSliceVar(&o.Vs, "vs", nil, "`contestants` to run beside it: "+strings.Join(bench.Contestants, ", "))
	f.StringVar(&o.RedisURL, "redis", "", "`URL` of the deployment's Redis, for memory, idle, and set with one caller")
	f.BoolVar(&b.isFresh, "fresh", false, "measure servers started for it: redis-server, nats-server, lapse serve")
	f.IntVar(&b.fresh.Instances, "instances", 1, "with --fresh: instances of lapse serve")
	f.StringArrayVar(&b.fresh.Settings, "setting", nil, "with --fresh: a setting of lapse serve, as `NAME=value`, such as LAPSE_GRACE=50ms; may be repeated")
	f.StringArrayVar(&b.fresh.RedisSet, "redis-set", nil, "with --fresh: a directive over redis.conf, as `name=value`, such as hz=10; may be repeated")
	f.StringVar(&o.Programs.RedisServer, "redis-server", "", "the redis-server `program` (else beside lapse, then the PATH)")
	f.StringVar(&o.Programs.NATSServer, "nats-server", "", "the nats-server `program` (else beside lapse, then the PATH)")
	f.BoolVar(&b.progress, "progress", true, "show progress bars on a terminal")
	f.StringVar(&b.out, "out", "", "write the report as JSON to this `file` too")
	f.StringVar(&b.suite, "suite", "", "run the published measurements on fresh servers: `name` is full or quick; when parts are named too, only these are measured and the page keeps the rest")
	f.StringVar(&b.docs, "docs", "", "with --suite: write benchmarks.md, its plots and its data to this `directory`")
	cmd.RunE = func(cmd *cobra.Command, args []string) error { return a.bench(cmd, conn, &b, args) }
	cmd.AddCommand(a.respondCmd())
	return cmd
}

func (a *app) bench(cmd *cobra.Command, conn *connection, b *benchFlags, parts []string) error {
	o := b.options
	// In the options 0 is the default and -1 is no payload; here each flag has its own.
	for _, flag := range []struct {
		name         string
		value, least int
	}{{"payload", o.Payload, 0}, {"topics", o.Topics, 1}, {"repeat", o.Repeat, 1}} {
		if flag.value < flag.least {
			return usage("--%s %d: want %d or more; see %s --help", flag.name, flag.value, flag.least, cmd.CommandPath())
		}
	}
	o.Parts, o.Version, o.Programs.RedisConf = parts, a.info.Version, a.info.RedisConf
	if o.Payload == 0 {
		o.Payload = -1
	}
	var err error
	if o.Programs.Lapse, err = a.info.Executable(); err != nil {
		return fmt.Errorf("find the lapse program: %w", err)
	}
	errs := cmd.ErrOrStderr()
	if b.progress && isTerminal(errs) {
		o.Progress = errs
	}
	if o.Progress == nil { // a bar says more
		o.Say = func(format string, args ...any) { fmt.Fprintf(errs, format+"\n", args...) }
	}
	if b.isFresh || b.suite != "" {
		o.Fresh = &b.fresh
	} else {
		for _, name := range []string{"instances", "setting", "redis-set"} {
			if cmd.Flags().Changed(name) {
				return usage("--%s describes the servers of --fresh; add it, or leave this out", name)
			}
		}
		o.Prefix = conn.chosenPrefix()
		o.Dial = func(ctx context.Context) (*nats.Conn, error) {
			l, err := conn.open(ctx)
			if err != nil {
				return nil, err
			}
			return l.nc, nil
		}
	}
	if b.suite != "" {
		return b.runSuite(cmd, conn, o)
	}
	if b.docs != "" {
		return usage("--docs writes the page of --suite; name one, or use --out FILE")
	}
	if err := o.Check(); err != nil {
		return &usageError{fmt.Errorf("%w; see %s --help", err, cmd.CommandPath())}
	}
	if err := b.writable(); err != nil {
		return err
	}
	report, err := bench.Run(cmd.Context(), o)
	if report != nil && len(report.Parts) > 0 {
		err = errors.Join(err, b.write(report), printReport(cmd.OutOrStdout(), report, conn.json))
	}
	if cmd.Context().Err() != nil {
		return errInterrupted
	}
	return err
}

func (b *benchFlags) runSuite(cmd *cobra.Command, conn *connection, o bench.Options) error {
	for _, name := range []string{"pending", "rate", "duration", "count", "concurrency", "payload", "topics", "repeat", "instances", "setting", "redis-set", "vs"} {
		if cmd.Flags().Changed(name) {
			return usage("--%s: the parameters of --suite are fixed, so that its figures compare; leave it out", name)
		}
	}
	if b.suite != "full" && b.suite != "quick" {
		return usage("--suite %q: want full or quick", b.suite)
	}
	if err := b.writable(); err != nil {
		return err
	}
	report, err := bench.RunSuite(cmd.Context(), o, bench.SuiteOptions{Quick: b.suite == "quick", Docs: b.docs})
	if report != nil {
		err = errors.Join(err, b.write(report), printReport(cmd.OutOrStdout(), report, conn.json))
	}
	if cmd.Context().Err() != nil {
		return errInterrupted
	}
	return err
}

// writable says before minutes of measuring whether the report can be kept.
func (b *benchFlags) writable() error {
	if b.out == "" {
		return nil
	}
	f, err := os.OpenFile(b.out, os.O_WRONLY|os.O_CREATE, 0o644)
	if err != nil {
		return fmt.Errorf("--out: %w; name a file in a directory that can be written to", err)
	}
	return f.Close()
}

// write keeps the report where --out says.
func (b *benchFlags) write(report *bench.Report) error {
	if b.out == "" {
		return nil
	}
	data, err := json.MarshalIndent(report, "", "  ")
	if err == nil {
		err = os.WriteFile(b.out, append(data, '\n'), 0o644)
	}
	if err != nil {
		return fmt.Errorf("write the report: %w", err)
	}
	return nil
}

func printReport(w io.Writer, report *bench.Report, asJSON bool) error {
	if asJSON {
		return printJSON(w, report)
	}
	var text bytes.Buffer
	if err := report.Print(&text); err != nil {
		return err
	}
	_, err := text.WriteTo(w)
	return err
}

// respondCmd is the other end of a bare request; bench runs it as a process
// of its own.
func (a *app) respondCmd() *cobra.Command {
	var server, subject string
	cmd := &cobra.Command{
		Use:    "respond",
		Short:  "Answer requests on a subject and do nothing else",
		Hidden: true,
		Args:   asUsage(cobra.NoArgs),
		RunE: func(cmd *cobra.Command, _ []string) error {
			// The bench ends it with a signal, and dies with it at the latest.
			ctx, stop := signal.NotifyContext(cmd.Context(), os.Interrupt, syscall.SIGTERM)
			defer stop()
			nc, err := nats.Connect(server, nats.Timeout(10*time.Second))
			if err != nil {
				return fmt.Errorf("connect to %s: %w", server, err)
			}
			defer nc.Close()
			return bench.Respond(ctx, nc, subject, cmd.OutOrStdout())
		},
	}
	cmd.Flags().StringVar(&server, "server", nats.DefaultURL, "NATS `URL`")
	cmd.Flags().StringVar(&subject, "subject", "", "`subject` to answer on")
	return cmd
}
