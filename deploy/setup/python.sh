# Virtual environments: for the Python SDK, the recipes, and the kernels of the agent's tests.
# shellcheck shell=sh disable=SC2154 # deploy/setup.sh sources this file and sets the variables

# sdk_dir prints the path of the SDK's tools: one virtual environment for each set of versions.
sdk_dir() { printf '%s/sdk-%s' "$cache" "$(sha256sum <"$here/sdk/python/requirements-dev.txt" | cut -c 1-12)"; }

# need_python makes sure that python3 can run the SDK in a virtual environment.
need_python() {
    if ! venv_works; then
        may_install || die "Python 3.10 or newer with venv is missing: install it with this machine's package manager, and try again"
        apt_install python3 python3-venv
    fi
    python3 -c 'import sys; sys.exit(sys.version_info < (3, 10))' || die "python3 is older than 3.10, which the Python SDK needs: install a newer one"
}

# setup_venv NAME VARIABLE FOLDER CHECK REQUIREMENTS WHAT: makes a virtual environment with pinned packages, unless the folder, or the one that the
# variable names, passes the check.
setup_venv() {
    dir=$3
    if is_there "$2" "$dir" "$4" "an environment with $5"; then return 0; fi
    need_python
    say "fetching $6 (once; about a minute)"
    new_folder "$dir"
    if ! make_venv "$work" python3 "$here/$5" "$1"; then
        tail_of "$log/$1.log"
        die "the packages of $5 could not be installed: see above"
    fi
    if "$4" "$dir"; then discard; else publish "$dir"; fi
}

setup_sdk() { setup_venv sdk SANDFARM_TEST_SDK "$(sdk_dir)" sdk_works sdk/python/requirements-dev.txt "the tools of the Python SDK"; }

# sdk_works reports whether the environment exists and starts. It does not start if its Python was replaced.
sdk_works() { "$1/bin/python" -c 'import pytest, zmq' 2>/dev/null; }

# --- the recipes ----------------------------------------------------------------------------------------------------

# recipes_dir prints the path of the recipes' packages: one virtual environment for each set of versions.
recipes_dir() { printf '%s/recipes-%s' "$cache" "$(sha256sum <"$here/examples/python/recipes/requirements.txt" | cut -c 1-12)"; }

setup_recipes() { setup_venv recipes SANDFARM_TEST_RECIPES "$(recipes_dir)" recipes_work examples/python/recipes/requirements.txt "the packages of the recipes"; }

# recipes_work reports whether the environment is complete and starts. It does not start if its Python was replaced.
recipes_work() { "$1/bin/python" -c 'import pytest, openai' 2>/dev/null; }

# --- the agent's tests ----------------------------------------------------------------------------------------------

# uv_version is the version that sandboxes use.
uv_version() { sed -n 's/^const InstallerVersion = "\(.*\)"$/\1/p' "$here/images/installer.go"; }

# uv_path prints the path of that uv.
uv_path() { printf '%s/uv-%s/bin/uv' "$cache" "$(uv_version)"; }

# uv_works reports whether the program exists and starts.
uv_works() { "$1" --version >/dev/null 2>&1; }

setup_uv() {
    if is_there SANDFARM_TEST_UV "$(uv_path)" uv_works "a uv that runs"; then return 0; fi
    say "fetching uv $(uv_version)"
    new_folder "$cache/uv-$(uv_version)"
    if ! { python3 -m venv "$work" && "$work/bin/python" -m pip install -q --disable-pip-version-check --require-hashes -r "$here/images/python/installer.lock"; } >"$log/uv.log" 2>&1; then
        tail_of "$log/uv.log"
        die "uv $(uv_version) could not be installed: see above"
    fi
    if uv_works "$(uv_path)"; then discard; else publish "$cache/uv-$(uv_version)"; fi
}

