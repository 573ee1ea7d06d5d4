//! One RDMA device for many pods: k8s-rdma-shared-dev-plugin, and macvlan by multus.

use super::{
    cluster::Cluster,
    programs::{network, pod},
};

const RESOURCE: &str = "rdma/hca";

#[test]
#[ignore = "make test-kubernetes"]
fn pods_share_a_pf_of_which_five_hundred_are_offered() {
    let form = &[("NODES", "2"), ("VFS", "1"), ("RDMA_NETNS", "shared")];
    let Some(cluster) = Cluster::new(form, &[]) else { return };
    cluster.tools();
    cluster.multus();
    cluster.shared_plugin(
        r#"{"configList": [{"resourceName": "hca", "rdmaHcaMax": 500, "selectors": {"ifNames": ["eth0"]}}]}"#,
    );
    for node in ["node-1", "node-2"] {
        cluster.until_allocatable(node, RESOURCE, 500);
    }
    let plugins = r#"{"type": "macvlan", "master": "eth0", "mode": "bridge", "ipam": {"type": "static"}}"#;
    cluster.apply(&network("lan", "", plugins));
    let on_lan = |name, node, address| {
        pod(name, node, &[RESOURCE], &format!(r#"[{{"name": "lan", "ips": ["{address}/24"]}}]"#))
    };
    cluster.apply(&[on_lan("one", "node-1", "10.21.0.1"), on_lan("two", "node-2", "10.21.0.2")].concat());
    cluster.until_running(&["one", "two"]);
    for pod in ["one", "two"] {
        let links = cluster.exec(pod, &["rdma", "link"]);
        assert!(links.contains("link mlx5_0/1 state ACTIVE"), "{links}");
    }
    cluster.rping("one", "two", "10.21.0.1");
    for node in [1, 2] {
        assert_eq!(cluster.complaints(node), "");
    }
}
