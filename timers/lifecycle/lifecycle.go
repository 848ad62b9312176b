// Package lifecycle is the order in which a process comes up and goes down:
// wait for the servers it needs, start its parts, and end them in reverse.
package lifecycle

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"time"
)

// Teardown ends what was started, in reverse order and under one deadline. The
// zero value is ready; it is for one goroutine.
type Teardown struct {
	steps []step
}

type step struct {
	run  func(context.Context)
	part bool
}

// Push adds the end of something that obeys the deadline by itself.
func (t *Teardown) Push(run func(context.Context)) { t.steps = append(t.steps, step{run, false}) }

// PushPart adds the end of something that may hang in a call to a server that
// is silent. It is left behind at the deadline: the process ends, and what it
// had claimed comes back with its lease.
func (t *Teardown) PushPart(run func(context.Context)) { t.steps = append(t.steps, step{run, true}) }

// Run ends everything within the grace. What hangs beyond its part of it is
// left behind, and said.
func (t *Teardown) Run(grace time.Duration, logger *slog.Logger) {
	whole, cancel := context.WithTimeout(context.Background(), grace)
	defer cancel()
	// The embedded servers, which end last, need their part of it.
	parts, cancel := context.WithTimeout(whole, grace*3/4)
	defer cancel()
	late := false
	for _, s := range slices.Backward(t.steps) {
		if !s.part {
			s.run(whole)
			continue
		}
		done := make(chan struct{})
		go func() {
			defer close(done)
			s.run(parts)
		}()
		select {
		case <-done:
		case <-parts.Done():
			late = true
		}
	}
	if late {
		logger.Warn("the shutdown grace was not enough to end in order; what is not settled comes back with its lease", "grace", grace.String())
	}
}

// Background starts run on a goroutine; the pushed step ends and awaits it.
func (t *Teardown) Background(run func(context.Context)) {
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() {
		defer close(done)
		run(ctx)
	}()
	t.PushPart(func(context.Context) {
		cancel()
		<-done
	})
}

// Await repeats try, with a growing pause, until it succeeds or says that
// waiting does not help. It says what it waits for, and again when the reason changes.
func Await(ctx context.Context, logger *slog.Logger, what string, try func(context.Context) (final bool, err error)) error {
	pause, said := 50*time.Millisecond, ""
	for {
		attempt, cancel := context.WithTimeout(ctx, 5*time.Second)
		final, err := try(attempt)
		cancel()
		if err == nil {
			if said != "" {
				logger.Info("it answers", "what", what)
			}
			return nil
		}
		if final {
			return err
		}
		if ctx.Err() != nil {
			return fmt.Errorf("stopped while waiting for %s: %w", what, err)
		}
		if said != err.Error() {
			said = err.Error()
			logger.Warn("waiting", "what", what, "error", err)
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("stopped while waiting for %s: %w", what, err)
		case <-time.After(pause):
		}
		pause = min(2*pause, time.Second)
	}
}
