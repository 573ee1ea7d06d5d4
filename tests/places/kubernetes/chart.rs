//! The Helm chart of `packaging/chart` on a node that has nothing of ours, with the image of `scripts/image.sh`.

use super::{cluster::Cluster, host::pods_read_each_other};
use ironverbs_tests::program::built;
use std::process::Command;

const CHART: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../packaging/chart");
const NAMESPACE: &str = "ironverbs";

/// Loads the image into the node. Returns false, and prints the reason, if this host cannot build it.
fn image(cluster: &Cluster) -> bool {
    let file = cluster.folder().join("ironverbs.tar");
    let mut command = Command::new("timeout");
    command.args(["600", concat!(env!("CARGO_MANIFEST_DIR"), "/../scripts/image.sh")]).arg(&file);
    let out =
        command.env("CARGO_TARGET_DIR", built().parent().expect("target/release")).output().expect("sh");
    if !out.status.success() {
        println!("skipped: {}", String::from_utf8_lossy(&out.stderr).lines().last().unwrap_or_default());
        return false;
    }
    cluster.load_file(&file);
    true
}

/// The verbs devices that a pod sees.
fn devices(cluster: &Cluster, pod: &str) -> Vec<String> {
    let names = cluster.exec(pod, &["ls", "/sys/class/infiniband"]);
    names.lines().map(String::from).collect()
}

/// Ends the chart's containers as the kernel does when memory runs out, and waits for others.
fn kill_plugin(cluster: &Cluster) {
    let pods = ["pod", "-n", NAMESPACE, "-l", "app.kubernetes.io/name=ironverbs"];
    let restarts = "{.items[0].status.containerStatuses[0].restartCount}";
    let ready = "{.items[0].status.containerStatuses[0].ready}";
    let pod = cluster.get(&pods, "{.items[0].metadata.name}");
    let kill = ["exec", "-n", NAMESPACE, &pod, "--", "sh", "-c", "kill -9 $(pidof sriovdp)"];
    // Its shell may end before it answers.
    let _ = cluster.kubectl(&kill, "");
    cluster.until("another plugin", 60, || {
        let found = (cluster.get(&pods, restarts), cluster.get(&pods, ready));
        if found == ("1".into(), "true".into()) { Ok(()) } else { Err(format!("{found:?}")) }
    });
}

#[test]
#[ignore = "make test-kubernetes"]
fn a_node_with_our_chart_offers_functions_to_pods_with_a_limit_and_nothing_else() {
    let Some(cluster) = Cluster::new(&[("NODES", "0"), ("HOST", "plain")], &["helm"]) else { return };
    if !image(&cluster) {
        return;
    }
    cluster.tools();
    let directory = format!("nodeDirectory={}/pods", cluster.folder().display());
    let values = [&directory[..], "vfs=4", "resource=example.com/vf"];
    let shared = [&directory[..], "vfs=4", "resource=rdma/hca", "plugin=shared"];
    for values in [&values[..], &shared] {
        let objects =
            cluster.rendered(NAMESPACE, CHART, values).replace("namespace: ironverbs", "namespace: default");
        let said =
            cluster.kubectl(&["apply", "--dry-run=server", "-f", "-"], &objects).expect("valid objects");
        assert_eq!(said.lines().count(), 4, "{said}");
    }

    cluster.apply(&format!("apiVersion: v1\nkind: Namespace\nmetadata: {{name: {NAMESPACE}}}\n"));
    cluster.helm(NAMESPACE, NAMESPACE, CHART, &values);
    cluster.until_allocatable("host", "example.com/vf", 4);
    pods_read_each_other(&cluster, "example.com/vf");
    let [one, two] = ["one", "two"].map(|pod| devices(&cluster, pod));
    assert!(one.len() == 1 && two.len() == 1 && one != two, "{one:?} {two:?}");

    kill_plugin(&cluster);
    cluster.until_allocatable("host", "example.com/vf", 4);
    pods_read_each_other(&cluster, "example.com/vf");

    cluster.helm(NAMESPACE, NAMESPACE, CHART, &shared);
    cluster.until_allocatable("host", "rdma/hca", 500);
    pods_read_each_other(&cluster, "rdma/hca");
    assert_eq!(devices(&cluster, "one"), ["iron1", "iron2", "iron3", "iron4"]);
}
