#!/bin/sh
# Runs the provider under the rdma-core of one userland folder. Called by scripts/userlands.sh.
#
#   check.sh SUITE FOLDER
#
# First the layout is probed and the devices are listed; then the suite's own verbs programs run between two VFs,
# started by `ironverbs run` from the host so that the folder needs nothing of ours but the provider.
set -eu

suite=$1
folder=$2
here=$(cd "$(dirname "$0")/../.." && pwd)
built=${IRONVERBS_BUILT:-${CARGO_TARGET_DIR:-$here/target}/release}
node=$(mktemp -d /dev/shm/ironverbs-userland-XXXXXX)
port=$((20000 + $$ % 20000))
failed=0
trap 'rm -rf "$node"' EXIT

say() { printf '%-9s %-48s %s\n' "$suite" "$1" "$2"; }
die() { echo "userlands: $*" >&2; exit 1; }

[ -x "$built/ironverbs" ] || die "expected the command at $built/ironverbs (cargo build --release), found none"
[ -x "$built/examples/probe" ] || die "expected $built/examples/probe (cargo build --release --examples), found none"

# --- layout -------------------------------------------------------------------------------------------------------
# What each release is known to have; sid moves on, so there only an unknown layout is a failure.
case $suite in
bookworm) expected="operations 76 (since v36), verbs_context 648 bytes, comp_mask of verbs_qp at 352" ;;
trixie) expected="operations 76 (since v36), verbs_context 648 bytes, comp_mask of verbs_qp at 360" ;;
*) expected= ;;
esac
cp "$built/examples/probe" "$folder/ironverbs/probe"
found=$(chroot "$folder" /ironverbs/probe) || die "$suite: the layout is unknown"
[ -z "$expected" ] || [ "$found" = "$expected" ] || die "$suite: expected $expected, found $found"
say "layout" "$found"

# --- programs -----------------------------------------------------------------------------------------------------
run() { sh "$here/tests/userlands/enter.sh" "$folder" "$node/n" "$@"; }

# check NAME PATTERN COMMAND...: the command succeeds and says PATTERN
check() {
    name=$1 pattern=$2
    shift 2
    if run "$@" >"$node/out" 2>&1 && grep -q -- "$pattern" "$node/out"; then
        say "$name" ok
    else
        say "$name" FAILED
        sed 's/^/    /' "$node/out" >&2
        failed=1
    fi
}

# pair PROGRAM ARGUMENTS...: a server on iron1 and a client on iron2, both must succeed
pair() {
    port=$((port + 1))
    program=$1 how=$2
    shift 2
    case $how in
    pingpong) at="-g 1 -p $port" ;;
    perftest) at="-x 1 -p $port -F" ;;
    esac
    # shellcheck disable=SC2086 # words of our own
    run "$program" -d iron1 $at "$@" >"$node/server" 2>&1 &
    server=$!
    client=1
    for _ in 1 2 3 4 5 6 7 8 9 10; do
        sleep 0.3
        # shellcheck disable=SC2086
        if run "$program" -d iron2 $at "$@" 127.0.0.1 >"$node/client" 2>&1; then client=0 && break; fi
        grep -q "Couldn't connect" "$node/client" || break
    done
    if [ $client = 0 ] && wait "$server"; then
        say "$program $*" "$(tail -n 2 "$node/client" | head -n 1 | tr -s ' ' | cut -c1-60)"
    else
        kill "$server" 2>/dev/null || true
        say "$program $*" FAILED
        sed 's/^/    server: /' "$node/server" >&2
        sed 's/^/    client: /' "$node/client" >&2
        failed=1
    fi
}

check "ibv_devices" iron2 ibv_devices
check "ibv_devinfo -v" PORT_ACTIVE ibv_devinfo -v -d iron1
# It waits for events for ever; what it says first is that it does.
check "ibv_asyncwatch" "iron1: async event FD" \
    sh -c 'timeout 1 stdbuf -o0 ibv_asyncwatch -d iron1; [ $? = 124 ]'
pair ibv_rc_pingpong pingpong -c -n 1000
pair ibv_rc_pingpong pingpong -c -e -n 1000
pair ib_write_bw perftest -n 1000
pair ib_write_lat perftest -n 1000
pair ib_read_bw perftest -n 1000
pair ib_read_lat perftest -n 1000
pair ib_send_bw perftest -n 1000 -e
pair ib_send_lat perftest -n 1000
pair ib_atomic_lat perftest -n 1000
pair ib_send_lat perftest -n 1000 -e
pair ibv_uc_pingpong pingpong
pair ibv_ud_pingpong pingpong -c
pair ibv_srq_pingpong pingpong -c
pair ibv_xsrq_pingpong pingpong
# Fewer messages than receives are posted: these services lose what finds none.
for service in UC UD; do pair ib_send_bw perftest -n 400 -c $service; done
pair ib_send_bw perftest -n 1000 -c XRC
pair ib_write_bw perftest -n 1000 -c UC
pair ib_send_bw perftest -n 1000 --use-srq

