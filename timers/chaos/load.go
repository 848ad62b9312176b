package chaos

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/lapse-timers/lapse/timers/client"
)

// load is the requesters: each story is one id from its first set to the last
// request that is made on it.
type load struct {
	ledger  *Ledger
	clients []*client.Client
	seed    uint64
	next    atomic.Uint64
	stories sync.WaitGroup
}

const (
	topics = 5
	// nearBy is the distance from the due time that counts as its very moment.
	nearBy = 10 * time.Millisecond
	// longestDelay bounds how far ahead timers are set, and with it the drain.
	longestDelay = 5 * time.Second
)

// run starts stories at a steady rate until ctx ends, and waits for their ends.
func (l *load) run(ctx context.Context, perSecond int) {
	tick := time.NewTicker(time.Second / time.Duration(perSecond))
	defer tick.Stop()
	began := time.Now()
	for n := 0; ; {
		select {
		case <-ctx.Done():
			l.stories.Wait()
			return
		case <-tick.C:
			// A ticker drops what a busy machine does not take in time.
			for due := int(time.Since(began).Seconds() * float64(perSecond)); n < due; n++ {
				l.stories.Go(func() { l.story(time.Time{}, 0) })
			}
		}
	}
}

// salvo starts n stories that are all due at the moment, and are all cancelled
// within the time after it when that is not 0.
func (l *load) salvo(n int, due time.Time, cancel time.Duration) {
	for range n {
		l.stories.Go(func() { l.story(due, cancel) })
	}
}

func (l *load) story(due time.Time, cancelWithin time.Duration) {
	n := l.next.Add(1)
	random := rand.New(rand.NewPCG(l.seed, n))
	c := l.clients[n%uint64(len(l.clients))]
	topic, id := "chaos."+strconv.FormatUint(n%topics, 10), fmt.Sprintf("id:%d", n)
	if due.IsZero() {
		due = time.Now().Add(delay(random))
	}
	v := l.set(c, topic, id, due, nil)
	if cancelWithin > 0 && v != nil {
		until(v.Due.Add(time.Duration(random.Int64N(int64(cancelWithin)))))
		l.cancel(c, topic, v)
		return
	}
	for v != nil {
		what := random.IntN(10)
		if what < 5 {
			return // it is left to fire
		}
		if random.IntN(3) == 0 {
			until(time.Now().Add(time.Duration(random.Int64N(int64(max(time.Until(v.Due), time.Millisecond))))))
		} else {
			until(v.Due.Add(time.Duration(random.Int64N(int64(2*nearBy))) - nearBy))
		}
		if what < 8 {
			if !l.cancel(c, topic, v) {
				return
			}
			continue // refused: it goes on as it was
		}
		v = l.set(c, topic, id, time.Now().Add(delay(random)), v)
	}
}

func delay(random *rand.Rand) time.Duration {
	switch random.IntN(10) {
	case 0, 1:
		return time.Duration(random.Int64N(int64(100 * time.Millisecond)))
	case 2:
		return time.Duration(random.Int64N(int64(longestDelay)))
	}
	return time.Duration(random.Int64N(int64(2 * time.Second)))
}

// set sets once and returns the life that the story goes on with: nil when it
// is not known whether the timer is stored, or the first of its id is not.
func (l *load) set(c *client.Client, topic, id string, due time.Time, old *Life) *Life {
	v := l.ledger.Begin(id, due)
	near := old != nil && time.Since(old.Due).Abs() < nearBy
	r, err := c.Set(context.Background(), topic, []byte(strconv.Itoa(v.N)), client.At(due), client.ID(id))
	answer := Stored
	switch {
	case err == nil:
	case errors.Is(err, client.ErrUnavailable):
		answer = Refused
	default:
		answer = Unknown
		if !errors.Is(err, client.ErrUnconfirmed) {
			l.ledger.Strange(v, err)
		}
	}
	if near && answer == Stored {
		l.ledger.Near()
	}
	l.ledger.Answered(v, old, answer, r)
	switch answer {
	case Stored:
		return v
	case Refused:
		return old
	}
	return nil
}

// cancel cancels once and says whether it was refused.
func (l *load) cancel(c *client.Client, topic string, v *Life) (refused bool) {
	near := time.Since(v.Due).Abs() < nearBy
	rev, err := c.Cancel(context.Background(), topic, v.ID)
	end := Cancelled
	switch {
	case err == nil:
	case errors.Is(err, client.ErrNotFound):
		end = Gone
	case errors.Is(err, client.ErrConflict):
		end = TooLate
		var conflict *client.Error
		if errors.As(err, &conflict) {
			rev = conflict.Rev
			if conflict.Stopped == nil || !*conflict.Stopped {
				l.ledger.Strange(v, err)
			}
		}
	case errors.Is(err, client.ErrUnavailable):
		return true
	default:
		end = CancelInDoubt
		if !errors.Is(err, client.ErrUnconfirmed) {
			l.ledger.Strange(v, err)
		}
	}
	if near && end != CancelInDoubt {
		l.ledger.Near()
	}
	l.ledger.Ended(v, end, rev)
	return false
}

func until(t time.Time) { time.Sleep(time.Until(t)) }
