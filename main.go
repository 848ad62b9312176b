// Lapse is a timer service: a timer is set with one NATS request, kept in
// Redis, and published on NATS when its time comes. README.md says what it is
// for, docs/protocol.md how to speak to it.
//
// This file reads the settings (timers/settings has their rules), wires serve,
// and holds the order in which things end. The sub-commands that people type are
// in timers/cli.
package main

import (
	"context"
	"crypto/rand"
	_ "embed"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/signal"
	"runtime"
	"runtime/debug"
	"strings"
	"syscall"
	"text/tabwriter"
	"time"

	"github.com/kelseyhightower/envconfig"
	"github.com/mattn/go-isatty"
	"github.com/nats-io/nats.go"
	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/logging"
	"github.com/spf13/cobra"

	"github.com/lapse-timers/lapse/notify"
	"github.com/lapse-timers/lapse/reconcile"
	"github.com/lapse-timers/lapse/timers"
	"github.com/lapse-timers/lapse/timers/cli"
	"github.com/lapse-timers/lapse/timers/client"
	"github.com/lapse-timers/lapse/timers/doctor"
	"github.com/lapse-timers/lapse/timers/embedded"
	"github.com/lapse-timers/lapse/timers/fault"
	"github.com/lapse-timers/lapse/timers/health"
	"github.com/lapse-timers/lapse/timers/lifecycle"
	"github.com/lapse-timers/lapse/timers/metrics"
	"github.com/lapse-timers/lapse/timers/service"
	"github.com/lapse-timers/lapse/timers/settings"
	"github.com/lapse-timers/lapse/timers/web"
	"github.com/lapse-timers/lapse/timers/web/page"
	"github.com/lapse-timers/lapse/timers/wire"
)

//go:embed redis.conf
var redisConf []byte

// version is set by the Makefile; a plain go build has the one of its module.
var version = ""

func main() { os.Exit(run()) }

func run() int {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	// The second signal ends the process at once.
	context.AfterFunc(ctx, stop)
	serve := &cobra.Command{
		Use:   "serve",
		Short: "Run the timer service",
		Long: `Run the timer service until SIGTERM or Ctrl-C.

With nothing set it runs its own NATS server and redis-server, both persistent
in ./lapse-data. The settings are environment variables: lapse help lists them.`,
		RunE: func(cmd *cobra.Command, _ []string) error {
			cfg, err := readConfig(os.Environ())
			if err != nil {
				return err
			}
			return runService(cmd.Context(), cfg, newLogger(cfg, os.Stderr), cmd.OutOrStdout())
		},
	}
	return cli.Execute(ctx, cli.New(cli.Info{Version: buildVersion(), Serve: serve, Doctor: examine, Settings: settingsTable, RedisConf: redisConf}))
}

// examine is lapse doctor: the servers that serve would use, from outside.
func examine(ctx context.Context, fix bool) (wire.DoctorReport, error) {
	cfg, err := readConfig(os.Environ())
	if err != nil {
		return wire.DoctorReport{}, err
	}
	redis.SetLogger(&logging.VoidLogger{}) // what it says is in the findings too
	found, done := embedded.Find(cfg.DataDir, cfg.NATSListen)
	defer done()
	d := doctor.Deployment{Settings: cfg, RedisURL: cfg.RedisURL, NATS: service.ConnConfig{URL: cfg.NATSURL, Creds: cfg.NATSCreds}}
	d.Embedded(found.RedisURL, found.NATSURL, found.Absent)
	if fix {
		return doctor.Fix(ctx, d), nil
	}
	return doctor.Run(ctx, d), nil
}

func buildVersion() string {
	if version != "" {
		return version
	}
	if info, ok := debug.ReadBuildInfo(); ok && info.Main.Version != "" && info.Main.Version != "(devel)" {
		return info.Main.Version
	}
	return "0.1.0-dev"
}

