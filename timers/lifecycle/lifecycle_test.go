package lifecycle

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
)

func logTo(b *bytes.Buffer) *slog.Logger { return slog.New(slog.NewTextHandler(b, nil)) }

func TestEndsInReverseOrder(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var log bytes.Buffer
		var down Teardown
		var order []string
		takes := func(name string, d time.Duration) func(context.Context) {
			return func(context.Context) {
				time.Sleep(d)
				order = append(order, name)
			}
		}
		down.Push(takes("lock", time.Second))
		down.PushPart(takes("Redis", time.Second))
		down.Background(func(ctx context.Context) {
			<-ctx.Done()
			takes("firer", time.Second)(ctx)
		})
		down.PushPart(takes("service", 0))
		begin := time.Now()
		down.Run(10*time.Second, logTo(&log))
		require.Equal(t, []string{"service", "firer", "Redis", "lock"}, order)
		require.Equal(t, 3*time.Second, time.Since(begin), "one after the other, and no longer than they take")
		require.Empty(t, log.String())
	})
}

func TestNothingToEnd(t *testing.T) {
	var log bytes.Buffer
	var down Teardown
	down.Run(time.Hour, logTo(&log))
	require.Empty(t, log.String())
}

// Each step is told when its time ends: parts earlier, so that the servers
// below them have a rest of the grace.
func TestStepsKnowTheirDeadline(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var log bytes.Buffer
		var down Teardown
		begin := time.Now()
		var server, part time.Duration
		until := func(d *time.Duration) func(context.Context) {
			return func(ctx context.Context) {
				end, ok := ctx.Deadline()
				require.True(t, ok)
				*d = end.Sub(begin)
			}
		}
		down.Push(until(&server))
		down.PushPart(until(&part))
		down.PushPart(func(context.Context) { time.Sleep(time.Second) })
		down.Run(8*time.Second, logTo(&log))
		require.Equal(t, 8*time.Second, server)
		require.Equal(t, 6*time.Second, part)
	})
}

func TestHangingPartIsLeftBehind(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var log bytes.Buffer
		var down Teardown
		begin := time.Now()
		never := make(chan struct{})
		var serverAt time.Duration
		asked := make(chan string, 2)
		down.Push(func(ctx context.Context) {
			serverAt = time.Since(begin)
			<-ctx.Done()
		})
		down.Background(func(ctx context.Context) {
			<-ctx.Done()
			asked <- "background"
		})
		down.PushPart(func(context.Context) { asked <- "part" })
		down.PushPart(func(context.Context) { <-never })
		down.Run(4*time.Second, logTo(&log))
		require.Equal(t, 3*time.Second, serverAt, "the server still had a rest of the grace")
		require.Equal(t, 4*time.Second, time.Since(begin))
		require.Equal(t, 1, strings.Count(log.String(), "level=WARN"), log.String())
		require.Contains(t, log.String(), "grace was not enough")

		// What stands behind it is asked to end all the same.
		synctest.Wait()
		require.Len(t, asked, 2)
		close(never)
	})
}

func TestBackgroundIsAwaited(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var log bytes.Buffer
		var down Teardown
		started, ended := false, false
		down.Background(func(ctx context.Context) {
			started = true
			<-ctx.Done()
			time.Sleep(time.Second) // what it settles
			ended = true
		})
		synctest.Wait()
		require.True(t, started, "it runs from the start")
		time.Sleep(time.Hour)
		require.False(t, ended, "until it is told to end")
		down.Run(10*time.Second, logTo(&log))
		require.True(t, ended)
		require.Empty(t, log.String())
	})
}

// One that ended by itself is not waited for.
func TestBackgroundThatEndedBefore(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var log bytes.Buffer
		var down Teardown
		down.Background(func(context.Context) {})
		synctest.Wait()
		begin := time.Now()
		down.Run(10*time.Second, logTo(&log))
		require.Zero(t, time.Since(begin))
		require.Empty(t, log.String())
	})
}

