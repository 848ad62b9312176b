# Works with GNU make 3.81, which macOS has.
VERSION   := $(shell git describe --tags --always --dirty 2>/dev/null || echo dev)
RACE      ?= -race
TESTFLAGS ?= -timeout 12m

# Of make chaos; a SEED of 0 is another one each time.
MINUTES   ?= 10
SEED      ?= 0
LEASE     ?= 3s
# Packages whose tests run one after the other.
ALONE      = bench|chaos|endtoend
# Left out of make test where there is no browser and apt has none.
BROWSER    = browsertest

.PHONY: help build run demo test test-long test-browser screenshots chaos bench bench-quick setup fmt clean

help:
	@echo "make run     build Lapse and run it with its own Redis and NATS"
	@echo "make demo    show the main job in about ten seconds"
	@echo "make test    run all tests, with the race detector"
	@echo "make test-long  the same at full size: minutes of outage, tens of thousands of timers"
	@echo "make test-browser  only those that look at the page with Chromium, which it installs"
	@echo "make screenshots   take the pictures of the page in docs/ again"
	@echo "make chaos   kill, stop and cut off instances, Redis and NATS at random for 10 minutes,"
	@echo "             and check that nothing is lost, early, or fired after a cancel;"
	@echo "             make chaos MINUTES=2 SEED=7 replays the sequence of seed 7"
	@echo "make bench   measure everything beside the alternatives, about 25 minutes, and"
	@echo "             write docs/benchmarks.md; bench-quick takes two minutes and writes"
	@echo "             to bin/bench-quick"
	@echo "make build   bin/lapse"
	@echo "make setup   install what run and demo need; the targets above do it too"
	@echo "make fmt     format the Go code"
	@echo "make clean   remove what was built; the data in lapse-data stays"

# -buildvcs=false: the version is given, and git may refuse a checkout that
# belongs to another user.
build:
	@./.ci/setup.sh go
	go build -buildvcs=false -ldflags '-X main.version=$(VERSION)' -o bin/lapse .

run: setup build
	bin/lapse serve

demo: setup build
	bin/lapse demo

setup:
	@./.ci/setup.sh run

# After everything is compiled, and at last one package at a time: those measure
# how late timers fire, and whatever runs beside them would be what they measure.
# Uncached, since they depend on the redis-server that is installed.
test:
	@./.ci/setup.sh test
	go vet ./...
	CGO_ENABLED=1 go build -buildvcs=false $(RACE) ./...
	CGO_ENABLED=1 go test $(RACE) -count=1 -p 4 -parallel 4 $(TESTFLAGS) $$(go list ./... | grep -vE '/timers/($(ALONE)|$(BROWSER))$$')
	CGO_ENABLED=1 go test $(RACE) -count=1 -p 1 -parallel 4 $(TESTFLAGS) $(addprefix ./timers/,$(subst |, ,$(ALONE))) $$(./.ci/setup.sh has-browser && echo ./timers/$(BROWSER))

# The same at full size and without the race detector.
test-long:
	@./.ci/setup.sh test
	TEST_LONG=1 go test -count=1 -p 1 -timeout 60m $(TESTFLAGS) $$(go list ./... | grep -v '/timers/$(BROWSER)$$') $$(./.ci/setup.sh has-browser && echo ./timers/$(BROWSER))

# LOAD=1 holds the page open under 5,000 fires a second for a minute, too, which
# wants a machine with nothing else to do.
test-browser:
	@./.ci/setup.sh browser
	TEST_LONG=$(LOAD) go test -count=1 -timeout 12m $(if $(LOAD),-v) ./timers/$(BROWSER)

screenshots:
	@./.ci/setup.sh browser
	SCREENSHOTS=$(CURDIR)/docs go test -count=1 -timeout 12m -run '^TestLooks$$' ./timers/$(BROWSER)

# A test with a longer breath: the tests run it for half a minute. LEASE=30s is
# what Lapse has by default; the short one lets leases end in the middle of it.
chaos:
	@./.ci/setup.sh run
	go test -count=1 -timeout 0 -v -run '^TestChaos$$' ./timers/chaos -chaos.minutes $(MINUTES) -chaos.seed $(SEED) -chaos.lease $(LEASE)

# Nothing else should run on the machine meanwhile. PARTS="burst set" measures
# only these again and keeps the rest of the page.
bench: setup build bin/nats-server
	bin/lapse bench --suite full --docs docs $(PARTS)

bench-quick: setup build bin/nats-server
	bin/lapse bench --suite quick --docs bin/bench-quick $(PARTS)

# The alternative runs on the version of the library that go.mod names, which
# is the one that is embedded in lapse.
bin/nats-server: go.mod
	go build -buildvcs=false -o $@ github.com/nats-io/nats-server/v2

fmt:
	gofmt -w $$(git ls-files -co --exclude-standard '*.go')

clean:
	rm -rf bin