// readConfig reads and checks the settings.
func readConfig(environ []string) (settings.Settings, error) {
	var cfg settings.Settings
	var known []string
	for line := range strings.Lines(usageText("{{range .}}{{usage_key .}}\n{{end}}")) {
		known = append(known, strings.TrimSpace(line))
	}
	if err := settings.CheckNames(environ, known); err != nil {
		return cfg, err
	}
	if err := envconfig.Process("", &cfg); err != nil {
		var pe *envconfig.ParseError
		if errors.As(err, &pe) {
			// None of the settings that are parsed holds a secret.
			return cfg, fmt.Errorf("%s=%q: want a %s", pe.KeyName, pe.Value, settings.Want(pe.TypeName))
		}
		return cfg, err
	}
	return cfg, cfg.Check()
}

// settingsTable is the table for lapse help.
func settingsTable() string {
	var b strings.Builder
	w := tabwriter.NewWriter(&b, 0, 0, 2, ' ', 0)
	io.WriteString(w, usageText("{{range .}}{{usage_key .}}\t{{usage_default .}}\t{{usage_description .}}\n{{end}}")) //nolint:errcheck // a strings.Builder
	w.Flush()                                                                                                         //nolint:errcheck // likewise
	return b.String()
}

func usageText(format string) string {
	var b strings.Builder
	if err := envconfig.Usagef("", &settings.Settings{}, &b, format); err != nil {
		panic(err) // the format is ours
	}
	return b.String()
}

func newLogger(cfg settings.Settings, w *os.File) *slog.Logger {
	opts := &slog.HandlerOptions{Level: cfg.LogLevel, ReplaceAttr: func(_ []string, a slog.Attr) slog.Attr {
		if a.Value.Kind() == slog.KindDuration {
			a.Value = slog.StringValue(a.Value.Duration().String()) // JSON has bare nanoseconds, text has "5s"
		}
		return a
	}}
	if cfg.LogFormat == "text" || cfg.LogFormat == "" && isatty.IsTerminal(w.Fd()) {
		return slog.New(slog.NewTextHandler(w, opts))
	}
	return slog.New(slog.NewJSONHandler(w, opts))
}

// publisher is what delivery needs to be, whichever way it is done.
type publisher interface {
	timers.Publisher
	Run(context.Context) error
	// Ready says without waiting whether publishing makes sense.
	Ready() bool
	Health() wire.HealthPart
	MaxSize() int
	MaxDead(context.Context) int
	PublishDead(context.Context, *nats.Msg) error
}

// instance is the running service and what its health and status are made of.
type instance struct {
	cfg      settings.Settings
	id       string
	rdb      *redis.Client
	nc       *service.Conn
	store    *timers.Store
	pub      publisher
	firer    *timers.Firer
	crew     *timers.Crew
	listener *notify.Listener
	service  *service.Service
	metrics  *metrics.Metrics

	phase   health.Phase
	refused health.Refused
}

