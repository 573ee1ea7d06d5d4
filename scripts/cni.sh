#!/bin/sh
# Programs of Kubernetes' networking by others, unmodified, which tests/linux/cni.rs runs: from the Go module proxy.
#
#   scripts/cni.sh build   make those that are missing, print their folder
#   scripts/cni.sh path    print their folder, whether made or not
#
# They lie in ${XDG_CACHE_HOME:-~/.cache}/ironverbs/cni, in a folder named by the versions below and by this script; a change makes
# a new one and removes those that are a day old. Half a minute on two cores, beside what is downloaded. Needs Go 1.24 or newer, no root.
# Where a module cannot be had or built a line says why, the others are made, and the end is 3.
set -eu

# A module, its version, the sum that `go mod download -json` prints, and packages of which each makes a program.
MODULES='
github.com/containernetworking/cni v1.3.1 h1:gnHlU/YC1bJcS+CSh+pYQKeuu4O4gsMGW1NMaLhkzW4= cnitool
github.com/containernetworking/plugins v1.9.1 h1:8oU6WsIsU3bpnNZuvHp74a6cE1MJwbj2P7s4/yTUNlA= plugins/main/macvlan plugins/main/host-device plugins/ipam/host-local plugins/ipam/static
github.com/k8snetworkplumbingwg/rdma-cni v1.6.0 h1:7nleN5mhe+/MPo8h9ow/yUoGqIXzrTzJv5pP3WTjUtM= cmd/rdma
github.com/Mellanox/k8s-rdma-shared-dev-plugin v1.5.3 h1:sjF+BpNYOYHRGFbL8luUtSUMmZLFqUlUSS/bzyRWjs8= cmd/k8s-rdma-shared-dp
'
ROOM=${XDG_CACHE_HOME:-$HOME/.cache}/ironverbs/cni
HERE=$(cd "$(dirname "$0")/.." && pwd)
# What a kubelet asks of a device plugin.
CLIENT=$HERE/tests/linux/plugin-client

say() { echo "cni: $*" >&2; }

key=$(cat "$0" "$CLIENT"/* | sha256sum | cut -c1-12)
folder=$ROOM/$key

# Builds packages in a module's own tree, with the dependencies its go.sum names.
make_programs() { # TREE PACKAGE..
    tree=$1
    shift
    for package; do
        [ ! -e "$folder/${package##*/}" ] || continue
        (cd "$tree" && timeout 900 go build -trimpath -o "$work/${package##*/}" "./$package") >"$work/log" 2>&1 </dev/null || {
            say "${package##*/} cannot be built: $(tail -n 1 "$work/log")"
            return 1
        }
        mv "$work/${package##*/}" "$folder/"
    done
}

# The tree of a module, its sum compared.
fetch() { # MODULE VERSION SUM
    timeout 900 go mod download -json "$1@$2" >"$work/module" 2>"$work/log" </dev/null || true
    tree=$(sed -n 's/^\t"Dir": "\(.*\)",*$/\1/p' "$work/module")
    found=$(sed -n 's/^\t"Sum": "\(.*\)",*$/\1/p' "$work/module")
    if [ -z "$tree" ]; then
        say "$1@$2 cannot be had: $(sed -n 's/^\t"Error": "\(.*\)",*$/\1/p' "$work/module" | tail -c 200) $(tail -n 1 "$work/log")"
        return 1
    fi
    [ "$found" = "$3" ] || {
        say "$1@$2: expected $3, found $found"
        return 1
    }
}

build() {
    # The sums above and each module's go.sum say what may come; programs run in any root.
    export GOSUMDB=off CGO_ENABLED=0 GOFLAGS=-buildvcs=false
    mkdir -p "$folder"
    whole=true
    while read -r module version sum packages; do
        [ -n "$module" ] || continue
        # shellcheck disable=SC2086  # a list of packages
        fetch "$module" "$version" "$sum" && make_programs "$tree" $packages || whole=false
    done <<END
$MODULES
END
    make_programs "$CLIENT" ../plugin-client || whole=false
    find "$ROOM" -maxdepth 1 -name '[0-9a-f]*' ! -name "$key" -mmin +1440 -exec rm -rf {} +
    [ $whole = true ] || exit 3
    touch "$folder/.made"
}

case ${1:-build} in
path) ;;
build)
    if [ ! -e "$folder/.made" ]; then
        for program in go flock; do
            command -v $program >/dev/null || { say "no $program here: tests of CNI programs are skipped"; exit 3; }
        done
        mkdir -p "$ROOM"
        exec 9>"$ROOM/.lock"
        flock 9
        rm -rf "$ROOM"/work-*
        work=$(mktemp -d "$ROOM/work-XXXXXX")
        trap 'exit 1' HUP INT TERM
        trap 'rm -rf "$work"' EXIT
        [ -e "$folder/.made" ] || build
    fi
    ;;
*) say "unknown command '$1'; build or path"; exit 1 ;;
esac
echo "$folder"
