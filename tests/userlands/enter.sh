#!/bin/sh
# Runs a command inside a userland folder, on a node with an adapter as strict as a card, but not as slow (docs/twin.md). Of the host the
# command sees /sys, /dev and /proc as `ironverbs run` shows them, and the provider at its path on the host.
#
#   enter.sh FOLDER NODE COMMAND..      limit: IRONVERBS_LIMIT seconds, 60
set -eu

here=$(cd "$(dirname "$0")/../.." && pwd)
built=${IRONVERBS_BUILT:-${CARGO_TARGET_DIR:-$here/target}/release}
folder=$1
node=$2
shift 2
[ -x "$built/ironverbs" ] || { echo "userlands: no $built/ironverbs (cargo build --release)" >&2; exit 1; }
mkdir -p "$folder$built"
exec timeout --verbose "${IRONVERBS_LIMIT:-60}" "$built/ironverbs" run --node "$node" --vfs 4 \
    --strict owner=pf,pages=real,events=strict,uid=strict,reserved=zero -- sh -c '
    folder=$1 built=$2; shift 2
    for dir in sys dev proc; do mount --rbind "/$dir" "$folder/$dir"; done
    mount --bind "$built" "$folder$built"
    exec chroot "$folder" "$@"' sh "$folder" "$built" "$@"
