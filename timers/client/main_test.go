package client_test

import (
	"fmt"
	"os"
	"testing"

	"github.com/lapse-timers/lapse/timers/timerstest"
)

// TestMain starts what the examples and most tests of this package share: a
// real Lapse on real servers. NATS_URL names its NATS, as it would for a
// program that is written like the examples.
func TestMain(m *testing.M) { os.Exit(run(m)) }

func run(m *testing.M) int {
	k := &keeper{}
	defer k.end()
	ns := timerstest.NATS(k)
	timerstest.LapseOn(k, timerstest.Redis(k).URL(), ns.URL())
	if err := os.Setenv("NATS_URL", ns.URL()); err != nil {
		k.Fatal(err)
	}
	return m.Run()
}

// keeper is a test to the helpers of timerstest, before there is one. The
// interface that is embedded is nil: what is not here is not called.
type keeper struct {
	testing.TB
	cleanups []func()
}

func (k *keeper) end() {
	for i := len(k.cleanups) - 1; i >= 0; i-- {
		k.cleanups[i]()
	}
}

func (k *keeper) Name() string                      { return "TestMain" }
func (k *keeper) Helper()                           {}
func (k *keeper) Failed() bool                      { return false }
func (k *keeper) Cleanup(f func())                  { k.cleanups = append(k.cleanups, f) }
func (k *keeper) Log(args ...any)                   { fmt.Fprintln(os.Stderr, args...) }
func (k *keeper) Logf(format string, args ...any)   { k.Log(fmt.Sprintf(format, args...)) }
func (k *keeper) Error(args ...any)                 { k.Log(args...) }
func (k *keeper) Errorf(format string, args ...any) { k.Logf(format, args...) }

// Fatal ends the test binary, and first what it started.
func (k *keeper) Fatal(args ...any) {
	k.Log(args...)
	k.end()
	os.Exit(1)
}

func (k *keeper) Fatalf(format string, args ...any) { k.Fatal(fmt.Sprintf(format, args...)) }

func (k *keeper) TempDir() string {
	dir, err := os.MkdirTemp("", "lapse-client-test")
	if err != nil {
		k.Fatal(err)
	}
	k.Cleanup(func() { _ = os.RemoveAll(dir) })
	return dir
}
