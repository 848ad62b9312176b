package embedded

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"
)

const (
	confFile = "redis.conf"
	logFile  = "redis.log"
	lockFile = "redis.lock"
	sockFile = "redis.sock"

	maxLog = 10 << 20 // bytes of log after which the next start begins a new one

	restartMin = 100 * time.Millisecond // back-off of the supervision
	restartMax = 5 * time.Second
	steady     = 10 * time.Second // a child that ran this long starts over at restartMin
	killWait   = 5 * time.Second  // how long the kernel may take over a SIGKILL
)

// RedisOptions are what [StartRedis] needs to know.
type RedisOptions struct {
	// Conf is the content of redis.conf.
	Conf []byte
	// Binary is the program, a path or a name on the PATH; redis-server by
	// default. It must not fork.
	Binary string
	// Logger gets what goes wrong with the child; slog.Default by default.
	Logger *slog.Logger
	// ExtraArgs go on its command line, behind ours, such as "--hz", "10".
	ExtraArgs []string
}

// Redis is a redis-server child that is kept alive until [Redis.Stop].
type Redis struct {
	dir     string // holds everything of it
	binary  string
	args    []string
	version string
	logger  *slog.Logger
	lock    *os.File // redis.lock, shared with every child
	socket  *socket
	client  *redis.Client // for health only

	stopOnce sync.Once
	stop     chan struct{} // closed: end the child
	killOnce sync.Once
	kill     chan struct{} // closed: with SIGKILL, if need be
	done     chan struct{} // closed: supervise has returned
	killed   bool          // written before done is closed
}

// StartRedis starts redis-server in the data directory and returns when it
// takes commands, however long it loads its data, until ctx ends. A
// redis-server that a killed Lapse left behind is ended first. When the child
// dies later it is started again, until [Redis.Stop].
//
// The errors name their remedy: there is no redis-server, it is older than
// 6.2, it ended at start (with its last words), an earlier one cannot be
// ended, the directory's path is too long for a socket.
func StartRedis(ctx context.Context, dir *Dir, o RedisOptions) (*Redis, error) {
	if o.Logger == nil {
		o.Logger = slog.Default()
	}
	binary, version, err := findRedis(ctx, o.Binary)
	if err != nil {
		return nil, err
	}
	path, err := dir.sub("redis")
	if err != nil {
		return nil, err
	}
	r := &Redis{
		dir: path, binary: binary, version: version, logger: o.Logger,
		stop: make(chan struct{}), kill: make(chan struct{}), done: make(chan struct{}),
	}
	r.args = append([]string{confFile, "--port", "0", "--unixsocket", sockFile, "--unixsocketperm", "700", "--dir", ".",
		"--daemonize", "no", "--logfile", logFile}, o.ExtraArgs...)
	if err := r.start(ctx, o.Conf); err != nil {
		r.release()
		return nil, err
	}
	return r, nil
}

func (r *Redis) start(ctx context.Context, conf []byte) (err error) {
	if r.socket, err = openSocket(r.dir, sockFile); err != nil {
		return err
	}
	r.client = redis.NewClient(&redis.Options{
		Network: "unix", Addr: r.socket.path, MaxRetries: -1, DialerRetries: 1, PoolSize: 1, ContextTimeoutEnabled: true,
	})
	if r.lock, err = takeOver(ctx, r.dir, r.socket, r.client, usualPatience, r.logger); err != nil {
		return err
	}
	if err := writeConf(filepath.Join(r.dir, confFile), conf); err != nil {
		return fmt.Errorf("data directory %s: %w", r.dir, err)
	}
	c, err := r.launch()
	if err != nil {
		return err
	}
	if err := r.awaitReady(ctx, c); err != nil {
		c.end(r.kill, 0)
		return err
	}
	go r.supervise(c)
	return nil
}

// release closes what this process holds of it. The child must have ended.
func (r *Redis) release() {
	if r.client != nil {
		_ = r.client.Close() // it holds no data
	}
	if r.socket != nil {
		r.socket.close()
	}
	if r.lock != nil {
		_ = r.lock.Close() // only ever locked
	}
}