// runService is lapse serve: it returns nil after a clean stop.
func runService(ctx context.Context, cfg settings.Settings, logger *slog.Logger, out io.Writer) (err error) {
	if cfg.NATSURL != settings.Embedded {
		leaveCores()
	}
	slog.SetDefault(logger)
	redis.SetLogger(&logging.VoidLogger{}) // what it says is in the errors too
	var down lifecycle.Teardown
	defer func() {
		down.Run(cfg.ShutdownGrace, logger)
		if err != nil && ctx.Err() != nil {
			// Asked to stop while it waited for a server: that is no failure.
			logger.Info("stopped before it was ready", "reason", err)
			err = nil
		} else if err == nil {
			logger.Info("stopped")
		}
	}()

	in := &instance{cfg: cfg, id: strings.ToLower(rand.Text()[:12])}
	in.phase.Set("starting")
	logger = logger.With("instance", in.id)
	logger.Info("starting", "version", buildVersion(), "prefix", cfg.Prefix, "delivery", cfg.Delivery)

	// First of all, since it names the Lapse that a second start meets.
	var dir *embedded.Dir
	if cfg.RedisURL == settings.Embedded || cfg.NATSURL == settings.Embedded {
		if dir, err = embedded.Lock(cfg.DataDir); err != nil {
			return err
		}
		down.Push(func(context.Context) { dir.Unlock() }) //nolint:errcheck // the process ends
	}
	topics, err := metrics.ParseTopics(cfg.MetricsTopics)
	if err != nil {
		return fmt.Errorf("LAPSE_METRICS_TOPICS: %w", err)
	}
	in.metrics = metrics.New(metrics.Options{Version: buildVersion(), Topics: topics, Verbs: service.Verbs(), Sample: in.sample, Logger: logger})
	var reach doctor.Deployment // read once the phase has left waiting
	live := page.New(page.Options{
		Prefix: wire.Prefix(cfg.Prefix), Version: buildVersion(), Listen: cfg.HTTPListen, Token: cfg.HTTPToken, Logger: logger,
		Status: in.status, Topics: in.topics, Client: in.client, Dial: func() (*nats.Conn, error) { return in.dial(&reach.NATS) },
		Doctor: func(ctx context.Context) (any, error) { return in.examine(ctx, &reach) },
	})
	httpServer := web.New(web.Options{
		Listen: cfg.HTTPListen, Health: in.health, Metrics: in.metrics.Handler(), Profiles: cfg.Pprof, Version: buildVersion(), Page: live, Logger: logger,
	})
	if err := httpServer.Listen(); err != nil {
		return err
	}
	down.Background(func(ctx context.Context) {
		if err := httpServer.Serve(ctx); err != nil {
			logger.Error("HTTP ended", "error", err)
		}
	})

	redisURL, natsConn, natsShown, err := servers(ctx, &cfg, dir, logger, &down)
	if err != nil {
		return err
	}
	reach = doctor.Deployment{Settings: cfg, RedisURL: redisURL, NATS: natsConn}
	prefix := wire.Prefix(cfg.Prefix)

	// Redis: what is stored there decides whether this instance may run at all.
	opt, err := timers.ParseRedisURL(redisURL)
	if err != nil {
		return fmt.Errorf("LAPSE_REDIS_URL: %w", err)
	}
	in.phase.Set("waiting for Redis")
	in.rdb = redis.NewClient(opt)
	down.PushPart(func(context.Context) { in.rdb.Close() })
	keys, err := timers.NewKeys(cfg.Prefix, cfg.Partitions)
	if err != nil {
		return err
	}
	in.store = timers.NewStore(in.rdb, keys)
	in.store.Observe(func(call string, took time.Duration, err error) {
		in.metrics.Call(call, took, err)
		in.refused.Call(call, err)
	})
	in.store.AwaitReplicas(cfg.MinReplicas, cfg.RequestTimeout/2)
	var server timers.Server
	if err := lifecycle.Await(ctx, logger, "Redis", func(ctx context.Context) (bool, error) {
		var err error
		server, err = timers.Inspect(ctx, in.rdb)
		if err == nil {
			if err := server.Refusal(); err != nil {
				return true, err
			}
			err = in.store.Open(ctx)
		}
		return errors.Is(err, timers.ErrRedisAuth) || errors.Is(err, timers.ErrDeployment), err
	}); err != nil {
		return err
	}
	for _, w := range server.Warnings() {
		logger.Warn(w)
	}

	// NATS: one connection takes requests, the other delivers.
	in.phase.Set("waiting for NATS")
	var delivery *service.Conn
	if err := lifecycle.Await(ctx, logger, "NATS", func(context.Context) (bool, error) {
		var err error
		if in.nc, err = service.Connect(natsConn, "lapse "+in.id, false); err == nil {
			if delivery, err = service.Connect(natsConn, "lapse "+in.id+" delivery", true); err != nil {
				in.nc.Close()
			}
		}
		return errors.Is(err, service.ErrAuth), err
	}); err != nil {
		return err
	}
	down.PushPart(func(context.Context) { delivery.Close(); in.nc.Close() })
	if err := lifecycle.Await(ctx, logger, "JetStream", func(ctx context.Context) (bool, error) {
		if cfg.Delivery == "core" {
			core, err := service.NewCore(ctx, delivery, prefix, service.AckWait(cfg.Lease), logger)
			if err == nil {
				in.pub = core
			}
			return errors.Is(err, service.ErrStream), err
		}
		js, err := service.NewJetStream(ctx, delivery, prefix, service.StreamConfig{
			Name: cfg.Stream, Replicas: cfg.StreamReplicas, MaxAge: cfg.StreamMaxAge, MaxBytes: cfg.StreamMaxBytes, Duplicates: cfg.StreamDups,
		}, service.AckWait(cfg.Lease), logger)
		if err != nil {
			return errors.Is(err, service.ErrStream) || errors.Is(err, service.ErrNoJetStream), err
		}
		if window := js.Duplicates(); window <= cfg.Lease+cfg.RetryMax {
			logger.Warn("the stream's duplicate window is shorter than a lease and the longest back-off; a retry may be stored twice",
				"stream", js.Stream(), "duplicates", window, "lease", cfg.Lease, "retry_max", cfg.RetryMax)
		}
		in.pub = js
		return false, nil
	}); err != nil {
		return err
	}
	if err := in.alone(ctx, logger, prefix); err != nil {
		return err
	}

	in.wire(logger, keys, prefix, &down)

	// Requests come last and end first.
	ended := make(chan error, 1)
	down.Background(func(serving context.Context) {
		ended <- in.service.Run(serving, func(serving context.Context) error {
			// Once more, now that others can see us: two may have started together.
			if err := in.alone(serving, logger, prefix); err != nil || ctx.Err() != nil {
				return err
			}
			in.phase.Set("")
			logger.Info("ready", "nats", natsShown, "http", httpServer.Addr(), "pid", os.Getpid())
			fmt.Fprintf(out, "Lapse %s takes requests at %s under %s.>, page at http://%s\nTry: %s\n",
				buildVersion(), natsShown, cfg.Prefix, httpServer.Addr(), tryLine(cfg, natsShown))
			return nil
		})
	})
	down.Background(func(watching context.Context) {
		watching, done := context.WithCancel(watching)
		defer context.AfterFunc(ctx, done)() // what ends with the process is no news
		lifecycle.WatchHealth(watching, logger, in.health, "redis", "nats")
	})
	select {
	case <-ctx.Done():
	case err = <-ended:
	case err = <-in.crew.Foreign():
	case err = <-in.nc.Lost():
	case err = <-delivery.Lost(): // deaf or mute for good, it would only look alive
	}
	in.phase.Set("stopping")
	in.crew.Retire()
	logger.Info("stopping", "in_flight", in.firer.InFlight())
	return err
}

