#!/bin/sh
# The tests, in parts. Each part prints how long it took.
#
#   scripts/test.sh            what `make test` runs: 12 minutes from nothing on two cores
#   scripts/test.sh all        what `make test-all` runs: the rest, the parts that fail most often first
#   scripts/test.sh PART..     parts by name, each after its dependencies; `scripts/test.sh parts` lists them
#
# If a part fails, the others still run. The last line counts tests that passed, failed, were skipped and needed a second try;
# scripts/results.py makes it from the files that the parts leave in target/results.
set -u

HERE=$(cd "$(dirname "$0")/.." && pwd)
cd "$HERE"
PATH=$HOME/.cargo/bin:$PATH
CARGO=${CARGO:-cargo}
TARGET=${CARGO_TARGET_DIR:-$HERE/target}
RESULTS=$TARGET/results
# Tests, and the programs that scripts start, are built with the profile quick.
IRONVERBS_BUILT=$TARGET/quick
export PATH CARGO IRONVERBS_BUILT
# The random seed changes every day; a part that uses it prints it.
DAY=${SEED:-$(($(date +%s) / 86400))}

QUICK="packages build tests docs loom"
ALL="build rest chance guest userlands fuzz verbs mutants long-loom laboratory"
# One of these runs each day, because each takes long: `rotating` chooses it.
ROTATION="deb kubernetes fresh clients cni"
# Time limit in seconds for one of them, or for another long part.
APART=1500

nextest() { # NAME WORDS..: runs tests, and keeps their report as NAME.xml
    name=$1
    shift
    report=$TARGET/nextest/default/junit.xml
    rm -f "$report"
    timeout -k 30 3600 scripts/test-rust.sh --test-threads $((3 * $(nproc))) "$@"
    ended=$?
    [ ! -e "$report" ] || mv "$report" "$RESULTS/$name.xml"
    return $ended
}

kept() { # NAME COMMAND..: runs a command, and keeps its output as NAME.txt
    said=$RESULTS/$1.txt
    shift
    : >"$said"
    # Not through a pipe: a process that the command leaves running would hold it open.
    "$@" </dev/null >"$said" 2>&1 &
    run=$!
    tail -n +1 -f --pid=$run "$said" &
    shown=$!
    wait $run
    ended=$?
    wait $shown
    return $ended
}

laboratory() { # SECONDS WORDS..
    export IRONVERBS_LAB_SECONDS="$1" IRONVERBS_LAB_FIRST=$((DAY * 1000))
    shift
    echo "seeds from $IRONVERBS_LAB_FIRST on"
    # Builds the whole workspace, so that libraries keep the features they were already built with.
    nextest laboratory --workspace --test laboratory --features ironverbs-laboratory/laboratory "$@"
}

as_root() { # NAME COMMAND..
    if [ "$(id -u)" = 0 ]; then kept "$@"
    else kept "$1" echo "skipped: needs root"
    fi
}

# Runs a part that builds and runs the release profile.
apart() { # NAME COMMAND..
    name=$1
    shift
    kept "$name" env -u IRONVERBS_BUILT timeout -k 30 $APART "$@"
}

# Succeeds if that many seconds are left until IRONVERBS_UNTIL, or if that is not set.
time_left() { [ $(($(date +%s) + $1)) -lt "${IRONVERBS_UNTIL:-9999999999}" ]; }

