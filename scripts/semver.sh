#!/bin/sh
# Compares the public interface of the published crates with that of an earlier revision, and fails if a change breaks programs that use it
# without a new version number that says so (semver.org).
#
#   scripts/semver.sh          since the last tag
#   scripts/semver.sh REV      since REV
#
# Needs cargo-semver-checks (cargo install cargo-semver-checks --locked).
set -eu

cd "$(dirname "$0")/.."
CARGO=${CARGO:-cargo}
PATH=$HOME/.cargo/bin:$PATH
export PATH

since=${1:-$(git describe --tags --abbrev=0 2>/dev/null || true)}
[ -n "$since" ] || {
    echo "skipped: no release is tagged, so there is no interface to keep"
    exit 0
}
"$CARGO" semver-checks --version >/dev/null 2>&1 || {
    echo "semver: cargo-semver-checks is missing: cargo install cargo-semver-checks --locked" >&2
    exit 1
}
# Crates that are not published are left out by default.
exec "$CARGO" semver-checks --workspace --baseline-rev "$since"
