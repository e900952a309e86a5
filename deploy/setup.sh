#!/bin/sh
# Prepares a machine for Sandfarm: a running Docker engine, a Redis server and, for the tests, a MinIO server and other tools.
#
#   deploy/setup.sh run    what `make run` needs
#   deploy/setup.sh test   what `make test` needs; here a missing Redis is an error
#   deploy/setup.sh compose
#                          what `make compose` needs: docker compose, and the MinIO server for its image
#   deploy/setup.sh test-compose
#                          what `make test-compose` needs: docker compose and buildx at their pinned versions
#   deploy/setup.sh lint   the linter, at its pinned version
#   deploy/setup.sh dist   what writes the bill of materials of `make dist`, at its pinned version
#   deploy/setup.sh sdk    what builds, checks and tests the Python SDK
#   deploy/setup.sh recipes
#                          the packages that the recipes of docs/recipes use
#   deploy/setup.sh kernel the Python environment and the uv that the agent's tests run
#   deploy/setup.sh engine the Docker engine alone
#   deploy/setup.sh first  compiles the program and, on a machine that has neither, builds the sandbox image at the same time
#
# It can be run any number of times: it keeps what exists, and then takes a second or two. Missing packages are installed with apt on
# Debian and Ubuntu, as root or with sudo. On any other machine it changes nothing and says what is missing and how to get it.
#
#   XDG_CACHE_HOME          tools are built in its folder sandfarm/bin (default ~/.cache)
#   DOCKER_HOST             a remote engine: it must be running; none is installed or started here
#   SANDFARM_TEST_MINIO     a minio binary of your own for the tests
#   SANDFARM_TEST_MCP       a folder of your own with what the MCP tests run (node, node_modules, venv)
#   SANDFARM_TEST_SDK       a virtual environment of your own with sdk/python/requirements-dev.txt
#   SANDFARM_TEST_RECIPES   a virtual environment of your own with examples/python/recipes/requirements.txt
#   SANDFARM_TEST_KERNEL    a virtual environment of your own with images/python/requirements.txt
#   SANDFARM_TEST_UV        a uv of your own, for the agent's tests
#   SANDFARM_NPM_REGISTRY, npm_config_registry
#                           where that is taken from (default https://registry.npmjs.org); pip takes its own settings
#   SANDFARM_DOCKERD_FLAGS  flags for a dockerd that is started here
set -eu

minio_version=v0.0.0-20260212201848-7aac2a2c5b7c
lint_version=v2.5.0
vacuum_version=v0.24.0
cyclonedx_version=v1.10.0
compose_version=v2.40.3
buildx_version=v0.29.1
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

# --- rights ---------------------------------------------------------------------------------------------------------

# may_be_root reports whether commands can run as root: we are root, or sudo works (it may prompt on a terminal).
may_be_root() {
    [ "$(id -u)" = 0 ] && return 0
    have sudo || return 1
    sudo -n true 2>/dev/null || [ -t 0 ]
}

as_root() {
    if [ "$(id -u)" = 0 ]; then "$@"; else sudo "$@"; fi
}

# may_install reports whether packages can be installed with apt here.
may_install() { have apt-get && may_be_root; }

# --- packages -------------------------------------------------------------------------------------------------------

# apt_install installs Debian packages, without recommended ones. Their services are not started: this script starts the engine, and
# the farm starts its own private Redis.
apt_install() {
    mkdir -p "$log"
    apt_log=$log/apt.log
    : >"$apt_log"
    if [ ! -e /usr/sbin/policy-rc.d ]; then
        # The documented way to keep Debian's package scripts from starting services.
        as_root sh -c 'printf "#!/bin/sh\nexit 101\n" >/usr/sbin/policy-rc.d && chmod 755 /usr/sbin/policy-rc.d'
        trap 'as_root rm -f /usr/sbin/policy-rc.d' EXIT
        trap 'exit 130' INT
        trap 'exit 143' TERM
        policy=ours
    fi
    if ! timed "fetching the package lists" "$apt_log" \
        as_root env DEBIAN_FRONTEND=noninteractive apt-get -q -o DPkg::Lock::Timeout=300 update; then
        say "apt-get update had errors; continuing with the package lists that are here"
    fi
    if ! timed "installing with apt: $*" "$apt_log" \
        as_root env DEBIAN_FRONTEND=noninteractive apt-get -q -y -o DPkg::Lock::Timeout=300 install --no-install-recommends "$@"; then
        tail_of "$apt_log"
        die "apt-get could not install $*: see above, repair it, and start again"
    fi
    if [ "${policy:-}" = ours ]; then
        as_root rm -f /usr/sbin/policy-rc.d
        trap - EXIT INT TERM
        policy=
    fi
}

