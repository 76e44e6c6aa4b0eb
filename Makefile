# Everything here works on a fresh clone with Go, git and make. What takes long the first time (test binaries of the
# control plane, linters) is kept in the user's cache directory, outside the tree.

GO       ?= go
VERSION  ?= $(shell git describe --tags --always --dirty --abbrev=12 2>/dev/null || echo devel)
FUZZTIME ?= 10s
# Of the programs of a release.
PLATFORMS ?= linux/amd64 linux/arm64 darwin/amd64 darwin/arm64
# A test that waits for real servers may take its time; one that hangs shall still say where.
TESTFLAGS ?= -timeout 30m
# The names of the only tests that a target runs, as go test's -run has them; empty is all.
ONLY ?=

# With one set of flags, that of a release, what two programs import is compiled once: also what the tests build (test/internal/programs).
BUILD := CGO_ENABLED=0 $(GO) build -trimpath -buildvcs=false
RUN   := CGO_ENABLED=0 $(GO) run -trimpath -buildvcs=false

GOLANGCI_LINT_VERSION := v2.15.0
GOFUMPT_VERSION       := v0.12.0
TOOLS         := $(or $(XDG_CACHE_HOME),$(HOME)/.cache)/kubeferry/tools
GOLANGCI_LINT := $(TOOLS)/golangci-lint-$(GOLANGCI_LINT_VERSION)/golangci-lint
GOFUMPT       := $(TOOLS)/gofumpt-$(GOFUMPT_VERSION)/gofumpt

empty :=
space := $(empty) $(empty)

# The race detector needs a C compiler everywhere but on macOS. Without one the tests run without it, and say so.
RACE = $(shell [ "$$($(GO) env CGO_ENABLED)$$($(GO) env GOOS)" != 0linux ] && echo -race)

.DEFAULT_GOAL := help
.PHONY: help build image release demo test test-all test-unit test-race test-simulated test-e2e test-sinks test-others test-extended extended-e2e extended-sinks extended-others soak lint fmt fuzz bench bench-micro bench-sinks assets schema clean notes

help: ## List the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  %-13s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

build: ## Build bin/kubeferry, a static binary
	$(BUILD) -ldflags "-X main.version=$(VERSION)" -o bin/kubeferry ./cmd/exporter

image: ## Write dist/kubeferry-image.tar, the container image, without Docker; PUSH=REGISTRY/kubeferry:TAG pushes it
	@cd test && $(RUN) ./cmd/release -version $(VERSION) -image ../dist/kubeferry-image.tar -push "$(PUSH)"

release: ## Write programs, image, chart, bills of materials and checksums to dist/VERSION, the same for the same commit; PLATFORMS
	@cd test && $(RUN) ./cmd/release -version $(VERSION) -platforms "$(PLATFORMS)" -o ../dist/$(VERSION)

demo: ## Show it at work on a real API server and a NATS server; Ctrl-C ends it, DEMO_FOR=10s too
	@[ -x bin/demo ] && echo "building the demo" || echo "building the demo, which takes a minute or two; then it says what else is built, and how long that takes"
	@cd test && $(BUILD) -o ../bin/demo ./cmd/demo && exec ../bin/demo

# The flags are those with which programs are built (BUILD, and test/internal/programs): so what both import is compiled once.
RACE_TEST = $(GO) test $(RACE) -trimpath $(TESTFLAGS) $(if $(ONLY),-run '$(ONLY)')
RACE_LIST = $(GO) list $(RACE) -trimpath -test -export
E2E_TEST  = $(if $(RACE_E2E),,CGO_ENABLED=0) $(GO) test $(RACE_E2E) -trimpath $(TESTFLAGS) $(if $(ONLY),-run '$(ONLY)')
E2E_LIST  = $(if $(RACE_E2E),,CGO_ENABLED=0) $(GO) list $(RACE_E2E) -trimpath -test -export

