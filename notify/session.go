package notify

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"
)

var (
	errSilent = errors.New("Redis did not answer a ping")
	errAnswer = errors.New("Redis did not confirm the subscription")
)

// session subscribes and listens until the first error, or until ctx ends. It
// returns how long the subscription was in force.
func (l *Listener) session(ctx context.Context) (time.Duration, error) {
	ctx, cancel := context.WithCancel(ctx)
	lk := newLink(ctx, l.cfg.Client.Options(), l.pace)
	var ended sync.WaitGroup
	defer lk.discard()
	defer ended.Wait()
	defer cancel()

	// Reads of go-redis notice a deadline but not a cancelled context: only
	// closing the sockets under them ends them at once.
	ended.Go(func() {
		<-ctx.Done()
		lk.cut()
	})

	sub, err := l.subscribe(ctx, lk)
	if err != nil {
		return 0, err
	}
	defer func() { _ = sub.Close() }() // its socket may be gone already
	began := time.Now()

	alive := make(chan struct{}, 1) // something was received
	broken := make(chan error, 1)
	ended.Go(func() { broken <- l.receive(ctx, sub, alive) })

	err = l.keep(ctx, lk, sub, alive, broken)
	return time.Since(began), err
}

// subscribe returns a confirmed subscription.
func (l *Listener) subscribe(ctx context.Context, lk *link) (*redis.PubSub, error) {
	within, cancel := context.WithTimeout(ctx, l.pace.connect)
	defer cancel()
	sub := lk.client.Subscribe(within) // without a channel it does nothing yet
	err := sub.Subscribe(within, l.channel)
	if err == nil {
		err = l.confirmed(onlyOnce(ctx), sub)
	}
	if err != nil {
		_ = sub.Close() // err says more
		return nil, err
	}
	return sub, nil
}

func (l *Listener) confirmed(ctx context.Context, sub *redis.PubSub) error {
	got, err := sub.ReceiveTimeout(ctx, l.pace.connect)
	if err != nil {
		return err
	}
	if s, ok := got.(*redis.Subscription); !ok || s.Kind != "subscribe" || s.Channel != l.channel {
		return errAnswer
	}
	return nil
}

// receive hands on what comes, until the connection breaks. It has no
// deadline of its own: one that struck in the middle of a message would leave
// the rest to be read as something else. keep judges the silence.
func (l *Listener) receive(ctx context.Context, sub *redis.PubSub, alive chan<- struct{}) error {
	ctx = onlyOnce(ctx)
	for {
		got, err := sub.Receive(ctx)
		var reply redis.Error
		switch {
		case errors.As(err, &reply):
			// The subscription is confirmed, so this answers a ping that an
			// ACL refuses, which is a sign of life like any other.
		case err != nil:
			return err
		default:
			switch got := got.(type) {
			case *redis.Message:
				l.heard(got.Payload)
			case *redis.Subscription:
				// Nobody here asks for a second one, nor gives one up.
				return fmt.Errorf("unexpected %s of %q", got.Kind, got.Channel)
			}
		}
		select {
		case alive <- struct{}{}:
		default:
		}
	}
}

// keep looks at the flags, pings and probes, until the session is over.
func (l *Listener) keep(ctx context.Context, lk *link, sub *redis.PubSub, alive <-chan struct{}, broken <-chan error) error {
	f, err := l.looked(ctx, lk)
	if err != nil {
		return err
	}
	l.setUp(f)
	if l.subscribed {
		l.resubscribed.Add(1)
	}
	l.subscribed = true
	l.gap()

	ping := time.NewTicker(l.pace.ping)
	defer ping.Stop()
	look := time.NewTicker(l.pace.look)
	defer look.Stop()
	pong := time.NewTimer(l.pace.pong)
	defer pong.Stop()
	pong.Stop()
	waiting := false  // for the answer to a ping
	wantLook := false // as soon as nothing is waited for
	quiet := time.NewTimer(0)
	defer quiet.Stop()
	check := l.check
	heard, silent := l.signs(), 0
	probe := l.newProber(lk.client)
	defer probe.timer.Stop()
	wantProbe := false

	for {
		wantPing := false
		select {
		case <-ctx.Done():
			return ctx.Err()
		case err := <-broken:
			return err
		case <-alive:
			waiting = false
			pong.Stop()
		case <-pong.C:
			return errSilent
		case <-ping.C:
			wantPing = true
		case <-look.C:
			wantPing, wantLook = true, true
		case <-quiet.C:
			check = l.check
		case <-check:
			// A reconciler in trouble asks at each pass; the answer does not
			// change that fast, and a look costs Redis two commands.
			check = nil
			quiet.Reset(l.pace.checked)
			wantPing = true
			// Where Redis hides the flags, asking for them more often than
			// the ticker does only fills its ACL log.
			wantLook = wantLook || l.flagState() != flagsUnknown
			if n := l.signs(); n != heard {
				heard, silent = n, 0
			} else if silent++; silent >= silentChecks {
				l.disprove()
			}
			probe.suspect()
		case <-probe.timer.C:
			wantProbe = true
			// Flags that were cleared since the last look explain a probe that
			// was not heard, and are mended otherwise.
			wantLook = wantLook || probe.step == probeTouched && l.flagState() != flagsUnknown
		}
		if probe.noticed() {
			wantProbe = false
		}
		if wantPing && !waiting {
			select {
			case <-alive: // was before the ping and says nothing about now
			default:
			}
			if err := sub.Ping(onlyOnce(ctx)); err != nil {
				return err
			}
			waiting = true
			pong.Reset(l.pace.pong)
		}
		// A look waits for its answer here, so it comes after that of a ping:
		// a silent Redis must not keep us from seeing that it is silent.
		if wantLook && !waiting {
			wantLook = false
			f, err := l.looked(ctx, lk)
			if err != nil {
				return err
			}
			if l.setFlags(f) {
				l.gap()
				probe.rest()
				wantProbe = false
			}
			probe.hurry()
		}
		if wantProbe && !waiting {
			wantProbe = false
			if err := probe.advance(ctx); err != nil {
				return err
			}
		}
	}
}

// looked looks at the flags and counts what had to be added.
func (l *Listener) looked(ctx context.Context, lk *link) (flags, error) {
	ctx, cancel := context.WithTimeout(ctx, l.pace.connect) // it may have to connect
	defer cancel()
	f, err := look(ctx, lk.client, l.cfg.Configure)
	if err == nil && f.added != "" {
		l.repairs.Add(1)
		// Somebody who clears them again and again must not fill the log.
		if now := time.Now(); now.Sub(l.repaired) >= l.pace.loud {
			l.repaired = now
			l.log.Warn("added missing notification flags", "added", f.added, "repairs", l.repairs.Load())
		}
	}
	return f, err
}
