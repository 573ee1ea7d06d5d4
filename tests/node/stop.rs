//! Stops either side with SIGSTOP under full load, at random instants: unrelated programs continue undisturbed, the peer waits without
//! losing the connection, and everything continues after SIGCONT. IRONVERBS_STOPS sets the number.

use devmodel::state::QpRow;
use ironverbs_tests::{
    bed::Chaos,
    bystander::{Rounds, SOON, UNDISTURBED},
    program::{self, Program, Scratch, connect},
    workload::{self, Signal},
};
use node::{Node, NodeOptions};
use std::time::{Duration, Instant};

/// Longer than the transport timeout of the stopped programs: 8 timeouts of 8 to 14 ms.
const LONG: Duration = Duration::from_millis(300);
/// One in this many stops is that long.
const SOME: usize = 16;

fn start(scratch: &Scratch, fid: u8) -> Program {
    program::worker(env!("CARGO_BIN_EXE_flow"), scratch, fid)
}

/// Number of stops; `usual` if IRONVERBS_STOPS is not set.
fn stops(usual: usize) -> usize {
    program::number("IRONVERBS_STOPS").map_or(usual, |number| number as usize)
}

/// Returns the number of frames that the ports of `fids` have sent.
fn sent(node: &Node, fids: [u8; 2]) -> [u64; 2] {
    let packets = devmodel::state::Counters::TxPackets as usize;
    fids.map(|fid| node.adapter().region().counters(fid)[packets])
}

fn stopped_at_random(fids: [u8; 2], stops: usize, no_direct_copies: bool) {
    let scratch = Scratch::new();
    let options = NodeOptions { vfs: Some(6), no_direct_copies, ..NodeOptions::default() };
    let node = scratch.node_with(&options);
    let mut programs = fids.map(|fid| start(&scratch, fid));
    let cards = [0, 1].map(|i: usize| programs[i].expect("card", SOON).expect("a card"));
    connect(&mut programs, &cards, SOON).expect("connected");
    let bystander = Rounds::start(&node, [3, 4, 5]);
    let mut random = Chaos { seed: 0x5151_0bad_cafe_0001, ..Chaos::default() };
    let mut took: [Vec<Duration>; 2] = Default::default();
    for stop in 0..stops {
        std::thread::sleep(Duration::from_micros(random.draw() >> 40 & 0x1fff));
        took[0].push(bystander.one("with nobody stopped"));
        let victim = &programs[random.draw() as usize >> 7 & 1];
        victim.stop();
        let begin = Instant::now();
        took[1].push(bystander.one(&format!("stop {stop} of {}", victim.pid())));
        if stop % SOME == 0 {
            std::thread::sleep(LONG.saturating_sub(begin.elapsed()));
        }
        victim.go_on();
    }
    let before = sent(&node, fids);
    testkit::until("the programs that were stopped go on", SOON, || {
        sent(&node, fids).iter().zip(before).all(|(now, before)| *now >= before + 100)
    });
    for program in &mut programs {
        assert_eq!(program.heard(), None, "a connection ended");
    }
    programs.iter_mut().for_each(Program::kill);
    took.iter_mut().for_each(|times| times.sort());
    println!(
        "{stops} stops on {fids:?}: a bystander's round took {:?} (median), {:?} (slowest), without them {:?}, {:?}",
        took[1][stops / 2],
        took[1][stops - 1],
        took[0][stops / 2],
        took[0][stops - 1],
    );
    assert!(took[1][stops - 1] < UNDISTURBED, "{:?}", took[1][stops - 1]);
}

/// A program that cleans up after the dead holds the node's lock: it must not wait for a stopped program that holds something the dead
/// used.
#[test]
fn a_program_killed_beside_a_stopped_peer_is_cleaned_up_after_without_holding_up_anybody() {
    let (scratch, node) = Scratch::with_node(6);
    let bystander = Rounds::start(&node, [3, 4, 5]);
    let mut random = Chaos { seed: 0x00c0_ffee, ..Chaos::default() };
    for round in 0..stops(300) / 10 {
        let mut programs = [1, 2].map(|fid| start(&scratch, fid));
        let cards = [0, 1].map(|i: usize| programs[i].expect("card", SOON).expect("a card"));
        connect(&mut programs, &cards, SOON).unwrap_or_else(|e| panic!("round {round}: {e}"));
        std::thread::sleep(Duration::from_micros(random.draw() >> 40 & 0x1fff));
        let victim = random.draw() as usize >> 7 & 1;
        programs[victim].stop();
        programs[1 - victim].kill();
        // The victim may have been stopped while it cleaned up after the last round's dead, with the node's lock held; this is reported in
        // time.
        let (took, refused) = bystander.beside(programs[victim].pid(), &format!("round {round}"));
        assert!(took < UNDISTURBED || refused, "{took:?}");
        programs[victim].go_on();
        let status = programs[victim].expect("failed", SOON).unwrap_or_else(|e| panic!("round {round}: {e}"));
        assert_eq!(status, "RetryExcErr");
    }
    let left = |node: &Node| (1..=2).map(|fid| node.adapter().region().used::<QpRow>(fid)).sum::<u32>();
    bystander.one("at the end");
    assert_eq!(left(&node), 0, "queue pairs of the dead");
}

#[test]
fn either_side_stopped_in_full_flow_holds_up_nobody_else() {
    stopped_at_random([1, 2], stops(300), false);
}

#[test]
fn either_of_two_programs_on_one_function_stopped_holds_up_nobody_else() {
    stopped_at_random([1, 1], stops(300) / 4, false);
}

#[test]
fn either_side_stopped_where_copies_are_forbidden_holds_up_nobody_else() {
    stopped_at_random([1, 2], stops(300) / 4, true);
}

/// Programs of all kinds and their supervisors: all run to completion.
#[test]
fn programs_stopped_in_mixed_traffic_go_on_and_hold_up_nobody_else() {
    workload::run(Signal::Stop, stops(60), false, env!("CARGO_BIN_EXE_torture"));
}

#[test]
fn programs_stopped_in_mixed_traffic_on_infiniband_go_on_and_hold_up_nobody_else() {
    workload::run(Signal::Stop, stops(60) / 4, true, env!("CARGO_BIN_EXE_torture"));
}
