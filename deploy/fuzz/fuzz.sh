#!/bin/sh
# fuzz.sh PACKAGE TARGET TIME [flags of go test]: fuzz one target.
#
# Before 1.27, Go now and then reports the end of the time as a failure: "context deadline exceeded", without a failing input
# (go.dev/issue/75804). Such a run counts for nothing and is repeated, at most twice.
set -u
pkg=$1 target=$2 time=$3
shift 3
log=$(mktemp) status=$(mktemp)
trap 'rm -f "$log" "$status"' EXIT
for _ in 1 2 3; do
    {
        go test -run '^$' -fuzz "^$target\$" -fuzztime "$time" "$@" "$pkg"
        echo $? >"$status"
    } 2>&1 | tee "$log"
    [ "$(cat "$status")" = 0 ] && exit 0
    grep -q '^ *context deadline exceeded$' "$log" || exit 1
    grep -qE 'Failing input|panic:|hung or terminated' "$log" && exit 1
done
exit 1
