package embedded

import (
	"bufio"
	"context"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/lapse-timers/lapse/timers/timerstest"
)

func startRedis(t *testing.T, dir *Dir, o RedisOptions) *Redis {
	t.Helper()
	o.Conf = shippedConf(t)
	r, err := StartRedis(soon(t), dir, o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := r.Stop(soon(t)); err != nil {
			t.Error(err)
		}
	})
	return r
}

func client(t *testing.T, r *Redis) *redis.Client {
	t.Helper()
	o, err := redis.ParseURL(r.URL())
	if err != nil {
		t.Fatal(err)
	}
	o.MaxRetries = -1
	c := redis.NewClient(o)
	t.Cleanup(func() { _ = c.Close() })
	return c
}

func pidOf(t *testing.T, c *redis.Client) int {
	t.Helper()
	info, err := c.InfoMap(soon(t), "server").Result()
	if err != nil {
		t.Fatal(err)
	}
	pid, err := strconv.Atoi(info["Server"]["process_id"])
	if err != nil {
		t.Fatal(err)
	}
	return pid
}

func TestLock(t *testing.T) {
	path := filepath.Join(shortTemp(t), "deep", "data")
	d := lockAt(t, path)
	if info, err := os.Stat(path); err != nil || info.Mode().Perm() != 0o700 {
		t.Errorf("made %v, %v; want mode 0700", info, err)
	}
	_, err := Lock(path)
	if err == nil {
		t.Fatal("two hold one directory")
	}
	for _, want := range []string{path, strconv.Itoa(os.Getpid()), "LAPSE_DATA_DIR"} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("%q does not name %s", err, want)
		}
	}
	if err := d.Unlock(); err != nil {
		t.Fatal(err)
	}
	lockAt(t, path)
}

func TestLockWhereNoneCanBe(t *testing.T) {
	file := filepath.Join(shortTemp(t), "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for _, path := range []string{file, filepath.Join(file, "below")} {
		_, err := Lock(path)
		if err == nil {
			t.Fatalf("locked %s", path)
		}
		if s := err.Error(); !strings.Contains(s, path) || !strings.Contains(s, "LAPSE_DATA_DIR") || strings.Contains(s, "\n") {
			t.Errorf("%q: want one line with the path and the remedy", s)
		}
	}
}

func TestRedisKeepsItsData(t *testing.T) {
	dir := lockTemp(t)
	r := startRedis(t, dir, RedisOptions{ExtraArgs: []string{"--hz", "77"}})
	c := client(t, r)
	if err := c.Set(t.Context(), "k", "v", 0).Err(); err != nil {
		t.Fatal(err)
	}
	got := c.ConfigGet(t.Context(), "*").Val()
	for name, want := range map[string]string{"hz": "77", "port": "0", "appendonly": "yes", "unixsocketperm": "700"} {
		if got[name] != want {
			t.Errorf("%s is %q, want %q", name, got[name], want)
		}
	}
	if err := r.Stop(soon(t)); err != nil {
		t.Fatal(err)
	}
	if v, err := client(t, startRedis(t, dir, RedisOptions{})).Get(t.Context(), "k").Result(); v != "v" {
		t.Errorf("after the restart: %q, %v", v, err)
	}
}

func TestRedisInItsOwnProcessGroup(t *testing.T) {
	r := startRedis(t, lockTemp(t), RedisOptions{})
	pid := pidOf(t, client(t, r))
	group, err := syscall.Getpgid(pid)
	if err != nil {
		t.Fatal(err)
	}
	if group != pid {
		t.Errorf("the child is in group %d: Ctrl-C would end it before its parent", group)
	}
}

