//! The effect of `ip link set PF vf N` on frames, with the kernel's own driver of the PF: after each setting, frames and RDMA between VFs
//! in namespaces, or to and from the wire, pass or do not pass.

use ironverbs_tests::linux::{CHECKS, COMPLAINTS, Place, VFS, complaints};
use ironverbs_tests::program::{Program, built};
use std::{
    os::unix::net::UnixDatagram,
    path::Path,
    sync::atomic::{AtomicBool, Ordering::Relaxed},
    time::Duration,
};
use testkit::Stop;

/// Script that sends frames in a guest and looks for them; its head describes `arrives`, `lost` and `rate`. The VF of namespace nN is
/// called nN here.
const FRAMES: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/places/linux/frames.py");

/// More shell functions. `path N M` lets RDMA programs of two namespaces exchange addresses without using the VFs under test: by a separate
/// link (10.8.0.N), and by `neighbours N M`, which avoids ARP. `pingpong SERVER CLIENT OPTION...` runs there; `rdma_passes SERVER CLIENT`
/// and `rdma_fails SERVER CLIENT` end the script if the result differs.
const FUNCTIONS: &str = r#"
neighbour() { eval "ip -n n$1 neigh replace 10.9.0.$2 lladdr \$M$2 dev \$D$1 nud permanent"; }
neighbours() { neighbour $1 $2; neighbour $2 $1; }
path() {
    ip link add v$1 type veth peer name v$2
    for n in $1 $2; do
        ip link set v$n netns n$n
        ip -n n$n addr add 10.8.0.$n/24 dev v$n
        ip -n n$n link set v$n up
    done
    neighbours $1 $2
}
pingpong() {
    server=$1 client=$2
    shift 2
    eval "device1=\$R$server device2=\$R$client"
    ip netns exec n$server timeout 60 ibv_rc_pingpong -d $device1 -g 1 -c "$@" >/run/server 2>&1 &
    pid=$!
    until_so listens $server
    ended=0
    ip netns exec n$client timeout 60 ibv_rc_pingpong -d $device2 -g 1 -c "$@" 10.8.0.$server >/run/client 2>&1 || ended=$?
    [ $ended = 0 ] || kill $pid || true
    wait $pid || true
    return $ended
}
rdma_passes() { pingpong $1 $2 -n 100 && grep -q '100 iters in' /run/client || { echo "rdma_passes $*:"; cat /run/client; return 1; } >&2; }
rdma_fails() {
    ! pingpong $1 $2 -n 100 && grep -q 'transport retry counter exceeded' /run/client && return
    { echo "rdma_fails $*:"; cat /run/client; return 1; } >&2
}
has_carrier() { ip -n n$1 link show up | grep -q "$(eval echo \$D$1): .*LOWER_UP"; }
has_no_carrier() { ! has_carrier $1; }
"#;

