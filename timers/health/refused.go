package health

import (
	"sync/atomic"
	"time"

	"github.com/lapse-timers/lapse/timers"
)

// Refused remembers what Redis refuses of what Lapse asks of it while it
// answers and says that it is well: rights that were taken away, keys that
// somebody replaced. It is forgotten once the same call goes through, and after
// refusedFor, since what matters is asked again sooner. The zero value is ready;
// it is safe for concurrent use.
type Refused struct{ last atomic.Pointer[refusal] }

type refusal struct {
	at        time.Time
	call, why string
}

const refusedFor = 15 * time.Second

// Call takes note of how a call ended ([timers.Store.Observe]). It costs next to
// nothing while all is well.
func (r *Refused) Call(call string, err error) {
	if err == nil {
		if last := r.last.Load(); last != nil && last.call == call {
			r.last.CompareAndSwap(last, nil)
		}
	} else if why := timers.LastingRefusal(err); why != "" {
		r.last.Store(&refusal{time.Now(), call, why})
	}
}

// Why says what is refused, or "".
func (r *Refused) Why() string {
	last := r.last.Load()
	if last == nil || time.Since(last.at) > refusedFor {
		return ""
	}
	return "Redis answers and refuses what Lapse needs (" + last.call + "): " + last.why + "; lapse doctor names what is missing"
}
