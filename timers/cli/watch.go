package cli

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"strings"
	"time"
	"unicode"

	"github.com/nats-io/nats.go"
	"github.com/spf13/cobra"

	"github.com/lapse-timers/lapse/timers/client"
	"github.com/lapse-timers/lapse/timers/wire"
)

func (a *app) watchCmd() *cobra.Command {
	var count int
	var queue string
	cmd := &cobra.Command{
		Use:   "watch [topic]",
		Short: "Print fired timers as they come, until Ctrl-C",
		Long: `Print fired timers as they come, until Ctrl-C: of a topic, of all topics below
one ('orders.>'), or all. The lag is the time from due to received; it compares
Redis's clock with this machine's.`,
		Example: `  lapse watch
  lapse watch 'orders.>' --count 1 --json
  lapse watch orders.close --queue billing`,
		Args: between(0, 1, "lapse watch 'orders.>'"),
	}
	conn := a.connectionFlags(cmd)
	conn.completes(cmd, false)
	cmd.Flags().IntVar(&count, "count", 0, "stop after this `number` of events; 0 goes on")
	cmd.Flags().StringVar(&queue, "queue", "", "share the events with all watchers of this queue `group`")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if count < 0 {
			return usage("--count %d: want 0 or more", count)
		}
		if strings.ContainsFunc(queue, unicode.IsSpace) {
			return usage("--queue %q: it contains white space; want a name such as billing", queue)
		}
		topic := ""
		if len(args) == 1 {
			topic = args[0]
		}
		return conn.watch(cmd, topic, queue, count)
	}
	return cmd
}

func (c *connection) watch(cmd *cobra.Command, topic, queue string, count int) error {
	ctx, cancel := context.WithCancel(cmd.Context())
	defer cancel() // lets the subscription's goroutine go

	notices := make(chan string, 16)
	note := func(format string, args ...any) {
		select {
		case notices <- fmt.Sprintf(format, args...):
		default: // the terminal is slower than the trouble: one notice less
		}
	}
	lapse, err := c.open(ctx, reconnecting(note)...)
	if err != nil {
		return err
	}
	defer lapse.nc.Close()

	events := make(chan client.Fired)
	receiver, err := lapse.Handle(ctx, topic, func(_ context.Context, f client.Fired) {
		select {
		case events <- f:
		case <-ctx.Done():
		}
	}, client.Queue(queue), client.OnError(func(err error) { note("%v", err) }))
	if err != nil {
		return fmt.Errorf("%w (%s)", err, lapse.where)
	}
	cmd.PrintErrf("watching %s on %s; Ctrl-C ends\n", wire.Prefix(c.chosenPrefix()).Fired(cmp.Or(topic, ">")), lapse.where)
	for n := 0; count == 0 || n < count; {
		select {
		case f := <-events:
			n++
			if err := printFired(cmd.OutOrStdout(), f, c.json); err != nil {
				return err
			}
		case text := <-notices:
			cmd.PrintErrln("lapse:", text)
		case <-ctx.Done():
			return nil
		case <-receiver.Done():
			if ctx.Err() != nil {
				return nil
			}
			// NATS closed the connection for good: nothing would ever be printed again.
			if last := lapse.nc.LastError(); last != nil {
				return fmt.Errorf("%w (%s): %w", receiver.Wait(), lapse.where, last)
			}
			return fmt.Errorf("%w (%s)", receiver.Wait(), lapse.where)
		}
	}
	return nil
}

// reconnecting keeps a connection alive for ever, and says what is missed.
func reconnecting(note func(string, ...any)) []nats.Option {
	return []nats.Option{
		func(o *nats.Options) error { o.AllowReconnect = true; return nil },
		nats.MaxReconnects(-1), nats.ReconnectWait(500 * time.Millisecond),
		nats.DisconnectErrHandler(func(_ *nats.Conn, err error) {
			if err != nil { // nil: closed by ourselves
				note("the connection to NATS is lost; what fires until it is back is not seen here")
			}
		}),
		nats.ReconnectHandler(func(*nats.Conn) { note("connected again") }),
		nats.ErrorHandler(func(_ *nats.Conn, _ *nats.Subscription, err error) { note("%v", err) }),
	}
}

// firedJSON is what watch --json prints.
type firedJSON struct {
	Topic    string      `json:"topic"`
	ID       string      `json:"id"`
	Rev      int64       `json:"rev"`
	Due      string      `json:"due"`
	Fired    string      `json:"fired"`
	Received string      `json:"received"`
	Lag      float64     `json:"lag_ms"`
	Attempt  int         `json:"attempt"`
	Source   string      `json:"source"`
	MsgID    string      `json:"msg_id"`
	Headers  nats.Header `json:"headers,omitempty"`
	payloadJSON
}

func firedToJSON(f client.Fired) firedJSON {
	return firedJSON{
		Topic: f.Topic, ID: f.ID, Rev: f.Rev, Due: wire.FormatTime(f.Due), Fired: wire.FormatTime(f.Fired),
		Received: f.Received.UTC().Format(time.RFC3339Nano), Lag: float64(f.Lag().Microseconds()) / 1000,
		Attempt: f.Attempt, Source: f.Source, MsgID: f.MsgID, Headers: f.Header, payloadJSON: asJSON(f.Payload),
	}
}

func printFired(w io.Writer, f client.Fired, json bool) error {
	if json {
		return printJSON(w, firedToJSON(f))
	}
	again := ""
	if f.Attempt > 1 {
		again = fmt.Sprintf("  attempt %d", f.Attempt)
	}
	_, err := fmt.Fprintf(w, "%s  %s %s  lag %s  %s%s  %s\n",
		f.Received.Format("15:04:05.000"), printable(f.Topic), printable(f.ID), milliseconds(f.Lag()), printable(f.Source), again, preview(f.Payload))
	return err
}
