//! Nodes with adapters of InfiniBand: VFs and IPoIB devices for pods, and partitions.
//!
//! ib-sriov-cni, ipoib-cni and ib-kubernetes are not built by `scripts/go-programs.sh`; CNI_PATH may have them.

use super::{
    cluster::Cluster,
    programs::{network, pod},
};
use crate::linux::PARTITIONS;

const RESOURCE: &str = "example.com/vfs";
/// Answers ib-kubernetes as UFM does.
const UFM: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/places/kubernetes/ufm.py");
/// Two pods of one partition on different nodes, and one of another partition: name, node, partition and address.
const PODS: [(&str, u8, u8, &str); 3] =
    [("one", 1, 5, "10.20.0.1"), ("two", 2, 5, "10.20.0.2"), ("three", 1, 6, "10.20.0.3")];

/// Starts nodes with two InfiniBand VFs each.
fn with_vfs(needs: &[&str]) -> Option<Cluster> {
    let form = &[("NODES", "2"), ("VFS", "2"), ("LINK_LAYER", "infiniband"), ("RDMA_NETNS", "shared")];
    let cluster = Cluster::new(form, needs)?;
    cluster.tools();
    cluster.multus();
    cluster.offer_vfs("ib0", RESOURCE, 2);
    Some(cluster)
}