# known_package reports whether apt knows a package.
known_package() { apt-cache show "$1" >/dev/null 2>&1; }

# --- Go -------------------------------------------------------------------------------------------------------------

need_go() {
    have go || die "Go is missing: install it from https://go.dev/dl/ (1.21 or newer; it fetches the version that go.mod names)"
    # A Go older than 1.21 cannot fetch a newer one by itself.
    minor=$(go env GOVERSION 2>/dev/null | sed -n 's/^go1\.\([0-9]*\).*/\1/p')
    [ "${minor:-99}" -ge 21 ] ||
        die "Go 1.$minor is too old: install 1.21 or newer from https://go.dev/dl/ (it fetches the version that go.mod names)"
}

# go_tool builds a command of a Go module at a pinned version into the cache, unless that version is there already.
go_tool() { # name, module, package, version
    if [ -x "$bin/$1" ] && go version -m "$bin/$1" 2>/dev/null | grep -q "mod[[:space:]]$2[[:space:]]$4"; then
        return 0
    fi
    mkdir -p "$bin" "$log"
    : >"$log/$1.log"
    work=$(mktemp -d "$bin/.$1.XXXXXX")
    # -C keeps this module's go.mod out of it. Built aside and renamed: an interrupted build leaves nothing incomplete.
    if ! timed "building $1 $4 (once)" "$log/$1.log" \
        env GOFLAGS='' CGO_ENABLED=0 GOBIN="$work" go -C "$work" install -v -trimpath -ldflags "-s -w" "$3@$4"; then
        rm -rf "$work"
        tail_of "$log/$1.log"
        die "$1 $4 could not be built: see above; it needs the Go module proxy to be reachable"
    fi
    mv "$work/$1" "$bin/$1"
    rm -rf "$work"
}

# go_required_tool is go_tool for a module whose list of versions a proxy may not give: it is required by an empty module.
go_required_tool() { # name, module, package, version
    if [ -x "$bin/$1" ] && go version -m "$bin/$1" 2>/dev/null | grep -q "mod[[:space:]]$2[[:space:]]$4"; then
        return 0
    fi
    say "building $1 $4 (once; about a minute)"
    mkdir -p "$bin" "$log"
    work=$(mktemp -d "$bin/.$1.XXXXXX")
    if ! (cd "$work" && export GOFLAGS='' CGO_ENABLED=0 && go mod init tool && go mod edit -require "$2@$4" &&
        go build -mod=mod -trimpath -ldflags "-s -w" -o "$1" "$3") >"$log/$1.log" 2>&1; then
        rm -rf "$work"
        tail_of "$log/$1.log"
        die "$1 $4 could not be built: see above; it needs the Go module proxy to be reachable"
    fi
    mv "$work/$1" "$bin/$1"
    rm -rf "$work"
}

# go_plugin builds a plugin of the docker command into the cache, unless that version is there already. Their modules replace
# others, so they are built as a dependency of an empty module.
go_plugin() { # name, module, package, version, variable that holds the version
    if [ -x "$bin/$1" ] && go version -m "$bin/$1" 2>/dev/null | grep -q "mod[[:space:]]$2[[:space:]]$4"; then
        return 0
    fi
    mkdir -p "$bin" "$log"
    : >"$log/$1.log"
    work=$(mktemp -d "$bin/.$1.XXXXXX")
    # shellcheck disable=SC2016 # the inner shell expands its own arguments
    if ! timed "building $1 $4 (once)" "$log/$1.log" env GOFLAGS='' CGO_ENABLED=0 sh -c \
        'cd "$1" && go mod init plugin && go get -tool "$2@$3" && go build -v -trimpath -ldflags "-s -w -X $4=$3" -o "$5" "$2"' sh \
        "$work" "$3" "$4" "$5" "$1"; then
        rm -rf "$work"
        tail_of "$log/$1.log"
        die "$1 $4 could not be built: see above; it needs the Go module proxy to be reachable"
    fi
    mv "$work/$1" "$bin/$1"
    rm -rf "$work"
}

