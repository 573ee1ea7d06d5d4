#!/bin/sh
# The locks and the ring under loom, a model checker: every order in which their loads and stores can happen, two or three preemptions.
# lib/sync/src/bias.rs says what stands for the kernel's barrier. Builds sync and loom alone, apart from all else.
set -eu

HERE=$(cd "$(dirname "$0")/.." && pwd)
CARGO=${CARGO:-cargo}
PATH=$HOME/.cargo/bin:$PATH
cd "$HERE"
RUSTFLAGS="--cfg loom" timeout 600 $CARGO test --release --locked -p ironverbs-sync --lib \
    --target-dir "${CARGO_TARGET_DIR:-target}/loom" "$@" </dev/null
