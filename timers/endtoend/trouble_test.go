package endtoend

import (
	"errors"
	"fmt"
	"net"
	"os"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/lapse-timers/lapse/timers/client"
	"github.com/lapse-timers/lapse/timers/timerstest"
)

// soon bounds what should happen within a moment; a busy machine and the race
// detector need the rest.
const soon = 30 * time.Second

// attempts is a ledger that also knows of sets that were not answered OK.
type attempts struct {
	*ledger
	mu      sync.Mutex
	refused map[string]bool // by id: answered that nothing was stored
	unsure  map[string]bool // answered that it may have been stored
}

func newAttempts() *attempts {
	return &attempts{ledger: newLedger(), refused: map[string]bool{}, unsure: map[string]bool{}}
}

// set sets a timer, once, and notes what was answered. The error is one that
// no trouble with Redis or NATS explains.
func (a *attempts) set(t *testing.T, c *client.Client, topic, id string, payload []byte, when client.When) error {
	res, err := c.Set(t.Context(), topic, payload, when, client.ID(id))
	a.mu.Lock()
	defer a.mu.Unlock()
	switch {
	case err == nil:
		a.add(&life{topic: topic, id: id, payload: string(payload), rev: res.Rev, due: res.Due})
	case errors.Is(err, client.ErrUnavailable), errors.Is(err, client.ErrStorageFull):
		a.refused[id] = true
	case errors.Is(err, client.ErrUnconfirmed):
		a.unsure[id] = true
	default:
		return err
	}
	return nil
}

// setMany sets n timers from a few goroutines, the i-th as when says.
func (a *attempts) setMany(t *testing.T, c *client.Client, topic string, n int, payload []byte, when func(i int) client.When) {
	t.Helper()
	const requesters = 16
	var wg sync.WaitGroup
	errs := make(chan error, requesters)
	for w := range requesters {
		wg.Go(func() {
			for i := w; i < n; i += requesters {
				if err := a.set(t, c, topic, fmt.Sprint(topic, i), payload, when(i)); err != nil {
					errs <- err
					return
				}
			}
		})
	}
	wg.Wait()
	close(errs)
	for err := range errs {
		t.Fatal(err)
	}
}

// check compares with what the stream holds: each set that was answered OK is
// there once, none that was answered otherwise but those that may be, and they
// once.
func (a *attempts) check(t *testing.T, fired []client.Fired) {
	t.Helper()
	known := fired[:0:0]
	seen := map[string]bool{}
	for _, f := range fired {
		switch {
		case a.refused[f.ID]:
			t.Errorf("%s fired though its set was answered with %q", f.ID, "nothing was stored")
		case a.unsure[f.ID] && seen[f.ID]:
			t.Errorf("%s, whose set may have been stored, fired twice", f.ID)
		case a.unsure[f.ID]:
			seen[f.ID] = true
		default:
			known = append(known, f)
		}
	}
	a.ledger.check(t, known)
}

// stored is how many messages the stream holds; -1 when it does not say.
func stored(t *testing.T, nc *nats.Conn) int {
	t.Helper()
	js, err := jetstream.New(nc)
	require.NoError(t, err)
	stream, err := js.Stream(t.Context(), "TIMERS")
	if err != nil {
		return -1
	}
	return int(stream.CachedInfo().State.Msgs)
}

// allOnce waits until all that was answered OK is on the stream and nothing is
// left in Redis, and compares.
func (a *attempts) allOnce(t *testing.T, nc *nats.Conn, rdb *redis.Client) {
	t.Helper()
	want, have := a.count(delivered), 0
	defer func() {
		if t.Failed() {
			t.Logf("%d on the stream, at least %d wanted", have, want)
		}
	}()
	timerstest.Eventually(t, soon, "all that was answered OK is on the stream", func() bool {
		have = stored(t, nc)
		return have >= want
	})
	nothingLeft(t, rdb)
	a.check(t, onStream(t, nc))
}

// ready waits until /readyz answers with the code, and returns its body.
func ready(t *testing.T, l *timerstest.LapseServer, code int) string {
	t.Helper()
	var last string
	deadline := time.AfterFunc(soon-time.Second, func() { t.Logf("the last /readyz said %s", last) })
	defer deadline.Stop()
	timerstest.Eventually(t, soon, fmt.Sprintf("/readyz answers %d", code), func() bool {
		got, body, err := l.Ready()
		last = fmt.Sprint(got, body, err)
		return err == nil && got == code
	})
	return last
}

