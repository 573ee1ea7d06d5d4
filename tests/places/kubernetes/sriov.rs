//! VFs by resource limits: multus, sriov-cni, rdma-cni and sriov-network-device-plugin.

use super::{
    cluster::Cluster,
    programs::{network, pod},
};

const VFS: u32 = 12;
const RESOURCE: &str = "example.com/vfs";

/// Creates VFs on every node, and a network of VFs for pods.
fn with_vfs() -> Option<Cluster> {
    let cluster = Cluster::new(&[("NODES", "2"), ("VFS", "12")], &[])?;
    cluster.tools();
    cluster.multus();
    cluster.offer_vfs("eth0", RESOURCE, VFS);
    let plugins = r#"{"type": "sriov", "vlan": 100, "ipam": {"type": "static"}}, {"type": "rdma"}"#;
    cluster.apply(&network("rdma", RESOURCE, plugins));
    Some(cluster)
}

fn on_rdma(name: &str, node: &str, address: &str) -> String {
    pod(name, node, &[RESOURCE], &format!(r#"[{{"name": "rdma", "ips": ["{address}/24"]}}]"#))
}

#[test]
#[ignore = "make test-kubernetes"]
fn pods_have_a_vf_each_by_a_resource_limit_and_reach_each_other() {
    let Some(cluster) = with_vfs() else { return };
    let devices = cluster.on(1, &["rdma", "link"]);
    let pods =
        [("one", "node-1", "10.20.0.1"), ("two", "node-2", "10.20.0.2"), ("three", "node-1", "10.20.0.3")];
    cluster.apply(&pods.map(|(name, node, address)| on_rdma(name, node, address)).concat());
    cluster.until_running(&["one", "two", "three"]);
    for (pod, _, address) in pods {
        let links = cluster.exec(pod, &["rdma", "link"]);
        assert_eq!(links.matches("link mlx5_").count(), 1, "{links}");
        assert!(links.contains("state ACTIVE physical_state LINK_UP netdev net1"), "{links}");
        let addresses = cluster.exec(pod, &["ip", "-br", "addr", "show", "net1"]);
        assert!(addresses.contains(address), "{addresses}");
        let files = cluster.exec(pod, &["ls", "/dev/infiniband"]);
        let kinds = files.lines().map(|file| file.trim_end_matches(char::is_numeric)).collect::<Vec<_>>();
        assert_eq!(kinds, ["rdma_cm", "umad", "uverbs"], "{files}");
    }
    for pod in ["one", "two"] {
        cluster.names_are_found_in(pod);
    }
    cluster.rping("one", "two", "10.20.0.1");
    let row = cluster.perftest("one", "two", "10.20.0.1", &["ib_read_lat", "-F", "-n", "200"]);
    println!("ib_read_lat between nodes, typical: {} us", row[4]);
    let row = cluster.perftest("two", "one", "10.20.0.2", &["ib_send_bw", "-F", "-n", "100"]);
    println!("ib_send_bw between nodes: {} MB/s", row[3]);

    // The kernel refuses to reduce the number of VFs other than to zero, and pods keep theirs.
    let fewer = "echo 6 | tee /sys/class/net/eth0/device/sriov_numvfs >/dev/null";
    let (done, why) = cluster.tried_on(1, &["sh", "-c", fewer]);
    assert!(!done && why.contains("Device or resource busy"), "{why}");
    // A node fails with its pods; pods of the other node continue.
    cluster.kill(2);
    cluster.perftest("one", "three", "10.20.0.1", &["ib_read_lat", "-F", "-n", "200"]);
    cluster.until("the node to be missed", 90, || {
        let ready = cluster.get(&["node", "node-2"], "{.status.conditions[?(@.type==\"Ready\")].status}");
        if ready == "Unknown" { Ok(()) } else { Err(ready) }
    });

    cluster.kubectl(&["delete", "pod", "one", "three", "--wait"], "").unwrap();
    cluster.until("all devices to be back", 30, || {
        let back = cluster.on(1, &["rdma", "link"]);
        if back.lines().count() == devices.lines().count() { Ok(()) } else { Err(back) }
    });
    // The kernel reported the refused reduction of VFs and nothing else.
    let complaints = cluster.complaints(1);
    assert!(complaints.contains("12 VFs already enabled. Disable before enabling 6 VFs"), "{complaints}");
    assert_eq!(complaints.lines().count(), 1, "{complaints}");
}
