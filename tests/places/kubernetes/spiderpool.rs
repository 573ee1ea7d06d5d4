//! Spiderpool, installed by its chart: it assigns addresses of a pool to pods' VFs, coordinates their networks and counts their RDMA.

use super::{cluster::Cluster, programs::pod};

const RESOURCE: &str = "example.com/vfs";
/// Address at which a node's agent publishes its counters to Prometheus.
const METRICS: &str = "http://127.0.0.1:5711/metrics";

/// A pool of 10.`subnet`.0.0/16, and a network of the same name with `spec`, which refers to the pool.
fn network(name: &str, subnet: u8, spec: &str) -> String {
    format!(
        r#"
apiVersion: spiderpool.spidernet.io/v2beta1
kind: SpiderIPPool
metadata: {{name: {name}}}
spec: {{subnet: 10.{subnet}.0.0/16, ips: [10.{subnet}.0.10-10.{subnet}.0.60], default: false}}
---
apiVersion: spiderpool.spidernet.io/v2beta1
kind: SpiderMultusConfig
metadata: {{name: {name}, namespace: kube-system}}
spec: {{{spec}}}
---
"#
    )
}

/// The address that Spiderpool gave a pod.
fn address(cluster: &Cluster, pod: &str) -> String {
    let said = cluster.exec(pod, &["ip", "-4", "-br", "addr", "show", "net1"]);
    let found = said.split_whitespace().nth(2).unwrap_or_else(|| panic!("no address: {said}")).to_owned();
    found.split_once('/').map_or(found.clone(), |(address, _)| address.to_owned())
}

/// A counter of the device that a pod has as net1, as published by the agent of its node; `None` if there is none. The agent adds the name
/// of the pod only if the device plugin reports the RDMA device of a pod, which the plugin of 2022 does not.
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
    let vfs = "cniType: sriov, sriov: {resourceName: example.com/vfs, rdmaIsolation: true, ippools: {ipv4: [rdma]}}";
    cluster.apply(&network("rdma", 22, vfs));
    let pods = [("one", "node-1"), ("two", "node-2")];
    cluster.apply(&pods.map(|(name, node)| pod(name, node, &[RESOURCE], "kube-system/rdma")).concat());
    cluster.until_running(&["one", "two"]);
    let [one, two] = ["one", "two"].map(|pod| address(&cluster, pod));
    assert!(one.starts_with("10.22.0.") && two.starts_with("10.22.0.") && one != two, "{one} {two}");
    for pod in ["one", "two"] {
        let links = cluster.exec(pod, &["rdma", "link"]);
        assert!(links.lines().count() == 1 && links.contains("netdev net1"), "{links}");
    }
    let sent = || counted(&cluster, 2, "tx_vport_rdma_unicast_bytes_total");
    cluster.until("the agent to count a pod's RDMA", 60, || sent().ok_or_else(|| "nothing".into()));
    let before = sent().unwrap_or_default();
    // A wrong clock makes perftest start again, so it may move its bytes more than once.
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

#[test]
#[ignore = "make test-kubernetes"]
fn spiderpool_gives_macvlans_and_ipvlans_addresses_on_pfs_that_pods_share() {
    let form = &[("NODES", "2"), ("RAILS", "2"), ("VFS", "1"), ("MEMORY", "3G"), ("RDMA_NETNS", "shared")];
    let Some(cluster) = Cluster::new(form, &["helm", "spiderpool-agent", "ipvlan"]) else { return };
    cluster.tools();
    cluster.multus();
    let kinds = [("macvlan", "eth1", 23), ("ipvlan", "eth2", 24)];
    let offered = kinds.map(|(kind, master, _)| {
        format!(
            r#"{{"resourceName": "{kind}", "rdmaHcaMax": 500, "selectors": {{"ifNames": ["{master}"]}}}}"#
        )
    });
    cluster.shared_plugin(&format!(r#"{{"configList": [{}]}}"#, offered.join(", ")));
    cluster.spiderpool();
    for (kind, master, subnet) in kinds {
        for node in cluster.nodes() {
            cluster.on(node, &["ip", "link", "set", master, "up"]);
            cluster.until_allocatable(&format!("node-{node}"), &format!("rdma/{kind}"), 500);
        }
        let above = format!(
            "cniType: {kind}, {kind}: {{master: [{master}], rdmaResourceName: rdma/{kind}, ippools: {{ipv4: [{kind}]}}}}"
        );
        cluster.apply(&network(kind, subnet, &above));
        let names = ["one", "two"].map(|end| format!("{kind}-{end}"));
        let pods = [1, 2].map(|node| {
            let network = format!("kube-system/{kind}");
            pod(&names[node - 1], &format!("node-{node}"), &[&format!("rdma/{kind}")], &network)
        });
        cluster.apply(&pods.concat());
        let [one, two] = names.each_ref().map(String::as_str);
        cluster.until_running(&[one, two]);
        cluster.rping(one, two, &address(&cluster, one));
    }
    for node in [1, 2] {
        assert_eq!(cluster.complaints(node), "");
    }
}

#[test]
#[ignore = "make test-kubernetes"]
fn spiderpool_gives_vfs_and_ipoib_devices_of_infiniband_addresses() {
    let form = &[
        ("NODES", "1"),
        ("VFS", "2"),
        ("MEMORY", "3G"),
        ("LINK_LAYER", "infiniband"),
        ("RDMA_NETNS", "shared"),
    ];
    // CNI_PATH may have the two plugins.
    let Some(cluster) = Cluster::new(form, &["helm", "spiderpool-agent", "ib-sriov", "ipoib"]) else {
        return;
    };
    cluster.tools();
    cluster.multus();
    cluster.offer_vfs("ib0", RESOURCE, 2);
    cluster.plugin("ib-sriov");
    cluster.plugin("ipoib");
    cluster.on(1, &["ip", "link", "set", "ib0", "up"]);
    cluster.spiderpool();
    let vfs = "cniType: ib-sriov, ibsriov: {resourceName: example.com/vfs, rdmaIsolation: false, ippools: {ipv4: [ib-sriov]}}";
    cluster.apply(&network("ib-sriov", 25, vfs));
    cluster.apply(&network("ipoib", 26, "cniType: ipoib, ipoib: {master: ib0, ippools: {ipv4: [ipoib]}}"));
    for (kind, resources) in [("ib-sriov", &[RESOURCE][..]), ("ipoib", &[])] {
        let names = ["one", "two"].map(|end| format!("{kind}-{end}"));
        let [one, two] = names.each_ref().map(String::as_str);
        let network = format!("kube-system/{kind}");
        cluster.apply(&[one, two].map(|name| pod(name, "node-1", resources, &network)).concat());
        cluster.until_running(&[one, two]);
        let words = ["exec", two, "--", "ping", "-c", "3", "-w", "10", &address(&cluster, one)];
        cluster.until("a ping", 30, || cluster.kubectl(&words, ""));
    }
    cluster.rping("ib-sriov-one", "ib-sriov-two", &address(&cluster, "ib-sriov-one"));
}
