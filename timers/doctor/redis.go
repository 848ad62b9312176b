package doctor

import (
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/lapse-timers/lapse/timers"
	"github.com/lapse-timers/lapse/timers/settings"
	"github.com/lapse-timers/lapse/timers/wire"
)

// lookAtRedis asks Redis what it is. When it does not answer, no other check of
// it is made.
func (e *exam) lookAtRedis(ctx context.Context) {
	if !e.reachRedis(ctx) {
		return
	}
	e.checkRights(ctx)
	e.readInfo(ctx)
	e.readConfig(ctx)
	e.checkServer()
	e.checkConfig()
	e.checkClock(ctx)
}

// runsElsewhere mends that no embedded server was found.
var runsElsewhere = []string{"lapse serve", "# or, where one runs already: lapse doctor in the directory where it was started, or with its LAPSE_DATA_DIR and LAPSE_NATS_LISTEN"}

func (e *exam) reachRedis(ctx context.Context) bool {
	absent := func(found, why string, remedy ...string) bool {
		e.found(wire.Finding{Check: "redis-reachable", Part: "redis", Found: found, Wanted: "a redis-server that answers", Why: why, Remedy: lines(remedy...)}, nil)
		return false
	}
	if e.d.RedisURL == "" {
		return absent(e.d.Absent, "without it no timer can be set or fired", runsElsewhere...)
	}
	opt, err := timers.ParseRedisURL(e.d.RedisURL)
	if err != nil {
		return absent("LAPSE_REDIS_URL: "+err.Error(), "without it no timer can be set or fired", "LAPSE_REDIS_URL=redis://[user:password@]host:port/db")
	}
	opt.DialTimeout, opt.ReadTimeout, opt.PoolSize = wait, wait, 4
	e.redis.opt, e.redis.cli = opt, redisCLI(opt)
	rdb := redis.NewClient(opt)
	ask, cancel := context.WithTimeout(ctx, wait)
	defer cancel()
	err = rdb.Ping(ask).Err()
	if err != nil && (!timers.Answered(err) || isRefusal(err, "WRONGPASS", "NOAUTH", "invalid password", "Client sent AUTH", "LOADING")) {
		_ = rdb.Close() // it never worked
		switch {
		case isRefusal(err, "LOADING"):
			return absent("Redis is loading its data", "until then no timer can be set or fired", "# wait; Lapse does so by itself")
		case timers.Answered(err):
			return absent(err.Error(), "Lapse does not start with it", "LAPSE_REDIS_URL=redis://user:password@"+opt.Addr+"/"+strconv.Itoa(opt.DB))
		case e.d.Settings.RedisURL == settings.Embedded:
			return absent(e.d.Absent, "without it no timer can be set or fired", runsElsewhere...)
		case wire.TLSRemedy(err) != "":
			return absent(err.Error(), "without it no timer can be set or fired: Lapse waits for it", "# "+wire.TLSRemedy(err))
		}
		return absent(dialFailure(err), "without it no timer can be set or fired: Lapse waits for it",
			"# start redis-server at "+opt.Addr+", or name another one in LAPSE_REDIS_URL")
	}
	e.redis.rdb = rdb
	if keys, err := timers.NewKeys(e.cfg.Prefix, e.cfg.Partitions); err == nil { // the settings were checked
		e.redis.store = timers.NewStore(rdb, keys)
	}
	if e.cfg.RedisURL == settings.Embedded {
		e.ok("redis", "redis-reachable", "the redis-server of a running lapse serve, "+opt.Addr)
	} else {
		e.ok("redis", "redis-reachable", opt.Addr)
	}
	return true
}

// redisCLI is how a person reaches the server. Credentials are left to them:
// what mends it mostly wants other rights than Lapse has.
func redisCLI(opt *redis.Options) string {
	cmd := "redis-cli"
	if opt.Network == "unix" {
		cmd += " -s " + quoted(opt.Addr)
	} else if host, port, err := net.SplitHostPort(opt.Addr); err == nil {
		if host != "127.0.0.1" && host != "localhost" {
			cmd += " -h " + quoted(host)
		}
		if port != "6379" {
			cmd += " -p " + port
		}
	}
	if opt.TLSConfig != nil {
		cmd += " --tls"
	}
	if opt.DB != 0 {
		cmd += " -n " + strconv.Itoa(opt.DB)
	}
	return cmd
}

