#!/bin/sh
# The first process of a container that is a Kubernetes cluster of one node (cluster.sh): makes certificates and settings in
# /etc/kubernetes, and starts the programs, which log to /var/log/NAME.log. The container ends when one of them does. One that a test kills by
# SIGKILL is started again, at once or when the file /run/NAME.away is gone.
set -eu

address=$(hostname -i)
services=10.96
pods=10.244.0.0/24

# certificate makes a key and a certificate, signed by the cluster's authority.
certificate() { # name, subject, extension
    openssl req -quiet -x509 -CA ca.crt -CAkey ca.key -days 30 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -noenc \
        -subj "$2" -addext "$3" -keyout "$1.key" -out "$1.crt"
}

# account makes a certificate and a kubeconfig for a user of the API server.
account() { # name, subject
    certificate "$1" "$2" "subjectAltName=DNS:$(hostname),IP:$address"
    cat >"$1.conf" <<END
apiVersion: v1
kind: Config
current-context: sandfarm
clusters: [{name: sandfarm, cluster: {server: "https://$address:6443", certificate-authority-data: $(base64 -w 0 ca.crt)}}]
users: [{name: $1, user: {client-certificate-data: $(base64 -w 0 "$1.crt"), client-key-data: $(base64 -w 0 "$1.key")}}]
contexts: [{name: sandfarm, context: {cluster: sandfarm, user: $1}}]
END
}

# start runs a program; when it ends, so does this script, unless it was killed.
start() { # program, flags…
    {
        result=137
        while [ "$result" = 137 ]; do
            while [ -e "/run/$1.away" ]; do sleep 0.1; done
            result=0
            "$@" >>"/var/log/$1.log" 2>&1 || result=$?
        done
        printf 'node: %s ended:\n' "$1" >&2
        tail -n 20 "/var/log/$1.log" >&2
        kill $$
    } &
}