build_compose() {
    go_plugin docker-compose github.com/docker/compose/v2 github.com/docker/compose/v2/cmd "$compose_version" \
        github.com/docker/compose/v2/internal.Version
}

build_buildx() {
    go_plugin docker-buildx github.com/docker/buildx github.com/docker/buildx/cmd/buildx "$buildx_version" \
        github.com/docker/buildx/version.Version
}

# setup_compose installs the compose plugin of the docker command, if it is missing.
setup_compose() {
    if docker compose version >/dev/null 2>&1; then return 0; fi
    build_compose
    plugins=${DOCKER_CONFIG:-$HOME/.docker}/cli-plugins
    mkdir -p "$plugins"
    [ -e "$plugins/docker-compose" ] || ln -sf "$bin/docker-compose" "$plugins/docker-compose"
    docker compose version >/dev/null 2>&1 || die "docker compose does not run as a plugin at $plugins/docker-compose: see 'docker compose version'"
}

# --- Docker ---------------------------------------------------------------------------------------------------------

socket=/var/run/docker.sock

# engine_answers reports whether this user can use the engine.
engine_answers() {
    if have docker; then
        docker info >/dev/null 2>&1
    elif [ -n "${DOCKER_HOST:-}" ]; then
        return 0 # nothing here to ask it with; the farm itself will
    elif have curl; then
        curl -fsS --max-time 5 --unix-socket "$socket" http://engine/_ping >/dev/null 2>&1
    else
        return 1
    fi
}

# engine_runs reports whether a dockerd runs on this machine, even if this user cannot use it.
engine_runs() {
    for process in /proc/[0-9]*; do
        read -r name 2>/dev/null <"$process/comm" && [ "$name" = dockerd ] && return 0
    done
    return 1
}

# find_dockerd prints where dockerd is; /usr/sbin is not on every user's PATH.
find_dockerd() {
    for dir in "" /usr/sbin/ /usr/local/bin/ /usr/local/sbin/; do
        if command -v "${dir}dockerd" 2>/dev/null; then return 0; fi
    done
    return 1
}

# await_engine waits until the engine answers, or fails with the reason.
await_engine() { # log file or empty
    tries=0
    while [ $tries -lt 60 ]; do
        if engine_answers; then
            say "the Docker engine is ready"
            return 0
        fi
        if [ $tries -ge 5 ] && ! engine_runs; then break; fi # it ended
        sleep 1
        tries=$((tries + 1))
    done
    [ -z "$1" ] || tail_of "$1"
    engine_runs && may_not_use
    die "the Docker engine did not start: see its log (${1:-journalctl -u docker})"
}

# may_not_use fails if an engine is running that this user may not use.
may_not_use() {
    if [ "$(id -u)" != 0 ] && [ -S "$socket" ] && [ ! -w "$socket" ]; then
        die "you may not use the Docker engine at $socket: run 'sudo usermod -aG docker $(id -un)' and log in again, or work as root"
    fi
}

# engine_packages prints what the engine needs on this machine.
engine_packages() {
    printf 'docker.io '
    # With AppArmor in the kernel, the engine cannot start a container without its parser.
    if grep -qs Y /sys/module/apparmor/parameters/enabled && ! have apparmor_parser; then printf 'apparmor '; fi
    # Without an init system the control groups are not mounted.
    if ! grep -q ' cgroup2\{0,1\} ' /proc/mounts; then printf 'cgroupfs-mount '; fi
}

