#!/bin/sh
# A Kubernetes cluster on this machine: a control plane of real components, and Linux nodes (`ironverbs linux`) with containerd and a
# kubelet on one wire. Each node has an adapter, a PF with VFs. Needs root, no card and no registry. See docs/kubernetes.md.
#
#   scripts/kubernetes.sh up             starts it and waits until all nodes are ready
#   scripts/kubernetes.sh load TAR..     loads images on its nodes, as written by `docker save` and scripts/container-image.sh
#   scripts/kubernetes.sh kubectl ARG..  runs kubectl with the administrator's rights
#   scripts/kubernetes.sh on NODE ARG..  runs a program as root on node 1, 2.. or host; on 0, beside the control plane, 10.10.0.100
#   scripts/kubernetes.sh kill NODE      ends a node as a power cut would
#   scripts/kubernetes.sh down           ends the cluster and removes its files
#
# Variables: CLUSTER, its folder, in memory (/dev/shm/ironverbs-kubernetes); NODES (2), VFS of each (7), CPUS (2) and MEMORY (2G) of each;
# RAILS, the number of additional adapters of each node for pods, and their LINK_LAYER, ethernet (default 0) or infiniband (default 1);
# RDMA_NETNS: each RDMA device of a node is visible in one network namespace (exclusive) or in all (shared), which Linux refuses to change
# while there are pods; HOST=1 adds a node `host` on this host's kernel, whose pods have verbs at the host's speed and no net devices;
# HOST=plain adds such a node without ironverbs, for the chart in packaging/chart; IRONVERBS, the command.
set -eu

HERE=$(cd "$(dirname "$0")/.." && pwd)
CLUSTER=${CLUSTER:-/dev/shm/ironverbs-kubernetes}
NODES=${NODES:-2}
HOST=${HOST:-}
VFS=${VFS:-7}
CPUS=${CPUS:-2}
MEMORY=${MEMORY:-2G}
LINK_LAYER=${LINK_LAYER:-ethernet}
[ "$LINK_LAYER" = infiniband ] && RAILS=${RAILS:-1} || RAILS=${RAILS:-0}
RDMA_NETNS=${RDMA_NETNS:-exclusive}
# The package's copy of this script has no build directory next to it.
BUILT=${CARGO_TARGET_DIR:-$HERE/target}/release/ironverbs
[ -e "$BUILT" ] || BUILT=$(command -v ironverbs || echo "$BUILT")
IRONVERBS=${IRONVERBS:-$BUILT}
# Time limits in seconds for the start of the control plane and the nodes, and for their end.
PATIENCE=180
ENDING=30

say() { echo "kubernetes: $*" >&2; }
die() { say "$*"; exit 1; }

# Waits until a command succeeds. The second argument is for the message that reports a timeout.
await() { # SECONDS WHAT COMMAND..
    tries=$(($1 * 5))
    what=$2
    shift 2
    while ! "$@" >/dev/null 2>&1; do
        tries=$((tries - 1))
        [ $tries -gt 0 ] || { say "expected $what, it did not come"; return 1; }
        sleep 0.2
    done
}

# Starts a program that outlives this script, with its pid and its output in files of its name.
start() { # NAME COMMAND..
    name=$1
    shift
    setsid "$@" >"$CLUSTER/log/$name" 2>&1 </dev/null &
    echo $! >"$CLUSTER/run/$name"
}

# Runs a program in the control plane's network namespace, which lasts as long as the wire's server.
inside() {
    [ -e "$CLUSTER/run/wire" ] || die "no cluster in $CLUSTER"
    nsenter -t "$(cat "$CLUSTER/run/wire")" -n "$@"
}

kubectl() { inside "$CLUSTER/programs/kubectl" --kubeconfig "$CLUSTER/control/admin.conf" "$@"; }

