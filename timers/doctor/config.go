package doctor

import (
	"context"
	"fmt"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/redis/go-redis/v9"

	"github.com/lapse-timers/lapse/timers"
	"github.com/lapse-timers/lapse/timers/settings"
	"github.com/lapse-timers/lapse/timers/wire"
)

const flagsSetting = "notify-keyspace-events"

// asked are the directives that are read, each with a command of its own: 6.2
// takes no more than one.
var asked = []string{
	flagsSetting, "maxmemory-policy", "appendonly", "appendfsync", "save", "stop-writes-on-bgsave-error", "dir", "dbfilename", "hz",
	"client-output-buffer-limit", "hash-max-listpack-value", "hash-max-ziplist-value", "hash-max-listpack-entries", "hash-max-ziplist-entries",
}

func (e *exam) readConfig(ctx context.Context) {
	r := &e.redis
	r.conf = map[string]string{}
	ask, cancel := context.WithTimeout(ctx, wait)
	defer cancel()
	cmds := make([]*redis.MapStringStringCmd, len(asked))
	_, err := r.rdb.Pipelined(ask, func(p redis.Pipeliner) error {
		for i, name := range asked {
			cmds[i] = p.ConfigGet(ask, name)
		}
		return nil
	})
	for i, name := range asked {
		if v, ok := cmds[i].Val()[name]; ok {
			r.conf[name] = v
		}
	}
	if len(r.conf) == 0 {
		r.noCfg = "CONFIG GET tells nothing"
		if err != nil {
			r.noCfg = "CONFIG GET was refused: " + err.Error()
		}
	}
}

// directive is a line of redis.conf of which nothing but its value matters.
type directive struct {
	check string
	names []string // the first one that the server knows counts
	set   string   // what to set it to
	floor int64    // numbers below it are wrong
	why   string
}

var directives = []directive{
	{"hz", []string{"hz"}, "100", 10, "how often Redis looks for expired keys by itself: what is due while no Lapse runs well expires late"},
	{"listpack-value", []string{"hash-max-listpack-value", "hash-max-ziplist-value"}, "1024", 1024, "a timer with a payload above it takes about 1,035 bytes instead of 642, and with 1024 most do not"},
	{"listpack-entries", []string{"hash-max-listpack-entries", "hash-max-ziplist-entries"}, "128", 16, "a timer is a hash of up to 10 fields: below that each one takes nearly twice the memory"},
}

// checkConfig judges the directives. The persistence is with INFO.
func (e *exam) checkConfig() {
	e.checkFlags()
	e.checkEviction()
	for _, d := range directives {
		e.checkDirective(d)
	}
	e.checkBuffer()
}

func (e *exam) checkDirective(d directive) {
	r := &e.redis
	name, have := d.names[0], ""
	for _, n := range d.names {
		if v, ok := r.conf[n]; ok {
			name, have = n, v
			break
		}
	}
	if have == "" {
		e.hidden(d.check, name+" "+d.set)
		return
	}
	if n, err := strconv.ParseInt(have, 10, 64); err == nil && n >= d.floor {
		e.ok("redis", d.check, name+" "+have)
		return
	}
	e.found(wire.Finding{Check: d.check, Part: "redis", Status: wire.FindingWarn, Found: name + " " + have, Wanted: fmt.Sprintf("%s %s, at least %d", name, d.set, d.floor),
		Why: d.why, Remedy: e.configLines(name, d.set)}, e.configSet(name, d.set))
}

// hidden notes a directive that Redis does not tell.
func (e *exam) hidden(check, line string) {
	why := e.redis.noCfg
	if why == "" {
		why = "this server does not know it"
	}
	e.unknown("redis", check, why, "# see to it that redis.conf, or the provider's parameter of that name, has this:", "redis.conf: "+line)
}

// configLines sets it at run time, and for good. The embedded redis-server has
// the shipped redis.conf at each start, whatever stands in its directory.
func (e *exam) configLines(name, value string) string {
	now := fmt.Sprintf("%s CONFIG SET %s %s", e.redis.cli, name, quoted(value))
	if e.cfg.RedisURL == settings.Embedded {
		return lines(now, "# or restart lapse serve: its redis-server starts with the shipped redis.conf")
	}
	return lines(now, "redis.conf: "+name+" "+value)
}