# Prints the part of ROTATION for today's date: each runs once in five days.
rotating() {
    # shellcheck disable=SC2086  # a list
    set -- $ROTATION
    shift $(($(date +%s) / 86400 % $#))
    echo "$1"
}

part() {
    case $1 in
    packages) scripts/install-deps.sh test ;;
    # One command for all, so that no crate is built twice with different features.
    build) timeout 3000 $CARGO build --profile quick --locked --workspace --lib --bins --tests --examples </dev/null ;;
    tests)
        echo "seed of the day: $DAY"
        IRONVERBS_SEED=$DAY IRONVERBS_KILLS=40 IRONVERBS_STOPS=30 IRONVERBS_MIXES=2 nextest tests --workspace -E 'default()'
        ;;
    docs) kept docs timeout 1200 $CARGO test --profile quick --locked --workspace --doc --quiet ;;
    loom) kept loom env IRONVERBS_PREEMPTIONS=1 scripts/test-loom.sh --quiet ;;
    rest) nextest rest --workspace -E 'not default() & not test(/^kubernetes::/)' ;;
    chance)
        echo "seed of the day: $DAY"
        IRONVERBS_SEED=$DAY nextest chance --workspace -E 'binary_id(ironverbs-tests::node) & test(/^(kill|stop|torture|shortage)::/)'
        ;;
    long-loom) kept loom scripts/test-loom.sh --quiet ;;
    laboratory) laboratory 60 ;;
    linux) nextest linux --workspace -E 'binary_id(ironverbs-tests::places) & test(/^linux::/)' ;;
    guest) kept guest timeout 2400 "$TARGET/quick/guest" test ${GUEST:-} ;;
    userlands) as_root userlands timeout 1500 scripts/userlands.sh check ;;
    fuzz) kept fuzz env FUZZ_SECONDS="${FUZZ_SECONDS:-10}" FUZZ_SEED=1 timeout 7200 scripts/fuzz.sh ;;
    verbs) kept verbs env VERBS_SECONDS="${VERBS_SECONDS:-60}" timeout 4000 scripts/fuzz-verbs.sh ;;
    mutants) kept mutants timeout 3000 scripts/mutants.py --sample "${MUTANTS:-12}" --seed "$DAY" ;;
    deb | clients) apart "$1" make --no-print-directory "test-$1" ;;
    # One suite at a time, and a tenth of the thousand pods.
    fresh) apart fresh scripts/fresh.sh "$([ $((DAY / 5 % 2)) = 0 ] && echo trixie || echo bookworm)" ;;
    cni) apart cni make --no-print-directory test-cni CNI_ROUNDS=100 ;;
    kubernetes)
        if ! timeout 900 sh -c "make --no-print-directory deps-kubernetes && scripts/go-programs.sh build charts"; then
            kept kubernetes echo "skipped: its programs were not built within 15 minutes"
        elif ! time_left $APART; then
            kept kubernetes echo "skipped: too little time is left"
        else
            # InfiniBand and several adapters one time, all others the next.
            if [ $((DAY / 5 % 2)) = 0 ]; then
                which="kubernetes::infiniband kubernetes::rails of_infiniband link_type_ib macvlans"
            else
                which="kubernetes:: --skip infiniband --skip kubernetes::rails --skip link_type_ib --skip macvlans"
            fi
            apart kubernetes make --no-print-directory test-kubernetes KUBERNETES="$which"
        fi
        ;;
    *)
        echo "test: unknown part '$1'; $QUICK $ALL $ROTATION linux" >&2
        return 2
        ;;
    esac
}

case ${1:-} in
"") set -- $QUICK ;;
all) set -- $ALL "$(rotating)" ;;
parts)
    echo "make test: $QUICK"
    echo "make test-all: $ALL, and by the date one of $ROTATION"
    exit
    ;;
esac
rm -rf "$RESULTS"
mkdir -p "$RESULTS"
failed=
times=
for name; do
    echo "== $name"
    begun=$(date +%s)
    need=300
    case " $ROTATION rest guest userlands " in *" $name "*) need=$APART ;; esac
    if time_left $need; then part "$name" || failed="$failed $name"
    else kept "$name" echo "skipped: less than $need s left until the whole must end"
    fi
    took=$(($(date +%s) - begun))
    echo "== $name: $took s"
    times="$times $name=$took"
    # Nothing can run if it was not built.
    case $failed in *" packages" | *" build") break ;; esac
done
# shellcheck disable=SC2086  # lists
python3 scripts/results.py "$RESULTS" --times $times --failed $failed
