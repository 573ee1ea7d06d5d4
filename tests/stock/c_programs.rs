//! Programs in C on the stock libibverbs, which say of each call what it must answer.
//!
//! Needs `ironverbs` and the provider built (`scripts/test.sh build`), a C compiler and libibverbs-dev.

use ironverbs_tests::{
    program::may_send_raw,
    stock::{Node, compiled, compiled_alone, renamed_libraries},
};

/// What a program says, which prints a line for each promise that is kept; and how many it kept.
fn kept(name: &str, devices: &[&str]) -> (usize, String) {
    let program = compiled(name);
    let node = Node::new(&format!("c-{name}"), 2);
    let mut command = vec![program.to_str().expect("a path in UTF-8")];
    command.extend(devices);
    let out = node.run(&command);
    (out.lines().filter(|line| line.ends_with(" ok")).count(), out)
}

/// Runs a program, which keeps all of its `promises`.
fn keeps(name: &str, devices: &[&str], promises: usize) {
    let (kept, out) = kept(name, devices);
    assert_eq!(kept, promises, "{out}");
}

#[test]
fn queues_and_domains_answer_as_their_manual_pages_say() {
    keeps("queues", &["iron1"], 5);
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
fn frames_are_spread_over_work_queues_as_the_published_hash_says() {
    let promises = if may_send_raw() { 7 } else { 3 };
    keeps("spread", &["iron1", "iron2"], promises);
}

/// Huge pages that the machine keeps ready for a test, if it lets us; afterwards it has what it had.
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
    // As root; others may not have what `vm.hugetlb_shm_group` does not give them.
    let given = pages.0.is_some() && HugePages::number().is_some_and(|number| number >= 16);
    let promises = if given { 3 } else { 2 };
    let (kept, out) = kept("huge", &["iron1"]);
    assert!((promises..=3).contains(&kept), "{out}");
}

#[test]
fn threads_share_a_queue_pair_and_fork_while_others_register() {
    keeps("threads", &["iron1"], 4);
}

#[test]
fn a_libibverbs_that_a_program_brings_along_sees_the_devices_beside_the_systems() {
    let program = compiled_alone("libraries");
    let program = program.to_str().expect("a path in UTF-8");
    let own = renamed_libraries("bundled-c").join("libibverbs-0.so");
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

#[test]
fn two_threads_that_poll_and_a_caller_that_spins_share_two_processors() {
    let program = compiled("pollers");
    let program = program.to_str().expect("a path in UTF-8");
    let node = Node::new("c-pollers", 1);
    let mut medians: Vec<f64> = (0..5)
        .map(|_| {
            let out = node.run(&["taskset", "-c", "0,1", program, "iron1", "2", "2000"]);
            let median = out.split_whitespace().next().and_then(|first| first.parse().ok());
            median.unwrap_or_else(|| panic!("no median in {out:?}"))
        })
        .collect();
    medians.sort_by(f64::total_cmp);
    // Time slices are of a millisecond and more, and a READ takes some 10 us. One run may fall to a machine that is busy.
    assert!(medians[3] < 500.0, "medians of five runs, us: {medians:?}");
}
