#!/bin/sh
# Provides cargo-nextest, which runs each test in its own process with a time limit, as .config/nextest.toml says.
#
#   scripts/nextest.sh install   build it unless it exists
#   scripts/nextest.sh path      print its path, even if it is not built
#
# It is kept in ${XDG_CACHE_HOME:-~/.cache}/ironverbs/tools, in a folder named by its version, apart from anything installed for other
# projects. Building it needs crates.io, two minutes and temporarily 600 MB, but no root.
set -eu

# The newest version that Debian's Rust (1.85) builds.
VERSION=0.9.100
CARGO=${CARGO:-cargo}
ROOM=${XDG_CACHE_HOME:-$HOME/.cache}/ironverbs/tools
DIR=$ROOM/nextest-$VERSION
NEXTEST=$DIR/bin/cargo-nextest
PATH=$HOME/.cargo/bin:$PATH
export PATH

die() { echo "nextest: $*" >&2; exit 1; }

# Two machines can share a home, and a binary built on another Debian release may not start here.
works() { [ "$("$NEXTEST" nextest --version 2>/dev/null | cut -d' ' -f1,2 | head -n 1)" = "cargo-nextest $VERSION" ]; }

build() {
    # The holder of the lock is alone, so any such folder is left over from a killed build.
    rm -rf "$ROOM"/nextest.part-*
    work=$(mktemp -d "$ROOM/nextest.part-XXXXXX")
    trap 'rm -rf "$work"' EXIT
    trap 'exit 1' INT TERM HUP
    echo "nextest: cargo-nextest $VERSION is built, once, which takes two minutes" >&2
    # The runner mostly waits for tests, so it needs no optimization, which would take most of the build time. It needs no self-update
    # either, because this script chooses the version.
    (
        cd "$work"
        unset CARGO_BUILD_TARGET
        CARGO_PROFILE_RELEASE_OPT_LEVEL=0 CARGO_PROFILE_RELEASE_LTO=off CARGO_PROFILE_RELEASE_STRIP=true \
            timeout -k 10 1800 $CARGO install cargo-nextest --version "=$VERSION" --locked --no-default-features \
            --features default-no-update --root "$work/made" --target-dir "$work/target"
    ) </dev/null >"$work/log" 2>&1 || {
        tail -n 15 "$work/log" >&2
        die "cargo-nextest $VERSION is missing and could not be built (above is why). The tests need it at $NEXTEST," \
            "and building it needs crates.io once."
    }
    rm -rf "$DIR"
    mv -T "$work/made" "$DIR"
}

case ${1:-} in
install)
    ! works || exit 0
    mkdir -p "$ROOM"
    exec 9>"$ROOM/.nextest.lock"
    flock 9
    works || build
    works || die "$NEXTEST was built and does not start"
    ;;
path) echo "$NEXTEST" ;;
*) die "usage: nextest.sh install or nextest.sh path" ;;
esac
