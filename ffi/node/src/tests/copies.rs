//! Memory of several programs, and interrupts across them.

use super::bed::{OnNode, Other, Pages, Scratch, eventually, listen, say, start, until_killed};
use crate::{NodeOptions, NodeTransport, ServedFunction, node::Node};
use devmodel::host::{Abort, Bus, Move, Parties, Party, Rid, Source};
use driver::transport::{Access, Scope, Transport};
use std::{path::Path, time::Duration};

const BOTH: Access = Access::BOTH;

#[allow(unsafe_code)]
fn map(transport: &NodeTransport, pages: &mut Pages) -> u64 {
    let len = pages.bytes().len();
    // SAFETY: the pages live as long as the transport in these tests.
    unsafe { transport.dma_map(pages.base(), len, BOTH) }.unwrap()
}

pub fn lends_memory(dir: &Path) {
    let node = Node::open(dir).unwrap();
    let transport = NodeTransport::open(&node, 1).unwrap();
    let mut pages = Pages::new(4);
    pages.bytes().iter_mut().enumerate().for_each(|(i, b)| *b = i as u8);
    say(map(&transport, &mut pages));
    say(node.party());
    loop {
        match listen().as_str() {
            "sum" => say(pages.bytes().iter().map(|b| u64::from(*b)).sum::<u64>()),
            "cut" => {
                pages.cut(2);
                say("cut");
            }
            other => panic!("asked for {other}"),
        }
    }
}

fn ask(other: &mut Other, what: &str) -> String {
    other.tell(what);
    other.hear()
}

fn bus(fid: u8, at: u64) -> Source {
    Source::Bus(Rid(fid), at)
}

/// A program with write access to the node's memory, such as one in a container, can name any process there. Root's programs must not
/// access that process.
#[test]
fn memory_is_copied_with_the_process_that_holds_the_place_and_with_no_other() {
    let (scratch, node) = Scratch::with_node();
    let _ours = NodeTransport::open(&node, 2).unwrap();
    let mut other = start(&scratch, "memory");
    let (_, party) = (other.hear_number(), other.hear_number() as u16);
    let core = node.core();
    let holder = core.pid(party);
    let named = &core.map.party(party).pid;
    assert_eq!(named.load(std::sync::atomic::Ordering::Relaxed), holder);
    named.store(std::process::id(), std::sync::atomic::Ordering::Relaxed);
    assert_eq!(crate::party::probe(&core.map, core.locks, party), Some(Some(holder)), "as it is found out");
    assert_eq!(core.copied(party), Some(holder), "as it is known");
    named.store(holder, std::sync::atomic::Ordering::Relaxed);
}

#[test]
fn bytes_go_between_two_programs_in_one_copy() {
    let (scratch, node) = Scratch::with_node();
    let ours = NodeTransport::open(&node, 2).unwrap();
    let mut other = start(&scratch, "memory");
    let (theirs, party) = (other.hear_number(), other.hear_number());
    let mut pages = Pages::new(4);
    let here = map(&ours, &mut pages);
    let core = node.core();
    core.drive(core.now(), |_, host| {
        assert!(host.reaches(Party(party as u16)));
        let moves: Vec<Move> = (0..16)
            .map(|i| Move {
                src: bus(1, theirs + i * 1024),
                dst_rid: Rid(2),
                dst: here + i * 1024,
                len: 1024,
            })
            .collect();
        host.copy(&[], &moves).unwrap();
    });
    assert!(pages.bytes().iter().enumerate().all(|(i, b)| *b == i as u8));
    core.drive(core.now(), |_, host| {
        host.write(Rid(1), theirs, &[0; 4096]).unwrap();
        // Later moves to the same place take precedence.
        let to = |src, len| Move { src, dst_rid: Rid(1), dst: theirs, len };
        host.copy(&[1, 2, 3, 4], &[to(bus(2, here + 255), 4), to(Source::Staged(0), 2)]).unwrap();
        let mut back = [0; 5];
        host.read(Rid(1), theirs, &mut back).unwrap();
        assert_eq!(back, [1, 2, 1, 2, 0]);
    });
    let untouched: u64 = 3 * 16 * (0..256u64).sum::<u64>();
    assert_eq!(ask(&mut other, "sum"), (untouched + 6).to_string());
}

