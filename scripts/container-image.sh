#!/bin/sh
# Makes a container image of programs of this machine, with the libraries they load and the drivers of libibverbs, on top of busybox. It
# needs no engine and no registry: `docker load`, `podman load` and `ctr images import` read the file.
#
#   scripts/container-image.sh FILE NAME [PROGRAM..] [FILE=PATH..] [-- COMMAND..]
#
# Programs go to /bin, files and folders to the given paths, and can be run there. COMMAND is the image's entry point (sh), to which a
# container's arguments are appended.
set -eu

die() { echo "container-image: $*" >&2; exit 1; }
[ $# -ge 2 ] || die "expected a file and a name, found: $*"
file=$1
name=$2
shift 2
programs=
files=
while [ $# -gt 0 ] && [ "$1" != -- ]; do
    case $1 in
    *=/*) files="$files $1" ;;
    *)
        program=$(command -v "$1") || die "no $1 here"
        programs="$programs $program"
        ;;
    esac
    shift
done
[ $# = 0 ] || shift
[ $# != 0 ] || set -- sh
busybox=$(command -v busybox) || die "no busybox here: Debian has one in busybox-static"
case $(ldd "$busybox" 2>&1) in *"=>"*) die "expected a static $busybox, as Debian's busybox-static has, found one that loads libraries" ;; esac

work=$(mktemp -d "${TMPDIR:-/tmp}/ironverbs-image-XXXXXX")
trap 'exit 1' HUP INT TERM
trap 'rm -rf "$work"' EXIT
root=$work/root
mkdir -p "$root/bin" "$root/tmp" "$root/etc/libibverbs.d"
chmod 1777 "$root/tmp"
cp "$busybox" "$root/bin/busybox"
"$busybox" --list | while read -r applet; do [ "$applet" = busybox ] || ln -s busybox "$root/bin/$applet"; done
echo root:x:0:0:root:/:/bin/sh >"$root/etc/passwd"
echo root:x:0: >"$root/etc/group"

place() { # FILE.. at the same place
    for from; do
        mkdir -p "$root${from%/*}"
        cp -L "$from" "$root$from"
    done
}
for program in $programs; do
    rm -f "$root/bin/${program##*/}"
    cp -L "$program" "$root/bin/"
done
for pair in $files; do
    to=$root${pair#*=}
    mkdir -p "${to%/*}"
    rm -rf "$to"
    cp -rL "${pair%%=*}" "$to"
    [ -d "$to" ] || chmod 755 "$to"
done
verbs=
if ldd $programs 2>/dev/null | grep -q libibverbs; then
    for driver in /etc/libibverbs.d/*.driver; do
        [ -e "$driver" ] || continue
        cp "$driver" "$root/etc/libibverbs.d/"
        verbs="$verbs $(echo /usr/lib/*/libibverbs/lib"$(sed -n 's/^driver //p' "$driver")"-rdmav*.so)"
    done
    # Needed by drivers that are injected into a container; Debian's images contain it.
    verbs="$verbs $(echo /lib/*/libgcc_s.so.1)"
fi
# shellcheck disable=SC2086  # lists
place $verbs
# shellcheck disable=SC2086
{ ldd $programs $verbs 2>/dev/null || true; } | sed -n 's/.*=> \(\/[^ ]*\) .*/\1/p; s/^[[:space:]]*\(\/[^ ]*\) (.*/\1/p' | sort -u |
    while read -r library; do place "$library"; done

tar --sort=name --owner=0 --group=0 --numeric-owner -C "$root" -cf "$work/layer.tar" .
layer=$(sha256sum <"$work/layer.tar" | cut -d' ' -f1)
command=
for word; do command="$command${command:+, }\"$word\""; done
case $(uname -m) in x86_64) architecture=amd64 ;; aarch64) architecture=arm64 ;; *) architecture=$(uname -m) ;; esac
cat >"$work/config.json" <<END
{"architecture": "$architecture", "os": "linux", "config": {"Entrypoint": [$command], "Env": ["PATH=/bin"]},
 "rootfs": {"type": "layers", "diff_ids": ["sha256:$layer"]}}
END
echo "[{\"Config\": \"config.json\", \"RepoTags\": [\"$name\"], \"Layers\": [\"layer.tar\"]}]" >"$work/manifest.json"
tar -C "$work" -cf "$work/image.tar" manifest.json config.json layer.tar
mv "$work/image.tar" "$file"