/// Runs `script` with a PF that is up and has `vfs` VFs, moved by `vf` into their own namespaces. Returns its output and checks that the
/// kernel reported no problems.
fn settings(place: &Place, vfs: u8, script: &str) -> String {
    let said = place.script(
        &["--vfs", &vfs.to_string()],
        &format!(
            "{VFS}{COMPLAINTS}{CHECKS}{FUNCTIONS}
            frames=\"/usr/bin/python3 -ISB {FRAMES}\"
            end_of() {{ case $2 in n?) eval $1=$2:\\$D${{2#n}};; *) eval $1=$2;; esac; }}
            frames() {{ what=$1; end_of from $2; end_of to $3; shift 3; $frames $what $from $to \"$@\"; }}
            arrives() {{ frames arrives \"$@\"; }}
            lost() {{ frames lost \"$@\"; }}
            rate() {{ frames rate \"$@\"; }}
            rdma system set netns exclusive
            ip link set eth0 up
            numvfs {vfs}
            {script}
            complaints
            echo all is so"
        ),
    );
    // The driver prints this for every device that becomes promiscuous.
    let usual = "S-tagged traffic will be dropped while C-tag vlan stripping is enabled";
    let complaints = complaints(&said).into_iter().filter(|line| !line.contains(usual));
    assert_eq!(complaints.collect::<Vec<_>>(), Vec::<&str>::new());
    assert!(said.ends_with("all is so\n"), "{said}");
    said
}

#[test]
fn a_vf_has_the_mac_it_is_given_and_spoofchk_holds_it_to_that() {
    let Some(place) = Place::new() else { return };
    settings(
        &place,
        2,
        "# Frames of a VF that its port did not let in.
        dropped() { ip -s -c=never link show eth0 | awk '/ vf '$1' /{ on = 1 } on && /TX:.*dropped/{ getline; print $3; exit }'; }
        vf 2
        old=$(cat $pci/0000:00:00.1/net/*/address) new=02:00:00:00:01:01
        ip link set $(ls $pci/0000:00:00.1/net) up
        arrives n2 $(ls $pci/0000:00:00.1/net)
        ip link set eth0 vf 0 mac $new
        for how in unbind bind; do echo 0000:00:00.1 >/sys/bus/pci/drivers/mlx5_core/$how; done
        vf 1
        is $M1 $new
        arrives n2 n1 dst=$new
        lost n2 n1 dst=$old beside
        path 1 2
        rdma_passes 1 2

        ip link set eth0 vf 0 spoofchk on
        arrives n1 n2 src=$new
        is $(dropped 0) 0
        lost n1 n2 src=$old beside
        is $(dropped 0) 3
        arrives n2 n1 src=$old
        rdma_passes 2 1
        ip -n n1 link set $D1 address $old
        M1=$old
        neighbours 1 2
        rdma_fails 2 1
        ip link set eth0 vf 0 spoofchk off
        arrives n1 n2 src=$old
        rdma_passes 2 1",
    );
}

#[test]
fn a_vlan_separates_vfs_and_a_state_takes_their_link_away() {
    let Some(place) = Place::new() else { return };
    settings(
        &place,
        3,
        "for n in 1 2 3; do vf $n; done
        path 1 2
        ip link set eth0 vf 0 vlan 100
        lost n1 n2
        lost n2 n1
        rdma_fails 1 2
        ip link set eth0 vf 1 vlan 100
        arrives n1 n2
        arrives n2 n1
        arrives n1 n2 dst=ff:ff:ff:ff:ff:ff
        lost n1 n3 dst=ff:ff:ff:ff:ff:ff
        lost n3 n1
        rdma_passes 1 2
        for n in 0 1; do ip link set eth0 vf $n vlan 0; done
        arrives n1 n2
        arrives n3 n1

        for state in enable auto; do
            ip link set eth0 vf 0 state disable
            until_so has_no_carrier 1
            lost n1 n2
            lost n2 n1
            [ $state = auto ] || rdma_fails 1 2
            arrives n2 n3
            ip link set eth0 vf 0 state $state
            until_so has_carrier 1
            arrives n1 n2
            arrives n2 n1
        done
        rdma_passes 1 2",
    );
}

/// The other end of a node's uplink: wrapped frames are returned unwrapped, others are returned wrapped.
fn echo(wire: &UnixDatagram, node: &Path, over: &AtomicBool) {
    const WRAPPED: [u8; 2] = [0x88, 0xb6];
    let mut frame = [0; 65_536];
    while !over.load(Relaxed) {
        let Ok(len) = wire.recv(&mut frame) else { continue };
        let back = match &frame[..len] {
            frame if frame.get(12..14) == Some(&WRAPPED) => frame[14..].to_vec(),
            frame => [&[0xff; 6], &[2, 0, 0, 0, 0, 0x99], &WRAPPED[..], frame].concat(),
        };
        // A frame that finds no room is lost, as on any wire.
        let _ = wire.send_to(&back, node);
    }
}

#[test]
fn a_trusted_vf_sees_what_is_not_for_it_and_the_wire_sees_tags() {
    let Some(place) = Place::new() else { return };
    let [near, far] = ["near", "far"].map(|name| place.path(name));
    let wire = UnixDatagram::bind(&far).unwrap();
    wire.set_read_timeout(Some(Duration::from_millis(100))).unwrap();
    let node = place.path("node").display().to_string();
    let link = format!("dgram:{},{}", near.display(), far.display());
    let mut serve =
        Program::start(&built().join("ironverbs"), &["serve", "--node", &node, "--link", &link]).unwrap();
    serve.expect("linked by", Duration::from_secs(60)).unwrap();
    let over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let _stop = Stop(&over);
        scope.spawn(|| echo(&wire, &near, &over));
        settings(
            &place,
            2,
            "vf 1
            vf 2
            stranger=02:00:00:00:00:77 group=01:00:5e:01:02:03
            arrives wire n1
            arrives n1 wire
            ip -n n1 link set $D1 promisc on
            for to in $stranger $group; do lost wire n1 dst=$to beside; done
            lost n2 n1 dst=$group beside
            ip link set eth0 vf 0 trust on
            for to in $stranger $group; do arrives wire n1 dst=$to; done
            for end in n1 wire; do arrives n2 $end dst=$group; done
            arrives n2 wire dst=$stranger
            ip -n n1 link set $D1 promisc off
            for to in $stranger $group; do lost wire n1 dst=$to beside; done
            ip -n n1 link set $D1 allmulticast on
            lost wire n1 dst=$stranger beside
            arrives wire n1 dst=$group
            ip link set eth0 vf 0 trust off
            lost wire n1 dst=$group beside

            ip link set eth0 vf 0 vlan 100 qos 3
            arrives n1 wire tag=$((3 << 13 | 100))
            lost wire n1",
        );
    });
}

/// Returns the values in Mb/s after `name` in the output.
fn rates(said: &str, name: &str) -> Vec<f64> {
    said.lines().filter_map(|line| line.strip_prefix(name)?.trim().parse().ok()).collect()
}

#[test]
fn a_vf_sends_no_faster_than_its_rate() {
    let Some(place) = Place::new() else { return };
    let said = settings(
        &place,
        2,
        "vf 1
        vf 2
        path 1 2
        # So that a program of a busy machine has few frames to send.
        for n in 1 2; do eval ip -n n$n link set \\$D$n mtu 9000; done
        rdma_rate() {
            pingpong 2 1 -s 500000 -n 2
            sed -n 's/.* = \\(.*\\) Mbit.*/rdma_rate \\1/p' /run/client
        }
        rate n1 n2 20
        rdma_rate
        ip link set eth0 vf 0 max_tx_rate 8
        rate n1 n2 4
        rdma_rate
        rate n2 n1 20 | sed s/^/other_/
        ip link set eth0 vf 0 max_tx_rate 500 min_tx_rate 100
        ip -c=never link show eth0 | grep 'vf 0'
        ip link set eth0 vf 0 max_tx_rate 0 min_tx_rate 0
        rate n1 n2 20
        rdma_rate",
    );
    // For ping-pong traffic only one direction is limited.
    for (name, ways) in [("rate ", 1.0), ("rdma_rate ", 2.0)] {
        let found = rates(&said, name).into_iter().map(|rate| rate / ways);
        let [before, limited, after] = found.collect::<Vec<_>>()[..] else { panic!("{said}") };
        // A delayed receiver also finds frames that came before.
        assert!((3.0..14.0).contains(&limited) && before >= 20.0 && after >= 20.0, "{name}: {said}");
    }
    assert!(rates(&said, "other_rate ")[0] >= 20.0, "{said}");
    assert!(said.contains("max_tx_rate 500Mbps, min_tx_rate 100Mbps"), "{said}");
}
