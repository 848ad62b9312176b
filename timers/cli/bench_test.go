package cli

import (
	"strings"
	"testing"
)

// TestBenchSaysWhatIsMissing runs the command lines that measure nothing.
func TestBenchSaysWhatIsMissing(t *testing.T) {
	for args, want := range map[string]string{
		"":                       "no part was named",
		"lags":                   "want some of lag, rate",
		"recover":                "add --fresh",
		"idle":                   "--redis URL, or add --fresh",
		"lag --instances 3":      "servers of --fresh",
		"lag --docs x":           "--suite",
		"lag --payload -1":       "--payload -1: want 0 or more",
		"lag --topics 0":         "--topics 0: want 1 or more",
		"burst --repeat 0":       "--repeat 0: want 1 or more",
		"lag lag":                "named twice",
		"lag --rate 0.001":       "want 1 to",
		"--suite half":           "want full or quick",
		"--suite full --count 3": "are fixed",
	} {
		root := New(Info{Getenv: func(string) string { return "" }})
		var errs strings.Builder
		root.SetErr(&errs)
		root.SetArgs(append([]string{"bench"}, strings.Fields(args)...))
		if code := Execute(t.Context(), root); code != ExitUsage || !strings.Contains(errs.String(), want) || strings.Count(errs.String(), "\n") != 1 {
			t.Errorf("bench %s: exit code %d, %q; want %d and one line with %q", args, code, errs.String(), ExitUsage, want)
		}
	}
}
