#!/bin/sh
# Fuzzes the device model, each target for FUZZ_SECONDS (20): command mailboxes, work requests, packets,
# packets and management datagrams on InfiniBand, vfio-user messages.
#
#   scripts/fuzz.sh [TARGET..]
#
# Works with stable Rust: the coverage instrumentation is LLVM's, asked for by flags. Inputs that found something new
# are kept in the corpus of the target directory; an input that failed stays there as crash-*, to be run again with
#   TARGET_DIRECTORY/.../release/TARGET FILE
set -eu

CARGO=${CARGO:-cargo}
SECONDS_EACH=${FUZZ_SECONDS:-20}
HERE=$(cd "$(dirname "$0")/.." && pwd)
TARGET=${CARGO_TARGET_DIR:-$HERE/target}
TRIPLE=$(rustc -vV | sed -n 's/^host: //p')
[ $# -gt 0 ] || set -- command_mailbox wqe ethernet packet routed vfio_user

FLAGS="--cfg fuzzing -Cpasses=sancov-module -Ccodegen-units=1 -Cdebug-assertions -Coverflow-checks"
for option in level=4 inline-8bit-counters pc-table trace-compares; do
    FLAGS="$FLAGS -Cllvm-args=-sanitizer-coverage-$option"
done

cd "$HERE"
RUSTFLAGS="$FLAGS" $CARGO build --release --locked -p ironverbs-fuzz --features libfuzzer --bins \
    --target "$TRIPLE" --target-dir "$TARGET/fuzz" </dev/null

for target in "$@"; do
    corpus=$TARGET/fuzz/corpus/$target
    mkdir -p "$corpus"
    echo "fuzz: $target for $SECONDS_EACH s"
    log=$TARGET/fuzz/$target.log
    if ! timeout $((SECONDS_EACH + 60)) "$TARGET/fuzz/$TRIPLE/release/$target" "$corpus" \
        -max_total_time="$SECONDS_EACH" -timeout=20 -rss_limit_mb=2048 -max_len=1024 -len_control=0 \
        -artifact_prefix="$TARGET/fuzz/$target-" >"$log" 2>&1; then
        tail -40 "$log" >&2
        echo "fuzz: $target failed; the input is $TARGET/fuzz/$target-*" >&2
        exit 1
    fi
    tail -1 "$log"
done
