#!/bin/sh
# Builds the agent twice and compares: here, and from a copy of the tree in another folder with an empty build cache. So anyone can check
# that the agent in a release was built from its source.
set -eu
cd "$(dirname "$0")/.."
work=$(mktemp -d)
trap 'chmod -R u+w "$work"; rm -rf "$work"' EXIT
mkdir "$work/another-folder"
git ls-files -z | xargs -0 cp --parents -P -t "$work/another-folder" 2>/dev/null || true # a file that was deleted but not committed is not there

build() { # output
    GOOS=linux CGO_ENABLED=0 GOFLAGS='' go build -trimpath -buildvcs=false -ldflags "-s -w" -o "$1" ./cmd/agent
}

build "$work/here"
(cd "$work/another-folder" && GOCACHE=$work/cache build "$work/there")
if ! cmp -s "$work/here" "$work/there"; then
    printf 'The agent is not reproducible: two builds of it differ.\n' >&2
    sha256sum "$work/here" "$work/there" >&2
    exit 1
fi
printf 'two builds of the agent are equal: sha256 %s\n' "$(sha256sum <"$work/here" | cut -d ' ' -f 1)"
