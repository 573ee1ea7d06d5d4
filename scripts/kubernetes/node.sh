#!/bin/sh
# node.sh CLUSTER NUMBER NODES PROGRAMS PLUGINS NETNS: makes a Linux guest a Kubernetes node, until CLUSTER/stop exists.
#
# The PF eth0, of its first adapter, carries the node's address; VFs and other adapters are for pods.
set -eu

number=$2
nodes=$3

echo "node-$number" >/proc/sys/kernel/hostname
rdma system set netns "$6"
ip addr add "10.10.0.$number/16" dev eth0
ip link set eth0 up
# A service's address needs a route before kube-proxy's rules can replace it.
ip route add default via 10.10.0.100
for other in $(seq "$nodes"); do
    [ "$other" = "$number" ] || ip route add "10.244.$other.0/24" via "10.10.0.$other"
done
exec sh "$(dirname "$0")/machine.sh" "$1" "node-$number" "10.10.0.$number" "$4" "$5"
