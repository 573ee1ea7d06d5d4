//! A PF and its VFs on InfiniBand, with the kernel's own driver and IPoIB.

use super::traffic::MEETING;
use ironverbs_tests::linux::{CHECKS, COMPLAINTS, Place, complaints, part};

/// Script that sets P_Keys like a subnet manager.
pub const PARTITIONS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/places/linux/partitions.py");

/// Shell functions: `numvfs N`; `active N` checks that N ports are active; `vf N` moves VF N with its RDMA device `mlx5_N` into namespace
/// nN, where its IPoIB device ib0 has 10.9.0.N.
const FUNCTIONS: &str = r#"
pf=/sys/bus/pci/devices/0000:00:00.0
numvfs() { echo $1 >$pf/sriov_numvfs; is $(cat $pf/sriov_numvfs) $1; }
active() { [ $(rdma link | grep -c 'state ACTIVE') = $1 ]; }
vf() {
    eval R$1=mlx5_$1
    ip netns add n$1
    rdma dev set mlx5_$1 netns n$1
    ip -n n$1 link set lo up
    ip -n n$1 addr add 10.9.0.$1/24 dev ib0
    ip -n n$1 link set ib0 up
    until_so is_up $1 ib0
}
is_up() { ip -n n$1 link show $2 | grep -q 'state UP'; }
echoes() { ip netns exec n$1 ping -c 3 -i 0.2 -w 5 $2; }
"#;

#[test]
fn vfs_come_and_go_and_have_the_guids_their_pf_gives_them() {
    let Some(place) = Place::new() else { return };
    let script = format!(
        "{COMPLAINTS}{CHECKS}{FUNCTIONS}
        for n in 7 0 3; do
            numvfs $n
            until_so active $((n + 1))
            echo $(ls -d $pf/virtfn* 2>/dev/null | wc -l) $(ip -br link | grep -c '^ib') of $n
        done
        part lspci lspci -nn
        part links rdma link
        part ibstat ibstat
        part net ls $pf/net $pf/virtfn2/net
        part ipoib ip -d -c=never link show ib0
        part class cat $pf/class
        part firmware devlink dev info pci/0000:00:00.0
        part driver ethtool -i ib0
        part nodes saquery
        part paths saquery -p

        ip link set ib0 vf 2 node_guid 00:11:22:33:44:55:66:77
        ip link set ib0 vf 2 port_guid 00:11:22:33:44:55:66:78
        part set ip -c=never link show ib0
        rebind() {{ for how in unbind bind; do echo 0000:00:00.3 >/sys/bus/pci/drivers/mlx5_core/$how; done; until_so active 4; }}
        rebind
        part given ibstat mlx5_3
        part given_net ip -c=never -br link show ib3
        ip link set ib0 vf 2 state disable
        until_so active 3
        part down rdma link
        ip link set ib0 vf 2 state enable
        until_so active 4
        for guid in node port; do ip link set ib0 vf 2 ${{guid}}_guid 00:00:00:00:00:00:00:00; done
        rebind
        part taken ibstat mlx5_3
        numvfs 0
        complaints"
    );
    let said = place.quiet_script(&["--link-layer", "infiniband"], &script);
    for line in ["7 8 of 7", "0 1 of 0", "3 4 of 3"] {
        assert!(said.lines().any(|found| found == line), "{line}: {said}");
    }
    let lspci = part(&said, "lspci");
    assert!(lspci.starts_with("00:00.0 Infiniband controller [0207]: Mellanox Technologies "), "{lspci}");
    assert_eq!(lspci.matches("Infiniband controller [0207]").count(), 4, "{lspci}");
    assert_eq!(part(&said, "class"), "0x020700\n");
    assert!(part(&said, "firmware").contains("fw.version 16.99.1000"), "{said}");
    assert!(part(&said, "driver").contains("driver: ib_ipoib"), "{said}");
    for lid in 1..=4 {
        let link = format!(
            "subnet_prefix fe80:0000:0000:0000 lid {lid} sm_lid 512 lmc 0 state ACTIVE physical_state LINK_UP"
        );
        assert!(part(&said, "links").contains(&link), "{link}: {said}");
    }
    let ibstat = part(&said, "ibstat");
    assert_eq!(ibstat.matches("Link layer: InfiniBand").count(), 4, "{ibstat}");
    assert!(ibstat.contains("Node GUID: 0x021b56fffe000003"), "{ibstat}");
    // Tables of several segments, which Linux acknowledges and assembles, have all functions of the node and the switch.
    let nodes = part(&said, "nodes").matches("NodeRecord dump").count();
    assert!(nodes >= 9, "{said}");
    assert_eq!(part(&said, "paths").matches("PathRecord dump").count(), nodes * nodes);
    assert!(part(&said, "net").contains("ib3"), "{said}");
    assert!(part(&said, "ipoib").contains("ipoib pkey 0xffff mode datagram"), "{said}");
    let set = part(&said, "set").lines().find(|line| line.contains("vf 2 ")).unwrap();
    assert!(set.contains("NODE_GUID 00:11:22:33:44:55:66:77, PORT_GUID 00:11:22:33:44:55:66:78"), "{set}");
    let given = part(&said, "given");
    assert!(given.contains("Node GUID: 0x0011223344556677"), "{given}");
    assert!(given.contains("Port GUID: 0x0011223344556678"), "{given}");
    // IPoIB's address ends with the GUID.
    assert!(part(&said, "given_net").contains(":00:11:22:33:44:55:66:78 "), "{said}");
    let down = part(&said, "down").lines().find(|line| line.starts_with("link mlx5_3/1 ")).unwrap();
    assert!(!down.contains("ACTIVE"), "{down}");
    assert!(part(&said, "taken").contains("Port GUID: 0x021b56fffe000003"), "{said}");
}

