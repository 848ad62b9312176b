package endtoend

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/lapse-timers/lapse/timers"
	"github.com/lapse-timers/lapse/timers/client"
	"github.com/lapse-timers/lapse/timers/timerstest"
	"github.com/lapse-timers/lapse/timers/timerstest/faultproxy"
)

// A server that refuses writes for a while, as one that was demoted or cannot
// persist: no set is answered OK, nothing is published whose claim
// cannot be written, and all is well soon after.
func TestWritesAreRefusedForAWhile(t *testing.T) {
	t.Parallel()
	for _, says := range []string{
		"READONLY You can't write against a read only replica.",
		"ERR READONLY You can't write against a read only replica.",
		"MISCONF Errors writing to the AOF file: No space left on device",
	} {
		word, _, _ := strings.Cut(says, " You")
		word, _, _ = strings.Cut(word, " Errors")
		t.Run(word, func(t *testing.T) {
			t.Parallel()
			s := table(t)
			var claims atomic.Int64
			var all atomic.Bool // claims alone, until the timers are set
			s.redis.Obey(func(c faultproxy.Command) faultproxy.Fault {
				switch c.Script {
				case "claim":
					claims.Add(1)
					return faultproxy.Answer(says)
				case "set", "cancel", "ack", "release", "crew", "rescue", "bury":
				default:
					return faultproxy.Pass
				}
				if !all.Load() {
					return faultproxy.Pass
				}
				return faultproxy.Answer(says)
			})
			for i := range 50 {
				s.set(t, request("timers.set.refused", fmt.Sprint(i), "@in 50ms"))
			}
			all.Store(true)
			isRefusal(t, s.ask(t, request("timers.set.refused", "new", "@in 1h")), 503, "unavailable")
			isRefusal(t, s.ask(t, about("timers.cancel.refused", "none")), 503, "unavailable")
			timerstest.Eventually(t, soon, "claims are refused again and again", func() bool { return claims.Load() > 5 })
			began, before := time.Now(), claims.Load()
			timerstest.Eventually(t, soon, "a second of it", func() bool { return time.Since(began) > time.Second })
			rate := float64(claims.Load()-before) / time.Since(began).Seconds()
			t.Logf("%.0f claims a second meanwhile", rate)
			require.Less(t, rate, 200.0, "a storm of claims")
			require.Empty(t, s.copies("refused"), "published without a claim")
			require.Len(t, s.list(t, "timers.list.refused", "").Timers, 50)
			s.redis.Obey(passAll)
			back := time.Now()
			s.set(t, request("timers.set.refused", "after", "@in 0s"))
			s.heardOf(t, "refused", 51)
			require.Less(t, time.Since(back), 5*time.Second)
			s.clean(t)
			require.Equal(t, 51, s.onStream(t, "refused"))
			require.Len(t, s.copies("refused"), 51, "each was published once")
		})
	}
}

