#!/bin/sh
# Prepares a machine for Sandfarm: a running Docker engine, a Redis server and, for the tests, a MinIO server and other tools.
#
#   deploy/setup.sh run    what `make run` needs
#   deploy/setup.sh test   what `make test` needs; here a missing Redis is an error
#   deploy/setup.sh gate   what all steps of `make test` need: the linter and Chromium, too
#   deploy/setup.sh compose
#                          what `make compose` needs: docker compose, and the MinIO server and client for their image
#   deploy/setup.sh test-compose
#                          what `make test-compose` needs: docker compose and buildx at their pinned versions
#   deploy/setup.sh minio  the MinIO server, built from its Go module
#   deploy/setup.sh lint   the linter, at its pinned version
#   deploy/setup.sh gotestsum
#                          what runs the tests, at its pinned version; prints its path
#   deploy/setup.sh dist   the tool that writes the bills of materials of `make dist`, at its pinned version
#   deploy/setup.sh vulncheck
#                          the tool that looks for known vulnerabilities, at its pinned version
#   deploy/setup.sh sdk    the tools that build, check and test the Python SDK
#   deploy/setup.sh typescript
#                          the tools that build, check and test the TypeScript SDK
#   deploy/setup.sh recipes
#                          the packages that the recipes of docs/recipes use
#   deploy/setup.sh e2b    the SDKs of E2B, which the tests of /e2b run
#   deploy/setup.sh e2b-before
#                          those of a year ago, which `make test-e2b` runs, too
#   deploy/setup.sh jupyter
#                          clients of Jupyter, which the tests of /jupyter run
#   deploy/setup.sh jupyter-node
#                          the client library of VS Code's Jupyter extension, which make test-jupyter runs
#   deploy/setup.sh kernel the Python environment and the uv that the agent's tests run, and the ipykernel that ours is compared with
#   deploy/setup.sh gvisor gVisor's runtime runsc, at its pinned version, for `make gvisor`
#   deploy/setup.sh kubernetes
#                          the programs of a Kubernetes cluster, at their pinned version, for `make test-kubernetes`; it takes half an hour or more, once
#   deploy/setup.sh cluster-images
#                          what `make cluster-images` needs: the MinIO server and client for their image, and uv
#   deploy/setup.sh chart  helm and kubeconform, at their pinned versions, for the checks of the Helm chart
#   deploy/setup.sh ui     what `make test-ui` needs: Chromium, and axe, which looks for what keeps people from using a page
#   deploy/setup.sh engine the Docker engine alone
#   deploy/setup.sh first  compiles the program and, on a machine that has neither, builds the sandbox image at the same time
#
# It can be run repeatedly: it keeps what exists, which takes a second or two. On Debian and Ubuntu it installs missing packages with
# apt, as root or with sudo. On any other machine it changes nothing and says what is missing and how to install it.
#
#   XDG_CACHE_HOME          tools are built in its folder sandfarm/bin (default ~/.cache)
#   DOCKER_HOST             a remote engine: it must be running; none is installed or started here
#   SANDFARM_TEST_MINIO     a minio binary of your own for the tests
#   SANDFARM_TEST_MCP       a folder of your own with the tools of the MCP tests (node, node_modules, venv)
#   SANDFARM_TEST_SDK       a virtual environment of your own with sdk/python/requirements-dev.txt
#   SANDFARM_TEST_RECIPES   a virtual environment of your own with examples/python/recipes/requirements.txt
#   SANDFARM_TEST_E2B       a folder of your own with the SDKs of E2B (node_modules, venv)
#   SANDFARM_TEST_E2B_BEFORE
#                           the same with those of a year ago
#   SANDFARM_TEST_TYPESCRIPT
#                           a folder of your own with npm and the devDependencies of sdk/typescript/package.json (npm, node_modules)
#   SANDFARM_TEST_JUPYTER   a virtual environment of your own with deploy/jupyter/requirements.txt
#   SANDFARM_TEST_JUPYTER_NODE  a folder of your own with node_modules with deploy/jupyter/package.json
#   SANDFARM_TEST_KERNEL    a virtual environment of your own with images/python/requirements.txt
#   SANDFARM_TEST_REFERENCE a folder of your own with internal/agent/kernel/testdata/difftest/*.txt (libraries, ipykernel, matplotlib)
#   SANDFARM_TEST_KUBERNETES
#                           a folder of your own with the programs of a Kubernetes cluster
#   SANDFARM_TEST_UV        a uv of your own, for the agent's tests
#   SANDFARM_NPM_REGISTRY, npm_config_registry
#                           the registry for those tools (default https://registry.npmjs.org); pip uses its own settings
#   SANDFARM_DOCKERD_FLAGS  flags for a dockerd that is started here
set -eu

