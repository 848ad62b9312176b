package doctor

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/lapse-timers/lapse/timers/service"
	"github.com/lapse-timers/lapse/timers/wire"
)

// checkStreams looks at JetStream with the same question as the service at its
// start, which needs one right: $JS.API.STREAM.LIST. It says whether Lapse is to
// make its stream.
func (e *exam) checkStreams(ctx context.Context) (makes bool) {
	fired := e.prefix.Fired(">")
	ask, cancel := e.nats.asking(ctx)
	found, err := service.StreamsOver(ask, e.nats.nc.Conn, fired)
	cancel()
	if err != nil {
		e.noJetStream(err)
		return false
	}
	e.ok("nats", "jetstream", "on")
	over, checked := e.checkRequests(ctx)
	if e.cfg.Delivery == "core" {
		e.ok("nats", "stream", "none is needed: LAPSE_DELIVERY is core")
		return false
	}
	if len(found) == 0 {
		e.ok("nats", "stream", "none holds %s; Lapse makes %s", fired, e.cfg.Stream)
		e.checkAccount(ctx, nil)
		return true
	}
	if !checked {
		return false
	}
	for _, info := range found {
		if slices.Contains(over, info.Config.Name) && !service.Covers(info.Config.Subjects, fired) {
			continue // told already
		}
		e.checkStream(info)
		e.checkAccount(ctx, info)
		break
	}
	return false
}

func (e *exam) noJetStream(err error) {
	if e.cfg.Delivery == "core" && errors.Is(err, service.ErrNoJetStream) {
		e.ok("nats", "jetstream", "off, and not needed: LAPSE_DELIVERY is core")
		return
	}
	if denied := e.nats.refusal(); denied != "" {
		e.found(wire.Finding{Check: "jetstream", Part: "nats", Found: "NATS does not permit to " + denied, Wanted: "the right to it", Why: "Lapse cannot find its stream, and does not start",
			Remedy: lines(`# add to permissions.publish of the user in nats-server.conf: "$JS.API.STREAM.LIST"`, "nats-server --signal reload")}, nil)
		return
	}
	if !errors.Is(err, service.ErrNoJetStream) {
		e.found(wire.Finding{Check: "jetstream", Part: "nats", Found: "its API does not answer: " + err.Error(), Wanted: "an answer", Why: "Lapse waits for it at its start; one that runs goes on delivering as long as the stream acknowledges",
			Remedy: lines("# wait for a leader, or see the log of nats-server; this shows what it lacks:", e.nats.cli+" server check jetstream")}, nil)
		return
	}
	e.found(wire.Finding{Check: "jetstream", Part: "nats", Found: "no JetStream", Wanted: "JetStream, for delivery with acknowledgement", Why: "Lapse does not start",
		Remedy: lines(`nats-server.conf: jetstream { store_dir: "/var/lib/nats", sync_interval: 1s }`, "# then restart nats-server; or do without acknowledgements:", "LAPSE_DELIVERY=core")}, nil)
}

// checkRequests finds streams that answer requests in Lapse's place.
func (e *exam) checkRequests(ctx context.Context) (names []string, checked bool) {
	var over []*jetstream.StreamInfo
	for _, subject := range service.RequestSubjects(e.prefix) {
		ask, cancel := e.nats.asking(ctx)
		found, err := service.StreamsOver(ask, e.nats.nc.Conn, subject)
		cancel()
		if err != nil {
			e.unknown("nats", "request-streams", "the streams cannot be listed: "+err.Error())
			return nil, false
		}
		for _, info := range found {
			if !info.Config.NoAck && !slices.Contains(names, info.Config.Name) {
				names, over = append(names, info.Config.Name), append(over, info)
			}
		}
	}
	if len(over) == 0 {
		e.ok("nats", "request-streams", "no stream holds the request subjects")
		return nil, true
	}
	var what, remedy []string
	for _, info := range over {
		what = append(what, fmt.Sprintf("stream %s holds %s", info.Config.Name, strings.Join(info.Config.Subjects, ", ")))
		remedy = append(remedy, e.editSubjects(info))
	}
	e.found(wire.Finding{Check: "request-streams", Part: "nats", Found: strings.Join(what, "; "), Wanted: "no stream over " + strings.Join(service.RequestSubjects(e.prefix), ", "),
		Why: "the stream answers requests in Lapse's place: callers take that for an answer. Lapse does not start", Remedy: lines(remedy...)}, nil)
	return names, true
}