#[test]
fn vfs_in_two_namespaces_meet_by_ipoib_in_their_partitions_and_by_verbs() {
    let Some(place) = Place::new() else { return };
    let script = format!(
        "{COMPLAINTS}{CHECKS}{FUNCTIONS}{MEETING}
        rdma system set netns exclusive
        numvfs 3
        until_so active 4
        for n in 1 2 3; do vf $n; done
        part ping echoes 1 10.9.0.2

        # A partition of VFs 1 and 2, at which VF 3 knocks in vain.
        part default ip netns exec n1 cat /sys/class/infiniband/mlx5_1/ports/1/pkeys/0 /sys/class/infiniband/mlx5_1/ports/1/pkeys/1
        for lid in 2 3; do /usr/bin/python3 -ISB {PARTITIONS} umad0 $lid 0xffff 0x8005; done
        has_pkey() {{ ip netns exec n$1 grep -qx 0x8005 /sys/class/infiniband/mlx5_$1/ports/1/pkeys/1; }}
        for n in 1 2; do
            until_so has_pkey $n
            ip -n n$n link add link ib0 name ib0.8005 type ipoib pkey 0x8005
            ip -n n$n addr add 10.8.0.$n/24 dev ib0.8005
            ip -n n$n link set ib0.8005 up
            until_so is_up $n ib0.8005
        done
        part partition_ping echoes 1 10.8.0.2
        complaints
        dmesg -C >/dev/null
        ip -n n3 link add link ib0 name ib0.8005 type ipoib pkey 0x8005
        ip -n n3 addr add 10.8.0.3/24 dev ib0.8005
        ip -n n3 link set ib0.8005 up
        ! echoes 1 10.8.0.3 >/dev/null
        part stranger ip -n n3 -br link show ib0.8005
        part refused complaints

        for service in rc uc ud; do meets ibv_${{service}}_pingpong; done
        for operation in send write read atomic; do meets ib_${{operation}}_lat -F; done
        meets ib_send_bw -F -c UD
        connects n1 n2 10.9.0.1
        ip netns exec n1 timeout 60 rping -s -a 10.9.0.1 -C 10 -V >/run/server 2>&1 & until_so cm_listens 7174 n1
        ip netns exec n2 timeout 60 rping -c -a 10.9.0.1 -C 10 -V -v
        wait
        ip netns exec n1 timeout 60 iperf3 -s -1 >/run/server 2>&1 & until_so listens 1
        ip netns exec n2 timeout 60 iperf3 -c 10.9.0.1 -n 20M
        wait"
    );
    let said = place.script(&["--link-layer", "infiniband"], &script);
    let refused = part(&said, "refused");
    assert_eq!(complaints(&said).join("\n"), refused.trim_end(), "beside the stranger's");
    assert!(refused.contains("ib0.8005: P_Key 0x8005 is not found"), "{refused}");
    for name in ["ping", "partition_ping"] {
        assert!(part(&said, name).contains("3 packets transmitted, 3 received"), "{name}: {said}");
    }
    assert_eq!(part(&said, "default"), "0xffff\n0x0000\n");
    assert!(!part(&said, "stranger").contains(",LOWER_UP"), "{said}");
    assert_eq!(said.matches("met by ").count(), 8, "{said}");
    assert!(said.contains("return status 0"), "{said}");
    assert_eq!(said.matches("ping data: ").count(), 10, "{said}");
    assert!(said.lines().any(|line| line.ends_with("receiver")), "{said}");
}

