package doctor

import (
	"context"
	"fmt"
	"time"

	"github.com/lapse-timers/lapse/timers"
	"github.com/lapse-timers/lapse/timers/wire"
)

// How many keys a look for strays visits, over all partitions (at least one page
// of each), and how many it names.
const (
	sample = 10_000
	named  = 3
)

// lookAtData looks at the records under the prefix, at a bounded number of them.
func (e *exam) lookAtData(ctx context.Context) {
	store := e.redis.store
	if store == nil {
		e.unknown("data", "data-version", "Redis does not answer")
		return
	}
	ask, cancel := context.WithTimeout(ctx, 5*wait)
	defer cancel()
	record, err := store.Record(ask)
	if err != nil {
		e.unknown("data", "data-version", "it cannot be read: "+err.Error())
		return
	}
	if !e.checkRecord(record) {
		return // what the rest finds would be of other keys
	}
	counts, err := store.Count(ask)
	if err != nil {
		e.unknown("data", "overdue", "what waits cannot be counted: "+err.Error())
		return
	}
	e.checkLate(ask, counts)
	e.checkDead(ask, counts)
	e.checkStrays(ask)
}

func (e *exam) checkRecord(record timers.Record) bool {
	version, partitions := e.redis.store.Fits(record)
	switch {
	case !version:
		e.found(wire.Finding{Check: "data-version", Part: "data", Found: "data version " + record.Version, Wanted: fmt.Sprintf("data version %d", timers.DataVersion),
			Why: "Lapse does not start with data of another version", Remedy: lines("# run the release that wrote it, or choose another prefix:", "LAPSE_PREFIX="+e.cfg.Prefix+"2")}, nil)
	case !partitions:
		e.found(wire.Finding{Check: "data-partitions", Part: "data", Found: record.Partitions + " partitions", Wanted: fmt.Sprintf("%d, by LAPSE_PARTITIONS", e.cfg.Partitions),
			Why: "the number of partitions is fixed once there are data: Lapse does not start", Remedy: "LAPSE_PARTITIONS=" + record.Partitions}, nil)
	case record.Version == "":
		e.ok("data", "data-version", "none yet")
	default:
		e.ok("data", "data-version", "version %s, partitions: %s, deployment %s", record.Version, record.Partitions, record.Deployment)
	}
	return version && partitions
}

func (e *exam) checkLate(ctx context.Context, counts timers.Counts) {
	late, err := e.redis.store.Late(ctx)
	if err != nil {
		e.unknown("data", "overdue", "the head of the backup set cannot be read: "+err.Error())
		return
	}
	age := time.Duration(late.Age) * time.Millisecond
	if patience := max(5*time.Second, 10*e.cfg.Grace); counts.Overdue > 0 && age > patience {
		f := wire.Finding{Check: "overdue", Part: "data", Found: fmt.Sprintf("%d of %d timers are overdue, the oldest (%s) by %s", counts.Overdue, counts.Pending, quoted(late.Head), age.Round(time.Second)),
			Wanted: "none by more than " + patience.String(), Why: "nothing fires them"}
		if e.alive == 0 {
			f.Remedy = lines("# no instance serves the prefix:", "lapse serve")
		} else {
			f.Why = "the instances cannot deliver them, or not as fast as they come due"
			f.Remedy = lines("# what keeps them is in the other findings, in the log of lapse serve, and here:", "lapse status")
		}
		e.found(f, nil)
	} else {
		e.ok("data", "overdue", "%d pending, %d due now", counts.Pending, counts.Overdue)
	}
	if late.Lapsed > 0 && age > 5*time.Second {
		f := wire.Finding{Check: "lapsed-claims", Part: "data", Status: wire.FindingWarn, Found: fmt.Sprintf("%d claims whose lease is over, such as one of instance %s", late.Lapsed, late.Instance), Wanted: "none",
			Why: "their claimer said nothing more, and nobody has taken them up: they may have been delivered, and will be again, with the same Nats-Msg-Id", Remedy: lines("# an instance takes them up by itself:", "lapse serve")}
		if e.alive > 0 {
			f.Remedy = lines("# the instance that runs should have taken them up; what keeps it:", "lapse status")
		}
		e.found(f, nil)
	} else {
		e.ok("data", "lapsed-claims", "none")
	}
}

