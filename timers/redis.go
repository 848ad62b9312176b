package timers

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/maintnotifications"
)

// The three ways in which Redis fails a write. What the caller may conclude
// is in the comments; the error underneath is wrapped.
var (
	// ErrUnavailable: the command did not run; nothing was stored.
	ErrUnavailable = errors.New("Redis cannot be written to; nothing was stored")
	// ErrUnconfirmed: the reply was lost; the command may have run.
	ErrUnconfirmed = errors.New("the reply of Redis was lost; it may have been stored")
	// ErrOutOfMemory: Redis is at maxmemory; nothing was stored.
	ErrOutOfMemory = errors.New("Redis is at maxmemory; nothing was stored")
)

// ErrReplicas is a write that Redis has carried out and that too few of its
// replicas have confirmed: a failover may lose it. It matches ErrUnconfirmed too.
var ErrReplicas = fmt.Errorf("%w: too few replicas have it", ErrUnconfirmed)

// ErrRedisAuth is a refusal that waiting does not mend: a wrong or missing
// password, or a user without the rights.
var ErrRedisAuth = errors.New("Redis refuses the user")

// dialError marks errors from before a connection stood, so nothing was sent.
type dialError struct{ error }

func (e dialError) Unwrap() error { return e.error }

// ParseRedisURL reads a redis://, rediss:// or unix:// URL with go-redis's
// query options and sets what Lapse depends on: deadlines of contexts count,
// and nothing is ever sent twice by the library (ADR 5). Errors do not repeat
// the URL, which may hold a password.
func ParseRedisURL(raw string) (*redis.Options, error) {
	opt, err := redis.ParseURL(raw)
	if err != nil {
		var ue *url.Error
		if errors.As(err, &ue) {
			// What it says of the fault may hold a part of the password.
			err = errors.New("it is no URL (special characters in a password are percent-encoded)")
		} else if strings.Contains(err.Error(), "invalid URL scheme") {
			err = errors.New("it does not begin with redis://, rediss:// or unix://")
		} else {
			err = errors.New(strings.TrimPrefix(err.Error(), "redis: ")) // the library's own name is no news
		}
		return nil, fmt.Errorf("%w: want redis://[user:password@]host:port/db, rediss://... or unix:///path?db=n, or embedded", err)
	}
	opt.MaxRetries = -1
	opt.DialerRetries = 1
	opt.ContextTimeoutEnabled = true
	opt.DisableIdentity = true
	opt.MaintNotificationsConfig = &maintnotifications.Config{Mode: maintnotifications.ModeDisabled}
	if opt.ReadTimeout < 0 || opt.WriteTimeout < 0 {
		return nil, errors.New("read_timeout and write_timeout must not be switched off: a server that stands still would be waited for without end")
	}
	if opt.Protocol == 0 {
		opt.Protocol = 2 // the shared language of Redis 6.2, Valkey and proxies
	}
	if opt.DialTimeout == 0 {
		opt.DialTimeout = 2 * time.Second
	}
	if opt.ReadTimeout == 0 {
		opt.ReadTimeout = 5 * time.Second
	}
	if opt.PoolTimeout == 0 {
		opt.PoolTimeout = 2 * time.Second
	}
	dial := redis.NewDialer(opt)
	opt.Dialer = func(ctx context.Context, network, addr string) (net.Conn, error) {
		c, err := dial(ctx, network, addr)
		if err != nil {
			return nil, dialError{err}
		}
		return c, nil
	}
	return opt, nil
}

// notRun are the error replies of Redis that say that a command or script was
// refused before it changed anything. They are a list of what is known: any
// other reply, such as a proxy's own or a right that a script lacks half-way,
// proves nothing.
var notRun = []string{
	"LOADING", "READONLY", "MISCONF", "NOREPLICAS", "MASTERDOWN", "CLUSTERDOWN", "BUSY", "NOAUTH", "WRONGPASS", "NOSCRIPT",
	"max number of clients reached",
}

// writeError sorts the error of a write into one of the three above.
func writeError(err error) error {
	if err == nil || errors.Is(err, ErrUnconfirmed) {
		return err
	}
	var dial dialError
	var reply redis.Error
	switch {
	case errors.As(err, &dial), errors.Is(err, redis.ErrPoolTimeout), errors.Is(err, redis.ErrPoolExhausted), errors.Is(err, redis.ErrClosed):
		return fmt.Errorf("%w: %w", ErrUnavailable, err)
	case errors.As(err, &reply) && replyIs(reply, "OOM"):
		return fmt.Errorf("%w: %w", ErrOutOfMemory, err)
	case errors.As(err, &reply) && replyIs(reply, notRun...):
		return fmt.Errorf("%w: %w", ErrUnavailable, err)
	case foreignType(err) && readsFirst(err.Error()):
		return fmt.Errorf("%w: %w", ErrUnavailable, err)
	}
	return fmt.Errorf("%w: %w", ErrUnconfirmed, err)
}

// foreignType says whether Redis answered that a key is of another type than the
// script takes it for.
func foreignType(err error) bool {
	var reply redis.Error
	return errors.As(err, &reply) && replyIs(reply, "WRONGTYPE")
}

// readsFirst says whether the reply is of one of the scripts that a foreign type
// can only stop before their first write; Redis names the script by its hash.
func readsFirst(reply string) bool {
	return strings.Contains(reply, scriptSet.Hash()) || strings.Contains(reply, scriptCancel.Hash())
}

// answered says whether Redis answered, with an error.
func answered(err error) bool {
	var reply redis.Error
	return errors.As(err, &reply)
}

