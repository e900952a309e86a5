# Node and the MCP clients that the tests run.
# shellcheck shell=sh disable=SC2154 # deploy/setup.sh sources this file and sets the variables

# mcp_pins prints what the folder with the MCP tools depends on.
mcp_pins() {
    printf '%s\n' "$node_version" "$npm_version" "$(uname -m)"
    cat "$here/deploy/mcp/package-lock.json" "$here/deploy/mcp/requirements.txt"
}

# mcp_dir prints the path of those tools: one folder for each set of versions.
mcp_dir() { printf '%s/mcp-%s' "$cache" "$(mcp_pins | sha256sum | cut -c 1-12)"; }

# npm_tarball downloads a package from the registry, verifies its sum and unpacks it.
npm_tarball() { # name, version, sum, directory
    curl -fsSL --retry 3 --connect-timeout 20 --max-time 600 -o "$4.tgz" "$registry/$1/-/$1-$2.tgz" ||
        die "$1 $2 could not be fetched from $registry: the tests need it (SANDFARM_NPM_REGISTRY names another registry)"
    printf '%s  %s\n' "$3" "$4.tgz" | sha256sum -c - >/dev/null || die "$1 $2 from $registry does not have the pinned checksum"
    mkdir -p "$4"
    tar -xzf "$4.tgz" -C "$4" --strip-components=1
    rm "$4.tgz"
}

# setup_mcp installs Node and, from their lock files, the official MCP clients and the conformance runner. Node and npm are
# downloaded from the npm registry, so neither needs to be installed.
setup_mcp() {
    dir=$(mcp_dir)
    if is_there SANDFARM_TEST_MCP "$dir" mcp_works "node/bin/node, and venv with deploy/mcp/requirements.txt"; then return 0; fi
    case $(uname -m) in
    x86_64) node_arch=x64 node_sum=$node_sum_x64 ;;
    aarch64 | arm64) node_arch=arm64 node_sum=$node_sum_arm64 ;;
    *) die "the MCP tests need Node $node_version, and no build for $(uname -m) is pinned in deploy/setup.sh" ;;
    esac
    have curl || die "curl is missing, which downloads Node for the MCP tests: install it, and try again"
    registry=${SANDFARM_NPM_REGISTRY:-${npm_config_registry:-https://registry.npmjs.org}}
    registry=${registry%/}
    say "fetching Node $node_version, the MCP conformance runner and the MCP SDKs (once; about a minute)"
    new_folder "$dir"
    npm_tarball "node-linux-$node_arch" "$node_version" "$node_sum" "$work/node"
    npm_tarball npm "$npm_version" "$npm_sum" "$work/npm"
    npm_packages deploy/mcp "$work/node/bin"
    rm -rf "$work/npm"
    if ! make_venv "$work/venv" python3 "$here/deploy/mcp/requirements.txt" mcp-python; then
        tail_of "$log/mcp-python.log"
        die "the Python MCP SDK of deploy/mcp/requirements.txt could not be installed: see above"
    fi
    if mcp_works "$dir"; then discard; else publish "$dir"; fi
}

# npm_packages installs the packages of a folder of this tree into $work, from their lock file, with npm of $work and the Node of a folder.
# Scripts of packages are not run. Node uses the system's certificates, for registries with a private certificate authority.
npm_packages() { # folder, folder of node
    cp "$here/$1/package.json" "$here/$1/package-lock.json" "$work/"
    : >"$log/${1##*/}.log"
    if ! timed "installing the packages of $1" "$log/${1##*/}.log" env -C "$work" PATH="$2:$PATH" HOME="$work" \
        npm_config_registry="$registry" node --use-system-ca npm/bin/npm-cli.js ci --ignore-scripts --no-audit --no-fund --update-notifier=false --cache "$work/.npm"; then
        tail_of "$log/${1##*/}.log"
        die "the packages of $1/package-lock.json could not be installed from $registry: see above"
    fi
    rm -rf "$work/.npm"
}

# setup_axe fetches axe-core, which the tests of the dashboard run in its pages.
setup_axe() {
    dir=$cache/axe
    [ "$(cat "$dir/version" 2>/dev/null)" = "$axe_version" ] && return 0
    registry=${SANDFARM_NPM_REGISTRY:-${npm_config_registry:-https://registry.npmjs.org}}
    registry=${registry%/}
    rm -rf "$dir"
    mkdir -p "$cache"
    npm_tarball axe-core "$axe_version" "$axe_sum" "$dir"
    printf '%s\n' "$axe_version" >"$dir/version"
}

# mcp_works reports whether a folder is complete.
mcp_works() {
    [ -x "$1/node/bin/node" ] && "$1/venv/bin/python" -c 'from importlib import util; util.find_spec("mcp").name' 2>/dev/null
}
