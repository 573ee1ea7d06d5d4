#!/bin/sh
# Makes a Debian package of the programs that `make build` and `make deb` built.
#
#   scripts/deb.sh pack [DIR]       writes ironverbs_VERSION_ARCHITECTURE.deb to DIR (deb in cargo's target directory), and prints its path
#   scripts/deb.sh check [SUITE..]  installs it on a bare bookworm and trixie, uses it, removes and purges it; needs root
#
# The version is the command's. In a git checkout it includes the commit: 0.1.0~git650.0123456789ab comes before the tag v0.1.0,
# 0.1.0+git3.0123456789ab after it. The same binaries always make the same package: its dates are the commit's, or SOURCE_DATE_EPOCH.
# DEBFULLNAME and DEBEMAIL set the maintainer.
set -eu

PATH=$HOME/.cargo/bin:$PATH
export PATH LC_ALL=C
umask 022
HERE=$(cd "$(dirname "$0")/.." && pwd)
TARGET=${CARGO_TARGET_DIR:-$HERE/target}
BUILT=${IRONVERBS_BUILT:-$TARGET/release}
CARGO=${CARGO:-cargo}
cd "$HERE"

LIBRARIES="libironverbs_provider.so libironverbs_loader.so libironverbs_time.so"
INSTALLED="packaging/chart packaging/linux/README.md packaging/linux/config packaging/linux/uml.patch
    scripts/container-image.sh scripts/go-programs.sh scripts/install-deps.sh
    scripts/kubernetes scripts/kubernetes.sh scripts/linux-kernel.sh
    tests/places/linux/plugin-client tests/places/linux/sriov-cni"
ARCHITECTURE=$(dpkg --print-architecture)
MAINTAINER="${DEBFULLNAME:-the ironverbs authors} <${DEBEMAIL:-authors@ironverbs.invalid}>"

die() { echo "deb: $*" >&2; exit 1; }

git() { command git -c safe.directory='*' "$@" 2>/dev/null; }

# Sets version and date.
describe() {
    said=$("$BUILT/ironverbs" --version)
    version=${said#ironverbs }
    version=${version%% *}
    commit=$(expr "$said" : '.*(\([0-9a-f]*\))') || commit=
    date=$(git log -1 --format=%ct "$commit" --) || date=$(stat -c %Y Cargo.lock)
    date=${SOURCE_DATE_EPOCH:-$date}
    [ -n "$commit" ] || return 0
    git cat-file -e "$commit^{commit}" || die "git does not know the commit of $said: make deb builds it anew"
    tag=v$version
    if git rev-parse -q --verify "refs/tags/$tag" >/dev/null && git merge-base --is-ancestor "$tag" "$commit"; then
        count=$(git rev-list --count "$tag..$commit")
        [ "$count" = 0 ] || version=$version+git$count.$commit
    else
        version=$version~git$(git rev-list --count "$commit" --).$commit
    fi
    git diff --quiet "$commit" -- || version=$version+modified
}

# The newest version of the required symbols, such as 2.34 of GLIBC_2.34.
newest() { # PREFIX FILE..
    prefix=$1
    shift
    readelf -VW "$@" | grep -oE "${prefix}_[0-9.]+" | sort -Vu | tail -n 1 | cut -d_ -f2
}

# The dependencies that dpkg-shlibdeps would find, without dpkg-dev: libc6, which has libm too, and libgcc_s are all that Rust needs.
needed() { # FILE..
    more=$(readelf -dW "$@" | sed -n 's/.*(NEEDED).*\[\(.*\)\]/\1/p' | grep -vE '^(lib[cm]\.so\.6|libgcc_s\.so\.1|ld-linux.*)$' || true)
    [ -z "$more" ] || die "expected to need libc, libm and libgcc_s alone, found $(echo "$more" | sort -u | tr '\n' ' ')"
    echo "libc6 (>= $(newest GLIBC "$@")), libgcc-s1 (>= $(newest GCC "$@"))"
}

# The crates of crates.io that are linked into the binaries, and their licence texts.
notices() {
    crates=$($CARGO tree --locked --offline --edges normal,no-proc-macro --prefix none --format '{p}|{l}' \
        -p ironverbs-cli -p ironverbs-provider -p ironverbs-loader -p ironverbs-time)
    echo "The programs of this package contain Rust's standard library (MIT or Apache-2.0) and the crates below."
        # Crates of this tree have a path behind the version and do not match.
    echo "$crates" | sed -n 's/^\([^ ]*\) v\([^ |]*\)|\(.*\)/\1 \2 \3/p' | sed 's/ (\*)$//' | sort -u | while read -r name number licence; do
        printf '\n%s\n%s %s: %s\n' ---------------------------------------------------------------- "$name" "$number" "$licence"
        for source in "${CARGO_HOME:-$HOME/.cargo}"/registry/src/*/"$name-$number"; do
                        # MIT first, the shortest of a choice of licences.
            for file in "$source"/LICENSE-MIT* "$source"/LICENSE* "$source"/LICENCE* "$source"/COPYING*; do
                [ -f "$file" ] || continue
                echo
                cat "$file"
                case $file in */LICENSE-MIT*) break ;; esac
            done
        done
    done
}

