//! Debian's programs in virtual time print the figures of `ironverbs sim`, the same in every run.

use ironverbs_tests::{
    program::{built, may_send_raw},
    stock::{Node, Pair, Running, compiled, compiled_cpp, customers, figures, ironverbs},
};
use std::{
    fs,
    process::Command,
    thread::sleep,
    time::{Duration, Instant},
};
use testkit::until;

/// The rows of `ironverbs sim`.
fn sim(words: &[&str]) -> Vec<Vec<f64>> {
    let out = Command::new(ironverbs()).arg("sim").args(words).output().expect("ironverbs");
    assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
    figures(&String::from_utf8_lossy(&out.stdout))
}

/// The rows that a perftest program prints in virtual time.
fn rows(node: &Node, tool: &str, options: &[&str]) -> Vec<Vec<f64>> {
    let pair = Pair::perftest(node, tool, "iron1", "iron2", options);
    assert!(!pair.rows().is_empty(), "{tool} {options:?}: {}", pair.client);
    pair.rows()
}

/// Checks that `found` is within a share of `expected`, or within the last digit that perftest prints.
#[track_caller]
fn near(found: f64, expected: f64, share: f64, what: impl std::fmt::Display) {
    assert!((found - expected).abs() <= share * expected + 0.01, "{what}: {found}, not {expected}");
}

/// Programs with figures to compare: the tool, its options, and the column.
const COMPARED: [(&str, &[&str], usize); 11] = [
    ("ib_send_lat", &["-s", "2", "-n", "1000"], 4),
    ("ib_send_lat", &["-s", "4096", "-n", "1000"], 4),
    ("ib_write_lat", &["-s", "64", "-n", "1000"], 4),
    ("ib_read_lat", &["-s", "65536", "-n", "1000"], 4),
    ("ib_atomic_lat", &["-n", "1000"], 4),
    ("ib_send_bw", &["-s", "65536", "-n", "1000"], 3),
    ("ib_write_bw", &["-s", "65536", "-n", "500", "-q", "4"], 3),
    ("ib_read_bw", &["-s", "4096", "-n", "3000"], 3),
    ("ib_read_bw", &["-s", "2", "-n", "3000"], 4),
    ("ib_write_bw", &["-s", "2", "-n", "3000"], 4),
    ("ib_atomic_bw", &["-n", "3000"], 4),
];

#[test]
fn perftest_prints_what_the_simulation_says() {
    let node = Node::new("timed", 2).timed();
    for (tool, options, column) in COMPARED {
        let found = rows(&node, tool, options)[0][column];
        let words = [&[&tool[3..]], options].concat();
        near(found, sim(&words)[0][column], 0.01, format_args!("{tool} {options:?}"));
    }
}

/// The retransmissions of the request take seconds. Time reaches earlier deadlines to within a sixty-fourth of the time polled so far, and
/// within 50 us.
#[test]
fn a_program_that_polls_until_a_deadline_comes_back_then() {
    let program = compiled("deadline");
    let out = Node::new("timed-deadline", 2).timed().run(&[&program, "iron1"]);
    let numbers =
        |line: &str| line.split_whitespace().filter_map(|word| word.parse().ok()).collect::<Vec<f64>>();
    let found: Vec<_> = out.lines().map(numbers).collect();
    let bounds = [(100.0, 1.1), (400.0, 1.1), (100.0, 10.0), (5000.0, 51.0), (100.0, 51.0)];
    assert_eq!(found.len(), bounds.len(), "{out}");
    for (found, (limit, more)) in found.iter().zip(bounds) {
        assert!(found[0] == limit && found[1] >= limit && found[1] <= limit + more, "{out}");
    }
}

/// The same on InfiniBand.
#[test]
fn on_infiniband_perftest_prints_what_the_simulation_says() {
    let node = Node::new("timed-ib", 2).on_infiniband().timed();
    for (tool, options, column) in [COMPARED[0], COMPARED[2], COMPARED[3], COMPARED[5], COMPARED[7]] {
        let said = Pair::plain(&node, tool, "iron1", "iron2", options).rows();
        let words = [&[&tool[3..]], options, &["--profile", "edr-x16"]].concat();
        near(said[0][column], sim(&words)[0][column], 0.01, format_args!("{tool} {options:?}"));
    }
}

