#!/bin/sh
# Counts the instructions with which the driver posts, receives and polls (driver/examples/costs.rs), and has the simulation derive the cost
# on a card: scripts/driver-costs.sh [PROFILE], where PROFILE is a file to write (docs/time-inside.md). Needs valgrind; `make driver-costs` builds
# the programs.
set -eu

target=${CARGO_TARGET_DIR:-target}/release
rounds=50
# Instructions per nanosecond: two per cycle, at 3 GHz.
pace=6

die() { echo "driver-costs: $*" >&2; exit 1; }
command -v valgrind >/dev/null || { echo "driver-costs: skipped, there is no valgrind"; exit 0; }
scratch=$(mktemp -d)
served=
finish() {
    [ -z "$served" ] || kill "$served" 2>/dev/null || true
    rm -rf "$scratch" "$node"
}
node=/dev/shm/ironverbs-costs-$$
trap finish EXIT
"$target/ironverbs" serve --adapter "$node" --vfs 1 --plug 1="$scratch/function" >"$scratch/serve" 2>&1 &
served=$!
for _ in $(seq 100); do [ ! -S "$scratch/function" ] || break; sleep 0.1; done
[ -S "$scratch/function" ] || die "expected a socket of ironverbs serve, found none: $(cat "$scratch/serve")"

# On a card a doorbell is a single instruction, so the instructions that send it to another process are not counted.
count() { # FUNCTION CALLS
    timeout 120 valgrind --tool=callgrind --callgrind-out-file="$scratch/out" --toggle-collect="costs::$1" \
        "$target/examples/costs" "$scratch/function" $rounds >"$scratch/said" 2>&1 || die "$(cat "$scratch/said")"
    all=$(sed -n 's/.*Collected : //p' "$scratch/said")
    [ "${all:-0}" -gt 0 ] || die "expected instructions of costs::$1, found none: $(cat "$scratch/said")"
    sent=$(callgrind_annotate --inclusive=yes --threshold=100 "$scratch/out" |
        sed -n 's/^ *\([0-9,]*\) (.*Window as driver::transport::bar::Registers>::write.*/\1/p' | tr -d , | sort -n | tail -n 1)
    echo $(((all - ${sent:-0}) / $2))
}
post=$(count post $rounds)
receive=$(count receive $rounds)
take=$(count take $((2 * rounds)))
nothing=$(count find_nothing $rounds)
ns() { awk "BEGIN { printf \"%.1f\", $1 / $pace }"; }
printf '%-34s %12s %8s\n' '' instructions ns
printf '%-34s %12d %8s\n' 'posts a SEND of 64 B' "$post" "$(ns "$post")" 'posts a receive' "$receive" "$(ns "$receive")" \
    'polls, and finds a completion' "$take" "$(ns "$take")" 'polls, and finds nothing' "$nothing" "$(ns "$nothing")"

profile=${1:-$scratch/profile.toml}
sed -e "s/^post = .*/post = $(ns "$post")/" -e "s/^post_rate = .*/post_rate = $(ns "$post")/" -e "s/^poll_cq = .*/poll_cq = $(ns "$take")/" \
    devmodel/profiles/direct-x16.toml >"$profile"
echo
echo "on a card, by a program that does nothing else:"
for pattern in 'send_lat -s 64' 'send_bw -s 64'; do
    # shellcheck disable=SC2086
    "$target/ironverbs" sim $pattern --profile "$profile"
done
