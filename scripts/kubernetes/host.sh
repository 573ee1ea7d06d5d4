#!/bin/sh
# host.sh CLUSTER PROGRAMS PLUGINS IRONVERBS: a node on this host's own kernel, in the control plane's network namespace.
#
# If `ironverbs run` has given it a view of an adapter's functions, device plugins find them there, and containers get theirs by
# `ironverbs cdi runtime`, for no file of a device that plugins name is one of the kernel's. If not, it is as a node of anybody's cluster whose
# engine knows a runtime of ours, by default, which is still to come.
set -eu

# All that its pods leave in control groups is below one of this cluster's own.
group=ironverbs-$(basename "$1")
for hierarchy in /sys/fs/cgroup /sys/fs/cgroup/*; do
    [ ! -e "$hierarchy/cgroup.procs" ] || mkdir -p "$hierarchy/$group"
done
mount -t tmpfs tmpfs /run
if [ -z "${IRONVERBS_NODE:-}" ]; then
    # Files that are made there stay here, but for an empty folder.
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
