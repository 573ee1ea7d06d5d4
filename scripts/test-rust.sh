#!/bin/sh
# Runs cargo tests, selected by nextest's arguments: scripts/test-rust.sh -p ironverbs-hwspec, scripts/test-rust.sh row_57
#
# The selection includes tests of `make test-all`. nextest runs every test in its own process with a time limit; scripts/nextest.sh
# says which nextest that is. Tests that run programs need those of `scripts/test.sh build`.
set -eu

HERE=$(cd "$(dirname "$0")/.." && pwd)
CARGO=${CARGO:-cargo}
PATH=$HOME/.cargo/bin:$PATH
export CARGO PATH

nextest=$("$HERE/scripts/nextest.sh" path)
[ -x "$nextest" ] || {
    echo "test-rust: $nextest is missing: run scripts/nextest.sh install (make test does)" >&2
    exit 1
}
cd "$HERE"
# Property tests use the same seed everywhere, so that a failure is due to the change at hand; make properties varies it.
export PROPTEST_RNG_SEED="${PROPTEST_RNG_SEED:-1}"
# Test programs can register the memory they need, whatever the user's locked-memory limit is.
export IRONVERBS_MEMLOCK=0
exec "$nextest" nextest run --cargo-profile quick --locked --no-fail-fast --ignore-default-filter "$@" </dev/null
