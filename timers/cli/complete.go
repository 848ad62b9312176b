package cli

import (
	"context"
	"slices"
	"time"

	"github.com/spf13/cobra"

	"github.com/lapse-timers/lapse/timers/client"
)

// completeIn bounds what a press of the tab key waits for: one page of a
// listing, which holds the soonest timers.
const completeIn = time.Second

// completes makes the shell complete the topic of cmd, and with ids the id that
// follows it, from the timers that are due next. Without a service it
// completes nothing, and says nothing either.
func (c *connection) completes(cmd *cobra.Command, ids bool) {
	cmd.ValidArgsFunction = func(cmd *cobra.Command, args []string, _ string) ([]cobra.Completion, cobra.ShellCompDirective) {
		if len(args) > 1 || len(args) == 1 && !ids {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		ctx, cancel := context.WithTimeout(cmd.Context(), completeIn)
		defer cancel()
		c.timeout = min(c.timeout, completeIn)
		lapse, err := c.open(ctx)
		if err != nil {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		defer lapse.nc.Close()
		topic := ""
		if len(args) == 1 {
			topic = args[0]
		}
		page, err := lapse.ListPage(ctx, topic, client.MaxPage, "")
		if err != nil {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		var found []cobra.Completion
		for _, t := range page.Timers {
			switch {
			case topic == "":
				found = append(found, t.Topic)
			case t.Topic == topic: // not one below it
				found = append(found, t.ID)
			}
		}
		slices.Sort(found)
		return slices.Compact(found), cobra.ShellCompDirectiveNoFileComp
	}
}
