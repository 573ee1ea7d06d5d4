#!/bin/sh
# Provides QEMU and everything that a guest needs to boot in it, from Debian packages, without installing anything on this machine.
#
#   scripts/guest-image.sh build    make what is missing, print the two folders
#   scripts/guest-image.sh path     print the two folders, whether made or not
#   scripts/guest-image.sh programs make the folder of programs if it is missing, print it
#
# The first folder holds QEMU (Debian 13's backports: >= 10.1, older ones have no vfio-user client) and tshark. bin/qemu-system-x86_64 and
# bin/tshark start them through the folder's own loader, so the host's release does not matter. The second holds the guest's system:
# root.ext4, a Debian 13 user space with the modules of both kernels, and for 6.1 (Debian 12) and 6.12 (Debian 13) a directory with vmlinuz
# and initramfs. The folder of programs has what only a few guests need; it is overlaid on their user space.
#
# All are kept in ${XDG_CACHE_HOME:-~/.cache}/ironverbs/guest, named by a hash of their inputs: a change makes new ones and removes those
# that are a day old. Needs no root. If the host cannot make them, prints one line and exits with status 3.
set -eu

MIRROR=${IRONVERBS_MIRROR:-http://deb.debian.org/debian}
ROOM=${XDG_CACHE_HOME:-$HOME/.cache}/ironverbs/guest
KEYRING=/usr/share/keyrings/debian-archive-keyring.gpg
TOOLS="qemu-system-x86 tshark"
GUEST="base-files base-passwd bash coreutils util-linux mount grep sed diffutils findutils procps netbase iproute2 \
iputils-ping ethtool kmod pciutils socat strace python3 busybox-static rdma-core ibverbs-utils ibverbs-providers \
librdmacm1t64 rdmacm-utils perftest infiniband-diags python3-pyverbs python3-scapy"
# Modules a guest needs before it has its root.
BOOT="virtio_pci virtio_blk virtio_console ext4 crc32c_generic overlay 9p 9pnet_virtio"
# Module directories a guest may load from.
MODULES="arch block crypto lib net fs/9p fs/ext4 fs/jbd2 fs/overlayfs fs/netfs fs/fscache fs/mbcache.ko fs/configfs
drivers/block/virtio_blk.ko drivers/char drivers/virtio drivers/iommu drivers/vfio drivers/pci drivers/infiniband drivers/ptp
drivers/pps drivers/hwmon drivers/i2c drivers/dca drivers/net/dummy.ko drivers/net/macvlan.ko drivers/net/veth.ko
drivers/net/virtio_net.ko drivers/net/net_failover.ko drivers/net/ethernet/mellanox drivers/net/ethernet/intel drivers/vdpa drivers/vhost virt"

# UCX, built with Open MPI, and libfabric, together with the libraries of theirs that the guest lacks, listed one by one: UCX's packages
# depend on those of AMD's GPUs, including LLVM, which only UCX's module for these GPUs would load.
PROGRAMS="ucx-utils libucx0 libfuse3-4 libgomp1 libfabric-bin libfabric1 libpsm2-2 libnuma1 openmpi-bin openmpi-common
libopenmpi40 libpmix2t64 libmunge2 libhwloc15 libevent-core-2.1-7t64 libevent-pthreads-2.1-7t64"

say() { echo "guest-image: $*" >&2; }
die() { say "$*"; exit 1; }
cannot() { say "$*"; exit 3; }

# Hash of the lines of this script that make a folder.
key() { { echo "$MIRROR"; sed -n "$1" "$0"; } | sha256sum | cut -c1-12; }
tools=$ROOM/tools-$(key '/^TOOLS=/p; /^build_tools/,/^}/p')
guest=$ROOM/guest-$(key '/^GUEST=/,/^$/p; /^kernel()/,/^}/p; /^build_guest/,/^}/p')
programs=$ROOM/programs-$(key '/^PROGRAMS=/,/^$/p; /^build_programs/,/^}/p')

# A private package manager state: neither the packages installed on this machine nor its sources count.
apt_for() { # NAME SUITE..
    name=$1
    shift
    state=$work/apt-$name
    mkdir -p "$state/lists/partial" "$state/archives/partial"
    : >"$state/status"
    for suite in "$@"; do echo "deb [signed-by=$KEYRING] $MIRROR $suite main"; done >"$state/sources"
    timeout 600 apt-get $(options "$name") -qq update >"$work/apt.log" 2>&1 && ! grep -q '^[EW]: .*[Ff]ailed' "$work/apt.log" || {
        tail -n 3 "$work/apt.log" >&2
        cannot "cannot read the package lists of $* at $MIRROR"
    }
}

options() { # NAME
    state=$work/apt-$1
    printf -- '-o %s ' Dir::State="$state" Dir::State::status="$state/status" Dir::State::lists="$state/lists" Dir::Cache="$state" \
        Dir::Cache::archives="$state/archives" Dir::Etc::sourcelist="$state/sources" Dir::Etc::sourceparts=/dev/null \
        Dir::Etc::preferencesparts=/dev/null Dir::Etc::preferences=/dev/null APT::Install-Recommends=false \
        APT::Architecture=amd64 APT::Architectures=amd64 APT::Sandbox::User="$(id -un)" Acquire::Languages=none Acquire::Retries=3
}

unpack() { # NAME FOLDER: everything downloaded
    mkdir -p "$2/usr/bin" "$2/usr/sbin" "$2/usr/lib" "$2/usr/lib64"
    for link in bin sbin lib lib64; do ln -sfn usr/$link "$2/$link"; done
    for package in "$work/apt-$1"/archives/*.deb; do
        dpkg-deb --fsys-tarfile "$package" | tar -x -C "$2" --no-same-owner --keep-directory-symlink ||
            die "cannot unpack ${package##*/}"
    done
    rm -f "$work/apt-$1"/archives/*.deb
}

fetch() { # NAME APT-ARGUMENTS..
    name=$1
    shift
    timeout 1800 apt-get $(options "$name") -qq -y --download-only "$@" </dev/null >"$work/apt.log" 2>&1 || {
        tail -n 5 "$work/apt.log" >&2
        cannot "cannot download: $*"
    }
}

build_tools() {
    apt_for tools trixie trixie-updates trixie-backports
    fetch tools -t trixie-backports install $TOOLS
    part=$tools.part
    rm -rf "$part"
    unpack tools "$part/root"
    mkdir "$part/bin"
    for program in qemu-system-x86_64 tshark; do
        case $program in
        tshark) more= ;;
        *) more='-L "$root/usr/share/qemu" -L "$root/usr/share/seabios" -L "$root/usr/lib/ipxe/qemu"' ;;
        esac
        cat >"$part/bin/$program" <<END
#!/bin/sh
root=\$(cd "\$(dirname "\$0")/../root" && pwd)
libraries=\$root/usr/lib/x86_64-linux-gnu
export WIRESHARK_DATA_DIR="\$root/usr/share/wireshark" QEMU_MODULE_DIR="\$libraries/qemu"
exec "\$root/usr/lib64/ld-linux-x86-64.so.2" --library-path "\$libraries" "\$root/usr/bin/$program" $more "\$@"
END
        chmod +x "$part/bin/$program"
    done
    "$part/bin/qemu-system-x86_64" --version >"$work/version" 2>&1 || die "QEMU does not start: $(tail -n 1 "$work/version")"
    "$part/bin/tshark" --version >"$work/version" 2>&1 || die "tshark does not start: $(tail -n 1 "$work/version")"
    find "$ROOM" -maxdepth 1 -name "tools-*" -mmin +1440 -exec rm -rf {} +
    rm -rf "$tools"
    mv "$part" "$tools"
    touch "$tools"
}

modprobe() { # FOLDER VERSION ARGUMENTS: the folder's own, about its modules
    root=$1 version=$2
    shift 2
    "$root/usr/lib64/ld-linux-x86-64.so.2" --library-path "$root/usr/lib/x86_64-linux-gnu" --argv0 modprobe \
        "$root/usr/bin/kmod" -d "$root" -S "$version" "$@"
}

depmod() { # FOLDER VERSION
    "$1/usr/lib64/ld-linux-x86-64.so.2" --library-path "$1/usr/lib/x86_64-linux-gnu" --argv0 depmod \
        "$1/usr/bin/kmod" -b "$1" "$2" 2>"$work/depmod.log" || die "depmod of $2 failed: $(tail -n 1 "$work/depmod.log")"
}

kernel() { # NAME SERIES SUITE ROOT PART
    apt_for "$1" "$3"
    package=$(apt-cache $(options "$1") --names-only search "^linux-image-$2\.[0-9.]*[-+].*-amd64\$" | cut -d' ' -f1 |
        grep -v -E -- '-(rt|cloud|dbg)|unsigned' | sort -V | tail -n 1)
    [ -n "$package" ] || cannot "no kernel $2 in $3 of $MIRROR"
    (cd "$work/apt-$1/archives" && timeout 900 apt-get $(options "$1") -qq download "$package" >"$work/apt.log" 2>&1) ||
        cannot "cannot download $package"
    mkdir "$work/kernel-$1"
    dpkg-deb -x "$work/apt-$1"/archives/"$package"*.deb "$work/kernel-$1"
    rm -rf "$work/apt-$1"
    for modules in "$work/kernel-$1"/usr/lib/modules/* "$work/kernel-$1"/lib/modules/*; do [ ! -d "$modules" ] || break; done
    version=${modules##*/}
    to=$4/usr/lib/modules/$version
    mkdir -p "$to/kernel"
    cp "$modules"/modules.order "$modules"/modules.builtin* "$to/"
    for piece in $MODULES; do
        for found in "$modules/kernel/$piece" "$modules/kernel/$piece.xz"; do
            [ -e "$found" ] || continue
            mkdir -p "$to/kernel/$(dirname "$piece")"
            cp -r "$found" "$to/kernel/$(dirname "$piece")/"
        done
    done
    # The guest's processor is slow: what is compressed is unpacked here.
    find "$to/kernel" -name '*.ko.xz' -exec xz -d -T0 {} +
    depmod "$4" "$version"

    mkdir -p "$5/$1" "$work/initramfs-$1/modules"
    cp "$work/kernel-$1/boot/vmlinuz-$version" "$5/$1/vmlinuz"
    cp "$work/kernel-$1/boot/config-$version" "$5/$1/config"
    early=$work/initramfs-$1
    for dir in dev proc sys disk upper new bin; do mkdir "$early/$dir"; done
    cp "$4/usr/bin/busybox" "$early/bin/"
    modprobe "$4" "$version" -a --show-depends $BOOT | sed -n 's/^insmod \([^ ]*\).*/\1/p' | awk '!seen[$0]++' >"$work/order"
    while read -r module; do
        cp "$module" "$early/modules/"
        echo "${module##*/}"
    done <"$work/order" >"$early/modules/order"
    cat >"$early/init" <<'END'
