#!/bin/sh
# Prints lines, files and unsafe blocks of Rust by room, and checks that the tree does not grow without a reason.
#
#   scripts/rooms.sh
#
# Fails if driver, ffi and cli have more unsafe blocks than UNSAFE, or if one of the last 50 commits adds more than 400 net lines of Rust and
# its message does not say what it took out, or why nothing could be.
set -eu
cd "$(dirname "$0")/.."

# Lower it whenever a change takes some out.
UNSAFE=468
# Commits before this rule.
SINCE=2026-11-30T00:00:00Z

counted() { # DIRECTORY..: lines, files, unsafe blocks
    git ls-files -- "$@" | grep '\.rs$' | xargs awk '
        FNR == 1 { files++ }
        !/^[ \t]*\/\// { blocks += gsub(/(^|[^_a-z])unsafe \{/, "") }
        END { print NR, files, blocks + 0 }'
}

printf '%-10s %8s %6s %7s\n' room lines files unsafe
for room in hwspec devmodel driver ffi cli lib tests fuzz; do
    # shellcheck disable=SC2046 # three numbers
    printf '%-10s %8d %6d %7d\n' "$room" $(counted "$room")
done
# shellcheck disable=SC2046
printf '%-10s %8d %6d %7d\n' core $(counted hwspec devmodel driver ffi/node ffi/provider)
# shellcheck disable=SC2046
printf '%-10s %8d %6d %7d\n' all $(counted hwspec devmodel driver ffi cli lib tests fuzz)

found=$(counted driver ffi cli | cut -d' ' -f3)
[ "$found" -le $UNSAFE ] || { echo "rooms: expected at most $UNSAFE unsafe blocks in driver, ffi and cli, found $found"; exit 1; }

# The oldest commit of a shallow clone would seem to add the whole tree.
[ "$(git rev-parse --is-shallow-repository 2>/dev/null)" != true ] || exit 0
git log -50 --no-merges --since=$SINCE --format=%H 2>/dev/null | while read -r commit; do
    net=$(git show --numstat --format= "$commit" -- '*.rs' | awk '{ net += $1 - $2 } END { print net + 0 }')
    [ "$net" -le 400 ] || git show -s --format=%b "$commit" | grep -qiE 'took out|takes out|taken out|instead of|replaces|no longer|are gone|is gone|nothing could' ||
        { echo "rooms: expected \"$(git show -s --format=%s "$commit")\", which adds $net lines, to say what it took out"; exit 1; }
done
