package timers

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"time"
)

// ErrTooLarge is matched by the error of an attempt that was refused because
// the message is larger than what the server or the stream takes now: no
// further attempt can succeed until somebody raises the limit (ADR 26).
var ErrTooLarge = errors.New("too large to be delivered")

// MaxReason is the longest reason that is kept with a dead timer, in bytes.
const MaxReason = 200

// Reason makes one line of printable ASCII of at most [MaxReason] bytes: it is
// kept with the timer and travels in a header.
func Reason(s string) string {
	s = strings.Map(func(r rune) rune {
		if r < ' ' || r > '~' {
			return '?'
		}
		return r
	}, s)
	if s = strings.TrimSpace(s); s == "" {
		return "not known"
	}
	if len(s) > MaxReason {
		return s[:MaxReason-len("...")] + "..."
	}
	return s
}

// Burial is a claim that is given up on.
type Burial struct {
	*Claim
	Unknown bool   // the last attempt may have been delivered
	Reason  string // as [Reason] makes it
}

// Bury makes claimed timers of partition p dead, at most [MaxBatch]: they are
// kept with their payload and the reason, and nothing fires them until a
// [Store.Retry] (ADR 26). It says of each whether it is dead now; claims that are held no more
// are left alone, and what a cancel had stopped is removed. Safe to repeat, with
// the same answer. Errors are those of [Store.Set].
func (s *Store) Bury(ctx context.Context, p int, burials []Burial) ([]bool, error) {
	refs, args := make([]Ref, len(burials)), make([]any, 0, 6*len(burials))
	for i, b := range burials {
		outcome := "refused"
		if b.Unknown {
			outcome = "unknown"
		}
		refs[i] = b.Ref
		args = append(args, b.Member(), b.Rev, b.Token, b.Fired.UnixMilli(), outcome, b.Reason)
	}
	out, err := s.run(ctx, scriptBury, s.deadKeys(p, refs), args).Slice()
	if err != nil {
		return nil, writeError(err)
	}
	if len(out) != len(burials) {
		return nil, fmt.Errorf("%w: bury answered %d values for %d timers", ErrUnconfirmed, len(out), len(burials))
	}
	dead := make([]bool, len(burials))
	for i := range out {
		dead[i] = integer(out[i]) == 1
	}
	return dead, nil
}

// RetryOutcome is what became of a retry.
type RetryOutcome int

// The outcomes of a retry.
const (
	RetryNotFound RetryOutcome = iota
	// Retried: the same life is due now, its attempts counted anew.
	Retried
	// RetryNotDead: it needs none; nothing was changed.
	RetryNotDead
)

// RetryResult is the outcome of a retry and the life it met.
type RetryResult struct {
	Outcome RetryOutcome
	Rev     int64
	Due     time.Time // as it was set, which a retry does not change
	State   State     // after the retry: Scheduled, or Firing when an attempt may have been delivered
}

// Retry brings dead timers of partition p back, at most [MaxBatch]: the same
// life, due now. The time is Redis's. Errors are those of [Store.Set], and like
// it, it must not be repeated blindly: it would bring back what was given up on
// in between.
func (s *Store) Retry(ctx context.Context, p int, refs []Ref) ([]RetryResult, time.Time, error) {
	args := make([]any, 0, len(refs))
	for _, r := range refs {
		args = append(args, r.Member())
	}
	cmd, short := s.runKept(ctx, scriptRetry, s.deadKeys(p, refs), args)
	out, err := cmd.Slice()
	if err != nil {
		return nil, time.Time{}, writeError(err)
	}
	if len(out) != 1+len(refs) {
		return nil, time.Time{}, fmt.Errorf("%w: retry answered %d values for %d timers", ErrUnconfirmed, len(out), len(refs))
	}
	results := make([]RetryResult, len(refs))
	for i := range refs {
		v, _ := out[i+1].([]any)
		if len(v) < 4 || RetryOutcome(integer(v[0])) == RetryNotFound {
			continue
		}
		results[i] = RetryResult{Outcome: RetryOutcome(integer(v[0])), Rev: integer(v[1]), Due: time.UnixMilli(integer(v[2])), State: Scheduled}
		if integer(v[3]) == 1 {
			results[i].State = Firing
		}
	}
	return results, time.UnixMicro(integer(out[0])), short
}

func (s *Store) deadKeys(p int, refs []Ref) []string {
	keys := append(make([]string, 0, 3+2*len(refs)), s.keys.Due(p), s.keys.Tried(p), s.keys.Dead(p))
	return s.appendRefs(keys, p, refs)
}

// deadLog says that timers are given up on: the first at once, and then how many
// there were in each stretch of deadSaid, since a stream that stays full may
// cost thousands. All are said, the last at the end at the latest.
type deadLog struct {
	mu    sync.Mutex
	at    time.Time   // of the last line
	count int         // since
	topic string      // of the last of these
	why   string      // likewise
	later *time.Timer // says the rest of a stretch; nil when none is due
}

const deadSaid = 10 * time.Second

func (l *deadLog) add(logger *slog.Logger, b *Burial) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.count++
	l.topic, l.why = b.Topic, b.Reason
	if wait := deadSaid - time.Since(l.at); wait <= 0 {
		l.say(logger)
	} else if l.later == nil {
		l.later = time.AfterFunc(wait, func() {
			l.mu.Lock()
			defer l.mu.Unlock()
			l.say(logger)
		})
	}
}

// end says what was not said yet; nothing is added after it.
func (l *deadLog) end(logger *slog.Logger) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.say(logger)
}

// say writes the line. The caller holds the lock.
func (l *deadLog) say(logger *slog.Logger) {
	if l.later != nil {
		l.later.Stop()
		l.later = nil
	}
	if l.count > 0 {
		logger.Warn("gave up on timers; lapse list shows them, lapse retry brings them back", "count", l.count, "topic", l.topic, "reason", l.why)
		l.at, l.count = time.Now(), 0
	}
}