# The names of nodes that were started and not killed.
nodes() { for folder in "$CLUSTER"/asked/*; do [ ! -e "$CLUSTER/run/${folder##*/}" ] || echo "${folder##*/}"; done; }

find_programs() {
    PROGRAMS=$("$HERE/scripts/go-programs.sh" path kubernetes)
    PLUGINS=$("$HERE/scripts/go-programs.sh" path cni)
    for set in kubernetes cni; do
        [ -e "$("$HERE/scripts/go-programs.sh" path $set)/.made" ] || die "expected programs made by: scripts/go-programs.sh build $set"
    done
}

check() {
    [ "$(id -u)" = 0 ] || die "expected root, who may make network namespaces and TAP devices"
    [ ! -e "$CLUSTER" ] || die "$CLUSTER is there already: scripts/kubernetes.sh down"
    case $NODES$HOST in [1-9] | [0-9]1 | [0-9]plain) ;; *) die "expected NODES of 1 to 9 and HOST of 1, plain or nothing, found '$NODES' and '$HOST'" ;; esac
    case $LINK_LAYER$RAILS in ethernet[0-8] | infiniband[1-8]) ;; *) die "expected LINK_LAYER of ethernet with RAILS of 0 to 8, or infiniband with 1 to 8, found '$LINK_LAYER' and '$RAILS'" ;; esac
    case $RDMA_NETNS in exclusive | shared) ;; *) die "expected RDMA_NETNS of exclusive or shared, found '$RDMA_NETNS'" ;; esac
    for program in etcd containerd runc nft busybox nsenter ip openssl; do
        command -v $program >/dev/null || die "no $program here: scripts/install-deps.sh kubernetes"
    done
    [ -x "$IRONVERBS" ] || die "no $IRONVERBS: make build"
    [ -e "$("$HERE/scripts/linux-kernel.sh" path)" ] || die "no kernel: scripts/linux-kernel.sh build"
    [ -e /dev/net/tun ] || die "no /dev/net/tun here"
}

# The adapters, and a wire that connects them and a TAP device of the control plane.
make_wire() {
    links=
    for node in 0 $(seq "$NODES"); do
        "$IRONVERBS" adapter create "$CLUSTER/adapter-$node" --id "$node" --vfs "$VFS" >/dev/null
        [ "$node" = 0 ] || links="$links node:$CLUSTER/adapter-$node"
    done
    # shellcheck disable=SC2086  # a list
    start wire unshare -n "$IRONVERBS" link --adapter "$CLUSTER/adapter-0" $links tap:wire0
    await 20 "a wire" inside ip link show wire0 || die "$(tail -n 3 "$CLUSTER/log/wire")"
    inside ip link set lo up
    inside ip addr add 10.10.0.100/16 dev wire0
    inside ip link set wire0 up
    for node in $(seq "$NODES"); do inside ip route add "10.244.$node.0/24" via "10.10.0.$node"; done
}

# The adapters of each rail, one for each node, and a link that joins them.
make_rails() {
    for rail in $(seq "$RAILS"); do
        links=
        for node in $(seq "$NODES"); do
            "$IRONVERBS" adapter create "$CLUSTER/rail-$rail-$node" --id "$rail$node" --vfs "$VFS" --link-layer "$LINK_LAYER" >/dev/null
            [ "$node" = 1 ] || links="$links node:$CLUSTER/rail-$rail-$node"
        done
        [ -n "$links" ] || continue
        # shellcheck disable=SC2086  # a list
        start "rail-$rail" "$IRONVERBS" link --adapter "$CLUSTER/rail-$rail-1" $links
        await 20 "a link" grep '^linked by' "$CLUSTER/log/rail-$rail" || die "$(tail -n 3 "$CLUSTER/log/rail-$rail")"
    done
}

# The node on this kernel, in the control plane's network namespace and on the adapter of the wire. Its pods end with it, because their
# processes are in its PID namespace.
start_host() {
    mkdir -p "$CLUSTER/images/host" "$CLUSTER/asked/host"
    [ "$HOST" = plain ] && view= || view="$IRONVERBS run --adapter $CLUSTER/adapter-0 --"
    # shellcheck disable=SC2086  # a command, or nothing
    start host nsenter -t "$(cat "$CLUSTER/run/wire")" -n unshare --pid --fork --kill-child --mount-proc $view \
        sh "$HERE/scripts/kubernetes/host.sh" "$CLUSTER" "$PROGRAMS" "$PLUGINS" "$IRONVERBS"
}

start_node() { # NODE
    mkdir -p "$CLUSTER/images/node-$1" "$CLUSTER/asked/node-$1"
    rails=$(seq -f "--adapter $CLUSTER/rail-%g-$1" "$RAILS")
    # shellcheck disable=SC2086  # options
    start "node-$1" "$IRONVERBS" linux --adapter "$CLUSTER/adapter-$1" $rails --vfs "$VFS" --cpus "$CPUS" --memory "$MEMORY" \
        --share "$CLUSTER" --log "$CLUSTER/log/node-$1.kernel" -- \
        sh "$HERE/scripts/kubernetes/node.sh" "$CLUSTER" "$1" "$NODES" "$PROGRAMS" "$PLUGINS" "$RDMA_NETNS"
}

is_ready_or_gone() { is_ready "$1" || has_ended "$(cat "$CLUSTER/run/$1")"; }

is_ready() { kubectl get node "$1" -o 'jsonpath={.status.conditions[?(@.type=="Ready")].status}' | grep -qx True; }

