#!/bin/sh
# Programs that use RDMA and are not ours, on devices of a node: a line for each, and a failure if one failed.
#
#   scripts/clients.sh              all of them
#   scripts/clients.sh NAME..       nixl, mooncake, infinistore, fio, qperf, sideway, rdma_sys, mpi4py, lstopo, qemu
#
# Debian's packages are installed as scripts/install-deps.sh does it. Wheels and crates are fetched once, in versions that
# tests/clients/ names, into ${XDG_CACHE_HOME:-~/.cache}/ironverbs/clients. A client that cannot be had here is skipped.
set -eu

HERE=$(cd "$(dirname "$0")/.." && pwd)
PATH=$HOME/.cargo/bin:$PATH
export PATH

"$HERE/scripts/install-deps.sh" clients || echo "clients: clients whose packages are missing are skipped" >&2
# Debian's own interpreter, whose modules mpi4py's package has, and not one that a user put in front of it.
for python in /usr/bin/python3 python3; do if command -v $python >/dev/null; then break; fi; done
exec $python -B "$HERE/tests/clients/main.py" "$@"
