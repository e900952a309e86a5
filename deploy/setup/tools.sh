# Tools that are built from Go modules at pinned versions, in the cache.
# shellcheck shell=sh disable=SC2154 # deploy/setup.sh sources this file and sets the variables

need_go() {
    have go || die "Go is missing: install it from https://go.dev/dl/ (1.21 or newer; it fetches the version that go.mod names)"
    # A Go older than 1.21 cannot fetch a newer one.
    minor=$(go env GOVERSION 2>/dev/null | sed -n 's/^go1\.\([0-9]*\).*/\1/p')
    [ "${minor:-99}" -ge 21 ] ||
        die "Go 1.$minor is too old: install 1.21 or newer from https://go.dev/dl/ (it fetches the version that go.mod names)"
}

# go_tool builds a command of a Go module at a pinned version into the cache, unless the cache has that version.
go_tool() { # name, module, package, version
    if [ -x "$bin/$1" ] && go version -m "$bin/$1" 2>/dev/null | grep -q "mod[[:space:]]$2[[:space:]]$4"; then
        return 0
    fi
    mkdir -p "$bin" "$log"
    : >"$log/$1.log"
    work=$(mktemp -d "$bin/.$1.XXXXXX")
    # -C keeps this module's go.mod out of it. The tool is built in a temporary folder and renamed, so an interrupted build leaves
    # no incomplete file.
    if ! timed "building $1 $4 (once)" "$log/$1.log" \
        env GOFLAGS='' CGO_ENABLED=0 GOBIN="$work" go -C "$work" install -v -trimpath -ldflags "-s -w" "$3@$4"; then
        rm -rf "$work"
        tail_of "$log/$1.log"
        die "$1 $4 could not be built: see above; it needs the Go module proxy to be reachable"
    fi
    mv "$work/$1" "$bin/$1"
    rm -rf "$work"
}

# go_required_tool is go_tool for a module whose list of versions a proxy may not have: an empty module requires the version.
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

# go_plugin builds a plugin of the docker command into the cache, unless the cache has that version. The modules of plugins use
# replace directives, so they are built as a dependency of an empty module.
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

# build_gvisor builds gVisor's runtime runsc into the cache, unless the cache has that version, and puts sandfarm-runsc beside it. Its module is pinned with all that it needs, by
# hash, in deploy/gvisor/runsc.
build_gvisor() {
    mkdir -p "$bin" "$log"
    cp "$here/deploy/gvisor/sandfarm-runsc" "$bin/sandfarm-runsc"
    runsc_version=$(sed -n 's/^[[:space:]]*gvisor.dev\/gvisor \(v[^ ]*\).*/\1/p' "$here/deploy/gvisor/runsc/go.mod")
    if [ -x "$bin/runsc" ] && go version -m "$bin/runsc" 2>/dev/null | grep -q "mod[[:space:]]gvisor.dev/gvisor[[:space:]]$runsc_version"; then
        return 0
    fi
    : >"$log/runsc.log"
    work=$(mktemp -d "$bin/.runsc.XXXXXX")
    if ! timed "building runsc $runsc_version (once)" "$log/runsc.log" \
        env GOFLAGS='' CGO_ENABLED=0 go -C "$here/deploy/gvisor/runsc" build -v -mod=readonly -trimpath -ldflags "-s -w -X gvisor.dev/gvisor/runsc/version.version=$runsc_version" -o "$work/runsc" gvisor.dev/gvisor/runsc; then
        rm -rf "$work"
        tail_of "$log/runsc.log"
        die "runsc $runsc_version could not be built: see above; it needs the Go module proxy to be reachable"
    fi
    mv "$work/runsc" "$bin/runsc"
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

setup_minio() {
    # The Makefile sets the path of the binary that is built here; any other path is the caller's own binary, which must exist.
    if [ "${SANDFARM_TEST_MINIO:-$bin/minio}" != "$bin/minio" ]; then
        [ -x "$SANDFARM_TEST_MINIO" ] || die "SANDFARM_TEST_MINIO=$SANDFARM_TEST_MINIO is not an executable"
        return 0
    fi
    go_tool minio github.com/minio/minio github.com/minio/minio "$minio_version"
}
