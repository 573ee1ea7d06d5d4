//! Third-party programs of Kubernetes' networking, unmodified, on a PF and its VFs under the stock driver.
//!
//! The programs are those of `scripts/go-programs.sh` and those in the folders of CNI_PATH; a test with missing programs is skipped.

use super::PARTITIONS;
use ironverbs_tests::linux::{CHECKS, COMPLAINTS, Place, complaints, part};
use ironverbs_tests::stock::GoPrograms;
use std::env;

/// The variable with the number of pods to create and delete; `make test-cni` sets a larger one.
const ROUNDS: &str = "IRONVERBS_CNI_ROUNDS";

/// Shell functions. `net NAME PLUGINS` writes a network configuration of CNI version $version. `cni add|check|del NAME POD` runs cnitool
/// for a pod, which is the network namespace of that name; versions without CHECK skip it. `state` prints the devices and links of the
/// node's kernel, sorted, and the VFs of its PF $pf.
const FUNCTIONS: &str = r#"
export NETCONFPATH=/run/net.d CNI_IFNAME=net1
pci=/sys/bus/pci/devices
version=1.0.0 pf=eth0
mkdir -p $NETCONFPATH
net() { echo '{"cniVersion":"'$version'","name":"'$1'","plugins":['"$2"']}' >$NETCONFPATH/$1.conflist; }
cni() {
    [ $1$version != check0.3.1 ] || return 0
    said=$(timeout 60 "$cnitool" $1 $2 /run/netns/$3 2>&1) || { echo "$*: $said" >&2; exit 1; }
}
state() {
    ip -c=never -br link | sed 's/ *$//' | sort
    ip -c=never link show $pf
    rdma link | sort
    # For its first queue pair the driver makes a completion queue of its own, which it keeps.
    rdma resource show | sed 's/ cq [0-9]*//' | sort
    find /var/lib/cni -type f ! -name '*lock' ! -name 'last_reserved_ip*' 2>/dev/null | sort
    ls $pci/0000:00:00.0/ | grep virtfn || true
}
in_pod() { pod=$1; shift; ip netns exec $pod timeout 60 "$@"; }
"#;

/// Returns a place, and shell variables with the paths of the programs. Returns `None` with a message if something is missing.
fn place(programs: &[&str]) -> Option<(Place, String)> {
    let place = Place::new()?;
    let names = [programs, &["cnitool"]].concat();
    let there = GoPrograms::with(&["cni"], &names)?;
    let mut shell = format!("export CNI_PATH='{}'\n", there.path().into_string().unwrap());
    for name in names {
        let program = there.find(name)?;
        shell += &format!("{}='{}'\n", name.replace('-', "_"), program.display());
    }
    shell += FUNCTIONS;
    shell += COMPLAINTS;
    shell += CHECKS;
    Some((place, shell))
}