// replyIs says whether an error reply of Redis begins with one of the codes.
// Some proxies put ERR before it, and Redis 6.2 wraps what a script met: "ERR
// Error running script (call to f_…): @user_script:3: -OOM command not allowed".
func replyIs(err error, codes ...string) bool {
	msg := strings.TrimPrefix(err.Error(), "ERR ")
	if strings.HasPrefix(msg, "Error running script") {
		if _, inner, ok := strings.Cut(msg, ": -"); ok {
			msg = inner
		} else if i := strings.LastIndex(msg, "@user_script:"); i >= 0 {
			_, msg, _ = strings.Cut(msg[i:], ": ")
			if line, inner, ok := strings.Cut(msg, ": "); ok && strings.Trim(line, "0123456789") == "" {
				msg = inner
			}
		}
	}
	for _, c := range codes {
		if strings.HasPrefix(msg, c) {
			return true
		}
	}
	return false
}

// isAuthError recognises what no waiting mends. Inside a script Redis words a
// missing right in its own way.
func isAuthError(err error) bool {
	var reply redis.Error
	return errors.As(err, &reply) && (replyIs(reply, "WRONGPASS", "NOAUTH", "NOPERM", "invalid password", "Client sent AUTH") || missesRight(reply.Error()))
}

func missesRight(reply string) bool {
	return strings.Contains(reply, "can't run this command") || strings.Contains(reply, "NOPERM") || strings.Contains(reply, "ACL failure")
}

// Server is what Lapse needs to know of a Redis server.
type Server struct {
	Version  string // redis_version, of Valkey its compatibility version
	Cluster  bool
	Replica  bool
	Eviction string // maxmemory-policy; "" when INFO does not say
	Memory   int64  // maxmemory in bytes, 0 for no limit
	Used     int64  // used_memory in bytes
	AOFError bool   // the last write of the AOF failed: Redis refuses writes
	RDBError bool   // the last background save failed: Redis may refuse writes
	Replicas int    // connected to it
}

// Inspect asks the server what it is (https://redis.io/docs/latest/commands/info/).
// Errors match [ErrRedisAuth] where waiting does not help.
func Inspect(ctx context.Context, rdb redis.UniversalClient) (Server, error) {
	info, err := rdb.Info(ctx).Result()
	if err != nil {
		if isAuthError(err) {
			remedy := "LAPSE_REDIS_URL names the user; README.md has the line that gives it its rights"
			if !replyIs(err, "NOPERM") {
				remedy = "correct the user and password in LAPSE_REDIS_URL"
			}
			return Server{}, fmt.Errorf("%w: %w (%s)", ErrRedisAuth, err, remedy)
		}
		return Server{}, err
	}
	var s Server
	for line := range strings.Lines(info) {
		k, v, _ := strings.Cut(strings.TrimSpace(line), ":")
		switch k {
		case "redis_version":
			s.Version = v
		case "cluster_enabled":
			s.Cluster = v == "1"
		case "role":
			s.Replica = v == "slave"
		case "maxmemory_policy":
			s.Eviction = v
		case "maxmemory":
			s.Memory, _ = strconv.ParseInt(v, 10, 64)
		case "used_memory":
			s.Used, _ = strconv.ParseInt(v, 10, 64)
		case "aof_last_write_status":
			s.AOFError = v == "err"
		case "connected_slaves":
			s.Replicas, _ = strconv.Atoi(v)
		case "rdb_last_bgsave_status":
			s.RDBError = v == "err"
		}
	}
	return s, nil
}

// Refusal is why Lapse cannot work with the server at all, or nil.
func (s Server) Refusal() error {
	major, minor := versionOf(s.Version)
	switch {
	case s.Version != "" && (major < 6 || major == 6 && minor < 2):
		return fmt.Errorf("redis-server %s is too old: Lapse needs 6.2 or later (PXAT, ZMSCORE); upgrade it, or point LAPSE_REDIS_URL at a newer one", s.Version)
	case s.Cluster:
		return errors.New("LAPSE_REDIS_URL points at a Redis Cluster, which this version does not speak to; use a single master, or one behind a proxy")
	}
	return nil
}

// Trouble is why writes fail now, or may; down says that no timer can be set
// or fired. It is "" for a server that is well.
func (s Server) Trouble() (why string, down bool) {
	switch {
	case s.Replica:
		return "Redis is a replica and takes no writes; point LAPSE_REDIS_URL at the master, or promote it", true
	case s.AOFError:
		return "Redis refuses writes since it cannot write its AOF; see its log and the disk", true
	case s.Memory > 0 && s.Used >= s.Memory:
		return "Redis is at maxmemory: sets are refused, what is due still fires; raise maxmemory", false
	case s.RDBError:
		return "the last bgsave of Redis failed; with stop-writes-on-bgsave-error it refuses writes; see its log and the disk", false
	}
	return "", false
}

// Warnings are what of the server endangers the promise, each with its remedy.
func (s Server) Warnings() []string {
	var w []string
	switch {
	case strings.HasPrefix(s.Eviction, "allkeys-"):
		w = append(w, "Redis may evict any key under memory pressure: accepted timers can be LOST; set maxmemory-policy noeviction (it is "+s.Eviction+")")
	case strings.HasPrefix(s.Eviction, "volatile-"):
		w = append(w, "Redis may evict trigger keys under memory pressure: their timers are late by the grace; set maxmemory-policy noeviction (it is "+s.Eviction+")")
	}
	if s.Replica {
		w = append(w, "LAPSE_REDIS_URL points at a replica: timers cannot be set or fired until it is a master")
	}
	return w
}

func versionOf(v string) (major, minor int) {
	parts := strings.SplitN(v, ".", 3)
	major, _ = strconv.Atoi(parts[0])
	if len(parts) > 1 {
		minor, _ = strconv.Atoi(parts[1])
	}
	return major, minor
}
