# What a newcomer runs. Nothing but Go is needed: services are found or started
# (internal/devservices says in which order), tools come through tools.mod.

GO ?= go
ifeq ($(shell command -v $(GO) 2>/dev/null),)
$(error '$(GO)' is not on PATH: install Go 1.26 or later, or run make GO=/path/to/go)
endif

# The race detector needs cgo, which go turns off where there is no C compiler.
# The tests run without it as well.
ifeq ($(shell $(GO) env CGO_ENABLED),1)
RACE ?= -race
endif

# A program with the race detector sleeps for a second before it exits, in case that a
# race is just happening: each package's tests do, and what they start without saying so.
export GORACE ?= atexit_sleep_ms=10

# Two packages with four parallel tests each need 120 connections to PostgreSQL, on a machine
# with many processors as well. bin/with sets SAGAMILL_PACE where the server has fewer.
# Without debug information a program is linked in half the time.
TESTFLAGS ?= -tags=failpoints -count=1 -timeout=20m $(or $(SAGAMILL_PACE),-p=2 -parallel=4) -ldflags=-s
PKG       ?= ./...
RUN       ?= .
FUZZTIME  ?= 20000x

# Stamping asks git, which refuses in a tree that belongs to somebody else.
export GOFLAGS := $(GOFLAGS) -buildvcs=false

# staticcheck looks for a cache of its own in the home directory, which not everybody has.
export STATICCHECK_CACHE ?= $(shell $(GO) env GOCACHE)/staticcheck

.DEFAULT_GOAL := help
.PHONY: help demo demo-trip serve serve-trip chaos services test verify nightly long-packages slow-tests test-console console-tests docs test-postgres test-rabbitmq test-pooler tests fuzz mutants mutate model check reference api apidiff statements vuln cross licences fmt bench-idemkey bench-relay bench-consumer bench-saga bench-quiet bench-scale bench-console FORCE

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-14s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

demo: bin/order-saga ## run the order example under a mixed load and check its invariants; CONSOLE=1 shows the sagas in a browser, here and in the three targets below
	@bin/order-saga demo $(if $(CONSOLE),-console)

demo-trip: bin/trip-saga ## run the trip example, an orchestrated saga, under a mixed load and check its invariants
	@bin/trip-saga demo $(if $(CONSOLE),-console)

serve: bin/order-saga ## run the order example's services until Ctrl-C
	@bin/order-saga serve $(if $(CONSOLE),-console)

serve-trip: bin/trip-saga ## run the trip example's services until Ctrl-C
	@bin/trip-saga serve $(if $(CONSOLE),-console)

chaos: bin/chaos ## run both examples under every fault and judge what is left, in five minutes; CHAOS=-brief or -long for less or more, -cluster for a cluster of RabbitMQ
	@bin/chaos run $(CHAOS)

services: bin/with ## find or start PostgreSQL, RabbitMQ, Redis and NATS, print their URLs, hold them until Ctrl-C
	@bin/with

# What takes long by itself is for make verify: the packages in LONG, and the tests that call needtest.Slow or
# needtest.Shortened, which -short skips or shortens. Those start and kill RabbitMQ nodes, kill a process at each failpoint, write large tables to look at plans, or
# search all states of a model. A PKG or a RUN leaves out nothing.
ifeq ($(PKG) $(RUN),./... .)
LONG  ?= /(internal/(suites|devservices|tools/with)|idemkeytest/matrixtest)(/|$$)
SHORT ?= -short
endif

# Tests install nothing, because go test would hide it: bin/with installs what these packages need.
PROGRAMS = $(if $(or $(findstring internal/suites,$(PKG)),$(filter ./internal/...,$(PKG))),-program pgbouncer)

test: bin/with ## run the tests and a brief chaos; PKG=./outbox/... for some, RUN=TestEveryCell for one
	@test -n '$(RACE)' || echo 'make test: no C compiler, so without the race detector' >&2
	@bin/with -own $(PROGRAMS) -- $(MAKE) --no-print-directory tests
ifeq ($(PKG) $(RUN),./... .)
	@$(MAKE) --no-print-directory chaos CHAOS='-brief $(CHAOS)'
endif

verify: bin/with ## run what make test leaves out for its time: suites of several packages, clusters, chaos' own tests, a brief chaos on a cluster
	@bin/with -own -program pgbouncer -- $(MAKE) --no-print-directory long-packages slow-tests
	@$(GO) -C chaos test -count=1 -timeout=10m -p=3 ./...
	@$(MAKE) --no-print-directory chaos CHAOS='-cluster -brief'