/// The conductor shares the first program's stderr, and ends when no program is left.
#[test]
fn a_program_that_has_not_been_waited_for_holds_up_no_other() {
    let node = Node::new("timed-zombie", 1).timed();
    let [first, second] = [0; 2].map(|_| {
        let program = node.start(&["true"]);
        sleep(Duration::from_millis(200));
        program
    });
    let begin = Instant::now();
    first.finish();
    assert!(begin.elapsed().as_secs() < 20, "{:?}", begin.elapsed());
    second.finish();
}

/// Datagrams to a group, and raw frames: requests that a program posts right before it exits are sent.
#[test]
fn groups_and_raw_frames_live_in_virtual_time() {
    let node = Node::new("timed-group", 2).timed();
    let group = |words: &str| node.start(&words.split_whitespace().collect::<Vec<_>>());
    let receiver = group("mckey -m 224.1.1.1 -b 127.0.0.2 -C 30");
    // The sender waits three seconds for others to join, which pass at once in virtual time. So it starts after the receiver has its queue
    // pair and, a moment later, has joined.
    let has_queue_pair = || node.ironverbs(&["node", "status"], &[]).end().contains("iron1: up; qp 2");
    until("the receiver has a queue pair", Duration::from_secs(30), has_queue_pair);
    sleep(Duration::from_millis(500));
    let sender = group("mckey -m 224.1.1.1 -b 127.0.0.3 -s -C 30");
    for text in [sender.finish(), receiver.finish()] {
        assert!(text.contains("return status 0"), "{text}");
    }
    if !may_send_raw() {
        return println!("skipped: raw packets need CAP_NET_RAW");
    }
    let (one, two) = ("02:1b:56:00:00:01", "02:1b:56:00:00:02");
    let end = |role, dev, from, to| {
        let tool = ["raw_ethernet_lat", role, "-d", dev, "-B", from, "-E", to, "-n", "200", "-s", "1024"];
        node.start(&tool)
    };
    let server = end("--server", "iron1", one, two);
    sleep(Duration::from_secs(1));
    let said = end("--client", "iron2", two, one).finish();
    server.finish();
    // Both directions use the same units as a SEND of that size.
    let found = figures(&said).pop().expect("a row")[4];
    near(found, sim(&["send_lat", "-s", "1024"])[0][4], 0.05, "raw frames");
}

#[test]
fn all_sizes_are_as_in_the_simulation() {
    let node = Node::new("timed-sizes", 2).timed();
    let options = ["-a", "-n", "50"];
    let (found, expected) = (rows(&node, "ib_read_lat", &options), sim(&["read_lat", "-a", "-n", "50"]));
    assert_eq!(found.len(), 23);
    for (found, expected) in found.iter().zip(&expected) {
        assert_eq!(found[0], expected[0]);
        near(found[2], expected[2], 0.01, format_args!("{} bytes", found[0]));
    }
}

/// UCX's figures to compare: the test, its message size, the column of its last row, and the command and column of the simulation. A tagged
/// message starts with eight bytes of UCX's own.
const UCX: [(&str, &str, usize, &[&str], usize); 3] = [
    ("tag_lat", "8", 2, &["send_lat", "-s", "16"], 5),
    ("ucp_put_lat", "8", 2, &["write_lat", "-s", "8"], 5),
    ("ucp_put_bw", "65536", 4, &["write_bw", "-s", "65536", "-n", "1000"], 3),
];

/// UCX measures with the processor's counter, even before its first function begins, and has a thread for events.
#[test]
fn ucx_takes_what_the_simulation_says() {
    let node = Node::new("timed-ucx", 2).timed();
    for (test, size, column, words, of_sim) in UCX {
        let said = customers::ucx_pair(&node, "rc_v", test, size).client;
        let last = said.lines().find_map(|line| line.trim().strip_prefix("Final:"));
        let row: Vec<f64> =
            last.unwrap_or_default().split_whitespace().filter_map(|word| word.parse().ok()).collect();
        let (found, expected) = (row.get(column).copied().unwrap_or_default(), sim(words)[0][of_sim]);
        near(found, expected, 0.01, format_args!("{test} {size}:\n{said}"));
        // UCX computes the median from the counter and the average from a clock; the two agree.
        assert!((0.9..1.1).contains(&(row[1] / row[2])), "{test} {size}: {said}");
    }
}