start_engine() { # path of dockerd
    if [ -d /run/systemd/system ] && have systemctl; then
        say "starting the Docker engine with systemctl"
        as_root systemctl start docker || die "systemctl could not start docker: see 'journalctl -u docker'"
        await_engine ""
        return
    fi
    say "starting the Docker engine (no init system runs here)"
    mkdir -p "$log"
    if ! grep -q ' cgroup2\{0,1\} ' /proc/mounts && have cgroupfs-mount; then
        as_root cgroupfs-mount
    fi
    # A stale containerd socket makes dockerd wait for it forever.
    if [ -S /run/containerd/containerd.sock ] && ! grep -qsx containerd /proc/[0-9]*/comm; then
        as_root rm -f /run/containerd/containerd.sock
    fi
    # setsid -f: it must outlive make and the terminal. It must not inherit our descriptors, or a reader of our output would wait
    # for it.
    # shellcheck disable=SC2086,SC2016 # the flags are words; the inner shell expands its own arguments
    as_root setsid -f sh -c 'log=$1; shift; exec "$@" >>"$log" 2>&1' sh \
        "$log/dockerd.log" "$1" ${SANDFARM_DOCKERD_FLAGS:-} >/dev/null 2>&1 </dev/null
    await_engine "$log/dockerd.log"
}

setup_engine() {
    if engine_answers; then return 0; fi
    if [ -n "${DOCKER_HOST:-}" ]; then
        die "the Docker engine at DOCKER_HOST=$DOCKER_HOST does not answer: start it, or unset DOCKER_HOST to use one on this machine"
    fi
    if engine_runs; then
        may_not_use
        await_engine "" # it may be starting
        return
    fi
    if ! dockerd=$(find_dockerd); then
        [ "$(uname -s)" = Linux ] ||
            die "no Docker engine answers: start Docker Desktop (https://docs.docker.com/desktop/), and start again"
        may_install ||
            die "no Docker engine is here and it cannot be installed from here: install one (https://docs.docker.com/engine/install/), start it, and start again"
        # shellcheck disable=SC2046 # a list of words
        apt_install $(engine_packages) $(missing_packages)
        # Newer Debian has the docker command in a package of its own.
        if ! have docker && known_package docker-cli; then apt_install docker-cli; fi
        dockerd=$(find_dockerd) || die "docker.io is installed, but has no dockerd"
    fi
    may_be_root ||
        die "the Docker engine is installed but not running, and starting it needs root: run 'sudo systemctl start docker' (or dockerd), and start again"
    start_engine "$dockerd"
}

# --- the rest -------------------------------------------------------------------------------------------------------

# Packages that build a base image without a registry. Ubuntu needs the keyring to verify Debian's signatures.
base_packages='debootstrap debian-archive-keyring '

# missing_packages prints the missing Debian packages of this mode.
missing_packages() {
    case $mode in *compose) ;; *) have redis-server || printf 'redis-server ' ;; esac
    have debootstrap || [ -x /usr/sbin/debootstrap ] || base_is_there || printf '%s' "$base_packages"
    if [ "$mode" = test ]; then
        have python3 || printf 'python3 '
        have jq || printf 'jq '
        have curl || [ -d "$(mcp_dir)" ] || printf 'curl ca-certificates '
        venv_works || printf 'python3-venv '
        have prometheus && have promtool || printf 'prometheus '
    fi
}

# base_is_there reports whether the base image exists, or a registry has it.
base_is_there() {
    have docker || return 1
    docker image inspect sandfarm/base:latest >/dev/null 2>&1 && return 0
    timeout 15 docker manifest inspect python:3.13-slim >/dev/null 2>&1
}

venv_works() { python3 -c 'import ensurepip, venv' >/dev/null 2>&1; }

setup_packages() {
    wanted=$(missing_packages)
    [ -n "$wanted" ] || return 0
    if may_install; then
        # shellcheck disable=SC2086 # a list of words
        apt_install $wanted
        # The packages would start Redis and Prometheus at the next boot; the farm and its tests start their own.
        for service in redis-server prometheus; do
            case " $wanted" in *" $service "*)
                if [ -d /run/systemd/system ] && have systemctl; then
                    as_root systemctl disable --quiet --now "$service" >/dev/null 2>&1 || true
                fi ;;
            esac
        done
        return 0
    fi
    if [ "$mode" = test ]; then
        case $wanted in
        "$base_packages") ;; # the image build says so itself when it comes to need it
        *) die "the tests need missing packages: install ${wanted% } with this machine's package manager, and start again" ;;
        esac
    fi
    case $wanted in *redis-server*)
        say "no redis-server here: the farm keeps its records in memory and forgets its jobs when it stops" ;;
    esac
}

