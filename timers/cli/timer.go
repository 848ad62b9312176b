package cli

import (
	"errors"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/lapse-timers/lapse/timers/client"
	"github.com/lapse-timers/lapse/timers/wire"
)

// aboutTimer makes cmd a request about one timer: its id is the second argument,
// or --id like in set.
func (a *app) aboutTimer(cmd *cobra.Command, ask func(cmd *cobra.Command, lapse *link, topic, id string) error) *cobra.Command {
	conn := a.connectionFlags(cmd)
	conn.completes(cmd, true)
	flag := cmd.Flags().String("id", "", "the `id`, instead of the second argument")
	example := "lapse " + cmd.Name() + " orders.close order-42"
	if cmd.Example == "" {
		cmd.Example = "  " + example + "\n  lapse " + cmd.Name() + " orders.close --id order-42 --json"
	}
	cmd.Args = between(1, 2, example)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		id := *flag
		switch given := cmd.Flags().Changed("id"); {
		case len(args) == 2 && given:
			return usage("got the id twice, %q and --id %q; want something like: %s", args[1], *flag, example)
		case len(args) == 2:
			id = args[1]
		case !given:
			return usage("the id is missing; want something like: %s", example)
		}
		lapse, err := conn.open(cmd.Context())
		if err != nil {
			return err
		}
		defer lapse.nc.Close()
		err = ask(cmd, lapse, args[0], id)
		if errors.Is(err, client.ErrNotFound) {
			return fmt.Errorf("%w; what is pending: lapse list %s", err, args[0])
		}
		return err
	}
	return cmd
}

func (a *app) cancelCmd() *cobra.Command {
	return a.aboutTimer(&cobra.Command{
		Use:   "cancel <topic> <id>",
		Short: "Cancel a timer that is not being delivered yet",
		Long: `Cancel a timer that is not being delivered yet, or drop a dead one. Exit code 3:
there is none; 4: it is too late, the timer is or may have been delivered.`,
	}, func(cmd *cobra.Command, lapse *link, topic, id string) error {
		rev, err := lapse.Cancel(cmd.Context(), topic, id)
		if err != nil {
			return err
		}
		if lapse.json {
			return printJSON(cmd.OutOrStdout(), wire.CancelReply{Topic: topic, ID: id, Rev: rev})
		}
		_, err = fmt.Fprintf(cmd.OutOrStdout(), "%s %s is cancelled, rev %d\n", topic, printable(id), rev)
		return err
	})
}

func (a *app) retryCmd() *cobra.Command {
	return a.aboutTimer(&cobra.Command{
		Use:   "retry <topic> <id>",
		Short: "Bring a dead timer back: it is due now",
		Long: `Bring a timer back that Lapse gave up on: the same life is due now, and its
attempts are counted anew. lapse list --state dead
shows which are dead, and why.`,
	}, func(cmd *cobra.Command, lapse *link, topic, id string) error {
		r, err := lapse.Retry(cmd.Context(), topic, id)
		if err != nil {
			return err
		}
		if lapse.json {
			return printJSON(cmd.OutOrStdout(), wire.RetryReply{Topic: topic, ID: id, Due: wire.FormatTime(r.Due), Rev: r.Rev})
		}
		_, err = fmt.Fprintf(cmd.OutOrStdout(), "%s %s is tried again now, rev %d\n", topic, printable(id), r.Rev)
		return err
	})
}
