package chaos

import (
	"math/rand/v2"
	"slices"
	"time"
)

// step is one fault of a plan, or a pair of them: all that is random about it.
type step struct {
	kinds    []*Kind
	instance int
	all      bool // of proxies: those of all instances
	hold     time.Duration
	pause    time.Duration // after it, once the deployment works again
	salvo    bool          // timers fall due at its very moment
	after    time.Duration // how long after that moment it begins
	delay    time.Duration // of slow publishes
	late     bool          // what a stopped instance wrote arrives when it goes on
	purge    bool          // a full stream is purged, too
}

// plan is the endless sequence of one lane. The seed alone decides it, and not
// the time that anything takes, so the same seed gives the same sequence.
type plan struct {
	random *rand.Rand
	kinds  []*Kind
	bag    []*Kind // each kind comes once before any comes again
	pause  time.Duration
}

const instances = 3

func newPlan(seed uint64, of func(lane) bool, pause time.Duration, names []string) *plan {
	p := &plan{pause: pause}
	for i := range Kinds {
		if k := &Kinds[i]; of(k.lane) && (names == nil || slices.Contains(names, k.Name)) {
			p.kinds = append(p.kinds, k)
		}
	}
	stream := uint64(1)
	if of(ofInstance) {
		stream = 2
	}
	p.random = rand.New(rand.NewPCG(seed, stream))
	return p
}

// next is the next step, nil when there is none.
func (p *plan) next() *step {
	if len(p.kinds) == 0 {
		return nil
	}
	k := p.draw()
	s := &step{
		kinds:    []*Kind{k},
		instance: p.random.IntN(instances),
		all:      p.random.IntN(3) == 0,
		pause:    p.pause/2 + time.Duration(p.random.Int64N(int64(p.pause))),
		salvo:    p.random.IntN(2) == 0,
		after:    time.Duration(p.random.Int64N(int64(15 * time.Millisecond))),
		delay:    time.Duration(5+p.random.IntN(75)) * time.Millisecond,
		late:     p.random.IntN(2) == 0,
		purge:    p.random.IntN(2) == 0,
	}
	s.hold = k.min + time.Duration(p.random.Int64N(int64(k.max-k.min)+1))
	// One in six comes together with one of the other server.
	if k.lane != ofInstance && p.random.IntN(6) == 0 {
		if i := slices.IndexFunc(p.bag, func(o *Kind) bool { return o.lane != k.lane }); i >= 0 {
			s.kinds = append(s.kinds, p.bag[i])
			p.bag = slices.Delete(p.bag, i, i+1)
		}
	}
	return s
}

func (p *plan) draw() *Kind {
	if len(p.bag) == 0 {
		p.bag = slices.Clone(p.kinds)
		p.random.Shuffle(len(p.bag), func(i, j int) { p.bag[i], p.bag[j] = p.bag[j], p.bag[i] })
	}
	k := p.bag[0]
	p.bag = p.bag[1:]
	return k
}
