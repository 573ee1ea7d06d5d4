#!/bin/sh
# Builds and tests for targets other than cargo's default one.
#
#   scripts/targets.sh static         one program that needs nothing of the machine it runs on
#   scripts/targets.sh test-static    also brings a function up with it
#   scripts/targets.sh test-aarch64   the driver's tests under qemu-user, and the barriers in the compiled code
#
# Each needs Rust's standard library for its target, which is fetched if rustup is installed; the last also needs qemu-aarch64. Tests print
# `skipped:` where it is missing.
set -eu

PATH=$HOME/.cargo/bin:$PATH
export PATH
HERE=$(cd "$(dirname "$0")/.." && pwd)
TARGET=${CARGO_TARGET_DIR:-$HERE/target}
CARGO=${CARGO:-cargo}
cd "$HERE"
# Flags for the host target do not apply to these.
unset RUSTFLAGS

die() { echo "targets: $*" >&2; exit 1; }

sysroot=$(rustc --print sysroot)
have() { # TARGET
    [ -d "$sysroot/lib/rustlib/$1/lib" ] || timeout 300 rustup target add "$1" >/dev/null 2>&1
}

STATIC=x86_64-unknown-linux-musl
build_static() {
    timeout 1500 "$CARGO" build --release --locked --target $STATIC -p ironverbs-cli
    program=$TARGET/$STATIC/release/ironverbs
    ! readelf -lW "$program" | grep INTERP || die "expected $program to need no loader"
}

# The static program brings up a served function, and a static server serves it as well.
test_static() { # SERVER
    rm -rf "$work"/*
    timeout 60 "$1" serve --adapter "$work/node" --plug "1=$work/socket" >"$work/served" 2>&1 &
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

AARCH64=aarch64-unknown-linux-musl
test_aarch64() {
    # Uses Rust's own linker and musl, so no C compiler for the target is needed.
    lld=$(find "$sysroot/lib/rustlib" -name rust-lld -type f | head -n 1)
    [ -n "$lld" ] || skip "this Rust comes without rust-lld"
    export CARGO_TARGET_AARCH64_UNKNOWN_LINUX_MUSL_LINKER="$lld"
    export CARGO_TARGET_AARCH64_UNKNOWN_LINUX_MUSL_RUSTFLAGS="-Clink-self-contained=yes -Clinker-flavor=ld.lld"
    export CARGO_TARGET_AARCH64_UNKNOWN_LINUX_MUSL_RUNNER=qemu-aarch64
    timeout 600 "$CARGO" rustc --release --locked --target $AARCH64 -p ironverbs-driver --lib -- --emit asm </dev/null
    # There is one file for each compiler used here; cargo does not rewrite a fresh one.
    barriers "$(ls -t "$TARGET/$AARCH64"/release/deps/ironverbs_driver-*.s | head -n 1)"
    # qemu-user 7.2 lacks process_vm_writev, by which the driver learns that a page is missing.
    timeout 900 "$CARGO" test --locked --target $AARCH64 -p ironverbs-driver --lib -- --skip pages_that_are_missing_are_told </dev/null
}

# Emulation does not reveal a missing barrier, because the processor that executes the code is an x86.
barriers() { # ASSEMBLY
    # The doorbell record after the WQE or the consumed CQEs, the doorbell after its record. A compiler may or may not inline the first.
    for function in '12post_send_to|9SendBatch6commit' 2Cq3arm; do
        in_order "$1" $function 'dmb +oshst' 'str +w' 'dmb +oshst' 'str +x'
    done
    # The last of the eight stores that copy a WQE basic block to the doorbell page, between barriers for write-combining memory.
    in_order "$1" 9blueflame8Register4ring 'dsb +st' 'str +x[0-9]+, \[x[0-9]+, #56\]' 'dsb +st'
    # The CQE's words after its owner bit, on which the branch depends.
    in_order "$1" 2Cq9take_more 'ldu?r +x' '(b\.[a-z]+|[ct]bn?z) ' 'dmb +oshld' 'ld[rp] +x'
    in_order "$1" 12CommandQueue7execute 'dmb +oshst' 'dmb +oshst' 'dmb +oshld'
}

# Succeeds if a function with a matching name contains instructions that match these, in this order.
in_order() { # ASSEMBLY FUNCTION INSTRUCTION...
    file=$1 name=$2
    shift 2
    name=$name wanted=$(printf '%s\n' "$@") awk '
        BEGIN { name = ENVIRON["name"]; count = split(ENVIRON["wanted"], wanted, "\n") }
        /^[^ \t.#][^ ]*:/ { inside = $0 ~ name; at = 1 }
        { gsub("\t", " ") }
        inside && at <= count && $0 ~ wanted[at] && ++at > count { found = 1 }
        END { exit !found }' "$file" || die "expected in $name of $file, in this order: $*"
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
test-aarch64)
    command -v qemu-aarch64 >/dev/null || skip "no qemu-aarch64: apt-get install qemu-user"
    rust_of $AARCH64 skip
    test_aarch64
    ;;
*) die "expected static, test-static or test-aarch64" ;;
esac
