//! Programs in C on the stock libibverbs, which say of each call what it must answer.
//!
//! Needs `ironverbs` and the provider built (`make build`), a C compiler and libibverbs-dev.

#[path = "tools/compile.rs"]
mod compile;
#[path = "tools/pair.rs"]
mod pair;

use compile::compiled;
use pair::Node;

#[test]
fn queues_and_domains_answer_as_their_manual_pages_say() {
    let program = compiled("queues");
    let node = Node::new("c-queues", 1);
    let out = node.run(&[program.to_str().expect("a path in UTF-8"), "iron1"]);
    let kept = out.lines().filter(|line| line.ends_with(" ok")).count();
    assert_eq!(kept, 4, "{out}");
}

#[test]
fn what_a_program_imports_and_what_a_file_names_stays_as_long_as_it_is_used() {
    let program = compiled("imports");
    let node = Node::new("c-imports", 1);
    let out = node.run(&[program.to_str().expect("a path in UTF-8"), "iron1"]);
    let kept = out.lines().filter(|line| line.ends_with(" ok")).count();
    assert_eq!(kept, 3, "{out}");
}
