//! Shared receive queues and XRC with Debian's ibverbs-utils and perftest, and with a C program on the stock libibverbs that checks
//! results, events and sharing between processes.
//!
//! Needs `ironverbs` and the provider built (`scripts/test.sh build`), the packages perftest and ibverbs-utils, and a C compiler with
//! libibverbs-dev.

use super::tools::{PEERS, all_run, each};
use ironverbs_tests::stock::{Node, Pair, compiled};
use std::{
    thread::sleep,
    time::{Duration, Instant},
};

#[test]
fn pingpongs_on_shared_queues_check_their_data() {
    let rows = [
        ("ibv_srq_pingpong", "-c"),
        ("ibv_srq_pingpong", "-c -e"),
        ("ibv_srq_pingpong", "-c -q 4 -n 100"),
        ("ibv_srq_pingpong", "-c -s 262144 -n 100"),
        ("ibv_xsrq_pingpong", ""),
        ("ibv_xsrq_pingpong", "-e"),
        ("ibv_xsrq_pingpong", "-n 200 -s 65536"),
    ];
    all_run(&Node::new("shared", 2), &PEERS, &rows);
}

#[test]
fn perftest_runs_on_shared_queues() {
    let rows = [
        ("ib_send_lat", "--use-srq -n 500"),
        ("ib_send_bw", "--use-srq -a -n 50"),
        ("ib_send_bw", "--use-srq -q 8 -n 300"),
        ("ib_send_bw", "--use-srq -e -n 300"),
        ("ib_send_bw", "--use-srq -c UD -n 300"),
        ("ib_send_bw", "--use-srq -b -n 300"),
    ];
    all_run(&Node::new("shared-perf", 2), &PEERS, &rows);
}

#[test]
fn perftest_runs_on_extended_reliable_connections() {
    let rows = [
        ("ib_send_lat", "-c XRC -n 200"),
        ("ib_send_bw", "-c XRC -n 200 -a"),
        ("ib_send_bw", "-c XRC -n 200 -b -q 4"),
        ("ib_send_bw", "-c XRC -n 200 -e"),
        ("ib_send_bw", "-c XRC -n 200 --use_old_post_send"),
        ("ib_write_lat", "-c XRC -n 200"),
        ("ib_write_bw", "-c XRC -n 200"),
        ("ib_read_lat", "-c XRC -n 200"),
        ("ib_read_bw", "-c XRC -n 200"),
        ("ib_atomic_lat", "-c XRC -n 200"),
        ("ib_atomic_bw", "-c XRC -n 200"),
    ];
    all_run(&Node::new("xrc-perf", 2), &PEERS, &rows);
}

#[test]
fn on_infiniband_they_are_the_same() {
    let node = Node::new("shared-ib", 2).on_infiniband();
    let rows = [
        ("ibv_srq_pingpong", "-c"),
        ("ibv_xsrq_pingpong", ""),
        ("ib_send_bw", "--use-srq -F -n 300"),
        ("ib_send_bw", "-c XRC -F -n 300"),
    ];
    each(&PEERS, &rows, |tool, server, client, options| Pair::plain(&node, tool, server, client, options));
}

/// Returns the output of `ironverbs node status` about the objects on `iron1`.
fn objects(node: &Node) -> String {
    let said = node.ironverbs(&["node", "status"], &[]).finish();
    let line = said.lines().find(|line| line.starts_with("iron1:")).unwrap_or("nobody has it");
    // The rest of the line is counters.
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
    // Objects that XRC needs are created once.
    Pair::perftest(&node, "ib_send_bw", "iron1", "iron1", &["-c", "XRC", "-n", "100"]).has_figures("XRC");
    // The next program cleans up after programs that ended without closing their objects; the watching one sleeps.
    node.run(&["true"]);
    let before = objects(&node);
    for options in [&["--use-srq"][..], &["-c", "XRC"], &["-c", "XRC", "-b"]] {
        let options = [options, &["-D", "30"]].concat();
        let (mut server, mut client) =
            Pair::perftest_under_way(&node, "ib_send_bw", "iron1", "iron1", &options);
        within(20, "no flow", &|now| now.contains("uctx 3") && now.contains("srq"));
        sleep(Duration::from_millis(300));
        server.kill();
        client.kill();
        node.run(&["true"]);
        within(20, "something is left", &|now| now == before);
    }
}

#[test]
fn answers_events_and_what_processes_share_are_as_the_manual_pages_say() {
    let program = compiled("shared");
    let node = Node::new("shared-c", 2);
    // A program alone on its function, and one beside another.
    for device in ["iron1", "iron2", "iron1"] {
        let said = node.run(&[&program, device, "1"]);
        assert!(said.contains("all as it should be"), "{said}");
    }
    let infiniband = node.beside(7).on_infiniband();
    let said = infiniband.run(&[&program, "iron1", "0"]);
    assert!(said.contains("all as it should be"), "{said}");
}
