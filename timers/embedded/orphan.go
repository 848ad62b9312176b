package embedded

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/redis/go-redis/v9"
)

// patience is how long takeOver waits, counted from the start for ask and from
// the order to end for the others.
type patience struct {
	ask  time.Duration // for an earlier redis-server to say who it is
	term time.Duration // for it to end, before it gets SIGTERM
	exit time.Duration // ... before it gets SIGKILL, or is given up
}

var usualPatience = patience{ask: 5 * time.Second, term: 10 * time.Second, exit: 20 * time.Second}

// takeOver returns the lock of redis-server in dir. The caller holds
// lapse.lock, so whoever holds this one outlived its Lapse: it is ended, not
// adopted, because its configuration and program may be older than ours, and
// a child that is not ours can be neither waited for nor restarted.
//
//	it answers on the socket         SHUTDOWN, which writes and syncs the append-only file
//	... and does not end             SIGTERM, then SIGKILL, to the pid that it named
//	it does not answer               wait: it may be ending, or a child of it may be; then an error
//
// Nothing but a process that answered on our own socket, from our own
// configuration, is ever signalled: the pid in the file may have passed on to
// a stranger.
func takeOver(ctx context.Context, dir string, socket *socket, rdb *redis.Client, wait patience, logger *slog.Logger) (*os.File, error) {
	path := filepath.Join(dir, lockFile)
	lock, err := tryLock(path)
	if !errors.Is(err, errHeld) {
		return lock, wrapDir(dir, err)
	}
	pid, begun := 0, time.Now()
	terminated := false
	for ask := true; ; {
		lock, err := tryLock(path)
		if !errors.Is(err, errHeld) {
			return lock, wrapDir(dir, err)
		}
		if ask {
			// Again and again, since it may only just be starting.
			switch pid = identify(ctx, dir, socket, rdb); {
			case pid != 0:
				logger.Warn("an earlier redis-server survived its Lapse, ending it", "dir", dir, "pid", pid)
				shutDown(ctx, rdb, wait.ask)
				ask, begun = false, time.Now()
			case time.Since(begun) > wait.ask:
				logger.Warn("an earlier redis-server holds the data directory and does not answer, waiting for its end", "dir", dir, "pid", readPid(path))
				ask = false
			}
		}
		waited := time.Since(begun)
		switch {
		case pid != 0 && !terminated && waited > wait.term:
			terminated = true
			_ = syscall.Kill(pid, syscall.SIGTERM) // it may end this very moment
		case waited > wait.exit && pid != 0:
			logger.Warn("the earlier redis-server does not end, killing it", "pid", pid)
			_ = syscall.Kill(pid, syscall.SIGKILL)
			pid, begun = 0, time.Now()
		case waited > wait.exit:
			who := readPid(path)
			return nil, fmt.Errorf("an earlier redis-server (pid %s) holds %s and does not end: see what it is doing, end it (kill %s), and start again", who, dir, who)
		}
		select {
		case <-ctx.Done():
			return nil, fmt.Errorf("an earlier redis-server (pid %s) holds %s and has not ended yet: %w", readPid(path), dir, ctx.Err())
		case <-time.After(10 * time.Millisecond):
		}
	}
}

func wrapDir(dir string, err error) error {
	if err != nil {
		return fmt.Errorf("data directory %s: %w", dir, err)
	}
	return nil
}

// identify returns the pid of the redis-server on our socket, or 0 when none
// answers, or one that was not started with our configuration.
func identify(ctx context.Context, dir string, socket *socket, rdb *redis.Client) int {
	ctx, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	if socket.knock(ctx) != nil {
		return 0
	}
	info, err := rdb.Info(ctx, "server").Result() // answered while loading, too
	if err != nil {
		return 0
	}
	var pid int
	var conf string
	for line := range strings.Lines(info) {
		name, value, _ := strings.Cut(strings.TrimSpace(line), ":")
		switch name {
		case "process_id":
			pid, _ = strconv.Atoi(value) // 0 is "none"
		case "config_file":
			conf = value
		}
	}
	theirs, err := os.Stat(conf)
	if err != nil {
		return 0
	}
	ours, err := os.Stat(filepath.Join(dir, confFile))
	if err != nil || !os.SameFile(theirs, ours) || pid <= 1 || pid == os.Getpid() {
		return 0
	}
	return pid
}

// shutDown asks for an orderly end. A lost connection is the answer to expect;
// whatever else comes back, the lock tells whether it ended.
func shutDown(ctx context.Context, rdb *redis.Client, wait time.Duration) {
	ctx, cancel := context.WithTimeout(ctx, wait)
	defer cancel()
	_ = rdb.Shutdown(ctx).Err()
}
