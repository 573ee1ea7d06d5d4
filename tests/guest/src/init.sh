# The guest's init: mounts the usual file systems, then executes commands of the harness. /share is the harness's directory. The line "N
# SECONDS ." on the port runs /share/N.sh; it is answered by "got N" at once and by "N STATUS" at the end, which is also written to
# /share/N.end. An incomplete line is not answered, and a repeated line does not run the script again.
export PATH=/usr/sbin:/usr/bin HOME=/root LANG=C.UTF-8 PYTHONDONTWRITEBYTECODE=1
# shellcheck disable=SC2046  # words of the kernel's command line
set -- $(cat /proc/cmdline)
mount -t tmpfs tmpfs /tmp
mount -t tmpfs tmpfs /run
mkdir -p /dev/pts /dev/shm
mount -t devpts devpts /dev/pts
mount -t tmpfs tmpfs /dev/shm
mount -t debugfs debugfs /sys/kernel/debug 2>/dev/null
mount -t 9p -o trans=virtio,version=9p2000.L,msize=262144,ro,cache=loose built /built 2>/dev/null
for word in "$@"; do
    case $word in guest=*) hostname "${word#guest=}" ;; esac
done
ip link set lo up
ulimit -l unlimited
ulimit -c 0
for word in "$@"; do
    case $word in
    guest.shell)
        echo "a shell in the guest; exit ends it"
        setsid -c bash </dev/ttyS0 >/dev/ttyS0 2>&1
        exec busybox poweroff -f
        ;;
    esac
done
exec 3<>/dev/vport0p1 || exec busybox poweroff -f
echo "ready $(uname -r)" >&3
while read -r id seconds dot <&3; do
    [ "$id" != off ] || break
    [ "$dot" = . ] && [ -e "/share/$id.sh" ] || continue
    echo "got $id" >&3
    mkdir "/run/script-$id" 2>/dev/null || continue
    (
        timeout -k 3 "$seconds" bash "/share/$id.sh" >"/share/$id.out" 2>&1 </dev/null 3>&-
        status=$?
        echo "$status" >"/share/$id.part" && mv "/share/$id.part" "/share/$id.end"
        echo "$id $status" >&3
    ) &
done
# Once virtio's shutdown has disabled the device, a kernel complains about every frame that it still sends.
[ ! -e /sys/class/net/cable ] || ip link set cable down
exec busybox poweroff -f
