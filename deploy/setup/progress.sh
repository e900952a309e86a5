# Progress of long steps: a line that counts the seconds on a terminal, or a line every 15 s elsewhere.
# shellcheck shell=sh # deploy/setup.sh sources this file

say() { printf '==> %s\n' "$*"; }

# timed runs a command with its output in a log, and shows the elapsed time and the log's last line.
timed() { # title, log, command…
    timed_title=$1 timed_log=$2
    shift 2
    mkdir -p "${timed_log%/*}"
    timed_start=$(date +%s)
    ticker "$timed_title" "$timed_log" "$timed_start" &
    timed_ticker=$!
    timed_status=0
    "$@" >>"$timed_log" 2>&1 || timed_status=$?
    kill "$timed_ticker" 2>/dev/null || true
    wait "$timed_ticker" 2>/dev/null || true
    [ ! -t 1 ] || printf '\r\033[K'
    timed_seconds=$(($(date +%s) - timed_start))
    if [ "$timed_status" = 0 ]; then
        say "$timed_title: done in $timed_seconds s"
    else
        say "$timed_title: FAILED after $timed_seconds s"
    fi
    return "$timed_status"
}

# ticker shows the elapsed time until it is killed, or this script ends.
ticker() { # title, log, start
    if [ -t 1 ]; then every=1; else every=15; fi
    [ -t 1 ] || say "$1"
    while sleep "$every" && kill -0 $$ 2>/dev/null; do
        line="==> $1: $(($(date +%s) - $3)) s  $(tail -n 1 "$2" 2>/dev/null | tr -cd '[:print:]' | cut -c 1-50)"
        if [ -t 1 ]; then printf '\r\033[K%.100s' "$line"; else printf '%s\n' "$line"; fi
    done
}
