package cli

import (
	"bytes"
	"context"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/spf13/cobra"

	"github.com/lapse-timers/lapse/timers/client"
	"github.com/lapse-timers/lapse/timers/timerstest"
	"github.com/lapse-timers/lapse/timers/wire"
)

// ran is what a command line came to.
type ran struct {
	code     int
	out, err string
}

// env is an environment for a command: nothing of the test's own leaks in.
type env map[string]string

func (e env) get(name string) string { return e[name] }

// lapse runs a command line in process.
func lapse(t *testing.T, e env, stdin string, args ...string) ran {
	t.Helper()
	var out, errs bytes.Buffer
	root := New(Info{
		Version:  "v1.2.3",
		Serve:    &cobra.Command{Use: "serve", Short: "Run the service", RunE: func(*cobra.Command, []string) error { return nil }},
		Settings: func() string { return "LAPSE_REDIS_URL  embedded\n" },
		Getenv:   e.get,
	})
	root.SetArgs(args)
	root.SetIn(strings.NewReader(stdin))
	root.SetOut(&out)
	root.SetErr(&errs)
	code := Execute(t.Context(), root)
	return ran{code, out.String(), errs.String()}
}

// says checks the exit code and the one line of an error.
func (r ran) says(t *testing.T, code int, parts ...string) {
	t.Helper()
	if r.code != code {
		t.Errorf("exit code %d, want %d; stdout %q, stderr %q", r.code, code, r.out, r.err)
	}
	if !strings.HasPrefix(r.err, "lapse: ") || strings.Count(r.err, "\n") != 1 {
		t.Errorf("stderr is not one line of lapse: %q", r.err)
	}
	for _, part := range parts {
		if !strings.Contains(r.err, part) {
			t.Errorf("stderr %q does not say %q", r.err, part)
		}
	}
}

func (r ran) ok(t *testing.T, parts ...string) {
	t.Helper()
	if r.code != ExitOK {
		t.Errorf("exit code %d; stderr %q", r.code, r.err)
	}
	for _, part := range parts {
		if !strings.Contains(r.out, part) {
			t.Errorf("stdout does not hold %q:\n%s", part, r.out)
		}
	}
}

// responder answers on the subject with what reply makes of a request.
func responder(t *testing.T, nc *nats.Conn, subject string, reply func(*nats.Msg) *nats.Msg) {
	t.Helper()
	if _, err := nc.Subscribe(subject, func(req *nats.Msg) {
		m := reply(req)
		m.Subject = req.Reply
		if err := nc.PublishMsg(m); err != nil {
			t.Errorf("reply: %v", err)
		}
	}); err != nil {
		t.Fatal(err)
	}
	if err := nc.Flush(); err != nil {
		t.Fatal(err)
	}
}

func refuse(e *wire.Error) func(*nats.Msg) *nats.Msg {
	return func(*nats.Msg) *nats.Msg {
		code, text, body := e.Encode()
		return &nats.Msg{Data: body, Header: nats.Header{wire.HeaderErrorCode: {code}, wire.HeaderError: {text}}}
	}
}

func TestHelp(t *testing.T) {
	for _, args := range [][]string{{}, {"help"}, {"--help"}} {
		r := lapse(t, nil, "", args...)
		r.ok(t, "set ", "watch", "serve", "demo", "Exit codes:", "LAPSE_REDIS_URL")
		if r.err != "" {
			t.Errorf("%q: stderr %q", args, r.err)
		}
	}
	r := lapse(t, nil, "", "help", "set")
	r.ok(t, "--in", "--data", "--prefix")
	if strings.Contains(r.out, "LAPSE_REDIS_URL") {
		t.Error("the help of set shows the settings of serve")
	}
	lapse(t, nil, "", "version").ok(t, "lapse v1.2.3")
	lapse(t, nil, "", "version", "--json").ok(t, `"version":"v1.2.3"`)
}

