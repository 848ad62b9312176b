package timerstest

import "os"

// Size is the number that a test works with: short in make test, long in make
// test-long, which sets TEST_LONG.
func Size(short, long int) int {
	if os.Getenv("TEST_LONG") != "" {
		return long
	}
	return short
}
