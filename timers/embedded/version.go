package embedded

import (
	"context"
	"fmt"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"time"
)

const installRedis = "install it: apt-get install redis-server (Debian, Ubuntu), brew install redis (macOS); or set LAPSE_REDIS_URL and LAPSE_NATS_URL to servers that run already"

// versionOf finds the version in what redis-server --version prints:
// "Redis server v=7.0.15 sha=...". Valkey keeps the form.
var versionOf = regexp.MustCompile(`\bv=((\d+)\.(\d+)[0-9.]*)`)

// findRedis returns the path and the version of the program.
func findRedis(ctx context.Context, name string) (path, version string, err error) {
	if name == "" {
		name = "redis-server"
	}
	if path, err = exec.LookPath(name); err != nil {
		return "", "", fmt.Errorf("there is no %s (%w); %s", name, err, installRedis)
	}
	// The child is started from another working directory.
	if path, err = filepath.Abs(path); err != nil {
		return "", "", fmt.Errorf("path of %s: %w", name, err)
	}
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	out, err := exec.CommandContext(ctx, path, "--version").Output()
	if err != nil {
		return "", "", fmt.Errorf("%s --version: %w; %s", path, err, installRedis)
	}
	m := versionOf.FindStringSubmatch(string(out))
	if m == nil {
		return "", "", fmt.Errorf("%s --version prints no version (%.80q); %s", path, strings.TrimSpace(string(out)), installRedis)
	}
	major, _ := strconv.Atoi(m[2]) // digits; one too large for an int is new enough
	minor, _ := strconv.Atoi(m[3])
	if major < 6 || major == 6 && minor < 2 {
		return "", "", fmt.Errorf("%s is Redis %s, Lapse needs 6.2 or newer; %s", path, m[1], installRedis)
	}
	return path, m[1], nil
}
