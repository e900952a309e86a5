# Clients of Jupyter, which the tests of /jupyter run.
# shellcheck shell=sh disable=SC2154 # deploy/setup.sh sources this file and sets the variables

# jupyter_dir prints the path of the clients: one virtual environment for each set of versions.
jupyter_dir() { printf '%s/jupyter-%s' "$cache" "$(sha256sum <"$here/deploy/jupyter/requirements.txt" | cut -c 1-12)"; }

setup_jupyter() {
    dir=$(jupyter_dir)
    if is_there SANDFARM_TEST_JUPYTER "$dir" jupyter_works "an environment with deploy/jupyter/requirements.txt"; then return 0; fi
    need_python
    say "fetching clients of Jupyter (once; about a minute)"
    new_folder "$dir"
    if ! make_venv "$work" python3 "$here/deploy/jupyter/requirements.txt" jupyter; then
        tail_of "$log/jupyter.log"
        die "the packages of deploy/jupyter/requirements.txt could not be installed: see above"
    fi
    if jupyter_works "$dir"; then discard; else publish "$dir"; fi
}

# jupyter_works reports whether the environment is complete and starts. It does not start if its Python was replaced.
jupyter_works() { "$1/bin/python" -c 'import importlib.util as u
for name in ("autogen_ext", "jupyter_kernel_client", "jupyter_server", "nbclient", "papermill", "pytest"): assert u.find_spec(name)' 2>/dev/null; }
