//! The model under its other schedulers: the same tests of the same chip, in a process of their own for each.

use ironverbs_tests::bed::SCHEDULER;
use std::process::Command;

/// Tests of several programs, each of which does work that the others cannot do. Virtual time has one conductor, which reaches all memory.
const OF_SEVERAL_PROGRAMS: [&str; 2] =
    ["row_62_flr_leaves_no_references_to_its_memory", "row_62_work_waits_for_the_program_that_can_do_it"];

/// Runs the tests of `modules` under `scheduler`, except those named in `without`.
fn hold_under(scheduler: &str, modules: &[&str], without: &[&str]) {
    let tests = std::env::current_exe().expect("the path of this program");
    let skipped = without.iter().flat_map(|name| ["--skip", name]);
    let out = Command::new(tests)
        .args(modules)
        .args(skipped)
        .args(["--test-threads", "2", "--quiet"])
        .env(SCHEDULER, scheduler)
        .output()
        .expect("the tests run");
    let said = String::from_utf8_lossy(&out.stdout);
    assert!(out.status.success() && said.contains("test result: ok"), "{said}");
    let passed = said.split(" passed").next().and_then(|text| text.rsplit(' ').next()?.parse().ok());
    assert!(
        passed.is_some_and(|passed: u32| passed > 150),
        "{passed:?} tests, and more were expected: {said}"
    );
}

#[test]
fn rows_hold_if_jobs_are_done_one_at_a_time() {
    hold_under("stepped", &["conformance::"], &["torture"]);
}

#[test]
fn rows_and_soak_hold_in_virtual_time() {
    hold_under("costed", &["conformance::", "soak::"], &OF_SEVERAL_PROGRAMS);
}

#[test]
fn commands_subnets_and_packets_hold_in_virtual_time() {
    // Those with frames under way wait for another program, which they stop.
    hold_under("costed", &["commands::", "infiniband::", "ethernet::"], &["even_by_frames_under_way"]);
}
