//! Programs that die at a bad moment.

use super::bed::{OnNode, Scratch, eventually, is_never_ready, say, start, started, until_killed};
use crate::{
    NodeTransport,
    arena::{Arena, Owner},
    node::Node,
    open_device_of, party,
};
use devmodel::region::Func;
use driver::{
    Pd,
    transport::{Scope, Transport},
};
use std::{
    path::Path,
    sync::atomic::Ordering::*,
    time::{Duration, Instant},
};

pub fn leaves_blocks_behind(dir: &Path) {
    let node = Node::open(dir).unwrap();
    let transport = NodeTransport::open(&node, 1).unwrap();
    for _ in 0..100 {
        transport.dma_alloc(10_000, Scope::Opener).unwrap();
    }
    transport.dma_alloc(5_000, Scope::Function).unwrap();
    transport.shared().unwrap();
    transport.interrupt(3).unwrap();
    say(transport.opener());
    until_killed()
}

#[test]
fn what_a_killed_program_had_comes_back() {
    let (scratch, node) = Scratch::with_node();
    let memory = node.status().unwrap().memory;
    let mut other = start(&scratch, "arena");
    let opener = other.hear_number() as u32;
    let status = node.status().unwrap();
    assert_eq!(status.parties.len(), 1);
    assert_eq!(status.parties[0].pid, other.child.id());
    assert_eq!(status.parties[0].functions, [1]);
    assert_eq!(status.driver_memory, 100 * 12288 + 8192 + 65536);
    let ours = NodeTransport::open(&node, 2).unwrap();
    assert!(ours.alive(opener) && ours.alive(ours.opener()));

    other.kill();
    assert!(!ours.alive(opener));
    let status = node.status().unwrap();
    assert_eq!((status.reaped, status.driver_memory), (1, 0));
    assert_eq!(status.parties.len(), 1, "only we are left: {:?}", status.parties);
    assert!(status.functions[1].parties.is_empty());
    assert_eq!(node.core().map.functions()[1].vectors.load(SeqCst), 0);
    assert!(node.core().map.listeners(1, 3).is_empty());
    // The books and the parked threads' pages stay; the blocks do not.
    assert!(status.memory < memory + (1 << 20), "{memory} bytes before, {} after", status.memory);
    // The slot is reused, the opener ID is not.
    let mut next = start(&scratch, "arena");
    let again = next.hear_number() as u32;
    assert_eq!(party::party_of(again), party::party_of(opener));
    assert_ne!(again, opener);
    assert!(!ours.alive(opener) && ours.alive(again));
}

#[test]
fn a_program_that_has_lost_its_device_gives_up_nobody_elses() {
    let (scratch, node) = Scratch::with_node();
    let lost = open_device_of(&node, 1).unwrap();
    // As when the program has closed the adapter's descriptors.
    node.core().map.lost().set_for("");
    assert!(lost.health().is_fatal());
    lost.give_up();
    let anew = open_device_of(&Node::open(&scratch.0).unwrap(), 1).unwrap();
    drop(Pd::alloc(&anew).unwrap());
}

#[test]
fn a_function_stays_as_long_as_somebody_has_it_open() {
    let (scratch, node) = Scratch::with_node();
    let mut other = started(&scratch, "arena");
    let ours = NodeTransport::open(&node, 1).unwrap();
    let shared = ours.shared().unwrap().iova;
    other.kill();
    let status = node.status().unwrap();
    assert_eq!(
        status.driver_memory,
        8192 + 65536,
        "the function's blocks outlive the program that asked for them"
    );
    assert_eq!(ours.shared().unwrap().iova, shared);
    drop(ours);
    assert_eq!(node.status().unwrap().driver_memory, 0);
}

pub fn dies_with_a_function(dir: &Path) {
    let node = Node::open(dir).unwrap();
    let _open = NodeTransport::open(&node, 1).unwrap();
    let core = node.core();
    core.drive(core.now(), |_, host| {
        let mut func = Func::lock(core.adapter.region(), 1, host);
        *func.function_mut(|f| &mut f.mtu) = 77;
        say(func.function().mtu);
        until_killed()
    })
}

#[test]
fn the_change_of_a_killed_lock_holder_is_taken_back() {
    let (scratch, node) = Scratch::with_node();
    let core = node.core();
    let mtu = || core.drive(core.now(), |_, host| Func::lock(core.adapter.region(), 1, host).function().mtu);
    let before = mtu();
    let mut other = start(&scratch, "function-lock");
    assert_eq!(other.hear(), "77");
    other.kill();
    let begin = Instant::now();
    assert_eq!(mtu(), before);
    assert!(begin.elapsed() < Duration::from_secs(2));
}

#[test]
fn somebody_with_open_devices_notices_a_death_without_being_asked() {
    let (scratch, node) = Scratch::with_node();
    let ours = NodeTransport::open(&node, 2).unwrap();
    let mut other = started(&scratch, "arena");
    other.kill();
    let header = node.core().map.header();
    eventually("a poller finds the dead", || {
        (0..1000).for_each(|_| ours.idle());
        header.reaped.load(SeqCst) == 1
    });
}

#[test]
fn a_program_that_sleeps_until_its_peer_is_ready_notices_its_death() {
    let (scratch, node) = Scratch::with_node();
    let _waits = is_never_ready(&open_device_of(&node, 2).unwrap()).unwrap();
    let mut other = started(&scratch, "arena");
    other.kill();
    let header = node.core().map.header();
    eventually("the parked thread finds the dead", || header.reaped.load(SeqCst) == 1);
}

pub fn dies_with_the_node(dir: &Path) {
    let node = Node::open(dir).unwrap();
    let lock = node.core().locks.lock().unwrap();
    let arena = Arena::new(&node.core().map, &lock);
    arena.alloc(10_000, Owner::Party(node.party()), dir).unwrap();
    node.core().map.header().arena_busy.store(1, SeqCst);
    say("locked");
    until_killed()
}

#[test]
fn the_nodes_lock_goes_with_its_holder() {
    let (scratch, node) = Scratch::with_node();
    let mut other = started(&scratch, "node-lock");
    other.kill();
    let begin = Instant::now();
    assert_eq!(node.status().unwrap().driver_memory, 0);
    assert!(begin.elapsed() < Duration::from_secs(2));
    assert_eq!(node.core().map.header().arena_busy.load(SeqCst), 0);
}