nightly: ## run all that is checked and tested, each case of it, on each version of PostgreSQL and RabbitMQ: for hours; PARTS='model mutate' for some
	@.ci/nightly $(PARTS)

long-packages:
	@$(MAKE) --no-print-directory tests PKG="$$($(GO) list ./... | grep -E '$(LONG)' | xargs) ./internal/suites/relaytargets"

# Which tests make test skips or shortens, and in which packages, is in the source.
SLOW = needtest\.(Slow|Shortened)\(t\)

slow-tests:
	@files=$$(grep -rlE --include='*_test.go' '^	$(SLOW)$$' .) && \
		names=$$(awk '/^func Test/ { name = substr($$2, 1, index($$2, "(") - 1) } /^\t$(SLOW)$$/ { print name }' $$files | sort -u | paste -sd '|') && \
		$(MAKE) --no-print-directory tests RUN="^($$names)"'$$$$' PKG="$$(dirname $$files | sort -u | xargs)"

test-console: bin/with ## run the tests of the console and of the documents' site in a real Chromium, which is installed if it is missing; RUN=TestX for some, SHOTS=DIR writes screenshots
	@bin/with -own -program chromium -- $(MAKE) --no-print-directory console-tests

# The browser's modules are requirements of these tests alone, which are a module of their own.
console-tests: docs
	@$(GO) -C internal/suites/browsertest test $(RACE) $(TESTFLAGS) -run='$(RUN)' . $(if $(SHOTS),-args -shots='$(abspath $(SHOTS))')

# The generator's modules are requirements of nothing else. To compile it takes three minutes of two processors, once.
docs: bin/hugo ## build a site of all documents into bin/docs: open bin/docs/index.html in a browser
	@rm -rf bin/docs
	@bin/hugo --quiet --noBuildLock --source internal/tools/docsite --destination '$(CURDIR)/bin/docs'
	@echo 'make docs: open $(CURDIR)/bin/docs/index.html'

bin/hugo: export CGO_ENABLED = 0
bin/hugo: FORCE
	@GO='$(GO)' internal/tools/build.sh $@ github.com/gohugoio/hugo internal/tools/docsite

test-postgres: bin/with ## run the tests on private servers of PostgreSQL PG=14, 15, 16, 17 or 18; PKG and RUN narrow them as above
	@test -n '$(PG)' || { echo 'make test-postgres: say which version, as PG=14' >&2; exit 1; }
	@env -u DATABASE_URL SAGAMILL_POSTGRES='$(PG)' bin/with -own -- $(MAKE) --no-print-directory tests LONG= SHORT=

# What talks to RabbitMQ.
BROKERED ?= . ./cmd/sagamill/... ./consumer ./examples/... ./internal/devservices ./internal/suites/consumerstorm ./internal/suites/handover ./internal/suites/rehearsal ./internal/suites/relaystorm ./internal/suites/sagastorm ./internal/testing/permissiontest ./internal/testing/rabbitcluster ./internal/testing/rabbitnode ./internal/testing/rabbittest ./outbox ./rabbitmq ./saga ./signing

test-rabbitmq: bin/with ## run the tests of what talks to RabbitMQ on private servers of version RABBITMQ=4.3, 4.0 or 3.10; PKG and RUN narrow them as above
	@test -n '$(RABBITMQ)' || { echo 'make test-rabbitmq: say which version, as RABBITMQ=4.3' >&2; exit 1; }
	@env -u AMQP_URL SAGAMILL_RABBITMQ='$(RABBITMQ)' bin/with -own -- $(MAKE) --no-print-directory tests PKG='$(if $(filter ./...,$(PKG)),$(BROKERED),$(PKG))' LONG= SHORT=

# What runs behind a pooler: the packages whose statements go through one.
POOLED ?= ./consumer ./outbox ./saga ./idemkey/idempg ./examples/...

test-pooler: bin/with ## run the tests of what talks to PostgreSQL behind pgbouncer in transaction mode; PKG and RUN narrow them as above
	@bin/with -own -pooler -- $(MAKE) --no-print-directory tests PKG='$(if $(filter ./...,$(PKG)),$(POOLED),$(PKG))'

# What make check tests.
CHECKED = /internal/tools/archtest$$

# The longest packages run first, so that no processor waits for one of them at the end.
LONGEST = ./consumer ./saga ./outbox ./examples/... ./idemkey/... ./cmd/sagamill ./console ./operator ./rabbitmq

