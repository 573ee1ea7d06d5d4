#!/bin/sh
# Tests the provider with the rdma-core of one userland folder. Called by scripts/userlands.sh.
#
#   check.sh SUITE FOLDER
#
# First it checks the layout and lists the devices; then the suite's own verbs programs run between two VFs, started by `ironverbs run` from
# the host, so that the folder needs nothing of ours but the provider.
set -eu

suite=$1
folder=$2
here=$(cd "$(dirname "$0")/../.." && pwd)
built=${IRONVERBS_BUILT:-${CARGO_TARGET_DIR:-$here/target}/release}
node=$(mktemp -d /dev/shm/ironverbs-userland-XXXXXX)
port=$((10000 + $$ % 20000))
failed=0
trap 'rm -rf "$node"' EXIT

say() { printf '%-9s %-48s %s\n' "$suite" "$1" "$2"; }
die() { echo "userlands: $*" >&2; exit 1; }

[ -x "$built/ironverbs" ] || die "expected the command at $built/ironverbs (cargo build --release), found none"
[ -x "$built/examples/probe" ] || die "expected $built/examples/probe (cargo build --release --examples), found none"

# --- layout -------------------------------------------------------------------------------------------------------
# The known layouts of each release; sid moves on, so there only an unknown layout is a failure.
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

# serve COMMAND...: starts a server; its process is $server
serve() {
    sh "$here/tests/userlands/enter.sh" "$folder" "$node/n" "$@" >"$node/server" 2>&1 &
    server=$!
}

# ask AGAIN COMMAND...: runs its client, and retries while that fails and prints AGAIN
ask() {
    again=$1
    shift
    for _ in $(seq 30); do
        sleep 0.3
        if run "$@" >"$node/client" 2>&1; then return 0; fi
        kill -0 $server 2>/dev/null || return 1
        [ -z "$again" ] || grep -q -- "$again" "$node/client" || return 1
    done
    return 1
}

# ends STATUS: checks that the client ended with STATUS and that the server ends successfully by itself; otherwise kills the server
ends() {
    if [ "$1" = 0 ] && wait $server; then return 0; fi
    kill $server 2>/dev/null || true
    wait $server 2>/dev/null || true
    return 1
}

# holds NAME FUNCTION ARGUMENTS...: reports if the function succeeds, and prints the output of server and client if it does not
holds() {
    name=$1
    shift
    told=ok
    : >"$node/server" >"$node/client"
    if "$@"; then
        say "$name" "$told"
        return 0
    fi
    tail -n 8 "$node/server" | sed 's/^/    server: /' >&2
    tail -n 8 "$node/client" | sed 's/^/    client: /' >&2
    say "$name" FAILED
    failed=1
}

# check NAME PATTERN COMMAND...: the command must succeed and print PATTERN
check() {
    name=$1
    shift
    holds "$name" says "$@"
}
says() {
    pattern=$1
    shift
    run "$@" >"$node/client" 2>&1 && grep -q -- "$pattern" "$node/client"
}

# pair PROGRAM KIND ARGUMENTS...: a server on iron1 and a client on iron2, both of which must succeed
pair() {
    program=$1 kind=$2
    shift 2
    holds "$program $*" pair_of "$program" "$kind" "$@"
}
pair_of() {
    program=$1 kind=$2
    shift 2
    port=$((port + 1))
    case $kind in
    pingpong) at="-g 1 -p $port" ;;
    perftest) at="-x 1 -p $port -F" ;;
    esac
    # shellcheck disable=SC2086 # words of our own
    serve "$program" -d iron1 $at "$@"
    client=0
    # shellcheck disable=SC2086
    ask "Couldn't connect" "$program" -d iron2 $at "$@" 127.0.0.1 || client=$?
    ends $client || return 1
    told=$(tail -n 2 "$node/client" | head -n 1 | tr -s ' ' | cut -c1-60)
}