func TestRedisIsKeptAlive(t *testing.T) {
	var log timerstest.Log
	r := startRedis(t, lockTemp(t), RedisOptions{Logger: logTo(&log, slog.LevelInfo)})
	c := client(t, r)
	if err := c.Set(t.Context(), "k", "v", 0).Err(); err != nil {
		t.Fatal(err)
	}
	first := pidOf(t, c)
	for deaths := 1; deaths <= 2; deaths++ {
		if err := syscall.Kill(pidOf(t, c), syscall.SIGKILL); err != nil {
			t.Fatal(err)
		}
		timerstest.Eventually(t, 30*time.Second, "redis-server is back", func() bool {
			return strings.Count(log.String(), "is back") == deaths
		})
		if v, err := c.Get(t.Context(), "k").Result(); v != "v" {
			t.Errorf("after the kill: %q, %v", v, err)
		}
	}
	if n := strings.Count(log.String(), "ended by itself"); n != 2 {
		t.Errorf("%d deaths are logged, want 2:\n%s", n, log.String())
	}
	if pid := pidOf(t, c); pid == first {
		t.Errorf("pid is %d still", pid)
	}
	if _, err := tryLock(filepath.Join(r.dir, lockFile)); err == nil {
		t.Error("the lock is free while redis-server runs")
	}
}

func TestRedisStopsWhileItCannotBeRevived(t *testing.T) {
	dir := lockTemp(t)
	var log timerstest.Log
	r := startRedis(t, dir, RedisOptions{Logger: logTo(&log, slog.LevelDebug)})
	conf := filepath.Join(r.dir, confFile)
	if err := os.WriteFile(conf, []byte("no-such-directive 1\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := syscall.Kill(pidOf(t, client(t, r)), syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	timerstest.Eventually(t, 30*time.Second, "two restarts have failed", func() bool {
		return strings.Count(log.String(), "could not be started again") >= 2
	})
	if n := strings.Count(log.String(), "level=ERROR"); n != 1 {
		t.Errorf("%d errors are logged, want one:\n%s", n, log.String())
	}
	if err := r.Stop(soon(t)); err != nil {
		t.Error(err)
	}
}

func TestRedisThatDoesNotStopIsKilled(t *testing.T) {
	r := startRedis(t, lockTemp(t), RedisOptions{})
	pid := pidOf(t, client(t, r))
	if err := syscall.Kill(pid, syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if err := r.Stop(ctx); err == nil {
		t.Error("a stopped process has ended in order")
	}
	if err := syscall.Kill(pid, 0); err == nil {
		t.Error("it lives on")
	}
	r.killed = false // and it is not for the cleanup to report again
}

func TestRedisThatCannotStart(t *testing.T) {
	_, err := StartRedis(soon(t), lockTemp(t), RedisOptions{Conf: []byte("no-such-directive 1\n")})
	if err == nil || !strings.Contains(err.Error(), "no-such-directive") {
		t.Errorf("%v: want what redis-server said", err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := StartRedis(ctx, lockTemp(t), RedisOptions{Conf: shippedConf(t)}); err == nil {
		t.Error("started after the end of ctx")
	}
}

func TestRedisPrograms(t *testing.T) {
	script := func(name, out string) string {
		path := filepath.Join(shortTemp(t), name)
		if err := os.WriteFile(path, []byte("#!/bin/sh\necho '"+out+"'\n"), 0o700); err != nil {
			t.Fatal(err)
		}
		return path
	}
	for _, tc := range []struct {
		name, binary string
		want         []string // parts of the error
	}{
		{"missing", "no-such-redis-server", []string{"no-such-redis-server", "apt-get install redis-server", "brew install redis"}},
		{"old", script("redis-server", "Redis server v=6.0.16 sha=00000000:0 malloc=jemalloc-5.2.1 bits=64 build=a"), []string{"6.0.16", "6.2", "apt-get install"}},
		{"ancient", script("redis-server", "Redis server v=5.0.14"), []string{"5.0.14", "6.2"}},
		{"something else", script("redis-server", "hello"), []string{"hello", "version"}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			_, err := StartRedis(soon(t), lockTemp(t), RedisOptions{Binary: tc.binary, Conf: shippedConf(t)})
			if err == nil {
				t.Fatal("it started")
			}
			for _, want := range tc.want {
				if !strings.Contains(err.Error(), want) {
					t.Errorf("%q does not name %q", err, want)
				}
			}
		})
	}
	for out, want := range map[string]string{
		"Redis server v=6.2.0 sha=0": "6.2.0", "Redis server v=10.0.1 sha=0": "10.0.1", "Valkey server v=8.1.1 sha=0": "8.1.1",
	} {
		if _, got, err := findRedis(soon(t), script("redis-server", out)); got != want {
			t.Errorf("%q: %q, %v", out, got, err)
		}
	}
}

func TestPathsThatAreHardToSpell(t *testing.T) {
	for name, path := range map[string]string{
		"long": strings.Repeat("a-long-name-", 10), "odd": "a b%20c?d#e&f'é",
	} {
		t.Run(name, func(t *testing.T) {
			dir := lockAt(t, filepath.Join(shortTemp(t), path))
			r := startRedis(t, dir, RedisOptions{})
			if err := client(t, r).Ping(t.Context()).Err(); err != nil {
				t.Error(err)
			}
		})
	}
}

func TestSecretsAreNotInherited(t *testing.T) {
	t.Setenv("LAPSE_NATS_URL", "nats://user:hush@host")
	if env := strings.Join(environ(), "\n"); strings.Contains(env, "hush") || !strings.Contains(env, "PATH=") {
		t.Errorf("redis-server is told\n%s", env)
	}
}

// parent is another Lapse, which can be killed.
func parent(t *testing.T, path string) *exec.Cmd {
	t.Helper()
	return again(t, parentEnv, path)
}

// again runs this test binary as what the variable says, until it is ready.
func again(t *testing.T, env, path string) *exec.Cmd {
	t.Helper()
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(exe)
	cmd.Env = append(os.Environ(), env+"="+path)
	cmd.Stderr = os.Stderr
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Kill() // the test may have done it
		_ = cmd.Wait()
	})
	if line, err := bufio.NewReader(out).ReadString('\n'); line != "ready\n" {
		t.Fatalf("it says %q, %v", line, err)
	}
	return cmd
}

