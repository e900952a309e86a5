# Kubernetes for its tests: the programs of a cluster, at pinned versions, in the cache.
# shellcheck shell=sh disable=SC2154 # deploy/setup.sh sources this file and sets the variables

kubernetes_version() { sed -n 's/^[[:space:]]*k8s.io\/kubernetes \(v[^ ]*\).*/\1/p' "$here/deploy/kubernetes/go.mod"; }

kubernetes_dir() { printf '%s\n' "${SANDFARM_TEST_KUBERNETES:-$cache/kubernetes-$(kubernetes_version)}"; }

# build_kubernetes builds the programs into the cache, unless they are there. Their modules are pinned with all that they need, by hash, in
# deploy/kubernetes. Compiled from nothing they take half an hour or more, so they leave the processors to other programs.
build_kubernetes() {
    programs=$(kubernetes_dir)
    version=$(kubernetes_version)
    minor=${version#v*.}
    flags="-s -w"
    for package in k8s.io/component-base/version k8s.io/client-go/pkg/version; do
        flags="$flags -X $package.gitVersion=$version -X $package.gitMajor=1 -X $package.gitMinor=${minor%%.*}"
    done
    mkdir -p "$programs" "$log"
    # CoreDNS has a module of its own, since it would bring two hundred others into that of Kubernetes.
    for package in k8s.io/kubernetes/cmd/kube-apiserver k8s.io/kubernetes/cmd/kubelet k8s.io/kubernetes/cmd/kube-scheduler k8s.io/kubernetes/cmd/kubectl \
        k8s.io/kubernetes/cmd/kube-controller-manager k8s.io/kubernetes/cmd/kube-proxy github.com/cloudnativelabs/kube-router/v2/cmd/kube-router \
        github.com/sandfarm/sandfarm/deploy/kubernetes/coredns; do
        program=${package##*/}
        module=$here/deploy/kubernetes
        [ "$program" != coredns ] || module=$module/coredns
        [ ! -x "$programs/$program" ] || continue
        : >"$log/$program.log"
        if ! timed "building $program for Kubernetes $version (once)" "$log/$program.log" env GOFLAGS='' CGO_ENABLED=0 nice -n 19 \
            go -C "$module" build -v -mod=readonly -trimpath -ldflags "$flags" -o "$programs/$program.new" "$package"; then
            tail_of "$log/$program.log"
            die "$program could not be built: see above; it needs the Go module proxy to be reachable"
        fi
        mv "$programs/$program.new" "$programs/$program"
    done
}
