//! Hundreds of programs on one node: living, and killed.
#![allow(unsafe_code)]

use super::bed::{Objects, OnNode, Other, Scratch, eventually, listen, say, start, started, until_killed};
use crate::{NodeTransport, Observer, node::Node, open_device, party_set::PROGRAMS};
use driver::{Device, Event, transport::Transport};
use std::{
    path::Path,
    sync::Arc,
    time::{Duration, Instant},
};

/// Opens a function, and exits when its parent does.
pub fn opens(dir: &Path) {
    let node = Node::open(dir).unwrap();
    let _transport = NodeTransport::open(&node, 1).unwrap();
    say(node.party());
    until_killed()
}

/// Reports why it could not open the node.
pub fn is_refused(dir: &Path) {
    say(Node::open(dir).err().map_or("it was let in".into(), |e| e.to_string()));
    until_killed()
}

/// Openers of one function in each of several programs.
const EACH: usize = 50;

/// Opens one function many times, and gets its own event at each opener.
pub fn opens_many(dir: &Path) {
    let devices: Vec<_> = (0..EACH).map(|_| open_device(dir, 1).unwrap()).collect();
    say("open");
    listen();
    let heard = devices.iter().filter(|device| has_its_event(device)).count();
    say(heard);
    listen();
    drop(devices);
    say("closed");
    until_killed()
}

/// True if a completion on `device` raises an event there and nowhere else.
fn has_its_event(device: &Arc<Device>) -> bool {
    let objects = Objects::flushed(device).unwrap();
    let begin = Instant::now();
    while begin.elapsed() < Duration::from_secs(20) {
        // Others listen to the same vector, so most interrupts are for them.
        device.events().wait(Some(Duration::from_millis(100))).unwrap();
        while let Some(event) = device.events().next() {
            if let Event::Cq { cqn, cookie } = event {
                return (cqn, cookie) == (objects.cq.cqn(), 77);
            }
        }
    }
    false
}

/// Takes free slots as if programs had died there: their locks are not held.
fn take_places(node: &Node, count: usize) {
    let core = node.core();
    let (taken, _lock) = (&core.map.header().taken, core.locks.lock().unwrap());
    let free: Vec<u16> = taken.free().take(count).collect();
    assert_eq!(free.len(), count);
    for slot in free {
        assert!(core.map.back_party(slot));
        taken.insert(slot);
    }
}

#[test]
fn a_node_full_of_the_dead_has_room_for_the_living() {
    const KILLED: usize = 300;
    let scratch = Scratch::new();
    drop(scratch.node());
    let mut all: Vec<Other> = (0..KILLED).map(|_| start(&scratch, "crowd")).collect();
    all.iter_mut().for_each(|one| _ = one.hear());
    all.iter_mut().for_each(Other::kill);
    let observer = Observer::open(&scratch.0).unwrap();
    let before = observer.status();
    let dead = before.parties.iter().filter(|party| !party.lives && party.functions == [1]);
    assert_eq!((dead.count(), before.reaped), (KILLED, 0), "nobody looked for the dead");
    let node = Node::open(&scratch.0).unwrap();
    let status = node.status().unwrap();
    assert_eq!((status.reaped as usize, status.parties.len()), (KILLED, 0));
    assert_eq!((observer.status().driver_memory, observer.status().functions[1].parties.len()), (0, 0));
}

#[test]
fn a_table_full_of_dead_parties_is_emptied_by_the_next_party() {
    let scratch = Scratch::new();
    drop({
        let node = scratch.node();
        take_places(&node, PROGRAMS);
        node
    });
    let mut other = start(&scratch, "crowd");
    other.hear_number();
    let status = Observer::open(&scratch.0).unwrap().status();
    assert_eq!((status.reaped as usize, status.parties.len()), (PROGRAMS, 1));
}

