package embedded

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"
)

// parentEnv makes the test binary a Lapse with an embedded Redis on the
// directory that it names, for others to kill.
const parentEnv = "LAPSE_TEST_PARENT_DIR"

func TestMain(m *testing.M) {
	if dir := os.Getenv(parentEnv); dir != "" {
		if err := beParent(dir); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		return
	}
	goleak.VerifyTestMain(m)
}

func beParent(path string) error {
	conf, err := os.ReadFile("../../redis.conf")
	if err != nil {
		return err
	}
	dir, err := Lock(path)
	if err != nil {
		return err
	}
	if _, err := StartRedis(context.Background(), dir, RedisOptions{Conf: conf}); err != nil {
		return err
	}
	fmt.Println("ready")
	select {} // until it is killed
}

func shippedConf(t *testing.T) []byte {
	t.Helper()
	conf, err := os.ReadFile("../../redis.conf")
	if err != nil {
		t.Fatal(err)
	}
	return conf
}

func lockTemp(t *testing.T) *Dir {
	t.Helper()
	return lockAt(t, filepath.Join(shortTemp(t), "data"))
}

func lockAt(t *testing.T, path string) *Dir {
	t.Helper()
	d, err := Lock(path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = d.Unlock() }) // the test may have done it
	return d
}

// shortTemp is a directory for sockets, without the name of the test.
func shortTemp(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("/tmp", "lapse")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := os.RemoveAll(dir); err != nil {
			t.Error(err)
		}
	})
	return dir
}

func soon(t *testing.T) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.WithoutCancel(t.Context()), 30*time.Second)
	t.Cleanup(cancel)
	return ctx
}

// logged collects what is logged.
type logged struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *logged) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *logged) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}

func logTo(l *logged, level slog.Level) *slog.Logger {
	return slog.New(slog.NewTextHandler(l, &slog.HandlerOptions{Level: level}))
}