func (e *exam) configSet(name, value string) func(context.Context) error {
	return func(ctx context.Context) error { return e.redis.rdb.ConfigSet(ctx, name, value).Err() }
}

func (e *exam) checkFlags() {
	have, known := e.redis.conf[flagsSetting]
	missing := timers.MissingFlags(have)
	switch {
	case !known:
		e.hidden("notify-flags", flagsSetting+" Ex")
		return
	case missing == "":
		e.ok("redis", "notify-flags", "%s %s", flagsSetting, have)
		return
	}
	f := wire.Finding{
		Check: "notify-flags", Part: "redis", Found: fmt.Sprintf("%s %q", flagsSetting, have), Wanted: "E and x in it",
		Why:    "Redis announces no expired keys; due timers are claimed without, late by LAPSE_GRACE",
		Remedy: e.configLines(flagsSetting, timers.WantedFlags(have)),
	}
	if e.cfg.NotifyConfig == "auto" {
		f.Why += ". A running Lapse adds them where it may CONFIG SET; a restart of Redis forgets that"
	}
	e.found(f, func(ctx context.Context) error {
		// Read anew: others may have added theirs meanwhile.
		now, err := e.redis.rdb.ConfigGet(ctx, flagsSetting).Result()
		if err != nil {
			return err
		}
		return e.redis.rdb.ConfigSet(ctx, flagsSetting, timers.WantedFlags(now[flagsSetting])).Err()
	})
}

func (e *exam) checkEviction() {
	have := e.redis.conf["maxmemory-policy"]
	if have == "" {
		have = e.redis.info["maxmemory_policy"]
	}
	f := wire.Finding{Check: "maxmemory-policy", Part: "redis", Found: "maxmemory-policy " + have, Wanted: "maxmemory-policy noeviction", Remedy: e.configLines("maxmemory-policy", "noeviction")}
	switch {
	case have == "":
		e.hidden("maxmemory-policy", "maxmemory-policy noeviction")
		return
	case strings.HasPrefix(have, "allkeys-"):
		f.Why = "at maxmemory Redis evicts any key: accepted timers are lost"
	case strings.HasPrefix(have, "volatile-"):
		f.Status, f.Why = wire.FindingWarn, "at maxmemory Redis evicts exactly the trigger keys, since only they have a TTL: their timers are late by LAPSE_GRACE"
	default:
		e.ok("redis", "maxmemory-policy", have)
		return
	}
	if e.redis.info != nil && e.redis.number("maxmemory") == 0 {
		f.Status = wire.FindingWarn
		f.Why += " (there is no maxmemory now)"
	}
	// Not fixed by itself: with another policy the writes of neighbours fail at
	// maxmemory, and they may count on being evicted instead.
	e.found(f, nil)
}

// checkBuffer judges what a subscriber may leave unread.
func (e *exam) checkBuffer() {
	const name, value = "client-output-buffer-limit", "pubsub 128mb 64mb 60"
	all, known := e.redis.conf[name]
	if !known {
		e.hidden("pubsub-buffer", name+" "+value)
		return
	}
	words := strings.Fields(all) // normal 0 0 0 slave 268435456 67108864 60 pubsub 33554432 8388608 60
	for i := 0; i+3 < len(words); i += 4 {
		if words[i] != "pubsub" {
			continue
		}
		found := fmt.Sprintf("%s %s", name, strings.Join(words[i:i+4], " "))
		hard, _ := strconv.ParseInt(words[i+1], 10, 64)
		soft, _ := strconv.ParseInt(words[i+2], 10, 64)
		if (hard == 0 || hard >= 64<<20) && (soft == 0 || soft >= 32<<20) {
			e.ok("redis", "pubsub-buffer", found)
			return
		}
		e.found(wire.Finding{Check: "pubsub-buffer", Part: "redis", Status: wire.FindingWarn, Found: found, Wanted: name + " " + value + ", at least half of that",
			Why:    "100,000 events at once are 10 to 45 MB: Redis cuts a subscriber that is slower, and what it missed fires late by LAPSE_GRACE",
			Remedy: e.configLines(name, value)}, e.configSet(name, value))
		return
	}
	e.hidden("pubsub-buffer", name+" "+value)
}

