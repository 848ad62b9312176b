package bench

import (
	"context"
	"fmt"
	"math/rand/v2"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

// contestant is something that fires timers, with the servers it runs on.
// Timers are numbers; due times are Unix milliseconds on its clock.
type contestant interface {
	// set sets timer n and returns when that is acknowledged. Callers are
	// numbered from 0 and call at the same time.
	set(ctx context.Context, caller, n int, due int64) error
	// listen calls fired for each timer that is delivered from now on, until
	// stop; early says that the event itself was made before its time.
	listen(fired func(n int, at time.Time, early bool)) (stop func() error, err error)
	// settle returns when it is at rest after so many sets.
	settle(ctx context.Context, sets int) error
	// cpu is the CPU time of its processes, nil when they are not known.
	cpu() usage
	// readClock reads how its clock stands to ours; nil when nothing could tell
	// and it is known to be the same clock.
	readClock(ctx context.Context) (*reading, error)
	// sameClock says that its servers run on this machine.
	sameClock() bool
	// forget cancels the timers, where they would stay behind.
	forget(ctx context.Context, timers []span) error
	close() error
}

// batcher is a contestant that takes many timers in one step, where setting
// them is not what is measured.
type batcher interface {
	setBatch(ctx context.Context, first int, due []int64) error
}

// span is the timers from first to before end.
type span struct{ first, end int }

// idSize is the length of a timer's id in bytes.
const idSize = 24

const idPrefix = "timer-"

// timerID is the id of timer n, always idSize bytes.
func timerID(n int) string {
	digits := strconv.Itoa(n)
	const zeros = "000000000000000000"
	return idPrefix + zeros[len(digits):] + digits
}

// timerNumber reads what timerID wrote, -1 when it did not.
func timerNumber(id string) int {
	if len(id) != idSize || !strings.HasPrefix(id, idPrefix) {
		return -1
	}
	n, err := strconv.Atoi(id[len(idPrefix):])
	if err != nil {
		return -1
	}
	return n
}

// payloadOf is size bytes of text without a pattern.
func payloadOf(size int) []byte {
	const letters = "abcdefghijklmnopqrstuvwxyz0123456789"
	b := make([]byte, size)
	for i := range b {
		b[i] = letters[rand.IntN(len(letters))]
	}
	return b
}

const (
	fillCallers = 512 // callers that set timers when that is not what is measured
	fillBatch   = 500
	connections = 4 // shared by all callers of a contestant on NATS
)

// rig is a contestant with the timers that the bench has set on it.
type rig struct {
	contestant
	name      string
	instances int
	topics    int
	payload   int
	run       *runner

	next    int     // number of the first timer not used
	pending int     // far timers
	far     []span  // their numbers
	stray   []span  // timers that were to fire and have not
	setRate float64 // sets per second, as last seen; 0: not yet
}

// setMany sets the timers first to first+len(due)-1 with as many callers at
// once. The first error ends it.
func (r *rig) setMany(ctx context.Context, what string, first int, due []int64) error {
	var done atomic.Int64
	stop := r.run.follow(r.name+": "+what, len(due), func() int { return int(done.Load()) })
	defer stop()
	began := time.Now()
	var next atomic.Int64
	step, callers := 1, fillCallers
	b, batches := r.contestant.(batcher)
	if batches {
		step, callers = fillBatch, 4
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	var wg sync.WaitGroup
	for caller := range callers {
		wg.Go(func() {
			for ctx.Err() == nil {
				i := int(next.Add(int64(step))) - step
				if i >= len(due) {
					return
				}
				end := min(i+step, len(due))
				var err error
				if batches {
					err = b.setBatch(ctx, first+i, due[i:end])
				} else {
					err = r.set(ctx, caller, first+i, due[i])
				}
				if err != nil {
					cancel(fmt.Errorf("%s: %w", what, err))
					return
				}
				done.Add(int64(end - i))
			}
		})
	}
	wg.Wait()
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	r.setRate = float64(len(due)) / time.Since(began).Seconds()
	return nil
}

// fill sets far timers until so many are pending: due in one to two hours, so
// that none fires while anything is measured.
func (r *rig) fill(ctx context.Context, pending int) error {
	n := pending - r.pending
	if n <= 0 {
		return nil
	}
	due := make([]int64, n)
	from := time.Now().Add(time.Hour).UnixMilli()
	for i := range due {
		due[i] = from + rand.Int64N(time.Hour.Milliseconds())
	}
	first := r.take(n)
	if err := r.setMany(ctx, "setting what is pending", first, due); err != nil {
		return err
	}
	r.pending += n
	if err := r.settle(ctx, n); err != nil {
		return err
	}
	// What the sets have written would else go to the disk while it measures.
	syncDisks()
	return ctx.Err()
}

// take reserves the numbers of n far timers: whatever becomes of setting
// them, they are cancelled in the end.
func (r *rig) take(n int) (first int) {
	first = r.next
	r.next += n
	r.far = append(r.far, span{first, r.next})
	return first
}

// calibration is how many far timers tell how fast timers can be set, where
// it has not been seen yet.
const calibration = 2 * kilo

// volley is timers that were set in advance and what became of them.
type volley struct {
	due      []int64
	arrivals *arrivals
	clock    clock
	read     *Clock
	cpu      map[string]float64
}

// fire sets n timers due over the time spread, waits for them, and for
// stragglers as long as patience. The first is due when all have been set.
func (r *rig) fire(ctx context.Context, n int, spread, patience time.Duration) (*volley, error) {
	if r.setRate == 0 {
		if err := r.fill(ctx, r.pending+calibration); err != nil {
			return nil, err
		}
	}
	before, err := r.readClock(ctx)
	if err != nil {
		return nil, err
	}
	var offset time.Duration
	if before != nil && !r.sameClock() {
		offset = before.middle()
	}
	lead := time.Duration(float64(n)/r.setRate*float64(3*time.Second)/2) + 1500*time.Millisecond
	for attempt := 1; ; attempt++ {
		base := time.Now().Add(offset + lead).UnixMilli()
		v, late, err := r.shoot(ctx, n, base, spread, offset, patience)
		if err != nil {
			return nil, err
		}
		if late == 0 {
			return v, r.finish(ctx, v, before)
		}
		if attempt == 3 {
			return nil, fmt.Errorf("setting %d timers took %v longer than expected, three times: the machine or the service is too busy; try fewer timers", n, late.Round(time.Millisecond))
		}
		lead = 2*lead + late
	}
}

// shoot is one attempt of fire; late is by how much setting was not finished
// in time, and then nothing was measured.
func (r *rig) shoot(ctx context.Context, n int, base int64, spread, offset, patience time.Duration) (v *volley, late time.Duration, err error) {
	v = &volley{due: make([]int64, n)}
	slot := float64(spread.Milliseconds()) / float64(n)
	for i := range v.due {
		// One in each slot, anywhere in it: in step with nothing that ticks.
		v.due[i] = base + int64((float64(i)+rand.Float64())*slot)
	}
	first := r.next
	r.next += n
	v.arrivals = newArrivals(first, n)
	stop, err := r.listen(v.arrivals.record)
	if err != nil {
		return nil, 0, err
	}
	defer func() {
		if stopErr := stop(); err == nil {
			err = stopErr
		}
		if left := v.arrivals.missing(); err != nil || late > 0 || len(left) > 0 {
			for _, m := range left {
				r.stray = append(r.stray, span{m, m + 1})
			}
		}
	}()
	if err := r.setMany(ctx, "setting what will fire", first, v.due); err != nil {
		return nil, 0, err
	}
	start := time.UnixMilli(base).Add(-offset) // on our clock
	end := start.Add(spread)
	if late = time.Since(start); late > 0 {
		return v, late, sleep(ctx, time.Until(end.Add(time.Second))) // let what is under way pass
	}
	if err := sleep(ctx, time.Until(start)-100*time.Millisecond); err != nil {
		return nil, 0, err
	}
	cpu := r.cpu()
	follow := r.run.follow(r.name+": waiting for what fires", n, v.arrivals.count)
	defer follow()
	over := time.NewTimer(time.Until(end.Add(patience)))
	defer over.Stop()
	select {
	case <-v.arrivals.all:
		v.cpu = r.cpu().since(cpu, n)
		err = sleep(ctx, 100*time.Millisecond) // for copies
	case <-over.C:
		v.cpu = r.cpu().since(cpu, max(1, v.arrivals.count()))
	case <-ctx.Done():
		err = ctx.Err()
	}
	return v, 0, err
}

// finish reads the clock again, so that the arrivals can be put on Redis's.
func (r *rig) finish(ctx context.Context, v *volley, before *reading) error {
	if before == nil {
		return nil
	}
	after, err := r.readClock(ctx)
	if err != nil {
		return err
	}
	v.clock = newClock(*before, *after)
	v.read = v.clock.report(r.sameClock())
	if r.sameClock() {
		v.clock = clock{}
	}
	return nil
}

// breath is how long to wait after so many sets for what they left to do,
// such as syncing a file.
func breath(sets int) time.Duration {
	return min(max(time.Duration(sets)*10*time.Microsecond, 100*time.Millisecond), time.Second)
}

func sleep(ctx context.Context, d time.Duration) error {
	if d <= 0 {
		return ctx.Err()
	}
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}
