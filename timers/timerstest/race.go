//go:build race

package timerstest

const raceEnabled = true

// Slow is by how much a bound on time is wider here: the race detector takes most of the machine.
const Slow = 2
