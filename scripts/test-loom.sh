#!/bin/sh
# Runs the locks and the ring under loom, a model checker that tries every order of their loads and stores, with two or three preemptions.
# lib/sync/src/bias.rs says what replaces the kernel's barrier. Builds sync and loom separately from the rest.
set -eu

HERE=$(cd "$(dirname "$0")/.." && pwd)
CARGO=${CARGO:-cargo}
PATH=$HOME/.cargo/bin:$PATH
cd "$HERE"
RUSTFLAGS="--cfg loom" timeout 600 $CARGO test --release --locked -p ironverbs-sync --lib \
    --target-dir "${CARGO_TARGET_DIR:-target}/loom" "$@" </dev/null