check "ibv_devices" iron2 ibv_devices
check "ibv_devinfo -v" PORT_ACTIVE ibv_devinfo -v -d iron1
# It waits for events forever; its first line says so.
check "ibv_asyncwatch" "iron1: async event FD" \
    sh -c 'timeout 3 stdbuf -o0 ibv_asyncwatch -d iron1; [ $? = 124 ]'
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
# Fewer messages than posted receives: these services lose messages without one.
for service in UC UD; do pair ib_send_bw perftest -n 400 -c $service; done
pair ib_send_bw perftest -n 1000 -c XRC
pair ib_write_bw perftest -n 1000 -c UC
pair ib_send_bw perftest -n 1000 --use-srq

# --- connections, and programs built on verbs -----------------------------------------------------------------------------------------
# sid's UCX is built without verbs. libfabric resolves the machine's own host name.
echo "127.0.0.1 localhost $(uname -n)" >"$folder/etc/hosts"
# meet NAME PATTERN SERVER.. -- CLIENT..
meet() {
    name=$1
    shift
    holds "$name" met "$@"
}
met() {
    pattern=$1
    shift
    words=
    while [ "$1" != -- ]; do words="$words $1" && shift; done
    shift
    # shellcheck disable=SC2086 # words of our own
    serve $words
    client=0
    ask "" "$@" || client=$?
    echo >>"$node/client"
    ends $client && grep -q -- "$pattern" "$node/client"
}
ranks() { # TRANSPORTS PATTERN PROGRAM..
    transports=$1 pattern=$2
    shift 2
    check "mpirun over $transports: ${*##*/}" "$pattern" mpirun --allow-run-as-root --oversubscribe -np 2 --mca pml ucx \
        -x "UCX_TLS=$transports,self" -x UCX_NET_DEVICES=iron1:1 "$@"
}
# Connections by librdmacm.
# Since rdma-core 61 the client may wait for good, on any device: its thread polls for an event, which goes when the ID is destroyed, before
# it fetches the event. So a client need not end by itself, if all its messages came back.
pinged() {
    serve rping -s -C 10000
    client=0
    ask "" stdbuf -oL rping -c -v -a 127.0.0.2 -C 10000 || client=$?
    [ $client = 0 ] || [ "$suite" = sid ] || return 1
    ends 0 && grep -q "ping data: rdma-ping-9999:" "$node/client"
}
holds "rping -C 10000" pinged
meet "ucmatose -c 10" "return status 0" ucmatose -c 10 -- ucmatose -s 127.0.0.2 -c 10
meet "udaddy" "return status 0" udaddy -- udaddy -s 127.0.0.2
meet "rstream" "" rstream -S 4096 -I 100 -- rstream -s 127.0.0.2 -S 4096 -I 100
meet "mckey" "return status 0" mckey -m 224.1.1.1 -b 127.0.0.2 -C 3 -- mckey -m 224.1.1.1 -b 127.0.0.3 -s -C 3
# A copy server does not end by itself.
copied() {
    rm -f "$folder/ironverbs/to"
    serve rcopy
    client=0
    ask "" rcopy /ironverbs/from 127.0.0.2:/ironverbs/to || client=$?
    ends 1 || true
    [ $client = 0 ] && cmp "$folder/ironverbs/from" "$folder/ironverbs/to" >>"$node/client" 2>&1
}
head -c 1000003 /dev/urandom >"$folder/ironverbs/from"
holds rcopy copied
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
# Every file, compared with the counts in docs/pyverbs.md; and our additional promises.
pyverbs() {
    sh "$here/tests/userlands/pyverbs.sh" "$folder" "$node/rows" >"$node/client" 2>&1 &&
        sh "$here/tests/userlands/page.sh" worse "$suite=$node/rows" >>"$node/client" 2>&1 || return 1
    cat "$node/rows.promises" >>"$node/client"
    grep -q "its_context ok" "$node/rows.promises" || return 1
    told=$(cut -f3 "$node/rows" | sort | uniq -c | tr -s ' \n' ' ')
}
holds pyverbs pyverbs
exit $failed
