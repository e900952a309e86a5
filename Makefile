# Sandfarm. `make` alone prints the targets.

SHELL := /bin/sh
GOARCH := $(shell go env GOARCH 2>/dev/null)
CACHE := $(or $(XDG_CACHE_HOME),$(HOME)/.cache)/sandfarm
VERSION := $(shell git describe --tags --always --dirty 2>/dev/null || echo unknown)
LDFLAGS := -s -w -X main.version=$(VERSION)
AGENT := internal/agent/binary/bin/agent-linux-$(GOARCH)
LINT := $(CACHE)/bin/golangci-lint
# Packages tested in parallel.
P ?= 2
# What to test, to benchmark, and flags for go test: make test PKG=./internal/blob/... RUN=TestPut FLAGS=-v
PKG ?= ./...
RUN ?= .
BENCH ?= .
FLAGS ?=
# Workers of `make compose`.
WORKERS ?= 3

# The binaries are static, so no C compiler is needed. They contain no paths of this machine, so the build cache serves the program,
# the tests, and every copy of the tree.
export CGO_ENABLED = 0
export GOFLAGS := $(strip $(GOFLAGS) -trimpath)
export SANDFARM_TEST_MINIO ?= $(CACHE)/bin/minio
export SANDFARM_TEST_SDK ?= $(shell deploy/setup.sh sdk-dir 2>/dev/null)
export SANDFARM_TEST_RECIPES ?= $(shell deploy/setup.sh recipes-dir 2>/dev/null)
export SANDFARM_TEST_E2B ?= $(shell deploy/setup.sh e2b-dir 2>/dev/null)
export SANDFARM_TEST_TYPESCRIPT ?= $(shell deploy/setup.sh typescript-dir 2>/dev/null)
export SANDFARM_TEST_JUPYTER ?= $(shell deploy/setup.sh jupyter-dir 2>/dev/null)
export SANDFARM_TEST_JUPYTER_NODE ?= $(shell deploy/setup.sh jupyter-node-dir 2>/dev/null)
export SANDFARM_TEST_KERNEL ?= $(shell deploy/setup.sh kernel-dir 2>/dev/null)
export SANDFARM_TEST_REFERENCE ?= $(shell deploy/setup.sh reference-dir 2>/dev/null)
export SANDFARM_TEST_UV ?= $(shell deploy/setup.sh uv-path 2>/dev/null)
export SANDFARM_TEST_RUNSC ?= $(CACHE)/bin/runsc
# The OCI runtime of sandboxes in tests, such as runsc (`make gvisor`). Empty: the engine's default.
ifneq ($(RUNTIME),)
export SANDFARM_ENGINE_RUNTIME := $(RUNTIME)
endif
export SANDFARM_TEST_MCP ?= $(shell deploy/setup.sh mcp-dir 2>/dev/null)

# Packages whose tests use the Docker engine run one at a time, since some remove containers of others.
ENGINE_PKGS = $$(go list -tags integration -test -f '{{if .ForTest}}{{.ForTest}}{{range .Deps}} {{.}}{{end}}{{end}}' $(PKG) \
	| awk '/\/internal\/engine( |$$)/ || $$1 ~ /\/cmd\/sandfarm(_test)?$$/ {print $$1}' | sort -u)
# All other packages.
OTHER_PKGS = $$(go list -tags integration $(PKG) | grep -vxF "$$engine")

TESTSUM = go run ./deploy/testsum

.DEFAULT_GOAL := help
.PHONY: help build first dist sdk sdk-typescript-tools lint-sdk agent run down test test-unit test-race test-integration lint fmt gen verify bench bench-go images doctor gvisor clean setup-run setup-test \
	fuzz vulncheck test-attacks test-gvisor compose compose-init compose-down compose-stage test-compose test-faults test-faults-all test-rolling soak test-abuse test-abuse-all bin/sandfarm-skewed test-gpu test-recipes test-e2b test-jupyter test-ui test-programs test-userns

help: ## print the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  %-18s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

build: agent ## build bin/sandfarm, with the agent inside
	go build -ldflags "$(LDFLAGS)" -o bin/sandfarm ./cmd/sandfarm

sdk: ## build the SDKs in dist/: a wheel and an sdist for Python, a package of npm for TypeScript
	@deploy/setup.sh sdk
	$(SANDFARM_TEST_SDK)/bin/python -m build --no-isolation --outdir dist sdk/python
	@$(MAKE) --no-print-directory sdk-typescript-tools
	cd sdk/typescript && $(NODE) scripts/build.mjs && $(NODE) $(SANDFARM_TEST_TYPESCRIPT)/npm/bin/npm-cli.js pack --pack-destination ../../dist

