package cli

import (
	"context"
	"fmt"
	"io"
	"strings"

	"github.com/spf13/cobra"

	"github.com/lapse-timers/lapse/timers/wire"
)

// Examine looks at the deployment that the settings of lapse serve name, and
// with fix does what can safely be done at run time. The error is of settings
// that are wrong.
type Examine func(ctx context.Context, fix bool) (wire.DoctorReport, error)

func (a *app) doctorCmd() *cobra.Command {
	var asJSON, verbose, fix, strict bool
	cmd := &cobra.Command{
		Use:   "doctor",
		Short: "Check Redis, NATS, the data and the event path; say what mends what is wrong",
		Long: `Check a deployment: Redis and its configuration, NATS and its streams, the
records, the path of expired events, the instances. For whatever is wrong it
prints what was found, what is wanted, what the difference costs, and the line
or command that mends it.

It reads the settings of lapse serve (lapse help lists them) and needs no
running instance. It writes nothing that stays; with --fix it sets what can
safely be set at run time, and mends records that do not fit together.

A remedy is one line each: a command, a line of a file after its name
("redis.conf: hz 100"), or a remark behind "#". redis-cli and nats are named
without credentials: most remedies want other rights than Lapse has.

Exit codes: 0 nothing failed (warnings do not count, unless --strict), 5 a
check failed, 1 it could not look: wrong settings, or neither server answers.`,
		Example: `  lapse doctor
  LAPSE_REDIS_URL=redis://redis.example:6379 LAPSE_NATS_URL=nats://nats.example:4222 lapse doctor --json`,
		Args: asUsage(cobra.NoArgs),
	}
	f := cmd.Flags()
	f.BoolVar(&asJSON, "json", false, "print the whole report as JSON, on one line")
	f.BoolVar(&verbose, "verbose", false, "print the checks that found nothing wrong too")
	f.BoolVar(&fix, "fix", false, "set what can safely be set at run time, and look again")
	f.BoolVar(&strict, "strict", false, "exit with 5 on warnings too")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		r, err := a.info.Doctor(cmd.Context(), fix)
		if err != nil {
			return err
		}
		if asJSON {
			if err := printJSON(cmd.OutOrStdout(), r); err != nil {
				return err
			}
		} else {
			explain(cmd.OutOrStdout(), r, verbose)
		}
		switch {
		case r.Blind():
			return errSaid
		case r.Fail > 0, strict && r.Warn > 0:
			return errFindings
		}
		return nil
	}
	return cmd
}

// explain shows a report to a person: a line for each part, and whatever is not
// well in full.
func explain(w io.Writer, r wire.DoctorReport, verbose bool) {
	fixable := 0
	for _, part := range wire.DoctorParts {
		counts := map[string]int{}
		var told []wire.Finding
		for _, f := range r.Findings {
			if f.Part != part {
				continue
			}
			counts[f.Status]++
			if verbose || f.Fixed || f.Status != wire.FindingOK {
				told = append(told, f)
			}
			if f.Fixable && !f.Fixed {
				fixable++
			}
		}
		line := fmt.Sprintf("%-8s %d ok", part, counts[wire.FindingOK])
		for _, status := range []string{wire.FindingWarn, wire.FindingFail, wire.FindingUnknown} {
			if n := counts[status]; n > 0 {
				line += fmt.Sprintf(", %d %s", n, status)
			}
		}
		fmt.Fprintln(w, line)
		for _, f := range told {
			explainOne(w, f)
		}
	}
	switch {
	case r.Blind():
		fmt.Fprintln(w, "neither Redis nor NATS could be looked at")
	case r.Fail == 0 && r.Warn == 0 && r.Unknown == 0:
		fmt.Fprintf(w, "healthy: %d checks, nothing found\n", r.OK)
	default:
		fmt.Fprintf(w, "%d failed, %s, %d not known, %d ok\n", r.Fail, counted(r.Warn, "warning"), r.Unknown, r.OK)
	}
	if fixable > 0 {
		fmt.Fprintf(w, "lapse doctor --fix does %d of it\n", fixable)
	}
}

func explainOne(w io.Writer, f wire.Finding) {
	status := strings.ToUpper(f.Status)
	switch {
	case f.Fixed:
		status = "FIXED"
	case f.Status == wire.FindingOK:
		fmt.Fprintf(w, "  %-7s %s: %s\n", f.Status, f.Check, printable(f.Found))
		return
	}
	fmt.Fprintf(w, "  %-7s %s\n", status, f.Check)
	for _, row := range [][2]string{{"found", f.Found}, {"wanted", f.Wanted}, {"why", f.Why}, {"remedy", f.Remedy}} {
		name := row[0]
		if row[1] == "" {
			continue
		}
		for line := range strings.SplitSeq(row[1], "\n") {
			fmt.Fprintf(w, "          %-7s %s\n", name, printable(line))
			name = ""
		}
	}
}