#!/bin/busybox sh
b=/bin/busybox
$b mount -t devtmpfs dev /dev
$b mount -t proc proc /proc
$b mount -t sysfs sys /sys
while read -r m; do $b insmod /modules/$m || echo "init: $m is not loaded"; done </modules/order
n=0
while [ ! -b /dev/vda ] && [ $n -lt 100 ]; do $b sleep 0.05; n=$((n + 1)); done
$b mount -t ext4 -o ro /dev/vda /disk || { echo "init: no root"; $b poweroff -f; }
$b mount -t tmpfs tmpfs /upper
$b mkdir /upper/u /upper/w
$b mount -t overlay -o lowerdir=/disk,upperdir=/upper/u,workdir=/upper/w root /new
$b mount -t 9p -o trans=virtio,version=9p2000.L,msize=262144 share /new/share || { echo "init: no share"; $b poweroff -f; }
for d in dev proc sys; do $b mount -o move /$d /new/$d; done
exec $b switch_root /new /bin/sh /share/init
END
    chmod +x "$early/init"
    (cd "$early" && find . | "$4/usr/bin/busybox" cpio -o -H newc) >"$5/$1/initramfs" 2>"$work/cpio.log" ||
        die "no initramfs: $(tail -n 1 "$work/cpio.log")"
    rm -rf "$early" "$work/kernel-$1"
}

