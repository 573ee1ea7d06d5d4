//! A PF and its VFs under the kernel's own driver.

use ironverbs_tests::linux::{CHECKS, COMPLAINTS, Place, VFS};

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
        cat $pci/0000:00:00.1/vendor $pci/0000:00:00.1/device
        complaints"
    );
    let said = place.quiet_script(&[], &script);
    assert_eq!(said.lines().next(), Some("7"));
    assert_eq!(numbers_of_vfs(&said), [7, 0, 3], "{said}");
    let lines: Vec<&str> = said.lines().filter(|line| line.parse::<u8>().is_ok()).collect();
    // The total number, then for each number of VFs the RDMA links with net devices and the VFs.
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

/// As many as the card has, beyond the first slot of the bus. The last serves programs as the first does.
#[test]
fn a_pf_has_127_vfs() {
    let Some(mut place) = Place::new() else { return };
    // A minute on a busy machine to create them, and four to remove them.
    place.limit = 600;
    let script = format!(
        "{VFS}{COMPLAINTS}{CHECKS}
        rdma system set netns exclusive
        numvfs 127
        rdma dev | wc -l
        ls -d /sys/class/net/eth* | wc -l
        cat /sys/class/infiniband/*/node_guid | sort -u | wc -l
        vf 1
        vf 2 0f.7
        ip netns exec n2 timeout 60 rping -s -a 10.9.0.2 -C 10 -V >/dev/null 2>&1 & until_so cm_listens 7174 n2
        ip netns exec n1 timeout 60 rping -c -a 10.9.0.2 -C 10 -V -v
        wait
        ip netns del n1
        ip netns del n2
        numvfs 0
        rdma dev | wc -l
        complaints"
    );
    let said = place.quiet_script(&["--vfs", "127"], &script);
    assert_eq!(numbers_of_vfs(&said), [127, 0], "{said}");
    let lines: Vec<&str> = said.lines().filter(|line| line.parse::<u8>().is_ok()).collect();
    assert_eq!(lines, ["128", "128", "128", "1"], "{said}");
    assert_eq!(said.matches("ping data: ").count(), 10, "{said}");
}
