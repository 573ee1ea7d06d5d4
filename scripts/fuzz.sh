#!/bin/sh
# Fuzzes the device model and the node, each target for FUZZ_SECONDS (20): command mailboxes, work requests, packets, packets and management
# datagrams on InfiniBand, vfio-user messages, bytes of the node's file, requests of a launched program to its supervisor, and a device that
# lies to the driver.
#
#   scripts/fuzz.sh [TARGET..]          # FUZZ_SEED=1 starts with the same inputs each time, as `make test-all` does
#   scripts/fuzz.sh --keep [TARGET..]   # and then writes a minimal set with the same coverage to fuzz/corpus/TARGET
#
# Works with stable Rust: the coverage instrumentation is LLVM's, enabled by flags. Each target starts from fuzz/corpus/TARGET. Inputs that
# found something new are kept in the corpus of the target directory; a failing input stays there as crash-*, and is run again with
#   TARGET_DIRECTORY/.../quick/TARGET FILE
set -eu

CARGO=${CARGO:-cargo}
SECONDS_EACH=${FUZZ_SECONDS:-20}
HERE=$(cd "$(dirname "$0")/.." && pwd)
TARGET=${CARGO_TARGET_DIR:-$HERE/target}
TRIPLE=$(rustc -vV | sed -n 's/^host: //p')
KEEP=
[ "${1:-}" != --keep ] || { KEEP=yes; shift; }
[ $# -gt 0 ] || set -- command_mailbox wqe ethernet packet routed vfio_user node_file launched lies
# Maximum number of kept inputs, and maximum length of one in bytes.
KEPT=30
SMALL=400

FLAGS="--cfg fuzzing -Cpasses=sancov-module -Ccodegen-units=1 -Cdebug-assertions -Coverflow-checks"
for option in level=4 inline-8bit-counters pc-table trace-compares; do
    FLAGS="$FLAGS -Cllvm-args=-sanitizer-coverage-$option"
done

cd "$HERE"
RUSTFLAGS="$FLAGS" $CARGO build --profile quick --locked -p ironverbs-fuzz --features libfuzzer --bins \
    --target "$TRIPLE" --target-dir "$TARGET/fuzz" </dev/null

# Directory for the targets' nodes, including those of targets that crash.
IRONVERBS_FUZZ_DIR=$(mktemp -d /dev/shm/ironverbs-fuzz.XXXXXX)
export IRONVERBS_FUZZ_DIR
trap 'rm -rf "$IRONVERBS_FUZZ_DIR"' EXIT
trap 'exit 1' INT TERM

for target in "$@"; do
    corpus=$TARGET/fuzz/corpus/$target
    kept=fuzz/corpus/$target
    program=$TARGET/fuzz/$TRIPLE/quick/$target
    mkdir -p "$corpus" "$kept"
    echo "fuzz: $target for $SECONDS_EACH s"
    log=$TARGET/fuzz/$target.log
    # The driver never frees memory that a device may still write to, so the process of a lying device grows by 40 MB a second.
    round=$SECONDS_EACH
    [ "$target" != lies ] || round=20
    left=$SECONDS_EACH
    seed=${FUZZ_SEED:-0}
    while [ "$left" -gt 0 ]; do
        [ "$left" -ge "$round" ] || round=$left
        # libFuzzer writes new inputs to the first directory. A command on a damaged node may wait for the driver's timeout of ten seconds,
        # twice.
        if ! timeout $((round + 60)) "$program" "$corpus" "$kept" \
            -max_total_time="$round" -seed="$seed" -timeout=45 -rss_limit_mb=2048 -max_len=1024 -len_control=0 \
            -artifact_prefix="$TARGET/fuzz/$target-" >"$log" 2>&1; then
            tail -40 "$log" >&2
            echo "fuzz: $target failed; the input is $TARGET/fuzz/$target-*" >&2
            exit 1
        fi
        left=$((left - round))
        # Seed 0 means another seed each time.
        [ "$seed" = 0 ] || seed=$((seed + 1))
    done
    tail -1 "$log"
    [ -n "$KEEP" ] || continue
    rm -f "$kept"/*
    timeout 600 "$program" -merge=1 -max_len=$SMALL -timeout=20 "$kept" "$corpus" >>"$log" 2>&1
    ls -Sr "$kept" | tail -n +$((KEPT + 1)) | while read -r file; do rm -f "$kept/$file"; done
    echo "fuzz: $(ls "$kept" | wc -l) inputs in $kept"
done