// readySays waits until /readyz answers with the code and the words.
func readySays(t *testing.T, l *timerstest.LapseServer, code int, words ...string) {
	t.Helper()
	timerstest.Eventually(t, soon, fmt.Sprintf("/readyz answers %d with %q", code, words), func() bool {
		got, body, err := l.Ready()
		if err != nil || got != code {
			return false
		}
		for _, w := range words {
			if !strings.Contains(body, w) {
				return false
			}
		}
		return true
	})
}

// freeAddr is an address on loopback that nobody listens on. An instance that is
// not ready yet does not say where it listens.
func freeAddr(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer l.Close()
	return l.Addr().String()
}

// terminate sends SIGTERM and returns how the instance ended.
func terminate(t *testing.T, l *timerstest.LapseServer) (code int, took time.Duration) {
	t.Helper()
	began := time.Now()
	p, err := os.FindProcess(l.Pid())
	require.NoError(t, err)
	require.NoError(t, p.Signal(syscall.SIGTERM))
	return l.Wait(), time.Since(began)
}

// quickExit keeps a program that is built with the race detector from sleeping
// for a second before it exits.
const quickExit = "GORACE=atexit_sleep_ms=0"

// endsWell is terminate with the demand of exit 0 within the grace.
func endsWell(t *testing.T, l *timerstest.LapseServer, grace time.Duration) {
	t.Helper()
	code, took := terminate(t, l)
	t.Logf("exit %d, %v after SIGTERM", code, took.Round(time.Millisecond))
	require.Equal(t, 0, code)
	require.Less(t, took, grace)
}

// timesIn is when the i-th of n timers is due: spread evenly over the time,
// from the first on.
func timesIn(first time.Time, over time.Duration, n int) func(int) client.When {
	return func(i int) client.When { return client.At(first.Add(over * time.Duration(i) / time.Duration(n))) }
}

// fallDue has the timers of the ledger fall due, one after the other over the
// stretch of time that begins after the lead. They are set an hour ahead: how
// long the sets take is the machine's business, and a lead that is long enough
// for any machine is one that most of them wait out. The ledger learns the due
// times. It returns the last one.
func fallDue(t *testing.T, rdb *redis.Client, l *ledger, lead, over time.Duration) (last time.Time) {
	t.Helper()
	got, err := redis.NewScript(`
		local now = redis.call('TIME')
		local first = now[1] * 1000 + math.floor(now[2] / 1000) + ARGV[1]
		local members = redis.call('ZRANGE', KEYS[1], 0, -1)
		local out = {}
		for i, member in ipairs(members) do
			local due = string.format('%.0f', first + math.floor((i - 1) * ARGV[2] / #members))
			redis.call('HSET', string.gsub(KEYS[1], 'due$', 'h:') .. member, 'd', due)
			redis.call('PEXPIREAT', string.gsub(KEYS[1], 'due$', 't:') .. member, due)
			redis.call('ZADD', KEYS[1], 'XX', due, member)
			out[2 * i - 1], out[2 * i] = member, due
		end
		return out`).Run(t.Context(), rdb, []string{"timers:{0}:due"}, lead.Milliseconds(), over.Milliseconds()).StringSlice()
	require.NoError(t, err)
	due := map[string]time.Time{}
	for i := 0; i < len(got); i += 2 {
		ms, err := strconv.ParseInt(got[i+1], 10, 64)
		require.NoError(t, err)
		due[got[i]] = time.UnixMilli(ms).UTC()
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, v := range l.lives {
		at, ok := due[v.topic+":"+v.id]
		if ok && v.fate == delivered {
			v.due = at
			if at.After(last) {
				last = at
			}
		}
	}
	require.False(t, last.IsZero(), "no timer of the ledger is pending")
	return last
}

// anHourAhead is when timers are set that are to fall due by [fallDue].
func anHourAhead(int) client.When { return client.In(time.Hour) }

// passes waits until the clock has passed the moment.
func passes(t *testing.T, moment time.Time) {
	t.Helper()
	timerstest.Eventually(t, time.Until(moment)+time.Minute, "the moment has passed", func() bool { return time.Now().After(moment) })
}
