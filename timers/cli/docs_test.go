package cli

import (
	"context"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/spf13/cobra"

	"github.com/lapse-timers/lapse/timers/wire"
)

// typed is a command line of lapse in a document: at the start of a line of code,
// also behind settings or a pipe, or in `code`.
var typed = regexp.MustCompile("(?m)(?:^ {4,}(?:[A-Z_]+=\\S+ |\\S+ \\| )*|`)(?:bin/)?lapse ([a-z][^`\n#|;]*)")

// What the documents tell people to type are commands and flags that there are.
func TestDocumentedCommands(t *testing.T) {
	root := New(Info{
		Serve:  &cobra.Command{Use: "serve", RunE: func(*cobra.Command, []string) error { return nil }},
		Doctor: func(context.Context, bool) (wire.DoctorReport, error) { return wire.DoctorReport{}, nil },
		Getenv: env{}.get,
	})
	root.InitDefaultHelpFlag()
	root.InitDefaultCompletionCmd()
	files := []string{"../../README.md"}
	for _, pattern := range []string{"../../docs/*.md", "../../docs/*/*.md"} {
		found, err := filepath.Glob(pattern)
		if err != nil {
			t.Fatal(err)
		}
		files = append(files, found...)
	}
	seen := 0
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range typed.FindAllStringSubmatch(string(text), -1) {
			words := strings.Fields(m[1])
			cmd, _, err := root.Find(words[:1])
			if err != nil || cmd == root {
				t.Errorf("%s: lapse %s: there is no such command", file, m[1])
				continue
			}
			seen++
			for _, word := range words[1:] {
				name, _, _ := strings.Cut(strings.TrimPrefix(word, "--"), "=")
				if strings.HasPrefix(word, "--") && cmd.Flags().Lookup(name) == nil {
					t.Errorf("%s: lapse %s: there is no flag --%s", file, m[1], name)
				}
			}
		}
	}
	if seen < 30 {
		t.Errorf("only %d command lines were found", seen)
	}
}
