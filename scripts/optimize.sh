#!/bin/sh
# Builds release binaries with a profile of what they are to be fast at: perftest's small and large messages (LLVM's
# profile-guided optimization). The code of a message is larger than the processor's first instruction cache; with a
# profile the compiler keeps apart what runs for every message and what does not.
#
#   scripts/optimize.sh FOLDER     leaves FOLDER/ironverbs and its provider
#
# Takes two builds and a short benchmark. Ends with 3 and one line where the compiler's profile tools cannot be had.
set -eu

CARGO=${CARGO:-cargo}
PATH=$HOME/.cargo/bin:$PATH
export PATH
into=${1:?a folder to build in}
mkdir -p "$into"
into=$(cd "$into" && pwd)

cannot() { echo "optimize: $*" >&2; exit 3; }

# The tool that comes with the compiler, or Debian's for the same LLVM.
profdata() {
    found=$(find "$(rustc --print sysroot)/lib/rustlib" -name llvm-profdata 2>/dev/null | head -n 1)
    if [ -n "$found" ]; then echo "$found"; return; fi
    command -v "llvm-profdata-$(rustc -vV | sed -n 's/^LLVM version: \([0-9]*\).*/\1/p')" || true
}

host=$(rustc -vV | sed -n 's/^host: //p')
if [ -z "$(profdata)" ] && command -v rustup >/dev/null; then
    timeout 300 rustup component add llvm-tools >/dev/null 2>&1 || true
fi
merge=$(profdata)
[ -n "$merge" ] || cannot "no llvm-profdata for $(rustc --version): rustup component add llvm-tools, or Debian's package llvm of that version"

# With --target the flags are not for build scripts and macros.
build() { # FOLDER FLAGS
    RUSTFLAGS="${RUSTFLAGS:-} $2" CARGO_TARGET_DIR="$into/$1" timeout 1500 "$CARGO" build --release --locked \
        --target "$host" -p ironverbs -p ironverbs-provider
}

# Always the same names: what did not change is not compiled again.
rm -rf "$into/raw"
build training "-Cprofile-generate=$into/raw"
timeout 300 "$into/training/$host/release/ironverbs" bench --rounds 1 >"$into/bench" 2>&1 || {
    cat "$into/bench" >&2
    echo "optimize: the benchmark that makes the profile failed" >&2
    exit 1
}
"$merge" merge -o "$into/profile" "$into/raw"
build final "-Cprofile-use=$into/profile"
for made in ironverbs libironverbs_provider.so; do
    cp "$into/final/$host/release/$made" "$into/$made.new"
    mv "$into/$made.new" "$into/$made"
done
