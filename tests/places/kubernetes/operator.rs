//! The SR-IOV network operator, installed by its chart: a policy makes VFs, and its daemons offer them.

use super::cluster::Cluster;

const NAMESPACE: &str = "sriov-network-operator";

/// A policy for the PF of every node, as large clusters have it.
const POLICY: &str = r#"
apiVersion: sriovnetwork.openshift.io/v1
kind: SriovNetworkNodePolicy
metadata: {name: rdma, namespace: sriov-network-operator}
spec:
  resourceName: vfs
  nodeSelector: {node-role.kubernetes.io/worker: ""}
  numVfs: 12
  nicSelector: {vendor: "15b3", pfNames: [eth0]}
  deviceType: netdevice
  isRdma: true
"#;

#[test]
#[ignore = "make test-kubernetes"]
fn a_policy_of_the_operator_makes_vfs_and_offers_them() {
    let Some(cluster) =
        Cluster::new(&[("NODES", "1"), ("VFS", "12"), ("MEMORY", "3G")], &["helm", "sriov-network-operator"])
    else {
        return;
    };
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
            // Its scripts are bash's, which is sh in their image.
            ("bash", ""),
            ("/bin/bash", "/bin/sh"),
        ],
        &["sriov-network-config-daemon"],
    );
    cluster.image("localhost/sriovdp:1", &super::programs::SRIOV_PLUGIN, &["/entrypoint.sh"]);
    // Nodes have the CNI plugins, which these would bring.
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
    // The operator's plugin for Mellanox asks the firmware by mstconfig, which the model does not answer.
    let firmware = r#"{"spec": {"disablePlugins": ["mellanox"]}}"#;
    let config =
        ["patch", "sriovoperatorconfig", "default", "-n", NAMESPACE, "--type", "merge", "-p", firmware];
    cluster.until("the operator's configuration", 30, || cluster.kubectl(&config, ""));
    cluster.apply(POLICY);
    cluster.until("the state of a node", 120, || {
        let state = ["sriovnetworknodestates", "-n", NAMESPACE, "node-1"];
        let status = cluster.get(&state, "{.status.syncStatus} {.status.lastSyncError}");
        let vfs = cluster.get(&state, "{.status.interfaces[?(@.name==\"eth0\")].numVfs}");
        if status.trim() == "Succeeded" && vfs == "12" { Ok(()) } else { Err(format!("{status}, {vfs} VFs")) }
    });
    cluster.until_allocatable("node-1", "example.com/vfs", 12);
    let vfs = cluster.on(1, &["cat", "/sys/class/net/eth0/device/sriov_numvfs"]);
    assert_eq!(vfs, "12\n");
    assert_eq!(cluster.complaints(1), "");
}
