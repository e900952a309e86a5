# Clients of Jupyter, which the tests of /jupyter run.
# shellcheck shell=sh disable=SC2154 # deploy/setup.sh sources this file and sets the variables

# jupyter_dir prints the path of the clients: one virtual environment for each set of versions.
jupyter_dir() { printf '%s/jupyter-%s' "$cache" "$(sha256sum <"$here/deploy/jupyter/requirements.txt" | cut -c 1-12)"; }

setup_jupyter() { setup_venv jupyter SANDFARM_TEST_JUPYTER "$(jupyter_dir)" jupyter_works deploy/jupyter/requirements.txt "clients of Jupyter"; }

# jupyter_works reports whether the environment is complete and starts. It does not start if its Python was replaced.
jupyter_works() { "$1/bin/python" -c 'import importlib.util as u
for name in ("autogen_ext", "ipywidgets", "jupyter_console", "jupyter_kernel_client", "jupyter_server", "jupyterlab", "nbclient", "papermill", "pytest"): assert u.find_spec(name)' 2>/dev/null; }