# What `make test-all` runs beside `make test`: these packages of test/, which need more than Go, git and make, or minutes, and the tests of
# test/e2e and test/sinks whose names begin with TestExtended.
EXTENDED := bench cmd/bench deploy examples internal/alerts nodes
OTHERS = $$($(GO) list ./... | grep -vE '/test/(e2e|sinks|$(subst $(space),|,$(EXTENDED)))$$')

# Compilers that run beside tests would take their time, so these are compiled first: `go list -export` does not link. What takes longest
# then runs beside all others: most of it waits. With -k one that fails does not keep the others from running.
test: notes ## Run before a commit: unit tests, and tests against a real API server, etcd, NATS and Kafka
	@echo "preparing what the tests run; the first time on a machine that takes minutes"
	@cd test && $(RUN) ./cmd/assets apiserver kafka nats kubeferry race-kubeferry >/dev/null
	@echo "compiling the tests"
	@$(RACE_LIST) ./... >/dev/null
	@cd test && $(RACE_LIST) ./sinks >/dev/null && $(E2E_LIST) ./e2e $(OTHERS) >/dev/null
	@$(MAKE) --no-print-directory -k -j2 test-e2e test-unit test-sinks test-others

test-all: ## Run all tests, also with Helm, kubectl, promtool, Chromium, Python, Java, images, and a node's programs
	@$(MAKE) --no-print-directory -k test test-extended

# The scheduler of pipeline/flow starts no goroutines, and its simulations run minutes of virtual time. So do the tests in SIMULATED, of package
# pipeline, which measure how long changes wait. With the race detector these take ten times as long, and find nothing that the other tests
# do not find.
SIMULATED := NamespaceBesideAFullMemory|BacklogBehindRefusedObjects|RefusedObjectsHoldUpOnlyThemselves|NamespaceThatFailsBesideOneThatHangs|SharedSinkThatHangs|RetryAfterOfALimitedSink|NewRefusedObjectsHoldUpNoOtherNamespace|OutageBeginsWithFewCalls|OutageBesideRefusedNamespaces|ManyRefusedObjectsInTheLog|CallsThatHangInPart

test-unit: test-race test-simulated ## Run the tests that need no servers

test-race:
	$(RACE_TEST) -skip '^Test($(SIMULATED))$$' $$($(GO) list ./... | grep -v /pipeline/flow$$)

test-simulated:
	CGO_ENABLED=0 $(GO) test -trimpath $(TESTFLAGS) -run '$(ONLY)' ./pipeline/flow
	CGO_ENABLED=0 $(GO) test -trimpath $(TESTFLAGS) -run '$(or $(ONLY),^Test($(SIMULATED))$$)' ./pipeline

# Results are not cached: kubeferry as it is under test is none of the inputs that go knows. It has the race detector; what starts and
# observes it here does not, which would take more time than kubeferry does: `make test-e2e RACE_E2E=-race`.
test-e2e:
	cd test && $(E2E_TEST) -count=1 -skip '^TestExtended' ./e2e

test-sinks:
	cd test && $(RACE_TEST) -count=1 -skip '^TestExtended' ./sinks

test-others:
	cd test && $(E2E_TEST) $(OTHERS)

test-extended: notes ## Run what `make test-all` runs beside `make test`
	@command -v chromium >/dev/null || { echo "NOTE: no chromium, so the page is not tested"; [ "$$CI" != true ]; }
	@echo "preparing what the tests run; the first time on a machine that takes many minutes"
	@cd test && $(RUN) ./cmd/assets >/dev/null && $(RUN) ./cmd/assets controllers
	@echo "compiling the tests"
	@cd test && $(RACE_LIST) ./sinks >/dev/null && $(E2E_LIST) ./e2e $(EXTENDED:%=./%) >/dev/null
	@$(MAKE) --no-print-directory -k -j2 extended-e2e extended-sinks extended-others

extended-e2e:
	cd test && $(E2E_TEST) -count=1 -run '$(or $(ONLY),^TestExtended)' ./e2e

extended-sinks:
	cd test && $(RACE_TEST) -count=1 -run '$(or $(ONLY),^TestExtended)' ./sinks