# uv_install installs packages in a tenth of pip's time. uv does not read pip's settings, so it is given the index of those.
uv_install() { # arguments of uv pip install
    index=${UV_DEFAULT_INDEX:-${PIP_INDEX_URL:-$(python3 -m pip config get global.index-url 2>/dev/null)}}
    UV_DEFAULT_INDEX=${index:-https://pypi.org/simple} UV_SYSTEM_CERTS=true "${SANDFARM_TEST_UV:-$(uv_path)}" pip install --no-progress "$@"
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

# kernel_dir prints the path of the environment in which the agent's tests run kernels: one for each set of pinned versions.
kernel_dir() { printf '%s/kernel-%s-%s' "$cache" "$image_python" "$(sha256sum <"$here/images/python/requirements.txt" | cut -c 1-12)"; }

# kernel_works reports whether the environment exists and starts.
kernel_works() { "$1/bin/python" -c 'import ipykernel, matplotlib, numpy, pandas, PIL, pip' 2>/dev/null; }

setup_kernel() {
    setup_uv
    dir=$(kernel_dir)
    if is_there SANDFARM_TEST_KERNEL "$dir" kernel_works "an environment with images/python/requirements.txt"; then return 0; fi
    say "fetching the Python packages of the sandbox image for the agent's tests (once; about a minute)"
    new_folder "$dir"
    requirements=$here/images/python/requirements.txt
    if ! python=$(kernel_python); then
        python=python3
        requirements=$log/kernel-requirements.txt
        # Another Python may not support all pinned versions: it gets the newest that it supports.
        sed 's/==/<=/' "$here/images/python/requirements.txt" >"$requirements"
        say "Python $image_python is missing and could not be fetched: the tests run $(python3 --version 2>&1) with packages no newer than the image's"
    fi
    if ! make_venv "$work" "$python" "$requirements" kernel; then
        tail_of "$log/kernel.log"
        die "the packages of images/python/requirements.txt could not be installed: see above"
    fi
    if kernel_works "$dir"; then discard; else publish "$dir"; fi
}

# --- the comparison with ipykernel ------------------------------------------------------------------------------------

# reference_dir prints the path of what the tests of internal/agent/kernel add to the kernels' environment.
reference_dir() {
    printf '%s/reference-%s-%s' "$cache" "$image_python" \
        "$(cat "$here/images/python/requirements.txt" "$here"/internal/agent/kernel/testdata/difftest/*.txt | sha256sum | cut -c 1-12)"
}

# reference_works reports whether the folder is complete, for the Python of the kernels.
reference_works() {
    PYTHONPATH=$1/libraries:$1/ipykernel "$kernel/bin/python" -c 'import importlib.util as u, ipykernel, zmq
for name in ("altair", "ipywidgets", "jupyter_client", "plotly", "rich", "sympy", "tqdm"): assert u.find_spec(name)' 2>/dev/null &&
        ls "$1"/matplotlib/fontlist-*.json >/dev/null 2>&1
}

# setup_reference makes a folder with libraries for both kernels, ipykernel for the other one only, and matplotlib's list of fonts,
# which takes it seconds to make.
setup_reference() {
    kernel=${SANDFARM_TEST_KERNEL:-$(kernel_dir)}
    dir=$(reference_dir)
    setup_uv
    if is_there SANDFARM_TEST_REFERENCE "$dir" reference_works "the packages of internal/agent/kernel/testdata/difftest/*.txt"; then return 0; fi
    say "fetching ipykernel and libraries for the comparison with it (once; about half a minute)"
    new_folder "$dir"
    mkdir "$work/requirements"
    for name in libraries ipykernel; do
        requirements=$here/internal/agent/kernel/testdata/difftest/$name.txt
        # As in setup_kernel: another Python gets the newest versions that it supports.
        if ! "$kernel/bin/python" -c "import sys; sys.exit('%d.%d' % sys.version_info[:2] != '$image_python')"; then
            sed 's/==/<=/' "$requirements" >"$work/requirements/$name.txt"
            requirements=$work/requirements/$name.txt
        fi
        if ! timed "installing internal/agent/kernel/testdata/difftest/$name.txt" "$log/reference.log" \
            uv_install --python "$kernel/bin/python" --no-deps --target "$work/$name" -r "$requirements"; then
            tail_of "$log/reference.log"
            die "the packages of internal/agent/kernel/testdata/difftest/$name.txt could not be installed: see above"
        fi
    done
    if ! MPLCONFIGDIR=$work/matplotlib "$kernel/bin/python" -c 'import matplotlib.font_manager' >>"$log/reference.log" 2>&1; then
        tail_of "$log/reference.log"
        die "matplotlib does not start: see above"
    fi
    if reference_works "$dir"; then discard; else publish "$dir"; fi
}