#[test]
fn two_ranks_of_mpi_take_what_the_simulation_says() {
    let node = Node::new("timed-mpi", 2).timed();
    let said = customers::ranks(&node, "rc_v", &["iron1:1", "iron2:1"], "pingpong");
    let taken = |size: &str| -> f64 {
        let row = said.lines().find_map(|line| line.strip_prefix(size)?.strip_prefix(' '));
        row.and_then(|took| took.trim().parse().ok())
            .unwrap_or_else(|| panic!("{size} is missing in\n{said}"))
    };
    // MPI adds sixteen bytes to identify a message, and UCX eight.
    for (size, whole) in [("4", "28"), ("16", "40"), ("4096", "4120")] {
        near(taken(size), sim(&["send_lat", "-s", whole])[0][5], 0.02, format_args!("{size}:\n{said}"));
    }
}

#[test]
fn two_runs_print_the_same_on_one_processor_and_beside_others() {
    let node = Node::new("timed-again", 2).timed();
    let one = node.beside(1).timed().under(&["taskset", "-c", "0"]);
    for (tool, options) in
        [("ib_send_lat", ["-s", "2", "-n", "1000"]), ("ib_write_lat", ["-s", "512", "-n", "300"])]
    {
        let first = rows(&node, tool, &options);
        let same = |now: &[Vec<f64>], how: &str| {
            let (now, first) = (&now[0], &first[0]);
            if tool == "ib_send_lat" {
                return assert_eq!(now, first, "{tool}, {how}");
            }
            // When a program polls memory, a rare long delay may affect another message, so the last percentiles are not compared.
            assert_eq!(now[..3], first[..3], "{tool}, {how}: {now:?}, at first {first:?}");
            let near = |column: usize| (now[column] - first[column]).abs() < 0.015;
            assert!(near(4) && near(5), "{tool}, {how}: {now:?}, at first {first:?}");
        };
        same(&rows(&node, tool, &options), "again");
        let mut busy = Running::start(Command::new("sh").args(["-c", "while :; do :; done"]), "a loop");
        let beside = rows(&node, tool, &options);
        busy.kill();
        same(&beside, "beside a busy loop");
        same(&rows(&one, tool, &options), "on one processor");
    }
}

/// Checks that a perftest program measures the simulation's figures while `plan` is applied to its frames. Returns the timeline.
fn under_faults(node: Node, plan: &str, tool: &str, options: &[&str]) -> String {
    let file = |name: &str| node.dir().with_extension(name);
    let (file, timeline) = (file("toml"), file("json"));
    fs::write(&file, plan).unwrap();
    let node = node.with_faults(&file, &timeline);
    let found = rows(&node, tool, options)[0][3];
    let word = file.display().to_string();
    near(found, sim(&[&[&tool[3..], "--faults", &word], options].concat())[0][3], 0.01, tool);
    // The conductor writes it some time after its programs have ended.
    until("a timeline", Duration::from_secs(20), || timeline.exists());
    sleep(Duration::from_millis(100));
    let text = fs::read_to_string(&timeline).expect("a timeline");
    let _ = (fs::remove_file(&file), fs::remove_file(&timeline));
    text
}

#[test]
fn faults_cost_programs_what_they_cost_in_the_simulation() {
    let plan = "[[fault]]\ndo = \"drop\"\nopcode = \"RcWriteMiddle\"\nnth = 100\n
        [[fault]]\ndo = \"delay\"\nnth = 500\nfor_us = 20\n";
    let node = Node::new("timed-faults", 2);
    let text = under_faults(node, plan, "ib_write_bw", &["-s", "65536", "-n", "500"]);
    assert!(text.contains("\"nak\":\"NAK (sequence)\""), "{}", &text[..text.len().min(400)]);
}

