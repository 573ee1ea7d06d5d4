//! C programs on the stock libibverbs that check the result of each call.
//!
//! Needs `ironverbs` and the provider built (`scripts/test.sh build`), a C compiler and libibverbs-dev.

use ironverbs_tests::{
    program::{is_root, may_send_raw},
    stock::{Node, compiled, compiled_alone, compiled_cm, renamed_libraries},
};

/// Runs a program, which prints a line for each check that passes. Returns the number of passed checks, and the output.
fn kept(name: &str, devices: &[&str]) -> (usize, String) {
    let program = compiled(name);
    let node = Node::new(&format!("c-{name}"), 2);
    let out = node.run(&[&[&*program], devices].concat());
    (out.lines().filter(|line| line.ends_with(" ok")).count(), out)
}

/// Runs a program in which `promises` checks must pass.
fn keeps(name: &str, devices: &[&str], promises: usize) {
    let (kept, out) = kept(name, devices);
    assert_eq!(kept, promises, "{out}");
}

#[test]
fn queues_and_domains_answer_as_their_manual_pages_say() {
    keeps("queues", &["iron1"], 6);
}

#[test]
fn what_a_program_imports_and_what_a_file_names_stays_as_long_as_it_is_used() {
    keeps("imports", &["iron1"], 3);
}

#[test]
fn raw_packets_have_checksums_filled_in_tags_beside_them_and_receives_flushed() {
    let promises = if may_send_raw() { 4 } else { 1 };
    keeps("raw", &["iron1", "iron2"], promises);
}

#[test]
fn a_program_that_closes_all_descriptors_keeps_the_files_that_get_their_numbers() {
    let program = compiled_cm("closed");
    let out = Node::new("c-closed", 2).run(&[&program, "iron1"]);
    assert!(out.contains("as they were ok"), "{out}");
}

#[test]
fn a_program_registers_no_more_than_it_may_lock_unless_it_is_told_so() {
    let program = compiled("pinned");
    let limited =
        Node::new("c-pinned", 2).with("IRONVERBS_MEMLOCK", "1").run(&[&program, "iron1", "limited"]);
    assert!(limited.contains("limited ok"), "{limited}");
    let node = Node::new("c-unpinned", 2).with("IRONVERBS_MEMLOCK", "1").without_memlock();
    let unlimited = node.run(&[&program, "iron1", "unlimited"]);
    assert!(unlimited.contains("unlimited ok"), "{unlimited}");
}

#[test]
fn memory_that_goes_while_it_is_registered_is_an_error_for_writes_and_reads_alike() {
    let program = compiled("gone");
    let command = [&program, "iron1", "iron2"];
    let places = [
        ("here ", "remote access error"),
        ("there ", "remote access error"),
        ("ours ", "local protection error"),
    ];
    let functional = Node::new("c-gone", 2).run(&command);
    let timed = Node::new("c-gone-timed", 2).timed().run(&command);
    for (out, (place, status)) in [functional, timed].iter().flat_map(|out| places.map(|of| (out, of))) {
        let lines: Vec<_> = out.lines().filter(|line| line.starts_with(place)).collect();
        assert_eq!(lines.len(), 14, "{out}");
        assert!(lines.iter().all(|line| line.ends_with(status)), "expected {status} for {place}:\n{out}");
    }
}

#[test]
fn frames_are_spread_over_work_queues_as_the_published_hash_says() {
    let promises = if may_send_raw() { 7 } else { 3 };
    keeps("spread", &["iron1", "iron2"], promises);
}

/// Huge pages reserved for a test, if the machine permits; afterwards their number is restored.
struct HugePages(Option<u64>);

impl HugePages {
    const NUMBER: &str = "/sys/kernel/mm/hugepages/hugepages-2048kB/nr_hugepages";

    fn number() -> Option<u64> {
        std::fs::read_to_string(Self::NUMBER).ok()?.trim().parse().ok()
    }

    fn at_least(wanted: u64) -> Self {
        let had = Self::number().filter(|had| *had < wanted);
        Self(had.filter(|_| std::fs::write(Self::NUMBER, wanted.to_string()).is_ok()))
    }
}

impl Drop for HugePages {
    fn drop(&mut self) {
        if let Some(had) = self.0 {
            let _ = std::fs::write(Self::NUMBER, had.to_string());
        }
    }
}

#[test]
fn queues_lie_in_huge_pages_where_the_environment_wants_that_and_nowhere_else() {
    let pages = HugePages::at_least(16);
    // Works as root; other users get only what `vm.hugetlb_shm_group` grants them.
    let given = pages.0.is_some() && HugePages::number().is_some_and(|number| number >= 16);
    let promises = if given { 3 } else { 2 };
    let (kept, out) = kept("huge", &["iron1"]);
    assert!((promises..=3).contains(&kept), "{out}");
}

/// A guest test runs the same program with libmlx5 and Linux.
#[test]
fn what_verbs_refuse_they_refuse_with_the_codes_that_the_page_has() {
    let program = compiled("codes");
    let node = Node::new("c-codes", 2);
    let said = node.run(&[&program, "iron1"]);
    let page =
        std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/codes.md")).expect("the page");
    let rows = page.lines().filter(|line| line.starts_with("| `"));
    let ours = rows.map(|row| row.split('|').take(4).collect::<Vec<_>>().join("|") + "|");
    assert_eq!(said.lines().collect::<Vec<_>>(), ours.collect::<Vec<_>>());
}

#[test]
fn a_program_that_gave_up_its_user_root_and_descriptors_goes_on() {
    // As root; other users have no such privileges to drop.
    let (kept, out) = kept("cramped", &["iron1", "iron2"]);
    assert_eq!(kept, if is_root() { 3 } else { 1 }, "{out}");
}

/// A node of three functions.
#[test]
fn calls_that_the_supervisor_answers_are_answered_once_whatever_signals_come() {
    keeps("storm", &["3"], 2);
}

#[test]
fn threads_share_a_queue_pair_and_fork_while_others_register() {
    keeps("threads", &["iron1"], 4);
}

#[test]
fn a_libibverbs_that_a_program_brings_along_sees_the_devices_beside_the_systems() {
    let program = compiled_alone("libraries");
    let own = renamed_libraries("bundled-c").join("libibverbs-0.so");
    let own = own.to_str().expect("a path in UTF-8");
    for (name, first, second) in
        [("own-second", "libibverbs.so.1", own), ("own-first", own, "libibverbs.so.1")]
    {
        let node = Node::new(&format!("c-{name}"), 2);
        let out = node.run(&[&program, first, second]);
        for promise in ["first ok", "second ok", "traffic ok", "closing ok"] {
            assert!(out.lines().any(|line| line == promise), "{name}: expected {promise:?} in\n{out}");
        }
    }
}

/// Measuring their time would also measure the machine: READs take 0.2 ms if pollers yield, 3 ms if they do not, and 0.5 ms if other
/// programs use the same processors.
#[test]
fn threads_that_poll_make_way_for_a_caller_that_spins_where_processors_are_few() {
    let program = compiled("pollers");
    let out = Node::new("c-pollers", 1).run(&["taskset", "-c", "0,1", &program, "iron1", "2", "2000"]);
    let slept: Vec<u32> = out.split_whitespace().skip(3).filter_map(|times| times.parse().ok()).collect();
    // Usually about 4,000 sleeps each; a thread that only yields never sleeps voluntarily.
    assert!(slept.len() == 2 && slept.iter().all(|times| *times >= 100), "{out}");
}