// dialFailure is the error without what go-redis puts around it.
func dialFailure(err error) string {
	var op *net.OpError
	if errors.As(err, &op) {
		return op.Error()
	}
	return err.Error()
}

// isRefusal says whether Redis answered with one of the words; some proxies put
// ERR before it.
func isRefusal(err error, words ...string) bool {
	msg := strings.TrimPrefix(err.Error(), "ERR ")
	return timers.Answered(err) && slices.ContainsFunc(words, func(w string) bool { return strings.HasPrefix(msg, w) })
}

func (e *exam) readInfo(ctx context.Context) {
	ask, cancel := context.WithTimeout(ctx, wait)
	defer cancel()
	text, err := e.redis.rdb.Info(ask).Result()
	if err != nil {
		e.unknown("redis", "redis-version", "INFO was refused: "+err.Error(), e.redis.cli+" ACL SETUSER "+quoted(e.redis.user)+" +info")
		return
	}
	e.redis.info = map[string]string{}
	for line := range strings.Lines(text) {
		if k, v, ok := strings.Cut(strings.TrimSpace(line), ":"); ok {
			e.redis.info[k] = v
		}
	}
}

func (r *redisSide) number(field string) int64 {
	n, _ := strconv.ParseInt(r.info[field], 10, 64) // 0 when INFO does not say
	return n
}

// checkServer judges what INFO says.
func (e *exam) checkServer() {
	r := &e.redis
	if r.info == nil {
		return
	}
	version := timers.Server{Version: r.info["redis_version"]}
	if err := version.Refusal(); err != nil {
		e.found(wire.Finding{Check: "redis-version", Part: "redis", Found: r.info["redis_version"], Wanted: "6.2 or later", Why: err.Error(),
			Remedy: "# upgrade redis-server, or point LAPSE_REDIS_URL at a newer one"}, nil)
	} else {
		e.ok("redis", "redis-version", r.info["redis_version"])
	}
	if r.info["cluster_enabled"] == "1" {
		e.found(wire.Finding{Check: "redis-cluster", Part: "redis", Found: "a node of a Redis Cluster", Wanted: "a single master",
			Why: "this version does not speak to a Cluster, and does not start with one", Remedy: "# point LAPSE_REDIS_URL at a single master, or at a proxy in front of one"}, nil)
	} else {
		e.ok("redis", "redis-cluster", "no Cluster")
	}
	if r.info["role"] == "slave" {
		master := net.JoinHostPort(r.info["master_host"], r.info["master_port"])
		e.found(wire.Finding{Check: "redis-role", Part: "redis", Found: "a replica of " + master, Wanted: "a master",
			Why:    "a replica takes no writes and announces no expired keys: no timer can be set or fired",
			Remedy: lines("LAPSE_REDIS_URL=redis://"+master+"/"+strconv.Itoa(r.opt.DB), "# or, when this one shall be the master:", r.cli+" REPLICAOF NO ONE")}, nil)
	} else {
		e.ok("redis", "redis-role", "master, %d replicas", r.number("connected_slaves"))
	}
	if have := r.number("connected_slaves"); have < int64(e.cfg.MinReplicas) {
		e.found(wire.Finding{Check: "redis-replicas", Part: "redis", Found: fmt.Sprint(have), Wanted: fmt.Sprintf("%d, by LAPSE_MIN_REPLICAS", e.cfg.MinReplicas),
			Why: "sets and cancels are carried out and answered 504", Remedy: lines("# connect replicas, or:", fmt.Sprintf("LAPSE_MIN_REPLICAS=%d", have))}, nil)
	} else {
		e.ok("redis", "redis-replicas", "%d, at least %d wanted", have, e.cfg.MinReplicas)
	}
	e.checkMemory()
	e.checkPersistence()
}

// nearlyFull is the part of a limit from which on it is worth a warning.
const nearlyFull = 0.9

