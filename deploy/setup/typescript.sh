# The tools that build, check and test the TypeScript SDK.
# shellcheck shell=sh disable=SC2154 # deploy/setup.sh sources this file and sets the variables

# typescript_dir prints the path of those tools: one folder for each set of versions.
typescript_dir() {
    printf '%s/typescript-%s' "$cache" "$({ printf '%s\n' "$npm_version" && cat "$here/sdk/typescript/package-lock.json"; } | sha256sum | cut -c 1-12)"
}

# setup_typescript installs them from their lock file, with npm, which packs the SDK, and the Node of the MCP tests.
setup_typescript() {
    dir=$(typescript_dir)
    if is_there SANDFARM_TEST_TYPESCRIPT "$dir" typescript_works "npm, and node_modules with the devDependencies of sdk/typescript/package.json"; then return 0; fi
    setup_mcp
    node=${SANDFARM_TEST_MCP:-$(mcp_dir)}/node/bin
    dir=$(typescript_dir)
    registry=${SANDFARM_NPM_REGISTRY:-${npm_config_registry:-https://registry.npmjs.org}}
    registry=${registry%/}
    say "fetching the tools of the TypeScript SDK (once; about ten seconds)"
    new_folder "$dir"
    npm_tarball npm "$npm_version" "$npm_sum" "$work/npm"
    npm_packages sdk/typescript "$node"
    if typescript_works "$dir"; then discard; else publish "$dir"; fi
}

# typescript_works reports whether a folder is complete.
typescript_works() { [ -e "$1/npm/bin/npm-cli.js" ] && [ -e "$1/node_modules/typescript/lib/tsc.js" ] && [ -e "$1/node_modules/openapi-typescript/package.json" ]; }
