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
export SANDFARM_TEST_E2B_BEFORE ?= $(shell deploy/setup.sh e2b-before-dir 2>/dev/null)
export SANDFARM_TEST_TYPESCRIPT ?= $(shell deploy/setup.sh typescript-dir 2>/dev/null)
export SANDFARM_TEST_JUPYTER ?= $(shell deploy/setup.sh jupyter-dir 2>/dev/null)
export SANDFARM_TEST_JUPYTER_NODE ?= $(shell deploy/setup.sh jupyter-node-dir 2>/dev/null)
export SANDFARM_TEST_KERNEL ?= $(shell deploy/setup.sh kernel-dir 2>/dev/null)
export SANDFARM_TEST_REFERENCE ?= $(shell deploy/setup.sh reference-dir 2>/dev/null)
export SANDFARM_TEST_UV ?= $(shell deploy/setup.sh uv-path 2>/dev/null)
export SANDFARM_TEST_RUNSC ?= $(CACHE)/bin/sandfarm-runsc
# The OCI runtime of sandboxes in tests, such as runsc (`make gvisor`). Empty: the engine's default.
ifneq ($(RUNTIME),)
export SANDFARM_ENGINE_RUNTIME := $(RUNTIME)
endif
export SANDFARM_TEST_MCP ?= $(shell deploy/setup.sh mcp-dir 2>/dev/null)

# What runs tests and judges them, and makes all that is not the program itself.
DEPLOY = go run ./deploy
TESTS = $(DEPLOY) test
comma = ,

.DEFAULT_GOAL := help
.PHONY: $(shell sed -n 's/^\([a-z][a-z0-9-]*\):.*/\1/p' Makefile) bin/sandfarm-skewed

help: ## print the targets
	@awk -F ':.*## ' '/^[a-z0-9-]+:.*## / {printf "  %-18s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

build: agent ## build bin/sandfarm, with the agent inside
	go build -ldflags "$(LDFLAGS)" -o bin/sandfarm ./cmd/sandfarm

sdk: sdk-python sdk-typescript ## build both SDKs in dist/

sdk-python: ## build the SDK for Python in dist/: a wheel and an sdist
	@deploy/setup.sh sdk
	$(SANDFARM_TEST_SDK)/bin/python -m build --no-isolation --outdir dist sdk/python

sdk-typescript: sdk-typescript-tools ## build the SDK for TypeScript in dist/: a package of npm
	@mkdir -p dist
	cd sdk/typescript && $(NODE) scripts/build.mjs && $(NODE) $(SANDFARM_TEST_TYPESCRIPT)/npm/bin/npm-cli.js pack --loglevel=warn --update-notifier=false --pack-destination ../../dist

# The tools of the TypeScript SDK, where its scripts and editors find them.
NODE = $(SANDFARM_TEST_MCP)/node/bin/node
sdk-typescript-tools:
	@deploy/setup.sh typescript
	@[ -d sdk/typescript/node_modules ] && [ ! -L sdk/typescript/node_modules ] || ln -sfn $(SANDFARM_TEST_TYPESCRIPT)/node_modules sdk/typescript/node_modules

dist: ## build archives for all systems, with checksums and bills of materials, in dist/; ONLY=linux/amd64,darwin/arm64 selects some
	@deploy/setup.sh dist
	@$(DEPLOY) dist -version "$(VERSION)" -time $(shell git log -1 --format=%ct 2>/dev/null || echo 0) -cyclonedx $(CACHE)/bin/cyclonedx-gomod $(if $(ONLY),-only $(ONLY))

agent:
	GOOS=linux go build -buildvcs=false -ldflags "-s -w" -o $(AGENT) ./cmd/agent

# The first time, the program and the sandbox image are built at the same time.
FIRST = AGENT=$(AGENT) LDFLAGS="$(LDFLAGS)" deploy/setup.sh first
first: setup-run
	@$(FIRST)

run: first ## set up this machine, build, and start a farm on 127.0.0.1:8000
	bin/sandfarm up $(ARGS)

down: build ## remove the farm's containers and volumes from the Docker engine
	bin/sandfarm down

doctor: build ## check this machine, and print how to fix each problem
	bin/sandfarm doctor