build_guest() {
    apt_for guest trixie trixie-updates
    fetch guest install $GUEST
    part=$guest.part
    rm -rf "$part"
    root=$work/root
    unpack guest "$root"
    mkdir -p "$part" "$root/share" "$root/built" "$root/proc" "$root/sys" "$root/dev" "$root/tmp" "$root/run" "$root/root" \
        "$root/var/log"
    printf 'root:x:0:0:root:/root:/bin/bash\nnobody:x:65534:65534:nobody:/:/usr/sbin/nologin\n' >"$root/etc/passwd"
    printf 'root:x:0:\nnogroup:x:65534:\n' >"$root/etc/group"
    echo guest >"$root/etc/hostname"
    printf '127.0.0.1 localhost guest\n::1 localhost\n' >"$root/etc/hosts"
    # Commands of packages that are not there.
    for applet in $("$root/usr/bin/busybox" --list); do
        [ -e "$root/usr/bin/$applet" ] || [ -e "$root/usr/sbin/$applet" ] || ln -s busybox "$root/usr/bin/$applet"
    done
    cp -r "$root/usr/share/doc/rdma-core/tests" "$root/usr/lib/rdma-core-tests"
    find "$root/usr/lib/rdma-core-tests" -name '*.gz' -exec gunzip {} +
    rm -rf "$root/usr/share/doc" "$root/usr/share/man" "$root/usr/share/locale" "$root/var/cache" "$root/usr/share/info"
    kernel 6.12 '6\.12' trixie "$root" "$part"
    kernel 6.1 '6\.1' bookworm "$root" "$part"
    megabytes=$(($(du -sm "$root" | cut -f1) * 5 / 4 + 32))
    PATH=$PATH:/usr/sbin:/sbin mke2fs -q -t ext4 -O none,extent,filetype,sparse_super,dir_index,large_file -m 0 -b 4096 \
        -N 60000 -d "$root" "$part/root.ext4" "${megabytes}M" >"$work/mke2fs.log" 2>&1 ||
        die "no root image: $(tail -n 1 "$work/mke2fs.log")"
    find "$ROOM" -maxdepth 1 -name "guest-*" -mmin +1440 -exec rm -rf {} +
    rm -rf "$guest"
    mv "$part" "$guest"
    touch "$guest"
}