var errAway = errors.New("away")

func TestAwaitReturnsAtOnceWhenItAnswers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var log bytes.Buffer
		begin := time.Now()
		require.NoError(t, Await(t.Context(), logTo(&log), "Redis", func(ctx context.Context) (bool, error) {
			end, ok := ctx.Deadline()
			require.True(t, ok, "a server that is silent does not hold it up")
			require.LessOrEqual(t, end.Sub(begin), 5*time.Second)
			return false, nil
		}))
		require.Zero(t, time.Since(begin))
		require.Empty(t, log.String(), "there was nothing to wait for")
	})
}

func TestAwaitTriesAgainWithAGrowingPause(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var log bytes.Buffer
		var tries []time.Time
		require.NoError(t, Await(t.Context(), logTo(&log), "Redis", func(context.Context) (bool, error) {
			if tries = append(tries, time.Now()); len(tries) < 10 {
				return false, errAway
			}
			return false, nil
		}))
		require.Len(t, tries, 10)
		pause := 50 * time.Millisecond
		for i := 1; i < len(tries); i++ {
			require.Equal(t, pause, tries[i].Sub(tries[i-1]), "pause %d", i)
			pause = min(2*pause, time.Second)
		}
		require.Equal(t, 1, strings.Count(log.String(), "waiting"), "said once")
		require.Equal(t, 1, strings.Count(log.String(), "it answers"))
	})
}

func TestAwaitSaysAnotherReason(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var log bytes.Buffer
		reasons := []error{errAway, errAway, errors.New("loading"), errors.New("loading"), nil}
		require.NoError(t, Await(t.Context(), logTo(&log), "Redis", func(context.Context) (bool, error) {
			err := reasons[0]
			reasons = reasons[1:]
			return false, err
		}))
		require.Equal(t, 2, strings.Count(log.String(), "waiting"))
		require.Contains(t, log.String(), "loading")
	})
}

func TestAwaitEndsWithAFinalError(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var log bytes.Buffer
		begin, tries := time.Now(), 0
		err := Await(t.Context(), logTo(&log), "Redis", func(context.Context) (bool, error) {
			tries++
			return true, errAway
		})
		require.Equal(t, errAway, err, "as it came: it names the remedy")
		require.Equal(t, 1, tries)
		require.Zero(t, time.Since(begin))

		// Also after others.
		err = Await(t.Context(), logTo(&log), "Redis", func(context.Context) (bool, error) {
			tries++
			return tries == 4, errAway
		})
		require.Equal(t, errAway, err)
		require.Equal(t, 4, tries)
	})
}

func TestAwaitEndsWithItsContext(t *testing.T) {
	for name, try := range map[string]func(context.Context) (bool, error){
		"in a pause":    func(context.Context) (bool, error) { return false, errAway },
		"in an attempt": func(ctx context.Context) (bool, error) { <-ctx.Done(); return false, errors.Join(errAway, ctx.Err()) },
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var log bytes.Buffer
				ctx, cancel := context.WithTimeout(t.Context(), 3300*time.Millisecond)
				defer cancel()
				begin := time.Now()
				err := Await(ctx, logTo(&log), "Redis", try)
				require.ErrorIs(t, err, errAway)
				require.ErrorContains(t, err, "stopped while waiting for Redis")
				require.Equal(t, 3300*time.Millisecond, time.Since(begin))
				require.Equal(t, name == "in a pause", strings.Contains(log.String(), "waiting"), "it waits for nothing any more")
			})
		})
	}
}

// An attempt that hangs is given up and made again.
func TestAwaitBoundsAnAttempt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var log bytes.Buffer
		begin, tries := time.Now(), 0
		require.NoError(t, Await(t.Context(), logTo(&log), "Redis", func(ctx context.Context) (bool, error) {
			if tries++; tries == 2 {
				return false, nil
			}
			<-ctx.Done()
			return false, ctx.Err()
		}))
		require.Equal(t, 5050*time.Millisecond, time.Since(begin))
	})
}
