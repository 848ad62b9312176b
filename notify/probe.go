package notify

import (
	"context"
	"errors"
	"math/rand/v2"
	"time"

	"github.com/redis/go-redis/v9"
)

// errUnheard ends a session whose subscription looks sound and brings nothing:
// a new one may.
var errUnheard = errors.New("expired events do not come back: keys were made to expire to try it out, and their events were not heard")

// mostMissed is how many probes in a row go unheard before the path counts as
// deaf. After a pause of this process the wait for the first may be over while
// its event still lies in the socket; the second finds it read.
const mostMissed = 2

// probeStep is what a prober waits for.
type probeStep int

const (
	probeRests   probeStep = iota // until no event has come for pace.probe
	probeWritten                  // until the key has expired and can be touched
	probeTouched                  // for the event
)

// prober asks for an event when none has come for a while (ADR 27). It is of
// one session, and of the goroutine of keep alone.
type prober struct {
	l      *Listener
	client *redis.Client
	timer  *time.Timer // when the next step is due
	step   probeStep
	missed int       // probes in a row whose event did not come
	signs  int64     // of the listener, when noticed last
	idle   time.Time // since when no event has come and no probe was begun
}

func (l *Listener) newProber(client *redis.Client) *prober {
	p := &prober{l: l, client: client, timer: time.NewTimer(time.Hour), signs: l.signs()}
	p.timer.Stop()
	p.rest()
	p.hurry()
	return p
}

// rest waits for the next silence. The lengths differ, so that of several
// instances one asks and the others hear it: its event proves their paths too.
func (p *prober) rest() {
	p.step, p.missed, p.idle = probeRests, 0, time.Now()
	if d := p.l.pace.probe; d > 0 {
		p.timer.Reset(d - rand.N(d/8+1))
	}
}

// hurry begins a probe now when only that tells whether events come.
func (p *prober) hurry() {
	if p.step == probeRests && p.l.awaitsProof() {
		p.timer.Reset(0)
	}
}

// suspect begins a probe now unless an event came a moment ago.
func (p *prober) suspect() {
	if p.step == probeRests && p.l.pace.probe > 0 && time.Since(p.idle) >= p.l.pace.heard {
		p.timer.Reset(0)
	}
}

// noticed says whether events came since the last call. Then there is nothing
// to ask for.
func (p *prober) noticed() bool {
	n := p.l.signs()
	if n == p.signs {
		return false
	}
	p.signs = n
	p.rest()
	return true
}

// patience is how long the event of a probe is waited for. A path that is known
// to be deaf is watched for longer, since nothing hangs on it: each new
// subscription costs Redis some commands.
func (l *Listener) patience() time.Duration {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.doubt {
		return max(l.pace.heard, l.pace.probe/2)
	}
	return l.pace.heard
}

// advance takes the step that is due. It returns errUnheard when the path is
// deaf, or the error of ctx.
func (p *prober) advance(ctx context.Context) error {
	if p.l.flagState() == flagsMissing { // so none can come
		p.rest()
		return nil
	}
	within, cancel := context.WithTimeout(ctx, p.l.pace.connect) // it may have to connect
	defer cancel()
	if p.step == probeWritten {
		// As the nudge does it, so that the probe finds what the nudge would.
		there, err := p.client.Exists(within, p.l.probe).Result()
		if err == nil && there != 0 {
			err = errors.New("a key that expires after a millisecond is still there")
		}
		if err != nil {
			return p.giveUp(ctx, err)
		}
		p.step = probeTouched
		p.timer.Reset(p.l.patience())
		return nil
	}
	if p.step == probeTouched {
		if p.missed++; p.missed == mostMissed {
			return errUnheard
		}
	}
	if err := p.client.Set(within, p.l.probe, "", time.Millisecond).Err(); err != nil {
		return p.giveUp(ctx, err)
	}
	p.l.probes.Add(1)
	p.step = probeWritten
	p.timer.Reset(p.l.pace.touch)
	return nil
}

// giveUp leaves the path unjudged: a Redis that takes no writes now, or does
// not answer, may well announce what expires.
func (p *prober) giveUp(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return ctx.Err()
	}
	p.l.unjudged(err)
	p.rest()
	return nil
}
