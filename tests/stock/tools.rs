//! Debian's own ibverbs-utils and perftest on a simulated node: nothing of them is ours, so they judge the whole.
//!
//! Needs `ironverbs` and the provider built (`scripts/test.sh build`), and the packages perftest and ibverbs-utils.

use ironverbs_tests::stock::{Node, Pair};

/// Where the client finds the server: two VFs, or a VF and itself.
const PEERS: [(&str, &str); 2] = [("iron1", "iron2"), ("iron1", "iron1")];
const LATENCY: [&str; 4] = ["ib_send_lat", "ib_write_lat", "ib_read_lat", "ib_atomic_lat"];
const BANDWIDTH: [&str; 4] = ["ib_send_bw", "ib_write_bw", "ib_read_bw", "ib_atomic_bw"];

#[test]
fn ibv_devinfo_describes_every_function() {
    let node = Node::new("devinfo", 3);
    let out = node.run(&["ibv_devinfo", "-v"]);
    for dev in ["iron0", "iron1", "iron2", "iron3"] {
        assert!(out.contains(dev), "{dev} is missing in\n{out}");
    }
    for line in
        ["PORT_ACTIVE", "link_layer:\t\tEthernet", "active_mtu:\t\t4096", "RoCE v2", "::ffff:127.0.0.2"]
    {
        assert!(out.contains(line), "{line:?} is missing in\n{out}");
    }
    assert!(!out.contains("iron4"), "{out}");
}

#[test]
fn rc_pingpong_checks_its_data() {
    let node = Node::new("pingpong", 2);
    for (server, client) in PEERS {
        for options in
            [&["-c"][..], &["-c", "-e"], &["-c", "-s", "1048576", "-n", "100"], &["-c", "-m", "1024"]]
        {
            let pair = Pair::pingpong(&node, "ibv_rc_pingpong", server, client, options);
            assert!(pair.client.contains("iters in"), "{}", pair.client);
            assert!(
                !pair.client.contains("invalid data") && !pair.server.contains("invalid data"),
                "{}",
                pair.client
            );
        }
    }
}

/// Runs every tool of `tools` that knows the options, over all peers.
fn perftest(name: &str, tools: &[&str], options: &[&str], peers: &[(&str, &str)]) {
    let node = Node::new(name, 2);
    for tool in tools {
        for (server, client) in peers {
            let rows = Pair::perftest(&node, tool, server, client, options).rows();
            assert!(!rows.is_empty(), "{tool} {options:?} printed no figures");
            for row in rows {
                assert!(row[1..].iter().any(|v| *v > 0.0), "{tool} {options:?}: {row:?}");
            }
        }
    }
}

#[test]
fn latency_tools_run() {
    perftest("lat", &LATENCY, &["-n", "1000"], &PEERS);
}

#[test]
fn bandwidth_tools_run() {
    perftest("bw", &BANDWIDTH, &["-n", "1000"], &PEERS);
}

#[test]
fn all_message_sizes() {
    perftest("sizes-lat", &LATENCY[..3], &["-a", "-n", "10"], &PEERS);
    perftest("sizes-bw", &BANDWIDTH[..3], &["-a", "-n", "10"], &PEERS);
}

#[test]
fn many_queue_pairs() {
    perftest("qps", &BANDWIDTH, &["-q", "30", "-n", "200"], &PEERS);
}

#[test]
fn completion_events() {
    // perftest has no -e for WRITE.
    perftest("events-lat", &["ib_send_lat", "ib_read_lat", "ib_atomic_lat"], &["-e", "-n", "1000"], &PEERS);
    perftest("events-bw", &["ib_send_bw", "ib_read_bw", "ib_atomic_bw"], &["-e", "-n", "1000"], &PEERS);
}

#[test]
fn both_directions() {
    perftest("both", &BANDWIDTH, &["-b", "-n", "1000"], &PEERS);
}

#[test]
fn inline_payload() {
    let sized = ["-I", "64", "-s", "64", "-n", "1000"];
    perftest("inline-lat", &["ib_send_lat", "ib_write_lat"], &sized, &PEERS);
    perftest("inline-bw", &["ib_send_bw", "ib_write_bw"], &sized, &PEERS);
}

#[test]
fn small_path_mtu() {
    perftest("mtu-lat", &LATENCY, &["-m", "1024", "-n", "1000"], &PEERS);
    perftest("mtu-bw", &BANDWIDTH, &["-m", "1024", "-n", "1000"], &PEERS);
}

#[test]
fn for_a_time_instead_of_a_number() {
    perftest("time-lat", &LATENCY, &["-D", "3", "-f", "1"], &PEERS[..1]);
    perftest("time-bw", &BANDWIDTH, &["-D", "3", "-f", "1"], &PEERS[..1]);
    perftest("time-self", &["ib_write_bw"], &["-D", "3", "-f", "1"], &PEERS[1..]);
}

#[test]
fn tools_run_on_an_adapter_that_is_as_strict_as_a_card() {
    let node = Node::new("strict", 2).strict("all");
    for (server, client) in [("iron1", "iron2"), ("iron0", "iron1"), ("iron2", "iron0")] {
        let pair = Pair::pingpong(&node, "ibv_rc_pingpong", server, client, &["-c", "-e"]);
        assert!(pair.client.contains("iters in"), "{}", pair.client);
        Pair::pingpong(&node, "ibv_xsrq_pingpong", server, client, &["-n", "50"]).is_whole();
        for (tool, options) in [
            ("ib_send_bw", ["-c", "UD"]),
            ("ib_send_bw", ["-c", "XRC"]),
            ("ib_read_bw", ["-c", "RC"]),
            ("ib_write_bw", ["-c", "RC"]),
            ("ib_write_bw", ["-c", "XRC"]),
        ] {
            let pair = Pair::perftest(&node, tool, server, client, &options);
            pair.has_figures(&format!("{tool} {options:?}"));
        }
    }
    let pair = Pair::managed(
        &node,
        &["rping", "-s", "-v", "-C", "10"],
        &["rping", "-c", "-a", "127.0.0.2", "-v", "-C", "10"],
    );
    assert!(pair.client.contains("ping data: rdma-ping-9:"), "{}", pair.client);
}