#[test]
fn sriov_cni_and_rdma_cni_give_a_pod_a_vf_and_take_it_back() {
    let Some((place, functions)) = place(&["sriov", "rdma", "static"]) else { return };
    let script = format!(
        r#"{functions}
        case $(echo '{{"cniVersion":"0.3.1"}}' | CNI_COMMAND=VERSION "$sriov") in *'"1.0.0"'*) ;; *) version=0.3.1 ;; esac
        echo version $version
        rdma system set netns exclusive
        ip link set eth0 up
        echo 2 >$pci/0000:00:00.0/sriov_numvfs
        vf() {{
            net pod$1 '{{"type":"sriov","deviceID":"0000:00:00.'$1'","mac":"02:aa:bb:cc:dd:0'$1'","vlan":100,"trust":"on","spoofchk":"on",
                "link_state":"enable","max_tx_rate":1000,"ipam":{{"type":"static","addresses":[{{"address":"10.9.0.'$1'/24"}}]}}}},
                {{"type":"rdma","deviceID":"0000:00:00.'$1'"}}'
        }}
        echo begin before; state; echo end before
        for pod in 1 2; do ip netns add pod$pod; vf $pod; cni add pod$pod pod$pod; cni check pod$pod pod$pod; done
        echo begin pf; ip -c=never link show eth0; echo end pf
        echo begin pod; ip -n pod1 -c=never -br addr show net1; ip -n pod1 -c=never link show net1; in_pod pod1 rdma link; echo end pod
        in_pod pod1 rping -s -a 10.9.0.1 -C 10 >/dev/null & until_so cm_listens 7174 pod1
        echo begin rping; in_pod pod2 rping -c -a 10.9.0.1 -C 10 -v; echo end rping
        wait
        connects pod1 pod2 10.9.0.1
        for pod in 2 1; do
            cni del pod$pod pod$pod
            # The one of 2019 that the proxy has refuses a second time.
            [ $version = 0.3.1 ] || cni del pod$pod pod$pod
        done
        echo begin after; state; echo end after
        complaints"#
    );
    let said = place.quiet_script(&[], &script);
    // The proxy's version of sriov-cni is from 2019 and can only set a VLAN; CNI_PATH may have a newer one.
    let sets_all = said.contains("version 1.0.0\n");
    let all = ["max_tx_rate 1000Mbps", "trust on", "spoof checking on", "link-state enable"];
    let macs = if sets_all { "02:aa:bb:cc:dd:0" } else { "02:1b:56:00:00:0" };
    for vf in [1, 2] {
        let line = part(&said, "pf").lines().find(|line| line.contains(&format!("vf {} ", vf - 1))).unwrap();
        let mut settings = vec![format!("{macs}{vf}"), "vlan 100".into()];
        settings.extend(all.iter().filter(|_| sets_all).map(ToString::to_string));
        for setting in settings {
            assert!(line.contains(&setting), "{setting}: {line}");
        }
    }
    let pod = part(&said, "pod");
    assert!(pod.contains("10.9.0.1/24") && pod.contains(&format!("{macs}1")), "{pod}");
    assert_eq!(pod.matches("link mlx5_").count(), 1, "{pod}");
    assert!(pod.contains("state ACTIVE physical_state LINK_UP netdev net1"), "{pod}");
    assert_eq!(part(&said, "rping").matches("ping data: ").count(), 10, "{said}");
    assert!(said.contains("return status 0"), "{said}");
    assert_eq!(part(&said, "after"), part(&said, "before"));
}

#[test]
fn host_device_and_rdma_cni_give_pods_vfs_as_often_as_they_come() {
    let Some((mut place, functions)) = place(&["host-device", "rdma", "static"]) else { return };
    let rounds: u64 = env::var(ROUNDS).ok().map_or(5, |rounds| rounds.parse().unwrap());
    place.limit += 10 * rounds;
    let script = format!(
        r#"{functions}
        rdma system set netns exclusive
        ip link set eth0 up
        echo 1 >$pci/0000:00:00.0/sriov_numvfs
        net vf '{{"type":"host-device","pciBusID":"0000:00:00.1","ipam":{{"type":"static","addresses":[{{"address":"10.9.0.1/24"}}]}}}},
            {{"type":"rdma","deviceID":"0000:00:00.1"}}'
        ip netns add pod
        memory() {{ sync; echo 3 >/proc/sys/vm/drop_caches; sed -n 's/^MemAvailable: *\([0-9]*\) kB/memory \1/p' /proc/meminfo; }}
        round() {{ cni add vf pod; cni check vf pod; in_pod pod rdma link; cni del vf pod; }}
        round >/dev/null
        echo begin before; state; echo end before
        memory
        for round in $(seq {rounds}); do round; done
        memory
        echo begin after; state; echo end after
        complaints"#
    );
    let said = place.quiet_script(&[], &script);
    let given =
        said.lines().filter(|line| line.starts_with("link mlx5_1/1 ") && line.contains("netdev net1"));
    assert_eq!(given.count(), rounds as usize, "{said}");
    assert_eq!(part(&said, "after"), part(&said, "before"));
    let memory: Vec<i64> =
        said.lines().filter_map(|line| line.strip_prefix("memory ")?.parse().ok()).collect();
    let lost = memory[0] - memory[1];
    println!("{rounds} rounds, {lost} KiB less memory");
    // A page for each round would be a leak; some slabs remain.
    assert!(lost < 16_384, "{lost} KiB");
}

