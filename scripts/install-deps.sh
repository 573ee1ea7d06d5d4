#!/bin/sh
# Installs the packages that are missing on this machine: packages of Debian and, for tests, cargo-nextest from crates.io.
#
#   scripts/install-deps.sh demo    to build, and to run the demonstration
#   scripts/install-deps.sh test    also what `make test` runs or reads, and the test runner
#   scripts/install-deps.sh all     also what other tests and the benchmarks run or read
#   scripts/install-deps.sh clients what scripts/clients.sh runs, or needs to build it
#   scripts/install-deps.sh kubernetes  what scripts/kubernetes.sh runs besides what it builds
#   scripts/install-deps.sh linux   what scripts/linux-kernel.sh builds with, and what tests/places/linux/ runs in addition
#
# Needs root or sudo only when a package is missing; without either it prints the command to run.
set -eu

HERE=$(cd "$(dirname "$0")/.." && pwd)
SET=${1:-demo}

RUST=1.85
# Minimum Go version for the programs that scripts/go-programs.sh builds.
GO=1.24
PATH=$HOME/.cargo/bin:$PATH
export PATH DEBIAN_FRONTEND=noninteractive

die() { echo "install-deps: $*" >&2; exit 1; }

# Packages that `make test` runs or reads.
test_packages="gcc g++ libc6-dev make perftest ibverbs-utils ibverbs-providers rdmacm-utils infiniband-diags iproute2 libibverbs-dev librdmacm-dev procps util-linux python3 python3-pyverbs"

case $SET in
demo) packages="gcc libc6-dev make perftest ibverbs-utils ibverbs-providers" ;;
test) packages=$test_packages ;;
all) packages="$test_packages ucx-utils libfabric-bin openmpi-bin libopenmpi-dev debootstrap e2fsprogs xz-utils python3-yaml qemu-user podman runc mandoc protobuf-compiler gdb strace valgrind" ;;
clients) packages="gcc libc6-dev make perftest ibverbs-utils ibverbs-providers python3 python3-venv python3-numpy python3-mpi4py openmpi-bin mpich librpma0 fio qperf hwloc qemu-system-x86 cmake libclang-dev libibverbs-dev librdmacm-dev pkgconf" ;;
linux) packages="gcc libc6-dev make binutils flex bison bc patch xz-utils util-linux iproute2 iputils-ping iperf3 ethtool pciutils" ;;
kubernetes) packages="podman debootstrap etcd-server containerd runc nftables iptables busybox-static openssl iproute2 util-linux procps perftest ibverbs-providers rdmacm-utils pciutils" ;;
*) die "unknown set '$SET': demo, test, all, clients, kubernetes or linux" ;;
esac

at_least() { # VERSION FOUND
    [ -n "$2" ] && [ "$(printf '%s\n' "$1" "$2" | sort -V | head -n 1)" = "$1" ]
}

rust_is_new_enough() {
    command -v cargo >/dev/null || return 1
    at_least $RUST "$(rustc --version 2>/dev/null | cut -d' ' -f2)"
}

go_is_new_enough() { at_least $GO "$(go env GOVERSION 2>/dev/null | sed 's/^go//')"; }

installed() { [ "$(dpkg-query -W -f '${db:Status-Status}' "$1" 2>/dev/null)" = installed ]; }

offered() { # VERSION PACKAGE
    version=$(apt-cache policy "$2" 2>/dev/null | sed -n 's/^  Candidate: //p')
    [ -n "$version" ] && [ "$version" != "(none)" ] && dpkg --compare-versions "${version#*:}" ge "$1"
}

# Debian 12 has a second, newer toolchain for its browsers. cargo fetches the crates over https.
rust_packages() {
    if offered $RUST rustc; then echo cargo rustc ca-certificates
    elif offered $RUST rustc-web; then echo cargo-web rustc-web ca-certificates
    else die "no package of this release brings Rust >= $RUST: install it with rustup"
    fi
}

# Kubernetes has to be built, so a missing Go is an error there; tests of other Go programs are skipped without it.
go_package() {
    if offered $GO golang-go; then echo golang-go ca-certificates
    elif [ "$SET" = kubernetes ]; then die "no package of this release brings Go >= $GO: install it from https://go.dev/dl"
    else echo "install-deps: no package of this release brings Go >= $GO: what scripts/go-programs.sh builds is not tested" >&2
    fi
}

# Installs programs from outside Debian, after all packages.
finish() {
    case $SET in test | all) exec "$HERE/scripts/nextest.sh" install ;; esac
    exit 0
}

have_mlx5_ifc() { ls /usr/src/linux-headers-*/include/linux/mlx5/mlx5_ifc.h >/dev/null 2>&1; }

if ! command -v apt-get >/dev/null || ! command -v dpkg-query >/dev/null; then
    rust_is_new_enough || die "no apt-get here and no Rust >= $RUST: install it with rustup"
    for tool in gcc ib_read_lat ibv_devinfo; do
        command -v $tool >/dev/null || die "no apt-get here and no $tool: install perftest, libibverbs-utils and gcc"
    done
    finish
fi

missing=
for package in $packages; do installed "$package" || missing="$missing $package"; done
rust_is_new_enough && rust= || rust=wanted
headers=
case $SET in test | all) have_mlx5_ifc || headers=wanted ;; esac
go=
case $SET in linux | kubernetes) go_is_new_enough || go=wanted ;; esac
[ -n "$missing$rust$headers$go" ] || finish

if [ "$(id -u)" = 0 ]; then
    as_root=
elif command -v sudo >/dev/null && { [ -t 0 ] || sudo -n true 2>/dev/null; }; then
    as_root=sudo
else
    [ -z "$rust" ] || missing="$missing $(rust_packages)"
    [ -z "$go" ] || missing="$missing $(go_package)"
    [ -z "$headers" ] || missing="$missing linux-headers-$(dpkg --print-architecture)"
    [ -n "${missing# }" ] || finish
    die "not root and no sudo; let root run: apt-get install -y --no-install-recommends$missing"
fi

# -E would pass our PATH to sudo; env passes only the variables that apt needs.
apt() { timeout 1800 $as_root env DEBIAN_FRONTEND=noninteractive apt-get -q -o DPkg::Lock::Timeout=300 "$@" </dev/null; }

apt update >/dev/null || die "apt-get update failed"

[ -z "$rust" ] || missing="$missing $(rust_packages)"
[ -z "$go" ] || missing="$missing $(go_package)"
# Only the architecture-independent part of the kernel headers is read, so they need not match the running kernel.
if [ -n "$headers" ]; then
    meta=linux-headers-$(dpkg --print-architecture)
    headers=$(apt-cache depends --recurse --important "$meta" | grep -o 'linux-headers-[^ ]*-common$' | sort -V | tail -n 1)
    [ -n "$headers" ] || die "$meta leads to no linux-headers-*-common package"
    missing="$missing $headers"
fi

[ -n "${missing# }" ] || finish
# shellcheck disable=SC2086  # a list of package names
apt install -y --no-install-recommends $missing || die "apt-get install$missing failed"
rust_is_new_enough || die "Rust >= $RUST still not found on PATH"
finish
