# The SDKs of E2B, which the tests of /e2b run.
# shellcheck shell=sh disable=SC2154 # deploy/setup.sh sources this file and sets the variables

# e2b_dir prints the path of the SDKs: one folder for each set of versions.
e2b_dir() { # folder that states the versions
    printf '%s/e2b-%s' "$cache" "$(cat "$here/$1/package-lock.json" "$here/$1/requirements.txt" | sha256sum | cut -c 1-12)"
}

# setup_e2b installs the SDKs for Python and, from their lock file, those for JavaScript, with the Node of the MCP tests.
setup_e2b() { # folder that states the versions, variable that may name a folder of the caller's own
    dir=$(e2b_dir "$1")
    if is_there "$2" "$dir" e2b_works "node_modules with $1/package.json, and venv with $1/requirements.txt"; then return 0; fi
    setup_mcp
    need_python
    python3 -c 'import sys; sys.exit(sys.version_info < (3, 11))' || die "python3 is older than 3.11, which the SDKs of E2B need: install a newer one"
    node=${SANDFARM_TEST_MCP:-$(mcp_dir)}/node/bin
    dir=$(e2b_dir "$1")
    registry=${SANDFARM_NPM_REGISTRY:-${npm_config_registry:-https://registry.npmjs.org}}
    registry=${registry%/}
    say "fetching the SDKs of E2B (once; about half a minute)"
    new_folder "$dir"
    npm_tarball npm "$npm_version" "$npm_sum" "$work/npm"
    npm_packages "$1" "$node"
    rm -rf "$work/npm"
    if ! make_venv "$work/venv" python3 "$here/$1/requirements.txt" e2b-python; then
        tail_of "$log/e2b-python.log"
        die "the packages of $1/requirements.txt could not be installed: see above"
    fi
    if e2b_works "$dir"; then discard; else publish "$dir"; fi
}

# e2b_works reports whether a folder is complete. Its Python does not start if it was replaced.
e2b_works() { [ -d "$1/node_modules/e2b" ] && "$1/venv/bin/python" -c 'import e2b_code_interpreter, pytest' 2>/dev/null; }
