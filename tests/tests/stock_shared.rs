//! Shared receive queues and XRC by Debian's ibverbs-utils and perftest, and by a C program on the stock libibverbs that
//! looks at answers, events and what processes share.
//!
//! Needs `ironverbs` and the provider built (`make build`), the packages perftest and ibverbs-utils, and a C compiler with
//! libibverbs-dev.

#[path = "tools/pair.rs"]
mod pair;

use pair::{Node, Pair};
use std::{
    path::PathBuf,
    process::Command,
    thread::sleep,
    time::{Duration, Instant},
};

/// Where the client finds the server: two VFs, or a VF and itself.
const PEERS: [(&str, &str); 2] = [("iron1", "iron2"), ("iron1", "iron1")];

fn whole(pair: &Pair) {
    let said = format!("{}{}", pair.client, pair.server);
    let good = pair.client.contains("iters in") || pair.client.contains("success");
    assert!(good && !said.contains("invalid data"), "{said}");
}

fn figures(pair: &Pair, what: &str) {
    let rows = pair.rows();
    assert!(!rows.is_empty(), "{what} printed no figures: {}", pair.client);
    assert!(rows.iter().all(|row| row[1..].iter().any(|v| *v > 0.0)), "{what}: {rows:?}");
}

#[test]
fn pingpongs_on_shared_queues_check_their_data() {
    let node = Node::new("shared", 2);
    for (server, client) in PEERS {
        for options in [
            &["-c"][..],
            &["-c", "-e"],
            &["-c", "-q", "4", "-n", "100"],
            &["-c", "-s", "262144", "-n", "100"],
        ] {
            whole(&Pair::pingpong(&node, "ibv_srq_pingpong", server, client, options));
        }
        for options in [&[][..], &["-e"], &["-n", "200", "-s", "65536"]] {
            whole(&Pair::pingpong(&node, "ibv_xsrq_pingpong", server, client, options));
        }
    }
}

#[test]
fn perftest_runs_on_shared_queues() {
    let node = Node::new("shared-perf", 2);
    let set: [(&str, &[&str]); 6] = [
        ("ib_send_lat", &["--use-srq", "-n", "500"]),
        ("ib_send_bw", &["--use-srq", "-a", "-n", "50"]),
        ("ib_send_bw", &["--use-srq", "-q", "8", "-n", "300"]),
        ("ib_send_bw", &["--use-srq", "-e", "-n", "300"]),
        ("ib_send_bw", &["--use-srq", "-c", "UD", "-n", "300"]),
        ("ib_send_bw", &["--use-srq", "-b", "-n", "300"]),
    ];
    for (server, client) in PEERS {
        for (tool, options) in set {
            figures(&Pair::perftest(&node, tool, server, client, options), &format!("{tool} {options:?}"));
        }
    }
}

#[test]
fn perftest_runs_on_extended_reliable_connections() {
    let node = Node::new("xrc-perf", 2);
    let set: [(&str, &[&str]); 11] = [
        ("ib_send_lat", &[]),
        ("ib_send_bw", &["-a"]),
        ("ib_send_bw", &["-b", "-q", "4"]),
        ("ib_send_bw", &["-e"]),
        ("ib_send_bw", &["--use_old_post_send"]),
        ("ib_write_lat", &[]),
        ("ib_write_bw", &[]),
        ("ib_read_lat", &[]),
        ("ib_read_bw", &[]),
        ("ib_atomic_lat", &[]),
        ("ib_atomic_bw", &[]),
    ];
    for (server, client) in PEERS {
        for (tool, options) in set {
            let options = [&["-c", "XRC", "-n", "200"], options].concat();
            figures(&Pair::perftest(&node, tool, server, client, &options), &format!("{tool} {options:?}"));
        }
    }
}

#[test]
fn on_infiniband_they_are_the_same() {
    let node = Node::new("shared-ib", 2).on_infiniband();
    for (server, client) in PEERS {
        whole(&Pair::plain(&node, "ibv_srq_pingpong", server, client, &["-c"]));
        whole(&Pair::plain(&node, "ibv_xsrq_pingpong", server, client, &[]));
        for options in [&["--use-srq"][..], &["-c", "XRC"]] {
            let options = [options, &["-F", "-n", "300"]].concat();
            figures(&Pair::plain(&node, "ib_send_bw", server, client, &options), &format!("{options:?}"));
        }
    }
}

/// What `ironverbs node status` says of the objects on `iron1`.
fn objects(node: &Node) -> String {
    let said = node.ironverbs(&["node", "status"], &[]).finish();
    let line = said.lines().find(|line| line.starts_with("iron1:")).unwrap_or("nobody has it");
    // What follows are counters.
    line.split("; tx_").next().unwrap_or(line).to_owned()
}

#[test]
fn killed_programs_leave_nothing_to_one_that_only_watches() {
    let node = Node::new("shared-kill", 2);
    node.run(&["true"]);
    let _watch = node.start(&["ibv_asyncwatch", "-d", "iron1"]);
    let within = |limit: u64, what: &str, reached: &dyn Fn(&str) -> bool| {
        let begin = Instant::now();
        loop {
            let now = objects(&node);
            if reached(&now) {
                return now;
            }
            assert!(begin.elapsed() < Duration::from_secs(limit), "{what}: {now}");
            sleep(Duration::from_millis(20));
        }
    };
    within(20, "nobody watches", &|now| now.contains("uctx 1"));
    // What XRC needs is made once.
    figures(&Pair::perftest(&node, "ib_send_bw", "iron1", "iron1", &["-c", "XRC", "-n", "100"]), "XRC");
    let before = objects(&node);
    for options in [&["--use-srq"][..], &["-c", "XRC"], &["-c", "XRC", "-b"]] {
        let options = [options, &["-D", "30"]].concat();
        let (mut server, mut client) =
            Pair::perftest_under_way(&node, "ib_send_bw", "iron1", "iron1", &options);
        within(20, "no flow", &|now| now.contains("uctx 3") && now.contains("srq"));
        sleep(Duration::from_millis(300));
        server.kill();
        client.kill();
        within(20, "something is left", &|now| now == before);
    }
}

/// The program `tools/shared.c`, built against the installed libibverbs.
fn shared() -> PathBuf {
    let program = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(format!("shared-{}", std::process::id()));
    let source = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/tools/shared.c");
    let mut cc = Command::new("cc");
    let built = cc.args(["-Wall", "-Werror", "-o"]).arg(&program).args([source, "-libverbs"]).output();
    let built = built.expect("a C compiler (apt-get install gcc)");
    let said = String::from_utf8_lossy(&built.stderr);
    assert!(built.status.success(), "needs libibverbs-dev: {said}");
    program
}

#[test]
fn answers_events_and_what_processes_share_are_as_the_manual_pages_say() {
    let program = shared();
    let path = program.to_str().expect("a path in UTF-8");
    let node = Node::new("shared-c", 2);
    // A program alone on its function, and one beside another.
    for device in ["iron1", "iron2", "iron1"] {
        let said = node.run(&[path, device, "1"]);
        assert!(said.contains("all as it should be"), "{said}");
    }
    let infiniband = node.beside(7).on_infiniband();
    let said = infiniband.run(&[path, "iron1", "0"]);
    assert!(said.contains("all as it should be"), "{said}");
    let _ = std::fs::remove_file(program);
}