/// A virtual machine has only VFs, as the second guest here does; both are on the subnet of one adapter.
#[test]
fn two_kernels_on_one_subnet_meet_by_ipoib_and_by_verbs() {
    let Some(place) = Place::new() else { return };
    let common = format!(
        "{COMPLAINTS}{CHECKS}
        "
    );
    let first = format!(
        "{common}
        echo 1 >/sys/bus/pci/devices/0000:00:00.0/sriov_numvfs
        ip addr add 10.9.0.1/24 dev ib1
        ip link set ib1 up
        timeout 120 iperf3 -s -1 -D
        timeout 120 rping -s -a 10.9.0.1 -C 10 -V >/run/rping 2>&1 &
        timeout 120 ibv_rc_pingpong -d mlx5_1 -n 100 >/run/pingpong 2>&1 &
        servers() {{ [ $(ss -Hltn | wc -l) -ge 2 ] && cm_listens 7174; }}
        until_so servers
        say listening
        wait
        await over
        complaints"
    );
    let second = format!(
        "{common}
        lspci -nn
        ip addr add 10.9.0.2/24 dev ib0
        ip link set ib0 up
        await listening
        ping -c 3 -i 0.2 -w 10 10.9.0.1
        rping -c -a 10.9.0.1 -C 10 -V -v
        ibv_rc_pingpong -d mlx5_0 -n 100 10.9.0.1
        iperf3 -c 10.9.0.1 -n 10M
        say over
        complaints"
    );
    // The node must exist before both guests look for it.
    let node = place.path("node").display().to_string();
    let made = std::process::Command::new(ironverbs_tests::program::built().join("ironverbs"))
        .args(["node", "create", "--node", &node, "--link-layer", "infiniband"])
        .output()
        .unwrap();
    assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
    let said =
        place.scripts(&[("node", &["--vfs", "2"], &first), ("node", &["--functions", "4-5"], &second)]);
    for said in &said {
        assert_eq!(complaints(said), Vec::<&str>::new());
    }
    let said = &said[1];
    assert!(said.starts_with("00:00.0 Infiniband controller [0207]: Mellanox Technologies MT27800 Family [ConnectX-5 Virtual Function]"), "{said}");
    assert!(said.contains("3 packets transmitted, 3 received"), "{said}");
    assert_eq!(said.matches("ping data: ").count(), 10, "{said}");
    assert!(said.contains("100 iters in") && said.lines().any(|line| line.ends_with("receiver")), "{said}");
}