// leaveCores lets Go use half of the cores, unless GOMAXPROCS is set. Lapse
// mostly waits for Redis and NATS, and its threads that look for work take from
// theirs on the same machine (ADR 24).
func leaveCores() {
	if os.Getenv("GOMAXPROCS") == "" {
		runtime.GOMAXPROCS((runtime.GOMAXPROCS(0) + 1) / 2)
	}
}

// alone returns once it is known that no other deployment serves the prefix.
func (in *instance) alone(ctx context.Context, logger *slog.Logger, prefix wire.Prefix) error {
	return lifecycle.Await(ctx, logger, "NATS", func(ctx context.Context) (bool, error) {
		err := service.CheckDeployment(ctx, in.nc.Conn, prefix, in.store.Deployment())
		return errors.Is(err, service.ErrOtherDeployment), err
	})
}

// wire connects the parts that fire. They end in the reverse order: first
// those that find what is due, then the one that fires, then delivery.
func (in *instance) wire(logger *slog.Logger, keys *timers.Keys, prefix wire.Prefix, down *lifecycle.Teardown) {
	cfg := in.cfg
	ends := func(name string, run func(context.Context) error) func(context.Context) {
		return func(ctx context.Context) {
			if err := run(ctx); err != nil {
				logger.Error("a part ended", "part", name, "error", err)
			}
		}
	}
	announcer := service.NewAnnouncer(prefix, in.pub, logger)
	in.firer = timers.NewFirer(in.store, in.pub, timers.FirerConfig{
		Instance: in.id, Lease: cfg.Lease, RetryMin: cfg.RetryMin, RetryMax: cfg.RetryMax, MaxAttempts: cfg.MaxAttempts,
		Ended: in.metrics.Attempt, Buried: announcer.Announce,
		Settle: max(cfg.ShutdownGrace/2, service.AckWait(cfg.Lease)*11/10), Logger: logger,
	})
	var loop *reconcile.Loop
	in.crew = timers.NewCrew(in.store, timers.CrewConfig{
		Instance: in.id, DB: in.rdb.Options().DB,
		Fires:   in.pub.Ready,
		Rescued: func() { loop.Wake() }, Noticed: func(p int, due time.Time) { loop.Noticed(p, due) },
		Logger: logger,
	})
	hint := func(r timers.Ref) {
		if in.crew.Mine(r) {
			in.firer.Hint(r)
		}
	}
	in.listener = notify.New(notify.Config{
		Client: in.rdb, Keys: keys, Hint: hint, Other: in.crew.Hear, Gap: func() { loop.Wake() },
		Instance: in.id, Configure: cfg.NotifyConfig == "auto", Logger: logger,
	})
	loop = reconcile.New(reconcile.Config{
		Store: in.store, Partitions: cfg.Partitions, Grace: cfg.Grace,
		Sweep: in.firer.Sweep, Await: in.pub.Await, Deaf: in.listener.Deaf,
		Missed: func(int) { in.listener.Check() },
		Leads:  in.crew.Leads, Mine: in.crew.Mine, Tell: in.crew.Tell, Logger: logger,
	})
	stream, strange := func() string { return "" }, func() int64 { return 0 }
	if js, ok := in.pub.(*service.JetStream); ok {
		stream, strange = js.Stream, js.Strange
	}
	counts := func(c *wire.CountStats) {
		heard := in.listener.Stats()
		c.Recovered, c.Events, c.EventGaps, c.Strange = loop.Stats().Recovered.Load(), heard.Events, heard.Gaps, strange()
		c.Deaths, c.Rescued = in.crew.Stats().Deaths.Load(), in.crew.Stats().Rescued.Load()
		c.Repaired += loop.Stats().Mended.Load()
		c.Unannounced = announcer.Lost()
	}
	in.service = service.New(service.Config{
		Stream: stream, Conn: in.nc, Store: in.store, Prefix: prefix, Version: buildVersion(), Instance: in.id,
		RequestTimeout: cfg.RequestTimeout, MaxSize: in.pub.MaxSize, Scheduled: loop.WakeBefore,
		Firer: in.firer, Delivery: cfg.Delivery, Health: in.health, Counts: counts, Ended: in.metrics.Request, Logger: logger,
	})
	in.metrics.Watch(metrics.Sources{
		Firer: in.firer, Loop: loop, Listener: in.listener, Crew: in.crew,
		Ignored: in.service.Ignored, Unannounced: announcer.Lost, Strange: strange,
	})
	down.Background(ends("delivery", in.pub.Run))
	down.Background(ends("announcer", announcer.Run))
	// The crew is left once nothing is under way.
	down.PushPart(in.crew.Leave)
	down.Background(ends("crew", in.crew.Run))
	down.Background(ends("firer", in.firer.Run))
	down.Background(ends("notify", in.listener.Run))
	if !fault.Off("reconcile") {
		down.Background(ends("reconcile", loop.Run))
	}
}

