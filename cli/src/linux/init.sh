#!/bin/sh
# The first program of an `ironverbs linux` guest. Its root is the host's, by hostfs. Creates the requested root with a layer in memory for
# all writes, and executes `start` there.
PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin
export PATH
here=${0%/*}
stage=$here/stage

fail() {
    echo "failed $*" >"$here/dev/tty4"
    while :; do sleep 1000; done
}
try() {
    said=$("$@" 2>&1) || fail "$*: $said"
}

mount -t devtmpfs devtmpfs "$here/dev"
try mount -t tmpfs -o mode=0755 tmpfs "$stage"
cd "$stage" || fail "no $stage"
try mkdir lower upper work root
try mount --bind "$(readlink "$here/root")" lower
try mount -t overlay -o lowerdir=lower,upperdir=upper,workdir=work overlay root

cd root || fail "no root"
try mkdir -p proc sys dev run
try mount -t proc proc proc
try mount -t sysfs sysfs sys
try mount -t devtmpfs devtmpfs dev
try mount -t tmpfs -o mode=0755 tmpfs run
try mkdir run/ironverbs
try mount --bind "$here" run/ironverbs
# `start` moves them to their paths, when all else is mounted.
for share in "$here"/shares/*; do
    [ -e "$share" ] || continue
    try mkdir -p "run/shares/${share##*/}"
    try mount --bind "$(readlink "$share")" "run/shares/${share##*/}"
done

# Stacks the old root on the new one, and unmounts it.
try pivot_root . .
try umount -l .
exec chroot . /bin/sh /run/ironverbs/start
fail "cannot go on in the root"
