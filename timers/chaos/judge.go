package chaos

import (
	"fmt"
	"slices"
	"time"
)

// Verdict is where answers and arrivals disagree: the columns that must be 0,
// with a line for each of the first disagreements.
type Verdict struct {
	Lost        []string // answered OK, neither cancelled nor replaced, and not on the stream
	Early       []string // claimed or arrived before the due time, or due at another time than answered
	AfterCancel []string // the cancel was answered OK; or 409, and an attempt began after the answer
	OldLife     []string // the set that replaced it said scheduled; or firing, and an attempt began after it
	Duplicates  []string // more than once on the stream
	Untrue      []string // an answer that what happened contradicts in another way
	LeftOver    []string // in Redis at the end

	Set, Replaced, Cancelled, Fired int             // lives answered OK; distinct lives that arrived
	Near                            int             // cancels and replaces sent within 10 ms of the due time
	Unknown, Refused                int             // sets
	TooLate                         int             // 409 and was=firing
	OnlySeen                        int             // lives cancelled or replaced whose attempt a core subscriber had seen, and the full stream refused
	SeenTwice                       int             // copies that a core subscriber saw beyond the first
	Lag                             []time.Duration // from due to stored in the stream, sorted
	Worst                           string          // the life with the longest lag
	worst                           time.Duration
}

// lie notes an answer that is not true. The caller holds mu.
func (l *Ledger) lie(format string, v *Life, args ...any) {
	l.untrue = append(l.untrue, fmt.Sprintf(format, append([]any{v.N}, args...)...)+"; "+v.String())
}

func (v *Life) String() string {
	const ms = "15:04:05.000"
	s := fmt.Sprintf("life %d of %q rev %d, sent %s, due %s, answer %d, end %d", v.N, v.ID, v.Rev, v.Sent.Format(ms), v.Due.Format(ms), v.Answer, v.End)
	if !v.EndAt.IsZero() {
		s += " at " + v.EndAt.Format(ms)
	}
	for _, a := range v.Stream {
		s += fmt.Sprintf(", stored %s as %d (attempt %d claimed %s by %s)", a.At.Format(ms), a.Seq, a.Fired.Attempt, a.Fired.Fired.Format(ms), a.Fired.Source)
	}
	for _, a := range v.Seen {
		s += fmt.Sprintf(", seen %s (attempt %d claimed %s)", a.At.Format(ms), a.Fired.Attempt, a.Fired.Fired.Format(ms))
	}
	return s
}

// Judge compares what was answered with what arrived. It is asked when nothing
// is under way any more.
func (l *Ledger) Judge() Verdict {
	l.mu.Lock()
	defer l.mu.Unlock()
	d := Verdict{Untrue: slices.Concat(l.untrue, l.foreign), Near: l.near, Cancelled: l.cancels}
	for _, v := range l.lives {
		d.judge(v, l.full)
	}
	slices.Sort(d.Lag)
	return d
}

func (d *Verdict) judge(v *Life, full []span) {
	switch v.Answer {
	case Stored:
		d.Set++
	case Unknown:
		d.Unknown++
	case Refused:
		d.Refused++
		if len(v.Stream)+len(v.Seen) > 0 {
			d.Untrue = append(d.Untrue, "fired though its set was refused: "+v.String())
		}
	case Waiting:
		d.Untrue = append(d.Untrue, "its requester was never told anything: "+v.String())
	}
	if v.End == Replaced || v.End == TooLate && v.Next != nil {
		d.Replaced++
	}
	if v.End == TooLate {
		d.TooLate++
	}
	if len(v.Stream) > 0 {
		d.Fired++
		if v.Answer == Stored {
			lag := v.Stream[0].At.Sub(v.Due)
			if len(d.Lag) == 0 || lag > d.worst {
				d.worst, d.Worst = lag, v.String()
			}
			d.Lag = append(d.Lag, lag)
		}
	}
	if v.missing() {
		d.Lost = append(d.Lost, v.String())
	}
	if len(v.Stream) > 1 {
		d.Duplicates = append(d.Duplicates, v.String())
	}
	seen := map[string]bool{} // by message id: an unanswered set that was carried out twice is no copy
	for _, a := range v.Seen {
		if seen[a.Fired.MsgID] {
			d.SeenTwice++
		}
		seen[a.Fired.MsgID] = true
	}
	for _, a := range slices.Concat(v.Stream, v.Seen) {
		if what := d.wrong(v, a, full); what != nil {
			*what = append(*what, v.String())
			return // one line for a life
		}
	}
	if (v.End == Cancelled || v.End == Replaced) && len(v.Seen) > 0 {
		d.OnlySeen++
	}
	if v.End == Gone && len(v.Stream) > 0 && v.Stream[0].At.After(v.EndAt) {
		d.Untrue = append(d.Untrue, "said to be gone before it was delivered: "+v.String())
	}
}

// wrong is the column that one copy belongs to, nil when it is right.
func (d *Verdict) wrong(v *Life, a Arrival, full []span) *[]string {
	f := a.Fired
	switch {
	case f.Fired.Before(f.Due), a.At.Before(f.Due), f.Due.Before(v.Asked), v.Answer == Stored && !f.Due.Equal(v.Due):
		return &d.Early
	case v.Answer == Stored && f.Rev != v.Rev:
		return &d.Untrue
	case (v.End == Cancelled || v.End == Replaced) && a.Seq == 0 && refused(a, full):
		// Delivered means stored in the stream, which refused this attempt; core
		// subscribers of the subject see attempts.
	case v.End == Cancelled:
		return &d.AfterCancel
	case v.End == Replaced:
		return &d.OldLife
	case v.End == TooLate && f.Fired.After(v.EndAt):
		// "No further attempt": Redis's milliseconds are rounded down, so a claim
		// of later than the answer is one for sure.
		if v.Next != nil {
			return &d.OldLife
		}
		return &d.AfterCancel
	}
	return nil
}

// refused says whether the copy was published while the stream took nothing.
func refused(a Arrival, full []span) bool {
	return slices.ContainsFunc(full, func(s span) bool { return a.At.After(s.from) && a.At.Before(s.to.Add(fullSlack)) })
}

// fullSlack is how long a copy may be on its way to a core subscriber.
const fullSlack = 200 * time.Millisecond

// CaughtUp is how long after the moment the last timer arrived that was due by
// then and did arrive: 0 when all of them had.
func (l *Ledger) CaughtUp(moments []time.Time) []time.Duration {
	l.mu.Lock()
	defer l.mu.Unlock()
	type point struct{ due, at time.Time }
	var points []point
	for _, v := range l.lives {
		if v.Answer == Stored && len(v.Stream) > 0 {
			points = append(points, point{v.Due, v.Stream[0].At})
		}
	}
	slices.SortFunc(points, func(a, b point) int { return a.due.Compare(b.due) })
	last := make([]time.Time, len(points)) // the latest arrival among those due so far
	for i, p := range points {
		last[i] = p.at
		if i > 0 && last[i-1].After(p.at) {
			last[i] = last[i-1]
		}
	}
	out := make([]time.Duration, len(moments))
	for i, m := range moments {
		n, _ := slices.BinarySearchFunc(points, m, func(p point, m time.Time) int {
			if p.due.After(m) {
				return 1
			}
			return -1
		})
		if n > 0 {
			out[i] = max(last[n-1].Sub(m), 0)
		}
	}
	return out
}
