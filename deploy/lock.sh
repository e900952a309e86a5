#!/bin/sh
# Writes the requirements of the Python images with the hashes of all files of each version (requirements.lock), and those of uv, which
# installs them (installer.lock). Run it after a change of images/*/requirements.txt or of the version in images/installer.go.
#
#   UV   the uv to use
set -eu
cd "$(dirname "$0")/.."
lock() { # input, output
    "${UV:?is not set: name a uv}" pip compile --quiet --generate-hashes --no-header --no-annotate --no-deps --universal --python-version 3.13 \
        --only-binary :all: --default-index "${PIP_INDEX_URL:-https://pypi.org/simple/}" --output-file "$2" "$1" >/dev/null
}
for image in python python-cuda; do
    lock "images/$image/requirements.txt" "images/$image/requirements.lock"
    printf 'uv==%s\n' "$(sed -n 's/^const InstallerVersion = "\(.*\)"/\1/p' images/installer.go)" >"images/$image/installer.lock.in"
    lock "images/$image/installer.lock.in" "images/$image/installer.lock"
    rm "images/$image/installer.lock.in"
done
