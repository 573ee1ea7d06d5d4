//! Kills programs with SIGKILL under full load, at random instants: unrelated programs continue, peers end with a transport error, and
//! nothing is left behind. IRONVERBS_KILLS sets the number.

use ironverbs_tests::{
    bed::Chaos,
    bystander::{Baseline, SOON},
    program::{self, Program, Scratch, connect},
    workload::{self, Signal},
};
use node::NodeOptions;
use std::time::{Duration, Instant};

/// Maximum time until a survivor detects the failure: 8 timeouts of 8 to 32 ms, on a busy machine.
const DETECTED: Duration = Duration::from_secs(10);

fn start(scratch: &Scratch, fid: u8) -> Program {
    program::worker(env!("CARGO_BIN_EXE_flow"), scratch, fid)
}

/// Number of kills; `usual` if IRONVERBS_KILLS is not set.
fn kills(usual: usize) -> usize {
    program::number("IRONVERBS_KILLS").map_or(usual, |number| number as usize)
}

fn killed_at_random(fids: [u8; 2], kills: usize, no_direct_copies: bool) {
    let scratch = Scratch::new();
    let options = NodeOptions { vfs: Some(4), no_direct_copies, ..NodeOptions::default() };
    let node = scratch.node_with(&options);
    let before = Baseline::of(&node);
    let mut random = Chaos { seed: 0x1234_5678_9abc_def1, ..Chaos::default() };
    let mut programs = fids.map(|fid| start(&scratch, fid));
    let mut cards = [0, 1].map(|i: usize| programs[i].expect("card", SOON).expect("a card"));
    let mut took = Vec::new();
    for kill in 0..kills {
        connect(&mut programs, &cards, SOON).unwrap_or_else(|e| panic!("kill {kill}: {e}"));
        let victim = random.draw() as usize >> 7 & 1;
        std::thread::sleep(Duration::from_micros(random.draw() >> 40 & 0x3fff));
        programs[victim].kill();
        let begin = Instant::now();
        let survivor = &mut programs[1 - victim];
        let status = survivor
            .expect("failed", DETECTED)
            .unwrap_or_else(|e| panic!("kill {kill} of side {victim}: {e}"));
        assert_eq!(status, "RetryExcErr", "kill {kill} of side {victim}");
        took.push(begin.elapsed());
        cards[1 - victim] = survivor.expect("card", SOON).unwrap_or_else(|e| panic!("kill {kill}: {e}"));
        programs[victim] = start(&scratch, fids[victim]);
        cards[victim] =
            programs[victim].expect("card", SOON).unwrap_or_else(|e| panic!("kill {kill}, restart: {e}"));
    }
    connect(&mut programs, &cards, SOON).expect("the node works after all");
    programs.iter_mut().for_each(Program::kill);
    let status = node.status().expect("status");
    took.sort();
    println!(
        "{kills} kills on {fids:?}: survivors knew after {:?} (median), {:?} (slowest); {} programs were cleaned up after",
        took[kills / 2],
        took[kills - 1],
        status.reaped
    );
    assert_eq!(Baseline::of(&node), before);
    assert_eq!(status.reaped as usize, kills + 2);
}

#[test]
fn either_side_killed_in_full_flow_leaves_a_working_node() {
    killed_at_random([1, 2], kills(500), false);
}

#[test]
fn either_of_two_programs_on_one_function_killed_leaves_a_working_node() {
    killed_at_random([1, 1], kills(500) / 4, false);
}

#[test]
fn either_side_killed_where_copies_are_forbidden_leaves_a_working_node() {
    killed_at_random([1, 2], kills(500) / 4, true);
}

/// Kills a program at any moment from its start: while it opens the device, creates objects, connects.
#[test]
fn a_program_killed_while_it_sets_up_leaves_nothing() {
    let (scratch, node) = Scratch::with_node(4);
    let before = Baseline::of(&node);
    let mut random = Chaos { seed: 0xfeed_beef, ..Chaos::default() };
    for _ in 0..kills(500) / 2 {
        let mut program = start(&scratch, 3);
        std::thread::sleep(Duration::from_micros(random.draw() >> 40 & 0x7fff));
        program.kill();
    }
    // The next program can use the function.
    let mut program = start(&scratch, 3);
    program.expect("card", SOON).expect("a card");
    program.kill();
    assert_eq!(Baseline::of(&node), before);
}

/// Programs of all kinds and their supervisors; any of them may be killed at any moment.
#[test]
fn programs_killed_in_mixed_traffic_leave_a_node_as_it_was() {
    workload::run(Signal::Kill, kills(80), false, env!("CARGO_BIN_EXE_torture"));
}

#[test]
fn programs_killed_in_mixed_traffic_on_infiniband_leave_a_node_as_it_was() {
    workload::run(Signal::Kill, kills(80) / 4, true, env!("CARGO_BIN_EXE_torture"));
}
