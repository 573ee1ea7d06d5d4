//! Programs in C on the stock libibverbs, which say of each call what it must answer.
//!
//! Needs `ironverbs` and the provider built (`make build`), a C compiler and libibverbs-dev.

#[path = "tools/pair.rs"]
mod pair;

use pair::Node;
use std::{
    path::{Path, PathBuf},
    process::Command,
};

/// Compiles `tests/programs/NAME.c`.
fn compiled(name: &str) -> PathBuf {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("programs").join(name).with_extension("c");
    let program = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
    let mut cc = Command::new("cc");
    cc.args(["-Wall", "-Wextra", "-Werror", "-O1", "-o"]).arg(&program).arg(&source).arg("-libverbs");
    let said = cc.output().expect("a C compiler (apt-get install gcc)");
    assert!(said.status.success(), "{}", String::from_utf8_lossy(&said.stderr));
    program
}

#[test]
fn queues_and_domains_answer_as_their_manual_pages_say() {
    let program = compiled("queues");
    let node = Node::new("c-queues", 1);
    let out = node.run(&[program.to_str().expect("a path in UTF-8"), "iron1"]);
    let kept = out.lines().filter(|line| line.ends_with(" ok")).count();
    assert_eq!(kept, 4, "{out}");
}
