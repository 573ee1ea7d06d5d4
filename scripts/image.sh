#!/bin/sh
# Builds the container image of packaging/image: the command, perftest, rdma-core's tools and device plugins on Debian.
#
#   scripts/image.sh FILE [NAME]   builds NAME (localhost/ironverbs:0.1.0, by the tree's version) and writes it to FILE, as `docker load`,
#                                  `podman load` and `ctr images import` read it
#
# It needs no registry: debootstrap makes the base once, in ${XDG_CACHE_HOME:-~/.cache}/ironverbs/image. BASE names an image to use instead.
# ENGINE is the engine, podman or docker, optionally with options; SUITE is the Debian suite, by default this machine's if it is Debian. The
# package is that of `make deb`, in cargo's target directory, or DEB. Device plugins are those of `scripts/go-programs.sh build cni`, if
# they have been built.
set -eu

HERE=$(cd "$(dirname "$0")/.." && pwd)
TARGET=${CARGO_TARGET_DIR:-$HERE/target}
ROOM=${XDG_CACHE_HOME:-$HOME/.cache}/ironverbs/image
# A Debian mirror; default: debootstrap's own choice.
MIRROR=${IRONVERBS_MIRROR:-}

die() { echo "image: $*" >&2; exit 1; }

[ $# = 1 ] || [ $# = 2 ] || die "expected a file, and perhaps a name, found: $*"
file=$1
version=$(sed -n 's/^version = "\(.*\)"/\1/p' "$HERE/Cargo.toml" | head -n 1)
name=${2:-localhost/ironverbs:$version}

engine=${ENGINE:-}
for program in podman docker; do
    [ -n "$engine" ] || ! command -v $program >/dev/null || engine=$program
done
[ -n "$engine" ] || die "no podman and no docker here"
command -v "${engine%% *}" >/dev/null || die "no ${engine%% *} here"
# Building needs no container runtime.
isolation=
case ${engine%% *} in *podman) isolation="--isolation chroot" ;; esac

deb=${DEB:-$(echo "$TARGET"/deb/ironverbs_*.deb)}
[ -f "$deb" ] || die "no package at $deb: make deb"

make_base() { # SUITE
    [ "$(id -u)" = 0 ] || die "expected root, as debootstrap does, or an image in BASE"
    command -v debootstrap >/dev/null || die "no debootstrap here, and no image in BASE"
    mkdir -p "$ROOM"
    exec 9>"$ROOM/.lock"
    flock 9
    [ ! -e "$ROOM/$1.tar" ] || return 0
    rm -rf "$ROOM/$1"
    timeout 1800 debootstrap --variant=minbase "$1" "$ROOM/$1" ${MIRROR:+"$MIRROR"} >"$ROOM/$1.log" 2>&1 ||
        die "debootstrap of $1 failed, see $ROOM/$1.log"
    tar -C "$ROOM/$1" --one-file-system --exclude './var/cache/apt/*' --exclude './var/lib/apt/lists/*' -cf "$ROOM/$1.part" .
    rm -rf "$ROOM/$1"
    mv "$ROOM/$1.part" "$ROOM/$1.tar"
}

work=$(mktemp -d "${TMPDIR:-/tmp}/ironverbs-image-XXXXXX")
trap 'exit 1' HUP INT TERM
trap 'rm -rf "$work"' EXIT
mkdir "$work/bin"
cp "$HERE/packaging/image/Containerfile" "$work"
cp "$HERE/packaging/image/ironverbs-node" "$work/bin"
cp "$deb" "$work/ironverbs.deb"
plugins=$("$HERE/scripts/go-programs.sh" path cni)
for plugin in sriovdp k8s-rdma-shared-dp; do
    if [ -e "$plugins/$plugin" ]; then cp "$plugins/$plugin" "$work/bin"
    else echo "image: without $plugin: scripts/go-programs.sh build cni" >&2; fi
done

if [ -z "${BASE:-}" ]; then
    suite=${SUITE:-$(. /etc/os-release && [ "$ID" = debian ] && echo "${VERSION_CODENAME:-}" || true)}
    suite=${suite:-bookworm}
    make_base "$suite"
    BASE=localhost/ironverbs-base:$suite
    # shellcheck disable=SC2086  # the engine and its options
    timeout 300 $engine import - "$BASE" <"$ROOM/$suite.tar" >"$work/log" 2>&1 || die "no base: $(tail -n 1 "$work/log")"
fi
# shellcheck disable=SC2086
timeout 1200 $engine build $isolation --network host --build-arg "BASE=$BASE" -t "$name" -f "$work/Containerfile" "$work" \
    >"$work/log" 2>&1 </dev/null || { cat "$work/log" >&2; die "$name cannot be built"; }
# shellcheck disable=SC2086
timeout 300 $engine save -o "$work/image.tar" "$name" >"$work/log" 2>&1 || die "no $file: $(tail -n 1 "$work/log")"
mv "$work/image.tar" "$file"
