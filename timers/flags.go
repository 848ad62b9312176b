package timers

import "strings"

// MissingFlags names the letters that a value of notify-keyspace-events lacks
// for expired events to come: E, announcements by event, and x, expired keys. A
// stands for a group of letters that holds x but not E.
func MissingFlags(have string) string {
	missing := ""
	if !strings.Contains(have, "E") {
		missing = "E"
	}
	if !strings.ContainsAny(have, "xA") {
		missing += "x"
	}
	return missing
}

// WantedFlags is the value that adds what is missing and keeps every letter
// that is there, known to this code or not: other applications live by them.
func WantedFlags(have string) string { return have + MissingFlags(have) }
