//! Debian's own ibverbs-utils and perftest on a simulated node: unmodified third-party programs that test the whole.
//!
//! Needs `ironverbs` and the provider built (`scripts/test.sh build`), and the packages perftest and ibverbs-utils.

use ironverbs_tests::stock::{Node, Pair, has_all};

/// Server and client devices: two VFs, or a VF and itself.
pub const PEERS: [(&str, &str); 2] = [("iron1", "iron2"), ("iron1", "iron1")];
const LATENCY: [&str; 4] = ["ib_send_lat", "ib_write_lat", "ib_read_lat", "ib_atomic_lat"];
const BANDWIDTH: [&str; 4] = ["ib_send_bw", "ib_write_bw", "ib_read_bw", "ib_atomic_bw"];

#[test]
fn ibv_devinfo_describes_every_function() {
    let node = Node::new("devinfo", 3);
    let out = node.run(&["ibv_devinfo", "-v"]);
    has_all(&out, ["iron0", "iron1", "iron2", "iron3"]);
    has_all(
        &out,
        ["PORT_ACTIVE", "link_layer:\t\tEthernet", "active_mtu:\t\t4096", "RoCE v2", "::ffff:127.0.0.2"],
    );
    assert!(!out.contains("iron4"), "{out}");
}

/// A program of ibverbs-utils or perftest, and its options.
pub type Row<'a> = (&'a str, &'a str);

/// Fails unless a pingpong found correct data, or perftest printed figures.
pub fn judge((tool, options): Row<'_>, pair: &Pair) {
    match tool.ends_with("_pingpong") {
        true => pair.is_whole(),
        false => pair.has_figures(&format!("{tool} {options}")),
    }
}

/// Runs each row between all `peers`; `start` gets a program, its server, its client and its options.
pub fn each(peers: &[(&str, &str)], rows: &[Row<'_>], start: impl Fn(&str, &str, &str, &[&str]) -> Pair) {
    for (server, client) in peers {
        for row in rows {
            let options: Vec<&str> = row.1.split_whitespace().collect();
            judge(*row, &start(row.0, server, client, &options));
        }
    }
}

/// Runs each row on `node` between all `peers`, with GID index 1.
pub fn all_run(node: &Node, peers: &[(&str, &str)], rows: &[Row<'_>]) {
    each(peers, rows, |tool, server, client, options| match tool.ends_with("_pingpong") {
        true => Pair::pingpong(node, tool, server, client, options),
        false => Pair::perftest(node, tool, server, client, options),
    });
}

#[test]
fn rc_pingpong_checks_its_data() {
    let options = ["-c", "-c -e", "-c -s 1048576 -n 100", "-c -m 1024"];
    all_run(&Node::new("pingpong", 2), &PEERS, &options.map(|options| ("ibv_rc_pingpong", options)));
}

/// Runs every one of `tools` that supports the options, between all peers.
fn perftest(name: &str, tools: &[&str], options: &str, peers: &[(&str, &str)]) {
    let rows: Vec<Row<'_>> = tools.iter().map(|tool| (*tool, options)).collect();
    all_run(&Node::new(name, 2), peers, &rows);
}

#[test]
fn latency_tools_run() {
    perftest("lat", &LATENCY, "-n 1000", &PEERS);
}

#[test]
fn bandwidth_tools_run() {
    perftest("bw", &BANDWIDTH, "-n 1000", &PEERS);
}

#[test]
fn all_message_sizes() {
    perftest("sizes-lat", &LATENCY[..3], "-a -n 10", &PEERS);
    perftest("sizes-bw", &BANDWIDTH[..3], "-a -n 10", &PEERS);
}

#[test]
fn many_queue_pairs() {
    perftest("qps", &BANDWIDTH, "-q 30 -n 200", &PEERS);
}

#[test]
fn completion_events() {
    // perftest has no -e for WRITE.
    perftest("events-lat", &["ib_send_lat", "ib_read_lat", "ib_atomic_lat"], "-e -n 1000", &PEERS);
    perftest("events-bw", &["ib_send_bw", "ib_read_bw", "ib_atomic_bw"], "-e -n 1000", &PEERS);
}

#[test]
fn both_directions() {
    perftest("both", &BANDWIDTH, "-b -n 1000", &PEERS);
}

#[test]
fn inline_payload() {
    let sized = "-I 64 -s 64 -n 1000";
    perftest("inline-lat", &["ib_send_lat", "ib_write_lat"], sized, &PEERS);
    perftest("inline-bw", &["ib_send_bw", "ib_write_bw"], sized, &PEERS);
}

#[test]
fn small_path_mtu() {
    perftest("mtu-lat", &LATENCY, "-m 1024 -n 1000", &PEERS);
    perftest("mtu-bw", &BANDWIDTH, "-m 1024 -n 1000", &PEERS);
}

#[test]
fn for_a_time_instead_of_a_number() {
    perftest("time-lat", &LATENCY, "-D 3 -f 1", &PEERS[..1]);
    perftest("time-bw", &BANDWIDTH, "-D 3 -f 1", &PEERS[..1]);
    perftest("time-self", &["ib_write_bw"], "-D 3 -f 1", &PEERS[1..]);
}

#[test]
fn tools_run_on_an_adapter_that_is_as_strict_as_a_card() {
    let node = Node::new("strict", 2).strict("all");
    let rows = [
        ("ibv_rc_pingpong", "-c -e"),
        ("ibv_xsrq_pingpong", "-n 50"),
        ("ib_send_bw", "-c UD"),
        ("ib_send_bw", "-c XRC"),
        ("ib_read_bw", "-c RC"),
        ("ib_write_bw", "-c RC"),
        ("ib_write_bw", "-c XRC"),
    ];
    all_run(&node, &[("iron1", "iron2"), ("iron0", "iron1"), ("iron2", "iron0")], &rows);
    let pair = Pair::managed(
        &node,
        &["rping", "-s", "-v", "-C", "10"],
        &["rping", "-c", "-a", "127.0.0.2", "-v", "-C", "10"],
    );
    assert!(pair.client.contains("ping data: rdma-ping-9:"), "{}", pair.client);
}