// editSubjects takes the request subjects out of a stream, and keeps the rest. A
// wildcard that held them gives way to what Lapse delivers.
func (e *exam) editSubjects(info *jetstream.StreamInfo) string {
	fired := []string{e.prefix.Fired(">"), e.prefix.Dead(">")}
	var keep []string
	for _, s := range info.Config.Subjects {
		if !slices.ContainsFunc(service.RequestSubjects(e.prefix), func(r string) bool { return overlap(s, r) }) {
			keep = append(keep, s)
		} else if overlap(s, fired[0]) {
			keep = append(keep, fired...)
		}
	}
	if len(keep) == 0 {
		return fmt.Sprintf("# stream %s has nothing but request subjects: give it others, or remove it (%s stream rm %s)", info.Config.Name, e.nats.cli, info.Config.Name)
	}
	slices.Sort(keep)
	return e.edit(info, subjectFlags(slices.Compact(keep)))
}

func subjectFlags(subjects []string) string {
	var b strings.Builder
	for _, s := range subjects {
		b.WriteString(" --subjects " + quoted(s))
	}
	return b.String()[1:]
}

func (e *exam) edit(info *jetstream.StreamInfo, flags string) string {
	return fmt.Sprintf("%s stream edit %s %s --force", e.nats.cli, quoted(info.Config.Name), flags)
}

// checkStream judges the stream that is to confirm fired events.
func (e *exam) checkStream(info *jetstream.StreamInfo) {
	c, fired, dead := info.Config, e.prefix.Fired(">"), e.prefix.Dead(">")
	holds := fmt.Sprintf("stream %s holds %s", c.Name, strings.Join(c.Subjects, ", "))
	f := wire.Finding{Check: "stream", Part: "nats", Found: holds, Wanted: "one stream that acknowledges, over the whole of " + fired, Why: "Lapse does not start with it"}
	both := e.edit(info, subjectFlags(append(slices.DeleteFunc(slices.Clone(c.Subjects), func(s string) bool { return overlap(s, fired) || overlap(s, dead) }), fired, dead)))
	switch {
	case !service.Covers(c.Subjects, fired):
		f.Found += ", a part of " + fired
		f.Remedy = both
	case c.NoAck:
		f.Found += " and does not acknowledge (no_ack)"
		f.Remedy = e.edit(info, "--ack")
	case c.Sealed, c.Mirror != nil:
		f.Found += ", and is sealed or a mirror"
		f.Remedy = fmt.Sprintf("# take the subjects from it, or remove it (%s stream rm %s); Lapse makes %s", e.nats.cli, c.Name, e.cfg.Stream)
	case !service.Covers(c.Subjects, dead):
		f.Status, f.Wanted, f.Why = wire.FindingWarn, "over "+dead+" too", "announcements of dead timers are heard by those who listen at that moment, and kept by nobody"
		f.Remedy = both
	default:
		e.ok("nats", "stream", holds)
		f.Check = ""
	}
	if f.Check != "" {
		e.found(f, nil)
	}
	e.checkWindow(info)
	e.checkRoom(info)
	if c.Storage != jetstream.FileStorage {
		e.found(wire.Finding{Check: "stream-storage", Part: "nats", Status: wire.FindingWarn, Found: "stream " + c.Name + " is kept in memory", Wanted: "file storage",
			Why: "a restart of nats-server loses delivered events that nobody has consumed", Remedy: lines("# storage cannot be edited: consume what it holds, stop Lapse, then let it make the stream anew:", e.nats.cli+" stream rm "+quoted(c.Name)+" --force")}, nil)
	} else {
		e.ok("nats", "stream-storage", "file")
	}
	e.checkStreamReplicas(info)
}

