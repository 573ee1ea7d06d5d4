#!/bin/sh
# All tests cargo knows, with nextest where it is installed: it gives every test a process of its own and a time limit.
set -eu

CARGO=${CARGO:-cargo}
if $CARGO nextest --version >/dev/null 2>&1; then
    $CARGO nextest run --release --locked --workspace --no-fail-fast </dev/null
    # nextest leaves documentation tests out.
    $CARGO test --release --locked --workspace --doc --quiet </dev/null
else
    $CARGO test --release --locked --workspace --no-fail-fast </dev/null
fi
