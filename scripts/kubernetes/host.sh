#!/bin/sh
# host.sh CLUSTER PROGRAMS PLUGINS IRONVERBS: a node on this host's kernel, in the control plane's network namespace.
#
# Under `ironverbs run`, device plugins find the adapter's functions in the view, and `ironverbs cdi runtime` gives them to containers,
# because the device files that plugins name are not the kernel's. Otherwise the node is like one of any cluster whose engine is configured
# with ironverbs' runtime as its default; the chart installs that runtime later.
set -eu

# All control groups of its pods are below one of this cluster.
group=ironverbs-$(basename "$1")
for hierarchy in /sys/fs/cgroup /sys/fs/cgroup/*; do
    [ ! -e "$hierarchy/cgroup.procs" ] || mkdir -p "$hierarchy/$group"
done
mount -t tmpfs tmpfs /run
if [ -z "${IRONVERBS_NODE:-}" ]; then
        # Files created there are on this tmpfs; only an empty folder is left on the host.
    [ -e /dev/infiniband ] || touch "$1/run/.infiniband"
    mkdir -p /dev/infiniband
    mount -t tmpfs tmpfs /dev/infiniband
    exec sh "$(dirname "$0")/machine.sh" "$1" host 10.10.0.100 "$2" "$3" runc "/$group" /opt/ironverbs/bin/ironverbs-runc
fi
cat >/run/runtime <<END
#!/bin/sh
exec $4 cdi runtime --adapter $IRONVERBS_NODE -- "\$@"
END
chmod +x /run/runtime
exec sh "$(dirname "$0")/machine.sh" "$1" host 10.10.0.100 "$2" "$3" /run/runtime "/$group"
