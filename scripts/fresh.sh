#!/bin/sh
# Does what the README promises a newcomer, on a Debian with nothing installed.
#
#   scripts/fresh.sh [SUITE..] [-- COMMAND..]     suites: bookworm trixie (both); command: make demo
#
# Each suite is a minimal debootstrap folder kept in ${XDG_CACHE_HOME:-~/.cache}/ironverbs/fresh and never changed: the
# command runs in an overlay of it, on a copy of the committed tree, and all it made is thrown away. Needs root.
set -eu

# A Debian mirror; debootstrap's own choice if not set.
MIRROR=${IRONVERBS_MIRROR:-}
ROOM=${XDG_CACHE_HOME:-$HOME/.cache}/ironverbs/fresh
HERE=$(cd "$(dirname "$0")/.." && pwd)

die() { echo "fresh: $*" >&2; exit 1; }

suites=
while [ $# -gt 0 ] && [ "$1" != -- ]; do suites="$suites $1"; shift; done
[ $# = 0 ] || shift
[ $# -gt 0 ] || set -- make demo
[ "$(id -u)" = 0 ] || die "needs root"
command -v debootstrap >/dev/null || die "debootstrap is missing: apt-get install debootstrap"

base() { # SUITE
    [ ! -e "$ROOM/$1/.made" ] || return 0
    mkdir -p "$ROOM"
    rm -rf "$ROOM/$1"
    # make is what a newcomer types, so it may be there.
    timeout 1800 debootstrap --variant=minbase --include=make "$1" "$ROOM/$1" ${MIRROR:+"$MIRROR"} >"$ROOM/$1.log" 2>&1 ||
        die "debootstrap of $1 failed, see $ROOM/$1.log"
    touch "$ROOM/$1/.made"
}

for suite in ${suites:-bookworm trixie}; do
    base "$suite"
    work=$(mktemp -d "$ROOM/run-XXXXXX")
    echo "fresh: $* on a bare $suite"
    status=0
    # shellcheck disable=SC2016  # expanded by the inner shell
    timeout 3000 unshare -m sh -c '
        set -eu
        base=$1 work=$2 here=$3
        shift 3
        mount --make-rslave /
        mkdir "$work/upper" "$work/layer" "$work/root"
        mount -t overlay -o "lowerdir=$base,upperdir=$work/upper,workdir=$work/layer" overlay "$work/root"
        for dir in proc sys dev; do mount --rbind "/$dir" "$work/root/$dir"; done
        cp /etc/resolv.conf "$work/root/etc/resolv.conf"
        # Where the host trusts more authorities than Debian does, downloads in the folder need them too.
        cp /etc/ssl/certs/ca-certificates.crt "$work/root/etc/host-authorities.crt" 2>/dev/null || true
        mkdir "$work/root/root/ironverbs"
        git -c "safe.directory=*" -C "$here" archive HEAD | tar -x -C "$work/root/root/ironverbs"
        authorities=
        [ ! -e "$work/root/etc/host-authorities.crt" ] || authorities=CARGO_HTTP_CAINFO=/etc/host-authorities.crt
        exec chroot "$work/root" env -i HOME=/root TERM=dumb PATH=/usr/sbin:/usr/bin:/sbin:/bin $authorities \
            sh -c "cd /root/ironverbs && exec \"\$@\"" sh "$@"
    ' sh "$ROOM/$suite" "$work" "$HERE" "$@" </dev/null || status=$?
    rm -rf "$work"
    [ $status = 0 ] || die "$suite: '$*' ended with $status"
    echo "fresh: $suite ok"
done
