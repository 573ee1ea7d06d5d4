//! Spiderpool, installed by its chart: it gives pods' VFs addresses of a pool, coordinates their networks, and counts their RDMA.

use super::{cluster::Cluster, programs::pod};

const RESOURCE: &str = "example.com/vfs";
/// Where the agent of a node tells Prometheus what it counted.
const METRICS: &str = "http://127.0.0.1:5711/metrics";

/// A pool of addresses, and a network of VFs that has them.
const NETWORK: &str = r#"
apiVersion: spiderpool.spidernet.io/v2beta1
kind: SpiderIPPool
metadata: {name: rdma}
spec: {subnet: 10.22.0.0/16, ips: [10.22.0.10-10.22.0.60], default: false}
---
apiVersion: spiderpool.spidernet.io/v2beta1
kind: SpiderMultusConfig
metadata: {name: rdma, namespace: kube-system}
spec:
  cniType: sriov
  sriov: {resourceName: example.com/vfs, rdmaIsolation: true, ippools: {ipv4: [rdma]}}
"#;

/// A counter of the device that a pod has as net1, as the agent of its node has it; nothing if it has none. The agent names the pod
/// beside it only if the device plugin says which RDMA device a pod got, which that of 2022 does not.
fn counted(cluster: &Cluster, node: u8, counter: &str) -> Option<f64> {
    let said = cluster.on(node, &["busybox", "wget", "-q", "-O", "-", METRICS]);
    let begin = format!("rdma_{counter}");
    let line =
        said.lines().find(|line| line.starts_with(&begin) && line.contains("net_dev_name=\"net1\""))?;
    line.rsplit(' ').next()?.parse().ok()
}

#[test]
#[ignore = "make test-kubernetes"]
fn spiderpool_gives_vfs_addresses_of_its_pool_and_counts_what_they_move() {
    let Some(cluster) =
        Cluster::new(&[("NODES", "2"), ("VFS", "4"), ("MEMORY", "3G")], &["helm", "spiderpool-agent"])
    else {
        return;
    };
    cluster.tools();
    cluster.multus();
    cluster.offer_vfs("eth0", RESOURCE, 4);
    cluster.spiderpool();
    cluster.apply(NETWORK);
    let pods = [("one", "node-1"), ("two", "node-2")];
    cluster.apply(&pods.map(|(name, node)| pod(name, node, &[RESOURCE], "kube-system/rdma")).concat());
    cluster.until_running(&["one", "two"]);
    let address = |pod| {
        let said = cluster.exec(pod, &["ip", "-4", "-br", "addr", "show", "net1"]);
        let found = said.split_whitespace().nth(2).unwrap_or_else(|| panic!("no address: {said}")).to_owned();
        found.split_once('/').map_or(found.clone(), |(address, _)| address.to_owned())
    };
    let [one, two] = ["one", "two"].map(address);
    assert!(one.starts_with("10.22.0.") && two.starts_with("10.22.0.") && one != two, "{one} {two}");
    for pod in ["one", "two"] {
        let links = cluster.exec(pod, &["rdma", "link"]);
        assert!(links.lines().count() == 1 && links.contains("netdev net1"), "{links}");
    }
    let sent = || counted(&cluster, 2, "tx_vport_rdma_unicast_bytes_total");
    cluster.until("the agent to count a pod's RDMA", 60, || sent().ok_or_else(|| "nothing".into()));
    let before = sent().unwrap_or_default();
    // perftest tries again where its clock is wrong, so that it may move its bytes more than once.
    let words = ["ib_send_bw", "-F", "-n", "500", "-s", "65536"];
    cluster.perftest("one", "two", &one, &words);
    let bytes = 500.0 * 65536.0;
    let moved = cluster.until("the agent to count what perftest moved", 60, || {
        let moved = sent().unwrap_or_default() - before;
        if moved >= bytes { Ok(moved) } else { Err(moved.to_string()) }
    });
    println!("{moved} bytes counted for {bytes}");
    cluster.kubectl(&["delete", "pod", "one", "two", "--wait"], "").unwrap();
    cluster.until("all addresses to be back", 60, || {
        let left = cluster.get(&["spiderippool", "rdma"], "{.status.allocatedIPCount}");
        if left == "0" || left.is_empty() { Ok(()) } else { Err(left) }
    });
    for node in [1, 2] {
        assert_eq!(cluster.complaints(node), "");
    }
}
