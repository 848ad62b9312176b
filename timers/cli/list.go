package cli

import (
	"fmt"
	"strconv"
	"time"

	"github.com/spf13/cobra"

	"github.com/lapse-timers/lapse/timers/client"
	"github.com/lapse-timers/lapse/timers/wire"
)

func (a *app) listCmd() *cobra.Command {
	var limit int
	cmd := &cobra.Command{
		Use:   "list [topic]",
		Short: "List timers, soonest first: of a topic and all below it, or all",
		Args:  between(0, 1, "lapse list orders"),
	}
	conn := a.connectionFlags(cmd)
	conn.completes(cmd, false)
	cmd.Flags().IntVar(&limit, "limit", 0, "stop after this `number` of timers; 0 lists all")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if limit < 0 {
			return usage("--limit %d: want 0 or more", limit)
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
				table.print(out, itemRows(rows, seen == len(rows), time.Now()))
				rows = rows[:0]
			}
		}
		for t, err := range lapse.List(cmd.Context(), topic) {
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
			cmd.PrintErrln("no timers are pending" + below)
		}
		return nil
	}
	return cmd
}

func itemToJSON(t client.ListItem) wire.ListItem {
	return wire.ListItem{Topic: t.Topic, ID: t.ID, Due: wire.FormatTime(t.Due), Rev: t.Rev, State: string(t.State), Attempts: t.Attempts}
}

func itemRows(timers []client.ListItem, head bool, now time.Time) [][]string {
	var rows [][]string
	if head {
		rows = append(rows, []string{"DUE", "", "STATE", "TOPIC", "ID", "REV"})
	}
	for _, t := range timers {
		state := string(t.State)
		if t.Attempts > 0 {
			state = fmt.Sprintf("%s (%d tried)", t.State, t.Attempts)
		}
		rows = append(rows, []string{
			wire.FormatTime(t.Due), relative(t.Due.Sub(now)), state, t.Topic, printable(t.ID), strconv.FormatInt(t.Rev, 10),
		})
	}
	return rows
}