// URL is the address of the server for redis.ParseURL in this process.
func (r *Redis) URL() string { return r.socket.url() }

// Version is that of the redis-server program, such as 7.0.15.
func (r *Redis) Version() string { return r.version }

// Stop ends the child with SIGTERM, upon which it writes what it has not
// written, or with SIGKILL when ctx ends first, which is the only error.
// Calling it again does nothing.
func (r *Redis) Stop(ctx context.Context) error {
	r.stopOnce.Do(func() { close(r.stop) })
	select {
	case <-r.done:
	case <-ctx.Done():
		r.killOnce.Do(func() { close(r.kill) })
		<-r.done
	}
	if r.killed {
		return errors.New("redis-server did not end in time and was killed; it reads its append-only file at the next start")
	}
	return nil
}

// supervise owns the child and replaces it when it ends, until Stop.
func (r *Redis) supervise(c *child) {
	defer close(r.done)
	defer r.release()
	backoff := restartMin
	for {
		select {
		case <-r.stop:
			r.killed = c.end(r.kill, -1)
			return
		case <-c.exited:
		}
		if time.Since(c.started) > steady {
			backoff = restartMin
		}
		r.logger.Error("redis-server ended by itself, starting it again", "how", c.how(), "log", c.lastWords())
		if c = r.revive(&backoff); c == nil {
			return // stopped meanwhile, with no child
		}
		r.logger.Info("redis-server is back", "pid", c.pid())
	}
}

// revive starts children until one takes commands, waiting longer each time;
// nil when stopped. Only supervise's first line is logged as an error: the
// reason rarely changes, and the log would fill while nobody looks.
func (r *Redis) revive(backoff *time.Duration) *child {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	watch := make(chan struct{})
	defer func() { <-watch }()
	defer cancel()
	go func() {
		defer close(watch)
		select {
		case <-r.stop:
			cancel()
		case <-ctx.Done():
		}
	}()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(*backoff):
		}
		*backoff = min(2**backoff, restartMax)
		c, err := r.launch()
		if err == nil {
			if err = r.awaitReady(ctx, c); err == nil {
				return c
			}
			r.killed = c.end(r.kill, -1)
		}
		r.logger.Debug("redis-server could not be started again", "error", err)
	}
}

// awaitReady returns when the child takes commands: not while it loads. The
// time that takes grows with the data, so only ctx bounds it.
func (r *Redis) awaitReady(ctx context.Context, c *child) error {
	for {
		err := r.ping(ctx)
		if err == nil {
			return nil
		}
		select {
		case <-c.exited:
			words, remedy := c.lastWords(), ""
			if strings.Contains(words, "Permission denied") {
				remedy = "\nthe files in " + r.dir + " must belong to the user that Lapse runs as: chown -R them to it"
			}
			return fmt.Errorf("redis-server ended at start (%s); the end of %s: %s%s", c.how(), filepath.Join(r.dir, logFile), words, remedy)
		case <-ctx.Done():
			return fmt.Errorf("redis-server in %s does not take commands yet (%w): %w", r.dir, err, ctx.Err())
		case <-time.After(10 * time.Millisecond):
		}
	}
}

func (r *Redis) ping(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	if err := r.socket.knock(ctx); err != nil {
		return err
	}
	return r.client.Ping(ctx).Err()
}

// writeConf replaces the file in one step: a start that is cut off must not
// leave half a configuration, which redis-server would take for a whole one.
func writeConf(path string, conf []byte) error {
	half := path + ".new"
	if err := os.WriteFile(half, conf, 0o600); err != nil {
		return err
	}
	return os.Rename(half, path)
}

// environ is what redis-server needs to know of ours: our own settings hold
// secrets, which are none of its business.
func environ() []string {
	var env []string
	for _, e := range os.Environ() {
		if !strings.HasPrefix(e, "LAPSE_") {
			env = append(env, e)
		}
	}
	return env
}
