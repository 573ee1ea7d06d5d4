//! The output of Linux tools that query a card, for a PF and its VFs: pciutils, devlink, ethtool, iproute2's rdma, infiniband-diags.

use ironverbs_tests::linux::{CHECKS, COMPLAINTS, Place, VFS, part};

#[test]
fn tools_find_a_card_with_vfs() {
    let Some(place) = Place::new() else { return };
    let script = format!(
        "{VFS}{COMPLAINTS}{CHECKS}
        pf=$pci/0000:00:00.0
        part lspci_before lspci -nn
        rdma system set netns exclusive
        part mode rdma system
        numvfs 3
        part totals cat $pf/sriov_totalvfs /sys/class/net/eth0/device/sriov_totalvfs /sys/class/infiniband/mlx5_0/device/sriov_totalvfs
        part lspci lspci -nn
        part capabilities lspci -vv -s 0:0.0 2>/dev/null
        ip addr add 10.9.0.100/24 dev eth0
        ip link set eth0 up
        part devices devlink dev show
        part firmware devlink dev info pci/0000:00:00.0
        part eswitch devlink dev eswitch show pci/0000:00:00.0
        part ports devlink port show
        part driver ethtool -i eth0
        part settings ethtool eth0
        vf 1
        ip netns exec n1 ping -c 3 -i 0.2 10.9.0.100 >/dev/null
        part counters ethtool -S eth0
        part link rdma link
        part statistic rdma statistic show link mlx5_0/1
        part ibstat ibstat
        part ibv_devinfo ibv_devinfo -v -d mlx5_0
        complaints"
    );
    let said = place.quiet_script(&[], &script);
    let pf =
        "00:00.0 Ethernet controller [0200]: Mellanox Technologies MT27800 Family [ConnectX-5] [15b3:1017]\n";
    assert_eq!(part(&said, "lspci_before"), pf);
    let vf = |n: u8| {
        format!(
            "00:00.{n} Ethernet controller [0200]: Mellanox Technologies MT27800 Family [ConnectX-5 Virtual Function] [15b3:1018]\n"
        )
    };
    assert_eq!(part(&said, "lspci"), [pf.into(), vf(1), vf(2), vf(3)].concat());
    assert_eq!(part(&said, "totals"), "7\n7\n7\n");
    let has = |name: &str, words: &[&str]| {
        let found = part(&said, name);
        words.iter().for_each(|words| assert!(found.contains(words), "{words}: {found}"));
    };
    has(
        "capabilities",
        &["Total VFs: 7, Number of VFs: 3", "MSI-X: Enable+", "Kernel driver in use: mlx5_core"],
    );
    has("devices", &["pci/0000:00:00.0\n", "pci/0000:00:00.3\n"]);
    has(
        "firmware",
        &["driver mlx5_core", "fw.psid IRONVERBS", "running:\n        fw.version 16.99.1000", "stored:"],
    );
    has("eswitch", &["pci/0000:00:00.0: mode legacy"]);
    has("ports", &["netdev eth0 flavour physical port 0", "netdev eth1 flavour virtual"]);
    has(
        "driver",
        &["driver: mlx5_core", "firmware-version: 16.99.1000 (IRONVERBS", "bus-info: 0000:00:00.0"],
    );
    has("settings", &["Speed: 100000Mb/s", "Link detected: yes"]);
    has("link", &["link mlx5_0/1 state ACTIVE physical_state LINK_UP netdev eth0"]);
    has("statistic", &["link mlx5_0/1 ", " out_of_sequence 0 ", " local_ack_timeout_err 0 "]);
    has(
        "ibstat",
        &[
            "CA 'mlx5_0'\n\tCA type: MT4119",
            "Firmware version: 16.99.1000",
            "Link layer: Ethernet",
            "Rate: 100\n",
        ],
    );
    has("ibv_devinfo", &["vendor_part_id:\t\t\t4119", "link_layer:\t\tEthernet", "RoCE v2"]);
    has("mode", &["netns exclusive"]);
    // Three echo requests were received and answered.
    for name in ["rx_packets", "tx_packets", "rx_vport_unicast_packets", "tx_vport_unicast_packets"] {
        let line = part(&said, "counters").lines().find(|line| line.trim().starts_with(&format!("{name}: ")));
        let count = line.and_then(|line| line.rsplit(' ').next()?.parse::<u32>().ok());
        assert!(count.is_some_and(|count| count >= 3), "{name}: {count:?}");
    }
}
