#!/bin/sh
# Builds the program of an earlier commit: deploy/before.sh COMMIT FILE. The commit must be in this clone.
set -eu
commit=$1
file=$(realpath -m "$2")
cd "$(dirname "$0")/.."
git rev-parse --verify --quiet "$commit^{commit}" >/dev/null || {
    printf 'This clone has no commit %s: name the last one of the release before with ROLLING_FROM=.\n' "$commit" >&2
    exit 1
}
tree=$(mktemp -d)
trap 'git worktree remove --force "$tree"' EXIT
git worktree add --quiet --detach "$tree" "$commit"
make --no-print-directory -C "$tree" build
mkdir -p "$(dirname "$file")"
cp "$tree/bin/sandfarm" "$file"