// A real Redis that cannot save refuses writes and answers reads. Its snapshot
// is made to fail by a directory in the file's place.
func TestRedisCannotPersist(t *testing.T) {
	t.Parallel()
	rs := timerstest.Redis(t, "--stop-writes-on-bgsave-error", "yes", "--save", "3600 1000000")
	ns := timerstest.NATS(t)
	l := timerstest.LapseOn(t, rs.URL(), ns.URL())
	s := &served{rdb: rs.Client(), ns: ns, nc: ns.Connect(t), lapse: l}
	ctx := t.Context()
	dir := s.rdb.ConfigGet(ctx, "dir").Val()["dir"]
	inTheWay := filepath.Join(dir, s.rdb.ConfigGet(ctx, "dbfilename").Val()["dbfilename"])
	save := func(status string) {
		t.Helper()
		require.NoError(t, s.rdb.BgSave(ctx).Err())
		timerstest.Eventually(t, soon, "the save ends "+status, func() bool {
			info := s.rdb.InfoMap(ctx, "persistence").Val()["Persistence"]
			return info["rdb_bgsave_in_progress"] == "0" && info["rdb_last_bgsave_status"] == status
		})
	}
	copies := s.hear(t, "timers.fired.kept")
	const n = 50
	due := time.Now().Add(3 * time.Second)
	for i := range n {
		s.set(t, request("timers.set.kept", fmt.Sprint(i), "@at "+due.UTC().Format(time.RFC3339Nano)))
	}
	require.NoError(t, os.MkdirAll(filepath.Join(inTheWay, "x"), 0o700))
	save("err")
	require.True(t, time.Now().Before(due), "writes are refused before the due time")
	isRefusal(t, s.ask(t, request("timers.set.kept", "new", "@in 1h")), 503, "unavailable")
	isRefusal(t, s.ask(t, about("timers.cancel.kept", "0")), 503, "unavailable")
	require.Equal(t, "scheduled", s.ok(t, about("timers.get.kept", "0")).Header.Get("Timer-State"), "reads work")
	timerstest.Eventually(t, soon, "claims are refused", func() bool { return s.status(t, "timers").Counts.ClaimErrors > 3 })
	heard, _, err := copies.Pending()
	require.NoError(t, err)
	require.Zero(t, heard, "published without a claim")
	require.NoError(t, os.RemoveAll(inTheWay))
	save("ok")
	ids := map[string]bool{}
	for range n {
		ids[next(t, copies).Header.Get("Timer-Id")] = true
	}
	require.Len(t, ids, n)
	nothingLeft(t, s.rdb)
	require.Equal(t, n, count(t, s.nc, "TIMERS", "timers.fired.kept"))
	heard, _, err = copies.Pending()
	require.NoError(t, err)
	require.Zero(t, heard, "published more than once")
}

// A cancel around the due time is answered with the truth, five hundred times:
// OK and never delivered, or too late and delivered once. With active expiry off
// nobody but the reconciler's look makes Redis expire anything.
func TestCancelAroundTheDueTime(t *testing.T) {
	const n, spread = 500, 5 * time.Millisecond
	for _, active := range []string{"1", "0"} {
		t.Run("active expiry "+active, func(t *testing.T) {
			t.Parallel()
			rs, ns := timerstest.Redis(t, "--enable-debug-command", "yes"), timerstest.NATS(t)
			timerstest.LapseOn(t, rs.URL(), ns.URL())
			rdb, nc := rs.Client(), ns.Connect(t)
			require.NoError(t, rdb.Do(t.Context(), "DEBUG", "SET-ACTIVE-EXPIRE", active).Err())
			c := newClient(t, nc)
			l := newLedger()
			random := rand.New(rand.NewPCG(1, 2))
			first := time.Now().Add(2 * time.Second)
			var wg sync.WaitGroup
			var cancelled, late, gone atomic.Int64
			errs := make(chan error, n)
			for i := range n {
				id, due := fmt.Sprint(i), first.Add(time.Duration(i)*2*time.Second/n)
				at := due.Add(time.Duration(random.Int64N(int64(2*spread))) - spread)
				wg.Go(func() {
					res, err := c.Set(t.Context(), "edge", []byte("x"), client.At(due), client.ID(id))
					if err != nil {
						errs <- err
						return
					}
					v := &life{topic: "edge", id: id, payload: "x", rev: res.Rev, due: res.Due}
					l.add(v)
					time.Sleep(time.Until(at)) // the moment of the cancel is the point
					switch _, err := c.Cancel(t.Context(), "edge", id); {
					case err == nil:
						l.set(v, never)
						cancelled.Add(1)
					case errors.Is(err, client.ErrConflict):
						late.Add(1) // NATS is well, so the attempt under way is stored
					case errors.Is(err, client.ErrNotFound):
						gone.Add(1)
					default:
						errs <- err
					}
				})
			}
			wg.Wait()
			close(errs)
			for err := range errs {
				t.Fatal(err)
			}
			t.Logf("%d cancelled, %d while being delivered, %d after it", cancelled.Load(), late.Load(), gone.Load())
			require.Positive(t, cancelled.Load())
			require.Positive(t, late.Load()+gone.Load())
			nothingLeft(t, rdb)
			l.check(t, onStream(t, nc))
		})
	}
}