func (e *exam) checkWindow(info *jetstream.StreamInfo) {
	need, have := e.cfg.Lease+e.cfg.RetryMax, info.Config.Duplicates
	if have > need {
		e.ok("nats", "duplicate-window", have.String())
		return
	}
	want := max(2*time.Minute, 2*need)
	remedy := e.edit(info, "--dupe-window "+want.String())
	if age := info.Config.MaxAge; age > 0 && age < want { // NATS refuses a window beyond the age
		remedy = e.edit(info, "--max-age "+want.String()+" --dupe-window "+want.String())
	}
	e.found(wire.Finding{Check: "duplicate-window", Part: "nats", Status: wire.FindingWarn, Found: "stream " + info.Config.Name + " has " + have.String(), Wanted: "more than " + need.String() + " (LAPSE_LEASE and LAPSE_RETRY_MAX together)",
		Why: "an event that is published again after its acknowledgement was lost may be stored twice", Remedy: remedy}, nil)
}

// checkRoom judges how full the stream is. With discard old the oldest events
// make room, which is how Lapse makes it.
func (e *exam) checkRoom(info *jetstream.StreamInfo) {
	c, s := info.Config, info.State
	full := 0.0
	if c.MaxBytes > 0 {
		full = float64(s.Bytes) / float64(c.MaxBytes)
	}
	if c.MaxMsgs > 0 {
		full = max(full, float64(s.Msgs)/float64(c.MaxMsgs))
	}
	found := fmt.Sprintf("%d messages, %s", s.Msgs, size(int64(s.Bytes)))
	if full > 0 {
		found += fmt.Sprintf(", %.0f %% full", 100*full)
	}
	if c.Discard != jetstream.DiscardNew || full < nearlyFull {
		e.ok("nats", "stream-room", found)
		return
	}
	f := wire.Finding{Check: "stream-room", Part: "nats", Status: wire.FindingWarn, Found: found + ", discard new", Wanted: fmt.Sprintf("below %.0f %%, or discard old", 100*nearlyFull),
		Why: "a full stream refuses fired events; they are tried again until there is room", Remedy: lines("# consume or purge what it holds, give it more, or let the oldest events go:", e.edit(info, "--discard old"))}
	if full >= 1 {
		f.Status = wire.FindingFail
	}
	e.found(f, nil)
}

func (e *exam) checkStreamReplicas(info *jetstream.StreamInfo) {
	if info.Cluster == nil || info.Cluster.Name == "" {
		e.ok("nats", "stream-replicas", "%d", info.Config.Replicas)
		return
	}
	var behind []string
	for _, r := range info.Cluster.Replicas {
		if r.Offline || !r.Current {
			behind = append(behind, r.Name)
		}
	}
	switch {
	case info.Cluster.Leader == "":
		e.found(wire.Finding{Check: "stream-replicas", Part: "nats", Found: "stream " + info.Config.Name + " has no leader", Wanted: "a leader", Why: "it takes nothing; fires are tried again",
			Remedy: lines("# start the servers that are away:", e.nats.cli+" server report jetstream")}, nil)
	case len(behind) > 0:
		e.found(wire.Finding{Check: "stream-replicas", Part: "nats", Status: wire.FindingWarn, Found: "replicas that are away or behind: " + strings.Join(behind, ", "), Wanted: "all current", Why: "one more loss and the stream takes nothing",
			Remedy: lines("# start the servers that are away:", e.nats.cli+" server report jetstream")}, nil)
	default:
		e.ok("nats", "stream-replicas", "%d, leader %s", info.Config.Replicas, info.Cluster.Leader)
	}
}
