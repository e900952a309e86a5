# Folders in the cache, which appear complete or not at all.
# shellcheck shell=sh disable=SC2154 # deploy/setup.sh sources this file and sets the variables

# is_there reports whether a folder or program is there and works: the one that the caller's variable names, which must work, or else the
# one that this script makes.
is_there() { # variable, path that this script uses, function that checks a path, what there must be
    eval "named=\${$1:-}"
    if [ -z "$named" ] || [ "$named" = "$2" ]; then
        "$3" "$2"
        return
    fi
    "$3" "$named" || die "$1=$named does not work: there must be $4. Install it there, or unset $1"
}

# new_folder makes a temporary folder, which is removed if this script is interrupted. Its path is in $work.
new_folder() { # the name under which it will be published
    mkdir -p "$cache" "$log"
    work=$(mktemp -d "$1.XXXXXX")
    trap 'rm -rf "$work"' EXIT
    trap 'exit 130' INT
    trap 'exit 143' TERM
}

# publish atomically makes a name a link to the prepared folder, so that other processes see the complete folder or none. The folder
# is not moved, since a virtual environment contains its own path.
publish() { # name
    chmod 755 "$work"
    ln -s "${work##*/}" "$work.link"
    old=$(readlink "$1" || true)
    if [ ! -L "$1" ]; then rm -rf "$1"; fi # a folder that an earlier version of this script made
    python3 -c 'import os, sys; os.replace(sys.argv[1], sys.argv[2])' "$work.link" "$1"
    trap - EXIT INT TERM
    if [ -n "$old" ]; then rm -rf "${1%/*}/${old:?}"; fi
}

# discard removes the prepared folder. It is used if another run of this script has published one in the meantime.
discard() {
    rm -rf "$work"
    trap - EXIT INT TERM
}

# make_venv prepares a virtual environment.
make_venv() { # folder, python, requirements, name of the log
    (setup_uv) || return 1 # in a shell of its own, since it uses $work
    : >"$log/$4.log"
    timed "installing ${3#"$here/"}" "$log/$4.log" fill_venv "$1" "$2" "$3"
}

fill_venv() { # folder, python, requirements
    "$2" -m venv "$1" && uv_install --python "$1/bin/python" -r "$3"
}