# The tools of the TypeScript SDK, where its scripts and editors find them.
NODE = $(SANDFARM_TEST_MCP)/node/bin/node
sdk-typescript-tools:
	@deploy/setup.sh typescript
	@[ -d sdk/typescript/node_modules ] && [ ! -L sdk/typescript/node_modules ] || ln -sfn $(SANDFARM_TEST_TYPESCRIPT)/node_modules sdk/typescript/node_modules

dist: ## build archives for all systems, with checksums and bills of materials, in dist/; ONLY=linux/amd64,darwin/arm64 selects some
	@deploy/setup.sh dist
	@go run ./deploy/dist -version "$(VERSION)" -time $(shell git log -1 --format=%ct 2>/dev/null || echo 0) -cyclonedx $(CACHE)/bin/cyclonedx-gomod $(if $(ONLY),-only $(ONLY))

agent:
	GOOS=linux go build -buildvcs=false -ldflags "-s -w" -o $(AGENT) ./cmd/agent

# The first time, the program and the sandbox image are built at the same time.
first: setup-run
	@AGENT=$(AGENT) LDFLAGS="$(LDFLAGS)" deploy/setup.sh first

run: first ## set up this machine, build, and start a farm on 127.0.0.1:8000
	bin/sandfarm up $(ARGS)

down: build ## remove the farm's containers and volumes from the Docker engine
	bin/sandfarm down

doctor: build ## check this machine, and print how to fix each problem
	bin/sandfarm doctor

gvisor: ## build gVisor's runtime runsc and register it in the Docker engine of this machine, which keeps running (docs/operations.md)
	@deploy/setup.sh gvisor
	@go run ./deploy/gvisor -runsc $(CACHE)/bin/runsc

images: setup-run build ## build the sandbox images
	bin/sandfarm image build python