up() {
    check
    find_programs
    mkdir -p "$CLUSTER/log" "$CLUSTER/run" "$CLUSTER/images" "$CLUSTER/control"
        # A copy, because programs may be rebuilt while the cluster runs.
    ln -s "$PROGRAMS" "$CLUSTER/programs"
    trap 'say "what its programs said is in $CLUSTER/log"' EXIT
    "$HERE/scripts/container-image.sh" "$CLUSTER/images/pause.tar" localhost/pause:1 -- sleep 2147483647
    make_wire
    make_rails
    start control nsenter -t "$(cat "$CLUSTER/run/wire")" -n sh "$HERE/scripts/kubernetes/control-plane.sh" "$CLUSTER" "$PROGRAMS"
        # Nodes start at the same time.
    for node in $(seq "$NODES"); do start_node "$node"; done
    [ -z "$HOST" ] || start_host
    await $PATIENCE "a control plane" kubectl get --raw /readyz || die "$(tail -n 3 "$CLUSTER/log/kube-apiserver")"
    for node in $(nodes); do
        await $PATIENCE "$node to be ready" is_ready_or_gone "$node" && is_ready "$node" || die "$(tail -n 3 "$CLUSTER/log/$node")"
    done
    await 60 "the default service account" kubectl get serviceaccount default || exit 1
    kubectl apply -f "$HERE/scripts/kubernetes/cluster.yaml" >/dev/null
    trap - EXIT
    say "$(nodes | wc -w) nodes are ready: scripts/kubernetes.sh kubectl get nodes"
}

# Returns the name of a running node.
node_named() { # NODE
    case $1 in host) node=host ;; *) node=node-$1 ;; esac
    [ -e "$CLUSTER/run/$node" ] || die "expected a node that runs, found '$1'"
    echo "$node"
}

# A node runs each such file, and writes its output and exit status beside it.
on_node() { # NODE ARG..
    node=$(node_named "$1")
    asked=$CLUSTER/asked/$node/$$
    shift
    for word; do printf "'%s' " "$(printf %s "$word" | sed "s/'/'\\\\''/g")"; done >"$asked"
    mv "$asked" "$asked.sh"
    await $PATIENCE "an answer of $node" [ -e "$asked.status" ] || exit 1
    cat "$asked.said"
    status=$(cat "$asked.status")
    rm -f "$asked".*
    return "$status"
}

load() {
    for image; do
        name=$(basename "$image")
        [ -e "$image" ] || die "no $image"
        cp "$image" "$CLUSTER/images/.$name"
        mv "$CLUSTER/images/.$name" "$CLUSTER/images/$name"
        for node in $(nodes); do
            await 120 "$node to take $name" [ -e "$CLUSTER/images/$node/$name" ] || die "$(tail -n 3 "$CLUSTER/log/$node")"
        done
    done
}

# Succeeds if a process group has no process left.
has_ended() { ! kill -s 0 -- "-$1" 2>/dev/null; }

end() { # NAME SIGNAL
    [ -e "$CLUSTER/run/$1" ] || return 0
    pid=$(cat "$CLUSTER/run/$1")
        # Each leads a process group.
    kill -s "$2" -- "-$pid" 2>/dev/null || true
    await $ENDING "$1 to end" has_ended "$pid" || kill -s KILL -- "-$pid" 2>/dev/null || true
    rm -f "$CLUSTER/run/$1"
}

down() {
    [ -e "$CLUSTER/run" ] || die "no cluster in $CLUSTER"
        # All nodes end by themselves when this file exists.
    touch "$CLUSTER/stop"
    for node in $(nodes); do
        await $ENDING "$node to end" has_ended "$(cat "$CLUSTER/run/$node")" || true
        end "$node" TERM
    done
        # Its data is removed anyway.
    end control KILL
    find /sys/fs/cgroup -depth -type d -path "*/ironverbs-$(basename "$CLUSTER")*" -exec rmdir {} + 2>/dev/null || true
    for link in "$CLUSTER"/run/rail-*; do end "${link##*/}" TERM; done
    end wire TERM
    [ ! -e "$CLUSTER/run/.infiniband" ] || rmdir /dev/infiniband 2>/dev/null || true
    rm -rf "$CLUSTER"
}

command=${1:-}
[ $# = 0 ] || shift
case $command in
load | kubectl | on | kill) [ -e "$CLUSTER/run" ] || die "no cluster in $CLUSTER" ;;
esac
case $command in
up) up ;;
load) load "$@" ;;
kubectl) kubectl "$@" ;;
on)
    case ${1:-} in
    0) shift && inside "$@" ;;
    *) on_node "${@:-nothing}" ;;
    esac
    ;;
kill)
    node=$(node_named "${1:-nothing}")
    end "$node" KILL
    ;;
down) down ;;
*) die "unknown command '$command'; up, load, kubectl, on, kill or down" ;;
esac
