//! The SR-IOV network operator, installed by its chart: a policy creates VFs, and the operator's daemons offer them.

use super::cluster::Cluster;
use std::collections::BTreeSet;

const NAMESPACE: &str = "sriov-network-operator";

/// A policy for a PF of every node, as in large clusters.
fn policy(pf: &str, link_type: &str) -> String {
    format!(
        r#"
apiVersion: sriovnetwork.openshift.io/v1
kind: SriovNetworkNodePolicy
metadata: {{name: rdma, namespace: {NAMESPACE}}}
spec:
  resourceName: vfs
  nodeSelector: {{node-role.kubernetes.io/worker: ""}}
  numVfs: 12
  nicSelector: {{vendor: "15b3", pfNames: [{pf}]}}
  linkType: {link_type}
  deviceType: netdevice
  isRdma: true
"#
    )
}

/// Starts a cluster of one node and installs the operator, with a policy that creates and offers VFs of `pf`.
fn with_policy(form: &'static [(&'static str, &'static str)], pf: &str, link_type: &str) -> Option<Cluster> {
    let cluster = Cluster::new(form, &["helm", "sriov-network-operator"])?;
    cluster.apply(&format!("apiVersion: v1\nkind: Namespace\nmetadata: {{name: {NAMESPACE}}}\n"));
    cluster.kubectl(&["label", "node", "node-1", "node-role.kubernetes.io/worker="], "").unwrap();
    let bindata = ("bindata", "/bindata");
    cluster.image(
        "localhost/operator:1",
        &[("sriov-network-operator", "/bin/sriov-network-operator"), bindata],
        &["sriov-network-operator"],
    );
    cluster.image(
        "localhost/config-daemon:1",
        &[
            ("sriov-network-config-daemon", "/bin/sriov-network-config-daemon"),
            bindata,
            super::programs::PCI_IDS,
            // Its scripts need bash, which is `sh` in the operator's image.
            ("bash", ""),
            ("/bin/bash", "/bin/sh"),
        ],
        &["sriov-network-config-daemon"],
    );
    cluster.image("localhost/sriovdp:1", &super::programs::SRIOV_PLUGIN, &["/entrypoint.sh"]);
    // The image that would install CNI plugins, which the nodes already have.
    cluster.image("localhost/installed:1", &[], &["true"]);
    cluster.helm(
        NAMESPACE,
        NAMESPACE,
        "sriov-network-operator-chart",
        &[
            "sriovOperatorConfig.deploy=true",
            "sriovOperatorConfig.disableDrain=true",
            "operator.resourcePrefix=example.com",
            "images.operator=localhost/operator:1",
            "images.sriovConfigDaemon=localhost/config-daemon:1",
            "images.sriovDevicePlugin=localhost/sriovdp:1",
            "images.sriovCni=localhost/installed:1",
            "images.ibSriovCni=localhost/installed:1",
            "images.rdmaCni=",
            "images.ovsCni=",
        ],
    );
    // The operator's plugin for Mellanox queries the firmware with mstconfig, which the model does not answer.
    let firmware = r#"{"spec": {"disablePlugins": ["mellanox"]}}"#;
    let config =
        ["patch", "sriovoperatorconfig", "default", "-n", NAMESPACE, "--type", "merge", "-p", firmware];
    cluster.until("the operator's configuration", 30, || cluster.kubectl(&config, ""));
    cluster.apply(&policy(pf, link_type));
    cluster.until("the state of a node", 120, || {
        let state = ["sriovnetworknodestates", "-n", NAMESPACE, "node-1"];
        let status = cluster.get(&state, "{.status.syncStatus} {.status.lastSyncError}");
        let vfs = cluster.get(&state, &format!("{{.status.interfaces[?(@.name==\"{pf}\")].numVfs}}"));
        if status.trim() == "Succeeded" && vfs == "12" { Ok(()) } else { Err(format!("{status}, {vfs} VFs")) }
    });
    cluster.until_allocatable("node-1", "example.com/vfs", 12);
    let vfs = cluster.on(1, &["cat", &format!("/sys/class/net/{pf}/device/sriov_numvfs")]);
    assert_eq!(vfs, "12\n");
    assert_eq!(cluster.complaints(1), "");
    Some(cluster)
}

#[test]
#[ignore = "make test-kubernetes"]
fn a_policy_of_the_operator_makes_vfs_and_offers_them() {
    with_policy(&[("NODES", "1"), ("VFS", "12"), ("MEMORY", "3G")], "eth0", "eth");
}

#[test]
#[ignore = "make test-kubernetes"]
fn a_policy_of_link_type_ib_gives_vfs_guids_and_offers_them() {
    let form = &[("NODES", "1"), ("VFS", "12"), ("MEMORY", "3G"), ("LINK_LAYER", "infiniband")];
    let Some(cluster) = with_policy(form, "ib0", "ib") else { return };
    let link = cluster.on(1, &["ip", "link", "show", "ib0"]);
    let guids: BTreeSet<_> =
        link.lines().filter_map(|line| line.split_once("PORT_GUID ")?.1.get(..23)).collect();
    assert!(guids.len() == 12 && !guids.contains("00:00:00:00:00:00:00:00"), "{link}");
}