func TestTwoOnOneDirectory(t *testing.T) {
	path := filepath.Join(shortTemp(t), "data")
	cmd := parent(t, path)
	_, err := Lock(path)
	if err == nil || !strings.Contains(err.Error(), fmt.Sprintf("pid %d", cmd.Process.Pid)) {
		t.Errorf("%v: want an error that names the other", err)
	}
	endParent(t, cmd)
	startRedis(t, lockAt(t, path), RedisOptions{}) // which ends the surviving child
}

func endParent(t *testing.T, cmd *exec.Cmd) {
	t.Helper()
	if err := cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = cmd.Wait() // it was killed
}

func orphanOf(t *testing.T, path string) (*redis.Client, int) {
	t.Helper()
	c := redis.NewClient(&redis.Options{Network: "unix", Addr: filepath.Join(path, "redis", sockFile), MaxRetries: -1, DialerRetries: 1})
	t.Cleanup(func() { _ = c.Close() })
	return c, pidOf(t, c)
}

// TestSurvivingChildIsEnded is the kill -9 of Lapse: its redis-server lives on,
// and what it was told last is not on disk yet.
func TestSurvivingChildIsEnded(t *testing.T) {
	path := filepath.Join(shortTemp(t), "data")
	cmd := parent(t, path)
	c, orphan := orphanOf(t, path)
	endParent(t, cmd)
	for i := range 1000 {
		if err := c.Set(t.Context(), fmt.Sprint("k", i), "v", 0).Err(); err != nil {
			t.Fatalf("the child should have survived: %v", err)
		}
	}
	dir := lockAt(t, path)
	r := startRedis(t, dir, RedisOptions{})
	now := client(t, r)
	if pid := pidOf(t, now); pid == orphan {
		t.Error("the orphan still serves")
	}
	if err := syscall.Kill(orphan, 0); err == nil {
		if state, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", orphan)); err == nil && !strings.Contains(string(state), ") Z ") {
			t.Errorf("two redis-servers on one directory: %s", state)
		}
	}
	if n, err := now.DBSize(t.Context()).Result(); n != 1000 {
		t.Errorf("%d keys, %v; want 1000", n, err)
	}
}