func TestUsage(t *testing.T) {
	for line, says := range map[string][]string{
		"lst":                             {`"lst"`, "did you mean list?"},
		"cancle a b":                      {`"cancle"`, "did you mean cancel?"},
		"frobnicate":                      {`"frobnicate"`, "lapse help"},
		"help frobnicate":                 {`"frobnicate"`},
		"help lst":                        {"did you mean list?"},
		"--frob":                          {"--frob", "lapse --help"},
		"set --frob":                      {"--frob", "lapse set --help"},
		"set":                             {"got no argument", "lapse set orders.close --in 30m"},
		"set a b --in 1s":                 {`["a" "b"]`},
		"set a":                           {"got nothing", "--in"},
		"set a --in 1s --at now":          {"--in and --at"},
		"set a --in 1s --data x --file y": {"--data and --file"},
		"set a --in 5":                    {`--in "5"`, "30m"},
		"set a --in=-5s":                  {`--in "-5s"`, "negative"},
		"set a --in 99999999h":            {`--in "99999999h"`, "292 years", "--at"},
		"set a --at tomorrow":             {`--at "tomorrow"`, "2030-01-02T09:00:00Z"},
		"set a --in 1s -H novalue":        {`"novalue"`, "Name: value"},
		"set a --in 1s --prefix a..b":     {`"a..b"`, "timers"},
		"set a --in 1s --timeout 0s":      {"--timeout 0s"},
		"set a --in 1s --server nats://u:s@127.0.0.1:1": {"cannot"},
		"get":                                {"lapse get orders.close order-42"},
		"get a":                              {"id is missing"},
		"get a b --id c":                     {"twice"},
		"get a b --raw --json":               {"--raw and --json"},
		"cancel a b c":                       {`["a" "b" "c"]`},
		"retry a":                            {"id is missing", "lapse retry orders.close order-42"},
		"retrt a b":                          {"did you mean retry?"},
		"list a b":                           {"lapse list orders"},
		"list --limit=-1":                    {"--limit -1"},
		"watch --count=-1":                   {"--count -1"},
		"status x":                           {`"x"`},
		"version x":                          {`"x"`},
		"list --limit x":                     {`--limit "x"`, "a whole number", "lapse list --help"},
		"list --state alive":                 {`--state "alive"`, "dead or pending"},
		"set a --in 1s --timeout 5":          {`--timeout "5"`, "with its unit"},
		"bench lag --rate x":                 {`--rate "x"`, "a number"},
		"get a b --raw=maybe":                {`--raw "maybe"`, "true or false"},
		"completion tcsh":                    {`"tcsh"`, "bash, fish"},
		"completion":                         {"lapse completion bash"},
		"status --server http://127.0.0.1:1": {"nats://host:port", "--server"},
		"demo x":                             {`"x"`},
		"serve x":                            {`"x"`},
	} {
		t.Run(line, func(t *testing.T) {
			code := ExitUsage
			if strings.Contains(line, "nats://u") {
				code = ExitFailure // a URL, of nowhere
			}
			lapse(t, nil, "", strings.Fields(line)...).says(t, code, says...)
		})
	}
}

// Help says how a command is typed: each that takes something has examples,
// which are commands that there are.
func TestExamples(t *testing.T) {
	root := New(Info{Getenv: env{}.get, Doctor: func(context.Context, bool) (wire.DoctorReport, error) { return wire.DoctorReport{}, nil }})
	for _, cmd := range root.Commands() {
		if cmd.Name() == "completion" || cmd.Name() == "help" || cmd.Name() == "version" || cmd.Name() == "demo" {
			continue // nothing to type but the name
		}
		if cmd.Example == "" {
			t.Errorf("%s has no example", cmd.Name())
		}
		for line := range strings.SplitSeq(cmd.Example, "\n") {
			if !strings.HasPrefix(line, "  ") || !strings.Contains(line, "lapse "+cmd.Name()) {
				t.Errorf("an example of %s: %q", cmd.Name(), line)
			}
			_, typed, _ := strings.Cut(line, "lapse "+cmd.Name())
			for _, word := range strings.Fields(typed) {
				name, _, _ := strings.Cut(strings.TrimPrefix(word, "--"), "=")
				if strings.HasPrefix(word, "--") && cmd.Flags().Lookup(name) == nil {
					t.Errorf("%q: %s has no flag %s", line, cmd.Name(), word)
				}
				if word == "|" || word == ">" {
					break
				}
			}
		}
	}
}

