# Everything here works on a fresh clone with Go, git and make. What takes long the first time (test binaries of the
# control plane, linters) is kept in the user's cache directory, outside the tree.

GO       ?= go
VERSION  ?= $(shell git describe --tags --always --dirty --abbrev=12 2>/dev/null || echo devel)
FUZZTIME ?= 10s
# Of the programs of a release.
PLATFORMS ?= linux/amd64 linux/arm64 darwin/amd64 darwin/arm64
# A test that waits for real servers may take its time; one that hangs shall still say where.
TESTFLAGS ?= -timeout 30m

GOLANGCI_LINT_VERSION := v2.15.0
GOFUMPT_VERSION       := v0.12.0
TOOLS         := $(or $(XDG_CACHE_HOME),$(HOME)/.cache)/kubeferry/tools
GOLANGCI_LINT := $(TOOLS)/golangci-lint-$(GOLANGCI_LINT_VERSION)/golangci-lint
GOFUMPT       := $(TOOLS)/gofumpt-$(GOFUMPT_VERSION)/gofumpt

# The race detector needs a C compiler everywhere but on macOS. Without one the tests run without it, and say so.
RACE = $(shell [ "$$($(GO) env CGO_ENABLED)$$($(GO) env GOOS)" != 0linux ] && echo -race)

.DEFAULT_GOAL := help
.PHONY: help build image release demo test test-e2e test-others soak test-unit lint fmt fuzz bench bench-micro bench-sinks assets compile schema clean notes

help: ## List the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  %-11s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

build: ## Build bin/kubeferry, a static binary
	CGO_ENABLED=0 $(GO) build -trimpath -buildvcs=false -ldflags "-X main.version=$(VERSION)" -o bin/kubeferry ./cmd/exporter

image: ## Write dist/kubeferry-image.tar, the container image, without Docker; PUSH=REGISTRY/kubeferry:TAG pushes it
	@cd test && $(GO) run ./cmd/image -version $(VERSION) -o ../dist/kubeferry-image.tar -push "$(PUSH)"

release: ## Write programs, image, chart, bills of materials and checksums to dist/VERSION, the same for the same commit; PLATFORMS
	@cd test && $(GO) run ./cmd/release -version $(VERSION) -platforms "$(PLATFORMS)" -o ../dist/$(VERSION)

demo: ## Show it at work on a real API server and a NATS server; Ctrl-C ends it, DEMO_FOR=10s too
	@echo "building the demo"
	@cd test && $(GO) build -buildvcs=false -o ../bin/demo ./cmd/demo && exec ../bin/demo

# What takes longest runs beside all others: most of it waits.
test: notes assets compile ## Run all tests, also those against real servers: API server, NATS, Kafka
	@$(MAKE) --no-print-directory -j2 test-e2e test-others

# Results are not cached: the kubeferry under test is none of the inputs that go knows. It has the race detector; what starts and
# observes it here does not, which would take more time than kubeferry does: `make test-e2e RACE_E2E=-race`.
test-e2e:
	cd test && $(GO) test $(RACE_E2E) -count=1 $(TESTFLAGS) ./e2e

test-others: test-unit
	cd test && $(GO) test $(RACE) -count=1 $(TESTFLAGS) ./examples $$($(GO) list ./... | grep -vE '/(e2e|nodes)$$')

soak: assets ## Run the long forms of the fault tests, which take minutes each
	cd test && KUBEFERRY_SOAK=1 $(GO) test -count=1 -timeout 60m -v -run 'KilledTenTimes|LeaderKilled|LeaderStopped|LeaderFrozen|ServerAway|StandbyJoins|SinkGone|HotObject|WatchStartFails|TooManyRefused' ./e2e
	cd test && $(GO) test -count=1 -timeout 30m -v ./nodes
	cd test && KUBEFERRY_SOAK=1 $(GO) test -count=1 -timeout 30m -v -run TestExamples$$ ./examples
	cd test && KUBEFERRY_SOAK=1 $(GO) test -count=1 -timeout 60m -v -run Soak ./bench

test-unit: ## Run the tests that need no servers
	$(GO) test $(RACE) $(TESTFLAGS) ./...

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
	@cd test && $(GO) build -buildvcs=false -o ../bin/bench ./cmd/bench && exec ../bin/bench $(BENCHFLAGS)

bench-micro: ## Run the benchmarks that need no servers
	$(GO) test -run '^$$' -bench . -benchmem ./...

bench-sinks: ## Compare each sink with its client library on real servers; takes minutes, and a quiet machine
	cd test && KUBEFERRY_BENCH=1 $(GO) test -count=1 -timeout 30m -v ./bench

assets: ## Fetch and build what the tests run: API server, etcd, Kafka, NATS, kubeferry, the examples; minutes, once
	@echo "preparing what the tests run; the first time on a machine that takes minutes"
	@cd test && $(GO) run ./cmd/assets

# Compilers that run beside tests would take their time. `go list -export` compiles without linking, which go test repeats.
compile:
	@echo "compiling the tests"
	@$(GO) list -test -export $(RACE) ./... >/dev/null
	@cd test && $(GO) list -test -export $(RACE_E2E) ./e2e >/dev/null && $(GO) list -test -export $(RACE) ./... >/dev/null

schema: ## Write the JSON Schema of the configuration file to bin/kubeferry.schema.json
	@mkdir -p bin
	$(GO) run ./cmd/exporter schema > bin/kubeferry.schema.json

clean: ## Remove what was built in the tree
	rm -rf bin dist

notes:
	@[ -n "$(RACE)" ] || { echo "NOTE: no C compiler, so the race detector is off"; [ "$$CI" != true ]; }
	@command -v chromium >/dev/null || { echo "NOTE: no chromium, so the page is not tested"; [ "$$CI" != true ]; }
	@command -v java >/dev/null || { echo "NOTE: no java, so a stand-in (kfake) takes the place of Kafka"; [ "$$CI" != true ]; }

$(GOLANGCI_LINT):
	@echo "building golangci-lint $(GOLANGCI_LINT_VERSION), which takes minutes, once"
	@cd / && GOBIN=$(@D) GOFLAGS= $(GO) install github.com/golangci/golangci-lint/v2/cmd/golangci-lint@$(GOLANGCI_LINT_VERSION)

$(GOFUMPT):
	@cd / && GOBIN=$(@D) GOFLAGS= $(GO) install mvdan.cc/gofumpt@$(GOFUMPT_VERSION)
