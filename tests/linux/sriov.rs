//! A PF and its VFs as the kernel's own driver has them.

use super::{COMPLAINTS, LIMIT, Place, VFS, complaints};
use ironverbs_tests::program::{Program, built};
use std::{
    path::Path,
    process::{Command, Stdio},
    time::Duration,
};

fn numbers_of_vfs(said: &str) -> Vec<u32> {
    let words = said.lines().filter_map(|line| line.strip_prefix("numvfs "));
    words.map(|line| line.split(' ').next().unwrap().parse().unwrap()).collect()
}

#[test]
fn vfs_come_and_go_as_they_are_told() {
    let Some(place) = Place::new() else { return };
    let script = format!(
        "{VFS}{COMPLAINTS}
        cat $pci/0000:00:00.0/sriov_totalvfs
        for n in 7 0 3; do numvfs $n; rdma link | grep -c netdev; ls -d $pci/0000:00:00.0/virtfn* 2>/dev/null | wc -l; done
        ip link set eth0 up
        ip link set eth0 vf 0 mac 02:11:22:33:44:55
        ip link set eth0 vf 1 trust on
        ip link set eth0 vf 1 vlan 100
        ip link set eth0 vf 2 spoofchk on
        ip link set eth0 vf 2 state disable
        ip -c=never link show eth0 | grep ' vf '
        cat $pci/0000:00:01.0/vendor $pci/0000:00:01.0/device
        complaints"
    );
    let said = place.script(&[], &script);
    assert_eq!(complaints(&said), Vec::<&str>::new());
    assert_eq!(said.lines().next(), Some("7"));
    assert_eq!(numbers_of_vfs(&said), [7, 0, 3], "{said}");
    let lines: Vec<&str> = said.lines().filter(|line| line.parse::<u8>().is_ok()).collect();
    // The total; then RDMA links with net devices and VFs, for each number.
    assert_eq!(lines, ["7", "8", "7", "1", "0", "4", "3"], "{said}");
    for wanted in [
        ["vf 0", "link/ether 02:11:22:33:44:55"],
        ["vf 1", "vlan 100"],
        ["vf 1", "trust on"],
        ["vf 2", "spoof checking on"],
        ["vf 2", "link-state disable"],
    ] {
        let found = said.lines().any(|line| wanted.iter().all(|words| line.contains(words)));
        assert!(found, "{wanted:?}: {said}");
    }
    assert!(said.contains("0x15b3\n0x101"), "{said}");
}

#[test]
fn vfs_of_an_infiniband_adapter_have_lids() {
    let Some(place) = Place::new() else { return };
    let script = format!(
        "{VFS}{COMPLAINTS}
        numvfs 3
        for i in 1 2 3 4 5 6 7 8 9 10; do [ $(rdma link | grep -c 'state ACTIVE') = 4 ] && break; sleep 0.3; done
        rdma link
        numvfs 0
        complaints"
    );
    let said = place.script(&["--link-layer", "infiniband"], &script);
    assert_eq!(complaints(&said), Vec::<&str>::new());
    assert_eq!(numbers_of_vfs(&said), [3, 0]);
    for lid in 1..=4 {
        let found =
            said.lines().any(|line| line.contains(&format!(" lid {lid} ")) && line.contains("state ACTIVE"));
        assert!(found, "lid {lid}: {said}");
    }
}

#[test]
fn programs_in_two_namespaces_meet_on_two_vfs() {
    let Some(place) = Place::new() else { return };
    let script = format!(
        "{VFS}{COMPLAINTS}
        rdma system set netns exclusive
        numvfs 2
        vf 1
        vf 2
        in1() {{ ip netns exec n1 timeout 60 \"$@\" >/run/server 2>&1 & sleep 1; }}
        in2() {{ ip netns exec n2 timeout 60 \"$@\"; wait; cat /run/server; }}
        in1 ibv_rc_pingpong -d $R1 -g 1 -c; in2 ibv_rc_pingpong -d $R2 -g 1 -c 10.9.0.1
        in1 ib_write_bw -d $R1 -x 1 -n 200 -F; in2 ib_write_bw -d $R2 -x 1 -n 200 -F 10.9.0.1
        in1 rping -s -a 10.9.0.1 -C 10 -V; in2 rping -c -a 10.9.0.1 -C 10 -V -v
        complaints"
    );
    let said = place.script(&[], &script);
    assert_eq!(complaints(&said), Vec::<&str>::new());
    assert_eq!(said.matches("1000 iters in").count(), 2, "{said}");
    assert!(
        said.lines().any(|line| line.trim_start().starts_with("65536 ") && line.contains("200 ")),
        "{said}"
    );
    assert_eq!(said.matches("ping data: ").count(), 10, "{said}");
}

#[test]
fn a_program_of_the_host_reaches_a_vf_from_a_node_on_the_same_wire() {
    let Some(place) = Place::new() else { return };
    let (node, other) = (place.path("node").display().to_string(), place.path("other").display().to_string());
    let run = |words: &[&str]| {
        let output = Command::new(built().join("ironverbs")).args(words).output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    };
    run(&["node", "create", "--node", &node]);
    run(&["node", "create", "--node", &other, "--node-id", "1", "--vfs", "1"]);
    run(&["node", "address", "--node", &other, "iron1", "10.7.0.1/24"]);
    let ironverbs = built().join("ironverbs").display().to_string();
    let link = format!("node:{node}");
    let mut joined =
        Program::start(Path::new(&ironverbs), &["serve", "--node", &other, "--link", &link]).unwrap();
    joined.expect("linked by", Duration::from_secs(60)).unwrap();
    let server = Command::new("timeout")
        .args([&LIMIT.to_string(), &ironverbs, "run", "--node", &other, "--"])
        .args(["rping", "-s", "-a", "10.7.0.1", "-C", "20", "-V"])
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let script = format!(
        "{VFS}{COMPLAINTS}
        numvfs 1
        net=$(ls $pci/0000:00:01.0/net)
        ip addr add 10.7.0.2/24 dev $net
        ip link set $net up
        sleep 1
        rping -c -I 10.7.0.2 -a 10.7.0.1 -C 20 -V -v
        complaints"
    );
    let said = place.script(&[], &script);
    let server = server.wait_with_output().unwrap();
    assert_eq!(complaints(&said), Vec::<&str>::new());
    assert_eq!(said.matches("ping data: ").count(), 20, "{said}");
    assert!(server.status.success(), "{}", String::from_utf8_lossy(&server.stderr));
}
