//go:build race

package timerstest

const raceEnabled = true
