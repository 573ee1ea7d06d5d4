//! Debian's programs under debugging tools, and within limits that login nodes and batch systems set.

use ironverbs_tests::stock::{Node, Pair, compiled_library, customers::ucx, sanitized};

/// A command prefix.
type Prefix = Vec<String>;

fn words(of: &str) -> Prefix {
    of.split(' ').map(String::from).collect()
}

/// Runs the program with a limit set by a shell.
fn limited(limit: &str) -> Prefix {
    ["sh", "-c", &format!("ulimit {limit}; exec \"$@\""), "sh"].map(String::from).into()
}

/// Runs device query, perftest, rping and UCX with `prefix` before each. The node already exists, because a user with a file size limit
/// could not make one.
fn all_run(name: &str, prefix: &Prefix) {
    let node = Node::new(&format!("matrix-{name}"), 2);
    node.run(&["true"]);
    let with = |program: &[String]| prefix.iter().chain(program).cloned().collect::<Vec<_>>();
    let device = with(&words("ibv_devinfo -d iron1"));
    let said = node.run(&device.iter().map(String::as_str).collect::<Vec<_>>());
    assert!(said.contains("PORT_ACTIVE"), "{name}: {said}");
    let perftest = |device: &str, port: &str, more: &str| {
        with(&words(format!("ib_write_bw -d {device} -x 1 -n 200 -p {port} {more}").trim_end()))
    };
    Pair::listening(&node, |port| perftest("iron1", port, ""), |port| perftest("iron2", port, "127.0.0.1"));
    let [server, client] =
        ["rping -s -a 127.0.0.2 -C 5", "rping -c -a 127.0.0.2 -C 5"].map(|of| with(&words(of)));
    let [server, client] = [&server, &client].map(|of| of.iter().map(String::as_str).collect::<Vec<_>>());
    Pair::managed(&node, &server, &client);
    let lat = |device: &str, port: &str| with(&ucx(device, "rc_verbs,ud_verbs", "tag_lat", "8", port));
    Pair::listening(
        &node,
        |port| lat("iron1", port),
        |port| [lat("iron2", port), words("127.0.0.1")].concat(),
    );
}

#[test]
fn programs_run_under_debuggers_and_checkers_as_without() {
    for (tool, prefix) in [
        ("gdb", "gdb -q -batch -return-child-result -ex run --args"),
        ("strace", "strace -f -o /dev/null"),
        ("valgrind", "valgrind -q"),
    ] {
        all_run(tool, &words(prefix));
    }
}

#[test]
fn programs_run_within_limits_as_without() {
    for (name, limit) in
        [("addresses", "-v 4000000"), ("files", "-f 0"), ("descriptors", "-n 64"), ("locked", "-l 64")]
    {
        all_run(name, &limited(limit));
    }
}

#[test]
fn programs_run_that_lock_all_their_memory() {
    let lock = compiled_library("locked");
    all_run("lock", &words(&format!("env LD_PRELOAD={lock}")));
}

#[test]
fn programs_run_under_a_storm_of_signals() {
    let profiled = compiled_library("profiled");
    all_run("storm", &words(&format!("env LD_PRELOAD={profiled}")));
}

/// ThreadSanitizer cannot see into uninstrumented code such as ours, and is told so, as for any other library.
#[test]
fn sanitizers_have_nothing_to_say_of_programs_that_are_right() {
    for kind in ["address", "undefined", "thread"] {
        let program = sanitized("queues", kind);
        let node = Node::new(&format!("sanitized-{kind}"), 2)
            .with("TSAN_OPTIONS", "ignore_noninstrumented_modules=1");
        let out = node.run(&[&program, "iron1"]);
        assert!(out.lines().any(|line| line.ends_with(" ok")), "{kind}: {out}");
        assert!(!out.contains("Sanitizer") && !out.contains("runtime error"), "{kind}: {out}");
    }
}