build_programs() {
    apt_for programs trixie trixie-updates
    (cd "$work/apt-programs/archives" && timeout 900 apt-get $(options programs) -qq download $PROGRAMS >"$work/apt.log" 2>&1) ||
        cannot "cannot download the programs: $(tail -n 1 "$work/apt.log")"
    root=$work/programs
    unpack programs "$root"
    rm -rf "$root/usr/share/doc" "$root/usr/share/man" "$root/usr/share/locale"
    find "$ROOM" -maxdepth 1 -name "programs-*" -mmin +1440 -exec rm -rf {} +
    rm -rf "$programs"
    mv "$root" "$programs"
    touch "$programs"
}

# Checks the dependencies and takes the lock before anything is made.
begin() {
    [ "$(uname -m)" = x86_64 ] || cannot "guests are x86_64, this machine is $(uname -m)"
    for program in apt-get dpkg-deb xz flock awk sha256sum; do
        command -v $program >/dev/null || cannot "no $program here"
    done
    PATH=$PATH:/usr/sbin:/sbin command -v mke2fs >/dev/null || cannot "no mke2fs here"
    [ -e "$KEYRING" ] || cannot "no $KEYRING here"
    mkdir -p "$ROOM"
    exec 9>"$ROOM/.lock"
    flock 9
    rm -rf "$ROOM"/work-*
    work=$(mktemp -d "$ROOM/work-XXXXXX")
    trap 'exit 1' HUP INT TERM
    trap 'rm -rf "$work"' EXIT
}

case ${1:-build} in
path) ;;
programs)
    if [ ! -d "$programs" ]; then
        begin
        [ -d "$programs" ] || { say "programs for guests are fetched, half a minute"; build_programs; }
    fi
    echo "$programs"
    exit
    ;;
build)
    if [ ! -d "$tools" ] || [ ! -d "$guest" ]; then
        begin
        [ -d "$tools" ] || { say "QEMU is made ready, a minute"; build_tools; }
        [ -d "$guest" ] || { say "guest images are made, two minutes"; build_guest; }
    fi
    ;;
*) die "unknown command '$1'; build, path or programs" ;;
esac
echo "$tools"
echo "$guest"
