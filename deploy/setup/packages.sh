# Root rights, and Debian packages: which are missing, and their installation with apt.
# shellcheck shell=sh disable=SC2154 # deploy/setup.sh sources this file and sets the variables

# may_be_root reports whether commands can run as root: the user is root, or sudo works (it may prompt on a terminal).
may_be_root() {
    [ "$(id -u)" = 0 ] && return 0
    have sudo || return 1
    sudo -n true 2>/dev/null || [ -t 0 ]
}

as_root() {
    if [ "$(id -u)" = 0 ]; then "$@"; else sudo "$@"; fi
}

# may_install reports whether packages can be installed with apt here.
may_install() { have apt-get && may_be_root; }

# apt_install installs Debian packages, without recommended ones. Their services are not started: this script starts the engine, and
# the farm starts its own private Redis.
apt_install() {
    mkdir -p "$log"
    apt_log=$log/apt.log
    : >"$apt_log"
    if [ ! -e /usr/sbin/policy-rc.d ]; then
        # The documented way to keep Debian's package scripts from starting services.
        as_root sh -c 'printf "#!/bin/sh\nexit 101\n" >/usr/sbin/policy-rc.d && chmod 755 /usr/sbin/policy-rc.d'
        trap 'as_root rm -f /usr/sbin/policy-rc.d' EXIT
        trap 'exit 130' INT
        trap 'exit 143' TERM
        policy=ours
    fi
    if ! timed "fetching the package lists" "$apt_log" \
        as_root env DEBIAN_FRONTEND=noninteractive apt-get -q -o DPkg::Lock::Timeout=300 update; then
        say "apt-get update had errors; continuing with the existing package lists"
    fi
    if ! timed "installing with apt: $*" "$apt_log" \
        as_root env DEBIAN_FRONTEND=noninteractive apt-get -q -y -o DPkg::Lock::Timeout=300 install --no-install-recommends "$@"; then
        tail_of "$apt_log"
        die "apt-get could not install $*: see above, repair it, and start again"
    fi
    if [ "${policy:-}" = ours ]; then
        as_root rm -f /usr/sbin/policy-rc.d
        trap - EXIT INT TERM
        policy=
    fi
}

# known_package reports whether apt knows a package.
known_package() { apt-cache show "$1" >/dev/null 2>&1; }

# Packages that build a base image without a registry. Ubuntu needs the keyring to verify Debian's signatures.
base_packages='debootstrap debian-archive-keyring '

# missing_packages prints the missing Debian packages of this mode.
missing_packages() {
    case $mode in *compose) ;; *) have redis-server || printf 'redis-server ' ;; esac
    have debootstrap || [ -x /usr/sbin/debootstrap ] || base_is_there || printf '%s' "$base_packages"
    if [ "$mode" = ui ]; then
        have chromium || have google-chrome || printf 'chromium '
        have curl || printf 'curl ca-certificates '
    fi
    if [ "$mode" = test ]; then
        have python3 || printf 'python3 '
        have jq || printf 'jq '
        have curl || [ -d "$(mcp_dir)" ] || printf 'curl ca-certificates '
        venv_works || printf 'python3-venv '
        have ssh || printf 'openssh-client '
        have rsync || printf 'rsync '
        have systemd-analyze || printf 'systemd '
        have prometheus && have promtool || printf 'prometheus '
    fi
}

# base_is_there reports whether the base image exists, or a registry has it.
base_is_there() {
    have docker || return 1
    docker image inspect sandfarm/base:latest >/dev/null 2>&1 && return 0
    timeout 15 docker manifest inspect python:3.13-slim >/dev/null 2>&1
}

venv_works() { python3 -c 'import ensurepip, venv' >/dev/null 2>&1; }

setup_packages() {
    wanted=$(missing_packages)
    [ -n "$wanted" ] || return 0
    if may_install; then
        # shellcheck disable=SC2086 # a list of words
        apt_install $wanted
        # The packages would start Redis and Prometheus at the next boot; the farm and its tests start their own.
        for service in redis-server prometheus; do
            case " $wanted" in *" $service "*)
                if [ -d /run/systemd/system ] && have systemctl; then
                    as_root systemctl disable --quiet --now "$service" >/dev/null 2>&1 || true
                fi ;;
            esac
        done
        return 0
    fi
    if [ "$mode" = test ] || [ "$mode" = ui ]; then
        case $wanted in
        "$base_packages") ;; # the image build reports this itself if it needs them
        *) die "the tests need missing packages: install ${wanted% } with this machine's package manager, and start again" ;;
        esac
    fi
    case $wanted in *redis-server*)
        say "redis-server is missing: the farm keeps its records in memory and loses its jobs when it stops" ;;
    esac
}