# The build contexts of the images of docker compose.
compose-stage: build
	@mkdir -p bin/image/farm bin/image/minio
	@cp bin/sandfarm bin/image/farm/sandfarm
	@cp $(CACHE)/bin/minio $(CACHE)/bin/mc deploy/compose/minio/* bin/image/minio/

compose-init: ## prepare docker compose: sandbox image, programs for the images, passwords in .env
	@deploy/setup.sh compose
	@$(MAKE) --no-print-directory compose-stage
	bin/sandfarm image build python
	@deploy/compose/init.sh

compose: compose-init ## start a farm of containers with WORKERS workers (docs/compose.md)
	docker compose up --build --detach --wait --scale worker=$(WORKERS)

compose-down: ## stop the farm of `make compose` and remove its containers and sandboxes; data is kept
	docker compose down

setup-run:
	@deploy/setup.sh run

setup-test:
	@deploy/setup.sh test

test: setup-test build ## run all tests, unit and integration, with real components; installs and starts missing ones
	bin/sandfarm image build python
	@engine="$(ENGINE_PKGS)"; other="$(OTHER_PKGS)"; \
	{ [ -z "$$other" ] || go test -json -count=1 -timeout 20m -tags integration -p $(P) -run '$(RUN)' $(FLAGS) $$other; \
	  [ -z "$$engine" ] || go test -json -count=1 -timeout 20m -tags integration -p 1 -run '$(RUN)' $(FLAGS) $$engine; } \
	| $(TESTSUM) -noskip

test-unit: agent ## run the tests that need no server
	@go test -json -p $(P) -timeout 10m -run '$(RUN)' $(FLAGS) $(PKG) | $(TESTSUM)

# With RUNTIME, only packages with tests of sandboxes run.
SANDBOX_PKGS = ./internal/engine/... ./images ./cmd/sandfarm/...
test-integration: setup-test build ## run only the tests that need Docker, Redis, MinIO or Python; RUNTIME=runsc runs those of sandboxes under gVisor
	bin/sandfarm image build python
	@pkgs='$(if $(RUNTIME),$(SANDBOX_PKGS))'; [ -n "$$pkgs" ] || pkgs=$$(grep -rl --include='*_test.go' '^//go:build integration' . | xargs -n 1 dirname | sort -u); \
	go test -json -count=1 -timeout 20m -tags integration -p 1 -run '$(RUN)' $(FLAGS) $$pkgs | $(TESTSUM) -noskip

test-compose: ## test docker compose end to end, with and without buildx, in a separate project
	@deploy/setup.sh test-compose
	@$(MAKE) --no-print-directory compose-stage
	bin/sandfarm image build python
	@SANDFARM_TEST_PLUGINS=$(CACHE)/bin SANDFARM_TEST_MC=$(CACHE)/bin/mc go test -json -count=1 -timeout 30m -tags compose -run '$(RUN)' $(FLAGS) ./deploy/compose | $(TESTSUM) -noskip

# The program with a clock that a test can shift. It compiles everything once more, since everything uses the clock.
bin/sandfarm-skewed: build
	@go run ./internal/faulttest/skewed -o $@ ./cmd/sandfarm

FAULTS = @report=$$(mktemp); SANDFARM_TEST_REPORT=$$report SANDFARM_TEST_ROUNDS=$(1) \
	go test -json -count=1 -parallel 4 -timeout $(2) -tags faults -run '$(RUN)' $(FLAGS) ./internal/faulttest | $(TESTSUM) -noskip; \
	result=$$?; echo; cat "$$report"; rm -f "$$report"; exit $$result

test-faults: setup-test build bin/sandfarm-skewed ## take each part of a farm away in turn, and print what became of its jobs; up to 12 minutes
	bin/sandfarm image build python
	$(call FAULTS,1,12m)

test-faults-all: setup-test build bin/sandfarm-skewed ## the same at 20 random moments of each kind, and faults that last for minutes; some hours
	bin/sandfarm image build python
	$(call FAULTS,20,12h)

# The last commit of the release before this one.
ROLLING_FROM ?= e04ae00
test-rolling: setup-test build ## update a farm of the release before (ROLLING_FROM, a commit) process by process while it works; 4 minutes
	bin/sandfarm image build python
	@deploy/before.sh "$(ROLLING_FROM)" bin/sandfarm-before
	bin/sandfarm-before image build python
	@report=$$(mktemp); SANDFARM_TEST_REPORT=$$report SANDFARM_TEST_BEFORE=$(CURDIR)/bin/sandfarm-before \
	go test -json -count=1 -timeout 10m -tags faults,rolling -run '^TestRollingUpdate$$' $(FLAGS) ./internal/faulttest | $(TESTSUM) -noskip; \
	result=$$?; echo; cat "$$report"; rm -f "$$report"; exit $$result

SOAK ?= 1h
soak: setup-test build ## mixed load on a farm for SOAK (1h): memory, keys, descriptors, files must be flat in the second half
	bin/sandfarm image build python
	@report=$$(mktemp); SANDFARM_TEST_REPORT=$$report SANDFARM_TEST_SOAK=$(SOAK) \
	go test -json -count=1 -timeout 0 -tags faults,soak -run '^TestSoak$$' $(FLAGS) ./internal/faulttest | $(TESTSUM) -noskip; \
	result=$$?; echo; cat "$$report"; rm -f "$$report"; exit $$result

ABUSE = @report=$$(mktemp); SANDFARM_TEST_REPORT=$$report SANDFARM_TEST_ROUNDS=$(1) \
	go test -json -count=1 -timeout $(2) -tags abuse -run '$(RUN)' $(FLAGS) ./internal/abusetest | $(TESTSUM) -noskip; \
	result=$$?; echo; cat "$$report"; rm -f "$$report"; exit $$result

test-abuse: setup-test build ## do what a careless or hostile caller would, beside another tenant, and print what it cost; up to 5 minutes
	bin/sandfarm image build python
	$(call ABUSE,1,5m)

test-abuse-all: setup-test build ## the same ten times over, with the same processes; up to an hour
	bin/sandfarm image build python
	$(call ABUSE,10,1h)

# RUN=TestAttacks/escape runs one group; RUNTIME=runsc runs them under gVisor.
test-attacks: setup-test build ## run the whole corpus of attacks (worker/testdata/attacks), and print what became of each; 8 minutes
	bin/sandfarm image build python
	@report=$$(mktemp); SANDFARM_TEST_REPORT=$$report SANDFARM_TEST_ATTACKS=all \
	go test -json -count=1 -timeout 30m -tags integration -run '$(if $(filter .,$(RUN)),^TestAttack,$(RUN))' $(FLAGS) ./cmd/sandfarm | $(TESTSUM) -noskip; \
	result=$$?; echo; cat "$$report"; rm -f "$$report"; exit $$result

# What differs most under gVisor, in some four minutes.
test-gvisor: setup-test build ## run a sample of the attacks, the network allowlist, and hibernating, under gVisor; registers runsc if the engine lacks it
	@docker info --format '{{range $$name, $$_ := .Runtimes}}{{println $$name}}{{end}}' | grep -qx runsc || $(MAKE) --no-print-directory gvisor
	bin/sandfarm image build python
	@SANDFARM_ENGINE_RUNTIME=runsc go test -json -count=1 -timeout 10m -tags integration,gvisor \
	  -run '^(TestAttack.*|TestAllowlistInARealSandbox|TestSecretsInARealSandbox|TestHibernate)$$' $(FLAGS) ./cmd/sandfarm | $(TESTSUM) -noskip

test-userns: setup-test build ## use a farm on an engine with userns-remap, which makes the user dockremap on this machine
	bin/sandfarm image build python
	@go test -json -count=1 -timeout 10m -tags integration,userns -run '^TestUserNamespace$$' $(FLAGS) ./cmd/sandfarm | $(TESTSUM) -noskip

# Time for each fuzz target.
FUZZ_TIME ?= 30s
fuzz: agent ## fuzz each parser of untrusted bytes for FUZZ_TIME (30s); RUN=FuzzHello and PKG= select some
	@go list -f '{{.ImportPath}} {{.Dir}}' $(PKG) | while read -r pkg dir; do \
	  grep -hoE '^func Fuzz[A-Za-z0-9_]*' "$$dir"/*_test.go 2>/dev/null | sed "s|^func |$$pkg |"; done | grep -E '$(RUN)' | \
	while read -r pkg target; do echo "$$target $$pkg"; deploy/fuzz/fuzz.sh "$$pkg" "$$target" $(FUZZ_TIME) $(FLAGS) </dev/null || exit 1; done

vulncheck: agent ## look for known vulnerabilities in what the program calls, where the database can be reached
	@deploy/setup.sh vulncheck
	@deploy/vulncheck.sh $(CACHE)/bin/govulncheck

test-recipes: setup-run build ## test the recipes of docs/recipes, with the real packages and a scripted model
	@deploy/setup.sh recipes
	bin/sandfarm image build python
	@go test -json -count=1 -timeout 10m -tags integration,recipes -run '^TestRecipes$$' $(FLAGS) ./cmd/sandfarm | $(TESTSUM) -noskip

test-e2b: setup-run build ## run the test suites of E2B's SDKs, from the clones E2B and code-interpreter in E2B_SOURCE; needs npm; takes about half an hour
	@[ -d '$(E2B_SOURCE)/E2B' ] && [ -d '$(E2B_SOURCE)/code-interpreter' ] || { echo 'E2B_SOURCE=$(E2B_SOURCE) has no clones E2B and code-interpreter of github.com/e2b-dev' >&2; exit 1; }
	bin/sandfarm image build python
	@E2B_SOURCE='$(abspath $(E2B_SOURCE))' go test -v -count=1 -timeout 3h -tags integration,suites -run '^TestE2BSuites$$' $(FLAGS) ./cmd/sandfarm

test-jupyter: setup-run build ## use a farm by clients of Jupyter, from their packages: JupyterLab in Chromium, nbclient, papermill, jupyter console, jupyter-kernel-client, AutoGen, the calls of VS Code
	@deploy/setup.sh jupyter
	@deploy/setup.sh jupyter-node
	@deploy/setup.sh ui
	bin/sandfarm image build python
	@SANDFARM_TEST_CLIENTS=all go test -json -count=1 -timeout 20m -tags integration,browser -run '^TestJupyter' $(FLAGS) ./cmd/sandfarm | $(TESTSUM) -noskip

test-ui: build ## drive the dashboard in Chromium, against farms of its own; PICTURES=docs/pictures writes those of docs/dashboard.md
	@deploy/setup.sh ui
	bin/sandfarm image build python
	@SANDFARM_TEST_AXE=$(CACHE)/axe/axe.min.js SANDFARM_TEST_PICTURES=$(if $(PICTURES),$(abspath $(PICTURES))) \
	go test -json -count=1 -parallel 2 -timeout 10m -tags browser -run '$(RUN)' $(FLAGS) ./ui/browsertest | $(TESTSUM) -noskip

test-programs: build ## use Streamlit, Vite with hot reload, and JupyterLab in sandboxes through their ports in Chromium; installs them from the package indexes
	@deploy/setup.sh ui
	bin/sandfarm image build python
	bin/sandfarm image build node
	@SANDFARM_TEST_PICTURES=$(if $(PICTURES),$(abspath $(PICTURES))) \
	go test -json -count=1 -parallel 2 -timeout 15m -tags browser,programs -run '^(TestStreamlit|TestVite|TestJupyterLabInASandbox)$$' $(FLAGS) ./ui/browsertest | $(TESTSUM) -noskip

test-gpu: build ## on a host with NVIDIA GPUs, run nvidia-smi and a CUDA matrix product in a sandbox (docs/gpu.md)
	@deploy/gpu-check.sh

test-race: ## run the tests that need no server under the race detector (needs a C compiler)
	@CGO_ENABLED=1 go test -json -race -p $(P) -timeout 20m -run '$(RUN)' $(FLAGS) $(PKG) | $(TESTSUM)

lint: lint-sdk ## run go vet and golangci-lint (its pinned version is built once), ruff and mypy for the Python SDK, tsc for the TypeScript SDK
	go vet -tags integration,compose,faults,rolling,soak,abuse,recipes,suites,browser,userns ./...
	@deploy/setup.sh lint
	$(LINT) run ./...

lint-sdk: sdk-typescript-tools
	@$(NODE) sdk/typescript/node_modules/typescript/lib/tsc.js -p sdk/typescript/tests
	@deploy/setup.sh sdk
	@cd sdk/python && PATH=$(SANDFARM_TEST_SDK)/bin:$$PATH && ruff check -q . && ruff check -q --ignore D103,T201 ../../examples/python && \
	ruff format -q --check . ../../examples/python && mypy

fmt: ## format the code
	@deploy/setup.sh lint
	$(LINT) fmt ./...

gen: build sdk-typescript-tools ## regenerate the files that are generated from the code
	go generate ./...
	@go run ./deploy/openapi >bin/openapi.json
	@$(NODE) sdk/typescript/scripts/generate.mjs <bin/openapi.json >bin/schema.ts && mv bin/schema.ts sdk/typescript/src/schema.ts
	@{ echo '# Settings'; echo; \
	  echo 'Made from the code by `make gen`. Defaults, then a TOML file (`--config` or `SANDFARM_CONFIG`), then the environment;'; \
	  echo 'the last one wins. `sandfarm config example` prints the file, `sandfarm config check` checks it.'; echo; \
	  bin/sandfarm config markdown; } > docs/configuration.md

verify: gen ## check that generated files are current, go.mod is tidy, each dependency is explained, and builds are reproducible
	git diff --exit-code
	deploy/dependencies.sh check
	go mod tidy -diff
	go mod verify
	@deploy/reproducible.sh
	@deploy/setup.sh verify
	$(CACHE)/bin/vacuum lint --ruleset deploy/openapi/rules.yaml --fail-severity warn --no-banner --details bin/openapi.json

bench: setup-test build ## run the comparisons of docs/benchmarks.md; ONLY=print,stdout selects some
	bin/sandfarm image build python
	go run ./bench $(if $(ONLY),-only $(ONLY))
	@[ -n '$(ONLY)' ] || { echo; echo 'Queue hop, from enqueue to handler, in milliseconds:'; \
	go test -tags integration -run '^$$' -bench Hop -benchtime 40x ./internal/queue | grep '^Benchmark'; }

bench-go: setup-test ## run the Go benchmarks; BENCH=regexp and PKG= select some
	@pkgs=$$(grep -rl --include='*_test.go' '^func Benchmark' . | xargs -n 1 dirname | sort -u); \
	[ '$(PKG)' = ./... ] || pkgs='$(PKG)'; \
	go test -tags integration -run '^$$' -bench '$(BENCH)' -benchmem -p 1 -timeout 60m $(FLAGS) $$pkgs

clean: ## remove build outputs, and everything of Sandfarm from the Docker engine; data in .sandfarm is kept
	@if [ -x bin/sandfarm ] || $(MAKE) --no-print-directory build; then bin/sandfarm down; fi
	@! command -v docker >/dev/null 2>&1 || docker image ls --format '{{.Repository}}:{{.Tag}}' 'sandfarm/*' | sort -r | xargs -r docker image rm >/dev/null
	rm -rf bin internal/agent/binary/bin/agent-linux-*
