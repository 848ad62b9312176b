package cli

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/cobra/doc"
)

// indented are lines that stand as they are: text for a terminal indents them
// by two, the pages' markdown wants four.
var indented = regexp.MustCompile(`(?m)^  (\S)`)

// bracket is a < in a line that does not stand as it is: markdown takes
// <topic> for HTML there, and leaves it out.
var bracket = regexp.MustCompile(`(?m)^( {0,3}\S.*)$`)

func escape(s string) string {
	return bracket.ReplaceAllStringFunc(s, func(line string) string { return strings.ReplaceAll(line, "<", `\<`) })
}

func (a *app) manCmd() *cobra.Command {
	return &cobra.Command{
		Use:   "man <directory>",
		Short: "Write the manual pages",
		Long: `Write the manual pages, lapse.1 and one for each command, into a directory, which
is made when it is missing. lapse-serve(1) has the settings.`,
		Example: "  lapse man /usr/local/share/man/man1",
		Args:    asUsage(between(1, 1, "lapse man /usr/local/share/man/man1")),
		RunE: func(cmd *cobra.Command, args []string) error {
			dir := args[0]
			if err := os.MkdirAll(dir, 0o755); err != nil {
				return fmt.Errorf("%w; name a directory that can be written to", err)
			}
			root := cmd.Root()
			root.InitDefaultCompletionCmd()
			for _, c := range append(root.Commands(), root) { // each page is titled by its own command
				c.DisableAutoGenTag = true
				c.Use, c.Short = escape(c.Use), escape(c.Short)
				c.Long = escape(indented.ReplaceAllString(c.Long, "    $1"))
			}
			if serve := a.info.Serve; serve != nil && a.info.Settings != nil {
				serve.Long += "\n\nThe settings, with their defaults:\n\n"
				for line := range strings.Lines(strings.TrimRight(a.info.Settings(), "\n")) {
					serve.Long += "    " + line
				}
			}
			if err := doc.GenManTreeFromOpts(root, doc.GenManTreeOptions{
				Path: dir, CommandSeparator: "-",
				Header: &doc.GenManHeader{Section: "1", Source: "Lapse " + a.info.Version, Manual: "Lapse"},
			}); err != nil {
				return err
			}
			pages, err := filepath.Glob(filepath.Join(dir, "lapse*.1"))
			if err != nil {
				return err
			}
			fmt.Fprintf(cmd.OutOrStdout(), "%d pages in %s; try: man -l %s\n", len(pages), dir, filepath.Join(dir, "lapse.1"))
			return nil
		},
	}
}