/// Each kernel has its own adapter with PF and VF, and a link joins both to one subnet. The client's VF has a GUID that its PF's
/// driver gave it.
#[test]
fn functions_of_two_adapters_meet_on_one_subnet() {
    let Some(place) = Place::new() else { return };
    let _wire = place.wire(&["node", "other"], &["--vfs", "1", "--link-layer", "infiniband"]);
    let common = format!(
        "{COMPLAINTS}{CHECKS}{FUNCTIONS}
        numvfs 1
        until_so active 2
        join() {{ ip addr add 10.9.0.$1/24 dev ib1; ip link set ib1 up; }}
        "
    );
    let server = format!(
        "{common}
        join 1
        iperf3 -s -1 -D
        timeout 120 rping -s -a 10.9.0.1 -C 10 -V >/run/rping 2>&1 &
        timeout 120 ibv_rc_pingpong -d mlx5_1 -n 100 >/run/pingpong 2>&1 &
        timeout 120 ib_write_bw -d mlx5_1 -F -n 100 -p 18700 >/run/write_bw 2>&1 &
        timeout 120 ucmatose -p 18600 -c 4 -S 4096 >/run/ucmatose 2>&1 &
        ibping -S -C mlx5_1 -d >/run/ibping 2>&1 &
        responder=$!
        servers() {{ [ $(ss -Hltn | wc -l) -ge 3 ] && cm_listens 7174 && cm_listens 18600; }}
        until_so servers
        say listening
        await over
        kill $responder
        complaints"
    );
    let client = format!(
        "{common}
        ip link set ib0 vf 0 node_guid 00:11:22:33:44:55:66:77
        ip link set ib0 vf 0 port_guid 00:11:22:33:44:55:66:78
        for how in unbind bind; do echo 0000:00:00.1 >/sys/bus/pci/drivers/mlx5_core/$how; done
        until_so active 2
        join 2
        await listening
        ping -c 3 -i 0.2 -w 10 10.9.0.1
        rping -c -a 10.9.0.1 -C 10 -V -v
        ibv_rc_pingpong -d mlx5_1 -n 100 10.9.0.1
        ib_write_bw -d mlx5_1 -F -n 100 -p 18700 10.9.0.1
        ucmatose -s 10.9.0.1 -p 18600 -c 4 -S 4096
        iperf3 -c 10.9.0.1 -n 10M
        ibping -C mlx5_1 -c 3 2
        part links rdma link
        part nodes saquery
        part path saquery --src-to-dst 258:2 PR
        part topology ibnetdiscover
        say over
        complaints"
    );
    let said = place.scripts(&[("node", &["--vfs", "1"], &server), ("other", &["--vfs", "1"], &client)]);
    for said in &said {
        assert_eq!(complaints(said), Vec::<&str>::new());
    }
    let said = &said[1];
    // By ping and by ibping.
    assert_eq!(said.matches("3 packets transmitted, 3 received").count(), 2, "{said}");
    assert_eq!(said.matches("ping data: ").count(), 10, "{said}");
    let written = said.lines().filter(|line| line.trim_start().starts_with("65536      100 ")).count();
    assert_eq!((written, said.matches("return status 0").count()), (1, 1), "{said}");
    assert!(said.contains("100 iters in") && said.lines().any(|line| line.ends_with("receiver")), "{said}");
    assert!(part(said, "links").contains("lid 258 sm_lid 768 lmc 0 state ACTIVE"), "{said}");
    let nodes = part(said, "nodes");
    for guid in ["0x001122334455667", "0x021b56fffe000001", "0x021b56fffe0000ff", "0x021b56fffe0001ff"] {
        assert!(nodes.contains(guid), "{guid}: {nodes}");
    }
    assert!(part(said, "path").contains("dlid....................2"), "{said}");
    // Each switch has a port to the other.
    let topology = part(said, "topology");
    assert_eq!(topology.matches("\nSwitch\t").count(), 2, "{topology}");
    assert_eq!(topology.matches("\nCa\t").count(), 4, "{topology}");
}
