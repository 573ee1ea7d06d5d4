#!/bin/sh
# All tests cargo knows, or those that the arguments, nextest's, choose: scripts/test-rust.sh -p ironverbs-hwspec
#
# nextest gives every test a process of its own and a time limit; scripts/nextest.sh says which nextest that is.
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
[ $# -gt 0 ] || set -- --workspace
# Property tests begin at the same seed everywhere, so that a failure is of the change at hand; make properties varies it.
export PROPTEST_RNG_SEED="${PROPTEST_RNG_SEED:-1}"
"$nextest" nextest run --release --locked --no-fail-fast "$@" </dev/null
# nextest leaves documentation tests out.
[ "$*" != --workspace ] || $CARGO test --release --locked --workspace --doc --quiet </dev/null
[ "$*" != --workspace ] || "$HERE/scripts/test-loom.sh" --quiet
# The model with the laboratory's steps is another build: none of the tests above may have it.
[ "$*" != --workspace ] || "$nextest" nextest run --release --locked --no-fail-fast \
    -p ironverbs-laboratory --features laboratory </dev/null
