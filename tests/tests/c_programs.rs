//! Programs in C on the stock libibverbs, which say of each call what it must answer.
//!
//! Needs `ironverbs` and the provider built (`make build`), a C compiler and libibverbs-dev.

#[path = "tools/compile.rs"]
mod compile;
#[path = "tools/pair.rs"]
mod pair;

use compile::{compiled, compiled_alone};
use pair::Node;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Runs a program, which prints a line for each of its `promises` that is kept.
fn keeps(name: &str, devices: &[&str], promises: usize) {
    let program = compiled(name);
    let node = Node::new(&format!("c-{name}"), 2);
    let mut command = vec![program.to_str().expect("a path in UTF-8")];
    command.extend(devices);
    let out = node.run(&command);
    let kept = out.lines().filter(|line| line.ends_with(" ok")).count();
    assert_eq!(kept, promises, "{out}");
}

#[test]
fn queues_and_domains_answer_as_their_manual_pages_say() {
    keeps("queues", &["iron1"], 4);
}

#[test]
fn what_a_program_imports_and_what_a_file_names_stays_as_long_as_it_is_used() {
    keeps("imports", &["iron1"], 3);
}

#[test]
fn raw_packets_have_checksums_filled_in_tags_beside_them_and_receives_flushed() {
    keeps("raw", &["iron1", "iron2"], 3);
}

#[test]
fn threads_share_a_queue_pair_and_fork_while_others_register() {
    keeps("threads", &["iron1"], 4);
}

/// A copy of the system's libibverbs under a name and an soname of its own, as those that Python wheels bring along have.
fn bundled(dir: &Path) -> PathBuf {
    let asked = Command::new("cc").arg("-print-file-name=libibverbs.so").output().expect("a compiler");
    let system = String::from_utf8(asked.stdout).expect("a path in UTF-8");
    let mut library = std::fs::read(system.trim()).expect("libibverbs-dev");
    let (soname, ours) = (b"libibverbs.so.1\0", b"libibverbs-0.so\0");
    let at: Vec<usize> =
        (0..library.len() - soname.len()).filter(|at| library[*at..].starts_with(soname)).collect();
    assert!(!at.is_empty(), "expected the soname libibverbs.so.1 in {}", system.trim());
    at.into_iter().for_each(|at| library[at..][..ours.len()].copy_from_slice(ours));
    std::fs::create_dir_all(dir).expect("a directory");
    let path = dir.join("libibverbs-1de1263b.so.1.14.48.0");
    std::fs::write(&path, library).expect("a copy");
    path
}

#[test]
fn a_libibverbs_that_a_program_brings_along_sees_the_devices_beside_the_systems() {
    let program = compiled_alone("libraries");
    let program = program.to_str().expect("a path in UTF-8");
    let own = bundled(&Path::new(env!("CARGO_TARGET_TMPDIR")).join("bundled"));
    let own = own.to_str().expect("a path in UTF-8");
    for (name, first, second) in
        [("own-second", "libibverbs.so.1", own), ("own-first", own, "libibverbs.so.1")]
    {
        let node = Node::new(&format!("c-{name}"), 2);
        let out = node.run(&[program, first, second]);
        for promise in ["first ok", "second ok", "traffic ok", "closing ok"] {
            assert!(out.lines().any(|line| line == promise), "{name}: expected {promise:?} in\n{out}");
        }
    }
}