func (e *exam) checkDead(ctx context.Context, counts timers.Counts) {
	if counts.Dead == 0 {
		e.ok("data", "dead", "none")
		return
	}
	f := wire.Finding{Check: "dead", Part: "data", Status: wire.FindingWarn, Found: fmt.Sprintf("%d dead timers", counts.Dead), Wanted: "none",
		Why: "they were given up on, and are kept until somebody decides", Remedy: "lapse list"}
	if r, ok, err := e.redis.store.OldestDead(ctx); err == nil && ok {
		name := quoted(r.Topic) + " " + quoted(r.ID)
		f.Remedy = lines("# the reason, of the oldest:", "lapse get "+name, "# once the cause is mended, or to drop it:", "lapse retry "+name, "lapse cancel "+name)
	}
	e.found(f, nil)
}

func (e *exam) checkStrays(ctx context.Context) {
	r := &e.redis
	s, all, err := r.store.Strays(ctx, sample/e.cfg.Partitions, named)
	if err != nil {
		e.unknown("data", "orphans", "the keys cannot be looked at: "+err.Error())
		return
	}
	looked := fmt.Sprintf("among %d records", s.Looked)
	if !all {
		looked += ", a part of them"
	}
	if n := s.NShadows + s.NTriggers; n > 0 {
		one := append(s.Shadows, s.Triggers...)[0]
		e.found(wire.Finding{Check: "orphans", Part: "data", Found: fmt.Sprintf("%d timers or triggers that the backup set does not know of (%s), such as %s", n, looked, quoted(one)), Wanted: "none",
			Why: "nothing fires such a timer unless its event comes; somebody wrote or removed keys by hand, or Redis evicted some", Remedy: "lapse doctor --fix"}, e.mendOrphans)
	} else {
		e.ok("data", "orphans", "none "+looked)
	}
	if s.NMembers > 0 {
		rest := []string{"# each is dropped when its time comes; or now:"}
		for _, m := range s.Members {
			if ref, ok := timers.ParseMember(m); ok {
				rest = append(rest, fmt.Sprintf("%s ZREM %s %s", r.cli, quoted(r.store.Keys().Due(r.store.Keys().Partition(ref))), quoted(m)))
			}
		}
		e.found(wire.Finding{Check: "hollow-members", Part: "data", Status: wire.FindingWarn, Found: fmt.Sprintf("%d members of the backup set without a timer (%s), such as %s", s.NMembers, looked, quoted(s.Members[0])), Wanted: "none",
			Why: "the timer is lost: somebody removed keys by hand, or Redis evicted some", Remedy: lines(rest...)}, nil)
	} else {
		e.ok("data", "hollow-members", "none "+looked)
	}
	if s.NImmortal > 0 {
		var rest []string
		for i, key := range s.Immortal {
			if i < len(s.Due) {
				rest = append(rest, fmt.Sprintf("%s PEXPIREAT %s %d", r.cli, quoted(key), s.Due[i]))
			}
		}
		e.found(wire.Finding{Check: "immortal-triggers", Part: "data", Status: wire.FindingWarn, Found: fmt.Sprintf("%d triggers without a TTL (%s), such as %s", s.NImmortal, looked, quoted(s.Immortal[0])), Wanted: "none",
			Why: "their events never come, so these timers are late by LAPSE_GRACE; somebody wrote the keys by hand", Remedy: lines(rest...)}, nil)
	} else {
		e.ok("data", "immortal-triggers", "none "+looked)
	}
}

// mendOrphans walks over the keyspace once with the script that the reconciler
// walks with, however large it is: each step is short.
func (e *exam) mendOrphans(ctx context.Context) error {
	for p := range e.redis.store.Keys().Partitions() {
		for cursor := "0"; ; {
			next, _, err := e.redis.store.Patrol(ctx, p, cursor, 500)
			if err != nil {
				return err
			}
			if cursor = next; cursor == "0" {
				break
			}
		}
	}
	return nil
}
