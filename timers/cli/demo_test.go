package cli

import (
	"bytes"
	"context"
	"fmt"
	"net/http"
	"os"
	"os/signal"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/lapse-timers/lapse/timers/client"
)

// TestMain lets the test binary play the lapse program for startChild.
func TestMain(m *testing.M) {
	switch os.Getenv("CLI_TEST_SERVE") {
	case "":
		os.Exit(m.Run())
	case "broken":
		fmt.Fprintln(os.Stderr, "redis-server is missing")
		os.Exit(1)
	}
	stop, cancel := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer cancel()
	fmt.Println("args", os.Args[1:], "urls", os.Getenv("LAPSE_REDIS_URL")+os.Getenv("NATS_URL"))
	srv := &http.Server{Addr: os.Getenv("LAPSE_HTTP_LISTEN"), Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != "/readyz" {
			w.WriteHeader(http.StatusNotFound)
		}
	})}
	go func() {
		<-stop.Done()
		_ = srv.Close() // ends ListenAndServe, which is all that is wanted
	}()
	_ = srv.ListenAndServe()
	if os.Getenv("CLI_TEST_SERVE") == "unclean" {
		os.Exit(7)
	}
	os.Exit(0)
}

func childOf(t *testing.T, mode string, errs *bytes.Buffer) (*child, error) {
	t.Helper()
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	e := append(os.Environ(), "CLI_TEST_SERVE="+mode, "LAPSE_REDIS_URL=redis://production", "NATS_URL=nats://production")
	return startChild(t.Context(), exe, t.TempDir(), e, errs)
}

func TestChild(t *testing.T) {
	var errs bytes.Buffer
	c, err := childOf(t, "good", &errs)
	if err != nil {
		t.Fatalf("%v\n%s", err, errs.String())
	}
	if err := c.stop(); err != nil {
		t.Error(err)
	}
	if tail := c.tail(); !strings.Contains(tail, "args [serve]") || strings.Contains(tail, "production") {
		t.Errorf("the child was led elsewhere: %s", tail)
	}

	c, err = childOf(t, "unclean", &errs)
	if err != nil {
		t.Fatal(err)
	}
	if err := c.stop(); err == nil || !strings.Contains(err.Error(), "exit status 7") {
		t.Errorf("an unclean end: %v", err)
	}

	errs.Reset()
	_, err = childOf(t, "broken", &errs)
	if err == nil || !strings.Contains(err.Error(), "exit status 1") || !strings.Contains(errs.String(), "redis-server is missing") {
		t.Errorf("a child that does not start: %v; %s", err, errs.String())
	}
}

func TestInterruptedWhileStarting(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	var errs bytes.Buffer
	if _, err := startChild(ctx, exe, t.TempDir(), append(os.Environ(), "CLI_TEST_SERVE=good"), &errs); err == nil {
		t.Error("it started under a context that had ended")
	}
}

// TestJudge bends the outcome of a good demo in every way that must be noticed.
func TestJudge(t *testing.T) {
	due := time.Date(2030, 1, 2, 3, 4, 5, 0, time.UTC)
	plan := map[life]planned{
		{"t", "a", 1}: {payload: "old", due: due, what: "the replaced payload"},
		{"t", "a", 2}: {payload: "new", due: due, fires: true},
		{"t", "b", 3}: {payload: "\x00\xff", header: []string{"red", "green"}, due: due, fires: true},
	}
	event := func(id string, rev int64, payload string, colours ...string) client.Fired {
		return client.Fired{Topic: "t", ID: id, Rev: rev, Payload: []byte(payload), Due: due, Fired: due, Header: nats.Header{demoHeader: colours}}
	}
	good := []client.Fired{event("a", 2, "new"), event("b", 3, "\x00\xff", "red", "green")}
	for name, tt := range map[string]struct {
		bend func(events []client.Fired) []client.Fired
		says string // "" for nothing wrong
	}{
		"good":      {func(e []client.Fired) []client.Fired { return e }, ""},
		"missing":   {func(e []client.Fired) []client.Fired { return e[:1] }, "t b 0 times"},
		"twice":     {func(e []client.Fired) []client.Fired { return append(e, e[0]) }, "t a 2 times"},
		"old":       {func(e []client.Fired) []client.Fired { return append(e, event("a", 1, "old")) }, "the replaced payload"},
		"unknown":   {func(e []client.Fired) []client.Fired { return append(e, event("c", 9, "")) }, "nothing else"},
		"payload":   {func(e []client.Fired) []client.Fired { e[1].Payload = []byte("\x00"); return e }, "byte for byte"},
		"header":    {func(e []client.Fired) []client.Fired { e[1].Header = nats.Header{demoHeader: {"red"}}; return e }, "byte for byte"},
		"early":     {func(e []client.Fired) []client.Fired { e[0].Fired = due.Add(-1); return e }, "none before it was due"},
		"other due": {func(e []client.Fired) []client.Fired { e[0].Due = due.Add(1); return e }, "none before it was due"},
	} {
		var b bytes.Buffer
		s := &script{out: &b, plan: plan}
		s.judge(tt.bend(slices.Clone(good)), "live")
		if (s.failed > 0) != (tt.says != "") {
			t.Errorf("%s: %d checks failed\n%s", name, s.failed, b.String())
		}
		failed := ""
		for line := range strings.Lines(b.String()) {
			if strings.HasPrefix(line, "FAILED") {
				failed += line
			}
		}
		if !strings.Contains(failed, tt.says) {
			t.Errorf("%s: %q is not among what failed:\n%s", name, tt.says, failed)
		}
	}
}