# What runs when the services are there. The brokers' modules are requirements of
# the tests on them alone, which are a module of their own. For go, a RUN that matches
# nothing is a success; here it must not pass as if it had looked.
tests: TEST  = test $(RACE) $(TESTFLAGS) $(SHORT) -run='$(RUN)'
tests: APART_FROM = ./internal/suites/relaytargets
tests: NAMED = $(filter-out $(APART_FROM),$(PKG))
tests: LISTED = $(if $(and $(filter ./...,$(NAMED)),$(LONG)),$$($(GO) list $(LONGEST) ./... | grep -vE '$(LONG)|$(CHECKED)'),$(NAMED))
tests: MAIN  = $(if $(NAMED),$(GO) $(TEST) $(LISTED),:)
tests: APART = $(if $(filter $(APART_FROM),$(PKG))$(if $(LONG),,$(filter ./...,$(PKG))),$(GO) -C internal/suites/relaytargets $(TEST) ./...,:)
tests:
ifeq ($(RUN),.)
	@$(MAIN)
	@$(APART)
else
	@{ $(MAIN) && $(APART); echo "go test: exit $$?"; } | { ran=; code=1; while IFS= read -r line; do \
		case "$$line" in \
		'go test: exit '*) code="$${line##* }"; continue;; \
		*'[no tests to run]') ;; \
		ok*) ran=1;; \
		esac; printf '%s\n' "$$line"; \
	done; test "$$code$$ran" != 0 || { echo 'make test: RUN=$(RUN) matches no test of $(PKG)' >&2; code=1; }; exit "$$code"; }
endif

# The go command fuzzes one target at a time. They are found by their names, so that
# none is forgotten; finding none is an error too. Inputs are counted, since a run
# that is bounded in time may fail by running out of it.
fuzz: ## fuzz each target for FUZZTIME, 20000x by default; PKG=./idemkey/... for some
	@set -e; n=0; for dir in $$($(GO) list -f '{{.Dir}}' $(PKG)); do \
		for target in $$(grep -hos '^func Fuzz[A-Za-z0-9_]*' $$dir/*_test.go | cut -c6-); do \
			echo "$$target in $$dir"; \
			$(GO) -C $$dir test -run='^$$' -fuzz="^$$target\$$" -fuzztime=$(FUZZTIME) . || exit 1; \
			n=$$((n + 1)); \
		done; \
	done; test $$n -gt 0 || { echo 'make fuzz: found no targets'; exit 1; }

mutants: ## the part of make mutate that plants thirteen bugs; BUG=inbox-missing for one
	@$(MAKE) --no-print-directory mutate ONLY='$(or $(BUG),bugs)'

mutate: bin/with bin/mutate ## break the code behind each guarantee, and plant bugs, one at a time: a test must fail each time; ONLY=G3 for some
	@bin/with -own -- bin/mutate -go '$(GO)' $(if $(ONLY),-only $(ONLY))

bench-idemkey: ## what the idempotency middleware costs beside a bare transaction, on private servers
	@cd bench && $(GO) build -o ../bin/bench-idemkey ./idemkey
	@bin/bench-idemkey

bench-relay: ## how the outbox's relay does beside others, on private servers
	@cd bench && $(GO) build -o ../bin/bench-relay ./relay
	@bin/bench-relay

bench-consumer: ## how package consumer does beside a consumer written by hand, on private servers
	@cd bench && $(GO) build -o ../bin/bench-consumer ./consumer
	@bin/bench-consumer

bench-saga: ## how sagas of three steps do beside DBOS Transact, River and ones written by hand, on private servers
	@cd bench && $(GO) build -o ../bin/bench-saga ./saga
	@bin/bench-saga

bench-quiet: ## what a saga costs, and how long it takes, at the loads that services really have, and what idle services ask, on private servers
	@cd bench && $(GO) build -o ../bin/bench-saga ./saga
	@bin/bench-saga -parts quiet -servers native -rounds 1 -kinds dbos,dbos-transaction,river,good-hand,choreographed-queued,orchestrated-queued

bench-scale: ## how throughput grows with processes, lanes and outboxes, and what each message costs, on private servers
	@cd bench && $(GO) build -o ../bin/bench-scale ./scale
	@bin/bench-scale

bench-console: ## how long the console's pages take on large tables, and what open browsers cost, beside River UI, on private servers
	@cd bench && $(GO) build -o ../bin/bench-console ./console
	@bin/bench-console

model: bin/modelcheck ## search the protocol's models in all states with spin, and find the bugs planted in them; BUG=relay/two-in-flight shows one
	@bin/modelcheck $(if $(BUG),-trace $(BUG)) $(if $(FAULTS),-faults $(FAULTS))

check: ## everything that is checked without running the tests
	@files=$$(gofmt -l .); test -z "$$files" || { echo "not formatted (make fmt):"; echo "$$files"; exit 1; }
	$(GO) mod tidy -diff
	$(GO) mod verify
	$(GO) vet ./...
	$(GO) vet -tags=failpoints ./...
	$(GO) -C bench vet ./...
	$(GO) -C chaos vet ./...
	$(GO) -C internal/suites/relaytargets vet ./...
	$(GO) -C internal/suites/browsertest vet ./...
	$(GO) tool -modfile=tools.mod staticcheck ./...
	cd chaos && $(GO) tool -modfile=../tools.mod staticcheck ./...
	$(GO) test -count=1 ./internal/tools/archtest
	$(GO) test -count=1 -ldflags=-s -run='^Test(CommandsOfDocuments|CommandPage|AlertsLeadToTheRunbook)$$' ./cmd/sagamill ./internal/suites/monitoring
	@$(MAKE) --no-print-directory licences >/dev/null
	@$(MAKE) --no-print-directory apidiff

apidiff: ## compare the public API with api/next.txt, and with the newest release's
	@$(GO) run ./internal/tools/apilist

api: ## list the public API anew, in api/next.txt
	@$(GO) run ./internal/tools/apilist -w

# make check compares both pages.
reference: ## write docs/configuration.md and docs/cli.md anew, from the options and the commands
	RECORD_REFERENCE=1 $(GO) test -count=1 -ldflags=-s -run='^Test(ConfigurationPage|CommandPage)$$' ./internal/tools/archtest ./cmd/sagamill

# Run it with each migration, and with each change of a statement.
statements: ## record the SQL statements of all packages, which later migrations are tested with
	RECORD_STATEMENTS=1 $(GO) test -count=1 -run='^TestStatementsAreRecorded$$' ./idemkey/idempg ./outbox ./consumer ./saga ./operator

# It needs a database that is on the network, and must not pass as if it had looked.
vuln: ## known vulnerabilities in what is compiled; says so where the database of them cannot be reached
	@out=$$($(GO) tool -modfile=tools.mod govulncheck ./... 2>&1); code=$$?; \
	case "$$code$$out" in \
		1*'fetching vulnerabilities'*) echo 'SKIPPED: govulncheck cannot reach its database; internal/tools/archtest has the minimum versions';; \
		*) echo "$$out"; exit $$code;; \
	esac

# The systems for which packages, commands and examples compile. Helpers of tests and tools need signals of Unix.
SYSTEMS ?= linux/amd64 linux/arm64 darwin/amd64 darwin/arm64 windows/amd64 windows/arm64

cross: ## compile packages, commands and examples for linux, darwin and windows, on amd64 and arm64; SYSTEMS=windows/amd64 for one
	@set -e; packages=$$($(GO) list -f '{{if .GoFiles}}{{.ImportPath}}{{end}}' ./... | grep -vE '/internal/(testing|suites|tools)(/|$$)'); for system in $(SYSTEMS); do \
		echo "$$system"; \
		CGO_ENABLED=0 GOOS=$${system%/*} GOARCH=$${system#*/} $(GO) build $$packages; \
	done