func (e *exam) checkMemory() {
	r := &e.redis
	used, limit, total := r.number("used_memory"), r.number("maxmemory"), r.number("total_system_memory")
	f := wire.Finding{Check: "redis-memory", Part: "redis", Status: wire.FindingWarn}
	switch {
	case limit > 0 && used >= limit:
		f.Status, f.Wanted = wire.FindingFail, "room below maxmemory"
		f.Why = "sets are refused (507); what is due still fires"
	case limit > 0 && float64(used) > nearlyFull*float64(limit):
		f.Wanted = fmt.Sprintf("below %.0f %% of maxmemory", 100*nearlyFull)
		f.Why = "at maxmemory sets are refused (507)"
	case limit == 0 && total > 0 && float64(r.number("used_memory_rss")) > nearlyFull*float64(total):
		f.Found = fmt.Sprintf("%s in use of the machine's %s, and no maxmemory", size(r.number("used_memory_rss")), size(total))
		f.Wanted = "memory to spare, or a limit"
		f.Why = "a machine without memory ends redis-server; with a limit sets are refused instead"
		f.Remedy = lines(fmt.Sprintf("%s CONFIG SET maxmemory %d", r.cli, total*8/10), fmt.Sprintf("redis.conf: maxmemory %d", total*8/10))
		e.found(f, nil)
		return
	default:
		if limit > 0 {
			e.ok("redis", "redis-memory", "%s of maxmemory %s", size(used), size(limit))
		} else {
			e.ok("redis", "redis-memory", "%s, no maxmemory", size(used))
		}
		return
	}
	f.Found = fmt.Sprintf("%s of maxmemory %s", size(used), size(limit))
	f.Remedy = lines(fmt.Sprintf("%s CONFIG SET maxmemory %d", r.cli, 2*limit), fmt.Sprintf("redis.conf: maxmemory %d", 2*limit), "# where the machine has that much; lapse list shows what waits, dead timers too")
	e.found(f, nil)
}

func size(n int64) string {
	switch {
	case n >= 1<<30:
		return fmt.Sprintf("%.1f GB", float64(n)/(1<<30))
	case n >= 1<<20:
		return fmt.Sprintf("%.1f MB", float64(n)/(1<<20))
	case n >= 1<<10:
		return fmt.Sprintf("%.1f kB", float64(n)/(1<<10))
	}
	return fmt.Sprintf("%d bytes", n)
}

// The clock and the way there. A timer is due on Redis's clock.
const (
	offsetWarn = 500 * time.Millisecond
	offsetFail = 10 * time.Second
	farAway    = 10 * time.Millisecond
)

func (e *exam) checkClock(ctx context.Context) {
	best, offset := time.Hour, time.Duration(0)
	var err error
	for range 9 {
		ask, cancel := context.WithTimeout(ctx, wait)
		began := time.Now()
		var at time.Time
		at, err = e.redis.rdb.Time(ask).Result()
		took := time.Since(began)
		cancel()
		if err != nil {
			break
		}
		if took < best {
			best, offset = took, at.Sub(began.Add(took/2))
		}
	}
	if err != nil {
		e.unknown("redis", "clock-offset", "TIME failed: "+err.Error())
		return
	}
	// Half of the way there and back is not known.
	apart := max(offset.Abs()-best/2, 0)
	f := wire.Finding{
		Check: "clock-offset", Part: "redis", Found: fmt.Sprintf("Redis's clock is %s", relation(offset)), Wanted: "less than " + offsetWarn.String() + " apart",
		Why:    "a timer is due on Redis's clock: for whoever sets @at by another one it fires that much off, and lags that are printed here are wrong by as much",
		Remedy: lines("# on the host whose clock is wrong, that of Redis or this one:", "timedatectl set-ntp true"),
	}
	switch {
	case apart >= offsetFail:
		e.found(f, nil)
	case apart >= offsetWarn:
		f.Status = wire.FindingWarn
		e.found(f, nil)
	default:
		e.ok("redis", "clock-offset", f.Found)
	}
	if best > farAway {
		e.found(wire.Finding{Check: "redis-latency", Part: "redis", Status: wire.FindingWarn, Found: "at best " + best.Round(10*time.Microsecond).String() + " there and back",
			Wanted: "less than " + farAway.String(), Why: "each fire takes some of these, so all are late by at least that",
			Remedy: lines("# bring Lapse and Redis nearer to each other; what stops Redis is shown by:", e.redis.cli+" LATENCY LATEST", e.redis.cli+" SLOWLOG GET 10")}, nil)
		return
	}
	e.ok("redis", "redis-latency", "%s there and back", best.Round(10*time.Microsecond))
}

func relation(offset time.Duration) string {
	switch d := offset.Abs().Round(time.Millisecond); {
	case d == 0:
		return "the same as this machine's"
	case offset > 0:
		return d.String() + " ahead of this machine's"
	default:
		return d.String() + " behind this machine's"
	}
}
