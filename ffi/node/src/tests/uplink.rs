//! Frames that arrive through a node's uplink.

use super::bed::{OnNode, Scratch};
use crate::{crowd::PATIENCE, uplink::UplinkHold};
use devmodel::{
    identity,
    region::{Func, SLOTS, Sync},
};
use std::{
    sync::atomic::{AtomicBool, Ordering::*},
    thread,
    time::{Duration, Instant},
};

/// The uplink of a new node, and a frame for its function 1.
fn held() -> (Scratch, UplinkHold, [u8; 60]) {
    let (scratch, node) = Scratch::with_node();
    node.core().make_room_for(1).unwrap();
    let mut frame = [0; 60];
    frame[..6].copy_from_slice(&identity::mac(0, 1));
    (scratch, UplinkHold::new(&node).unwrap(), frame)
}

#[test]
fn a_server_with_many_frames_to_take_is_waited_for_until_it_takes_none() {
    let (_scratch, hold, frame) = held();
    let core = hold.node().core();
    // The function is served by a process that does not exist, so nothing takes its frames.
    core.map.functions()[1].server.store(99, Release);
    let region = core.adapter.region();
    let waiting = || region.sync(1, Sync::RxTail).load(Acquire) - region.sync(1, Sync::RxHead).load(Acquire);
    let take_in = |count: usize| {
        let began = Instant::now();
        hold.receive(&vec![&frame[..]; count], false);
        began.elapsed()
    };
    take_in(SLOTS / 2);
    assert_eq!(waiting() as usize, SLOTS / 2);
    assert!(take_in(1) >= PATIENCE, "half of its room is used");
    // Single tries may take longer on a machine that is busy otherwise.
    assert!((0..5).any(|_| take_in(1) < PATIENCE), "it was waited for in vain");
    let take = |count: u32| region.sync(1, Sync::RxHead).fetch_add(count, AcqRel);
    take(waiting());
    take_in(1);
    // It takes frames again, but late.
    thread::scope(|scope| {
        scope.spawn(|| {
            while (waiting() as usize) <= SLOTS / 2 {
                thread::yield_now();
            }
            take(waiting());
        });
        take_in(SLOTS);
    });
    assert!((waiting() as usize) < SLOTS, "none was lost");
    core.map.functions()[1].server.store(0, Release);
}

#[test]
fn a_program_that_is_busy_with_its_function_is_waited_for_too() {
    let (_scratch, hold, frame) = held();
    let core = hold.node().core();
    let region = core.adapter.region();
    let word = |word| region.sync(1, word).load(Acquire);
    let taken_in = || {
        let (before, is_busy) = (word(Sync::RxTail), AtomicBool::new(false));
        thread::scope(|scope| {
            scope.spawn(|| {
                core.touch(core.now(), 1, |_, host| {
                    let _busy = Func::lock(region, 1, host);
                    is_busy.store(true, Release);
                    let began = Instant::now();
                    while (word(Sync::RxTail) - word(Sync::RxHead)) as usize <= SLOTS / 2 {
                        assert!(began.elapsed() < Duration::from_secs(5), "expected frames, found none");
                        thread::yield_now();
                    }
                    thread::sleep(Duration::from_millis(1));
                });
            });
            while !is_busy.load(Acquire) {
                thread::yield_now();
            }
            hold.receive(&vec![&frame[..]; 2 * SLOTS], false);
        });
        (word(Sync::RxTail) - before) as usize
    };
    // Single rounds may take longer on a machine that is busy otherwise.
    let rounds: Vec<_> = (0..5).map(|_| taken_in()).collect();
    assert!(rounds.contains(&(2 * SLOTS)), "expected all {} frames of a round, found {rounds:?}", 2 * SLOTS);
}

#[test]
fn frames_left_to_a_program_that_polls_something_else_are_taken_back() {
    let (_scratch, hold, frame) = held();
    let core = hold.node().core();
    hold.receive(&[&frame], false);
    assert_eq!(hold.left_to_pollers(), None, "nobody polls");
    // A process that does not exist is said to poll the function.
    let poller = &core.map.functions()[1].poller;
    poller.store(99, Release);
    hold.receive(&[&frame], false);
    let left = hold.left_to_pollers();
    assert!(left.is_some() && hold.left_to_pollers() == left, "nothing takes it");
    hold.take_back();
    assert_eq!((hold.left_to_pollers(), poller.load(Acquire)), (None, 0));
    let word = |word| core.adapter.region().sync(1, word).load(Acquire);
    assert_eq!(word(Sync::RxTail), word(Sync::RxHead));
}
