package cli

import (
	"fmt"
	"io"
	"maps"
	"slices"

	"github.com/spf13/cobra"

	"github.com/lapse-timers/lapse/timers/client"
	"github.com/lapse-timers/lapse/timers/wire"
)

func (a *app) statusCmd() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "status",
		Short: "Show how the service is; exit code 1 when it is down",
		Example: `  lapse status
  lapse status --json --server nats://nats.example:4222`,
		Args: asUsage(cobra.NoArgs),
	}
	conn := a.connectionFlags(cmd)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		lapse, err := conn.open(cmd.Context())
		if err != nil {
			return err
		}
		defer lapse.nc.Close()
		s, err := lapse.Status(cmd.Context())
		if err != nil {
			return err
		}
		if conn.json {
			if err := printJSON(cmd.OutOrStdout(), s); err != nil {
				return err
			}
		} else {
			summarize(cmd.OutOrStdout(), s)
		}
		if s.Health.Status == wire.HealthDown {
			return errSaid
		}
		return nil
	}
	return cmd
}

// summarize shows a status to a person. Ages and distances are on Redis's
// clock, as everything in the status but Started is.
func summarize(w io.Writer, s client.Status) {
	line := func(name, format string, args ...any) {
		fmt.Fprintf(w, "%-10s %s\n", name, fmt.Sprintf(format, args...))
	}
	line("health", "%s", s.Health.Status)
	for _, name := range slices.Sorted(maps.Keys(s.Health.Parts)) {
		part := s.Health.Parts[name]
		why := ""
		if part.Why != "" {
			why = ": " + printable(part.Why)
		}
		fmt.Fprintf(w, "  %-12s %s%s\n", name, part.Status, why)
	}
	now, nowErr := wire.ParseTime(s.Now)
	next := "none is next"
	if due, err := wire.ParseTime(s.NextDue); err == nil && nowErr == nil {
		next = fmt.Sprintf("next %s (%s)", s.NextDue, relative(due.Sub(now)))
	}
	if s.CountError != "" {
		line("pending", "not known: Redis does not answer")
		line("in flight", "%d", s.InFlight)
	} else {
		line("pending", "%d, %s", s.Pending, next)
		line("overdue", "%d, in flight %d", s.Overdue, s.InFlight)
	}
	if s.Dead > 0 {
		line("dead", "%d: lapse list --state dead shows them, lapse get the reason, lapse retry brings them back", s.Dead)
	}
	if s.Lag.Samples > 0 {
		line("lag", "p50 %.2f ms, p99 %.2f ms, max %.2f ms over the last fires (%d)", s.Lag.P50, s.Lag.P99, s.Lag.Max, s.Lag.Samples)
	} else {
		line("lag", "nothing has fired yet")
	}
	c := s.Counts
	line("fired", "%d (%d by event, %d by sweep), %d duplicates", c.Fired, c.FiredEvent, c.FiredSweep, c.Duplicates)
	line("trouble", "%d refused, %d unknown, %d given up on, %d repaired, %d ignored", c.Refused, c.Unknown, c.Dead, c.Repaired, c.Ignored)
	delivery := s.Delivery
	if s.Stream != "" {
		delivery += " into " + s.Stream
	}
	line("delivery", "%s", delivery)
	up := ""
	if started, err := wire.ParseTime(s.Started); err == nil {
		up = ", started " + s.Started
		if nowErr == nil {
			up += fmt.Sprintf(" (%s)", relative(started.Sub(now)))
		}
	}
	line("instance", "%s, version %s%s", s.Instance, s.Version, up)
	line("deployment", "%s, prefix %s", s.Deployment, s.Prefix)
}
