package notify

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/lapse-timers/lapse/timers"
	"github.com/lapse-timers/lapse/timers/timerstest"
	"github.com/redis/go-redis/v9"
)

func TestMissingFlags(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ have, missing, wanted string }{
		{"", "Ex", "Ex"},
		{"x", "E", "xE"},
		{"E", "x", "Ex"},
		{"Kx", "E", "KxE"},
		{"AK", "E", "AKE"},
		{"A", "E", "AE"},
		{"Eg", "x", "Egx"},
		{"KEg", "x", "KEgx"},
		{"eX", "Ex", "eXEx"}, // letters have a case
		{"xE", "", "xE"},
		{"Ex", "", "Ex"},
		{"AKE", "", "AKE"},
		{"KEA", "", "KEA"},
		{"AE", "", "AE"},
		{"gxKEmn", "", "gxKEmn"},
	} {
		if got := timers.MissingFlags(c.have); got != c.missing {
			t.Errorf("timers.MissingFlags(%q) = %q, want %q", c.have, got, c.missing)
		}
		if got := timers.WantedFlags(c.have); got != c.wanted {
			t.Errorf("timers.WantedFlags(%q) = %q, want %q", c.have, got, c.wanted)
		}
	}
}

func FuzzFlags(f *testing.F) {
	for _, s := range []string{"", "x", "E", "Kx", "AK", "Eg", "xE", "AKE", "\x00", "é"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, have string) {
		missing, want := timers.MissingFlags(have), timers.WantedFlags(have)
		if !strings.HasPrefix(want, have) {
			t.Errorf("timers.WantedFlags(%q) = %q takes away letters", have, want)
		}
		if m := timers.MissingFlags(want); m != "" {
			t.Errorf("timers.WantedFlags(%q) = %q still lacks %q", have, want, m)
		}
		if (missing == "") != (want == have) {
			t.Errorf("%q lacks %q, yet becomes %q", have, missing, want)
		}
		enough := strings.Contains(have, "E") && (strings.Contains(have, "x") || strings.Contains(have, "A"))
		if enough != (missing == "") {
			t.Errorf("timers.MissingFlags(%q) = %q", have, missing)
		}
	})
}

// What Redis itself makes of every combination of letters: it takes the value
// that we would set, keeps the neighbour's letters, and then announces.
func TestLookKeepsTheFlagsOfOthers(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	c := timerstest.Redis(t).Client()
	for _, have := range []string{"", "K", "E", "x", "Kg", "KA", "A", "K$lshzxe", "Eg", "Kxt", "KEgxmn", "AKE"} {
		if err := c.ConfigSet(ctx, setting, have).Err(); err != nil {
			t.Fatal(err)
		}
		before := c.ConfigGet(ctx, setting).Val()[setting]
		f, err := look(ctx, c, true)
		if err != nil {
			t.Fatalf("%q: %v", have, err)
		}
		if f.state != flagsRight || f.added != timers.MissingFlags(before) || f.why != "" {
			t.Errorf("%q: %+v", have, f)
		}
		after := c.ConfigGet(ctx, setting).Val()[setting]
		if timers.MissingFlags(after) != "" {
			t.Errorf("%q became %q", before, after)
		}
		if f.added == "" && after != before {
			t.Errorf("%q was enough, yet became %q", before, after)
		}
		for _, letter := range before {
			// Redis folds the single classes into A when they are all there.
			if !strings.ContainsRune(after, letter) && !(strings.Contains(after, "A") && letter != 'K' && letter != 'E') {
				t.Errorf("%q became %q: %c is lost", before, after, letter)
			}
		}
	}
}

func TestLookDoesNotSetWhenOff(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	c := timerstest.Redis(t, "--notify-keyspace-events", "Kg").Client()
	f, err := look(ctx, c, false)
	if err != nil || f.state != flagsMissing || f.missing != "Ex" {
		t.Fatalf("%+v, %v", f, err)
	}
	for _, part := range []string{`"gK"`, "E and x are missing", "LAPSE_NOTIFY_CONFIG=off", "notify-keyspace-events gKEx"} {
		if !strings.Contains(f.why, part) {
			t.Errorf("%q does not say %q", f.why, part)
		}
	}
	if got := c.ConfigGet(ctx, setting).Val()[setting]; got != "gK" {
		t.Errorf("the flags became %q", got)
	}
}

func TestReplicaEndsTheSession(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	for _, protocol := range []int{2, 3} {
		s := timerstest.RedisTCP(t)
		o := *s.Client().Options()
		o.Protocol = protocol
		c := redis.NewClient(&o)
		defer c.Close()
		if _, err := look(ctx, c, true); err != nil {
			t.Fatalf("master: %v", err)
		}
		if err := c.Do(ctx, "replicaof", "127.0.0.1", "1").Err(); err != nil {
			t.Fatal(err)
		}
		if _, err := look(ctx, c, true); !errors.Is(err, errReplica) {
			t.Errorf("replica, RESP%d: %v", protocol, err)
		}
	}
}

type replyError string

func (e replyError) Error() string { return string(e) }
func (e replyError) RedisError()   {}

func TestRefused(t *testing.T) {
	t.Parallel()
	for reply, want := range map[string]bool{
		"NOPERM this user has no permissions to run the 'config|get' command": true,
		"ERR unknown command 'config', with args beginning with: 'get' ":      true,
		"ERR CONFIG is disabled":                            true,
		"ERR command not allowed, contact support":          true,
		"LOADING Redis is loading the dataset in memory":    false,
		"ERR LOADING Redis is loading":                      false,
		"BUSY Redis is busy running a script.":              false,
		"MASTERDOWN Link with MASTER is down":               false,
		"READONLY You can't write against a read only one.": false,
	} {
		if got := refused(fmt.Errorf("wrapped: %w", replyError(reply))); got != want {
			t.Errorf("refused(%q) = %v", reply, got)
		}
	}
	for _, err := range []error{nil, redis.Nil, errors.New("EOF")} {
		if refused(err) {
			t.Errorf("refused(%v)", err)
		}
	}
}