setup_minio() {
    # The Makefile sets the one that is built here; any other is the caller's own and must exist.
    if [ "${SANDFARM_TEST_MINIO:-$bin/minio}" != "$bin/minio" ]; then
        [ -x "$SANDFARM_TEST_MINIO" ] || die "SANDFARM_TEST_MINIO=$SANDFARM_TEST_MINIO is not an executable"
        return 0
    fi
    go_tool minio github.com/minio/minio github.com/minio/minio "$minio_version"
}

# --- folders in the cache -------------------------------------------------------------------------------------------

# new_folder makes a temporary folder, which is removed if this script is interrupted. Its path is in $work.
new_folder() { # the name under which it will be published
    mkdir -p "$cache" "$log"
    work=$(mktemp -d "$1.XXXXXX")
    trap 'rm -rf "$work"' EXIT
    trap 'exit 130' INT
    trap 'exit 143' TERM
}

# publish atomically makes a name a link to the prepared folder: others see nothing or all of it. A virtual environment knows its own
# path, so the folder is not moved.
publish() { # name
    chmod 755 "$work"
    ln -s "${work##*/}" "$work.link"
    old=$(readlink "$1" || true)
    if [ ! -L "$1" ]; then rm -rf "$1"; fi # a folder, as earlier versions of this script made it
    python3 -c 'import os, sys; os.replace(sys.argv[1], sys.argv[2])' "$work.link" "$1"
    trap - EXIT INT TERM
    if [ -n "$old" ]; then rm -rf "${1%/*}/$old"; fi
}

# discard removes the prepared folder, if another run of this script has published its own meanwhile.
discard() {
    rm -rf "$work"
    trap - EXIT INT TERM
}

# make_venv prepares a virtual environment.
make_venv() { # folder, python, requirements, name of the log
    : >"$log/$4.log"
    # shellcheck disable=SC2016 # the inner shell expands its own arguments
    timed "installing ${3#"$here/"}" "$log/$4.log" sh -c \
        '"$2" -m venv "$1" && "$1/bin/python" -m pip install --disable-pip-version-check --progress-bar off -r "$3"' sh "$1" "$2" "$3"
}

# --- MCP ------------------------------------------------------------------------------------------------------------

# mcp_pins prints what the folder with the MCP tools depends on.
mcp_pins() {
    printf '%s\n' "$node_version" "$npm_version" "$(uname -m)"
    cat "$here/deploy/mcp/package-lock.json" "$here/deploy/mcp/requirements.txt"
}

# mcp_dir prints where those tools are: one folder for each set of versions.
mcp_dir() { printf '%s/mcp-%s' "$cache" "$(mcp_pins | sha256sum | cut -c 1-12)"; }

# npm_tarball downloads a package from the registry, verifies its sum and unpacks it.
npm_tarball() { # name, version, sum, directory
    curl -fsSL --retry 3 --connect-timeout 20 --max-time 600 -o "$4.tgz" "$registry/$1/-/$1-$2.tgz" ||
        die "$1 $2 could not be fetched from $registry: the MCP tests need it (SANDFARM_NPM_REGISTRY names another registry)"
    printf '%s  %s\n' "$3" "$4.tgz" | sha256sum -c - >/dev/null || die "$1 $2 from $registry is not the file that is pinned here"
    mkdir -p "$4"
    tar -xzf "$4.tgz" -C "$4" --strip-components=1
    rm "$4.tgz"
}

