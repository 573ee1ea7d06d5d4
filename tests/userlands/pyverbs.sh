#!/bin/sh
# Runs rdma-core's own tests in one userland folder, file by file. Called by scripts/userlands.sh.
#
#   pyverbs.sh FOLDER ROWS [FILE..]      a line per test goes to ROWS, all other output to ROWS.log
#
# Without FILE our own promises.py runs too; its output goes to ROWS.promises.
set -eu

folder=$1
rows=$2
shift 2
here=$(cd "$(dirname "$0")/../.." && pwd)
node=$(mktemp -d /dev/shm/ironverbs-pyverbs-XXXXXX)
pages=/sys/kernel/mm/hugepages/hugepages-2048kB/nr_hugepages
had=$(cat $pages 2>/dev/null || echo)
room=$(mktemp -d "$folder/ironverbs/pyverbs-XXXXXX")
inside=${room#"$folder"}
clean() {
    rm -rf "$node" "$room"
    [ -z "$had" ] || [ "$had" -ge 64 ] || echo "$had" >$pages 2>/dev/null || true
}
trap clean EXIT
# Some tests need huge pages, and are skipped without; the machine's setting is restored.
[ -z "$had" ] || [ "$had" -ge 64 ] || echo 64 >$pages 2>/dev/null || true

# The tests are in the documentation, partly compressed.
mkdir "$room/bin"
cp -r "$folder/usr/share/doc/rdma-core/tests" "$room/"
find "$room/tests" -name '*.gz' -exec gunzip -f {} +
cp "$here/tests/userlands/judge.py" "$here/tests/userlands/promises.py" "$room/"
enter() { sh "$here/tests/userlands/enter.sh" "$folder" "$node/n" "$@"; }

# They query `rdma` for the names of links; if it cannot answer, they are told that there are none.
path=/usr/bin:/bin:/usr/sbin:/sbin
if ! enter env PATH=$path rdma link show -j 2>/dev/null | grep -q iron1; then
    printf '#!/bin/sh\necho "[]"\n' >"$room/bin/rdma"
    chmod +x "$room/bin/rdma"
fi
python() { enter env "PATH=$inside/bin:$path" PYTHONDONTWRITEBYTECODE=1 python3 "$@"; }
IRONVERBS_LIMIT=300 python "$inside/judge.py" run iron1 "$@" >"$rows" 2>"$rows.log"
[ $# -gt 0 ] || python "$inside/promises.py" >"$rows.promises" 2>&1