// aofFirst stands before the line that turns the append-only file on: Redis
// then reads that file and no snapshot, also when there is none yet.
const aofFirst = "# only once CONFIG SET appendonly yes has written the file: a Redis that starts with this line and without the file starts empty, whatever its dump.rdb holds"

// checkPersistence judges what a crash of Redis leaves, and whether it can write.
func (e *exam) checkPersistence() {
	r := &e.redis
	aof := r.info["aof_enabled"] == "1"
	save, savesKnown := r.conf["save"]
	f := wire.Finding{Check: "persistence", Part: "redis", Wanted: "appendonly yes, appendfsync everysec",
		Remedy: strings.Replace(e.configLines("appendonly", "yes"), "\nredis.conf: ", "\n"+aofFirst+"\nredis.conf: ", 1)}
	switch {
	case aof && r.conf["appendfsync"] == "no":
		f.Status, f.Found = wire.FindingWarn, "appendonly yes, appendfsync no"
		f.Why = "the system decides when to write: a power cut loses half a minute of timers, or more"
		f.Remedy = e.configLines("appendfsync", "everysec")
		e.found(f, nil)
	case aof:
		e.ok("redis", "persistence", "append-only file, appendfsync %s", r.conf["appendfsync"])
	case !savesKnown:
		e.unknown("redis", "persistence", "appendonly no; whether snapshots are taken is not known: "+r.noCfg, aofFirst, "redis.conf: appendonly yes")
	case save != "":
		f.Status, f.Found = wire.FindingWarn, "appendonly no, save "+save
		f.Why = "a crash of Redis goes back to its last snapshot: timers since then are lost, cancels undone, deliveries repeated"
		e.found(f, nil)
	default:
		f.Found = `appendonly no, save ""`
		f.Why = "a restart of Redis loses every timer"
		e.found(f, nil)
	}

	where := filepath.Join(r.conf["dir"], r.conf["dbfilename"])
	if r.info["rdb_last_bgsave_status"] == "err" {
		f := wire.Finding{Check: "rdb-save", Part: "redis", Status: wire.FindingWarn, Found: "the last background save failed (" + where + ")", Wanted: "rdb_last_bgsave_status ok",
			Why: "the snapshot is old, and nobody can be given a new one, such as a replica", Remedy: lines("# see Redis's log for why, make room or rights for "+where+", then:", r.cli+" BGSAVE SCHEDULE")}
		if stops := r.conf["stop-writes-on-bgsave-error"]; stops != "no" && (save != "" || !savesKnown) {
			f.Status, f.Why = wire.FindingFail, "with stop-writes-on-bgsave-error Redis refuses writes: no timer can be set or fired"
			if aof {
				f.Remedy = lines(f.Remedy, "# until then, since the append-only file holds all of it:", r.cli+" CONFIG SET stop-writes-on-bgsave-error no")
			}
		}
		e.found(f, nil)
	} else {
		e.ok("redis", "rdb-save", "no failure")
	}
	if r.info["aof_last_write_status"] == "err" {
		e.found(wire.Finding{Check: "aof-write", Part: "redis", Found: "the append-only file cannot be written (in " + r.conf["dir"] + ")", Wanted: "aof_last_write_status ok",
			Why: "Redis refuses writes until it can: no timer can be set or fired", Remedy: "# make room on the disk of " + r.conf["dir"] + "; Redis tries again every second"}, nil)
	} else {
		e.ok("redis", "aof-write", "no failure")
	}
	if r.info["aof_last_bgrewrite_status"] == "err" {
		e.found(wire.Finding{Check: "aof-rewrite", Part: "redis", Status: wire.FindingWarn, Found: "the last rewrite of the append-only file failed (in " + r.conf["dir"] + ")", Wanted: "aof_last_bgrewrite_status ok",
			Why: "the file grows without end, and loading it takes longer each time", Remedy: lines("# see Redis's log for why, make room or rights in "+r.conf["dir"]+", then:", r.cli+" BGREWRITEAOF")}, nil)
	} else {
		e.ok("redis", "aof-rewrite", "no failure")
	}
}
