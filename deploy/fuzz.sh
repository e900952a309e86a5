#!/bin/sh
# fuzz.sh PACKAGE TARGET TIME [flags of go test]: fuzz one target.
#
# Before 1.27, Go now and then reports the end of the time as a failure: "context deadline exceeded", without a failing input
# (go.dev/issue/75804). Such a run counts for nothing and is repeated, at most twice; what it printed is left out, so that nobody takes it
# for a finding.
set -u
pkg=$1 target=$2 time=$3
shift 3
log=$(mktemp)
trap 'rm -f "$log"' EXIT
for run in 1 2 3; do
    go test -run '^$' -fuzz "^$target\$" -fuzztime "$time" "$@" "$pkg" >"$log" 2>&1
    status=$?
    if [ "$status" != 0 ] && [ "$run" != 3 ] && grep -q '^ *context deadline exceeded$' "$log" && ! grep -qE 'Failing input|panic:|hung or terminated' "$log"; then
        echo "Go reported the end of the time as a failure; the run is repeated"
        continue
    fi
    cat "$log"
    [ "$status" = 0 ]
    exit
done