# --- connections, and what others build on verbs -----------------------------------------------------------------------------------
# sid's UCX is built without verbs.
# libfabric looks up the machine's own name.
echo "127.0.0.1 localhost $(uname -n)" >"$folder/etc/hosts"
meet() { # NAME PATTERN SERVER.. -- CLIENT..
    name=$1 pattern=$2
    shift 2
    server=
    while [ "$1" != -- ]; do server="$server $1" && shift; done
    shift
    # shellcheck disable=SC2086 # words of our own
    run $server >"$node/server" 2>&1 &
    server=$!
    client=1
    for _ in 1 2 3 4 5 6 7 8 9 10; do
        sleep 0.3
        if run "$@" >"$node/client" 2>&1; then client=0 && break; fi
        kill -0 $server 2>/dev/null || break
    done
    [ -n "$pattern" ] || echo >>"$node/client"
    if [ $client = 0 ] && wait $server && grep -q -- "$pattern" "$node/client"; then say "$name" ok; else
        kill $server 2>/dev/null || true
        say "$name" FAILED
        sed 's/^/    server: /' "$node/server" >&2
        sed 's/^/    client: /' "$node/client" >&2
        failed=1
    fi
}
ranks() { # TRANSPORTS PATTERN PROGRAM..
    transports=$1 pattern=$2
    shift 2
    check "mpirun over $transports: ${*##*/}" "$pattern" mpirun --allow-run-as-root --oversubscribe -np 2 --mca pml ucx \
        -x "UCX_TLS=$transports,self" -x UCX_NET_DEVICES=iron1:1 "$@"
}
# Connections by librdmacm.
meet "rping -C 10000" "" rping -s -C 10000 -- rping -c -a 127.0.0.2 -C 10000
meet "ucmatose -c 10" "return status 0" ucmatose -c 10 -- ucmatose -s 127.0.0.2 -c 10
meet "udaddy" "return status 0" udaddy -- udaddy -s 127.0.0.2
meet "rstream" "" rstream -S 4096 -I 100 -- rstream -s 127.0.0.2 -S 4096 -I 100
meet "mckey" "return status 0" mckey -m 224.1.1.1 -b 127.0.0.2 -C 3 -- mckey -m 224.1.1.1 -b 127.0.0.3 -s -C 3
# A server of copies does not end by itself.
head -c 1000003 /dev/urandom >"$folder/ironverbs/from"
rm -f "$folder/ironverbs/to"
run rcopy >"$node/server" 2>&1 &
server=$!
copied=FAILED
for _ in 1 2 3 4 5 6 7 8 9 10; do
    sleep 0.3
    if run rcopy /ironverbs/from 127.0.0.2:/ironverbs/to >"$node/client" 2>&1; then copied=ok && break; fi
    kill -0 $server 2>/dev/null || break
done
cmp "$folder/ironverbs/from" "$folder/ironverbs/to" >>"$node/client" 2>&1 || copied=FAILED
kill $server 2>/dev/null || true
wait $server 2>/dev/null || true
say rcopy $copied
if [ $copied = FAILED ]; then
    sed 's/^/    server: /' "$node/server" >&2
    sed 's/^/    client: /' "$node/client" >&2
    failed=1
fi
rm -f "$folder/ironverbs/from" "$folder/ironverbs/to"
for how in "ib_send_bw" "ib_write_bw" "ib_send_bw -c UD"; do
    port=$((port + 1))
    # shellcheck disable=SC2086 # words of our own
    meet "$how -R" "^ [0-9]" $how -R -F -n 400 -d iron1 -p $port -- $how -R -F -n 400 -d iron2 -p $port 127.0.0.2
done
for endpoint in "verbs msg" "verbs;ofi_rxm rdm"; do
    fi="fi_pingpong -p ${endpoint% *} -e ${endpoint##* } -c -I 100"
    port=$((port + 1))
    # shellcheck disable=SC2086
    meet "$fi" "^1m" $fi -B $port -- $fi -P $port 127.0.0.2
done
if [ "$suite" != sid ]; then
    check "ucx_info -d" "Transport: rc_verbs" ucx_info -d
    if mpicc -O1 -o "$folder/ironverbs/ranks" "$here/tests/programs/ranks.c"; then
        for transports in rc_v ud_v; do
            ranks $transports "together 3" /ironverbs/ranks hello
            ranks $transports "^1048576" /ironverbs/ranks pingpong
        done
    else
        say mpicc FAILED
        failed=1
    fi
fi

# --- rdma-core's own tests ----------------------------------------------------------------------------------------
# Every file, held to the counts in docs/pyverbs.md.
if sh "$here/tests/userlands/pyverbs.sh" "$folder" "$node/rows" &&
    sh "$here/tests/userlands/page.sh" worse "$suite=$node/rows"; then
    say "pyverbs" "$(cut -f3 "$node/rows" | sort | uniq -c | tr -s ' \n' ' ')"
else
    say "pyverbs" FAILED
    failed=1
fi
if grep -q "its_context ok" "$node/rows.promises"; then say "promises" ok; else
    say "promises" FAILED
    sed 's/^/    /' "$node/rows.promises" >&2
    failed=1
fi
exit $failed