// TestSurvivorThatDoesNotAnswer: a start that is given up must not have
// started a second redis-server.
func TestSurvivorThatDoesNotAnswer(t *testing.T) {
	path := filepath.Join(shortTemp(t), "data")
	cmd := parent(t, path)
	c, orphan := orphanOf(t, path)
	endParent(t, cmd)
	if err := syscall.Kill(orphan, syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	dir := lockAt(t, path)
	ctx, cancel := context.WithTimeout(t.Context(), time.Second)
	defer cancel()
	_, err := StartRedis(ctx, dir, RedisOptions{Conf: shippedConf(t)})
	if err == nil || !strings.Contains(err.Error(), fmt.Sprintf("pid %d", orphan)) {
		t.Errorf("%v: want an error that names pid %d", err, orphan)
	}
	if err := syscall.Kill(orphan, syscall.SIGCONT); err != nil {
		t.Fatal(err)
	}
	if err := c.Ping(t.Context()).Err(); err != nil {
		t.Errorf("the survivor was harmed: %v", err)
	}
	startRedis(t, dir, RedisOptions{})
}

// TestSurvivorThatDoesNotEndIsKilled, but only because it has said who it is.
func TestSurvivorThatDoesNotEndIsKilled(t *testing.T) {
	dir := shortTemp(t)
	if err := writeConf(filepath.Join(dir, confFile), nil); err != nil {
		t.Fatal(err)
	}
	deaf := again(t, deafEnv, dir)
	socket, err := openSocket(dir, sockFile)
	if err != nil {
		t.Fatal(err)
	}
	defer socket.close()
	rdb := redis.NewClient(&redis.Options{Network: "unix", Addr: socket.path, MaxRetries: -1, DialerRetries: 1})
	defer rdb.Close()
	var log timerstest.Log
	wait := patience{ask: 5 * time.Second, term: 50 * time.Millisecond, exit: 200 * time.Millisecond}
	lock, err := takeOver(soon(t), dir, socket, rdb, wait, logTo(&log, slog.LevelInfo))
	if err != nil {
		t.Fatal(err)
	}
	lock.Close()
	if err := deaf.Wait(); err == nil || !strings.Contains(err.Error(), "killed") {
		t.Errorf("it ended by %v", err)
	}
	if s := log.String(); !strings.Contains(s, "killing it") {
		t.Errorf("the log:\n%s", s)
	}
}

// TestSilentSurvivorIsGivenUp: what holds the lock and does not say who it is
// is named and left alone.
func TestSilentSurvivorIsGivenUp(t *testing.T) {
	dir := shortTemp(t)
	lock, err := tryLock(filepath.Join(dir, lockFile))
	if err != nil {
		t.Fatal(err)
	}
	defer lock.Close()
	if err := writePid(lock, 4711); err != nil {
		t.Fatal(err)
	}
	socket, err := openSocket(dir, sockFile)
	if err != nil {
		t.Fatal(err)
	}
	var log timerstest.Log
	wait := patience{ask: 10 * time.Millisecond, term: 20 * time.Millisecond, exit: 50 * time.Millisecond}
	_, err = takeOver(soon(t), dir, socket, nil, wait, logTo(&log, slog.LevelInfo))
	if err == nil || !strings.Contains(err.Error(), "kill 4711") || !strings.Contains(err.Error(), dir) {
		t.Errorf("%v", err)
	}
}

// TestStrangerIsLeftAlone: a redis-server on our socket that holds our lock but
// was started from another configuration is not ours to end.
func TestStrangerIsLeftAlone(t *testing.T) {
	dir := lockTemp(t)
	sub, err := dir.sub("redis")
	if err != nil {
		t.Fatal(err)
	}
	lock, err := tryLock(filepath.Join(sub, lockFile))
	if err != nil {
		t.Fatal(err)
	}
	defer lock.Close()
	stranger := timerstest.Redis(t)
	if err := os.Symlink(stranger.Addr(), filepath.Join(sub, sockFile)); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Second)
	defer cancel()
	if _, err := StartRedis(ctx, dir, RedisOptions{Conf: shippedConf(t)}); err == nil {
		t.Error("started beside whoever holds the lock")
	}
	if err := stranger.Client().Ping(t.Context()).Err(); err != nil {
		t.Errorf("the stranger was harmed: %v", err)
	}
}
