#!/bin/sh
# Builds third-party programs of Kubernetes and its networking, unmodified, from the Go module proxy, for tests/places/linux/ and
# tests/places/kubernetes/.
#
#   scripts/go-programs.sh build SET   make the missing programs of cni, kubernetes or charts, print their folder
#   scripts/go-programs.sh path SET    print their folder, whether made or not
#
# docs/kubernetes.md uses those of cni and kubernetes; charts has the operator, Spiderpool and helm. They are kept in
# ${XDG_CACHE_HOME:-~/.cache}/ironverbs/go, in a folder named by the set and a hash of its inputs; a change makes a new one and removes
# those that are a day old. On two cores cni takes 2 minutes, kubernetes 9 and charts 6, plus downloads. Needs Go 1.24 or newer, no root. If
# a module cannot be downloaded or built, a line gives the reason, the others are built, and the exit status is 3.
set -eu

# Each line: a module, its version, the sum that `go mod download -json` prints, and packages, each of which becomes a program. An item with
# a leading + is a file or folder to copy; plugins= names those that CoreDNS keeps.
CNI='
github.com/containernetworking/cni v1.3.1 h1:gnHlU/YC1bJcS+CSh+pYQKeuu4O4gsMGW1NMaLhkzW4= cnitool
github.com/containernetworking/plugins v1.9.1 h1:8oU6WsIsU3bpnNZuvHp74a6cE1MJwbj2P7s4/yTUNlA= plugins/main/bridge plugins/main/ipvlan plugins/main/macvlan plugins/main/host-device plugins/ipam/host-local plugins/ipam/static plugins/main/loopback
github.com/k8snetworkplumbingwg/rdma-cni v1.6.0 h1:7nleN5mhe+/MPo8h9ow/yUoGqIXzrTzJv5pP3WTjUtM= cmd/rdma
github.com/Mellanox/k8s-rdma-shared-dev-plugin v1.5.3 h1:sjF+BpNYOYHRGFbL8luUtSUMmZLFqUlUSS/bzyRWjs8= cmd/k8s-rdma-shared-dp +deployment/k8s/base
github.com/k8snetworkplumbingwg/sriov-network-device-plugin v0.0.0-20221127172732-a5a7395122e3 h1:hIHzF4vNTCFb9UMngrcJAMvdNslCekaSvNbfQt21CUw= cmd/sriovdp +images/entrypoint.sh +deployments/k8s-v1.16/sriovdp-daemonset.yaml
'
KUBERNETES='
k8s.io/kubernetes v1.34.2 h1:WQdDvYJazkmkwSncgNwGvVtaCt4TYXIU3wSMRgvp3MI= cmd/kube-apiserver cmd/kube-controller-manager cmd/kube-proxy cmd/kube-scheduler cmd/kubelet cmd/kubectl
gopkg.in/k8snetworkplumbingwg/multus-cni.v4 v4.2.3 h1:bvYZ4IAOM7JXHZAUuMykB5pAxJZbqhqhecVbmSz8O3Y= cmd/multus cmd/thin_entrypoint cmd/install_multus cmd/passthru-cni +deployments/multus-daemonset.yml
github.com/coredns/coredns v1.13.1 h1:yhYvf/QVwHNjBK65RkC8d9VW91dP9XKem3BOon4eokg= plugins=errors|kubernetes .
'
CHARTS='
github.com/k8snetworkplumbingwg/sriov-network-operator v1.5.0 h1:xH8g2P+L99qZjAu/rPikxe483vhpUoJ9+j7yU4JhDlw= . cmd/sriov-network-config-daemon +bindata +deployment/sriov-network-operator-chart
github.com/spidernet-io/spiderpool v1.1.0 h1:Mp6RM3279xcEtv8ZQ14tsob9jStLCWO3vV1p2CQeCyk= cmd/spiderpool cmd/coordinator cmd/ifacer cmd/spiderpool-agent cmd/spiderpool-controller cmd/spiderpool-init +charts
helm.sh/helm/v3 v3.19.0 h1:krVyCGa8fa/wzTZgqw0DUiXuRT5BPdeqE/sQXujQ22k= cmd/helm
'
# Kubernetes refers to the modules it is split into by folders, which a module from the proxy lacks; here they are referred to by version.
# This is the SHA-256 of the resulting go.sum.
STAGING_VERSION=v0.34.2
STAGING_SUM=5e32ec163ddfefcc3b10ceccc564a3ae8e572f365221e45e452db326ff97013b

ROOM=${XDG_CACHE_HOME:-$HOME/.cache}/ironverbs/go
HERE=$(cd "$(dirname "$0")/.." && pwd)
# A client that sends a kubelet's requests to a device plugin, and the libraries of sriov-cni, whose version in the proxy
# predates go.mod.
CLIENT=$HERE/tests/places/linux/plugin-client
SRIOV=$HERE/tests/places/linux/sriov-cni

say() { echo "go-programs: $*" >&2; }