#[test]
fn memory_that_is_gone_aborts_the_transfer() {
    let (scratch, node) = Scratch::with_node();
    let ours = NodeTransport::open(&node, 2).unwrap();
    let mut other = start(&scratch, "memory");
    let (theirs, _) = (other.hear_number(), other.hear());
    let mut pages = Pages::new(4);
    let here = map(&ours, &mut pages);
    assert_eq!(ask(&mut other, "cut"), "cut");
    let core = node.core();
    let fetch = |len| {
        let one = Move { src: bus(1, theirs), dst_rid: Rid(2), dst: here, len };
        core.drive(core.now(), |_, host| host.copy(&[], &[one]))
    };
    assert_eq!(fetch(8192), Ok(()));
    assert_eq!(fetch(8193), Err(Abort::Source));
    let put = core.drive(core.now(), |_, host| host.write(Rid(1), theirs + 8190, &[0; 4]));
    assert_eq!(put, Err(Abort::Destination));
    other.kill();
    assert_eq!(fetch(1), Err(Abort::Gone));
    eventually("the copy that failed made us look", || {
        node.core().map.header().reaped.load(std::sync::atomic::Ordering::SeqCst) == 1
    });
}

#[test]
fn only_what_crosses_the_border_of_a_server_travels_by_value() {
    let (_scratch, node) = Scratch::with_node();
    let by_reference = |from, to| {
        let core = node.core();
        core.drive(core.now(), |_, host| host.by_reference(Rid(from), Rid(to)))
    };
    assert!(by_reference(1, 2));
    let served = [0, 3].map(|fid| ServedFunction::claim(&node, fid).unwrap());
    assert!(by_reference(1, 2), "both are programs'");
    assert!(by_reference(0, 3), "both are guests' of one server");
    assert!(!by_reference(1, 3) && !by_reference(3, 1), "one is a guest's");
    drop(served);
    assert!(by_reference(1, 3));
}

#[test]
fn a_function_reaches_only_memory_of_its_openers() {
    let (scratch, node) = Scratch::with_node();
    let ours = NodeTransport::open(&node, 2).unwrap();
    let mut other = start(&scratch, "memory");
    let (theirs, _) = (other.hear_number(), other.hear());
    let mut pages = Pages::new(1);
    let here = map(&ours, &mut pages);
    let core = node.core();
    core.drive(core.now(), |_, host| {
        let mut buf = [0; 8];
        assert_eq!(host.read(Rid(2), theirs, &mut buf), Err(Abort::Source));
        assert_eq!(host.read(Rid(1), here, &mut buf), Err(Abort::Source));
        assert_eq!(host.read(Rid(2), here, &mut buf), Ok(()));
        // Nor memory that was not mapped for the device, nor addresses that do not exist.
        assert_eq!(host.read(Rid(2), here + 4096, &mut buf), Err(Abort::Source));
        assert_eq!(host.read(Rid(2), here - 1, &mut buf), Err(Abort::Source));
        for nowhere in [0, 0x1234, u64::MAX, u64::MAX - 3, 0xa7e0_ffff_ffff_fff0, 0x0001_0000_0000_0000] {
            assert_eq!(host.write(Rid(2), nowhere, &buf), Err(Abort::Destination), "{nowhere:#x}");
        }
    });
    ours.dma_unmap(here, 4096).unwrap();
    let after = core.drive(core.now(), |_, host| host.read(Rid(2), here, &mut [0; 8]));
    assert_eq!(after, Err(Abort::Source));
}

#[test]
fn memory_that_is_not_there_cannot_be_mapped() {
    let (_scratch, node) = Scratch::with_node();
    let ours = NodeTransport::open(&node, 2).unwrap();
    #[allow(unsafe_code)]
    let try_map = |base: *mut u8, len: usize, access: Access| {
        // SAFETY: refused, or unmapped again below.
        unsafe { ours.dma_map(base, len, access) }.map_err(|e| e.raw_os_error())
    };
    let mut pages = Pages::new(4);
    let base = pages.base();
    pages.cut(2);
    assert_eq!(try_map(base, 4 * 4096, BOTH), Err(Some(libc::EFAULT)));
    assert!(try_map(base, 2 * 4096, BOTH).is_ok());
    pages.protect();
    assert_eq!(try_map(base, 4096, BOTH), Err(Some(libc::EFAULT)), "read-only memory is not for writing");
    assert!(try_map(base, 4096, Access { write: false, ..BOTH }).is_ok());
}

