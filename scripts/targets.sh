#!/bin/sh
# Other targets than the one cargo builds for by itself.
#
#   scripts/targets.sh static         one program that needs nothing of the machine it runs on
#   scripts/targets.sh test-static    also brings a function up with it
#
# Each needs Rust's standard library for its target, which is fetched where there is rustup. Tests say `skipped:` where there is none.
set -eu

PATH=$HOME/.cargo/bin:$PATH
export PATH
HERE=$(cd "$(dirname "$0")/.." && pwd)
TARGET=${CARGO_TARGET_DIR:-$HERE/target}
CARGO=${CARGO:-cargo}
cd "$HERE"
# Whatever is set for the machine itself is not for these.
unset RUSTFLAGS

die() { echo "targets: $*" >&2; exit 1; }

sysroot=$(rustc --print sysroot)
have() { # TARGET
    [ -d "$sysroot/lib/rustlib/$1/lib" ] || timeout 300 rustup target add "$1" >/dev/null 2>&1
}

STATIC=x86_64-unknown-linux-musl
build_static() {
    timeout 1500 "$CARGO" build --release --locked --target $STATIC -p ironverbs
    program=$TARGET/$STATIC/release/ironverbs
    ! readelf -lW "$program" | grep INTERP || die "expected $program to need no loader"
}

# A served function is brought up by the static program, and a static server serves it as well.
test_static() { # SERVER
    rm -rf "$work"/*
    timeout 60 "$1" serve --node "$work/node" --plug "1=$work/socket" >"$work/served" 2>&1 &
    server=$!
    for _ in 1 2 3 4 5 6 7 8 9 10; do
        grep -q ^jailed "$work/served" && break
        sleep 0.5
    done
    status=0
    timeout 60 env -i "$program" bringup --vfio-user "$work/socket" --write >"$work/report" 2>&1 || status=$?
    kill $server 2>/dev/null || status=1
    wait $server || true
    [ $status = 0 ] || { cat "$work/served" "$work/report" >&2; die "the static program did not bring up what $1 serves"; }
    echo "$1 served: $(tail -n 1 "$work/report")"
}

skip() { echo "skipped: $*"; exit 0; }
rust_of() { # TARGET
    have "$1" || "$2" "no Rust for $1, and no rustup that brings it: rustup target add $1"
}

case ${1:-} in
static)
    rust_of $STATIC die
    build_static
    echo "$program"
    ;;
test-static)
    [ -x "$TARGET/release/ironverbs" ] || die "no $TARGET/release/ironverbs: run make build first"
    rust_of $STATIC skip
    build_static
    work=$(mktemp -d /dev/shm/ironverbs-static-XXXXXX)
    trap 'rm -rf "$work"' EXIT
    test_static "$TARGET/release/ironverbs"
    test_static "$program"
    ;;
*) die "expected static or test-static" ;;
esac
