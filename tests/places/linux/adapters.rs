//! Several adapters in one guest, each with its own VFs.

use ironverbs_tests::linux::{CHECKS, COMPLAINTS, Place, VFS};

/// As many as large hosts have.
const ADAPTERS: usize = 8;

#[test]
fn a_guest_has_eight_adapters_each_with_vfs_of_its_own() {
    let Some(place) = Place::new() else { return };
    let names: Vec<String> =
        (0..ADAPTERS).map(|n| if n == 0 { "node".into() } else { format!("node{n}") }).collect();
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    let _wire = place.wire(&names, &["--vfs", "3"]);
    let paths: Vec<String> = names[1..].iter().map(|name| place.path(name).display().to_string()).collect();
    let options: Vec<&str> = paths.iter().flat_map(|path| ["--adapter", path]).collect();
    let script = format!(
        "{VFS}{COMPLAINTS}{CHECKS}
        lspci -n | sort | uniq -c
        ls -d $pci/*
        rdma link
        rdma system set netns exclusive
        for slot in 00 04 1c; do echo 3 >$pci/0000:00:$slot.0/sriov_numvfs; done
        rdma dev | wc -l
        cat /sys/class/infiniband/*/node_guid | sort -u | wc -l
        cat /sys/class/net/eth*/address | sort -u | wc -l
        # A VF of the first, and one of the last.
        vf 1
        vf 2 1c.3
        ip netns exec n2 timeout 60 rping -s -a 10.9.0.2 -C 10 -V >/dev/null 2>&1 & until_so cm_listens 7174 n2
        ip netns exec n1 timeout 60 rping -c -a 10.9.0.2 -C 10 -V -v
        wait
        for slot in 00 04 1c; do echo 0 >$pci/0000:00:$slot.0/sriov_numvfs; done
        complaints"
    );
    let said = place.quiet_script(&options, &script);
    for n in 0..ADAPTERS {
        let pf = format!("/sys/bus/pci/devices/0000:00:{:02x}.0", 4 * n);
        assert!(said.lines().any(|line| line == pf), "{pf}: {said}");
        let link = format!("link mlx5_{n}/1 ");
        assert!(said.contains(&link), "{link}: {said}");
    }
    let counts: Vec<&str> = said.lines().filter(|line| line.parse::<u8>().is_ok()).collect();
    assert_eq!(counts, ["17", "17", "17"], "{said}");
    assert_eq!(said.matches("ping data: ").count(), 10, "{said}");
}
