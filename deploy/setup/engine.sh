# The Docker engine: installation and start.
# shellcheck shell=sh disable=SC2154 # deploy/setup.sh sources this file and sets the variables

socket=/var/run/docker.sock

# engine_answers reports whether this user can use the engine.
engine_answers() {
    if have docker; then
        docker info >/dev/null 2>&1
    elif [ -n "${DOCKER_HOST:-}" ]; then
        return 0 # no program here can check it; the farm does at its start
    elif have curl; then
        curl -fsS --max-time 5 --unix-socket "$socket" http://engine/_ping >/dev/null 2>&1
    else
        return 1
    fi
}

# engine_runs reports whether a dockerd runs on this machine, even if this user cannot use it.
engine_runs() {
    for process in /proc/[0-9]*; do
        read -r name 2>/dev/null <"$process/comm" && [ "$name" = dockerd ] && return 0
    done
    return 1
}

# find_dockerd prints where dockerd is; /usr/sbin is not on every user's PATH.
find_dockerd() {
    for dir in "" /usr/sbin/ /usr/local/bin/ /usr/local/sbin/; do
        if command -v "${dir}dockerd" 2>/dev/null; then return 0; fi
    done
    return 1
}

# await_engine waits until the engine answers, or fails with the reason.
await_engine() { # log file or empty
    tries=0
    while [ $tries -lt 60 ]; do
        if engine_answers; then
            say "the Docker engine is ready"
            return 0
        fi
        if [ $tries -ge 5 ] && ! engine_runs; then break; fi # it exited
        sleep 1
        tries=$((tries + 1))
    done
    [ -z "$1" ] || tail_of "$1"
    engine_runs && may_not_use
    die "the Docker engine did not start: see its log (${1:-journalctl -u docker})"
}

# may_not_use fails if an engine is running that this user may not use.
may_not_use() {
    if [ "$(id -u)" != 0 ] && [ -S "$socket" ] && [ ! -w "$socket" ]; then
        die "you may not use the Docker engine at $socket: run 'sudo usermod -aG docker $(id -un)' and log in again, or work as root"
    fi
}

# engine_packages prints what the engine needs on this machine.
engine_packages() {
    printf 'docker.io '
    # With AppArmor in the kernel, the engine cannot start a container without its parser.
    if grep -qs Y /sys/module/apparmor/parameters/enabled && ! have apparmor_parser; then printf 'apparmor '; fi
    # Without an init system the control groups are not mounted.
    if ! grep -q ' cgroup2\{0,1\} ' /proc/mounts; then printf 'cgroupfs-mount '; fi
}

start_engine() { # path of dockerd
    if [ -d /run/systemd/system ] && have systemctl; then
        say "starting the Docker engine with systemctl"
        as_root systemctl start docker || die "systemctl could not start docker: see 'journalctl -u docker'"
        await_engine ""
        return
    fi
    say "starting the Docker engine (no init system runs here)"
    mkdir -p "$log"
    if ! grep -q ' cgroup2\{0,1\} ' /proc/mounts && have cgroupfs-mount; then
        as_root cgroupfs-mount
    fi
    # A stale containerd socket makes dockerd wait for it forever.
    if [ -S /run/containerd/containerd.sock ] && ! grep -qsx containerd /proc/[0-9]*/comm; then
        as_root rm -f /run/containerd/containerd.sock
    fi
    # setsid -f: it must outlive make and the terminal. It must not inherit our descriptors, or a reader of our output would wait
    # for it.
    # shellcheck disable=SC2086,SC2016 # the flags are words; the inner shell expands its own arguments
    as_root setsid -f sh -c 'log=$1; shift; exec "$@" >>"$log" 2>&1' sh \
        "$log/dockerd.log" "$1" ${SANDFARM_DOCKERD_FLAGS:-} >/dev/null 2>&1 </dev/null
    await_engine "$log/dockerd.log"
}

setup_engine() {
    if engine_answers; then return 0; fi
    if [ -n "${DOCKER_HOST:-}" ]; then
        die "the Docker engine at DOCKER_HOST=$DOCKER_HOST does not answer: start it, or unset DOCKER_HOST to use one on this machine"
    fi
    if engine_runs; then
        may_not_use
        await_engine "" # it may be starting
        return
    fi
    if ! dockerd=$(find_dockerd); then
        [ "$(uname -s)" = Linux ] ||
            die "no Docker engine answers: start Docker Desktop (https://docs.docker.com/desktop/), and try again"
        may_install ||
            die "there is no Docker engine, and this script cannot install one here: install one (https://docs.docker.com/engine/install/), start it, and try again"
        # shellcheck disable=SC2046 # a list of words
        apt_install $(engine_packages) $(missing_packages)
        # Newer Debian releases have the docker command in a separate package.
        if ! have docker && known_package docker-cli; then apt_install docker-cli; fi
        dockerd=$(find_dockerd) || die "docker.io is installed, but has no dockerd"
    fi
    may_be_root ||
        die "the Docker engine is installed but not running, and starting it needs root: run 'sudo systemctl start docker' (or dockerd), and try again"
    start_engine "$dockerd"
}