# A module of go.mod that no package or test imports is not compiled, and not listed.
COMPILED = {{with .Module}}{{if not .Main}}{"Path":"{{.Path}}","Version":"{{.Version}}","Dir":"{{.Dir}}"}{{end}}{{end}}

licences: ## list the licence of each module that packages and tests compile; fails for one that rules.json does not allow
	@modules=$$($(GO) list -deps -test -f '$(COMPILED)' ./...) && printf '%s\n' "$$modules" | sort -u | \
		$(GO) tool -modfile=tools.mod go-licence-detector -includeIndirect -rules internal/tools/licences/rules.json \
		-depsTemplate internal/tools/licences/list.tmpl -depsOut /dev/stdout

fmt: ## format all Go files
	gofmt -l -w .

# The programs are built each time; go knows what has changed. internal/tools/build.sh shows how far the first build is.
BUILD = @GO='$(GO)' internal/tools/build.sh $@

bin/with: FORCE
	$(BUILD) ./internal/tools/with

bin/mutate: FORCE
	$(BUILD) ./internal/tools/mutate/run

bin/modelcheck: FORCE
	$(BUILD) ./internal/tools/modelcheck

bin/sagamill: FORCE
	$(BUILD) ./cmd/sagamill

bin/order-saga: FORCE
	$(BUILD) ./examples/order-saga

bin/trip-saga: FORCE
	$(BUILD) ./examples/trip-saga

bin/chaos: FORCE
	$(BUILD) . chaos
