package notify

import (
	"errors"
	"fmt"
	"strings"

	"github.com/redis/go-redis/v9"
)

// condition is what is worth a line in the log when it changes: hearing, or
// what an operator would mend differently.
type condition string

const (
	undecided condition = "" // before the first attempt ended, and while a probe is about to tell
	hearing   condition = "hearing"
	unheard   condition = "unheard"
)

// state says how it is, and why it is not as it should be, in words for the
// operator. The caller holds mu.
func (l *Listener) state() (condition, string) {
	switch {
	case !l.up && l.lost == nil:
		return undecided, "not subscribed to " + l.channel + " yet"
	case errors.Is(l.lost, errStopped):
		return undecided, l.explain(l.lost)
	case !l.up:
		return kind(l.lost), l.explain(l.lost)
	case !l.deaf.Load():
		if l.flags.state == flagsUnknown {
			return hearing, fmt.Sprintf("%s is unknown: %s; but events come", setting, l.flags.because)
		}
		return hearing, ""
	case l.doubt && l.flags.state != flagsMissing:
		if l.pending {
			return undecided, l.explain(errUnheard)
		}
		return unheard, l.explain(errUnheard)
	}
	why := l.flags.why
	if l.flags.state == flagsUnknown && l.unwritten != nil {
		why += fmt.Sprintf("; nor could the path be tried out, since no key could be written (%v)", l.unwritten)
	}
	if l.pending {
		return undecided, why
	}
	return condition("flags: " + l.flags.why), why
}

// tell logs the state when it is another than the last time: one line for each
// change, not for each attempt.
func (l *Listener) tell() {
	l.telling.Lock()
	defer l.telling.Unlock()
	l.mu.Lock()
	now, why := l.state()
	l.mu.Unlock()
	was := l.told
	if now == undecided || now == was {
		return
	}
	l.told = now
	log := l.log
	if why != "" {
		log = log.With("why", why)
	}
	switch {
	case now != hearing:
		log.Warn("cannot hear expired events; due timers are claimed without them")
	case was == undecided:
		log.Info("hearing expired events")
	default:
		log.Info("hearing expired events again")
	}
}

// setDown records that there is no subscription.
func (l *Listener) setDown(err error) {
	l.mu.Lock()
	was := l.up
	l.up, l.lost, l.pending = false, err, false
	l.doubt = l.doubt || errors.Is(err, errUnheard)
	l.proven.Store(false)
	l.judge()
	l.mu.Unlock()
	l.tell()
	if was && !errors.Is(err, errStopped) {
		l.gap()
	}
}

// setUp records a confirmed subscription together with the first look at the
// flags, so that no caller sees one without the other.
func (l *Listener) setUp(f flags) {
	l.mu.Lock()
	l.up, l.lost, l.flags, l.unwritten = true, nil, f, nil
	l.pending = l.wantsProof()
	l.judge()
	l.mu.Unlock()
	l.tell()
}

// setFlags records a later look at the flags and says whether events may have
// been lost before it.
func (l *Listener) setFlags(f flags) (lossy bool) {
	l.mu.Lock()
	was := l.flags
	l.flags = f
	if f.state != was.state {
		l.pending = l.wantsProof()
	}
	l.judge()
	l.mu.Unlock()
	l.tell()
	return f.added != "" || f.state == flagsRight && was.state != flagsRight
}

// wantsProof says whether only an event can tell that events come. The caller
// holds mu.
func (l *Listener) wantsProof() bool {
	return l.pace.probe > 0 && !l.proven.Load() &&
		(l.flags.state == flagsUnknown || l.flags.state == flagsRight && l.doubt)
}

// prove records that an event of ours came through this subscription.
func (l *Listener) prove() {
	l.mu.Lock()
	recovered := l.doubt
	l.proven.Store(true)
	l.doubt, l.pending, l.unwritten = false, false, nil
	l.judge()
	l.mu.Unlock()
	l.tell()
	if recovered {
		l.gap()
	}
}

// disprove records that several events in a row which should have come have
// not. Where the path can be probed, that is the better judge.
func (l *Listener) disprove() {
	l.mu.Lock()
	if l.pace.probe == 0 || l.unwritten != nil {
		l.proven.Store(false)
		l.judge()
	}
	l.mu.Unlock()
	l.tell()
}

// unjudged records that a probe could not be sent, which says nothing about the
// path.
func (l *Listener) unjudged(err error) {
	l.mu.Lock()
	l.pending, l.unwritten = false, err
	l.mu.Unlock()
	l.tell()
}

func (l *Listener) awaitsProof() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.pending
}

func (l *Listener) flagState() flagState {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.flags.state
}

// judge derives deaf. The caller holds mu.
func (l *Listener) judge() {
	comes := l.proven.Load() || l.flags.state == flagsRight && !l.doubt
	known := l.flags.state == flagsRight || l.flags.state == flagsUnknown
	l.deaf.Store(!(l.up && known && comes))
}

// kind tells apart what an operator would mend differently. The texts will not
// do: those of the network hold port numbers, which are new at each attempt.
func kind(err error) condition {
	var reply redis.Error
	switch {
	case errors.As(err, &reply):
		word, _, _ := strings.Cut(reply.Error(), " ")
		return condition("reply: " + word)
	case errors.Is(err, errReplica):
		return "replica"
	case errors.Is(err, errUnheard):
		return unheard
	}
	return "network"
}

// explain puts an error that ended or prevented a session into words for the
// operator, with what mends it where that is known. The caller holds mu.
func (l *Listener) explain(err error) string {
	var reply redis.Error
	switch {
	case errors.As(err, &reply) && strings.HasPrefix(reply.Error(), "NOPERM"):
		user := l.cfg.Client.Options().Username
		if user == "" {
			user = "default"
		}
		return fmt.Sprintf("the ACL of Redis user %q does not allow to subscribe to %s (%v); allow it: ACL SETUSER %s +subscribe +ping &%s",
			user, l.channel, err, user, l.channel)
	case errors.Is(err, errUnheard) && l.flags.state == flagsUnknown:
		return fmt.Sprintf("%v, although %s is subscribed to; %s; see to it as well that a proxy in between passes Pub/Sub messages", err, l.channel, l.flags.why)
	case errors.Is(err, errUnheard):
		return fmt.Sprintf("%v, although %s is subscribed to and %s has E and x; see to it that a proxy in between passes Pub/Sub messages and leads to one server only",
			err, l.channel, setting)
	}
	return fmt.Sprintf("not subscribed to %s: %v", l.channel, err)
}
