package chaos

import (
	"strconv"
	"sync"
	"time"

	"github.com/lapse-timers/lapse/timers/client"
)

// Answer is what a requester learned about its set.
type Answer int

// The answers to a set.
const (
	Waiting Answer = iota // none yet
	Stored                // OK
	Refused               // an error that says that nothing was stored
	Unknown               // 504, or no answer: it may be stored, now or later
)

// End is what the next request on the same id said of a life. A request that
// was refused changes nothing, and after one without an answer the id is left
// alone: it may be carried out late, for instance by an instance that was
// stopped with the request in its socket.
type End int

// The ends of a life.
const (
	Open          End = iota // no later request took effect: it must arrive
	Cancelled                // cancel OK: it must never arrive
	Replaced                 // a set said was=scheduled: it must never arrive
	TooLate                  // 409, or was=firing: it may arrive, from an attempt that had begun
	Gone                     // 404, or a set that replaced nothing: it had arrived before
	CancelInDoubt            // a cancel without an answer: it may arrive
	SetInDoubt               // a set without an answer: it or its successor must arrive
)

// Life is one set and what is known of it. The [Ledger] guards it.
type Life struct {
	N      int // its number, and its payload
	ID     string
	Asked  time.Time // due time asked for, as sent
	Sent   time.Time
	Answer Answer
	Rev    int64
	Due    time.Time // as answered
	End    End
	EndAt  time.Time // when the request that ended it was answered
	Next   *Life     // what replaced it, or was to

	Stream []Arrival // copies that the stream holds
	Seen   []Arrival // copies that a core subscriber saw
}

// Arrival is one copy of a fired event.
type Arrival struct {
	Fired client.Fired
	Seq   uint64    // in the stream; 0 for a core subscriber
	At    time.Time // when the stream stored it, or the subscriber had it
}

// Ledger keeps the lives of a run. All clocks in it are those of one machine:
// Redis's, the stream's and this process's agree.
type Ledger struct {
	mu      sync.Mutex
	lives   []*Life
	foreign []string // arrivals that belong to no life
	untrue  []string // answers that contradict themselves or an earlier one
	near    int      // cancels and replaces answered, sent within 10 ms of the due time
	cancels int      // answered OK
	watches []*Watch
	full    []span // when the stream took nothing
}

type span struct{ from, to time.Time }

// Watch notices when a deployment works again.
type Watch struct {
	since time.Time
	works time.Time // zero until then
}

// Begin notes that a set is about to be sent.
func (l *Ledger) Begin(id string, asked time.Time) *Life {
	l.mu.Lock()
	defer l.mu.Unlock()
	v := &Life{N: len(l.lives), ID: id, Asked: asked, Sent: time.Now()}
	l.lives = append(l.lives, v)
	return v
}

// Answered notes the answer to the set of v, which was sent to replace old
// when that is not nil.
func (l *Ledger) Answered(v, old *Life, answer Answer, r client.Result) {
	l.mu.Lock()
	defer l.mu.Unlock()
	now := time.Now()
	v.Answer = answer
	if answer == Stored {
		v.Rev, v.Due = r.Rev, r.Due
		if r.Due.Before(v.Asked) {
			l.lie("life %d: asked for %s, answered %s", v, v.Asked, r.Due)
		}
	}
	if old == nil {
		if answer == Stored && r.Replaced {
			l.lie("life %d: a new id replaced something that was %s", v, r.Was)
		}
		return
	}
	end := Open
	switch {
	case answer == Unknown:
		end = SetInDoubt
	case answer == Refused:
		return
	case !r.Replaced:
		end = Gone
	case r.Was == client.Scheduled:
		end = Replaced
	case r.Was == client.Firing:
		end = TooLate
	default:
		l.lie("life %d replaced one that was %s", v, r.Was)
		end = TooLate
	}
	if answer == Stored && r.Rev <= old.Rev {
		l.lie("life %d has rev %d, not above the one before", v, r.Rev)
	}
	old.End, old.EndAt, old.Next = end, now, v
}

// Ended notes how a cancel of v was answered; a rev of 0 was not given.
func (l *Ledger) Ended(v *Life, end End, rev int64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	v.End, v.EndAt = end, time.Now()
	if rev != 0 && rev != v.Rev {
		l.lie("life %d: the cancel names rev %d", v, rev)
	}
	if end == Cancelled {
		l.cancels++
	}
}

// Near counts a request that was answered and sent within 10 ms of the due
// time of what it was to end.
func (l *Ledger) Near() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.near++
}

// Strange notes an answer that no trouble explains.
func (l *Ledger) Strange(v *Life, err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.lie("life %d: %v", v, err)
}

// Arrived notes a copy of a fired event.
func (l *Ledger) Arrived(a Arrival) {
	l.mu.Lock()
	defer l.mu.Unlock()
	n, err := strconv.Atoi(string(a.Fired.Payload))
	if err != nil || n < 0 || n >= len(l.lives) || l.lives[n].ID != a.Fired.ID {
		l.foreign = append(l.foreign, "fired but never set: "+a.Fired.ID+" "+string(a.Fired.Payload))
		return
	}
	v := l.lives[n]
	a.Fired.Header, a.Fired.Payload = nil, nil // a long run has many of them
	if a.Seq == 0 {
		v.Seen = append(v.Seen, a)
		return
	}
	v.Stream = append(v.Stream, a)
	for _, w := range l.watches {
		if w.works.IsZero() && v.Sent.After(w.since) {
			w.works = time.Now()
		}
	}
}

// Watch waits for the first fire of a timer that is set from now on.
func (l *Ledger) Watch() *Watch {
	l.mu.Lock()
	defer l.mu.Unlock()
	w := &Watch{since: time.Now()}
	l.watches = append(l.watches, w)
	return w
}

// Works is when it fired; zero until then.
func (l *Ledger) Works(w *Watch) time.Time {
	l.mu.Lock()
	defer l.mu.Unlock()
	return w.works
}

// Forget ends the watch.
func (l *Ledger) Forget(w *Watch) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for i := range l.watches {
		if l.watches[i] == w {
			l.watches = append(l.watches[:i], l.watches[i+1:]...)
			return
		}
	}
}

// Full notes that the stream took nothing between the two times.
func (l *Ledger) Full(from, to time.Time) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.full = append(l.full, span{from, to})
}

// Sets is how many sets were sent.
func (l *Ledger) Sets() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return len(l.lives)
}

// Outstanding is how many lives that are due by the moment must arrive and
// have not.
func (l *Ledger) Outstanding(by time.Time) int {
	l.mu.Lock()
	defer l.mu.Unlock()
	n := 0
	for _, v := range l.lives {
		if v.missing() && !v.Due.After(by) {
			n++
		}
	}
	return n
}

// missing says that the life must arrive and has not.
func (v *Life) missing() bool {
	if v.Answer != Stored || len(v.Stream) > 0 {
		return false
	}
	return v.End == Open || v.End == Gone || v.End == SetInDoubt && len(v.Next.Stream) == 0
}
