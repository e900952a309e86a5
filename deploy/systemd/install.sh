#!/bin/sh
# Installs a part of a farm on this host, from this folder and a program beside it or at SANDFARM_PROGRAM.
#
#   deploy/systemd/install.sh api|worker|scheduler …
#
# It makes the users, copies the program and the units, and starts the services of these roles, again if they ran. It is run as root, and
# can be run again with a newer program. It needs /etc/sandfarm/farm.env and never changes it: docs/hosts.md says what is in it.
set -eu

here=$(cd "$(dirname "$0")" && pwd)
program=${SANDFARM_PROGRAM:-$here/../../bin/sandfarm}
root=${SANDFARM_ROOT:-} # a folder that stands for /, for tests: nothing is started, and no user is made

die() {
    printf 'install: %s\n' "$*" >&2
    exit 1
}

usage() {
    cat <<END
usage: $0 ROLE…

Installs the services of a farm for these roles on this host, as root, and starts them:
  api        answers callers
  worker     runs sandboxes on the Docker engine of this host
  scheduler  ends what expired, and repairs; on two hosts one of them leads

It needs two things first:
  1. the program, built by "make build" (now $program), or another one in SANDFARM_PROGRAM
  2. $root/etc/sandfarm/farm.env, of mode 600, made from $here/farm.env.example

It makes the users sandfarm and sandfarm-engine, and writes /usr/local/bin/sandfarm and /etc/systemd/system/sandfarm-*.service. It never
changes farm.env. Run it again with a newer program to update. docs/hosts.md has all steps.

  sudo $0 api scheduler    # on a host for control
  sudo $0 worker           # on each host for sandboxes
END
}

for arg in "$@"; do
    case $arg in -h | --help | help) usage && exit 0 ;; esac
done
[ $# -gt 0 ] || { usage >&2 && exit 2; }
for role in "$@"; do
    case $role in api | worker | scheduler) ;; *) die "there is no role $role: take api, worker or scheduler" ;; esac
done
[ -n "$root" ] || [ "$(id -u)" = 0 ] || die "run this as root"
[ -x "$program" ] || die "$program is missing: build it (make build), or name it in SANDFARM_PROGRAM"
env=$root/etc/sandfarm/farm.env
[ -e "$env" ] || die "$env is missing: copy $here/farm.env.example there, fill it in, and chmod 600 it"
[ -z "$(find "$env" -perm /077)" ] || die "$env can be read by others and has passwords: chmod 600 $env"
! grep -q PASSWORD "$env" || die "$env has a PASSWORD that was not filled in"

# user makes a user without a home and a shell.
user() { # name, group
    getent group "$2" >/dev/null || groupadd --system "$2"
    getent passwd "$1" >/dev/null || useradd --system --gid "$2" --no-create-home --home-dir /nonexistent --shell /usr/sbin/nologin "$1"
}

if [ -z "$root" ]; then
    user sandfarm sandfarm
    case " $* " in *" worker "*) user sandfarm-engine sandfarm ;; esac
fi

# The program appears complete or not at all, also while the old one runs.
mkdir -p "$root/usr/local/bin" "$root/etc/systemd/system"
cp "$program" "$root/usr/local/bin/.sandfarm.new"
chmod 755 "$root/usr/local/bin/.sandfarm.new"
mv -f "$root/usr/local/bin/.sandfarm.new" "$root/usr/local/bin/sandfarm"

units=
for role in "$@"; do
    # The proxy before its worker: they must be of one release.
    [ "$role" != worker ] || units="$units sandfarm-engine-proxy.service"
    units="$units sandfarm-$role.service"
done
for unit in $units; do
    cp "$here/$unit" "$root/etc/systemd/system/$unit"
    chmod 644 "$root/etc/systemd/system/$unit"
done
[ -z "$root" ] || exit 0

case " $* " in
*" worker "*) # what the proxy does not allow: the image, if the engine has none
    "$root/usr/local/bin/sandfarm" image build python
    ;;
esac
systemctl daemon-reload
for unit in $units; do
    systemctl enable --quiet "$unit"
    systemctl restart "$unit"
done
# shellcheck disable=SC2086 # a list of units
systemctl --no-pager --lines=0 status $units
