#!/bin/sh
# control-plane.sh CLUSTER PROGRAMS: runs etcd, Kubernetes' control plane and CoreDNS in this network namespace until a signal ends it.
#
# One token has all rights. Only the nodes are on the wire.
set -eu

cluster=$1
programs=$2
log=$cluster/log
cd "$cluster/control"

openssl genrsa -out accounts.key 2048 2>/dev/null
openssl rsa -in accounts.key -pubout -out accounts.pub 2>/dev/null
token=$(openssl rand -hex 16)
echo "$token,admin,admin,\"system:masters\"" >tokens
chmod 600 tokens

etcd --data-dir etcd --unsafe-no-fsync --listen-client-urls http://127.0.0.1:2379 --advertise-client-urls http://127.0.0.1:2379 \
    --listen-peer-urls http://127.0.0.1:2380 >"$log/etcd" 2>&1 &
# The API server makes a certificate for these addresses, which its clients check.
"$programs/kube-apiserver" --etcd-servers http://127.0.0.1:2379 --advertise-address 10.10.0.100 --cert-dir certificates \
    --token-auth-file tokens --authorization-mode RBAC --service-account-key-file accounts.pub \
    --service-account-signing-key-file accounts.key --service-account-issuer https://kubernetes.default.svc \
    --service-cluster-ip-range 10.96.0.0/16 --allow-privileged --enable-aggregator-routing --kubelet-preferred-address-types InternalIP \
    >"$log/kube-apiserver" 2>&1 &
until [ -s certificates/apiserver.crt ]; do sleep 0.2; done
sh "$(dirname "$0")/kubeconfig.sh" certificates/apiserver.crt "$token" >.admin.conf
mv .admin.conf admin.conf
"$programs/kube-controller-manager" --kubeconfig admin.conf --leader-elect=false --service-account-private-key-file accounts.key \
    --root-ca-file certificates/apiserver.crt >"$log/kube-controller-manager" 2>&1 &
"$programs/kube-scheduler" --kubeconfig admin.conf --leader-elect=false >"$log/kube-scheduler" 2>&1 &
cat >Corefile <<END
cluster.local in-addr.arpa ip6.arpa {
    errors
    kubernetes {
        kubeconfig admin.conf
        pods insecure
    }
}
END
"$programs/coredns" -conf Corefile >"$log/coredns" 2>&1 &
wait