// servers starts the embedded servers that are asked for in dir, and says how to
// reach both: the last string is for people and has no secrets.
func servers(ctx context.Context, cfg *settings.Settings, dir *embedded.Dir, logger *slog.Logger, down *lifecycle.Teardown) (redisURL string, nc service.ConnConfig, shown string, err error) {
	redisURL, nc, shown = cfg.RedisURL, service.ConnConfig{URL: cfg.NATSURL, Creds: cfg.NATSCreds, Logger: logger}, service.Redact(cfg.NATSURL)
	if cfg.NATSURL == settings.Embedded {
		server, err := embedded.StartNATS(dir, embedded.NATSOptions{Listen: cfg.NATSListen, WebSocket: cfg.WebSocket, Origins: cfg.WSOrigins, Logger: logger})
		if err != nil {
			return "", nc, "", err
		}
		down.Push(func(ctx context.Context) { server.Stop(ctx) }) //nolint:errcheck // the process ends
		// A server with less room than that refuses the stream.
		cfg.StreamMaxBytes = min(cfg.StreamMaxBytes, server.MaxStore())
		if cfg.WebSocket != "" {
			logger.Info("browsers may connect", "websocket", server.WebSocketURL())
		}
		nc.URL, nc.Options, shown = server.ClientURL(), server.ConnectOptions(), server.ClientURL()
	}
	if redisURL == settings.Embedded {
		server, err := embedded.StartRedis(ctx, dir, embedded.RedisOptions{Conf: redisConf, Logger: logger})
		if err != nil {
			return "", nc, "", err
		}
		down.Push(func(ctx context.Context) {
			if err := server.Stop(ctx); err != nil {
				logger.Error("redis-server did not end in time", "error", err)
			}
		})
		redisURL = server.URL()
	}
	return redisURL, nc, shown, nil
}

