package cli

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/lapse-timers/lapse/timers/timerstest"
	"github.com/lapse-timers/lapse/timers/wire"
)

func TestMan(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "man1")
	lapse(t, nil, "", "man", dir).ok(t, "lapse.1")
	for page, holds := range map[string]string{
		"lapse.1": "set orders.close", "lapse-set.1": "lapse set <topic>", "lapse-serve.1": "LAPSE_REDIS_URL", "lapse-man.1": "settings", "lapse-completion-bash.1": "bash",
	} {
		b, err := os.ReadFile(filepath.Join(dir, page))
		if err != nil {
			t.Error(err)
		} else if !strings.HasPrefix(string(b), ".nh\n.TH") || !strings.Contains(string(b), holds) {
			t.Errorf("%s does not hold %q:\n%s", page, holds, b)
		}
	}
	for page, title := range map[string]string{"lapse.1": "LAPSE", "lapse-set.1": "LAPSE-SET", "lapse-completion-bash.1": "LAPSE-COMPLETION-BASH"} {
		b, err := os.ReadFile(filepath.Join(dir, page))
		if err != nil || !strings.Contains(string(b), `.TH "`+title+`"`) {
			t.Errorf("%s is not titled %s: %v", page, title, err)
		}
	}
	if got := escape("of <topic>\n    as it stands <topic>"); got != "of \\<topic>\n    as it stands <topic>" {
		t.Errorf("escaped as %q", got)
	}
	lapse(t, nil, "", "man").says(t, ExitUsage, "lapse man /")
	file := filepath.Join(dir, "lapse.1")
	lapse(t, nil, "", "man", file).says(t, ExitFailure, file, "name a directory")
}

// Topics, and the ids of a topic, come from the soonest timers; flags from the
// command line. Without a service there are none, and nothing is said.
func TestCompletion(t *testing.T) {
	ns := timerstest.NATS(t)
	nc := ns.Connect(t)
	list := func(topic string) {
		responder(t, nc, wire.Prefix(wire.DefaultPrefix).List(topic), func(*nats.Msg) *nats.Msg {
			body, err := json.Marshal(wire.ListReply{Timers: []wire.ListItem{
				{Topic: "orders", ID: "b", Due: wire.FormatTime(time.Now())}, {Topic: "orders", ID: "a", Due: wire.FormatTime(time.Now())},
				{Topic: "orders.eu", ID: "c", Due: wire.FormatTime(time.Now())},
			}})
			if err != nil {
				t.Error(err)
			}
			return &nats.Msg{Data: body}
		})
	}
	list("")
	list("orders")
	e := env{"NATS_URL": ns.URL()}
	for _, c := range []struct {
		args string
		want string
	}{
		{"get ", "orders|orders.eu"},
		{"cancel ", "orders|orders.eu"},
		{"list ", "orders|orders.eu"},
		{"watch ", "orders|orders.eu"},
		{"set ", "orders|orders.eu"},
		{"get orders ", "a|b"},
		{"retry orders ", "a|b"},
		{"list orders ", ""},
		{"get orders a ", ""},
	} {
		args := strings.Split(c.args, " ")
		r := lapse(t, e, "", append([]string{"__complete"}, args...)...)
		got, _, _ := strings.Cut(r.out, ":4\n") // that no file names follow
		if got = strings.TrimSpace(strings.ReplaceAll(strings.TrimSpace(got), "\n", "|")); got != c.want {
			t.Errorf("%q completes to %q, want %q; %q", c.args, got, c.want, r.err)
		}
	}
	lapse(t, e, "", "__complete", "set", "--sch").ok(t, "--schedule")
	if r := lapse(t, env{"NATS_URL": "nats://127.0.0.1:1"}, "", "__complete", "get", ""); r.code != ExitOK || strings.TrimSpace(strings.Split(r.out, ":4")[0]) != "" {
		t.Errorf("without a service: %d %q", r.code, r.out)
	}
	for _, shell := range []string{"bash", "zsh", "fish"} {
		lapse(t, nil, "", "completion", shell).ok(t, "lapse")
	}
}
