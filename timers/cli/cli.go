// Package cli is the lapse command: the sub-commands that people type, each a
// client of the service like any other. They speak NATS through timers/client
// and know nothing of Redis. main adds serve, and runs the whole with
// [Execute].
package cli

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"runtime"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/lapse-timers/lapse/timers/client"
)

// Exit codes of the command.
const (
	ExitOK       = 0
	ExitFailure  = 1
	ExitUsage    = 2 // the command line is wrong; nothing was done
	ExitNotFound = 3 // there is no such timer
	ExitConflict = 4 // too late: the timer is or may be being delivered; or a retry of one that is not dead
	ExitFindings = 5 // lapse doctor found something that fails
)

// Info is what main knows and the commands need.
type Info struct {
	Version  string         // of this build
	Serve    *cobra.Command // runs the service; nil leaves it out
	Settings func() string  // the table of settings for lapse help; nil leaves it out

	Doctor Examine // looks at the deployment; nil leaves the command out

	RedisConf []byte // the shipped redis.conf, for the servers of bench --fresh

	Getenv     func(name string) string // os.Getenv when nil
	Executable func() (string, error)   // what demo runs with "serve"; os.Executable when nil
}

// Groups of the commands in the help.
const (
	groupTimers  = "timers"
	groupService = "service"
)

// app is what all commands of one root share.
type app struct {
	info Info
}

