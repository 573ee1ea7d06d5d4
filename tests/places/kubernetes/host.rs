//! A node on this host's own kernel: pods with verbs by a resource limit alone, at the host's speed.

use super::{cluster::Cluster, programs::pod};

/// A cluster of this node, with an adapter of four VFs.
fn host() -> Option<Cluster> {
    let cluster = Cluster::new(&[("NODES", "0"), ("HOST", "1"), ("VFS", "4")], &[])?;
    cluster.tools();
    Some(cluster)
}

/// Two pods of the same resource read each other's memory.
pub fn pods_read_each_other(cluster: &Cluster, resource: &str) {
    let pods = ["one", "two"].map(|name| pod(name, "host", &[resource], "")).concat();
    let begin = || {
        let _ = cluster.kubectl(&["delete", "pod", "one", "two", "--ignore-not-found"], "");
        cluster.apply(&pods);
    };
    begin();
    // The number of allocatable resources may be outdated while a plugin comes and goes. A kubelet then refuses the pods; users who create
    // pods through a controller get new ones.
    cluster.until("pods to run", 120, || {
        let phases = cluster.get(&["pod", "one", "two"], "{.items[*].status.phase}");
        match phases.as_str() {
            "Running Running" => return Ok(()),
            refused if refused.contains("Failed") => begin(),
            _ => {}
        }
        Err(phases)
    });
    let address = cluster.get(&["pod", "one"], "{.status.podIP}");
    let row = cluster.perftest("one", "two", &address, &["ib_read_lat", "-F", "-x", "1", "-n", "20000"]);
    println!("ib_read_lat between two pods with one {resource} each, typical: {} us", row[4]);
}

#[test]
#[ignore = "make test-kubernetes"]
fn pods_with_a_limit_of_vfs_and_nothing_else_read_each_other() {
    let Some(cluster) = host() else { return };
    cluster.sriov_plugin(
        r#"{"resourceList": [{"resourceName": "vfs", "resourcePrefix": "example.com",
            "selectors": {"vendors": ["15b3"], "drivers": ["mlx5_core"], "isRdma": true}}]}"#,
    );
    cluster.until_allocatable("host", "example.com/vfs", 4);
    pods_read_each_other(&cluster, "example.com/vfs");
    cluster.names_are_found_in("one");
    let devices = ["one", "two"].map(|pod| cluster.exec(pod, &["ls", "/sys/class/infiniband"]));
    assert!(
        devices.iter().all(|names| names.lines().count() == 1) && devices[0] != devices[1],
        "{devices:?}"
    );
}

#[test]
#[ignore = "make test-kubernetes"]
fn five_hundred_of_the_hosts_vfs_are_offered_and_shared() {
    let Some(cluster) = host() else { return };
    cluster.shared_plugin(
        r#"{"configList": [{"resourceName": "hca", "rdmaHcaMax": 500,
            "selectors": {"vendors": ["15b3"], "drivers": ["mlx5_core"]}}]}"#,
    );
    cluster.until_allocatable("host", "rdma/hca", 500);
    pods_read_each_other(&cluster, "rdma/hca");
}