#[test]
fn ib_sriov_cni_gives_pods_vfs_with_guids_of_their_own() {
    let Some((place, functions)) = place(&["ib-sriov", "static"]) else { return };
    let script = format!(
        r#"{functions}
        pf=ib0
        # A kernel as new as this makes an RDMA device's IPoIB device anew where it is moved to, and the plugin looks for the one it had.
        rdma system set netns shared
        echo 2 >$pci/0000:00:00.0/sriov_numvfs
        active() {{ [ $(rdma link | grep -c 'state ACTIVE') = $1 ]; }}
        until_so active 3
        vf() {{
            net pod$1 '{{"type":"ib-sriov","deviceID":"0000:00:00.'$1'","capabilities":{{"infinibandGUID":true}},"pkey":"0x8005","link_state":"enable",
                "ipam":{{"type":"static","addresses":[{{"address":"10.9.0.'$1'/24"}}]}}}}'
            export CAP_ARGS='{{"infinibandGUID":"02:11:22:33:44:55:66:0'$1'"}}'
        }}
        # Without the numbers of queue pairs, which begin IPoIB's addresses: a driver that is bound again makes others.
        guids() {{ ip -br link | sed 's/80:..:..:..:fe/fe/; s/ *$//' | sort; rdma link | sort; ls $pci/0000:00:00.0/ | grep virtfn; }}
        part before guids
        for pod in 1 2; do ip netns add pod$pod; vf $pod; cni add pod$pod pod$pod; cni check pod$pod pod$pod; done
        part pf ip -c=never link show ib0
        part guids in_pod pod1 ibstat mlx5_1
        part net in_pod pod1 ip -c=never -d addr show net1
        # The P_Key is for who manages the subnet, which is told by others than the plugin.
        for lid in 2 3; do /usr/bin/python3 -ISB {PARTITIONS} umad0 $lid 0xffff 0x8005; done
        has_pkey() {{ in_pod pod$1 grep -qx 0x8005 /sys/class/infiniband/mlx5_$1/ports/1/pkeys/1; }}
        for pod in 1 2; do until_so has_pkey $pod; done
        part ping in_pod pod2 ping -c 3 -i 0.2 -w 10 10.9.0.1
        in_pod pod1 ib_read_lat -F -d mlx5_1 -n 100 >/run/server 2>&1 & until_so cm_listens 18515 pod1
        part read_lat in_pod pod2 ib_read_lat -F -d mlx5_2 -n 100 10.9.0.1
        wait
        for pod in 2 1; do vf $pod; cni del pod$pod pod$pod; cni del pod$pod pod$pod; done
        until_so active 3
        part after guids
        complaints"#
    );
    let said = place.quiet_script(&["--link-layer", "infiniband"], &script);
    for vf in [1, 2] {
        let line = part(&said, "pf").lines().find(|line| line.contains(&format!("vf {} ", vf - 1))).unwrap();
        let guid = format!("02:11:22:33:44:55:66:0{vf}");
        assert!(line.contains(&format!("NODE_GUID {guid}, PORT_GUID {guid}, link-state enable")), "{line}");
    }
    assert!(part(&said, "guids").contains("Port GUID: 0x0211223344556601"), "{said}");
    let net = part(&said, "net");
    assert!(net.contains("02:11:22:33:44:55:66:01 ") && net.contains("10.9.0.1/24"), "{net}");
    assert!(part(&said, "ping").contains("3 packets transmitted, 3 received"), "{said}");
    let measured = part(&said, "read_lat").lines().any(|line| line.split_whitespace().nth(1) == Some("100"));
    assert!(measured, "{said}");
    assert_eq!(part(&said, "after"), part(&said, "before"));
}

#[test]
fn ipoib_cni_gives_pods_a_device_each_above_the_pf() {
    let Some((place, functions)) = place(&["ipoib", "host-local"]) else { return };
    let script = format!(
        r#"{functions}
        pf=ib0
        ip link set ib0 up
        is_up() {{ ip link show ib0 | grep -q 'state UP'; }}
        until_so is_up
        net ib '{{"type":"ipoib","master":"ib0","ipam":{{"type":"host-local","ranges":[[{{"subnet":"10.8.0.0/24"}}]]}}}}'
        part before state
        for pod in 1 2; do ip netns add pod$pod; cni add ib pod$pod; cni check ib pod$pod; done
        part net in_pod pod1 ip -c=never -d addr show net1
        part ping in_pod pod2 ping -c 3 -i 0.2 -w 10 10.8.0.2
        for pod in 1 2; do cni del ib pod$pod; cni del ib pod$pod; done
        until_so is_up
        part after state
        complaints"#
    );
    let said = place.script(&["--link-layer", "infiniband"], &script);
    // The plugin creates devices without a qdisc, which the kernel reports.
    let strange: Vec<_> = complaints(&said)
        .into_iter()
        .filter(|line| !line.ends_with("default qdisc (pfifo_fast) fail, fallback to noqueue"))
        .filter(|line| !line.ends_with("ignoring multicast groups joined directly by userspace"))
        .collect();
    assert_eq!(strange, Vec::<&str>::new());
    let net = part(&said, "net");
    assert!(net.contains("10.8.0.2/24") && net.contains("ipoib pkey 0xffff"), "{net}");
    assert!(part(&said, "ping").contains("3 packets transmitted, 3 received"), "{said}");
    assert_eq!(part(&said, "after"), part(&said, "before"));
}

