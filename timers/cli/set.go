package cli

import (
	"errors"
	"fmt"
	"io"
	"os"
	"regexp"
	"strings"
	"time"

	"github.com/nats-io/nuid"
	"github.com/spf13/cobra"

	"github.com/lapse-timers/lapse/timers/client"
	"github.com/lapse-timers/lapse/timers/wire"
)

// maxInput bounds what is read as a payload: no NATS server carries more.
const maxInput = 64 << 20

// tooLong is a duration as Go writes it, which it can still refuse as too long.
var tooLong = regexp.MustCompile(`^([0-9]+(\.[0-9]*)?(ns|us|µs|ms|s|m|h))+$`)

// setFlags are the flags of set, as typed.
type setFlags struct {
	id       string
	in       string
	at       string
	schedule string
	data     string
	file     string
	headers  []string
}

func (a *app) setCmd() *cobra.Command {
	var f setFlags
	cmd := &cobra.Command{
		Use:   "set <topic> (--in 30m | --at TIME | --schedule TEXT)",
		Short: "Set a timer, or replace the one of the same id",
		Example: `  lapse set orders.close --id order-42 --in 30m --data '{"order":42}'
  lapse set invoices.remind --at 2030-01-02T09:00:00+01:00 --file invoice.pdf -H 'Content-Type: application/pdf'
  date | lapse set demo --in 5s --data -`,
		Args: between(1, 1, "lapse set orders.close --in 30m"),
	}
	conn := a.connectionFlags(cmd)
	conn.completes(cmd, false)
	fl := cmd.Flags()
	fl.StringVar(&f.id, "id", "", "`id` of the timer, unique in its topic; left out, Lapse makes one")
	fl.StringVar(&f.in, "in", "", "fire after this `duration`, such as 250ms, 30m or 1h30m")
	fl.StringVar(&f.at, "at", "", "fire at this RFC 3339 `time`, such as 2030-01-02T09:00:00Z; one in the past means now")
	fl.StringVar(&f.schedule, "schedule", "", "the raw Timer-Schedule `text`, such as '@in 30m'")
	fl.StringVar(&f.data, "data", "", "the `payload`; - reads standard input")
	fl.StringVar(&f.file, "file", "", "read the payload from this `file`; - reads standard input")
	fl.StringArrayVarP(&f.headers, "header", "H", nil, "`'Name: value'` that the fired event carries; repeatable")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if n := given(cmd, "in", "at", "schedule"); len(n) != 1 {
			return usage("when to fire: got %s; want one of --in 30m, --at 2030-01-02T09:00:00Z and --schedule TEXT", listed(n))
		}
		if n := given(cmd, "data", "file"); len(n) > 1 {
			return usage("the payload: got %s; want one of them", listed(n))
		}
		when, err := f.when(cmd.Flags().Changed)
		if err != nil {
			return err
		}
		opts, err := parseHeaders(f.headers)
		if err != nil {
			return err
		}
		if !cmd.Flags().Changed("id") {
			// Made here, so that a set whose outcome is unknown can be repeated.
			f.id = nuid.Next()
		}
		opts = append(opts, client.ID(f.id))
		payload, err := f.payload(cmd.InOrStdin())
		if err != nil {
			return err
		}
		lapse, err := conn.open(cmd.Context())
		if err != nil {
			return err
		}
		defer lapse.nc.Close()
		r, err := lapse.Set(cmd.Context(), args[0], payload, when, opts...)
		if errors.Is(err, client.ErrUnconfirmed) {
			return fmt.Errorf("%w; its id is %s", err, printable(f.id))
		}
		if err != nil {
			return err
		}
		return printResult(cmd.OutOrStdout(), r, conn.json, time.Now())
	}
	return cmd
}

// given are those of the flags that were typed.
func given(cmd *cobra.Command, names ...string) []string {
	var out []string
	for _, name := range names {
		if cmd.Flags().Changed(name) {
			out = append(out, "--"+name)
		}
	}
	return out
}

func listed(flags []string) string {
	if len(flags) == 0 {
		return "nothing"
	}
	return strings.Join(flags, " and ")
}

func (f *setFlags) when(given func(string) bool) (client.When, error) {
	switch {
	case given("in"):
		d, err := time.ParseDuration(f.in)
		if err != nil && tooLong.MatchString(f.in) {
			return client.When{}, usage("--in %q: it is longer than a duration can be, 292 years; want less, or --at with the time", f.in)
		}
		if err != nil {
			return client.When{}, usage("--in %q: want a duration with its unit, such as 250ms, 30m or 1h30m", f.in)
		}
		if d < 0 {
			return client.When{}, usage("--in %q: it is negative; want 0s or more", f.in)
		}
		return client.In(d), nil
	case given("at"):
		t, err := time.Parse(time.RFC3339Nano, f.at)
		if err != nil {
			return client.When{}, usage("--at %q: want an RFC 3339 time with its offset, such as 2030-01-02T09:00:00Z or 2030-01-02T09:00:00+01:00", f.at)
		}
		return client.At(t), nil
	}
	return client.Schedule(f.schedule), nil
}

func (f *setFlags) payload(stdin io.Reader) ([]byte, error) {
	in := stdin
	switch {
	case f.data == "-" || f.file == "-":
	case f.file != "":
		file, err := os.Open(f.file)
		if err != nil {
			return nil, fmt.Errorf("--file: %w", err)
		}
		defer file.Close() // it was only read
		in = file
	default:
		return []byte(f.data), nil
	}
	data, err := io.ReadAll(io.LimitReader(in, maxInput+1))
	if err != nil {
		return nil, fmt.Errorf("read the payload: %w", err)
	}
	if len(data) > maxInput {
		return nil, fmt.Errorf("the payload is over %d bytes, which no NATS server carries", maxInput)
	}
	return data, nil
}

func parseHeaders(lines []string) ([]client.SetOption, error) {
	var opts []client.SetOption
	for _, line := range lines {
		name, value, ok := strings.Cut(line, ":")
		name = strings.TrimSpace(name)
		if !ok || name == "" {
			return nil, usage("--header %q: want 'Name: value'", line)
		}
		opts = append(opts, client.Header(name, strings.TrimSpace(value)))
	}
	return opts, nil
}

func printResult(w io.Writer, r client.Result, json bool, now time.Time) error {
	due := wire.FormatTime(r.Due)
	if json {
		return printJSON(w, wire.SetReply{Topic: r.Topic, ID: r.ID, Due: due, Rev: r.Rev, Replaced: r.Replaced, Was: string(r.Was)})
	}
	fmt.Fprintf(w, "%s %s is due %s (%s), rev %d\n", r.Topic, printable(r.ID), due, relative(r.Due.Sub(now)), r.Rev)
	switch {
	case r.Replaced && r.Was == client.Firing:
		fmt.Fprintln(w, "replaced a timer that was being delivered at that moment: its payload may still arrive")
	case r.Replaced:
		fmt.Fprintf(w, "replaced a timer that was %s\n", r.Was)
	}
	return nil
}