copyright() {
    echo "Format: https://www.debian.org/doc/packaging-manuals/copyright-format/1.0/"
    echo "Upstream-Name: ironverbs"
    echo "Comment: NOTICES.gz in this directory has the notices of the crates that the programs contain."
    echo
    echo "Files: *"
    echo "Copyright: $(sed -n 's/^Copyright (c) //p' LICENSE-MIT)"
    echo "License: Expat or Apache-2.0"
    echo
    echo "License: Expat"
    sed '1,/^Copyright/d' LICENSE-MIT | sed '1{/^$/d}; s/^$/./; s/^/ /'
    echo
    echo "License: Apache-2.0"
    echo " The text is in /usr/share/common-licenses/Apache-2.0 on Debian systems."
    echo
    echo "Files: usr/share/ironverbs/packaging/linux/*"
    echo "Copyright: the authors of ironverbs and of Linux"
    echo "License: GPL-2.0"
    echo " The text is in /usr/share/common-licenses/GPL-2 on Debian systems."
}

changelog() {
    echo "ironverbs ($version) unstable; urgency=medium"
    echo
    echo "  * Built from ${commit:+commit $commit of }the sources."
    echo
    echo " -- $MAINTAINER  $(date -u -R -d "@$date")"
}

control() {
    cat <<END
Package: ironverbs
Version: $version
Architecture: $ARCHITECTURE
Maintainer: $MAINTAINER
Installed-Size: $(find "$root/usr" -printf '%y %s\n' | awk '{ kib += $1 == "f" ? int(($2 + 1023) / 1024) : 1 } END { print kib }')
Depends: $(needed "$root/usr/bin/ironverbs" "$root"/usr/lib/ironverbs/*), libibverbs1 (>= 36)
Recommends: ibverbs-utils, perftest
Suggests: iproute2, qemu-system-x86 (>= 1:10.1), rdmacm-utils, ucx-utils
Section: net
Priority: optional
Description: RDMA verbs on a simulated ConnectX NIC, in user space
 Unmodified verbs programs, such as perftest, UCX or your own, see a
 ConnectX-5 with up to 127 virtual functions that is not there, or a function
 of a real card that is bound to vfio-pci. No kernel module, no daemon and,
 where the host allows user namespaces, no root is needed.
 .
 Only programs that are started by "ironverbs run" see these devices. The
 libibverbs of the system stays in place, and finds what it found before.
END
}

pack() { # DIRECTORY
    for name in ironverbs $LIBRARIES examples/manual; do
        [ -e "$BUILT/$name" ] || die "no $name in $BUILT: make deb builds it"
    done
    describe
    export SOURCE_DATE_EPOCH="$date"
    work=$(mktemp -d)
    trap 'rm -rf "$work"' EXIT
    root=$work/root
    share=$root/usr/share
    doc=$share/doc/ironverbs
    mkdir -p "$root/DEBIAN" "$root/usr/bin" "$root/usr/lib/ironverbs" "$doc/docs"

        # strip loses the RELRO part of a file when it removes a loaded section, such as the build id.
    lean() { strip --strip-unneeded -R .comment -o "$2/${1##*/}" "$1"; }
    lean "$BUILT/ironverbs" "$root/usr/bin"
    for name in $LIBRARIES; do
        lean "$BUILT/$name" "$root/usr/lib/ironverbs"
        chmod 644 "$root/usr/lib/ironverbs/$name"
    done
    "$BUILT/examples/manual" "$share" "$(date -u -d "@$date" +%F)"
    # The scripts that the pages run, and the sources of the kernel and programs that they build, in the directories of the source tree,
    # where the scripts look for each other.
    for file in $INSTALLED; do
        mkdir -p "$share/ironverbs/${file%/*}"
        cp -r "$file" "$share/ironverbs/$file"
    done
    cp README.md "$doc"
    cp -r docs/*.md docs/drawings "$doc/docs"
    copyright >"$doc/copyright"
    changelog >"$doc/changelog"
    notices >"$doc/NOTICES"
    gzip -9n "$doc/changelog" "$doc/NOTICES" "$share"/man/man1/*

    (cd "$root" && find usr -type f | sort | xargs md5sum) >"$root/DEBIAN/md5sums"
    control >"$root/DEBIAN/control"
        # The compressed bytes depend on the number of threads.
    mkdir -p "$1"
    DPKG_DEB_THREADS_MAX=1 dpkg-deb -Zxz --build --root-owner-group "$root" "$work" >/dev/null
    name=ironverbs_${version}_$ARCHITECTURE.deb
    mv "$work/$name" "$1"
    echo "$1/$name"
}

check() { # SUITE..
    work=$(mktemp -d)
    trap 'rm -rf "$work"' EXIT
    cp "$TARGET"/deb/ironverbs_*.deb "$work" || die "no package in $TARGET/deb: run make deb first"
    cp tests/places/package/check.sh "$work"
    scripts/fresh.sh --with "$work" "$@" -- sh check.sh
}

case ${1:-} in
pack)
    if [ $# = 1 ]; then
        rm -f "$TARGET"/deb/ironverbs_*.deb
        set -- pack "$TARGET/deb"
    fi
    pack "$2"
    ;;
check)
    shift
    check "$@"
    ;;
*) die "expected pack or check" ;;
esac
