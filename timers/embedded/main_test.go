package embedded

import (
	"bufio"
	"context"
	"fmt"
	"log/slog"
	"net"
	"os"
	"os/signal"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/lapse-timers/lapse/timers/timerstest"
)

// parentEnv makes the test binary a Lapse with an embedded Redis on the
// directory that it names, for others to kill.
const parentEnv = "LAPSE_TEST_PARENT_DIR"

// deafEnv makes it a redis-server on the directory that it names, which
// answers but does not end when it is told to.
const deafEnv = "LAPSE_TEST_DEAF_DIR"

func TestMain(m *testing.M) {
	for env, be := range map[string]func(string) error{parentEnv: beParent, deafEnv: beDeaf} {
		if dir := os.Getenv(env); dir != "" {
			if err := be(dir); err != nil {
				fmt.Fprintln(os.Stderr, err)
				os.Exit(1)
			}
			return
		}
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

func beDeaf(dir string) error {
	signal.Ignore(syscall.SIGTERM)
	lock, err := tryLock(filepath.Join(dir, lockFile))
	if err != nil {
		return err
	}
	defer lock.Close()
	l, err := net.Listen("unix", filepath.Join(dir, sockFile))
	if err != nil {
		return err
	}
	fmt.Println("ready")
	for {
		c, err := l.Accept()
		if err != nil {
			return err
		}
		go speakRedis(c, filepath.Join(dir, confFile))
	}
}

// speakRedis answers INFO, and OK to everything else.
func speakRedis(c net.Conn, conf string) {
	defer c.Close()
	in := bufio.NewScanner(c) // of lines; the arguments of this test have none
	words := 0
	for name := ""; in.Scan(); {
		line := in.Text()
		switch {
		case strings.HasPrefix(line, "*"):
			name = ""
			words, _ = strconv.Atoi(line[1:])
		case !strings.HasPrefix(line, "$"):
			if name == "" {
				name = strings.ToLower(line)
			}
			if words--; words > 0 {
				continue
			}
			reply := "+OK\r\n"
			switch info := fmt.Sprintf("process_id:%d\r\nconfig_file:%s\r\n", os.Getpid(), conf); name {
			case "info":
				reply = fmt.Sprintf("$%d\r\n%s\r\n", len(info), info)
			case "hello":
				reply = "-ERR unknown command 'hello'\r\n"
			}
			if _, err := c.Write([]byte(reply)); err != nil {
				return
			}
		}
	}
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

func logTo(l *timerstest.Log, level slog.Level) *slog.Logger {
	return slog.New(slog.NewTextHandler(l, &slog.HandlerOptions{Level: level}))
}
