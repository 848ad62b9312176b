package cli

import (
	"fmt"
	"io"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/nats-io/nats.go"
	"github.com/spf13/cobra"

	"github.com/lapse-timers/lapse/timers/client"
	"github.com/lapse-timers/lapse/timers/wire"
)

func (a *app) getCmd() *cobra.Command {
	var raw bool
	cmd := &cobra.Command{
		Use:   "get <topic> <id>",
		Short: "Show a timer and its payload",
		Long: `Show a timer and its payload.

On a terminal: a few lines about the timer, its headers, its payload. Into a
file or a pipe, or with --raw: the payload alone, byte for byte.`,
		Example: `  lapse get orders.close order-42
  lapse get orders.close order-42 --json
  lapse get orders.close order-42 --raw > payload`,
		PreRunE: func(cmd *cobra.Command, _ []string) error {
			if n := given(cmd, "raw", "json"); len(n) > 1 {
				return usage("got %s; want one of them", listed(n))
			}
			return nil
		},
	}
	cmd.Flags().BoolVar(&raw, "raw", false, "print the payload alone, byte for byte")
	return a.aboutTimer(cmd, func(cmd *cobra.Command, lapse *link, topic, id string) error {
		t, err := lapse.Get(cmd.Context(), topic, id)
		if err != nil {
			return err
		}
		out := cmd.OutOrStdout()
		switch {
		case lapse.json:
			return printJSON(out, timerToJSON(t))
		case raw || !isTerminal(out):
			_, err := out.Write(t.Payload)
			return err
		}
		describe(out, t, time.Now())
		return nil
	})
}

// timerJSON is what get --json prints.
type timerJSON struct {
	Topic    string      `json:"topic"`
	ID       string      `json:"id"`
	Rev      int64       `json:"rev"`
	Due      string      `json:"due"`
	State    string      `json:"state"`
	Attempts int         `json:"attempts"`
	Fired    string      `json:"fired,omitempty"`
	Reason   string      `json:"reason,omitempty"`
	Schedule string      `json:"schedule"`
	Headers  nats.Header `json:"headers,omitempty"`
	payloadJSON
}

func timerToJSON(t client.Timer) timerJSON {
	out := timerJSON{
		Topic: t.Topic, ID: t.ID, Rev: t.Rev, Due: wire.FormatTime(t.Due), State: string(t.State), Attempts: t.Attempts,
		Reason: t.Reason, Schedule: t.Schedule, Headers: t.Header, payloadJSON: asJSON(t.Payload),
	}
	if !t.Fired.IsZero() {
		out.Fired = wire.FormatTime(t.Fired)
	}
	return out
}

// describe shows a timer to a person.
func describe(w io.Writer, t client.Timer, now time.Time) {
	fmt.Fprintf(w, "%s %s\n", t.Topic, printable(t.ID))
	fmt.Fprintf(w, "  due       %s (%s)\n", wire.FormatTime(t.Due), relative(t.Due.Sub(now)))
	fmt.Fprintf(w, "  state     %s", t.State)
	if t.Attempts > 0 {
		fmt.Fprintf(w, ", attempts %d", t.Attempts)
		if !t.Fired.IsZero() {
			fmt.Fprintf(w, ", the last at %s", wire.FormatTime(t.Fired))
		}
	}
	if t.Reason != "" {
		fmt.Fprintf(w, "\n  reason    %s", printable(t.Reason))
	}
	fmt.Fprintf(w, "\n  rev       %d\n  schedule  %s\n", t.Rev, printable(t.Schedule))
	for _, line := range headerLines(t.Header) {
		fmt.Fprintf(w, "  header    %s\n", line)
	}
	fmt.Fprintf(w, "  payload   %d bytes\n", len(t.Payload))
	if len(t.Payload) == 0 {
		return
	}
	text := string(t.Payload)
	if utf8.ValidString(text) && !strings.ContainsFunc(text, func(r rune) bool { return !unicode.IsPrint(r) && r != '\n' && r != '\t' }) {
		fmt.Fprintf(w, "\n%s\n", strings.TrimSuffix(text, "\n"))
		return
	}
	fmt.Fprintf(w, "\n%s\n(not text: --raw prints it byte for byte)\n", preview(t.Payload))
}
