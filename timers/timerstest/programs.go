package timerstest

import "testing"

// NATSProgram is the path of the nats-server program that [NATSProcess] runs,
// for tests of what starts servers by itself.
func NATSProgram(t testing.TB) string {
	t.Helper()
	bin, err := natsBinary()
	if err != nil {
		t.Fatal(err)
	}
	return bin
}
