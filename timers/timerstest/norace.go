//go:build !race

package timerstest

const raceEnabled = false

// Slow is by how much a bound on time is wider here than without the race detector.
const Slow = 1