# setup_mcp installs Node and, from their lock files, the official MCP clients and the conformance runner. Node and npm are
# downloaded from the npm registry, so neither needs to be installed.
setup_mcp() {
    if [ -n "${SANDFARM_TEST_MCP:-}" ] && [ "$SANDFARM_TEST_MCP" != "$(mcp_dir)" ]; then
        [ -x "$SANDFARM_TEST_MCP/node/bin/node" ] || die "SANDFARM_TEST_MCP=$SANDFARM_TEST_MCP has no node/bin/node"
        return 0
    fi
    dir=$(mcp_dir)
    if mcp_works "$dir"; then return 0; fi
    case $(uname -m) in
    x86_64) node_arch=x64 node_sum=$node_sum_x64 ;;
    aarch64 | arm64) node_arch=arm64 node_sum=$node_sum_arm64 ;;
    *) die "the MCP tests need Node $node_version, and there is none for $(uname -m) here" ;;
    esac
    have curl || die "curl is missing, which downloads Node for the MCP tests: install it, and start again"
    registry=${SANDFARM_NPM_REGISTRY:-${npm_config_registry:-https://registry.npmjs.org}}
    registry=${registry%/}
    say "fetching Node $node_version, the MCP conformance runner and the MCP SDKs (once; about a minute)"
    new_folder "$dir"
    npm_tarball "node-linux-$node_arch" "$node_version" "$node_sum" "$work/node"
    npm_tarball npm "$npm_version" "$npm_sum" "$work/npm"
    cp "$here/deploy/mcp/package.json" "$here/deploy/mcp/package-lock.json" "$work/"
    # Scripts of packages are not run. Node uses the system's certificates, for registries behind a company's own authority.
    : >"$log/mcp.log"
    if ! timed "installing the packages of deploy/mcp" "$log/mcp.log" env -C "$work" PATH="$work/node/bin:$PATH" HOME="$work" \
        npm_config_registry="$registry" node --use-system-ca npm/bin/npm-cli.js ci --ignore-scripts --no-audit --no-fund --cache "$work/.npm"; then
        tail_of "$log/mcp.log"
        die "the packages of deploy/mcp/package-lock.json could not be installed from $registry: see above"
    fi
    rm -rf "$work/.npm" "$work/npm"
    if ! make_venv "$work/venv" python3 "$here/deploy/mcp/requirements.txt" mcp-python; then
        tail_of "$log/mcp-python.log"
        die "the Python MCP SDK of deploy/mcp/requirements.txt could not be installed: see above"
    fi
    if mcp_works "$dir"; then discard; else publish "$dir"; fi
}

# mcp_works reports whether a folder is complete.
mcp_works() {
    [ -x "$1/node/bin/node" ] && "$1/venv/bin/python" -c 'from importlib import util; util.find_spec("mcp").name' 2>/dev/null
}

# --- the Python SDK -------------------------------------------------------------------------------------------------

# sdk_dir prints where its tools are: one virtual environment for each set of versions.
sdk_dir() { printf '%s/sdk-%s' "$cache" "$(sha256sum <"$here/sdk/python/requirements-dev.txt" | cut -c 1-12)"; }

# need_python makes sure that python3 can run the SDK in a virtual environment.
need_python() {
    if ! venv_works; then
        may_install || die "Python 3.10 or newer with venv is missing: install it with this machine's package manager, and start again"
        apt_install python3 python3-venv
    fi
    python3 -c 'import sys; sys.exit(sys.version_info < (3, 10))' || die "python3 is older than 3.10, which the Python SDK needs: install a newer one"
}

setup_sdk() {
    if [ -n "${SANDFARM_TEST_SDK:-}" ] && [ "$SANDFARM_TEST_SDK" != "$(sdk_dir)" ]; then
        [ -x "$SANDFARM_TEST_SDK/bin/python" ] || die "SANDFARM_TEST_SDK=$SANDFARM_TEST_SDK has no bin/python"
        return 0
    fi
    need_python
    dir=$(sdk_dir)
    if sdk_works "$dir"; then return 0; fi
    say "fetching the tools of the Python SDK (once; about a minute)"
    new_folder "$dir"
    if ! make_venv "$work" python3 "$here/sdk/python/requirements-dev.txt" sdk; then
        tail_of "$log/sdk.log"
        die "the packages of sdk/python/requirements-dev.txt could not be installed: see above"
    fi
    if sdk_works "$dir"; then discard; else publish "$dir"; fi
}

# sdk_works reports whether the environment exists and starts. It does not start if its Python was replaced.
sdk_works() { "$1/bin/python" -c 'import pytest, zmq' 2>/dev/null; }

# --- the recipes ----------------------------------------------------------------------------------------------------

# recipes_dir prints where the packages of the recipes are: one virtual environment for each set of versions.
recipes_dir() { printf '%s/recipes-%s' "$cache" "$(sha256sum <"$here/examples/python/recipes/requirements.txt" | cut -c 1-12)"; }

setup_recipes() {
    if [ -n "${SANDFARM_TEST_RECIPES:-}" ] && [ "$SANDFARM_TEST_RECIPES" != "$(recipes_dir)" ]; then
        [ -x "$SANDFARM_TEST_RECIPES/bin/python" ] || die "SANDFARM_TEST_RECIPES=$SANDFARM_TEST_RECIPES has no bin/python"
        return 0
    fi
    need_python
    dir=$(recipes_dir)
    if recipes_work "$dir"; then return 0; fi
    say "fetching the packages of the recipes (once; about a minute)"
    new_folder "$dir"
    if ! make_venv "$work" python3 "$here/examples/python/recipes/requirements.txt" recipes; then
        tail_of "$log/recipes.log"
        die "the packages of examples/python/recipes/requirements.txt could not be installed: see above"
    fi
    if recipes_work "$dir"; then discard; else publish "$dir"; fi
}

# recipes_work reports whether the environment is complete and starts. It does not start if its Python was replaced.
recipes_work() { "$1/bin/python" -c 'import pytest, openai' 2>/dev/null; }

# --- the agent's tests ----------------------------------------------------------------------------------------------

# uv_version is the version that sandboxes use.
uv_version() { sed -n 's/^const Version = "\(.*\)"$/\1/p' "$here/internal/uv/uv.go"; }

# uv_path prints where that uv is.
uv_path() { printf '%s/uv-%s/bin/uv' "$cache" "$(uv_version)"; }

setup_uv() {
    path=${SANDFARM_TEST_UV:-$(uv_path)}
    if "$path" --version >/dev/null 2>&1; then return 0; fi
    [ "$path" = "$(uv_path)" ] || die "SANDFARM_TEST_UV=$path does not run"
    say "fetching uv $(uv_version)"
    new_folder "$cache/uv-$(uv_version)"
    if ! { python3 -m venv "$work" && "$work/bin/python" -m pip install -q --disable-pip-version-check "uv==$(uv_version)"; } >"$log/uv.log" 2>&1; then
        tail_of "$log/uv.log"
        die "uv $(uv_version) could not be installed: see above"
    fi
    if "$path" --version >/dev/null 2>&1; then discard; else publish "$cache/uv-$(uv_version)"; fi
}

# image_python is the version of Python in images/python.
image_python=3.13

# kernel_python prints a Python of the image's version: one that is installed, also by pyenv, or one that uv fetches.
kernel_python() {
    for python in "python$image_python" "$(pyenv prefix "$(pyenv latest "$image_python" 2>/dev/null)" 2>/dev/null)/bin/python$image_python"; do
        if "$python" -c 'import ensurepip, venv' 2>/dev/null; then
            command -v "$python"
            return 0
        fi
    done
    uv=${SANDFARM_TEST_UV:-$(uv_path)}
    { "$uv" python find "$image_python" || { "$uv" python install --no-bin "$image_python" && "$uv" python find "$image_python"; }; } 2>/dev/null
}

# kernel_dir prints where the environment is in which the agent's tests run kernels: one for each set of pinned versions.
kernel_dir() { printf '%s/kernel-%s-%s' "$cache" "$image_python" "$(sha256sum <"$here/images/python/requirements.txt" | cut -c 1-12)"; }

# kernel_works reports whether the environment exists and starts.
kernel_works() { "$1/bin/python" -c 'import ipykernel, matplotlib, numpy, pandas, PIL' 2>/dev/null; }

setup_kernel() {
    setup_uv
    if [ -n "${SANDFARM_TEST_KERNEL:-}" ] && [ "$SANDFARM_TEST_KERNEL" != "$(kernel_dir)" ]; then
        kernel_works "$SANDFARM_TEST_KERNEL" || die "SANDFARM_TEST_KERNEL=$SANDFARM_TEST_KERNEL lacks packages of images/python/requirements.txt"
        return 0
    fi
    dir=$(kernel_dir)
    if kernel_works "$dir"; then return 0; fi
    say "fetching the Python packages of the sandbox image for the agent's tests (once; about a minute)"
    new_folder "$dir"
    requirements=$here/images/python/requirements.txt
    if ! python=$(kernel_python); then
        python=python3
        requirements=$log/kernel-requirements.txt
        # An older Python does not support all pinned versions: it gets the newest that it supports.
        sed 's/==/<=/' "$here/images/python/requirements.txt" >"$requirements"
        say "no Python $image_python is here and none could be fetched: the tests run $(python3 --version 2>&1) with packages no newer than the image's"
    fi
    if ! make_venv "$work" "$python" "$requirements" kernel; then
        tail_of "$log/kernel.log"
        die "the packages of images/python/requirements.txt could not be installed: see above"
    fi
    if kernel_works "$dir"; then discard; else publish "$dir"; fi
}

# --- the program ----------------------------------------------------------------------------------------------------

# build_first compiles the program. On a machine that has no program yet it compiles the builder of images before, a fifth of the
# program, and lets it build the sandbox image meanwhile. Without the image nothing is lost: `sandfarm up` builds it then.
build_first() {
    cd "$here"
    image=
    mkdir -p "$log"
    export CGO_ENABLED=0
    : >"$log/build.log"
    : >"$log/image.log"
    if [ ! -e bin/sandfarm ] && [ -z "${SANDFARM_CONFIG:-}" ]; then
        if timed "compiling the builder of images" "$log/build.log" go build -v -ldflags "-s -w" -o bin/build-image ./deploy/image; then
            say "building the sandbox image beside it (log: $log/image.log)"
            bin/build-image python >"$log/image.log" 2>&1 &
            image=$!
        fi
    fi
    if ! timed "compiling the agent" "$log/build.log" env GOOS=linux go build -v -ldflags "-s -w" -o "$AGENT" ./cmd/agent ||
        ! timed "compiling the program" "$log/build.log" go build -v -ldflags "$LDFLAGS" -o bin/sandfarm ./cmd/sandfarm; then
        [ -z "$image" ] || kill "$image" 2>/dev/null || true
        tail_of "$log/build.log"
        die "the program could not be compiled: see above"
    fi
    [ -z "$image" ] || timed "building the sandbox image" "$log/image.log" wait "$image" || tail_of "$log/image.log"
    rm -f bin/build-image
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
    # MinIO is compiled while the others are fetched.
    "$0" minio &
    minio=$!
    setup_mcp
    setup_sdk
    setup_kernel
    wait "$minio" || exit 1
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
    # Always the one of this version: it goes into an image.
    go_tool minio github.com/minio/minio github.com/minio/minio "$minio_version"
    ;;
mcp-dir) mcp_dir ;;
sdk) setup_sdk ;;
sdk-dir) sdk_dir ;;
recipes) setup_recipes ;;
recipes-dir) recipes_dir ;;
kernel) setup_kernel ;;
kernel-dir) kernel_dir ;;
uv-path) uv_path ;;
lint)
    need_go
    go_tool golangci-lint github.com/golangci/golangci-lint/v2 github.com/golangci/golangci-lint/v2/cmd/golangci-lint "$lint_version"
    ;;
verify)
    need_go
    go_required_tool vacuum github.com/daveshanley/vacuum github.com/daveshanley/vacuum "$vacuum_version"
    ;;
dist)
    need_go
    go_required_tool cyclonedx-gomod github.com/CycloneDX/cyclonedx-gomod github.com/CycloneDX/cyclonedx-gomod/cmd/cyclonedx-gomod "$cyclonedx_version"
    ;;
*)
    printf 'usage: %s run|test|compose|test-compose|lint|dist|sdk|recipes|kernel|engine\n' "${0#"$here"/}" >&2
    exit 2
    ;;
esac
