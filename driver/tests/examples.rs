//! Runs each example program and checks its output.

use std::{path::PathBuf, process::Command};

/// Cargo builds a package's examples along with its tests, into a directory beside theirs. If a single test is
/// selected (`--test`) it does not rebuild them: build them first.
fn example(name: &str) -> PathBuf {
    let test = std::env::current_exe().expect("the path of this test");
    let built = test.ancestors().nth(2).expect("the directory of the profile").join("examples").join(name);
    assert!(
        built.exists(),
        "{} is missing: cargo build --release -p ironverbs-driver --examples",
        built.display()
    );
    built
}

/// The output of the example, which must exit successfully.
fn said(name: &str) -> String {
    let out = Command::new(example(name)).output().expect("it starts");
    let (said, complaint) = (String::from_utf8_lossy(&out.stdout), String::from_utf8_lossy(&out.stderr));
    assert!(out.status.success(), "{name}: {}: {said}{complaint}", out.status);
    said.into_owned()
}

#[test]
fn pingpong_sends_to_and_fro() {
    let said = said("pingpong");
    assert!(said.starts_with("1000 messages of 9 bytes went to and fro, "), "{said}");
}

#[test]
fn write_reaches_the_peers_memory_and_not_what_lies_behind() {
    let expected = "in the peer's memory: written from afar\n\
                    past its end: RemAccessErr, and the queue pair is in Err\n";
    assert_eq!(said("write"), expected);
}

#[test]
fn events_wake_a_sleeper_and_tell_what_went_wrong() {
    let expected = "woken by the completion queue: work request 7, 7 bytes\n\
                    the SEND ended with Success\n\
                    the WRITE ended with RemAccessErr\n\
                    the peer's queue pair: AccessError\n";
    assert_eq!(said("events"), expected);
}
