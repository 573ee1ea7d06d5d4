#!/bin/sh
# The user-mode Linux kernel of packaging/linux/, from Debian's source package, without installing anything on this machine.
#
#   scripts/linux-kernel.sh build   make it if it is missing, print its path
#   scripts/linux-kernel.sh path    print its path, whether made or not
#
# It is kept in ${XDG_CACHE_HOME:-~/.cache}/ironverbs/linux, in a folder named by a hash of its inputs: the source's version, the patch, the
# configuration and the lines below that build it. A change makes a new one and removes those that are a day old. The build takes about 10
# minutes of processor time and 2 GB. JOBS=N runs N compilers, by default one for each processor. Needs no root. If the host cannot build
# it, prints one line and exits with status 3.
set -eu

MIRROR=${IRONVERBS_MIRROR:-http://deb.debian.org/debian}
# Debian's archive of files that mirrors no longer have, at a date that has this one.
SNAPSHOT=http://snapshot.debian.org/archive/debian/20261120T000000Z
SERIES=7.3
VERSION=7.3.4-1~bpo13+1
SHA256=703e369ddd4cce971452f5a593ee55df3a5c10c83caf0fa0df039633ed181ee3
ROOM=${XDG_CACHE_HOME:-$HOME/.cache}/ironverbs/linux
HERE=$(cd "$(dirname "$0")/.." && pwd)
SOURCE=$HERE/packaging/linux

say() { echo "linux-kernel: $*" >&2; }
die() { say "$*"; exit 1; }
cannot() { say "$*"; exit 3; }

key=$({ sed -n '/^SERIES=/,/^SHA256=/p; /^build()/,/^}/p' "$0" && cat "$SOURCE/uml.patch" "$SOURCE/config"; } | sha256sum | cut -c1-12)
folder=$ROOM/$SERIES-$key

# The package, its sum checked: this room's, the mirror's, or the snapshot's.
fetch() {
    name=linux-source-${SERIES}_${VERSION}_all.deb
    package=$ROOM/$name
    echo "$SHA256  $package" | sha256sum -c --status 2>/dev/null && return
    for place in "$MIRROR" "$SNAPSHOT"; do
                # By apt, with its proxies; apt compares the sum, too.
        if timeout 1800 /usr/lib/apt/apt-helper -o APT::Sandbox::User="$(id -un)" -o Acquire::Retries=2 download-file \
            "$place/pool/main/l/linux/$name" "$work/package" "SHA256:$SHA256" >"$work/fetch.log" 2>&1; then
            mv "$work/package" "$package"
            return
        fi
        say "$place does not give $name: $(grep -m 1 '^[EW]:' "$work/fetch.log" || tail -n 1 "$work/fetch.log")"
    done
    cannot "expected $name (sha256 $SHA256) at a mirror or the snapshot; a newer version wants VERSION and SHA256 in $0"
}

build() {
    fetch
    say "the kernel is unpacked, patched and built, 5 to 15 minutes"
    mkdir "$work/linux" "$work/built"
    # Register lists of graphics cards, half of the files' bytes, which nothing here is built with.
    dpkg-deb --fsys-tarfile "$package" | tar -xO "./usr/src/linux-source-$SERIES.tar.xz" | xz -dc |
        tar -x -C "$work/linux" --strip-components=1 --exclude='*/drivers/gpu/drm/amd/include/asic_reg'
    [ -e "$work/linux/Makefile" ] || die "cannot unpack $package"
    patch -d "$work/linux" -p1 -s --no-backup-if-mismatch <"$SOURCE/uml.patch" >"$work/patch.log" 2>&1 || {
        cat "$work/patch.log" >&2
        die "linux/uml.patch does not fit Linux $VERSION"
    }
    # What is built says when and by whom; the same for all who build it.
    make_kernel() {
        env KBUILD_BUILD_TIMESTAMP="Debian $VERSION" KBUILD_BUILD_USER=ironverbs KBUILD_BUILD_HOST=ironverbs \
            make -s -C "$work/linux" ARCH=um O="$work/built" "$@" >"$work/make.log" 2>&1 </dev/null || {
            tail -n 20 "$work/make.log" >&2
            die "make $* failed"
        }
    }
    make_kernel KCONFIG_ALLCONFIG="$SOURCE/config" allnoconfig
    grep '^CONFIG' "$SOURCE/config" | while IFS= read -r wanted; do
        grep -qxF -e "$wanted" "$work/built/.config" || echo "$wanted"
    done >"$work/lost"
    [ ! -s "$work/lost" ] || die "expected of Linux $VERSION and not possible as configured: $(tr '\n' ' ' <"$work/lost")"
    make_kernel -j"${JOBS:-$(nproc)}" vmlinux
    strip "$work/built/vmlinux"
    mkdir "$work/folder"
    mv "$work/built/vmlinux" "$work/folder/vmlinux"
    cp "$work/built/.config" "$work/folder/config"
    find "$ROOM" -maxdepth 1 -name "[0-9]*" -mmin +1440 -exec rm -rf {} +
    rm -rf "$folder"
    mv "$work/folder" "$folder"
    rm -f "$ROOM"/linux-source-*.deb
}

case ${1:-build} in
path) ;;
build)
    if [ ! -e "$folder/vmlinux" ]; then
        [ "$(uname -m)" = x86_64 ] || cannot "user-mode Linux is built for x86_64, this machine is $(uname -m)"
        for program in dpkg-deb xz flock patch make gcc flex bison bc strip sha256sum; do
            command -v $program >/dev/null || cannot "no $program here, one of what Debian has in gcc, make, binutils, flex, bison, bc, patch, xz-utils and util-linux"
        done
        [ -x /usr/lib/apt/apt-helper ] || cannot "no /usr/lib/apt/apt-helper here"
        mkdir -p "$ROOM"
        exec 9>"$ROOM/.lock"
        flock 9
        # Another one may have made it meanwhile.
        if [ ! -e "$folder/vmlinux" ]; then
            rm -rf "$ROOM"/work-*
            work=$(mktemp -d "$ROOM/work-XXXXXX")
            trap 'exit 1' HUP INT TERM
            trap 'rm -rf "$work"' EXIT
            build
        fi
    fi
    ;;
*) die "unknown command '$1'; build or path" ;;
esac
echo "$folder/vmlinux"
