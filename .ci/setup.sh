#!/usr/bin/env bash
# Sees to it that what Lapse needs is there: "go" for a build, "run" for the
# embedded servers too, "test" for the race detector as well and, where apt has
# it, for the tests in a browser, which "browser" insists on. What it can
# install it installs, saying so; else it stops with what to do. "has-browser"
# only says whether there is all that a browser test needs. It runs with
# the bash 3.2 of macOS.
set -euo pipefail
cd "$(dirname "$0")/.."

say() { printf 'setup: %s\n' "$*" >&2; }
die() { say "$@"; exit 1; }

# at_least HAVE WANT compares versions such as 1.26.8 by their numbers.
at_least() {
  local have want i
  IFS=. read -r -a have <<<"$1"
  IFS=. read -r -a want <<<"$2"
  for i in 0 1 2; do
    if ((10#${have[$i]:-0} > 10#${want[$i]:-0})); then return 0; fi
    if ((10#${have[$i]:-0} < 10#${want[$i]:-0})); then return 1; fi
  done
}

# install PACKAGES installs with apt, on Debian and its kin, after an update:
# the lists of a fresh image are empty. Services that the packages start are
# not ours and are left alone.
install() {
  local how=""
  command -v apt-get >/dev/null || return 1
  if [ "$(id -u)" != 0 ]; then
    command -v sudo >/dev/null || return 1
    how="sudo"
    if [ ! -t 0 ]; then how="sudo -n"; fi # nobody is there to type a password
  fi
  say "installing $* with apt-get, after apt-get update"
  $how apt-get update -q </dev/null >&2 || say "apt-get update failed; trying with the lists that are there"
  $how env DEBIAN_FRONTEND=noninteractive apt-get install -q -y --no-install-recommends "$@" </dev/null >&2
}

go_version() { go version 2>/dev/null | sed -n 's/^go version .*go\([0-9][0-9.]*\).*/\1/p'; }

need_go() {
  local want local_go full
  want=$(sed -n 's/^go //p' go.mod)
  command -v go >/dev/null ||
    die "there is no go on the PATH; install Go $want or newer from https://go.dev/dl/ and put its bin directory on the PATH"
  local_go=$(GOTOOLCHAIN=local go_version)
  [ -n "$local_go" ] || die "cannot read what 'go version' prints; install Go $want or newer from https://go.dev/dl/"
  if at_least "$local_go" "$want"; then return; fi
  # From 1.21 on, go fetches the toolchain that go.mod asks for, where it may.
  full=$(go_version || true)
  if [ -n "$full" ] && at_least "$full" "$want"; then return; fi
  die "Go $local_go is too old, Lapse needs $want or newer; install it from https://go.dev/dl/ or let go fetch it with GOTOOLCHAIN=auto"
}

need_redis() {
  local version
  if ! command -v redis-server >/dev/null; then
    if [ "$(uname -s)" = Darwin ] && command -v brew >/dev/null; then
      say "installing redis with brew"
      brew install redis </dev/null >&2 || die "brew could not install it; run: brew install redis"
    else
      install redis-server ||
        die "there is no redis-server on the PATH; install Redis 6.2 or newer: sudo apt-get install redis-server (Debian, Ubuntu), brew install redis (macOS), or your system's package"
    fi
    command -v redis-server >/dev/null || die "redis-server was installed but is not on the PATH; add its directory to the PATH"
  fi
  version=$(redis-server --version | sed -n 's/.* v=\([0-9][0-9.]*\).*/\1/p')
  [ -n "$version" ] || die "cannot read what 'redis-server --version' prints; install Redis 6.2 or newer"
  at_least "$version" 6.2 ||
    die "redis-server $version ($(command -v redis-server)) is too old, Lapse needs 6.2 or newer; install it from https://redis.io/docs/latest/operate/oss_and_stack/install/"
}

# compiles says whether the C compiler that go would take can build a program:
# gcc without the headers of the C library cannot.
compiles() {
  local cc
  cc=$(go env CC)
  printf '#include <stdlib.h>\nint main(void) { return 0; }\n' | ${cc:-gcc} -x c -o /dev/null - >/dev/null 2>&1
}

# The race detector links with cgo, everywhere but on macOS.
need_cc() {
  if [ "$(uname -s)" = Darwin ] || compiles; then return; fi
  install gcc libc6-dev ||
    die "the race detector needs a C compiler; install one: sudo apt-get install gcc libc6-dev (Debian, Ubuntu), or your system's gcc and C library headers"
  compiles || die "the C compiler ($(go env CC)) still cannot build a program; set CC to one that can"
}

# has_client says whether npm got to its end: one that was interrupted, or met
# another, leaves a part of it.
has_client() {
  [ -d docs/browser/node_modules/@nats-io/nats-core ] && [ -x docs/browser/node_modules/.bin/esbuild ]
}

# has_browser looks where the driver of the tests does.
has_browser() {
  local name
  has_client || return 1
  for name in chromium chromium-browser google-chrome google-chrome-stable headless-shell; do
    if command -v "$name" >/dev/null; then return 0; fi
  done
  [ -d "/Applications/Google Chrome.app" ]
}

# Chromium for the page, and the NATS client for browsers for docs/browser.
need_browser() {
  if ! command -v npm >/dev/null; then
    install npm || { say "there is no npm: install Node.js 20 or newer with npm from https://nodejs.org"; return 1; }
  fi
  if ! has_client; then
    say "installing what docs/browser/package-lock.json names with npm"
    npm ci --prefix docs/browser --no-audit --no-fund </dev/null >&2 || return 1
  fi
  if has_browser; then return; fi
  install chromium fonts-dejavu-core || install chromium-browser ||
    { say "there is no Chromium: sudo apt-get install chromium (Debian), or Chrome from https://www.google.com/chrome"; return 1; }
  has_browser
}

if [ "${1:-}" = has-browser ]; then has_browser; exit; fi
need_go
case "${1:-}" in
go) ;;
run) need_redis ;;
test)
  need_redis
  need_cc
  if ! need_browser; then say "the tests in a browser are left out"; fi
  ;;
browser)
  need_redis
  need_browser || die "the tests in a browser need Chromium and npm"
  ;;
*) die "want one of: go, run, test, browser, has-browser" ;;
esac