# Docker mounts these read-only, since the container is not privileged.
mount -o remount,bind,rw /sys
for mount in /sys/fs/cgroup /sys/fs/cgroup/*; do
    ! mountpoint -q "$mount" || mount -o remount,bind,rw "$mount"
done
# In version 2 of cgroups, a group with processes of its own cannot have groups with limits.
if [ -e /sys/fs/cgroup/cgroup.controllers ]; then
    mkdir /sys/fs/cgroup/init
    xargs -rn1 </sys/fs/cgroup/cgroup.procs >/sys/fs/cgroup/init/cgroup.procs 2>/dev/null || true
    sed 's/ / +/g; s/^/+/' </sys/fs/cgroup/cgroup.controllers >/sys/fs/cgroup/cgroup.subtree_control
fi
mount --make-rshared /
# The kubelet sets these for the whole machine. It finds them set here, so that it does not.
for setting in vm/overcommit_memory=1 vm/panic_on_oom=0 kernel/panic=10 kernel/panic_on_oops=1 kernel/keys/root_maxkeys=1000000 \
    kernel/keys/root_maxbytes=25000000; do
    file=$(mktemp)
    echo "${setting#*=}" >"$file"
    mount --bind "$file" "/proc/sys/${setting%=*}"
done

openssl req -quiet -x509 -days 30 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -noenc -subj /CN=sandfarm-test -keyout ca.key -out ca.crt
openssl genrsa -out accounts.key 2048
certificate kube-apiserver /CN=kube-apiserver "subjectAltName=IP:127.0.0.1,IP:$address,IP:$services.0.1,DNS:kubernetes.default.svc"
account admin /O=system:masters/CN=admin
account kubelet "/O=system:nodes/CN=system:node:$(hostname)"
for name in kube-controller-manager kube-scheduler kube-proxy; do
    account "$name" "/CN=system:$name"
done
export KUBECONFIG=/etc/kubernetes/admin.conf

start etcd --data-dir=/var/lib/etcd --unsafe-no-fsync
start kube-apiserver --etcd-servers=http://127.0.0.1:2379 --advertise-address="$address" \
    --client-ca-file=ca.crt --tls-cert-file=kube-apiserver.crt --tls-private-key-file=kube-apiserver.key \
    --kubelet-certificate-authority=ca.crt --kubelet-client-certificate=admin.crt --kubelet-client-key=admin.key \
    --kubelet-preferred-address-types=InternalIP --service-cluster-ip-range="$services.0.0/16" \
    --service-account-issuer=https://kubernetes.default.svc --service-account-key-file=accounts.key \
    --service-account-signing-key-file=accounts.key --authorization-mode=Node,RBAC --enable-admission-plugins=NodeRestriction \
    --allow-privileged
until kubectl get --raw=/readyz >/dev/null 2>&1; do sleep 0.2; done

start kube-controller-manager --kubeconfig=kube-controller-manager.conf --use-service-account-credentials --leader-elect=false \
    --service-account-private-key-file=accounts.key --root-ca-file=ca.crt
start kube-scheduler --kubeconfig=kube-scheduler.conf --leader-elect=false

cat >/etc/containerd/config.toml <<END
version = 2
[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = "sandfarm/kubernetes-pause:latest"
  restrict_oom_score_adj = true
  [plugins."io.containerd.grpc.v1.cri".cni]
    bin_dir = "/usr/lib/cni"
END
mkdir -p /etc/cni/net.d
cat >/etc/cni/net.d/sandfarm.conflist <<END
{"cniVersion": "0.4.0", "name": "sandfarm", "plugins": [
  {"type": "bridge", "bridge": "pods", "isGateway": true, "ipMasq": true, "hairpinMode": true,
   "ipam": {"type": "host-local", "ranges": [[{"subnet": "$pods"}]], "routes": [{"dst": "0.0.0.0/0"}]}}]}
END
start containerd
until ctr version >/dev/null 2>&1; do sleep 0.2; done

# Its disk is the machine's, whose state is not this cluster's business: it evicts no Pod and removes no image for lack of space there.
cat >kubelet.yaml <<END
kind: KubeletConfiguration
apiVersion: kubelet.config.k8s.io/v1beta1
authentication: {anonymous: {enabled: false}, webhook: {enabled: true}, x509: {clientCAFile: /etc/kubernetes/ca.crt}}
authorization: {mode: Webhook}
tlsCertFile: /etc/kubernetes/kubelet.crt
tlsPrivateKeyFile: /etc/kubernetes/kubelet.key
cgroupDriver: cgroupfs
clusterDNS: ["$address"]
clusterDomain: cluster.local
containerRuntimeEndpoint: unix:///run/containerd/containerd.sock
failSwapOn: false
podPidsLimit: 1024
imageGCHighThresholdPercent: 100
evictionHard: {memory.available: 100Mi, nodefs.available: 0%, nodefs.inodesFree: 0%, imagefs.available: 0%}
END
cat >Corefile <<END
. {
    bind $address
    errors
    kubernetes cluster.local {
        kubeconfig admin.conf
    }
    forward . /etc/resolv.conf
}
END
start coredns -conf Corefile
start kubelet --config=kubelet.yaml --kubeconfig=kubelet.conf --node-ip="$address"

cat >kube-proxy.yaml <<END
kind: KubeProxyConfiguration
apiVersion: kubeproxy.config.k8s.io/v1alpha1
clientConnection: {kubeconfig: /etc/kubernetes/kube-proxy.conf}
clusterCIDR: $pods
conntrack: {maxPerCore: 0}
END
# The address of a Service that kube-proxy does not know yet would else lead to the machine's way out, where something may answer.
iptables --table mangle --append FORWARD --destination "$services.0.0/16" --jump DROP
start kube-proxy --config=kube-proxy.yaml
until kubectl get node "$(hostname)" >/dev/null 2>&1; do sleep 0.2; done
start kube-router --kubeconfig=admin.conf --hostname-override="$(hostname)" --run-firewall --run-router=false --run-service-proxy=false \
    --service-cluster-ip-range="$services.0.0/16"
wait