func TestAddress(t *testing.T) {
	for name, tt := range map[string]struct {
		server    string
		env       env
		url, from string
	}{
		"default":          {"", nil, "nats://127.0.0.1:4222", "the default"},
		"flag first":       {"nats://a", env{"LAPSE_NATS_URL": "nats://b", "NATS_URL": "nats://c"}, "nats://a", "--server"},
		"then Lapse's own": {"", env{"LAPSE_NATS_URL": "nats://b", "NATS_URL": "nats://c"}, "nats://b", "LAPSE_NATS_URL"},
		"then NATS's":      {"", env{"LAPSE_NATS_URL": "embedded", "NATS_URL": "nats://c"}, "nats://c", "NATS_URL"},
		"embedded":         {"", env{"LAPSE_NATS_URL": "embedded"}, "nats://127.0.0.1:4222", "the default"},
		"embedded, moved":  {"", env{"LAPSE_NATS_LISTEN": "0.0.0.0:4333"}, "nats://127.0.0.1:4333", "LAPSE_NATS_LISTEN"},
		"with a password":  {"", env{"LAPSE_NATS_LISTEN": "u:p@w@0.0.0.0:4333"}, "nats://u:p@w@127.0.0.1:4333", "LAPSE_NATS_LISTEN"},
		"IPv6":             {"", env{"LAPSE_NATS_LISTEN": "[::]:4333"}, "nats://127.0.0.1:4333", "LAPSE_NATS_LISTEN"},
	} {
		c := connection{getenv: tt.env.get, server: tt.server}
		if url, from := c.address(); url != tt.url || from != tt.from {
			t.Errorf("%s: %s from %s, want %s from %s", name, url, from, tt.url, tt.from)
		}
	}
}

func TestSecretsAreNotPrinted(t *testing.T) {
	for url, want := range map[string]string{
		"nats://user:hunter2@host:4222":              "nats://***@host:4222",
		"nats://hunter2@host:4222":                   "nats://***@host:4222",
		"hunter2@host":                               "nats://***@host",
		"tls://a:1, nats://u:hunter2@b:2/x?hunter2=": "tls://a:1,nats://***@b:2",
		"nats://u:hun%2Fter2@host,nats://host2:4222": "nats://***@host,nats://host2:4222",
	} {
		if got, err := redact(url); err != nil || got != want {
			t.Errorf("%s: %s (%v), want %s", url, got, err, want)
		}
	}
	if got := scrub("dial u:hun%2Fter2@host: hun/ter2 refused", "nats://u:hun%2Fter2@host"); strings.Contains(got, "ter2") {
		t.Errorf("left %q", got)
	}
	for _, url := range []string{"nats://u:hunter2@127.0.0.1:1", "nats://hunter2@127.0.0.1:1", "nats://u:hunter2/x@127.0.0.1:1", "nats://u:hun%zzhunter2@h"} {
		r := lapse(t, env{"NATS_URL": url}, "", "status", "--timeout", "1s")
		if r.code == ExitOK || strings.Contains(r.err+r.out, "hunter2") {
			t.Errorf("%s: %q", url, r.err)
		}
	}
}

func TestCannotConnect(t *testing.T) {
	lapse(t, env{"NATS_URL": "nats://127.0.0.1:1"}, "", "list").
		says(t, ExitFailure, "nats://127.0.0.1:1", "NATS_URL", "lapse serve", "--server")
	lapse(t, nil, "", "status", "--server", "127.0.0.1:1", "--creds", "/nonexistent/x.creds").
		says(t, ExitFailure, "/nonexistent/x.creds", "--creds")

	srv := timerstest.NATS(t, func(o *server.Options) { o.Username, o.Password = "u", "right" })
	url := strings.Replace(srv.URL(), "//", "//u:wrong@", 1)
	r := lapse(t, env{"LAPSE_NATS_URL": url}, "", "status")
	r.says(t, ExitFailure, "refused the credentials", "LAPSE_NATS_URL", "--creds")
	if strings.Contains(r.err, "wrong") {
		t.Errorf("the password is in %q", r.err)
	}
}

func TestNobodyAnswers(t *testing.T) {
	srv := timerstest.NATS(t)
	lapse(t, env{"NATS_URL": srv.URL(), "LAPSE_PREFIX": "staging"}, "", "set", "a", "--in", "1s").
		says(t, ExitFailure, "no Lapse answers on staging.set.a", "lapse serve")
}

