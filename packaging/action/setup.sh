#!/bin/sh
# The steps of action.yml, on Debian or Ubuntu, for a user with sudo.
#
#   setup.sh install   installs the package IRONVERBS_DEB, a file or an https address, or builds one
#   setup.sh node      creates an adapter with IRONVERBS_VFS VFs and the link layer IRONVERBS_LINK_LAYER, for the following steps
set -eu

HERE=$(cd "$(dirname "$0")/../.." && pwd)

# GitHub shows lines of this form with the job.
die() { echo "::error::ironverbs: $*"; exit 1; }

root() { if [ "$(id -u)" = 0 ]; then "$@"; else sudo "$@"; fi; }

# The first line of a command's output, without the command's name.
first() { echo "${1#ironverbs: }" | head -n 1; }

build() {
    "$HERE/scripts/install-deps.sh" demo || die "what it is built with cannot be installed"
    CARGO_TARGET_DIR=$work/target make -C "$HERE" deb || die "the package cannot be built"
    deb=$(echo "$work"/target/deb/ironverbs_*.deb)
}

install() {
    command -v apt-get >/dev/null || die "expected a runner with apt-get, such as ubuntu-24.04"
    work=$(mktemp -d "${RUNNER_TEMP:-/tmp}/ironverbs-XXXXXX")
    trap 'rm -rf "$work"' EXIT
    deb=${IRONVERBS_DEB:-}
    case $deb in
    '') build ;;
    https://*)
        curl -fsSL --retry 3 -o "$work/ironverbs.deb" "$deb" || die "no package at $deb"
        deb=$work/ironverbs.deb
        ;;
    esac
    [ -f "$deb" ] || die "no package at $deb"
    # apt takes an argument without a slash for a package name.
    deb=$(realpath "$deb")
    root apt-get -q update || die "apt-get update failed"
    root env DEBIAN_FRONTEND=noninteractive apt-get -q install -y --no-install-recommends "$deb" perftest ibverbs-utils rdmacm-utils ||
        die "$deb cannot be installed"
    # Ubuntu refuses mounts in user namespaces of programs without a profile.
    restricted=/proc/sys/kernel/apparmor_restrict_unprivileged_userns
    [ ! -e $restricted ] || root sysctl -qw kernel.apparmor_restrict_unprivileged_userns=0 ||
        die "the runner allows no user namespaces"
}

node() {
    [ -n "${GITHUB_ENV:-}" ] && [ -n "${GITHUB_OUTPUT:-}" ] || die "expected GITHUB_ENV and GITHUB_OUTPUT, as a runner sets them"
    command -v ironverbs >/dev/null || die "no ironverbs here: it is the step before that installs it"
    # One for each job, because self-hosted runners run several.
    node=/dev/shm/ironverbs-$(id -u)-${GITHUB_RUN_ID:-0}-${GITHUB_RUN_ATTEMPT:-1}-${GITHUB_JOB:-job}
    said=$(ironverbs adapter create "$node" --vfs "${IRONVERBS_VFS:-8}" --link-layer "${IRONVERBS_LINK_LAYER:-ethernet}" 2>&1) ||
        die "$(first "$said")"
    echo "$said"
    said=$(ironverbs run --adapter "$node" -- true 2>&1) || die "programs cannot be run here: $(first "$said")"
    echo "IRONVERBS_NODE=$node" >>"$GITHUB_ENV"
    echo "node=$node" >>"$GITHUB_OUTPUT"
}

case ${1:-} in
install) install ;;
node) node ;;
*) die "unknown step '${1:-}'; install or node" ;;
esac