minio_version=v0.0.0-20260212201848-7aac2a2c5b7c
mc_version=v0.0.0-20250313080218-cf909e1063a9 # the one that this MinIO requires
lint_version=v2.5.0
gotestsum_version=v1.13.0
vacuum_version=v0.24.0
cyclonedx_version=v1.10.0
vulncheck_version=v1.1.4
helm_version=v3.19.5
kubeconform_version=v0.8.0
compose_version=v2.40.3
buildx_version=v0.29.1
axe_version=4.10.3
axe_sum=0f2b4d7dcdf7d1219df8d1959ad68e565f51d14c3f0d88bb71cd59abeb956292
node_version=22.23.3
node_sum_x64=00b5c43d88958dbbf45339c4d5e9a76289c7e25876fd08270b379e485e151fc5
node_sum_arm64=894b9938b215d40b3a38db094ef436d02b3bc7dd16f04fca145a4735cd9e9035
npm_version=10.9.9
npm_sum=c80bd097147cce32e31010b791bab8c71a26a5e10668210ec9d2e7f4c7cea2a1

here=$(cd "$(dirname "$0")/.." && pwd)
cache=${XDG_CACHE_HOME:-$HOME/.cache}/sandfarm
bin=$cache/bin
log=$cache/log

# shellcheck source=deploy/setup/progress.sh
. "$here/deploy/setup/progress.sh"
# shellcheck source=deploy/setup/packages.sh
. "$here/deploy/setup/packages.sh"
# shellcheck source=deploy/setup/tools.sh
. "$here/deploy/setup/tools.sh"
# shellcheck source=deploy/setup/kubernetes.sh
. "$here/deploy/setup/kubernetes.sh"
# shellcheck source=deploy/setup/engine.sh
. "$here/deploy/setup/engine.sh"
# shellcheck source=deploy/setup/folders.sh
. "$here/deploy/setup/folders.sh"
# shellcheck source=deploy/setup/mcp.sh
. "$here/deploy/setup/mcp.sh"
# shellcheck source=deploy/setup/python.sh
. "$here/deploy/setup/python.sh"
# shellcheck source=deploy/setup/e2b.sh
. "$here/deploy/setup/e2b.sh"
# shellcheck source=deploy/setup/typescript.sh
. "$here/deploy/setup/typescript.sh"
# shellcheck source=deploy/setup/jupyter.sh
. "$here/deploy/setup/jupyter.sh"

die() {
    printf 'setup: %s\n' "$*" >&2
    exit 1
}

have() { command -v "$1" >/dev/null 2>&1; }

# tail_of shows the end of a log, for an error.
tail_of() {
    printf 'setup: the last lines of %s:\n' "$1" >&2
    tail -n 20 "$1" >&2 || true
}

# compile ends this script if a command fails.
compile() { # what, command…
    what=$1
    shift
    timed "compiling $what" "$log/build.log" "$@" && return
    [ -z "$image" ] || kill "$image" 2>/dev/null || true
    tail_of "$log/build.log"
    die "$what could not be compiled: see above"
}

# build_first compiles the program. If there is none yet, it first compiles the image builder, a fifth of the program with the agent in it, which
# then builds the sandbox image at the same time. If that fails, `sandfarm up` builds the image later.
build_first() {
    cd "$here"
    image=
    mkdir -p "$log"
    export CGO_ENABLED=0
    : >"$log/build.log"
    : >"$log/image.log"
    compile "the agent" env GOOS=linux go build -v -buildvcs=false -ldflags "-s -w" -o "$AGENT" ./cmd/agent
    if [ ! -e bin/sandfarm ] && [ -z "${SANDFARM_CONFIG:-}" ]; then
        if timed "compiling the image builder" "$log/build.log" go build -v -ldflags "-s -w" -o bin/deploy ./deploy; then
            say "building the sandbox image at the same time (log: $log/image.log)"
            bin/deploy image python >"$log/image.log" 2>&1 &
            image=$!
        fi
    fi
    compile "the program" go build -v -ldflags "$LDFLAGS" -o bin/sandfarm ./cmd/sandfarm
    [ -z "$image" ] || timed "building the sandbox image" "$log/image.log" wait "$image" || tail_of "$log/image.log"
    rm -f bin/deploy
}