/// The program runs out of receives, and its peer waits for the time in the RNR NAK.
#[test]
fn a_program_on_no_processor_costs_what_it_does_in_the_simulation() {
    let plan = "[[fault]]\ndo = \"sleep\"\nfrom = 1\nnth = 20\nfor_us = 200\n";
    under_faults(Node::new("timed-asleep", 2), plan, "ib_send_bw", &["-s", "64", "-n", "5000"]);
}

#[test]
fn programs_that_wait_for_events_and_connections_live_in_virtual_time() {
    let node = Node::new("timed-others", 2).timed();
    for options in [&["-n", "500", "-s", "4096"][..], &["-n", "500", "-e"]] {
        Pair::pingpong(&node, "ibv_rc_pingpong", "iron1", "iron2", options).is_whole();
    }
    let pings = ["-a", "127.0.0.2", "-C", "50", "-v"];
    let pair = Pair::managed(
        &node,
        &[&["rping", "-s"], &pings[..]].concat(),
        &[&["rping", "-c"], &pings[..]].concat(),
    );
    assert_eq!(pair.client.matches("ping data: rdma-ping-").count(), 50, "{}", pair.client);
}

/// Started by a shell: its child starts with the real counter of the processor.
#[test]
fn sleeps_take_their_time_and_none_of_this_machines() {
    let node = Node::new("timed-sleeps", 1).timed();
    let begin = Instant::now();
    let sleep = "import time; a = time.monotonic(); time.sleep(3600); print(time.monotonic() - a)";
    let said = node.run(&["sh", "-c", "date; exec python3 -c \"$0\"", sleep]);
    let slept: f64 = said.lines().last().and_then(|line| line.trim().parse().ok()).expect("seconds");
    assert!((3600.0..3600.01).contains(&slept), "{said}");
    assert!(begin.elapsed().as_secs() < 60);
}

/// Waits in vain by each call with a time limit, and sets alarms.
const WAITS: &str = r#"
import asyncio, os, queue, select, signal, socket, sys, threading, time
reader, _ = os.pipe()
def fails(error, call):
    try:
        call()
    except error:
        return
    sys.exit("it came")
def took(call):
    begin = time.monotonic()
    call()
    print(round(time.monotonic() - begin, 3))
poll, epoll = select.poll(), select.epoll()
poll.register(reader)
epoll.register(reader)
signal.signal(signal.SIGALRM, lambda *_: None)
if len(sys.argv) > 1:
    threading.Thread(target=time.sleep, args=(7200,)).start()
unit = 600 if len(sys.argv) > 1 else 0.2
took(lambda: select.select([reader], [], [], unit))
took(lambda: poll.poll(1000 * unit))
took(lambda: epoll.poll(unit))
lock, (one, two) = threading.Lock(), socket.socketpair()
lock.acquire()
one.settimeout(unit)
took(lambda: lock.acquire(timeout=unit))
took(lambda: threading.Event().wait(unit))
took(lambda: fails(queue.Empty, lambda: queue.Queue().get(timeout=unit)))
took(lambda: fails(TimeoutError, lambda: one.recv(1)))
took(lambda: asyncio.run(asyncio.sleep(unit)))
signal.setitimer(signal.ITIMER_REAL, unit, 2 * unit)
took(lambda: (signal.pause(), signal.pause()))
print(round(signal.setitimer(signal.ITIMER_REAL, 0)[0] / unit, 3))
signal.alarm(10)
print(signal.alarm(0), signal.alarm(0), len(select.select([], [reader], [], 0)[1]))
"#;

#[test]
fn waits_with_limits_and_alarms_end_at_a_time_of_the_node() {
    let node = Node::new("timed-waits", 1).timed();
    let begin = Instant::now();
    // Beside a thread that sleeps, time advances by itself.
    let said = node.run(&["python3", "-c", WAITS, "beside"]);
    assert_eq!(said, "600.0\n".repeat(8) + "1800.0\n2.0\n10 0 0\n");
    assert!(begin.elapsed().as_secs() < 60);
    // Without one, time advances with this machine's, because a program might join the node.
    let alone = Instant::now();
    let said = node.run(&["python3", "-c", WAITS]);
    assert_eq!(said, "0.2\n".repeat(8) + "0.6\n2.0\n10 0 0\n");
    assert!(alone.elapsed().as_secs_f64() > 2.2);
}

