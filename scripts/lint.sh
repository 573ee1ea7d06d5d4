#!/bin/sh
# Checks the form of a change as far as a machine can: formatting, clippy, rustdoc, links between the pages in docs/, and the crates as they are drawn there.
#
# Warnings are errors with the toolchain this tree is written with. Other versions of clippy and rustdoc know other warnings, which are
# shown and fail nothing. A toolchain without clippy or rustfmt, as Debian's may be, skips those with a word.
set -eu
cd "$(dirname "$0")/.."

WRITTEN_WITH=1.95
CARGO=${CARGO:-cargo}

have() { # SUBCOMMAND
    $CARGO "$1" --version >/dev/null 2>&1 || { echo "lint: skipped $1, this toolchain has none"; return 1; }
}

case $(rustc --version) in
"rustc $WRITTEN_WITH."*) deny="-D warnings" ;;
*) deny= ;;
esac

# The client on rdma-sys is a workspace of its own, which not every machine can build.
if have fmt; then
    $CARGO fmt --check
    $CARGO fmt --check --manifest-path tests/clients/rdma_sys/Cargo.toml
fi
# The profile of the tests shares its build scripts and macros with them.
# shellcheck disable=SC2086  # no word, or two
if have clippy; then
    timeout 1500 $CARGO clippy --profile quick --locked --workspace --all-targets -- $deny
    # It is behind a feature that changes the model, so `--all-targets` leaves it out.
    timeout 1500 $CARGO clippy --profile quick --locked --package ironverbs-laboratory --features laboratory --all-targets -- $deny
fi
# Pages are made with private items, for whoever works on the tree, so links to these are fine.
RUSTDOCFLAGS="$deny -A rustdoc::private_intra_doc_links" timeout 1500 $CARGO doc --locked --no-deps --workspace --exclude ironverbs-fuzz --document-private-items

# Each page or directory a page links to is there.
broken=$(grep -noE '\]\([^)#: ]+' README.md CONTRIBUTING.md docs/*.md | while IFS=: read -r page line link; do
    target=${link#*\(}
    [ -e "$(dirname "$page")/$target" ] || echo "$page:$line: there is no $target"
done)
[ -z "$broken" ] || { echo "$broken"; echo "lint: expected every linked file to exist"; exit 1; }

# Things that CONTRIBUTING.md names are there: files, and the functions, types and tests in its recipes.
rooms="cli devmodel docs driver ffi fuzz hwspec lib packaging scripts tests"
# shellcheck disable=SC2086  # directories
stale=$(grep -oE '`[^` ]+`' CONTRIBUTING.md | tr -d '`' | grep -v '\.\.\.' | sort -u | while read -r name; do
    word=${name##*::}
    case $name in
    */*) [ -e "$name" ] ;;
    *.rs | *.md) [ -e "$name" ] || [ -n "$(find $rooms -name "$name")" ] ;;
    *) grep -rqwF --include='*.rs' --include=Cargo.toml -e "${word%%[!a-zA-Z0-9_.-]*}" $rooms ;;
    esac || echo "$name"
done)
[ -z "$stale" ] || { echo "$stale"; echo "lint: expected to find in the source what CONTRIBUTING.md names"; exit 1; }

# Each known way to break the product still stands where its list says.
python3 scripts/mutants.py --check

# The crates as docs/README.md draws them, and as cargo knows them: a directory, and the last names of those it is built on.
drawn=$(sed -n '/^## Which crate needs which/,/^## /s/^    //p' docs/README.md | tr -s ' ' | sed 's/ $//')
known=$($CARGO tree --locked --workspace --edges normal --depth 1 --no-dedupe --prefix depth --format '{p}' |
    sed -n "s|^\([01]\).* ($PWD/\([^)]*\)).*|\1 \2|p" |
    awk '$1 == 0 { printf "%s%s", end, $2; end = "\n" } $1 == 1 { sub(".*/", "", $2); printf " %s", $2 } END { print "" }')
[ "$(echo "$drawn" | sort)" = "$(echo "$known" | sort)" ] ||
    { echo "$known"; echo "lint: expected these lines under \"Which crate needs which\" of docs/README.md"; exit 1; }
# Each below all that need it.
upward=$(echo "$drawn" | awk '{ for (i = 2; i <= NF; i++) if ($i in seen) print $1 " needs " $i; name = $1; sub(".*/", "", name); seen[name] = 1 }')
[ -z "$upward" ] || { echo "$upward"; echo "lint: expected crates above those they need in docs/README.md"; exit 1; }
echo "lint: ok"
