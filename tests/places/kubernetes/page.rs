//! Our pages about clusters, as a platform engineer pastes them.

use crate::pages::{Desk, block_of};
use ironverbs_tests::stock::GoPrograms;
use std::process::Command;

const PAGE: &str = "docs/kubernetes.md";
const INFINIBAND: &str = "docs/kubernetes-infiniband.md";

/// Ends a cluster when dropped.
struct Down(Command);

impl Drop for Down {
    fn drop(&mut self) {
        let done = self.0.status().expect("a shell");
        assert!(done.success() || std::thread::panicking(), "the cluster does not end");
    }
}

/// Pastes blocks of pages, `(page, beginning)`, one after the other. They must succeed and print lines with these words.
fn pasted(blocks: &[(&str, &str)], prints: &[&str]) {
    if GoPrograms::with(&["kubernetes", "cni"], &["kubelet", "multus", "sriovdp"]).is_none() {
        return;
    }
    let blocks: Vec<_> = blocks.iter().map(|(page, begins)| block_of(page, begins)).collect();
    let script = blocks.join("\n") + "\nwait\n";
    let Some(desk) = Desk::new(&script, &[]) else { return };
    let command = |limit: &str, text: &str| {
        let mut command = desk.command("timeout", &["-k", "5", limit, "sh", "-ec", text]);
        command.env("CLUSTER", desk.path("cluster"));
        command
    };
    let _down = Down(command("90", "[ ! -e \"$CLUSTER\" ] || scripts/kubernetes.sh down"));
    let done = command("500", &script).output().expect("a shell");
    let said = [done.stdout, done.stderr].map(|bytes| String::from_utf8_lossy(&bytes).into_owned()).concat();
    assert!(done.status.success(), "{said}");
    let has = |words: &str| {
        said.lines().any(|line| line.split_whitespace().collect::<Vec<_>>().join(" ").contains(words))
    };
    for words in prints {
        assert!(has(words), "expected {words:?} in\n{said}");
    }
}

#[test]
#[ignore = "make test-kubernetes"]
fn two_pods_have_a_vf_each_as_the_page_says() {
    pasted(
        &[(PAGE, "scripts/kubernetes.sh up"), (PAGE, "k="), (PAGE, "$k apply")],
        &[
            "node-2 Ready",
            "state ACTIVE physical_state LINK_UP netdev net1",
            "RDMA_Read Latency Test",
            "2 1000 ",
        ],
    );
}

#[test]
#[ignore = "make test-kubernetes"]
fn two_pods_have_a_vf_of_infiniband_each_as_the_page_says() {
    pasted(
        &[(INFINIBAND, "export"), (PAGE, "k="), (INFINIBAND, "$k apply"), (INFINIBAND, "lid=")],
        &[
            "lmc 0 state ACTIVE physical_state LINK_UP",
            "RDMA_Read Latency Test",
            "2 1000 ",
            "3 packets received, 0% packet loss",
        ],
    );
}
