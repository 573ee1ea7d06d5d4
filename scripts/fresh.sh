#!/bin/sh
# Runs the README's steps for newcomers on a Debian with nothing installed.
#
#   scripts/fresh.sh [--with FOLDER] [SUITE..] [-- COMMAND..]
#                                      suites: bookworm trixie (both); command: make demo, then make test
#
# Each suite is a minimal debootstrap folder, kept unchanged in ${XDG_CACHE_HOME:-~/.cache}/ironverbs/fresh: the command runs in an overlay
# on it, on a copy of the committed tree or, instead, of FOLDER, and everything it made is thrown away. Rust is Debian's own. Needs root, 15
# minutes and about 8 GB for each suite.
set -eu

# Time limits for the commands, in minutes.
DEMO=30
TEST=45

# A Debian mirror; default: debootstrap's own choice.
MIRROR=${IRONVERBS_MIRROR:-}
ROOM=${XDG_CACHE_HOME:-$HOME/.cache}/ironverbs/fresh
HERE=$(cd "$(dirname "$0")/.." && pwd)

die() { echo "fresh: $*" >&2; exit 1; }

with=
if [ "${1:-}" = --with ]; then with=$2 && shift 2; fi
suites=
while [ $# -gt 0 ] && [ "$1" != -- ]; do suites="$suites $1"; shift; done
[ $# = 0 ] || shift
[ $# -gt 0 ] || set -- sh -ec "timeout -k 30 ${DEMO}m make demo; timeout -k 30 ${TEST}m make test"
[ "$(id -u)" = 0 ] || die "needs root"
command -v debootstrap >/dev/null || die "debootstrap is missing: apt-get install debootstrap"

base() { # SUITE
    [ ! -e "$ROOM/$1/.made" ] || return 0
    rm -rf "$ROOM/$1"
    # The newcomer types `make`, so it may be installed.
    timeout 1800 debootstrap --variant=minbase --include=make "$1" "$ROOM/$1" ${MIRROR:+"$MIRROR"} >"$ROOM/$1.log" 2>&1 ||
        die "debootstrap of $1 failed, see $ROOM/$1.log"
    touch "$ROOM/$1/.made"
}

mkdir -p "$ROOM"
for suite in ${suites:-bookworm trixie}; do
    # Another process may be making the same folder.
    (
        flock 9
        base "$suite"
    ) 9>"${ROOM%/*}/.fresh.lock"
    work=$(mktemp -d "$ROOM/run-XXXXXX")
    echo "fresh: $* on a bare $suite"
    status=0
    # shellcheck disable=SC2016  # expanded by the inner shell
    timeout -k 30 $((DEMO + TEST + 10))m unshare -m sh -c '
        set -eu
        base=$1 work=$2 here=$3 with=$4
        shift 4
        mount --make-rslave /
        mkdir "$work/upper" "$work/layer" "$work/root" "$work/cache"
        mount -t overlay -o "lowerdir=$base,upperdir=$work/upper,workdir=$work/layer" overlay "$work/root"
        for dir in proc sys dev; do mount --rbind "/$dir" "$work/root/$dir"; done
        # The new system must not see the nodes of this machine.
        mount -t tmpfs shm "$work/root/dev/shm"
        # A bind mount, because a tree in the cache may be the base of an overlay, and an overlay cannot be one.
        mkdir "$work/root/root/.cache"
        mount --bind "$work/cache" "$work/root/root/.cache"
        cp /etc/resolv.conf "$work/root/etc/resolv.conf"
        # Every installer and container runtime writes this file, but debootstrap does not.
        echo "127.0.0.1 localhost" >"$work/root/etc/hosts"
        # If the host trusts more certificate authorities than Debian does, downloads in the folder need them too.
        cp /etc/ssl/certs/ca-certificates.crt "$work/root/etc/host-authorities.crt" 2>/dev/null || true
        mkdir "$work/root/root/ironverbs"
        if [ -n "$with" ]; then cp -r "$with/." "$work/root/root/ironverbs"
        else git -c "safe.directory=*" -C "$here" archive HEAD | tar -x -C "$work/root/root/ironverbs"
        fi
        authorities=
        [ ! -e "$work/root/etc/host-authorities.crt" ] || authorities=CARGO_HTTP_CAINFO=/etc/host-authorities.crt
        # Not with chroot: inside one the kernel refuses to create user namespaces.
        cd "$work/root"
        pivot_root . .
        umount -l .
        cd /root/ironverbs
        exec env -i HOME=/root TERM=dumb PATH=/usr/sbin:/usr/bin:/sbin:/bin $authorities "$@"
    ' sh "$ROOM/$suite" "$work" "$HERE" "$with" "$@" </dev/null || status=$?
    rm -rf "$work"
    [ $status = 0 ] || die "$suite: '$*' ended with $status"
    echo "fresh: $suite ok"
done