func TestSet(t *testing.T) {
	srv := timerstest.NATS(t)
	nc := srv.Connect(t)
	e := env{"NATS_URL": srv.URL()}
	asked := make(chan *nats.Msg, 1)
	responder(t, nc, "timers.set.>", func(req *nats.Msg) *nats.Msg {
		asked <- req
		return &nats.Msg{Data: []byte(`{"topic":"` + strings.TrimPrefix(req.Subject, "timers.set.") +
			`","id":"` + req.Header.Get("Timer-Id") + `","due":"2030-01-02T03:04:05.678Z","rev":7,"replaced":true,"was":"firing"}`)}
	})
	file := filepath.Join(t.TempDir(), "payload")
	if err := os.WriteFile(file, []byte("\x00\xff"), 0o600); err != nil {
		t.Fatal(err)
	}
	for name, tt := range map[string]struct {
		args              []string
		payload, schedule string
	}{
		"data":     {[]string{"--in", "30m", "--data", `{"order":42}`}, `{"order":42}`, "@in 30m0s"},
		"nothing":  {[]string{"--at", "2030-01-02T09:00:00+01:00"}, "", "@at 2030-01-02T08:00:00Z"},
		"stdin":    {[]string{"--schedule", "@every 1s", "--data", "-"}, "from stdin\n", "@every 1s"},
		"file":     {[]string{"--in", "0s", "--file", file}, "\x00\xff", "@in 0s"},
		"file '-'": {[]string{"--in", "1ms", "--file", "-"}, "from stdin\n", "@in 1ms"},
	} {
		args := append([]string{"set", "orders.close", "--id", "order 42", "-H", "X: 1", "--header", "X:2:3"}, tt.args...)
		r := lapse(t, e, "from stdin\n", args...)
		r.ok(t, "orders.close order 42 is due 2030-01-02T03:04:05.678Z (", "rev 7", "may still arrive")
		m := <-asked
		if string(m.Data) != tt.payload || m.Header.Get("Timer-Schedule") != tt.schedule ||
			m.Header.Get("Timer-Id") != "order 42" || strings.Join(m.Header.Values("X"), "|") != "1|2:3" {
			t.Errorf("%s: sent %q with %v", name, m.Data, m.Header)
		}
	}
	r := lapse(t, e, "", "set", "t", "--in", "1s", "--json", "--id", "order 42")
	r.ok(t, `{"topic":"t","id":"order 42","due":"2030-01-02T03:04:05.678Z","rev":7,"replaced":true,"was":"firing"}`)
	<-asked
	// Without one an id is made, so that a set whose outcome is unknown can be
	// looked up and repeated.
	lapse(t, e, "", "set", "t", "--in", "1s").ok(t, "rev 7")
	if m := <-asked; m.Header.Get("Timer-Id") == "" {
		t.Errorf("no id was made: %v", m.Header)
	}
	lapse(t, e, "", "set", "t", "--in", "1s", "--id", "").says(t, ExitUsage, `id ""`)
	lapse(t, e, "", "set", "t", "--in", "1s", "--file", "/nonexistent/x").says(t, ExitFailure, "/nonexistent/x")
}

func TestExitCodes(t *testing.T) {
	srv := timerstest.NATS(t)
	nc := srv.Connect(t)
	e := env{"NATS_URL": srv.URL()}
	stopped := true
	responder(t, nc, "timers.get.t", refuse(wire.Errorf(wire.NotFound, "there is no timer t:a")))
	responder(t, nc, "timers.cancel.t", refuse(&wire.Error{Word: wire.Conflict, Message: "too late", State: "firing", Stopped: &stopped}))
	responder(t, nc, "timers.retry.t", refuse(&wire.Error{Word: wire.Conflict, Message: "it is not dead", State: "scheduled"}))
	responder(t, nc, "timers.retry.none", refuse(wire.Errorf(wire.NotFound, "there is no timer none:a")))
	responder(t, nc, "timers.set.t", refuse(wire.Errorf(wire.InvalidSchedule, `schedule "soon": want @in`)))
	lapse(t, e, "", "get", "t", "a").says(t, ExitNotFound, "there is no timer t:a", "lapse list t")
	lapse(t, e, "", "cancel", "t", "--id", "a").says(t, ExitConflict, "too late")
	lapse(t, e, "", "retry", "t", "--id", "a").says(t, ExitConflict, "not dead")
	lapse(t, e, "", "retry", "none", "a").says(t, ExitNotFound, "there is no timer none:a", "lapse list none")
	lapse(t, e, "", "set", "t", "--schedule", "soon").says(t, ExitUsage, `schedule "soon": want @in (invalid_schedule)`)
}

