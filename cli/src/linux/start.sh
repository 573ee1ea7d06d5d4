# The second program of an `ironverbs linux` guest, in the requested root: mounts the usual file systems, runs the command on the guest's
# lines (cli/src/linux/console.rs), and reports its exit status when all files are written.
cd /
PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin
HOME=/root
# A doorbell is one trapped store instead of eight (packaging/linux/README.md).
MLX5_SHUT_UP_BF=1
UCX_IB_MMIO_MODE=db
export PATH HOME MLX5_SHUT_UP_BF UCX_IB_MMIO_MODE
here=/run/ironverbs
. $here/environment

mkdir -p /dev/shm /dev/pts /dev/mqueue /run/lock /run/netns
mount -t tmpfs -o mode=1777 tmpfs /dev/shm
mount -t devpts -o gid=5,mode=620,ptmxmode=666 devpts /dev/pts
mount -t mqueue mqueue /dev/mqueue
mount -t cgroup2 cgroup2 /sys/fs/cgroup
mount -t debugfs debugfs /sys/kernel/debug
ln -snf /proc/self/fd /dev/fd
ln -snf /proc/self/fd/0 /dev/stdin
ln -snf /proc/self/fd/1 /dev/stdout
ln -snf /proc/self/fd/2 /dev/stderr
echo ironverbs >/proc/sys/kernel/hostname
for share in /run/shares/*; do
    [ -e "$share" ] || continue
    at=$(readlink "$here/shares/${share##*/}")
    mkdir -p "$at"
    mount --move "$share" "$at"
done
# Mounts propagate between namespaces, as container engines expect.
mount --make-rshared /
# Without iproute2 in the root the loopback interface stays down.
ip link set lo up

# Input arrives in files; the line carries their names.
pieces() {
    while read -r piece && [ "$piece" != end ] && cat "$here/in/$piece"; do
        rm "$here/in/$piece"
        echo taken >/dev/tty4
    done
}

# Kept open from before `ready` on, because a line loses input while no program has it open.
exec 5</dev/tty1 6</dev/tty4

directory=${IRONVERBS_CWD:-/}
[ -d "$directory" ] || directory=/
unset IRONVERBS_CWD

if [ ! -e $here/terminal ]; then
    lines=/run/lines
    mkdir $lines
    mkfifo $lines/in $lines/out $lines/err
    for line in 1 2 3; do stty raw -echo </dev/tty$line; done
    # They outlive the programs that write to them.
    (trap '' TERM && pieces <&5 >$lines/in) &
    (trap '' TERM && exec cat <$lines/out >/dev/tty2) &
    out=$!
    (trap '' TERM && exec cat <$lines/err >/dev/tty3) &
    err=$!
fi
# On a request to stop, sends SIGTERM to all processes. The guest ends after the command.
(trap '' TERM; read -r _ <&6; kill -s TERM -- -1) &
echo ready >/dev/tty4
# In the foreground, because background jobs of a shell ignore Ctrl-C.
if [ -e $here/terminal ]; then
    (cd "$directory" && exec setsid -c /bin/sh $here/command </dev/tty1 >/dev/tty1 2>&1 5<&- 6<&-)
else
    (cd "$directory" && exec setsid /bin/sh $here/command <$lines/in >$lines/out 2>$lines/err 5<&- 6<&-)
fi
status=$?

# Ends processes that the command left behind, first by SIGTERM.
kill -s TERM -- -1
(trap '' TERM; sleep 2; kill -s KILL -- -1) &
if [ -e $here/terminal ]; then
    stty sane </dev/tty1
else
    wait $out $err
fi
sync
echo "ended $status" >/dev/tty4
while :; do sleep 1000; done
