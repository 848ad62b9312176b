package cli

import (
	"bytes"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/lapse-timers/lapse/timers/client"
)

func TestRelative(t *testing.T) {
	const day = 24 * time.Hour
	for d, want := range map[time.Duration]string{
		0:                                  "now",
		-499 * time.Millisecond:            "now",
		time.Second:                        "in 1s",
		59*time.Second + 999e6:             "in 1m",
		30*time.Minute - 9e6:               "in 30m",
		3 * time.Minute:                    "in 3m",
		3*time.Minute + 20*time.Second:     "in 3m20s",
		-(2*time.Hour + 5*time.Minute):     "2h5m ago",
		26 * time.Hour:                     "in 1d2h",
		2*365*day + 3*day + 4*time.Hour:    "in 2y3d",
		100*365*day + 10*time.Nanosecond:   "in 100y",
		time.Hour + 59*time.Second + 5*1e6: "in 1h",
	} {
		if got := relative(d); got != want {
			t.Errorf("%v: %q, want %q", d, got, want)
		}
	}
}

func TestMilliseconds(t *testing.T) {
	for d, want := range map[time.Duration]string{
		1234 * time.Microsecond: "1.23 ms", -500 * time.Microsecond: "-0.50 ms", 12345 * time.Microsecond: "12.3 ms", 1234567 * time.Microsecond: "1235 ms",
	} {
		if got := milliseconds(d); got != want {
			t.Errorf("%v: %q, want %q", d, got, want)
		}
	}
}

func TestPreview(t *testing.T) {
	for payload, want := range map[string]string{
		"":                         "(empty)",
		"plain ⏰":                  "plain ⏰",
		"two\nlines\t":             `two\nlines\t`,
		"\x1b[2J":                  "0x1b5b324a (4 bytes)",
		"\x00\xff":                 "0x00ff (2 bytes)",
		strings.Repeat("a", 100):   strings.Repeat("a", 72) + "... (100 bytes)",
		strings.Repeat("⏰", 40):    strings.Repeat("⏰", 24) + "... (120 bytes)",
		strings.Repeat("\xff", 99): "0x" + strings.Repeat("ff", 18) + "... (99 bytes)",
	} {
		if got := preview([]byte(payload)); got != want {
			t.Errorf("%q: %q, want %q", payload, got, want)
		}
	}
}

func FuzzPreviewIsOneSafeLine(f *testing.F) {
	f.Add([]byte("\x1b[31m⏰\r\n"))
	f.Add([]byte(strings.Repeat("⏰", 30)))
	f.Fuzz(func(t *testing.T, payload []byte) {
		got := preview(payload)
		if got == "" || len(got) > 200 || strings.ContainsAny(got, "\x1b\r\n\x00") || printable(got) != got {
			t.Errorf("%q is shown as %q", payload, got)
		}
	})
}

func TestDescribe(t *testing.T) {
	due := time.Date(2030, 1, 2, 3, 4, 5, 678e6, time.UTC)
	timer := client.Timer{
		Topic: "t", ID: "a\u202eb", Rev: 7, Due: due, State: client.Firing, Attempts: 2, Fired: due, Schedule: "@in 1h",
		Header: nats.Header{"X": {"2", "\x1b[2J"}, "A": {""}}, Payload: []byte("line 1\nline 2\n"),
	}
	var b bytes.Buffer
	describe(&b, timer, due.Add(-time.Minute))
	want := `t "a\u202eb"
  due       2030-01-02T03:04:05.678Z (in 1m)
  state     firing, attempts 2, the last at 2030-01-02T03:04:05.678Z
  rev       7
  schedule  @in 1h
  header    A:
  header    X: "\x1b[2J"
  header    X: 2
  payload   14 bytes

line 1
line 2
`
	if b.String() != want {
		t.Errorf("got:\n%s\nwant:\n%s", b.String(), want)
	}
	b.Reset()
	timer.Payload = []byte("\x00")
	describe(&b, timer, due)
	if !strings.Contains(b.String(), "\n0x00 (1 bytes)\n(not text: --raw") {
		t.Errorf("binary:\n%s", b.String())
	}
}

func TestColumnsGrowOverPages(t *testing.T) {
	var b bytes.Buffer
	var c columns
	c.print(&b, [][]string{{"A", "B"}, {"⏰⏰", "x"}})
	c.print(&b, [][]string{{"a", "y"}, {"longer", "z"}})
	if want := "A   B\n⏰⏰  x\na       y\nlonger  z\n"; b.String() != want {
		t.Errorf("got:\n%s\nwant:\n%s", b.String(), want)
	}
}