#[test]
fn a_node_of_as_many_living_programs_as_it_takes_refuses_one_more() {
    let (scratch, node) = Scratch::with_node();
    take_places(&node, PROGRAMS - 1);
    let (locks, party) = (node.core().locks, node.party());
    let others = || (1..=PROGRAMS as u16).filter(|slot| *slot != party);
    // SAFETY: the child only makes system calls, and exits with its parent.
    let child = unsafe { libc::fork() };
    if child == 0 {
        let all = others().all(|slot| locks.begin_life(slot).unwrap_or(false));
        // SAFETY: system calls that access no memory; the child shares no memory with the test that it could write to.
        unsafe {
            libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL);
            if all {
                libc::pause();
            }
            libc::_exit(1)
        }
    }
    eventually("a child holds all places", || others().all(|slot| locks.holder(slot) == Some(child as u32)));
    let observer = Observer::open(&scratch.0).unwrap();
    assert_eq!(observer.status().parties.len(), PROGRAMS, "to look at them takes no place");
    let said = start(&scratch, "refused").hear();
    assert_eq!(said, "4096 programs at most run on an adapter, and that many do");
    assert_eq!(node.core().map.header().taken.len(), PROGRAMS, "who was refused left nothing");
    // SAFETY: a child of this test.
    unsafe {
        libc::kill(child, libc::SIGKILL);
        libc::waitpid(child, std::ptr::null_mut(), 0);
    }
    assert_eq!(node.core().reap().unwrap(), PROGRAMS - 1);
}

#[test]
fn an_empty_table_is_not_looked_through_place_by_place() {
    let (scratch, node) = Scratch::with_node();
    let memory = node.status().unwrap().memory;
    drop(node);
    let opening = || {
        let begin = Instant::now();
        drop(Node::open(&scratch.0).unwrap());
        begin.elapsed()
    };
    // 4096 lock queries would take milliseconds. On a busy machine, the fastest of many tries is significant.
    let quickest = (0..200).map(|_| opening()).min().unwrap();
    assert!(quickest < Duration::from_millis(2), "{quickest:?} to open and close the node");
    let after = Observer::open(&scratch.0).unwrap().status().memory;
    assert!(after < memory + (64 << 10), "{memory} bytes before, {after} after");
}

#[test]
fn looking_at_a_node_changes_nothing_and_takes_no_place() {
    let (scratch, node) = Scratch::with_node();
    let mut other = started(&scratch, "crowd");
    let lock = node.core().locks.lock().unwrap();
    let seen = Observer::open(&scratch.0).unwrap().status();
    assert_eq!(seen.parties.len(), 2, "the node's lock is ours, and nobody waits for it");
    other.kill();
    let seen = Observer::open(&scratch.0).unwrap().status();
    let dead: Vec<u32> = seen.parties.iter().filter(|party| !party.lives).map(|party| party.pid).collect();
    assert_eq!((dead, seen.reaped), (vec![other.child.id()], 0));
    drop(lock);
    assert_eq!(node.status().unwrap().reaped, 1);
}

#[test]
fn hundreds_of_programs_live_on_one_function() {
    const ALIVE: usize = 300;
    let (scratch, node) = Scratch::with_node();
    let mut all: Vec<Other> = (0..ALIVE).map(|_| start(&scratch, "crowd")).collect();
    let mut parties: Vec<u64> = all.iter_mut().map(Other::hear_number).collect();
    parties.sort_unstable();
    parties.dedup();
    assert_eq!(parties.len(), ALIVE);
    let status = Observer::open(&scratch.0).unwrap().status();
    assert_eq!(status.parties.iter().filter(|party| party.lives).count(), ALIVE + 1);
    assert_eq!(status.functions[1].parties.len(), ALIVE);
    let ours = NodeTransport::open(&node, 1).unwrap();
    assert!(ours.alive(ours.opener()));
    drop(ours);
    drop(all);
    assert_eq!(node.status().unwrap().reaped as usize, ALIVE);
}

#[test]
fn five_hundred_openers_of_one_function_each_have_their_events() {
    let (scratch, node) = Scratch::with_node();
    let mut all: Vec<Other> = (0..10).map(|_| start(&scratch, "openers")).collect();
    for one in &mut all {
        assert_eq!(one.hear(), "open");
    }
    let up = node.status().unwrap();
    let eqs = up.functions[1].objects.iter().find(|(kind, _)| *kind == "eq").map(|(_, count)| *count);
    assert_eq!(eqs, Some((10 * EACH) as u32 + 2), "two of them are the function's");
    all.iter_mut().for_each(|one| one.tell("go"));
    for one in &mut all {
        assert_eq!(one.hear_number() as usize, EACH);
    }
    all.iter_mut().for_each(|one| one.tell("close"));
    for one in &mut all {
        assert_eq!(one.hear(), "closed");
    }
    let down = node.status().unwrap();
    assert_eq!((down.driver_memory, down.functions[1].objects.len()), (0, 0), "{down:?}");
    assert!(node.core().map.functions()[1].vectors.load(std::sync::atomic::Ordering::SeqCst) == 0);
}