extended-others:
	cd test && $(E2E_TEST) -count=1 -p 1 $(EXTENDED:%=./%)

soak: assets ## Run the long forms of the fault tests, which take minutes each
	cd test && KUBEFERRY_SOAK=1 $(GO) test -count=1 -timeout 60m -v -run 'KilledTenTimes|LeaderKilled|LeaderStopped|LeaderFrozen|ServerAway|StandbyJoins|SinkGone|HotObject|WatchStartFails|TooManyRefused' ./e2e
	cd test && KUBEFERRY_SOAK=1 $(GO) test -count=1 -timeout 30m -v -run TestExamples$$ ./examples
	cd test && KUBEFERRY_SOAK=1 $(GO) test -count=1 -timeout 60m -v -run Soak ./bench

lint: $(GOLANGCI_LINT) $(GOFUMPT) ## Run vet, golangci-lint with the import rules, gofumpt, and check go.mod, in all modules
	$(GO) vet ./...
	cd test && $(GO) vet ./...
	cd examples/go && $(GO) vet ./...
	$(GOLANGCI_LINT) run ./...
	cd test && $(GOLANGCI_LINT) run --config ../.golangci.yaml ./...
	@unformatted=$$($(GOFUMPT) -l .); if [ -n "$$unformatted" ]; then echo "not formatted (make fmt):"; echo "$$unformatted"; exit 1; fi
	$(GO) mod tidy -diff
	cd test && $(GO) mod tidy -diff
	cd examples/go && $(GO) mod tidy -diff

fmt: $(GOLANGCI_LINT) $(GOFUMPT) ## Format the code and sort its imports
	$(GOFUMPT) -w .
	$(GOLANGCI_LINT) fmt ./...
	cd test && $(GOLANGCI_LINT) fmt --config ../.golangci.yaml ./...

fuzz: ## Run every fuzz target for FUZZTIME (10s)
	@grep -rHoE '^func Fuzz[A-Za-z0-9_]+' --include='*_test.go' . | while IFS=: read -r file func; do \
		target=$${func#func }; echo "$$file $$target"; \
		(cd "$$(dirname "$$file")" && $(GO) test -run '^$$' -fuzz "^$$target\$$" -fuzztime $(FUZZTIME) .) || exit 1; \
	done

bench: bench-micro assets ## Run all benchmarks, also those on a real API server against the floor; BENCHFLAGS='-run live'
	@cd test && $(BUILD) -o ../bin/bench ./cmd/bench && exec ../bin/bench $(BENCHFLAGS)

bench-micro: ## Run the benchmarks that need no servers
	$(GO) test -run '^$$' -bench . -benchmem ./...

bench-sinks: ## Compare each sink with its client library on real servers; takes minutes, and a quiet machine
	cd test && KUBEFERRY_BENCH=1 $(GO) test -count=1 -timeout 30m -v ./bench

assets: ## Fetch and build what the tests run: API server, etcd, Kafka, NATS, kubeferry, the examples; minutes, once
	@echo "preparing what the tests run; the first time on a machine that takes minutes"
	@cd test && $(RUN) ./cmd/assets

schema: ## Write the JSON Schema of the configuration file to bin/kubeferry.schema.json
	@mkdir -p bin
	$(RUN) ./cmd/exporter schema > bin/kubeferry.schema.json

clean: ## Remove what was built in the tree
	rm -rf bin dist

# With CI=true nothing may be left out.
notes:
	@[ -n "$(RACE)" ] || { echo "NOTE: no C compiler, so the race detector is off"; [ "$$CI" != true ]; }

$(GOLANGCI_LINT):
	@echo "building golangci-lint $(GOLANGCI_LINT_VERSION), which takes minutes, once"
	@cd / && GOBIN=$(@D) GOFLAGS= $(GO) install github.com/golangci/golangci-lint/v2/cmd/golangci-lint@$(GOLANGCI_LINT_VERSION)

$(GOFUMPT):
	@cd / && GOBIN=$(@D) GOFLAGS= $(GO) install mvdan.cc/gofumpt@$(GOFUMPT_VERSION)