// New returns the root command with all sub-commands. It reads the
// environment only when a command runs, and uses the input and output set on
// the command, so that tests run it in process.
func New(info Info) *cobra.Command {
	if info.Getenv == nil {
		info.Getenv = os.Getenv
	}
	if info.Executable == nil {
		info.Executable = os.Executable
	}
	a := &app{info: info}
	root := &cobra.Command{
		Use:   "lapse",
		Short: "Timers over NATS, kept in Redis",
		Long: `Lapse is a timer service: set a timer with one NATS request, and its payload is
published on NATS when the time comes.

  lapse serve                                         run the service
  lapse set orders.close --in 30m --data '{"order":42}'
  lapse watch                                         see what fires

Exit codes: 0 done, 1 failure, 2 wrong usage, 3 no such timer, 4 too late,
or a retry of a timer that is not dead, 5 doctor found what fails.`,
		Version:       info.Version,
		SilenceErrors: true, // Execute prints them, on one line
		SilenceUsage:  true,
		RunE:          func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	root.Args = func(cmd *cobra.Command, args []string) error { return unknownCommand(cmd, args) }
	root.SetFlagErrorFunc(func(cmd *cobra.Command, err error) error {
		return usage("%s; see %s --help", flagError(err), cmd.CommandPath())
	})
	root.AddGroup(&cobra.Group{ID: groupTimers, Title: "Timers:"}, &cobra.Group{ID: groupService, Title: "Service:"})
	for _, cmd := range []*cobra.Command{a.setCmd(), a.getCmd(), a.cancelCmd(), a.retryCmd(), a.listCmd(), a.watchCmd()} {
		cmd.GroupID = groupTimers
		root.AddCommand(cmd)
	}
	service := []*cobra.Command{a.statusCmd(), a.demoCmd(), a.benchCmd()}
	if info.Doctor != nil {
		service = append(service, a.doctorCmd())
	}
	if info.Serve != nil {
		if info.Serve.Args == nil {
			info.Serve.Args = cobra.NoArgs
		}
		info.Serve.Args = asUsage(info.Serve.Args)
		service = append(service, info.Serve)
	}
	for _, cmd := range service {
		cmd.GroupID = groupService
		root.AddCommand(cmd)
	}
	root.AddCommand(a.versionCmd(), a.manCmd())
	root.SetHelpCommand(helpCmd(root))
	help := root.HelpFunc()
	root.SetHelpFunc(func(cmd *cobra.Command, args []string) {
		help(cmd, args)
		if cmd == root && info.Settings != nil {
			fmt.Fprintf(cmd.OutOrStdout(), "\nSettings of lapse serve:\n\n%s\n", strings.TrimRight(info.Settings(), "\n"))
		}
	})
	return root
}

// Execute runs the command under ctx, prints an error as one line on the
// command's standard error, and returns the exit code. The caller ends ctx on
// signals.
func Execute(ctx context.Context, root *cobra.Command) int {
	strictCompletion(root)
	err := root.ExecuteContext(ctx)
	if err != nil && !errors.Is(err, errSaid) && !errors.Is(err, errFindings) {
		root.PrintErrf("lapse: %s\n", oneLine(err))
	}
	return exitCode(err)
}

// strictCompletion lets completion refuse a shell that it does not know, for
// which cobra prints its help and succeeds. The scripts go to the output that
// root has now.
func strictCompletion(root *cobra.Command) {
	root.InitDefaultCompletionCmd()
	for _, cmd := range root.Commands() {
		if cmd.Name() == "completion" {
			cmd.Args = between(1, 1, "lapse completion bash")
			cmd.RunE = func(_ *cobra.Command, args []string) error {
				return usage("no completion for the shell %q; want one of bash, fish, powershell and zsh", args[0])
			}
		}
	}
}

// errSaid fails a command that has already said why, and so does errFindings,
// with an exit code of its own.
var (
	errSaid     = errors.New("failed")
	errFindings = errors.New("something was found")
)

func exitCode(err error) int {
	var u *usageError
	switch {
	case err == nil:
		return ExitOK
	case errors.As(err, &u):
		return ExitUsage
	case errors.Is(err, client.ErrNotFound):
		return ExitNotFound
	case errors.Is(err, client.ErrConflict):
		return ExitConflict
	case errors.Is(err, errFindings):
		return ExitFindings
	}
	// A name, a schedule or a header that no Lapse takes is one of the command
	// line: trying again does not help, unlike after a failure.
	var e *client.Error
	if errors.As(err, &e) && e.Code() == http.StatusBadRequest {
		return ExitUsage
	}
	return ExitFailure
}

// flagError is what is wrong with a flag in words of this program: those of
// pflag quote the Go function that could not read a value.
func flagError(err error) string {
	var bad *pflag.InvalidValueError
	if !errors.As(err, &bad) {
		return err.Error()
	}
	want, ok := map[string]string{
		"int": "a whole number", "float64": "a number", "bool": "true or false",
		"duration": "a duration with its unit, such as 250ms, 30m or 1h30m",
	}[bad.GetFlag().Value.Type()]
	if !ok {
		return err.Error()
	}
	return fmt.Sprintf("--%s %q: want %s", bad.GetFlag().Name, bad.GetValue(), want)
}

// usageError is a wrong command line.
type usageError struct{ error }

func usage(format string, args ...any) error { return &usageError{fmt.Errorf(format, args...)} }

// asUsage makes what check refuses a usage error.
func asUsage(check cobra.PositionalArgs) cobra.PositionalArgs {
	return func(cmd *cobra.Command, args []string) error {
		if err := check(cmd, args); err != nil {
			return usage("%w; see %s --help", err, cmd.CommandPath())
		}
		return nil
	}
}

// between refuses fewer or more arguments, with an example of what is right.
func between(least, most int, example string) cobra.PositionalArgs {
	return func(_ *cobra.Command, args []string) error {
		if len(args) < least || len(args) > most {
			got := "got no argument"
			if len(args) > 0 {
				got = fmt.Sprintf("got %q", args)
			}
			return usage("%s; want something like: %s", got, example)
		}
		return nil
	}
}

func unknownCommand(root *cobra.Command, args []string) error {
	if len(args) == 0 {
		return nil
	}
	for distance := 1; distance <= 2; distance++ { // the nearest only: two slips reach half of the short names
		root.SuggestionsMinimumDistance = distance
		if near := root.SuggestionsFor(args[0]); len(near) > 0 {
			return usage("unknown command %q; did you mean %s?", args[0], strings.Join(near, " or "))
		}
	}
	return usage("unknown command %q; lapse help lists them", args[0])
}

func helpCmd(root *cobra.Command) *cobra.Command {
	return &cobra.Command{
		Use:   "help [command]",
		Short: "Show help for a command, or everything and the settings",
		RunE: func(_ *cobra.Command, args []string) error {
			cmd, rest, err := root.Find(args)
			if err != nil || len(rest) > 0 {
				return unknownCommand(root, args)
			}
			cmd.InitDefaultHelpFlag()
			return cmd.Help()
		},
	}
}

func (a *app) versionCmd() *cobra.Command {
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "version",
		Short: "Print the version",
		Args:  asUsage(cobra.NoArgs),
		RunE: func(cmd *cobra.Command, _ []string) error {
			if asJSON {
				return printJSON(cmd.OutOrStdout(), map[string]string{
					"version": a.info.Version, "go": runtime.Version(), "os": runtime.GOOS, "arch": runtime.GOARCH,
				})
			}
			fmt.Fprintf(cmd.OutOrStdout(), "lapse %s (%s, %s/%s)\n", a.info.Version, runtime.Version(), runtime.GOOS, runtime.GOARCH)
			return nil
		},
	}
	cmd.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	return cmd
}
