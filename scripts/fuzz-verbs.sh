#!/bin/sh
# Makes random verbs calls through the stock libibverbs for VERBS_SECONDS (60), with two programs on one node at a time.
#
#   scripts/fuzz-verbs.sh               uses new seeds every day and prints them
#   scripts/fuzz-verbs.sh --seed N      runs that seed alone and prints each step
#
# Afterwards the node must be as before: no programs on it, no objects on its functions, none of its programs' memory, and two other
# functions that still run rc_pingpong. fuzz/verbs/main.c lists the other checks.
set -eu

HERE=$(cd "$(dirname "$0")/.." && pwd)
TARGET=${CARGO_TARGET_DIR:-$HERE/target}
BUILT=${IRONVERBS_BUILT:-$TARGET/release}
SECONDS_ALL=${VERBS_SECONDS:-60}
NODE=$(mktemp -d /dev/shm/ironverbs-verbs-XXXXXX)
trap 'rm -rf "$NODE"' EXIT

die() { echo "fuzz-verbs: $*" >&2; exit 1; }
run() { timeout $((SECONDS_ALL + 60)) "$BUILT/ironverbs" run --adapter "$NODE/n" --vfs 4 -- "$@"; }

[ -x "$BUILT/ironverbs" ] || die "no $BUILT/ironverbs: run make build first"
program=$NODE/verbs
# The structures end in members that only newer rdma-core versions have.
gcc -O1 -g -Wall -Wextra -Werror -Wno-missing-field-initializers -o "$program" "$HERE"/fuzz/verbs/*.c -libverbs
if [ "${1:-}" = --seed ]; then
    run "$program" --seed "$2" iron1 iron2
    exit
fi

pingpong() {
    run ibv_rc_pingpong -d iron3 -g 1 -p $((18500 + $$ % 500)) >"$NODE/pingpong" 2>&1 &
    server=$!
    for _ in 1 2 3 4 5 6 7 8 9 10; do
        sleep 0.3
        if run ibv_rc_pingpong -d iron4 -g 1 -p $((18500 + $$ % 500)) 127.0.0.1 >"$NODE/pingpong" 2>&1; then
            wait $server
            return
        fi
    done
    kill $server 2>/dev/null || true
    cat "$NODE/pingpong" >&2
    return 1
}
# Prints programs, their memory, and objects on functions; prints nothing when all are gone.
left() {
    "$BUILT/ironverbs" adapter status "$NODE/n" |
        grep -E "^program [0-9]|^iron[0-9]+: .*(qp|cq|mkey|pd|eq|uar) |[1-9][0-9]* KiB of it drivers" || true
}

seed=$(($(date +%s) / 86400 * 10000000))
pingpong || die "pingpong did not run before"
echo "fuzz: verbs for $SECONDS_ALL s"
run "$program" --seed $((seed + 1000000)) --seconds "$SECONDS_ALL" iron1 iron2 >"$NODE/first" 2>&1 &
first=$!
status=0
run "$program" --seed $((seed + 2000000)) --seconds "$SECONDS_ALL" iron2 iron1 >"$NODE/second" 2>&1 || status=$?
wait $first || status=$?
# The provider catches a panic at its boundary and prints it.
if [ $status != 0 ] || grep -q panicked "$NODE/first" "$NODE/second"; then
    tail -n 30 "$NODE/first" "$NODE/second" >&2
    die "failed; scripts/fuzz-verbs.sh --seed N repeats it"
fi
tail -qn 1 "$NODE/first" "$NODE/second"
pingpong || die "pingpong does not run any more"
# The region itself has grown: numbers are reused as late as possible, so new rows were touched.
[ -z "$(left)" ] || die "left on the node: $(left)"
