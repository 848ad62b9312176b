//go:build faults

package fault

import (
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"time"
)

var (
	points = []string{
		"claim", "claimed", "publish", "sent", "published", "ack", "acked", "release", "released",
		"bury", "buried", "announce", "announced", "rescue", "rescued",
		"set", "stored", "cancel", "cancelled", "retry", "retried",
	}
	parts = []string{"reconcile"}
)

// What the environment asks for, read once at the start and by name of a point.
var (
	kills = read("FAULT_KILL", points, func(s string) (*atomic.Int64, error) {
		n, err := strconv.ParseInt(s, 10, 64)
		if err == nil && n < 1 {
			err = fmt.Errorf("%d: want 1 or more", n)
		}
		left := new(atomic.Int64)
		left.Store(n)
		return left, err
	})
	slow = read("FAULT_SLOW", points, time.ParseDuration)
	off  = read("FAULT_OFF", parts, func(string) (bool, error) { return true, nil })
)

// read reads "name:value,name:value".
func read[T any](variable string, known []string, parse func(string) (T, error)) map[string]T {
	out := map[string]T{}
	for item := range strings.SplitSeq(os.Getenv(variable), ",") {
		if item == "" {
			continue
		}
		name, value, _ := strings.Cut(item, ":")
		v, err := parse(value)
		if err == nil && !slices.Contains(known, name) {
			err = fmt.Errorf("there is no %q; want one of %s", name, strings.Join(known, " "))
		}
		if err != nil {
			fmt.Fprintf(os.Stderr, "%s=%q: %v\n", variable, item, err)
			os.Exit(2)
		}
		out[name] = v
	}
	return out
}

// Point delays or kills the process where the environment asks for it.
func Point(name string) {
	if !slices.Contains(points, name) {
		panic("fault.Point: " + name + " is not in the list of points")
	}
	if d := slow[name]; d > 0 {
		time.Sleep(d)
	}
	if left := kills[name]; left != nil && left.Add(-1) == 0 {
		syscall.Kill(os.Getpid(), syscall.SIGKILL) //nolint:errcheck // nothing is left to do about it
		select {}                                  // nothing happens between the signal and the end
	}
}

// Off says whether FAULT_OFF names the part.
func Off(part string) bool {
	if !slices.Contains(parts, part) {
		panic("fault.Off: " + part + " is not in the list of parts")
	}
	return off[part]
}
