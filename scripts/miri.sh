#!/bin/sh
# Runs as many tests of hwspec and the model's region under Miri as possible, to find undefined behaviour in unsafe code and failing tests.
#
#   scripts/miri.sh
#
# Needs a nightly Rust with the components miri and rust-src; prints `skipped:` if there is none. Takes some minutes.
set -eu

PATH=$HOME/.cargo/bin:$PATH
export PATH
HERE=$(cd "$(dirname "$0")/.." && pwd)
TARGET=${CARGO_TARGET_DIR:-$HERE/target}

skip() {
    echo "skipped: $*; rustup toolchain install nightly --component miri,rust-src"
    exit 0
}
command -v rustup >/dev/null || skip "no rustup, and Debian's Rust has no Miri"
cargo +nightly miri --version >/dev/null 2>&1 || skip "no nightly Rust with Miri"
# Builds Miri's own standard library, once.
said=$(timeout 900 cargo +nightly miri setup 2>&1) || skip "Miri cannot be set up: $(echo "$said" | tail -n 1)"

# For the clock, by which tests wait.
export MIRIFLAGS="-Zmiri-disable-isolation"
cd "$HERE"
timeout -k 5 900 cargo +nightly miri test --locked --target-dir "$TARGET/miri" --lib -p ironverbs-hwspec
# Threads that rely on membarrier, which Miri does not support.
set -- --skip exclude_each_other
# Tests that process megabytes byte by byte: each takes minutes, and the other tests cover the same code with less data.
for long in a_snapshot a_spare_lane a_list_that what_is_used memory_for rows_without round_and_round a_filler_that_dies \
    numbers_that_peers; do
    set -- "$@" --skip "$long"
done
timeout -k 5 1500 cargo +nightly miri test --locked --target-dir "$TARGET/miri" --lib -p ironverbs-devmodel -- region:: "$@"