func TestGetAndCancel(t *testing.T) {
	srv := timerstest.NATS(t)
	nc := srv.Connect(t)
	e := env{"NATS_URL": srv.URL()}
	responder(t, nc, "timers.get.t", func(req *nats.Msg) *nats.Msg {
		return &nats.Msg{Data: []byte("\x00\xff"), Header: nats.Header{
			"Timer-Topic": {"t"}, "Timer-Id": {string(req.Data)}, "Timer-Rev": {"7"}, "Timer-Due": {"2030-01-02T03:04:05.678Z"},
			"Timer-State": {"scheduled"}, "Timer-Attempt": {"0"}, "Timer-Schedule": {"@in 1h"}, "X": {"1", "2"},
		}}
	})
	responder(t, nc, "timers.cancel.t", func(req *nats.Msg) *nats.Msg {
		body, err := json.Marshal(wire.CancelReply{Topic: "t", ID: string(req.Data), Rev: 7})
		if err != nil {
			t.Error(err)
		}
		return &nats.Msg{Data: body}
	})
	if r := lapse(t, e, "", "get", "t", "a b"); r.code != ExitOK || r.out != "\x00\xff" {
		t.Errorf("into a pipe: %d %q %q", r.code, r.out, r.err)
	}
	lapse(t, e, "", "get", "t", "--id", "a b", "--json").ok(t,
		`{"topic":"t","id":"a b","rev":7,"due":"2030-01-02T03:04:05.678Z","state":"scheduled","attempts":0,"schedule":"@in 1h","headers":{"X":["1","2"]},"payload_base64":"AP8="}`)
	lapse(t, e, "", "cancel", "t", "a b").ok(t, "t a b is cancelled, rev 7")
	lapse(t, e, "", "cancel", "t", "a b", "--json").ok(t, `{"topic":"t","id":"a b","rev":7}`)
}

func TestRetryAndReason(t *testing.T) {
	srv := timerstest.NATS(t)
	nc := srv.Connect(t)
	e := env{"NATS_URL": srv.URL()}
	responder(t, nc, "timers.retry.t", func(req *nats.Msg) *nats.Msg {
		body, err := json.Marshal(wire.RetryReply{Topic: "t", ID: string(req.Data), Due: "2030-01-02T03:04:05.678Z", Rev: 7})
		if err != nil {
			t.Error(err)
		}
		return &nats.Msg{Data: body}
	})
	lapse(t, e, "", "retry", "t", "a b").ok(t, "t a b is tried again now, rev 7")
	lapse(t, e, "", "retry", "t", "--id", "a b", "--json").ok(t, `{"topic":"t","id":"a b","due":"2030-01-02T03:04:05.678Z","rev":7}`)
	lapse(t, nil, "", "help", "retry").ok(t, "gave up on", "<topic> <id>")
	responder(t, nc, "timers.get.t", func(req *nats.Msg) *nats.Msg {
		return &nats.Msg{Header: nats.Header{
			"Timer-Topic": {"t"}, "Timer-Id": {string(req.Data)}, "Timer-Rev": {"7"}, "Timer-Due": {"2030-01-02T03:04:05.678Z"},
			"Timer-State": {"dead"}, "Timer-Attempt": {"3"}, "Timer-Schedule": {"@in 1h"}, "Timer-Reason": {"too large"},
		}}
	})
	lapse(t, e, "", "get", "t", "a", "--json").ok(t, `"state":"dead","attempts":3,"reason":"too large"`)
	var b bytes.Buffer
	describe(&b, client.Timer{Topic: "t", ID: "a", State: client.Dead, Attempts: 3, Reason: "too large"}, time.Now())
	if out := b.String(); !strings.Contains(out, "state     dead, attempts 3\n") || !strings.Contains(out, "reason    too large\n") {
		t.Errorf("described as\n%s", out)
	}
}

