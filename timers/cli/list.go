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

		// Page by page, so that a million timers need the room of a page.
		var table columns
		out, left, cursor, seen := cmd.OutOrStdout(), limit, "", 0
		for {
			page, err := lapse.ListPage(cmd.Context(), topic, pageSize(left), cursor)
			if err != nil {
				return err
			}
			timers := page.Timers
			if limit > 0 && len(timers) > left {
				timers = timers[:left]
			}
			left -= len(timers)
			if conn.json {
				for _, t := range timers {
					if err := printJSON(out, itemToJSON(t)); err != nil {
						return err
					}
				}
			} else if len(timers) > 0 {
				table.print(out, itemRows(timers, seen == 0, time.Now()))
			}
			seen += len(timers)
			if page.Cursor == "" || (limit > 0 && left == 0) {
				break
			}
			cursor = page.Cursor
		}
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

// pageSize asks for no more than is wanted; left is 0 or less when all are.
func pageSize(left int) int {
	if left > 0 && left < client.MaxPage {
		return left
	}
	return client.MaxPage
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