gvisor: ## build gVisor's runtime runsc and register it in the Docker engine of this machine, which keeps running (docs/operations.md)
	@deploy/setup.sh gvisor
	@$(DEPLOY) gvisor -runsc $(CACHE)/bin/runsc

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

# REGISTRY=registry.example.com/sandfarm; PUSH='kind load docker-image' for a cluster that has no registry.
cluster-images: ## build the images of a farm in a cluster, push them to REGISTRY, and write them into bin/images.yaml (docs/kubernetes.md)
	@: $${REGISTRY:?is not set: name the registry, such as REGISTRY=registry.example.com/sandfarm}
	@deploy/setup.sh cluster-images
	@$(MAKE) --no-print-directory compose-stage
	@cp "$(SANDFARM_TEST_UV)" bin/image/farm/uv
	@deploy/kubernetes/images.sh >bin/images.yaml.new && mv bin/images.yaml.new bin/images.yaml
	@echo "bin/images.yaml has the images: helm install sandfarm deploy/helm/sandfarm --values bin/images.yaml …"

setup-run:
	@deploy/setup.sh run

setup-test:
	@deploy/setup.sh test

# The gate, the cheapest first; it ends at the first red. LIMIT is the time for all steps after the set-up. What the set-up compiles
# collects its garbage less often, which takes 6 to 8 % less time.
GATE = check-build lint check-generated check-unit check-integration check-paths check-page check-faults
LIMIT ?= 25m