#[test]
fn pods_on_macvlans_share_the_rdma_device_of_the_pf() {
    let Some((place, functions)) = place(&["macvlan", "host-local"]) else { return };
    let script = format!(
        r#"{functions}
        ip link set eth0 up
        net lan '{{"type":"macvlan","master":"eth0","mode":"bridge","ipam":{{"type":"host-local","ranges":[[{{"subnet":"10.8.0.0/24"}}]]}}}}'
        echo begin before; state; echo end before
        for pod in 1 2; do ip netns add pod$pod; cni add lan pod$pod; cni check lan pod$pod; done
        echo begin pod; in_pod pod1 ip -c=never -br addr show net1; in_pod pod1 rdma link; echo end pod
        connects pod1 pod2 10.8.0.2
        for pod in 1 2; do cni del lan pod$pod; done
        echo begin after; state; echo end after
        complaints"#
    );
    let said = place.quiet_script(&[], &script);
    let pod = part(&said, "pod");
    assert!(pod.contains("10.8.0.2/24") && pod.contains("link mlx5_0/1 state ACTIVE"), "{pod}");
    assert!(said.contains("return status 0"), "{said}");
    assert_eq!(part(&said, "after"), part(&said, "before"));
}

#[test]
fn the_shared_device_plugin_offers_a_pf_500_times() {
    let Some((place, functions)) = place(&["k8s-rdma-shared-dp", "plugin-client"]) else { return };
    let script = format!(
        r#"{functions}
        registry=/var/lib/kubelet/plugins_registry
        mkdir -p $registry /var/lib/kubelet/device-plugins
        echo '{{"periodicUpdateInterval":0,"configList":[{{"resourceName":"hca","rdmaHcaMax":500,"selectors":{{"ifNames":["eth0"]}}}}]}}' >/run/shared
        timeout 60 "$k8s_rdma_shared_dp" -config-file /run/shared >/run/log 2>&1 & plugin=$!
        for i in $(seq 100); do [ ! -S $registry/hca.sock ] || break; sleep 0.1; done
        "$plugin_client" $registry/hca.sock || {{ cat /run/log >&2; exit 1; }}
        kill $plugin; wait $plugin || true
        complaints"#
    );
    let said = place.quiet_script(&[], &script);
    assert_eq!(
        said.lines().filter(|line| line.starts_with("device ") && line.ends_with(" Healthy")).count(),
        500
    );
    for file in ["rdma_cm", "uverbs0", "umad0"] {
        assert!(said.contains(&format!("file /dev/infiniband/{file} rw")), "{file}: {said}");
    }
}

#[test]
fn the_sriov_device_plugin_offers_the_vfs() {
    let Some((place, functions)) = place(&["sriovdp", "plugin-client"]) else { return };
    let script = format!(
        r#"{functions}
        registry=/var/lib/kubelet/plugins_registry
        mkdir -p $registry /var/lib/kubelet/device-plugins
        echo 3 >$pci/0000:00:00.0/sriov_numvfs
        echo '{{"resourceList":[{{"resourceName":"vfs","resourcePrefix":"example.com","selectors":{{"vendors":["15b3"],"drivers":["mlx5_core"],"isRdma":true}}}}]}}' >/run/pools
        timeout 60 "$sriovdp" --logtostderr -config-file /run/pools >/run/log 2>&1 & plugin=$!
        for i in $(seq 200); do [ ! -S $registry/example.com_vfs.sock ] || break; sleep 0.1; done
        "$plugin_client" $registry/example.com_vfs.sock || {{ cat /run/log >&2; exit 1; }}
        kill $plugin; wait $plugin || true
        complaints"#
    );
    let said = place.quiet_script(&[], &script);
    let mut devices: Vec<&str> = said.lines().filter(|line| line.starts_with("device ")).collect();
    devices.sort_unstable();
    let wanted = [1, 2, 3].map(|vf| format!("device 0000:00:00.{vf} Healthy"));
    assert_eq!(devices, wanted);
    assert!(said.contains("env PCIDEVICE_EXAMPLE_COM_VFS=0000:00:00.1\n"), "{said}");
    for file in ["rdma_cm", "uverbs1", "umad1"] {
        assert!(said.contains(&format!("file /dev/infiniband/{file} ")), "{file}: {said}");
    }
}
