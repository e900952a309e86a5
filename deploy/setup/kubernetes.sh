# Kubernetes for its tests: the programs of a cluster of one node, at pinned versions, in the cache.
# shellcheck shell=sh disable=SC2154 # deploy/setup.sh sources this file and sets the variables

kubernetes_version() { sed -n 's/^[[:space:]]*k8s.io\/kubernetes \(v[^ ]*\).*/\1/p' "$here/deploy/kubernetes/go.mod"; }

kubernetes_dir() { printf '%s\n' "${SANDFARM_TEST_KUBERNETES:-$cache/kubernetes-$(kubernetes_version)}"; }

# build_kubernetes builds each program into the cache, unless it is there. Their module is pinned with all that it needs, by hash, in
# deploy/kubernetes. Compiled from nothing, they take half an hour or more, so they leave the processors to other programs.
build_kubernetes() {
    kubernetes_dir=$(kubernetes_dir)
    for program in kube-apiserver kubelet kube-scheduler kubectl kube-controller-manager kube-proxy; do
        [ -x "$kubernetes_dir/$program" ] || build_kubernetes_program "$program"
    done
}

build_kubernetes_program() { # name
    version=$(kubernetes_version)
    minor=${version#v*.}
    flags="-s -w"
    for package in k8s.io/component-base/version k8s.io/client-go/pkg/version; do
        flags="$flags -X $package.gitVersion=$version -X $package.gitMajor=1 -X $package.gitMinor=${minor%%.*}"
    done
    mkdir -p "$kubernetes_dir" "$log"
    : >"$log/$1.log"
    if ! timed "building $1 $version (once)" "$log/$1.log" env GOFLAGS='' CGO_ENABLED=0 nice -n 19 \
        go -C "$here/deploy/kubernetes" build -v -p 1 -mod=readonly -trimpath -ldflags "$flags" -o "$kubernetes_dir/$1.new" "k8s.io/kubernetes/cmd/$1"; then
        tail_of "$log/$1.log"
        die "$1 $version could not be built: see above; it needs the Go module proxy to be reachable"
    fi
    mv "$kubernetes_dir/$1.new" "$kubernetes_dir/$1"
}