func TestList(t *testing.T) {
	srv := timerstest.NATS(t)
	nc := srv.Connect(t)
	e := env{"NATS_URL": srv.URL()}
	limits := make(chan int, 8)
	responder(t, nc, "timers.list.orders", func(req *nats.Msg) *nats.Msg {
		var r wire.ListRequest
		if err := json.Unmarshal(req.Data, &r); err != nil {
			t.Error(err)
		}
		limits <- r.Limit
		page := wire.ListReply{Cursor: "next", Timers: []wire.ListItem{
			{Topic: "orders", ID: "a", Due: "2020-01-02T03:04:05.678Z", Rev: 1, State: "firing", Attempts: 2},
			{Topic: "orders.close", ID: "emoji ⏰", Due: "2090-01-02T03:04:05.678Z", Rev: 22, State: "scheduled"},
		}}
		if r.Cursor == "next" {
			page = wire.ListReply{Timers: []wire.ListItem{{Topic: "orders.x", ID: "c\u202e", Due: "2090-01-02T03:04:05.678Z", Rev: 3, State: "dead"}}}
		}
		body, err := json.Marshal(page)
		if err != nil {
			t.Error(err)
		}
		return &nats.Msg{Data: body}
	})
	responder(t, nc, "timers.list", func(*nats.Msg) *nats.Msg { return &nats.Msg{Data: []byte(`{"timers":[],"cursor":""}`)} })

	r := lapse(t, e, "", "list", "orders")
	r.ok(t, "DUE ", "firing (2 tried)", "emoji ⏰    22", `"c\u202e"`)
	if lines := strings.Count(r.out, "\n"); lines != 4 {
		t.Errorf("%d lines:\n%s", lines, r.out)
	}
	r = lapse(t, e, "", "list", "orders", "--json")
	r.ok(t, `{"topic":"orders","id":"a","due":"2020-01-02T03:04:05.678Z","rev":1,"state":"firing","attempts":2}`+"\n")
	if lines := strings.Count(r.out, "\n"); lines != 3 {
		t.Errorf("%d lines:\n%s", lines, r.out)
	}
	r = lapse(t, e, "", "list", "orders", "--limit", "1", "--json")
	if strings.Count(r.out, "\n") != 1 {
		t.Errorf("--limit 1:\n%s", r.out)
	}
	for i, want := range []int{100, 1000, 100, 1000, 100} {
		if got := <-limits; got != want {
			t.Errorf("request %d asked for %d, want %d", i, got, want)
		}
	}
	responder(t, nc, "timers.list.t", func(req *nats.Msg) *nats.Msg {
		var r wire.ListRequest
		if err := json.Unmarshal(req.Data, &r); err != nil {
			t.Error(err)
		}
		page := wire.ListReply{Timers: []wire.ListItem{{Topic: "t", ID: r.State + r.Cursor, Due: "2020-01-02T03:04:05.678Z", Rev: 1, State: "dead", Reason: "too\nlarge"}}}
		if r.Cursor == "" {
			page.Cursor = "2"
		}
		body, err := json.Marshal(page)
		if err != nil {
			t.Error(err)
		}
		return &nats.Msg{Data: body}
	})
	r = lapse(t, e, "", "list", "t", "--state", "dead")
	r.ok(t, "  REASON\n", "  dead2  ", `"too\nlarge"`)
	r = lapse(t, e, "", "list", "t", "--state", "pending", "--limit", "1", "--json")
	r.ok(t, `"id":"pending"`)
	if strings.Count(r.out, "\n") != 1 {
		t.Errorf("--limit 1 of the pending:\n%s", r.out)
	}
	if r := lapse(t, e, "", "list"); r.code != ExitOK || r.out != "" || !strings.Contains(r.err, "no timers") {
		t.Errorf("none: %+v", r)
	}
}

func TestStatus(t *testing.T) {
	srv := timerstest.NATS(t)
	nc := srv.Connect(t)
	e := env{"NATS_URL": srv.URL()}
	s := wire.StatusReply{
		Version: "v1", Deployment: "d", Instance: "i", Prefix: "timers", Delivery: "jetstream", Stream: "TIMERS",
		Now: "2030-01-02T03:04:05.678Z", Started: "2030-01-02T02:04:05.678Z", NextDue: "2030-01-02T03:07:05.678Z", Pending: 12,
		Lag:    wire.LagStats{Samples: 5, P50: 1.5, P99: 2.25, Max: 3},
		Health: wire.HealthReply{Status: "degraded", Parts: map[string]wire.HealthPart{"redis": {Status: "ok"}, "subscription": {Status: "degraded", Why: "no flags"}}},
	}
	responder(t, nc, "timers.status", func(*nats.Msg) *nats.Msg {
		body, err := json.Marshal(s)
		if err != nil {
			t.Error(err)
		}
		return &nats.Msg{Data: body}
	})
	lapse(t, e, "", "status").ok(t, "degraded", "subscription degraded: no flags", "12, next 2030-01-02T03:07:05.678Z (in 3m)", "p99 2.25 ms", "(1h ago)", "into TIMERS")
	lapse(t, e, "", "status", "--json").ok(t, `"pending":12`)
	s.Dead, s.Counts.Dead = 3, 2
	lapse(t, e, "", "status").ok(t, "dead       3: ", "lapse retry", "2 given up on")
	s.Health.Status = "down"
	if r := lapse(t, e, "", "status"); r.code != ExitFailure || r.err != "" || !strings.Contains(r.out, "down") {
		t.Errorf("down: %+v", r)
	}
}
