#!/bin/sh
# Shows the output of rdma-core's tests, and the page with their counts. Called by scripts/userlands.sh and check.sh.
#
#   page.sh show|worse|write SUITE=ROWS..
#
# Python is that of a folder: the host need not have it.
set -eu

here=$(cd "$(dirname "$0")/../.." && pwd)
page=$here/docs/pyverbs.md
what=$1
shift
rows=$(mktemp)
trap 'rm -f "$rows" "$rows.page"' EXIT
for suite in "$@"; do sed "s/^/${suite%%=*}	/" "${suite#*=}"; done >"$rows"
judge() {
    if command -v python3 >/dev/null; then python3 "$here/tests/userlands/judge.py" "$@"; else
        folder=$("$here/scripts/userlands.sh" path bookworm)
        cp "$here/tests/userlands/judge.py" "$page" "$folder/ironverbs/"
        chroot "$folder" python3 /ironverbs/judge.py "$1" /ironverbs/pyverbs.md
    fi <"$rows"
}
case $what in
write)
    judge write "$page" >"$rows.page"
    cat "$rows.page" >"$page"
    ;;
*) judge "$what" "$page" ;;
esac
