package cli

import (
	"encoding/base64"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/nats-io/nats.go"
)

// printJSON prints v on one line. Text stays as it is: the output is read by
// programs, not put into a web page.
func printJSON(w io.Writer, v any) error {
	enc := json.NewEncoder(w)
	enc.SetEscapeHTML(false)
	return enc.Encode(v)
}

// payloadJSON holds a payload in JSON: as text where it is valid UTF-8, else
// as base64.
type payloadJSON struct {
	Payload *string `json:"payload,omitempty"`
	Base64  string  `json:"payload_base64,omitempty"`
}

func asJSON(payload []byte) payloadJSON {
	if !utf8.Valid(payload) {
		return payloadJSON{Base64: base64.StdEncoding.EncodeToString(payload)}
	}
	s := string(payload)
	return payloadJSON{Payload: &s}
}

// printable makes s safe to show on a terminal: what could move the cursor or
// hide text is quoted.
func printable(s string) string {
	if s == "" || strings.ContainsFunc(s, func(r rune) bool { return !unicode.IsPrint(r) }) || !utf8.ValidString(s) {
		return strconv.QuoteToASCII(s)
	}
	return s
}

// preview shows a payload within a line.
func preview(payload []byte) string {
	const most = 72 // bytes, of text; of others half as many
	if len(payload) == 0 {
		return "(empty)"
	}
	text := string(payload)
	if utf8.ValidString(text) && !strings.ContainsFunc(text, func(r rune) bool { return !unicode.IsPrint(r) && r != '\n' && r != '\t' }) {
		cut := text
		if len(cut) > most {
			end := most
			for !utf8.RuneStart(cut[end]) {
				end--
			}
			cut = cut[:end]
		}
		shown := strings.NewReplacer("\n", `\n`, "\t", `\t`).Replace(cut)
		if len(cut) < len(text) {
			shown += fmt.Sprintf("... (%d bytes)", len(text))
		}
		return shown
	}
	if len(payload) > most/4 {
		return fmt.Sprintf("0x%x... (%d bytes)", payload[:most/4], len(payload))
	}
	return fmt.Sprintf("0x%x (%d bytes)", payload, len(payload))
}

// relative says how far off a time is: "in 3m20s", "now", "2h ago". Two units
// at most: more would be read as precision.
func relative(d time.Duration) string {
	d = d.Round(time.Second) // a timer just set in 30m is not due in 29m59s
	switch {
	case d == 0:
		return "now"
	case d < 0:
		return coarse(-d) + " ago"
	}
	return "in " + coarse(d)
}

func coarse(d time.Duration) string {
	for _, unit := range []struct {
		size        time.Duration
		name, below string
		part        time.Duration
	}{
		{365 * 24 * time.Hour, "y", "d", 24 * time.Hour},
		{24 * time.Hour, "d", "h", time.Hour},
		{time.Hour, "h", "m", time.Minute},
		{time.Minute, "m", "s", time.Second},
	} {
		if d >= unit.size {
			text := fmt.Sprintf("%d%s", d/unit.size, unit.name)
			if rest := d % unit.size / unit.part; rest > 0 {
				text += fmt.Sprintf("%d%s", rest, unit.below)
			}
			return text
		}
	}
	return fmt.Sprintf("%ds", d/time.Second)
}

// milliseconds shows a lag with three digits that matter.
func milliseconds(d time.Duration) string {
	ms := float64(d) / float64(time.Millisecond)
	switch {
	case ms >= 100 || ms <= -100:
		return fmt.Sprintf("%.0f ms", ms)
	case ms >= 10 || ms <= -10:
		return fmt.Sprintf("%.1f ms", ms)
	}
	return fmt.Sprintf("%.2f ms", ms)
}

// headerLines are the headers, one line a value, in the order of the names.
func headerLines(h nats.Header) []string {
	var lines []string
	for name, values := range h {
		for _, v := range values {
			if v == "" {
				lines = append(lines, printable(name)+":")
				continue
			}
			lines = append(lines, printable(name)+": "+printable(v))
		}
	}
	slices.Sort(lines)
	return lines
}

// columns pads cells to the widest seen so far, since a listing is printed
// page by page and its later pages are not known yet.
type columns struct{ widths []int }

func (c *columns) print(w io.Writer, rows [][]string) {
	for _, row := range rows {
		for i, cell := range row {
			if i == len(c.widths) {
				c.widths = append(c.widths, 0)
			}
			c.widths[i] = max(c.widths[i], utf8.RuneCountInString(cell))
		}
	}
	for _, row := range rows {
		var b strings.Builder
		for i, cell := range row {
			b.WriteString(cell)
			if i < len(row)-1 {
				b.WriteString(strings.Repeat(" ", c.widths[i]-utf8.RuneCountInString(cell)+2))
			}
		}
		fmt.Fprintln(w, b.String())
	}
}

// isTerminal says whether w is a terminal (or another device of characters,
// for which nobody minds the difference).
func isTerminal(w io.Writer) bool {
	f, ok := w.(*os.File)
	if !ok {
		return false
	}
	info, err := f.Stat()
	return err == nil && info.Mode()&os.ModeCharDevice != 0
}

// oneLine is the error as one line.
func oneLine(err error) string {
	return strings.Join(strings.FieldsFunc(err.Error(), func(r rune) bool { return r == '\n' || r == '\r' }), "; ")
}

// counted is a number of things: "1 warning", "2 warnings".
func counted(n int, thing string) string {
	if n != 1 {
		thing += "s"
	}
	return fmt.Sprintf("%d %s", n, thing)
}