fn on_network(name: &str, node: u8, network: &str, resources: &[&str], address: &str) -> String {
    pod(
        name,
        &format!("node-{node}"),
        resources,
        &format!(r#"[{{"name": "{network}", "ips": ["{address}/24"]}}]"#),
    )
}

fn reaches(cluster: &Cluster, from: &str, address: &str) -> Result<String, String> {
    cluster.kubectl(&["exec", from, "--", "ping", "-c", "2", "-w", "5", address], "")
}

/// Returns the contents of a file of the port of a pod's VF.
fn of_port(cluster: &Cluster, pod: &str, file: &str) -> String {
    let shown = format!("cat /sys/class/net/net1/device/infiniband/*/ports/1/{file}");
    cluster.exec(pod, &["sh", "-c", &shown]).trim().to_owned()
}

fn lid(cluster: &Cluster, pod: &str) -> String {
    let lid = of_port(cluster, pod, "lid");
    u16::from_str_radix(lid.trim_start_matches("0x"), 16).expect("a LID").to_string()
}

/// Makes a pod's port a full member of a partition, at index 0, which IPoIB uses. In the default partition the port becomes a limited
/// member, which reaches the subnet's administrator but no other pod. The PF of the pod's node does this, in place of a subnet manager.
fn put(cluster: &Cluster, pod: &str, node: u8, partition: u8) {
    let key = format!("{:#x}", 0x8000 | u16::from(partition));
    let words = ["/usr/bin/python3", "-ISB", PARTITIONS, "umad1", &lid(cluster, pod), &key, "0x7fff"];
    cluster.on(node, &words);
}

/// The pods' devices are up in their partitions: two of them reach each other, the third reaches neither.
fn meet_in_partitions(cluster: &Cluster) {
    for (pod, _, partition, _) in PODS {
        cluster.until(&format!("{pod} to be in its partition"), 60, || {
            let link = cluster.exec(pod, &["ip", "link", "show", "net1"]);
            let is_in = link.contains(&format!(":40:1b:80:{partition:02x}:")) && link.contains("LOWER_UP");
            if is_in { Ok(()) } else { Err(link) }
        });
    }
    cluster.until("a ping in the partition", 30, || reaches(cluster, "two", "10.20.0.1"));
    for (from, address) in [("three", "10.20.0.1"), ("one", "10.20.0.3")] {
        let said = reaches(cluster, from, address);
        assert!(said.is_err(), "{from} reaches {address}: {said:?}");
    }
    cluster.perftest("one", "two", "10.20.0.1", &["ib_read_lat", "-F", "-n", "200"]);
}

#[test]
#[ignore = "make test-kubernetes"]
fn pods_have_a_vf_of_infiniband_each_and_meet_in_their_partitions() {
    let Some(cluster) = with_vfs(&[]) else { return };
    cluster.apply(&network("ib", RESOURCE, r#"{"type": "host-device", "ipam": {"type": "static"}}"#));
    let on_ib = |(name, node, _, address)| on_network(name, node, "ib", &[RESOURCE], address);
    cluster.apply(&PODS.map(on_ib).concat());
    cluster.until_running(&PODS.map(|(name, ..)| name));
    for (pod, _, _, address) in PODS {
        let shown = cluster.exec(pod, &["ip", "addr", "show", "net1"]);
        assert!(shown.contains("link/infiniband") && shown.contains(address), "{shown}");
        let links = cluster.exec(pod, &["rdma", "link"]);
        let port = format!(" lid {} sm_lid ", lid(&cluster, pod));
        let port =
            links.lines().find(|line| line.contains(&port)).unwrap_or_else(|| panic!("{port}: {links}"));
        assert!(port.contains("state ACTIVE physical_state LINK_UP"), "{port}");
    }
    for client in ["two", "three"] {
        cluster.rping("one", client, "10.20.0.1");
        let row = cluster.perftest("one", client, "10.20.0.1", &["ib_read_lat", "-F", "-n", "200"]);
        println!("ib_read_lat of pod {client}, typical: {} us", row[4]);
    }

    for (pod, node, partition, _) in PODS {
        put(&cluster, pod, node, partition);
    }
    meet_in_partitions(&cluster);
    for node in cluster.nodes() {
        assert_eq!(cluster.complaints(node), "");
    }
}

#[test]
#[ignore = "make test-kubernetes"]
fn ib_kubernetes_has_ufm_put_pods_of_ib_sriov_cni_into_partitions() {
    let manifests = ["ib-kubernetes-configmap.yaml", "ib-kubernetes.yaml"];
    let needs = [&["ib-sriov", "ib-kubernetes", "plugins/ufm.so"][..], &manifests].concat();
    let Some(cluster) = with_vfs(&needs) else { return };
    cluster.plugin("ib-sriov");
    let serve = format!("setsid /usr/bin/python3 -ISB {UFM} 8080 >/run/ufm 2>&1 </dev/null &");
    cluster.on(1, &["sh", "-c", &serve]);
    // A program of this host adds its libraries to the image.
    let programs = [("ib-kubernetes", "/ib-kubernetes"), ("plugins/ufm.so", "/plugins/ufm.so"), ("ip", "")];
    cluster.image("mellanox/ib-kubernetes", &programs, &["/ib-kubernetes"]);
    cluster.kubectl(&["label", "node", "node-1", "node-role.kubernetes.io/control-plane="], "").unwrap();
    cluster.apply(
        "apiVersion: v1
kind: Secret
metadata: {name: ib-kubernetes-ufm-secret, namespace: kube-system}
stringData: {UFM_USERNAME: admin, UFM_PASSWORD: '123456', UFM_ADDRESS: 10.10.0.1, UFM_HTTP_SCHEMA: http, UFM_PORT: '8080'}
",
    );
    for manifest in manifests {
        cluster.apply(&cluster.manifest(manifest));
    }
    for partition in [5, 6] {
        let plugin = format!(
            r#"{{"type": "ib-sriov", "pkey": "{partition:#06x}", "ibKubernetesEnabled": true, "link_state": "enable",
                "capabilities": {{"infinibandGUID": true}}, "ipam": {{"type": "static"}}}}"#
        );
        cluster.apply(&network(&format!("ib-{partition}"), RESOURCE, &plugin));
    }
    let on_partition = |(name, node, partition, address)| {
        on_network(name, node, &format!("ib-{partition}"), &[RESOURCE], address)
    };
    cluster.apply(&PODS.map(on_partition).concat());
    cluster.until_running(&PODS.map(|(name, ..)| name));
    let asked = || cluster.on(1, &["cat", "/run/ufm"]);
    // UFM would pass this request to the subnet manager.
    let added = asked();
    for (pod, node, ..) in PODS {
        let gid = of_port(&cluster, pod, "gids/0").replace(':', "");
        let line =
            added.lines().find(|line| line.contains(&gid[16..])).unwrap_or_else(|| panic!("{gid}: {added}"));
        let partition =
            line.strip_prefix("/ufmRest/resources/pkeys 0x").expect("an addition").split(' ').next();
        put(&cluster, pod, node, partition.and_then(|key| key.parse().ok()).expect("a P_Key"));
    }
    meet_in_partitions(&cluster);

    cluster.kubectl(&["delete", "pod", "one", "two", "three", "--wait"], "").unwrap();
    cluster.until("UFM to be told of the pods' end", 60, || {
        let asked = asked();
        let removed = |partition| format!("/ufmRest/actions/remove_guids_from_pkey {partition:#06x} ");
        if [5, 6].map(removed).iter().all(|words| asked.contains(words)) { Ok(()) } else { Err(asked) }
    });
    assert_eq!(cluster.complaints(1), "");
}

#[test]
#[ignore = "make test-kubernetes"]
fn ipoib_cni_gives_pods_a_device_each_above_the_pf() {
    let form = &[("NODES", "2"), ("VFS", "1"), ("LINK_LAYER", "infiniband")];
    let Some(cluster) = Cluster::new(form, &["ipoib"]) else { return };
    cluster.tools();
    cluster.multus();
    cluster.plugin("ipoib");
    for node in cluster.nodes() {
        cluster.on(node, &["ip", "link", "set", "ib0", "up"]);
    }
    cluster.apply(&network("ipoib", "", r#"{"type": "ipoib", "master": "ib0", "ipam": {"type": "static"}}"#));
    let pods = [("one", 1, "10.21.0.1"), ("two", 2, "10.21.0.2")];
    cluster.apply(&pods.map(|(name, node, address)| on_network(name, node, "ipoib", &[], address)).concat());
    cluster.until_running(&["one", "two"]);
    let shown = cluster.exec("one", &["ip", "addr", "show", "net1"]);
    assert!(shown.contains("link/infiniband") && shown.contains("10.21.0.1"), "{shown}");
    cluster.until("a ping", 30, || reaches(&cluster, "two", "10.21.0.1"));
}