mode=${1:-}
case $mode in
engine) setup_engine ;;
run)
    need_go
    setup_engine
    setup_packages
    ;;
test)
    need_go
    setup_engine
    setup_packages
    # MinIO is compiled while the other tools are downloaded, gVisor after it.
    "$0" minio &
    minio=$!
    setup_mcp
    setup_e2b deploy/e2b SANDFARM_TEST_E2B
    setup_typescript
    setup_jupyter
    setup_sdk
    setup_kernel
    setup_reference
    wait "$minio" || exit 1
    build_gvisor
    ;;
gate)
    need_go
    # Chromium and axe are installed with the other packages; what is compiled is compiled meanwhile.
    "$0" test
    "$0" ui
    "$0" lint
    "$0" gotestsum >/dev/null
    ;;
ui)
    need_go
    setup_engine
    setup_packages
    setup_axe
    setup_minio
    ;;
minio) setup_minio ;;
first)
    need_go
    build_first
    ;;
compose | test-compose)
    need_go
    setup_engine
    have docker || die "the docker command is missing: install it (https://docs.docker.com/engine/install/), and start again"
    setup_packages
    if [ "$mode" = compose ]; then
        setup_compose
    else
        build_compose
        build_buildx
    fi
    # Always the pinned versions, since they go into an image.
    go_tool minio github.com/minio/minio github.com/minio/minio "$minio_version"
    go_tool mc github.com/minio/mc github.com/minio/mc "$mc_version"
    ;;
mcp-dir) mcp_dir ;;
sdk) setup_sdk ;;
sdk-dir) sdk_dir ;;
e2b) setup_e2b deploy/e2b SANDFARM_TEST_E2B ;;
e2b-dir) e2b_dir deploy/e2b ;;
e2b-before) setup_e2b deploy/e2b/before SANDFARM_TEST_E2B_BEFORE ;;
e2b-before-dir) e2b_dir deploy/e2b/before ;;
typescript) setup_typescript ;;
typescript-dir) typescript_dir ;;
jupyter) setup_jupyter ;;
jupyter-dir) jupyter_dir ;;
jupyter-node) setup_jupyter_node ;;
jupyter-node-dir) jupyter_node_dir ;;
recipes) setup_recipes ;;
recipes-dir) recipes_dir ;;
kernel)
    setup_kernel
    setup_reference
    ;;
kernel-dir) kernel_dir ;;
reference-dir) reference_dir ;;
uv-path) uv_path ;;
gvisor)
    need_go
    build_gvisor
    ;;
kubernetes)
    need_go
    build_kubernetes
    ;;
kubernetes-dir) kubernetes_dir ;;
cluster-images)
    need_go
    setup_engine
    go_tool minio github.com/minio/minio github.com/minio/minio "$minio_version"
    go_tool mc github.com/minio/mc github.com/minio/mc "$mc_version"
    setup_uv
    ;;
chart)
    need_go
    go_tool kubeconform github.com/yannh/kubeconform github.com/yannh/kubeconform/cmd/kubeconform "$kubeconform_version"
    go_tool helm helm.sh/helm/v3 helm.sh/helm/v3/cmd/helm "$helm_version"
    ;;
gotestsum) # prints its path
    need_go
    go_tool gotestsum gotest.tools/gotestsum gotest.tools/gotestsum "$gotestsum_version" >&2
    printf '%s\n' "$bin/gotestsum"
    ;;
lint)
    need_go
    go_tool golangci-lint github.com/golangci/golangci-lint/v2 github.com/golangci/golangci-lint/v2/cmd/golangci-lint "$lint_version"
    ;;
verify)
    need_go
    go_required_tool vacuum github.com/daveshanley/vacuum github.com/daveshanley/vacuum "$vacuum_version"
    ;;
vulncheck)
    need_go
    go_required_tool govulncheck golang.org/x/vuln golang.org/x/vuln/cmd/govulncheck "$vulncheck_version"
    ;;
dist)
    need_go
    go_required_tool cyclonedx-gomod github.com/CycloneDX/cyclonedx-gomod github.com/CycloneDX/cyclonedx-gomod/cmd/cyclonedx-gomod "$cyclonedx_version"
    ;;
*)
    printf 'usage: %s run|test|gate|compose|test-compose|lint|dist|vulncheck|sdk|typescript|recipes|e2b|e2b-before|jupyter|jupyter-node|kernel|gvisor|kubernetes|cluster-images|chart|engine\n' "${0#"$here"/}" >&2
    exit 2
    ;;
esac
