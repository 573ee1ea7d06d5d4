//! Command lines of UCX, libfabric and an Open MPI program, whatever they run on.

use super::{Node, Pair, compiled_mpi};
use std::process::Command;

/// UCX's names for its transports that use only verbs; RC connects with the help of UD.
pub const TRANSPORTS: [&str; 2] = ["rc_v", "ud_v"];

/// Options that make ucx_perftest connect to its peer by itself: a build with MPI, as in Debian 13, expects to be started by MPI.
fn without_mpi() -> &'static [&'static str] {
    let help = Command::new("ucx_perftest").arg("-h").output().map(|out| out.stdout).unwrap_or_default();
    let knows = String::from_utf8_lossy(&help).lines().any(|line| line.trim_start().starts_with("-P <0|1>"));
    if knows { &["-P", "0"] } else { &[] }
}

/// ucx_perftest on `device` with a single transport.
pub fn ucx(device: &str, transport: &str, test: &str, size: &str, port: &str) -> Vec<String> {
    let (tls, device) = (format!("UCX_TLS={transport},self"), format!("UCX_NET_DEVICES={device}:1"));
    let words =
        ["env", &tls, &device, "ucx_perftest", "-p", port, "-t", test, "-s", size, "-n", "500", "-w", "50"];
    words.iter().chain(without_mpi()).map(|word| (*word).into()).collect()
}

/// The same between the first two VFs of a node.
pub fn ucx_pair(node: &Node, transport: &str, test: &str, size: &str) -> Pair {
    Pair::listening(
        node,
        |port| ucx("iron1", transport, test, size, port),
        |port| [ucx("iron2", transport, test, size, port), vec!["127.0.0.1".into()]].concat(),
    )
}

/// Two ranks of our own MPI program on a node, on these ports of devices: one for both, or one for each.
pub fn ranks(node: &Node, transport: &str, ports: &[&str], what: &str) -> String {
    let program = compiled_mpi("ranks");
    let tls = format!("UCX_TLS={transport},self");
    let mut words: Vec<String> = ["mpirun", "--allow-run-as-root", "--oversubscribe"].map(Into::into).into();
    for (n, port) in ports.iter().enumerate() {
        words.extend((n > 0).then(|| ":".into()));
        let count = (2 / ports.len()).to_string();
        let device = format!("UCX_NET_DEVICES={port}");
        let rank = [
            "-np", &count, "--mca", "pml", "ucx", "--mca", "btl", "^openib", "-x", &tls, "-x", &device,
            &program, what,
        ];
        words.extend(rank.map(String::from));
    }
    node.run(&words.iter().map(String::as_str).collect::<Vec<_>>())
}

/// The message sizes that fi_pingpong sends.
pub const SIZES: [&str; 6] = ["64", "256", "1k", "4k", "64k", "1m"];

/// fi_pingpong with data checks; `more` selects the side.
pub fn fabric(provider: &str, endpoint: &str, more: &[&str]) -> Vec<String> {
    let words = ["fi_pingpong", "-p", provider, "-e", endpoint, "-c", "-I", "200"];
    words.iter().chain(more).map(|word| (*word).into()).collect()
}

/// Checks that `said` has a row with all messages for each of `sizes`.
pub fn fabric_said(said: &str, sizes: &[&str]) {
    for size in sizes {
        let row =
            said.lines().any(|line| line.split_whitespace().next() == Some(size) && line.contains("=200"));
        assert!(row, "{size} is missing in\n{said}");
    }
}