// A set over a timer whose time has come, before anybody noticed, makes Redis
// emit the event of the old life. The answer says what was replaced, the event
// is heard, and the new life waits for its own time.
func TestSetOverATimerThatIsDue(t *testing.T) {
	t.Parallel()
	rs, ns := timerstest.Redis(t, "--enable-debug-command", "yes"), timerstest.NATS(t)
	s := &tabled{redis: timerstest.RedisProxy(t, rs), nats: newNATSProxy(t, ns)}
	s.served = &served{rdb: rs.Client(), ns: ns, nc: ns.Connect(t), lapse: timerstest.LapseOn(t, s.redis.URL(), ns.URL())}
	require.NoError(t, s.rdb.Do(t.Context(), "DEBUG", "SET-ACTIVE-EXPIRE", "0").Err())
	fired := s.hear(t, "timers.fired.over")
	for i, verb := range []string{"set", "cancel"} {
		topic := "over"
		s.redis.Obey(func(c faultproxy.Command) faultproxy.Fault {
			if c.Script == "due" { // nobody looks
				return loading
			}
			return faultproxy.Pass
		})
		first := s.set(t, request("timers.set."+topic, "x", "@in 20ms"))
		timerstest.Eventually(t, soon, "it is due", func() bool { return s.redisTime(t).After(first.Due.Add(100 * time.Millisecond)) })
		events := s.status(t, "timers").Counts.Events
		if verb == "cancel" {
			s.ok(t, about("timers.cancel."+topic, "x"))
		} else {
			require.Equal(t, "scheduled", s.setLater(t, topic).Was)
		}
		timerstest.Eventually(t, soon, "the event of the old life is heard", func() bool { return s.status(t, "timers").Counts.Events > events })
		s.redis.Obey(passAll)
		if verb == "set" {
			require.Equal(t, look{"scheduled", 0, "second"}, s.look(t, topic))
			s.comeDue(t, topic)
			require.Equal(t, "second", string(next(t, fired).Data))
		}
		nothingLeft(t, s.rdb)
		require.Equal(t, 1, count(t, s.nc, "TIMERS", "timers.fired."+topic), "after %d", i)
	}
	heard, _, err := fired.Pending()
	require.NoError(t, err)
	require.Zero(t, heard)
}

// The options that Lapse takes from a URL send a command once. Those of the
// library would send a set again whose reply was lost, and raise what was
// cancelled in between: the control.
func TestLibraryDoesNotRepeat(t *testing.T) {
	t.Parallel()
	rs := timerstest.Redis(t)
	keys, err := timers.NewKeys("timers", 1)
	require.NoError(t, err)
	for _, c := range []struct {
		name    string
		retries int
		sent    int64
	}{{"as Lapse has it", -1, 1}, {"as the library has it", 3, 4}} {
		t.Run(c.name, func(t *testing.T) {
			p := timerstest.RedisProxy(t, rs)
			opt, err := timers.ParseRedisURL(p.URL())
			require.NoError(t, err)
			if c.retries > 0 {
				opt.MaxRetries = c.retries
			}
			rdb := redis.NewClient(opt)
			defer rdb.Close()
			store := timers.NewStore(rdb, keys)
			require.NoError(t, store.Open(t.Context()))
			ref := timers.Ref{Topic: "a", ID: "x"}
			_, err = store.Set(t.Context(), 0, []timers.SetItem{{Ref: ref, In: time.Hour}})
			require.NoError(t, err)
			for _, script := range []string{"set", "cancel", "claim", "due"} {
				var sent atomic.Int64
				p.Obey(func(cmd faultproxy.Command) faultproxy.Fault {
					if cmd.Script == script {
						sent.Add(1)
						return faultproxy.CutReply
					}
					return faultproxy.Pass
				})
				switch script {
				case "set":
					_, err = store.Set(t.Context(), 0, []timers.SetItem{{Ref: ref, In: time.Hour}})
				case "cancel":
					_, _, err = store.Cancel(t.Context(), 0, []timers.Ref{ref})
				case "claim":
					_, err = store.Claim(t.Context(), 0, time.Minute, "t", false, 1, []timers.Ref{ref})
				case "due":
					_, err = store.Due(t.Context(), 0, time.Second, 1, 1)
				}
				require.Error(t, err)
				if script != "due" {
					require.ErrorIs(t, err, timers.ErrUnconfirmed)
				}
				require.Equal(t, c.sent, sent.Load(), script)
			}
		})
	}
}