set_name=${2:-}
case $set_name in
cni) modules=$CNI ;;
kubernetes) modules=$KUBERNETES ;;
charts) modules=$CHARTS ;;
*) say "unknown set '$set_name'; cni, kubernetes or charts"; exit 1 ;;
esac
key=$({ echo "$modules"; [ "$set_name" = cni ] && cat "$CLIENT"/* "$SRIOV"/* || echo "$STAGING_SUM"; sed -n '/^make_program()/,/^}/p; /^staged()/,/^}/p' "$0"; } | sha256sum | cut -c1-12)
folder=$ROOM/$set_name-$key

# Builds a package in a module's own tree, with the dependencies named in its go.sum (or that of GO.MOD), because vendor folders come
# without files. Kubernetes cannot determine its version this way, so the linker sets it.
make_program() { # PROGRAM TREE PACKAGE [GO.MOD]
    [ ! -e "$folder/$1" ] || return 0
    link="-s -w${4:+ -X k8s.io/component-base/version.gitVersion=$version}"
    (cd "$2" && timeout 1800 go build -mod=readonly ${4:+-modfile="$4"} -trimpath -ldflags="$link" -o "$work/$1" "$3") \
        >"$work/log" 2>&1 </dev/null || {
        say "$1 cannot be built: $(tail -n 1 "$work/log")"
        return 1
    }
    mv "$work/$1" "$folder/"
}

# Writes a go.mod beside a tree, for modules with a go.mod that refers to folders that are not there; prints its path.
staged() { # TREE
    grep -q '=> ./staging/' "$1/go.mod" || return 0
    sed "s#=> ./staging/src/\(.*\)#=> \1 $STAGING_VERSION#" "$1/go.mod" >"$work/go.mod"
    cat "$1/go.sum" >"$work/go.sum"
    (cd "$1" && timeout 900 go list -modfile="$work/go.mod" -mod=mod -deps ./cmd/kube-apiserver ./cmd/kube-controller-manager \
        ./cmd/kube-proxy ./cmd/kube-scheduler ./cmd/kubelet ./cmd/kubectl) >"$work/log" 2>&1 </dev/null || {
        say "modules cannot be had: $(tail -n 1 "$work/log")"
        return 1
    }
    found=$(sha256sum <"$work/go.sum" | cut -d' ' -f1)
    [ "$found" = "$STAGING_SUM" ] || {
        say "expected a go.sum with SHA-256 $STAGING_SUM, found $found"
        return 1
    }
    echo "$work/go.mod"
}

# Sets `tree` to that of a module, after checking its sum.
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

# Makes the requested packages of a module.
make_module() { # MODULE VERSION SUM WANTED..
    fetch "$1" "$2" "$3" && modfile=$(staged "$tree") || return 1
    module=$1
    say "$1"
    shift 3
    for wanted; do
        case $wanted in
        +*)
            wanted=${wanted#+}
            rm -rf "$folder/${wanted##*/}"
            cp -r "$tree/$wanted" "$folder/"
            chmod -R u+w "$folder/${wanted##*/}"
            ;;
        # The others need clients of clouds, which quadruple what is downloaded.
        plugins=*)
            cp -r "$tree" "$work/tree"
            chmod -R u+w "$work/tree"
            tree=$work/tree
            sed -i -E "/^\t_ /{/\/plugin\/(${wanted#plugins=})\"\$/!d}" "$tree/core/plugin/zplugin.go"
            ;;
        .) make_program "${module##*/}" "$tree" . "$modfile" || return 1 ;;
        *) make_program "${wanted##*/}" "$tree" "./$wanted" "$modfile" || return 1 ;;
        esac
    done
}

build() {
    # The sums above and each module's go.sum pin the downloads; the programs run in any root.
    export GOSUMDB=off CGO_ENABLED=0 GOFLAGS=-buildvcs=false GOWORK=off
    mkdir -p "$folder"
    whole=true
    while read -r module version sum wanted; do
        [ -n "$module" ] || continue
        # shellcheck disable=SC2086  # a list
        make_module "$module" "$version" "$sum" $wanted || whole=false
    done <<END
$modules
END
    [ "$set_name" != cni ] || make_program plugin-client "$CLIENT" . || whole=false
    [ "$set_name" != cni ] || make_program sriov "$SRIOV" github.com/intel/sriov-cni/cmd/sriov || whole=false
    find "$ROOM" -maxdepth 1 -name "$set_name-*" ! -name "$set_name-$key" -mmin +1440 -exec rm -rf {} +
    [ $whole = true ] || exit 3
    touch "$folder/.made"
}

case ${1:-} in
path) ;;
build)
    if [ ! -e "$folder/.made" ]; then
        for program in go flock; do
            command -v $program >/dev/null || { say "no $program here: tests of these programs are skipped"; exit 3; }
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
*) say "unknown command '${1:-}'; build or path"; exit 1 ;;
esac
echo "$folder"
