#!/bin/sh
# What a machine can see of a change's form: formatting, clippy, rustdoc, and links between the pages in docs/.
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

if have fmt; then $CARGO fmt --check; fi
# The release profile shares what it builds of other crates with the tests.
# shellcheck disable=SC2086  # no word, or two
if have clippy; then timeout 1500 $CARGO clippy --release --locked --workspace --all-targets -- $deny; fi
# Pages are made with private items, for whoever works on the tree, so links to these are fine.
RUSTDOCFLAGS="$deny -A rustdoc::private_intra_doc_links" timeout 1500 $CARGO doc --locked --no-deps --workspace --exclude ironverbs-fuzz --document-private-items

# Each page or directory a page links to is there.
broken=$(grep -noE '\]\([^)#: ]+' README.md docs/*.md | while IFS=: read -r page line link; do
    target=${link#*\(}
    [ -e "$(dirname "$page")/$target" ] || echo "$page:$line: there is no $target"
done)
[ -z "$broken" ] || { echo "$broken"; echo "lint: expected every linked file to exist"; exit 1; }
echo "lint: ok"