// What the page works with.

func (in *instance) status(ctx context.Context) wire.StatusReply {
	if in.phase.Up() != nil {
		return wire.StatusReply{Health: in.health(ctx)}
	}
	return in.service.Status(ctx)
}

func (in *instance) topics(ctx context.Context) (out page.Topics, err error) {
	if err := in.phase.Up(); err != nil {
		return out, err
	}
	t, err := in.store.Topics(ctx)
	out.Pending, out.Looked = t.Pending, t.Looked
	for _, c := range t.List {
		out.List = append(out.List, page.TopicCount(c))
	}
	return out, err
}

func (in *instance) client() (*client.Client, error) {
	if err := in.phase.Up(); err != nil {
		return nil, err
	}
	return client.New(in.nc.Conn, client.Prefix(in.cfg.Prefix))
}

func (in *instance) dial(cfg *service.ConnConfig) (*nats.Conn, error) {
	if err := in.phase.Up(); err != nil {
		return nil, err
	}
	c, err := service.Connect(*cfg, "lapse "+in.id+" page", false)
	if err != nil {
		return nil, err
	}
	return c.Conn, nil
}

// examine has the findings of lapse doctor, for the page.
func (in *instance) examine(ctx context.Context, d *doctor.Deployment) (any, error) {
	if err := in.phase.Up(); err != nil {
		return nil, err
	}
	return doctor.Run(ctx, *d), nil
}

// health is what /readyz answers.
func (in *instance) health(ctx context.Context) wire.HealthReply {
	h, _, _ := in.inspect(ctx)
	return h
}

// sample is what a scrape asks for. A Redis that does not say what it is is not
// asked for its timers too.
func (in *instance) sample(ctx context.Context) metrics.Sampled {
	h, server, err := in.inspect(ctx)
	s := metrics.Sampled{Health: h}
	if err == nil {
		s.Server = &server
		if counts, err := in.store.Count(ctx); err == nil {
			s.Counts = &counts
		}
	}
	return s
}

// inspect asks how the parts are, and gives what Redis said of itself.
func (in *instance) inspect(ctx context.Context) (wire.HealthReply, timers.Server, error) {
	return health.Inspect(ctx, &in.phase, func() health.Parts {
		return health.Parts{
			Redis:       func(ctx context.Context) (timers.Server, error) { return timers.Inspect(ctx, in.rdb) },
			MinReplicas: in.cfg.MinReplicas, Refused: in.refused.Why, Unwritten: in.crew.Unsigned, NATS: in.service.Health, Stream: in.pub.Health,
			Listening: func() (bool, string) { h := in.listener.Health(); return h.OK, h.Why },
		}
	})
}

// tryLine is a line that works as it is printed. Secrets are not printed: the
// client finds them in the environment, as serve did.
func tryLine(cfg settings.Settings, server string) string {
	line := os.Args[0] + " set demo --in 3s --data hello"
	secret := strings.Contains(cfg.NATSURL, "@") || cfg.NATSCreds != "" || cfg.NATSURL == settings.Embedded && strings.Contains(cfg.NATSListen, "@")
	switch {
	case secret:
		return line + " (with the environment of this process)"
	case server != nats.DefaultURL:
		line += " --server " + server
	}
	if cfg.Prefix != wire.DefaultPrefix {
		line += " --prefix " + cfg.Prefix
	}
	return line
}