/// Runs a program that prints for each of `kinds` waits its name, its expected and its measured time in milliseconds. The tolerance covers
/// the calls that read the clock.
fn lasts_as_long_as_it_should(program: &str, kinds: usize) {
    let node = Node::new("timed-limits", 1).timed();
    let begin = Instant::now();
    let said = node.run(&[program, "600000"]);
    let waits: Vec<Vec<f64>> = said
        .lines()
        .map(|line| line.split_whitespace().skip(1).map(|word| word.parse().expect("a number")).collect())
        .collect();
    assert_eq!(waits.len(), kinds, "{said}");
    assert!(waits.iter().all(|wait| (0.0..0.004).contains(&(wait[1] - wait[0]))), "{said}");
    assert!(begin.elapsed().as_secs() < 60, "{:?}", begin.elapsed());
}

#[test]
fn limits_of_waits_in_c_cpp_and_rust_are_the_nodes() {
    let rust = built().join("limits").display().to_string();
    for (program, kinds) in [(compiled("limits"), 27), (compiled_cpp("waits"), 6), (rust, 4)] {
        lasts_as_long_as_it_should(&program, kinds);
    }
}

#[test]
fn a_run_for_a_second_takes_a_second_of_the_node_and_prints_the_same_again() {
    let node = Node::new("timed-second", 2).timed();
    let options = ["-s", "65536", "-D", "1", "-f", "0"];
    let first = rows(&node, "ib_write_bw", &options);
    let expected = sim(&["write_bw", "-s", "65536"])[0][3];
    let (messages, found) = (first[0][1], first[0][3]);
    assert!((found - expected).abs() <= 0.01 * expected, "{found}, not {expected}");
    // The run lasts a second, and a MiB is sixteen messages.
    assert!((messages / 16.0 - found).abs() <= 0.01 * found, "{messages} messages");
    assert_eq!(rows(&node, "ib_write_bw", &options), first);
}

/// Some programs measure the processor's counter, others trust the kernel.
#[test]
#[cfg(target_arch = "x86_64")]
fn the_processor_is_said_to_be_as_fast_as_its_counter() {
    let said = Node::new("timed-rate", 1).timed().run(&["grep", "MHz", "/proc/cpuinfo"]);
    assert!(!said.is_empty() && said.lines().all(|line| line.ends_with(": 10000.000")), "{said}");
}

#[test]
fn what_cannot_live_in_virtual_time_is_refused_in_a_line() {
    let refused = |node: &Node, program: &[&str], why: &str| {
        let said = node.start(program).fails();
        assert!(said.lines().count() == 1 && said.contains(why), "{program:?}: {said}");
    };
    let other = Node::new("timed-other", 1).on_infiniband();
    other.start(&["true"]).finish();
    let profile = ["--clock", "timed", "--profile", "direct-x16", "--", "true"];
    let said = other.ironverbs(&["run"], &profile).fails();
    assert!(said.lines().count() == 1 && said.contains("expected one of infiniband"), "{said}");
    drop(other);
    let node = Node::new("timed-node", 8);
    let timed = ["--clock", "timed", "--", "sh", "-c", "echo there; while :; do :; done"];
    let mut endless = node.ironverbs(&["run"], &timed);
    until("a clock", Duration::from_secs(20), || node.dir().join("clock").exists());
    sleep(Duration::from_millis(300));
    refused(&node, &["true"], "is in virtual time");
    let other = node.ironverbs(&["run"], &["--clock", "timed", "--seed", "2", "--", "true"]).fails();
    assert!(other.lines().count() == 1 && other.contains("with other rules"), "{other}");
    let frames = node.dir().join("frames.pcap");
    let file = frames.to_str().expect("a path in UTF-8");
    let capture = node.ironverbs(&["node", "capture"], &["--seconds", "1", file]).fails();
    assert!(capture.contains("--clock timed --timeline") && !frames.exists(), "{capture}");
    endless.kill();
}
