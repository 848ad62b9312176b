package timerstest

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"
)

// clockShim gives a process another time of day: a library that is loaded
// before the C library's own. Redis reads the time through these alone.
const clockShim = `
#define _GNU_SOURCE
#include <stdlib.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>
static long ahead(void) { const char *s = getenv("CLOCK_AHEAD_SECONDS"); return s ? atol(s) : 0; }
int clock_gettime(clockid_t id, struct timespec *t) {
	int r = syscall(SYS_clock_gettime, id, t);
	if (r == 0 && (id == CLOCK_REALTIME || id == CLOCK_REALTIME_COARSE)) t->tv_sec += ahead();
	return r;
}
int gettimeofday(struct timeval *restrict t, void *restrict zone) {
	struct timespec s;
	(void)zone;
	if (clock_gettime(CLOCK_REALTIME, &s) != 0) return -1;
	t->tv_sec = s.tv_sec;
	t->tv_usec = s.tv_nsec / 1000;
	return 0;
}
time_t time(time_t *t) {
	struct timespec s;
	clock_gettime(CLOCK_REALTIME, &s);
	if (t) *t = s.tv_sec;
	return s.tv_sec;
}
`

// RedisAhead is [Redis] with a clock that is ahead of this machine's, behind it
// when negative; in whole seconds. It needs a C compiler, as the race detector
// does.
func RedisAhead(t testing.TB, ahead time.Duration, args ...string) *RedisServer {
	t.Helper()
	s := newRedis(t, args)
	source, library := filepath.Join(s.dir, "clock.c"), filepath.Join(s.dir, "clock.so")
	if err := os.WriteFile(source, []byte(clockShim), 0o600); err != nil {
		t.Fatal(err)
	}
	cc := os.Getenv("CC")
	if cc == "" {
		cc = "gcc"
	}
	if out, err := exec.Command(cc, "-shared", "-fPIC", "-o", library, source).CombinedOutput(); err != nil {
		t.Fatalf("build a clock with %s (apt-get install gcc libc6-dev): %v\n%s", cc, err, out)
	}
	s.env = append(os.Environ(), "LD_PRELOAD="+library, fmt.Sprintf("CLOCK_AHEAD_SECONDS=%d", int(ahead/time.Second)))
	s.socket = filepath.Join(s.dir, "redis.sock")
	s.Start()
	return s
}
