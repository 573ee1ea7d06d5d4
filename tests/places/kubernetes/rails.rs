//! Pods with one VF of each of eight adapters, as for jobs on nodes with eight accelerators.

use super::{
    cluster::Cluster,
    programs::{network, pod},
};

const RAILS: [u8; 8] = [1, 2, 3, 4, 5, 6, 7, 8];

#[test]
#[ignore = "make test-kubernetes"]
fn pods_have_a_vf_on_each_of_eight_rails() {
    let form = &[("NODES", "2"), ("RAILS", "8"), ("VFS", "1")];
    let Some(cluster) = Cluster::new(form, &[]) else { return };
    cluster.tools();
    cluster.multus();
    for node in cluster.nodes() {
        let command = "for rail in $(seq 8); do echo 1 >/sys/class/net/eth$rail/device/sriov_numvfs; done";
        cluster.on(node, &["sh", "-c", command]);
    }
    let pools = RAILS.map(|rail| {
        format!(
            r#"{{"resourceName": "rail{rail}", "resourcePrefix": "example.com", "selectors": {{"pfNames": ["eth{rail}"], "isRdma": true}}}}"#
        )
    });
    cluster.sriov_plugin(&format!(r#"{{"resourceList": [{}]}}"#, pools.join(", ")));
    let resources = RAILS.map(|rail| format!("example.com/rail{rail}"));
    for node in ["node-1", "node-2"] {
        resources.iter().for_each(|resource| cluster.until_allocatable(node, resource, 1));
    }
    let plugins = r#"{"type": "sriov", "ipam": {"type": "static"}}, {"type": "rdma"}"#;
    let networks =
        RAILS.map(|rail| network(&format!("rail-{rail}"), &resources[usize::from(rail) - 1], plugins));
    cluster.apply(&networks.concat());
    let on_all = |name: &str, node: u8| {
        let networks =
            RAILS.map(|rail| format!(r#"{{"name": "rail-{rail}", "ips": ["10.3{rail}.0.{node}/24"]}}"#));
        let resources = resources.each_ref().map(String::as_str);
        pod(name, &format!("node-{node}"), &resources, &format!("[{}]", networks.join(", ")))
    };
    cluster.apply(&(on_all("one", 1) + &on_all("two", 2)));
    cluster.until_running(&["one", "two"]);
    for pod in ["one", "two"] {
        let links = cluster.exec(pod, &["rdma", "link"]);
        for rail in RAILS {
            let port = format!("state ACTIVE physical_state LINK_UP netdev net{rail}");
            assert!(links.contains(&port), "{port}: {links}");
        }
        assert_eq!(links.matches("link mlx5_").count(), RAILS.len(), "{links}");
    }
    for rail in RAILS {
        cluster.rping("one", "two", &format!("10.3{rail}.0.1"));
    }
    for node in [1, 2] {
        assert_eq!(cluster.complaints(node), "");
    }
}
