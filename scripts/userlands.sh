#!/bin/sh
# Makes folders with the rdma-core of Debian 12, 13 and sid, and proves that one provider works with all three.
#
#   scripts/userlands.sh build             make the folders that are missing or out of date
#   scripts/userlands.sh path SUITE        print the folder of one suite
#   scripts/userlands.sh check [SUITE..]   probe and run the verbs programs inside the folders
#   scripts/userlands.sh pyverbs [--write] [SUITE..] [-- FILE..]
#                                          rdma-core's own tests: passed, failed and skipped, with reasons, for each
#                                          file (qp for tests/test_qp.py); --write puts the counts into docs/pyverbs.md
#
# The folders are kept in ${XDG_CACHE_HOME:-~/.cache}/ironverbs/userlands, named by a hash of their inputs, so a change of the package list
# makes new ones and removes those it replaces. sid moves: its folder is rebuilt when older than 30 days.
set -eu

# A Debian mirror; default: debootstrap's own choice.
MIRROR=${IRONVERBS_MIRROR:-}
PACKAGES=ibverbs-utils,ibverbs-providers,rdmacm-utils,perftest,python3-pyverbs,iproute2,infiniband-diags,ucx-utils,libfabric-bin,openmpi-bin
SUITES="bookworm trixie sid"
ROOM=${XDG_CACHE_HOME:-$HOME/.cache}/ironverbs/userlands
HERE=$(cd "$(dirname "$0")/.." && pwd)

die() { echo "userlands: $*" >&2; exit 1; }

folder() { # SUITE
    key=$(printf '%s\n' "$1" "$PACKAGES" "$MIRROR" "$(dpkg --print-architecture)" | sha256sum | cut -c1-12)
    echo "$ROOM/$1-$key"
}

# Some packages' scripts keep /proc busy, so that debootstrap cannot unmount it.
unmount() { # FOLDER
    for busy in proc sys; do if mountpoint -q "$1/$busy"; then umount -l "$1/$busy"; fi; done
}

# Does not descend into mounts.
remove() { # FOLDER..
    for old; do
        [ ! -e "$old" ] || unmount "$old"
        rm -rf --one-file-system "$old"
    done
}

build_one() { # SUITE
    dir=$(folder "$1")
    if [ "$1" = sid ] && [ -n "$(find "$dir/.made" -mtime +30 2>/dev/null)" ]; then rm -rf "$dir"; fi
    if [ -e "$dir/.made" ]; then return 0; fi
    [ "$(id -u)" = 0 ] || die "the folder of $1 is missing and debootstrap needs root"
    command -v debootstrap >/dev/null || die "debootstrap is missing: apt-get install debootstrap"
    mkdir -p "$ROOM"
    remove "$ROOM/$1"-*
    work=$dir.part
    # Retries, because a mirror may fail temporarily.
    for try in 1 2 3; do
        if debootstrap --variant=minbase --include="$PACKAGES" "$1" "$work" ${MIRROR:+"$MIRROR"} >"$ROOM/$1.log" 2>&1; then break; fi
        tail -n 5 "$ROOM/$1.log" >&2
        remove "$work"
        [ $try -lt 3 ] || die "debootstrap of $1 failed, see $ROOM/$1.log"
        sleep 5
    done
    unmount "$work"
    rm -rf "$work/var/cache/apt/archives" "$work/var/lib/apt/lists"
    mkdir -p "$work/ironverbs"
    touch "$work/.made"
    mv -T "$work" "$dir"
}

case ${1:-check} in
build)
    mkdir -p "${ROOM%/*}"
    exec 9>"${ROOM%/*}/.userlands.lock"
    flock 9
    for suite in $SUITES; do build_one "$suite"; done
    ;;
path)
    [ $# = 2 ] || die "usage: userlands.sh path SUITE"
    folder "$2"
    ;;
check)
    "$0" build
    [ $# = 0 ] || shift
    [ $# -gt 0 ] || set -- $SUITES
    for suite in "$@"; do sh "$HERE/tests/userlands/check.sh" "$suite" "$(folder "$suite")"; done
    ;;
pyverbs)
    "$0" build
    shift
    write=
    if [ "${1:-}" = --write ]; then write=yes && shift; fi
    suites=
    while [ $# -gt 0 ] && [ "$1" != -- ]; do suites="$suites $1" && shift; done
    [ $# = 0 ] || shift
    [ -z "$write" ] || [ -z "$suites$*" ] || die "--write takes all suites and files"
    rows=$(mktemp -d)
    trap 'rm -rf "$rows"' EXIT
    found=
    for suite in ${suites:-$SUITES}; do
        sh "$HERE/tests/userlands/pyverbs.sh" "$(folder "$suite")" "$rows/$suite" "$@" || {
            tail -n 5 "$rows/$suite.log" >&2
            die "pyverbs did not run on $suite"
        }
        found="$found $suite=$rows/$suite"
    done
    # shellcheck disable=SC2086 # words of our own
    sh "$HERE/tests/userlands/page.sh" show $found
    # shellcheck disable=SC2086
    [ -z "$write" ] || sh "$HERE/tests/userlands/page.sh" write $found
    ;;
*) die "unknown command '$1'; build, path, check or pyverbs" ;;
esac
