#!/bin/sh
# Runs third-party programs that use RDMA on devices of a node. Prints a line for each, and fails if one failed.
#
#   scripts/clients.sh              all of them
#   scripts/clients.sh NAME..       these only; their names are the first column in docs/guests.md
#
# scripts/install-deps.sh installs Debian's packages. Wheels and crates are fetched once, in the versions named in tests/clients/, into
# ${XDG_CACHE_HOME:-~/.cache}/ironverbs/clients. A client that is unavailable here is skipped.
set -eu

HERE=$(cd "$(dirname "$0")/.." && pwd)
PATH=$HOME/.cargo/bin:$PATH
export PATH

"$HERE/scripts/install-deps.sh" clients || echo "clients: clients whose packages are missing are skipped" >&2
# Debian's own interpreter, which has the modules of mpi4py's package, rather than another one in the user's PATH.
for python in /usr/bin/python3 python3; do if command -v $python >/dev/null; then break; fi; done
exec $python -B "$HERE/tests/clients/main.py" "$@"
