package timers

import (
	"fmt"
	"strconv"
	"strings"
	"time"
)

// When is a parsed one-shot schedule: a delay, or a time.
type When struct {
	In time.Duration // from now on Redis's clock; negative: use At
	At int64         // Unix milliseconds, rounded up
}

// ParseSchedule reads the one-shot part of the schedule grammar
// (docs/protocol.md, "Schedules"): "@at <RFC 3339>" and "@in <Go duration>".
// Fractions of a millisecond round up, so that nothing fires early. Errors are
// [*Invalid]. A time beyond [MaxDelay] is refused where Redis's clock is
// known, in [Store.Set].
func ParseSchedule(s string) (When, error) {
	bad := func(format string, args ...any) (When, error) {
		return When{}, &Invalid{What: "schedule", Value: s, Rule: fmt.Sprintf(format, args...)}
	}
	verb, rest, _ := strings.Cut(s, " ")
	rest = strings.TrimLeft(rest, " ")
	switch verb {
	case "@in":
		d, err := time.ParseDuration(rest)
		switch {
		case err != nil:
			return bad("want @in <duration> with units, such as @in 1h30m or @in 250ms, within 100 years")
		case d < 0:
			return bad("the delay is negative; want @in 0s or later")
		case d > MaxDelay:
			return bad("out of range: at most 100 years (%s)", MaxDelay)
		}
		return When{In: d}, nil
	case "@at":
		ms, err := parseTime(rest)
		if err != nil {
			return bad("want @at <RFC 3339 time>, such as @at 2027-01-31T09:00:00Z or @at 2027-01-31T09:00:00.5+05:30 (%v)", err)
		}
		return When{In: -1, At: ms}, nil
	case "@every", "@yearly", "@annually", "@monthly", "@weekly", "@daily", "@midnight", "@hourly":
		return bad("recurring schedules are not in this version; want @at <RFC 3339 time> or @in <duration>")
	case "":
		return bad("it is empty; want @at <RFC 3339 time> or @in <duration>")
	}
	if len(strings.Fields(s)) == 6 && verb[0] != '@' {
		return bad("recurring schedules (cron) are not in this version; want @at <RFC 3339 time> or @in <duration>")
	}
	return bad("want @at <RFC 3339 time> or @in <duration>")
}

// atDue is the schedule of a timer that was asked for by its due time, in the
// form that the clients write. It need not be stored.
func atDue(due time.Time) string { return "@at " + due.UTC().Format("2006-01-02T15:04:05.000Z07:00") }

// parseTime reads an RFC 3339 time of any fraction and offset as Unix
// milliseconds, rounded up. [time.Parse] is laxer than the RFC in places and
// rounds down, so the shape and the fraction are read here.
func parseTime(s string) (int64, error) {
	// 2027-01-31T09:00:00[.fraction](Z|±hh:mm)
	const head = len("2006-01-02T15:04:05")
	if len(s) <= head {
		return 0, fmt.Errorf("it is too short for a date, a time and an offset")
	}
	if !shaped(s[:head], "dddd-dd-ddTdd:dd:dd") {
		return 0, fmt.Errorf("no date and time such as 2027-01-31T09:00:00")
	}
	fraction, zone := "", s[head:]
	if zone[0] == '.' {
		end := 1
		for end < len(zone) && zone[end] >= '0' && zone[end] <= '9' {
			end++
		}
		fraction, zone = zone[1:end], zone[end:]
		if fraction == "" {
			return 0, fmt.Errorf("no digits after the point")
		}
	}
	if zone != "Z" && zone != "z" {
		if !shaped(zone, "+dd:dd") && !shaped(zone, "-dd:dd") {
			return 0, fmt.Errorf("no offset: want Z, or one such as +05:30")
		}
		if zone[1:3] > "23" || zone[4:6] > "59" { // time.Parse takes 24 and 60
			return 0, fmt.Errorf("no such offset: at most 23:59")
		}
	}
	t, err := time.Parse("2006-01-02T15:04:05Z07:00", strings.ToUpper(s[:head]+zone))
	if err != nil {
		return 0, fmt.Errorf("no such date, time or offset")
	}
	ms := t.Unix() * 1000
	if fraction != "" {
		thousandths, err := strconv.Atoi((fraction + "00")[:3])
		if err != nil {
			return 0, err
		}
		ms += int64(thousandths)
		if len(fraction) > 3 && strings.Trim(fraction[3:], "0") != "" {
			ms++
		}
	}
	return ms, nil
}

// shaped compares s with a pattern in which d stands for a digit; T may be t.
func shaped(s, pattern string) bool {
	if len(s) != len(pattern) {
		return false
	}
	for i := range len(s) {
		c, want := s[i], pattern[i]
		digit := want == 'd' && c >= '0' && c <= '9'
		if !digit && c != want && !(want == 'T' && c == 't') {
			return false
		}
	}
	return true
}
