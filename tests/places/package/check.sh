#!/bin/sh
# Installs the package in this directory on a bare Debian, uses it, removes and purges it (scripts/deb.sh check).
#
# Afterwards only files of packages that it depends on may be left, compared by file, size and owner.
set -eu
export DEBIAN_FRONTEND=noninteractive LC_ALL=C
package=$(ls ./ironverbs_*.deb)

die() { echo "check: $*" >&2; exit 1; }

quietly() {
    timeout 900 "$@" >log 2>&1 </dev/null || { cat log; die "$* failed"; }
}
apt() { quietly apt-get -q -y -o Acquire::Retries=3 "$@"; }

# Lists all files except those in which apt and dpkg keep their records.
files() { # LIST
    find / -xdev \( -path /root/ironverbs -o -path /var/cache -o -path /var/log -o -path /var/lib/apt -o -path /var/lib/dpkg -o -path /tmp \) -prune -o \
        \( -type d -printf '%p %y %m %u:%g\n' -o -printf '%p %y %m %u:%g %s %l\n' \) | sort >"$1"
}

same() { # WHEN EXPECTED FOUND
    diff "$2" "$3" >difference || { cat difference; die "$1: other files than expected"; }
}

# Checks the result for the user UID: the devices exist in a run, and nowhere else.
works() { # UID
    user() { timeout 120 setpriv --reuid "$1" --regid "$1" --clear-groups env -i -C /tmp HOME=/tmp PATH=/usr/bin:/bin sh -ec "$2" </dev/null; }
    user "$1" 'ironverbs demo' >log 2>&1 || { cat log; die "user $1 sees no demonstration"; }
    grep -qE '^ 2 +1000 ' log || { cat log; die "expected the table of ib_read_lat"; }
    user "$1" 'ironverbs doctor' >log 2>&1 || { cat log; die "the doctor misses something for user $1"; }
    grep -q 'ok *provider *\/usr\/lib\/ironverbs\/libironverbs_provider.so' log || { cat log; die "expected the installed provider"; }
    inside=$(user "$1" 'ironverbs run -- ibv_devices' | grep -c ' iron[0-8] ')
    [ "$inside" = 9 ] || die "expected iron0 to iron8 in a run, found $inside"
    user "$1" 'LD_DEBUG=files ibv_devices' >log 2>&1 || true
    ! grep ironverbs log || die "a program outside of any run has looked for us"
    user "$1" 'ironverbs adapter delete' >log
}

nothing() { # WHEN
    [ -z "$(find / -xdev -name '*ironverbs*' ! -path '/root/*' ! -path '/tmp/*')" ] || die "something of ours is there $1"
    ! dpkg-query -W ironverbs 2>/dev/null || die "dpkg knows of us $1"
}

nothing "before"
apt update
# The commands of the README, with everything that the package recommends.
apt install "$package"
ironverbs --version | grep -qF "$(dpkg-deb -f "$package" Version | sed 's/.*\.\([0-9a-f]*\).*/\1/')" ||
    die "expected $(ironverbs --version) to name the commit of $package"
works 0
works 65534
# The scripts that its pages run find each other, and name missing programs.
if /usr/share/ironverbs/scripts/kubernetes.sh up >log 2>&1; then die "expected no cluster without its programs"; fi
grep -q 'no etcd here: scripts/install-deps.sh kubernetes' log || { cat log; die "expected to be told what is missing"; }
dpkg -L ironverbs | sort >owned
files installed

apt remove ironverbs
files removed
! diff installed removed | grep '^>' || die "removing has made files"
diff installed removed | sed -n 's/^< \([^ ]*\) .*/\1/p' | sort >gone
# Directories that other packages own as well stay.
while read -r file; do [ -e "$file" ] || echo "$file"; done <owned >owned-alone
same "gone with the package" owned-alone gone
nothing "after removing"

# Installs it again, to purge it.
quietly dpkg -i "$package"
files installed-again
same "installed again" installed installed-again
apt purge ironverbs
files purged
same "after purging" removed purged
nothing "after purging"
quietly dpkg --verify
[ ! -s log ] || { cat log; die "files of other packages have changed"; }
echo "check: $(basename "$package"), $(wc -l <owned) files and directories: installed, used, removed, purged"