test: ## check this tree as CI does, on real parts, in at most 15 minutes; PKG=./internal/blob/... and RUN=TestPut run those tests only, SUBJECT=egress all of one subject
ifneq ($(SUBJECT),)
	@deploy/setup.sh test
	@$(MAKE) --no-print-directory check-build
	@packages=$$(go list ./... | grep -i -- '$(SUBJECT)') || { echo "no package has $(SUBJECT) in its name: go list ./..." >&2; exit 1; }; \
	$(TESTS) -packages "$$packages" -- -count=1 -timeout 20m -tags integration -p 1 $(FLAGS)
	@for dir in $$(git ls-files '*_test.go' | xargs -n 1 dirname | sort -u | grep -vi -- '$(SUBJECT)'); do \
	  run=$$(for f in $$dir/*_test.go; do case $$f in *$(SUBJECT)*) cat $$f;; *) grep -i '^func Test.*$(SUBJECT)' $$f;; esac; done | \
	    sed -n 's/^func \(Test[A-Za-z0-9_]*\)(.*/\1/p' | grep -v '^TestMain$$' | paste -sd'|'); \
	  [ -z "$$run" ] || { echo "$$dir: $$run"; $(TESTS) -packages ./$$dir -- -count=1 -timeout 20m -tags integration -run "^($$run)$$" $(FLAGS); } || exit 1; \
	done
else ifeq ($(filter command,$(origin PKG) $(origin RUN)),)
	@deploy/setup.sh run
	@export GOGC=400; $(FIRST) & first=$$!; deploy/setup.sh gate || { kill $$first; exit 1; }; wait $$first
	@$(DEPLOY) steps -limit $(LIMIT) $(GATE)
else
	@deploy/setup.sh test
	@$(MAKE) --no-print-directory check-build
	@$(TESTS) -packages '$(PKG)' -- -count=1 -timeout 20m -tags integration -p 1 -run '$(RUN)' $(FLAGS)
endif

check-build: build
	bin/sandfarm image build python

check-generated:
	@before=$$(git diff | cksum); $(MAKE) --no-print-directory gen && [ "$$before" = "$$(git diff | cksum)" ] || \
	{ git diff --stat; echo 'generated files are not current: commit what make gen has changed' >&2; exit 1; }
	deploy/dependencies.sh check
	go mod tidy -diff

# Packages with tests that need servers. Those that use the Docker engine run one at a time, since some remove containers of others. The first
# image is built by check-build where there is none, so the test of its base, which takes a minute, is left to test-e2e.
INTEGRATION = $$(git grep -l '^//go:build integration' '*_test.go' | xargs -n 1 dirname | sort -u | sed 's|^|./|')
ENGINE = ./internal/engine ./internal/engine/enginetest ./images
# Programs that compare our kernel with ipykernel by libraries that display as pandas and matplotlib do, which are compared here. test-e2e runs them.
LIBRARIES = ^TestKernelBehavesLikeIPykernel$$/^library$$/^(altair|bokeh|folium|plotly|plotly-show|seaborn|sympy)$$
check-unit:
	@$(TESTS) -rerun -packages "$$(go list ./... | grep -vxF "$$(go list $(INTEGRATION))")" -- -p $(P) -timeout 10m

check-integration:
	@$(TESTS) -rerun -packages "$$(go list $(INTEGRATION) | grep -vxF "$$(go list $(ENGINE) ./cmd/sandfarm)")" -- -count=1 -tags integration -p $(P) -timeout 10m -skip '$(LIBRARIES)'
	@$(TESTS) -rerun -packages '$(ENGINE)' -- -count=1 -tags integration -p 1 -parallel 4 -timeout 10m -skip '^TestBaseFromDebian$$'

# One path for each way in, and a sample of the attacks; beside them the tests of package main that compile nothing. They wait for containers and
# processes more than they compute, so four run at once.
PATHS = RESTGuide|MCPFromCreateToClose|StdioBridge|TwoNodes|KilledWorkerMidRunGivesOneRunWithCompleteOutput|WarmPool|Packages|CompatNotebook|E2B|JupyterClients|Attacks|OtherSystems.*|ServerVerbs.*|ClientNeedsNoServerParts
check-paths:
	@$(TESTS) -rerun -packages ./cmd/sandfarm -- -count=1 -tags integration -parallel 4 -timeout 10m -run '^Test($(PATHS))$$'

check-page:
	@SANDFARM_TEST_AXE=$(CACHE)/axe/axe.min.js $(TESTS) -rerun -packages ./ui -- -count=1 -timeout 5m -tags browser -run '^TestPlayground$$'

# Four faults that count what is lost, doubled and misreported.
check-faults:
	$(call FAULTS,1,5m,^TestParts$$/^(WorkerIsStopped|RedisIsKilled|LeaderIsKilled|CancelAtEveryStage)$$)

# Everything, by parts: a part that is red does not end it.
PARTS = test test-race test-e2e test-faults test-abuse test-attacks test-attacks-gvisor test-gvisor test-e2b test-jupyter test-ui test-programs \
	test-compose test-recipes test-userns check-chart test-kubernetes test-rolling test-soak verify dist fuzz bench
test-all: ## run everything, and write the rows of docs/verification.md; some hours; PART=faults or PART="race dist" runs parts, each within an hour
	@$(DEPLOY) steps -each 1h -page docs/verification.md $(if $(PART),$(foreach part,$(PART),$(or $(filter test-$(part) $(part),$(PARTS)),$(error there is no part $(part): $(PARTS)))),$(PARTS))

test-unit: agent ## run the tests that need no server
	@$(TESTS) -skips -packages '$(PKG)' -- -p $(P) -timeout 10m -run '$(RUN)' $(FLAGS)

test-e2e: setup-test check-build ## run all end-to-end tests of the program, and what the gate leaves out; RUNTIME=runsc runs them under gVisor
	@$(TESTS) -packages './cmd/sandfarm ./images ./internal/agent/kernel' -- -count=1 -p 1 -tags integration -timeout 50m -run '$(RUN)' $(FLAGS)

test-compose: ## test docker compose end to end, with and without buildx, in a separate project
	@deploy/setup.sh test-compose
	@$(MAKE) --no-print-directory compose-stage
	bin/sandfarm image build python
	@SANDFARM_TEST_PLUGINS=$(CACHE)/bin SANDFARM_TEST_MC=$(CACHE)/bin/mc $(TESTS) -packages ./deploy -- -count=1 -timeout 30m -tags compose -run '$(RUN)' $(FLAGS)

# The program with a clock that a test can shift. It compiles everything once more, since everything uses the clock.
bin/sandfarm-skewed: build
	@$(DEPLOY) skewed -o $@ ./cmd/sandfarm

# Suites that print a report of their own at the end: variables, package, flags of go test.
REPORT = @report=$$(mktemp); SANDFARM_TEST_REPORT=$$report $(1) $(TESTS) -packages $(2) -- -count=1 $(3) $(FLAGS); \
	result=$$?; echo; cat "$$report"; rm -f "$$report"; exit $$result
FAULTS = $(call REPORT,SANDFARM_TEST_ROUNDS=$(1),./internal/faulttest,-parallel 4 -timeout $(2) -tags faults -run '$(3)')
ABUSE = $(call REPORT,SANDFARM_TEST_ROUNDS=$(1),./internal/abusetest,-timeout $(2) -tags abuse -run '$(RUN)')

test-faults: setup-test check-build bin/sandfarm-skewed ## take each part of a farm away in turn, and print what became of its jobs; up to 12 minutes
	$(call FAULTS,1,30m,$(RUN))

test-faults-all: setup-test check-build bin/sandfarm-skewed ## the same at 20 random moments of each kind, and faults that last for minutes; some hours
	$(call FAULTS,20,12h,$(RUN))

# The last commit of the release before this one.
ROLLING_FROM ?= e04ae00
test-rolling: setup-test check-build ## update a farm of the release before (ROLLING_FROM, a commit) process by process while it works; 4 minutes
	@deploy/before.sh "$(ROLLING_FROM)" bin/sandfarm-before
	bin/sandfarm-before image build python
	$(call REPORT,SANDFARM_TEST_BEFORE=$(CURDIR)/bin/sandfarm-before,./internal/faulttest,-timeout 10m -tags faults$(comma)rolling -run '^TestRollingUpdate$$')

SOAK ?= 1h
soak: setup-test check-build ## mixed load on a farm for SOAK (1h): memory, keys, descriptors, files must be flat in the second half
	$(call REPORT,SANDFARM_TEST_SOAK=$(SOAK),./internal/faulttest,-timeout 0 -tags faults$(comma)soak -run '^TestSoak$$')

test-soak: ## the same for ten minutes
	@$(MAKE) --no-print-directory soak SOAK=10m

test-abuse: setup-test check-build ## do what a careless or hostile caller would, beside another tenant, and print what it cost; up to 5 minutes
	$(call ABUSE,1,15m)

test-abuse-all: setup-test check-build ## the same ten times over, with the same processes; up to an hour
	$(call ABUSE,10,1h)

# RUN=TestAttacks/escape runs one group; RUNTIME=runsc runs them under gVisor.
test-attacks: setup-test check-build ## run the whole corpus of attacks (worker/testdata/attacks), and print what became of each; 8 minutes
	$(call REPORT,SANDFARM_TEST_ATTACKS=all,./cmd/sandfarm,-timeout 50m -tags integration$(if $(filter runsc,$(RUNTIME)),$(comma)gvisor) -run '$(if $(filter .,$(RUN)),^TestAttack,$(RUN))')

RUNSC = docker info --format '{{range $$name, $$_ := .Runtimes}}{{println $$name}}{{end}}' | grep -qx runsc || $(MAKE) --no-print-directory gvisor
test-attacks-gvisor: setup-test ## the same under gVisor; registers runsc if the engine lacks it
	@$(RUNSC)
	@$(MAKE) --no-print-directory test-attacks RUNTIME=runsc

# What differs most under gVisor, in some four minutes.
test-gvisor: setup-test check-build ## run a sample of the attacks, the network allowlist, and hibernating, under gVisor; registers runsc if the engine lacks it
	@$(RUNSC)
	@SANDFARM_ENGINE_RUNTIME=runsc $(TESTS) -packages ./cmd/sandfarm -- -count=1 -timeout 30m -tags integration,gvisor \
	  -run '^(TestAttack.*|TestAllowlistInARealSandbox|TestSecretsInARealSandbox|TestHibernate)$$' $(FLAGS)

test-userns: setup-test check-build ## use a farm on an engine with userns-remap, which makes the user dockremap on this machine
	@$(TESTS) -packages ./cmd/sandfarm -- -count=1 -timeout 10m -tags integration,userns -run '^TestUserNamespace$$' $(FLAGS)

check-chart: ## check the Helm chart: each value, its schema, helm lint, kubeconform; a minute
	@deploy/setup.sh chart
	@$(TESTS) -packages ./deploy -- -count=1 -timeout 10m -tags chart -run '^TestChart' $(FLAGS)

# The cluster is started and removed, unless one runs (deploy/kubernetes/cluster.sh up).
test-kubernetes: setup-run setup-test check-build ## use sandboxes that are Pods, and a farm by the Helm chart, on a Kubernetes of one node in a container; builds Kubernetes once, which takes half an hour or more
	@deploy/setup.sh kubernetes
	@deploy/setup.sh chart
	@deploy/setup.sh cluster-images
	@$(MAKE) --no-print-directory compose-stage
	@cp "$(SANDFARM_TEST_UV)" bin/image/farm/uv
	@deploy/kubernetes/cluster.sh run $(TESTS) -packages './internal/kube/... ./cmd/sandfarm ./internal/faulttest ./deploy' -- -count=1 -p 1 -timeout 30m -tags kubernetes -run '$(RUN)' $(FLAGS)

# Time for each fuzz target.
FUZZ_TIME ?= 30s
fuzz: agent ## fuzz each parser of untrusted bytes for FUZZ_TIME (30s); RUN=FuzzHello and PKG= select some
	@go list -f '{{.ImportPath}} {{.Dir}}' $(PKG) | while read -r pkg dir; do \
	  grep -hoE '^func Fuzz[A-Za-z0-9_]*' "$$dir"/*_test.go 2>/dev/null | sed "s|^func |$$pkg |"; done | grep -E '$(RUN)' | \
	while read -r pkg target; do echo "$$target $$pkg"; deploy/fuzz.sh "$$pkg" "$$target" $(FUZZ_TIME) $(FLAGS) </dev/null || exit 1; done

vulncheck: agent ## look for known vulnerabilities in what the programs call, where the database can be reached
	@deploy/setup.sh vulncheck
	@deploy/vulncheck.sh $(CACHE)/bin/govulncheck

test-recipes: setup-run check-build ## test the recipes of docs/recipes, with the real packages and a scripted model
	@deploy/setup.sh recipes
	@$(TESTS) -packages ./cmd/sandfarm -- -count=1 -timeout 10m -tags integration,recipes -run '^TestRecipes$$' $(FLAGS)

test-e2b: setup-run check-build ## run the test suites of E2B's SDKs, from the clones E2B and code-interpreter in E2B_SOURCE, and use a farm by their SDKs of a year ago; needs npm; takes about half an hour
	@[ -d '$(E2B_SOURCE)/E2B' ] && [ -d '$(E2B_SOURCE)/code-interpreter' ] || { echo 'E2B_SOURCE=$(E2B_SOURCE) has no clones E2B and code-interpreter of github.com/e2b-dev' >&2; exit 1; }
	@deploy/setup.sh e2b
	@deploy/setup.sh e2b-before
	@E2B_SOURCE='$(abspath $(E2B_SOURCE))' $(TESTS) -skips -packages ./cmd/sandfarm -- -v -count=1 -timeout 3h -tags integration,suites -run '^TestE2B' $(FLAGS)

test-jupyter: setup-run check-build ## use a farm by clients of Jupyter, from their packages: JupyterLab in Chromium, nbclient, papermill, jupyter console, jupyter-kernel-client, AutoGen, the calls of VS Code
	@deploy/setup.sh jupyter
	@deploy/setup.sh jupyter-node
	@deploy/setup.sh ui
	@SANDFARM_TEST_CLIENTS=all $(TESTS) -packages ./cmd/sandfarm -- -count=1 -timeout 20m -tags integration,browser -run '^TestJupyter' $(FLAGS)

test-ui: check-build ## drive the dashboard in Chromium, against farms of its own; PICTURES=docs/pictures writes those of docs/dashboard.md
	@deploy/setup.sh ui
	@SANDFARM_TEST_AXE=$(CACHE)/axe/axe.min.js SANDFARM_TEST_PICTURES=$(if $(PICTURES),$(abspath $(PICTURES))) \
	$(TESTS) -packages ./ui -- -count=1 -parallel 2 -timeout 15m -tags browser -run '$(RUN)' $(FLAGS)

test-programs: check-build ## use Streamlit, Vite with hot reload, and JupyterLab in sandboxes through their ports in Chromium; installs them from the package indexes
	@deploy/setup.sh ui
	bin/sandfarm image build node
	@SANDFARM_TEST_PICTURES=$(if $(PICTURES),$(abspath $(PICTURES))) \
	$(TESTS) -packages ./ui -- -count=1 -parallel 2 -timeout 15m -tags browser,programs -run '^(TestStreamlit|TestVite|TestJupyterLabInASandbox)$$' $(FLAGS)

test-gpu: build ## on a host with NVIDIA GPUs, run nvidia-smi and a CUDA matrix product in a sandbox (docs/gpu.md)
	@deploy/gpu-check.sh

test-race: agent ## run the tests that need no server under the race detector (needs a C compiler)
	@CGO_ENABLED=1 $(TESTS) -skips -packages '$(PKG)' -- -race -p $(P) -timeout 40m -run '$(RUN)' $(FLAGS)

lint: agent lint-sdk ## run golangci-lint, which runs go vet, too (its pinned version is built once), ruff and mypy for the Python SDK, tsc for the TypeScript SDK
	@deploy/setup.sh lint
	GOGC=400 $(LINT) run --allow-serial-runners ./...

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
	@go run deploy/openapi.go >bin/openapi.json
	@$(NODE) sdk/typescript/scripts/generate.mjs <bin/openapi.json >bin/schema.ts && mv bin/schema.ts sdk/typescript/src/schema.ts
	@{ echo '# Settings'; echo; \
	  echo 'Made from the code by `make gen`. Defaults, then a TOML file (`--config` or `SANDFARM_CONFIG`), then the environment;'; \
	  echo 'the last one wins. `sandfarm config example` prints the file, `sandfarm config check` checks it.'; echo; \
  echo 'Most farms set only some of these: `data`, `api.listen`, `api.keys` or `api.require_keys`, `api.preview_domain`, `redis.url`,'; \
  echo '`s3.endpoint` and `s3.public_url`, `engine.runtime`, `worker.images`, `worker.pool`, `worker.slots`, `egress.allow`, `index.pypi_url`,'; \
  echo '`limits.retention_seconds`, and `quotas.*`. What is no setting is a constant: `GET /v1/limits` and the pages on each subject say it.'; echo; \
	  bin/sandfarm config markdown; } > docs/configuration.md

count: ## print how large the tree is: Go files, lines of code and of tests by room, settings, words of the glossary
	@$(DEPLOY) count

verify: gen ## check that generated files are current, go.mod is tidy, each dependency is explained, and builds are reproducible
	git diff --exit-code -- . ':!docs/verification.md'
	deploy/dependencies.sh check
	go mod tidy -diff
	go mod verify
	@deploy/reproducible.sh
	@deploy/setup.sh verify
	$(CACHE)/bin/vacuum lint --ruleset deploy/openapi-rules.yaml --fail-severity warn --no-banner --details bin/openapi.json

bench: setup-test check-build ## run the comparisons of docs/benchmarks.md; ONLY=print,stdout selects some
	go run ./bench $(if $(ONLY),-only $(ONLY))
	@[ -n '$(ONLY)' ] || { echo; echo 'Queue hop, from enqueue to handler, in milliseconds:'; \
	go test -tags integration -run '^$$' -bench Hop -benchtime 40x ./internal/queue | grep '^Benchmark'; }

bench-go: setup-test ## run the Go benchmarks; BENCH=regexp and PKG= select some
	@pkgs=$$(grep -rl --include='*_test.go' '^func Benchmark' . | xargs -n 1 dirname | sort -u); \
	[ '$(PKG)' = ./... ] || pkgs='$(PKG)'; \
	go test -tags integration -run '^$$' -bench '$(BENCH)' -benchmem -p 1 -timeout 60m $(FLAGS) $$pkgs

# Not with the variable MAKE: a line that has it is run under make -n, too.
clean: ## remove build outputs, and everything of Sandfarm from the Docker engine; data in .sandfarm is kept
	@[ ! -e "$${SANDFARM_DATA:-.sandfarm}/farm-id" ] || { { [ -x bin/sandfarm ] || make --no-print-directory build; } && bin/sandfarm down; }
	@! command -v docker >/dev/null 2>&1 || docker image ls --format '{{.Repository}}:{{.Tag}}' 'sandfarm/*' | sort -r | xargs -r docker image rm >/dev/null
	rm -rf bin internal/agent/binary/bin/agent-linux-*
