#!/bin/sh
# Runs the mechanical checks on a change: formatting, clippy, rustdoc, links between the pages in docs/, and the crate graph drawn there.
#
# Warnings are errors with the toolchain that this tree is written with. Other versions of clippy and rustdoc have other warnings, which are
# shown but do not fail. If a toolchain lacks clippy or rustfmt, as Debian's may, these checks are skipped with a message.
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

# The rdma-sys client is a separate workspace, which not every machine can build.
if have fmt; then
    $CARGO fmt --check
    $CARGO fmt --check --manifest-path tests/clients/rdma_sys/Cargo.toml
fi
# With the tests' profile, build scripts and macros are shared with them.
# shellcheck disable=SC2086  # no word, or two
if have clippy; then
    timeout 1500 $CARGO clippy --profile quick --locked --workspace --all-targets -- $deny
    # The laboratory is behind a feature that changes the model, so `--all-targets` leaves it out.
    timeout 1500 $CARGO clippy --profile quick --locked --package ironverbs-laboratory --features laboratory --all-targets -- $deny
fi
# Pages are made with private items, for developers of this tree, so links to these are allowed.
RUSTDOCFLAGS="$deny -A rustdoc::private_intra_doc_links" timeout 1500 $CARGO doc --locked --no-deps --workspace --exclude ironverbs-fuzz --document-private-items

# Each page or directory that a page links to exists.
broken=$(grep -noE '\]\([^)#: ]+' README.md CONTRIBUTING.md docs/*.md | while IFS=: read -r page line link; do
    target=${link#*\(}
    [ -e "$(dirname "$page")/$target" ] || echo "$page:$line: there is no $target"
done)
[ -z "$broken" ] || { echo "$broken"; echo "lint: expected every linked file to exist"; exit 1; }

# The files, functions, types and tests that these pages name exist.
rooms="cli devmodel docs driver ffi fuzz hwspec lib packaging scripts tests"
# shellcheck disable=SC2086  # directories
stale=$(grep -ohE '`[^` ]+`' CONTRIBUTING.md docs/recipes.md | tr -d '`' | grep -v '\.\.\.' | sort -u | while read -r name; do
    word=${name##*::}
    case $name in
    */*) [ -e "$name" ] ;;
    *.rs | *.md) [ -e "$name" ] || [ -n "$(find $rooms -name "$name")" ] ;;
    *) grep -rqwF --include='*.rs' --include=Cargo.toml -e "${word%%[!a-zA-Z0-9_.-]*}" $rooms ;;
    esac || echo "$name"
done)
[ -z "$stale" ] || { echo "$stale"; echo "lint: expected to find in the source what CONTRIBUTING.md and docs/recipes.md name"; exit 1; }

# Each known way to break the product still applies where its list says.
python3 scripts/mutants.py --check

# Lines, files and unsafe blocks by room, and the reasons of commits that add many.
scripts/rooms.sh

# The crate graph in docs/README.md matches cargo's: a directory, and the last part of the names of the crates it depends on.
drawn=$(sed -n '/^## Which crate needs which/,/^## /s/^    //p' docs/README.md | tr -s ' ' | sed 's/ $//')
known=$($CARGO tree --locked --workspace --edges normal --depth 1 --no-dedupe --prefix depth --format '{p}' |
    sed -n "s|^\([01]\).* ($PWD/\([^)]*\)).*|\1 \2|p" |
    awk '$1 == 0 { printf "%s%s", end, $2; end = "\n" } $1 == 1 { sub(".*/", "", $2); printf " %s", $2 } END { print "" }')
[ "$(echo "$drawn" | sort)" = "$(echo "$known" | sort)" ] ||
    { echo "$known"; echo "lint: expected these lines under \"Which crate needs which\" of docs/README.md"; exit 1; }
# Each crate is listed below all crates that need it.
upward=$(echo "$drawn" | awk '{ for (i = 2; i <= NF; i++) if ($i in seen) print $1 " needs " $i; name = $1; sub(".*/", "", name); seen[name] = 1 }')
[ -z "$upward" ] || { echo "$upward"; echo "lint: expected crates above those they need in docs/README.md"; exit 1; }
echo "lint: ok"
