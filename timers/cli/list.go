package cli

import (
	"context"
	"fmt"
	"iter"
	"strconv"
	"time"

	"github.com/spf13/cobra"

	"github.com/lapse-timers/lapse/timers/client"
	"github.com/lapse-timers/lapse/timers/wire"
)

func (a *app) listCmd() *cobra.Command {
	var limit int
	var state string
	cmd := &cobra.Command{
		Use:   "list [topic]",
		Short: "List timers, soonest first: of a topic and all below it, or all",
		Long: `List timers, soonest first: of a topic and all below it, or all. A timer is
scheduled, firing (being delivered), or dead (given up on: lapse retry brings it
back, lapse cancel drops it).`,
		Example: `  lapse list
  lapse list orders --limit 20
  lapse list --state dead
  lapse list --json | jq -r .topic | sort | uniq -c`,
		Args: between(0, 1, "lapse list orders"),
	}
	conn := a.connectionFlags(cmd)
	conn.completes(cmd, false)
	cmd.Flags().IntVar(&limit, "limit", 0, "stop after this `number` of timers; 0 lists all")
	cmd.Flags().StringVar(&state, "state", "", "only the `dead` ones, with the reason, or only the pending ones")
	if err := cmd.RegisterFlagCompletionFunc("state", cobra.FixedCompletions([]cobra.Completion{wire.ListDead, wire.ListPending}, cobra.ShellCompDirectiveNoFileComp)); err != nil {
		panic(err) // there is no such flag
	}
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if limit < 0 {
			return usage("--limit %d: want 0 or more", limit)
		}
		if cmd.Flags().Changed("state") && state != wire.ListDead && state != wire.ListPending {
			return usage("--state %q: want dead or pending, or leave it out for both", state)
		}
		topic := ""
		if len(args) == 1 {
			topic = args[0]
		}
		lapse, err := conn.open(cmd.Context())
		if err != nil {
			return err
		}
		defer lapse.nc.Close()

		// So many rows at a time, so that a million timers need the room of a few.
		var table columns
		var rows []client.ListItem
		out, seen := cmd.OutOrStdout(), 0
		flush := func() {
			if len(rows) > 0 {
				table.print(out, itemRows(rows, seen == len(rows), state == wire.ListDead, time.Now()))
				rows = rows[:0]
			}
		}
		for t, err := range listOf(cmd.Context(), lapse.Client, topic, state) {
			if err != nil {
				flush()
				return err
			}
			seen++
			if conn.json {
				if err := printJSON(out, itemToJSON(t)); err != nil {
					return err
				}
			} else if rows = append(rows, t); len(rows) == client.MaxPage {
				flush()
			}
			if seen == limit {
				break
			}
		}
		flush()
		if seen == 0 && !conn.json {
			below := ""
			if len(args) > 0 {
				below = " in or below " + printable(args[0])
			}
			what := "pending"
			if state == wire.ListDead {
				what = "dead"
			}
			cmd.PrintErrln("no timers are " + what + below)
		}
		return nil
	}
	return cmd
}

// listOf yields the timers of one state, or all.
func listOf(ctx context.Context, lapse *client.Client, topic, state string) iter.Seq2[client.ListItem, error] {
	page := lapse.ListPendingPage
	switch state {
	case "":
		return lapse.List(ctx, topic)
	case wire.ListDead:
		page = lapse.ListDeadPage
	}
	return func(yield func(client.ListItem, error) bool) {
		for cursor := ""; ; {
			p, err := page(ctx, topic, client.MaxPage, cursor)
			if err != nil {
				yield(client.ListItem{}, err)
				return
			}
			for _, t := range p.Timers {
				if !yield(t, nil) {
					return
				}
			}
			if cursor = p.Cursor; cursor == "" {
				return
			}
		}
	}
}

func itemToJSON(t client.ListItem) wire.ListItem {
	return wire.ListItem{Topic: t.Topic, ID: t.ID, Due: wire.FormatTime(t.Due), Rev: t.Rev, State: string(t.State), Attempts: t.Attempts, Reason: t.Reason}
}

func itemRows(timers []client.ListItem, head, reasons bool, now time.Time) [][]string {
	var rows [][]string
	if head {
		rows = append(rows, []string{"DUE", "", "STATE", "TOPIC", "ID", "REV"})
		if reasons {
			rows[0] = append(rows[0], "REASON")
		}
	}
	for _, t := range timers {
		state := string(t.State)
		if t.Attempts > 0 {
			state = fmt.Sprintf("%s (%d tried)", t.State, t.Attempts)
		}
		rows = append(rows, []string{
			wire.FormatTime(t.Due), relative(t.Due.Sub(now)), state, t.Topic, printable(t.ID), strconv.FormatInt(t.Rev, 10),
		})
		if last := len(rows) - 1; reasons {
			rows[last] = append(rows[last], printable(t.Reason))
		}
	}
	return rows
}
