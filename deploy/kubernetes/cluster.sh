#!/bin/sh
# A Kubernetes cluster of one node for tests: a container of this machine's Docker engine, as kind makes them. Nothing of the machine
# is changed, and nothing is left when the container is removed, except the images that it was made of.
#
#   deploy/kubernetes/cluster.sh up           starts it, unless it runs, and prints the path of its kubeconfig
#   deploy/kubernetes/cluster.sh load IMAGE…  copies images from the Docker engine into it
#   deploy/kubernetes/cluster.sh run COMMAND… runs a command with SANDFARM_TEST_KUBECONFIG; it starts and removes the cluster, unless one runs
#   deploy/kubernetes/cluster.sh exec COMMAND… runs a command in its node
#   deploy/kubernetes/cluster.sh down         removes it
#
# SANDFARM_TEST_CLUSTER names another cluster than sandfarm-kubernetes: several run beside each other.
# The API server answers on a free port of 127.0.0.1. Pods reach the machine at the address of Docker's bridge. NetworkPolicies are
# enforced by kube-router.
set -eu

here=$(cd "$(dirname "$0")" && pwd)
programs=$("$here/../setup.sh" kubernetes-dir)
name=${SANDFARM_TEST_CLUSTER:-sandfarm-kubernetes}
kubeconfig=${XDG_CACHE_HOME:-$HOME/.cache}/sandfarm/$name.conf

die() {
    printf 'cluster: %s\n' "$*" >&2
    exit 1
}

say() { printf '==> %s\n' "$*" >&2; }

running() { [ "$(docker container inspect -f '{{.State.Running}}' "$name" 2>/dev/null)" = true ]; }

# until_true waits up to two minutes for a command to succeed.
until_true() { # what, command…
    what=$1 tries=0
    shift
    until "$@" >/dev/null 2>&1; do
        running || die "the cluster ended: $(docker logs --tail 30 "$name" 2>&1)"
        tries=$((tries + 1))
        [ "$tries" -lt 240 ] || die "no $what after two minutes: docker exec $name sh -c 'tail -n 20 /var/log/*.log'"
        sleep 0.5
    done
}

kubectl() { "$programs/kubectl" --kubeconfig="$kubeconfig" "$@"; }

up() {
    running && return
    # The one that is built last.
    [ -x "$programs/coredns" ] || die "$programs has no Kubernetes: run deploy/setup.sh kubernetes, which takes half an hour or more"
    down
    base=debian:trixie-slim
    ! docker image inspect sandfarm/base:latest >/dev/null 2>&1 || base=sandfarm/base:latest
    for target in node pause; do
        printed=$(docker build --build-arg BASE="$base" --target "$target" -t "sandfarm/kubernetes-$target" "$here" 2>&1) ||
            die "the image sandfarm/kubernetes-$target could not be built: $printed"
    done
    say "starting Kubernetes in the container $name"
    # What --privileged would give, but for a capability that a machine may lack, in which case Docker would refuse to start it.
    docker run --detach --init --name "$name" --hostname node --publish 127.0.0.1::6443 --cgroupns private \
        --cap-add ALL --cap-drop SYS_RESOURCE --device /dev/kmsg --device-cgroup-rule 'a *:* rwm' \
        --security-opt apparmor=unconfined --security-opt seccomp=unconfined --security-opt systempaths=unconfined \
        --tmpfs /run --tmpfs /tmp --tmpfs /var/lib/etcd --volume "$programs:/opt/kubernetes:ro" sandfarm/kubernetes-node >/dev/null
    until_true "API server" docker exec "$name" kubectl --kubeconfig=admin.conf get --raw=/readyz
    mkdir -p "${kubeconfig%/*}"
    server=$(docker port "$name" 6443/tcp | head -n 1)
    (umask 077 && docker exec "$name" sed "s|https://[^\"]*|https://$server|" admin.conf >"$kubeconfig")
    until_true containerd docker exec "$name" ctr version
    load sandfarm/kubernetes-pause:latest
    until_true "ready node" kubectl wait --for=condition=Ready --timeout=1s node/node
    until_true "service account" kubectl get serviceaccount default
}

load() { # image…
    docker save "$@" | docker exec -i "$name" ctr -n k8s.io images import - >&2
}

down() {
    docker rm --force --volumes "$name" >/dev/null 2>&1 || true
    rm -f "$kubeconfig"
}

command=${1:-}
[ "$#" = 0 ] || shift
case $command in
up)
    up
    printf '%s\n' "$kubeconfig"
    ;;
load)
    running || die "no cluster runs: $0 up"
    load "$@"
    ;;
exec)
    docker exec "$name" "$@"
    ;;
run)
    if ! running; then
        trap down EXIT
        trap 'exit 130' INT TERM
        up
    fi
    SANDFARM_TEST_KUBECONFIG=$kubeconfig "$@"
    ;;
down) down ;;
*)
    printf 'usage: %s up|load IMAGE…|run COMMAND…|exec COMMAND…|down\n' "$0" >&2
    exit 2
    ;;
esac
