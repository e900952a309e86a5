# Clients of Jupyter, which the tests of /jupyter run.
# shellcheck shell=sh disable=SC2154 # deploy/setup.sh sources this file and sets the variables

# jupyter_dir prints the path of the clients: one virtual environment for each set of versions.
jupyter_dir() { printf '%s/jupyter-%s' "$cache" "$(sha256sum <"$here/deploy/jupyter/requirements.txt" | cut -c 1-12)"; }

setup_jupyter() { setup_venv jupyter SANDFARM_TEST_JUPYTER "$(jupyter_dir)" jupyter_works deploy/jupyter/requirements.txt "clients of Jupyter"; }

# jupyter_works reports whether the environment is complete and starts. It does not start if its Python was replaced.
jupyter_works() { "$1/bin/python" -c 'import importlib.util as u
for name in ("autogen_ext", "ipywidgets", "jupyter_console", "jupyter_kernel_client", "jupyter_server", "jupyterlab", "nbclient", "papermill", "pytest", "websockets"): assert u.find_spec(name)' 2>/dev/null; }

# jupyter_node_dir prints the path of the client library that VS Code is built on: one folder for each set of versions.
jupyter_node_dir() { printf '%s/jupyter-node-%s' "$cache" "$(sha256sum <"$here/deploy/jupyter/package-lock.json" | cut -c 1-12)"; }

# setup_jupyter_node installs it from its lock file, with the Node of the MCP tests.
setup_jupyter_node() {
    dir=$(jupyter_node_dir)
    if is_there SANDFARM_TEST_JUPYTER_NODE "$dir" jupyter_node_works "node_modules with deploy/jupyter/package.json"; then return 0; fi
    setup_mcp
    node=${SANDFARM_TEST_MCP:-$(mcp_dir)}/node/bin
    dir=$(jupyter_node_dir)
    registry=${SANDFARM_NPM_REGISTRY:-${npm_config_registry:-https://registry.npmjs.org}}
    registry=${registry%/}
    say "fetching the client library of VS Code's Jupyter extension (once; about ten seconds)"
    new_folder "$dir"
    npm_tarball npm "$npm_version" "$npm_sum" "$work/npm"
    npm_packages deploy/jupyter "$node"
    rm -rf "$work/npm"
    if jupyter_node_works "$dir"; then discard; else publish "$dir"; fi
}

# jupyter_node_works reports whether a folder is complete.
jupyter_node_works() { [ -e "$1/node_modules/@jupyterlab/services/package.json" ] && [ -e "$1/node_modules/ws/package.json" ]; }