#[test]
fn a_node_may_forbid_direct_copies() {
    let scratch = Scratch::new();
    let options = NodeOptions { no_direct_copies: true, ..NodeOptions::default() };
    let node = scratch.node_with(&options);
    let _ours = NodeTransport::open(&node, 2).unwrap();
    let mut other = start(&scratch, "memory");
    let (theirs, party) = (other.hear_number(), other.hear_number() as u16);
    assert!(!node.reaches(party) && node.reaches(node.party()));
    let core = node.core();
    let read = core.drive(core.now(), |_, host| host.read(Rid(1), theirs, &mut [0; 8]));
    assert_eq!(read, Err(Abort::Gone));
    // Rings are in memory that all programs share.
    let ring = NodeTransport::open(&node, 1).unwrap().dma_alloc(4096, Scope::Opener).unwrap();
    assert_eq!(core.drive(core.now(), |_, host| host.write(Rid(1), ring.iova, &[1; 64])), Ok(()));
}

pub fn waits_for_an_interrupt(dir: &Path) {
    let node = Node::open(dir).unwrap();
    let transport = NodeTransport::open(&node, 1).unwrap();
    let interrupt = transport.interrupt(5).unwrap();
    say("ready");
    for _ in 0..5 {
        say(interrupt.wait(Some(Duration::from_secs(5))).unwrap() && interrupt.clear().unwrap());
    }
    until_killed()
}

#[test]
fn interrupts_reach_all_listeners_of_the_vector() {
    let (scratch, node) = Scratch::with_node();
    let mut other = start(&scratch, "interrupt");
    assert_eq!(other.hear(), "ready");
    let core = node.core();
    for _ in 0..3 {
        core.drive(core.now(), |_, host| host.msix(Rid(1), 5, 0, 0));
        assert_eq!(other.hear(), "true");
    }
    let ours = NodeTransport::open(&node, 1).unwrap();
    let own = ours.interrupt(6).unwrap();
    core.drive(core.now(), |_, host| host.msix(Rid(1), 6, 0, 0));
    assert!(own.wait(Some(Duration::ZERO)).unwrap());
    // A listener to a vector is woken together with all its other listeners: openers in this process and other programs.
    let more = NodeTransport::open(&node, 1).unwrap();
    let shared = [ours.interrupt(5).unwrap(), more.interrupt(5).unwrap()];
    core.drive(core.now(), |_, host| host.msix(Rid(1), 5, 0, 0));
    assert!(shared.iter().all(|one| one.wait(Some(Duration::ZERO)).unwrap() && one.clear().unwrap()));
    assert_eq!(other.hear(), "true");
    // An opener that leaves does not affect the others.
    drop(more);
    core.drive(core.now(), |_, host| host.msix(Rid(1), 5, 0, 0));
    assert!(shared[0].wait(Some(Duration::ZERO)).unwrap() && shared[0].clear().unwrap());
    assert!(!shared[1].wait(Some(Duration::ZERO)).unwrap());
    assert_eq!(other.hear(), "true");
    // A vector without listeners, and one that does not exist.
    core.drive(core.now(), |_, host| (host.msix(Rid(1), 7, 0, 0), host.msix(Rid(1), 700, 0, 0)));
}

#[test]
fn a_parked_thread_that_nobody_needs_never_runs() {
    let (scratch, node) = Scratch::with_node();
    let _ours = NodeTransport::open(&node, 2).unwrap();
    let mut other = start(&scratch, "memory");
    let (theirs, party) = (other.hear_number(), other.hear_number() as u16);
    let core = node.core();
    let ran = || {
        let status = node.status().unwrap();
        let party = status.parties.iter().find(|p| p.party == party).unwrap();
        (party.wakes, party.ticks)
    };
    assert_eq!(ran(), (0, 0));
    core.drive(core.now(), |_, host| (0..100).for_each(|_| host.write(Rid(1), theirs, &[1; 64]).unwrap()));
    std::thread::sleep(Duration::from_millis(50));
    assert_eq!(ran(), (0, 0));
    core.drive(core.now(), |_, host| host.wake(Party(party)));
    eventually("it runs when it is woken", || ran().0 == 1);
}
