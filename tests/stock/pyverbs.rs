//! rdma-core's own Python tests, the quickest of their files, with the installed pyverbs. scripts/userlands.sh runs all files on three
//! releases of Debian.

use ironverbs_tests::{program::Scratch, stock::Node};
use std::{fs, path::Path, process::Command};

/// Location of the tests in Debian's package, some of them compressed.
const TESTS: &str = "/usr/share/doc/rdma-core/tests";

#[test]
fn rdma_cores_own_tests_of_domains_queues_and_atomics_pass() {
    // Debian's own interpreter, which has the pyverbs module, rather than another one in the user's PATH.
    let import = Command::new("/usr/bin/python3").args(["-c", "import pyverbs"]).output();
    if !Path::new(TESTS).exists() || !import.is_ok_and(|out| out.status.success()) {
        return println!("skipped: no python3-pyverbs here");
    }
    let scratch = Scratch::new();
    fs::create_dir(scratch.dir()).expect("a directory for the tests");
    let judge = concat!(env!("CARGO_MANIFEST_DIR"), "/userlands/judge.py");
    let script = format!(
        "cd {}; cp -rL {TESTS} {judge} .; find tests -name '*.gz' -exec gunzip -f {{}} +
        exec /usr/bin/python3 -B judge.py run iron1 pd cq atomic",
        scratch.dir().display()
    );
    let said = Node::new("pyverbs", 2).run(&["sh", "-c", &script]);
    let outcome = |line: &str| line.split('\t').nth(2).map(String::from);
    let outcomes: Vec<_> = said.lines().filter_map(outcome).collect();
    assert!(!outcomes.iter().any(|outcome| ["failed", "errors"].contains(&&**outcome)), "{said}");
    assert!(outcomes.iter().filter(|outcome| *outcome == "passed").count() >= 10, "{said}");
}
