#!/bin/sh
# machine.sh CLUSTER NAME ADDRESS PROGRAMS PLUGINS [RUNTIME GROUP [OURS]]: runs containerd, a kubelet and kube-proxy, which make this
# machine a Kubernetes node, until CLUSTER/stop exists. Pods are on a bridge of the node, 10.244.N.0/24 for the address 10.10.0.N. OURS is a
# second container runtime, `ironverbs`, the default.
set -eu

cluster=$1
name=$2
address=$3
programs=$4
plugins=$5
runtime=${6:-runc}
group=${7:-/}
ours=${8:-}
log=$cluster/log

# The layer in memory above the root cannot be the upper layer of another overlay.
for folder in /var/lib/containerd /var/lib/kubelet /opt /etc/cni /etc/kubernetes /var/lib/cni; do
    mkdir -p $folder
    mount -t tmpfs tmpfs $folder
done
mount --make-rshared /
echo 1 >/proc/sys/net/ipv4/ip_forward
mkdir -p /opt/cni/bin /etc/cni/net.d
for plugin in bridge host-device host-local ipvlan loopback macvlan rdma sriov static; do
    [ ! -e "$plugins/$plugin" ] || cp "$plugins/$plugin" /opt/cni/bin/
done
cat >/etc/cni/net.d/10-default.conflist <<END
{"cniVersion": "1.0.0", "name": "default", "plugins": [
    {"type": "bridge", "bridge": "cni0", "isGateway": true, "hairpinMode": true,
     "ipam": {"type": "host-local", "ranges": [[{"subnet": "10.244.${address##*.}.0/24"}]], "routes": [{"dst": "0.0.0.0/0"}]}}]}
END

cat >/etc/kubernetes/containerd.toml <<END
version = 2
[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = "localhost/pause:1"
  disable_apparmor = true
    # If this host is a container, its root may lack the privilege to lower the score.
  restrict_oom_score_adj = true
[plugins."io.containerd.grpc.v1.cri".registry]
  config_path = "/etc/kubernetes/registries"
[plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
  runtime_type = "io.containerd.runc.v2"
[plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc.options]
  BinaryName = "$runtime"
END
[ -z "$ours" ] || cat >>/etc/kubernetes/containerd.toml <<END
[plugins."io.containerd.grpc.v1.cri".containerd]
  default_runtime_name = "ironverbs"
[plugins."io.containerd.grpc.v1.cri".containerd.runtimes.ironverbs]
  runtime_type = "io.containerd.runc.v2"
[plugins."io.containerd.grpc.v1.cri".containerd.runtimes.ironverbs.options]
  BinaryName = "$ours"
END
# Kubernetes pulls an image that is named without a tag, or as :latest, for each container that it starts. No registry is in reach, so each
# node serves its own images under every registry's name.
mkdir -p /etc/kubernetes/registries/_default
cat >/etc/kubernetes/registries/_default/hosts.toml <<END
server = "http://127.0.0.1:10247/cgi-bin/registry"
override_path = true
# containerd 1.6 refuses a file without this table.
[host]
END
install -D "$(dirname "$0")/registry.sh" /etc/kubernetes/www/cgi-bin/registry
busybox httpd -f -p 127.0.0.1:10247 -h /etc/kubernetes/www >"$log/$name.registry" 2>&1 &
containerd -c /etc/kubernetes/containerd.toml >"$log/$name.containerd" 2>&1 &
until ctr version >/dev/null 2>&1; do sleep 0.2; done

# Imports new images.
take_images() {
    for image in "$cluster"/images/*.tar; do
        taken=$cluster/images/$name/${image##*/}
        [ -e "$taken" ] || [ ! -e "$image" ] || { ctr -n k8s.io images import "$image" && touch "$taken"; }
    done
}
take_images

until [ -e "$cluster/control/admin.conf" ]; do sleep 0.2; done
cp "$cluster/control/admin.conf" /etc/kubernetes/
cat >/etc/kubernetes/kubelet.yaml <<END
apiVersion: kubelet.config.k8s.io/v1beta1
kind: KubeletConfiguration
authentication: {anonymous: {enabled: true}, webhook: {enabled: false}}
authorization: {mode: AlwaysAllow}
cgroupDriver: cgroupfs
cgroupRoot: $group
clusterDNS: [10.96.0.10]
clusterDomain: cluster.local
containerRuntimeEndpoint: unix:///run/containerd/containerd.sock
failSwapOn: false
resolvConf: ""
# Files are in memory, so the limit of memory covers them.
evictionHard: {memory.available: 20Mi, nodefs.available: 0%, imagefs.available: 0%}
imageGCHighThresholdPercent: 100
END
"$programs/kubelet" --config /etc/kubernetes/kubelet.yaml --kubeconfig /etc/kubernetes/admin.conf --hostname-override "$name" \
    --node-ip "$address" >"$log/$name.kubelet" 2>&1 &
# Linux allows only the first network namespace to set the number of tracked connections; node host is in another one.
"$programs/kube-proxy" --proxy-mode nftables --cluster-cidr 10.244.0.0/16 --kubeconfig /etc/kubernetes/admin.conf --hostname-override "$name" \
    --conntrack-max-per-core 0 >"$log/$name.kube-proxy" 2>&1 &

# Carries out the commands of `kubernetes.sh on NODE`.
answer() {
    for asked in "$cluster/asked/$name"/*.sh; do
        [ -e "$asked" ] || continue
        status=0
        sh "$asked" >"${asked%.sh}.said" 2>&1 </dev/null || status=$?
        rm "$asked"
        echo $status >"${asked%.sh}.answer"
        mv "${asked%.sh}.answer" "${asked%.sh}.status"
    done
}
until [ -e "$cluster/stop" ]; do
    take_images
    answer
    sleep 0.2
done
