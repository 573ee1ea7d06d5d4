//! Program memory that is lent to the node and returned.
//!
//! Lending depends on the whole process: its credit, mappings, threads and fork handlers. So each of these tests has a
//! process of its own.
#![allow(unsafe_code)]

use super::bed::{OnNode, Other, Pages, Scratch, command, eventually, listen, say};
use crate::{
    NodeOptions, NodeTransport,
    arena::{Arena, Owner},
    memory::arena_offset,
    node::Node,
    open_device_of,
};
use devmodel::host::{Abort, Bus, Move, Rid, Source};
use driver::{
    transport::{Access, Transport},
    verbs::{AccessFlags, Mr, Pd},
};
use migration::areas;
use std::{
    os::fd::{FromRawFd, OwnedFd},
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering::*},
    },
};

/// Whole pages with no other contents.
const WHOLE: Access = Access { exact: true, ..Access::BOTH };

struct Bed {
    node: Arc<Node>,
    transport: NodeTransport,
    _scratch: Scratch,
}

impl Bed {
    fn new() -> Self {
        let (scratch, node) = Scratch::with_node();
        let transport = NodeTransport::open(&node, 1).unwrap();
        Self { node, transport, _scratch: scratch }
    }

    fn map(&self, base: *mut u8, len: usize, access: Access) -> u64 {
        // SAFETY: the tests' pages, which live long enough.
        unsafe { self.transport.dma_map(base, len, access) }.unwrap()
    }

    fn lend(&self, pages: &mut Pages) -> u64 {
        let len = pages.bytes().len();
        let iova = self.map(pages.base(), len, WHOLE);
        assert!(arena_offset(iova).is_some(), "{iova:#x} is no address in the arena");
        iova
    }

    /// A write by the device.
    fn write(&self, iova: u64, bytes: &[u8]) {
        let core = self.node.core();
        core.drive(core.now(), |_, host| host.write(Rid(1), iova, bytes)).unwrap();
    }

    fn unmap(&self, iova: u64, len: usize) {
        self.transport.dma_unmap(iova, len).unwrap();
    }

    /// Number of this process's blocks in the arena.
    fn blocks(&self) -> usize {
        let core = self.node.core();
        let lock = core.locks.lock().unwrap();
        Arena::new(&core.map, &lock).count(Owner::Party(core.me.slot)).0
    }
}

fn with_pages(count: usize) -> (Bed, Pages) {
    (Bed::new(), Pages::new(count))
}

/// True if the page at `at` is private memory.
fn is_private(at: *const u8) -> bool {
    let start = at as usize;
    areas::within(start, start + 4096).unwrap().is_some_and(|parts| parts[0].is_private())
}

#[test]
fn lent_memory_is_the_programs_and_the_devices_and_comes_back() {
    testkit::alone!();
    let (bed, mut pages) = with_pages(4);
    pages.bytes()[0x1234] = 7;
    let iova = bed.lend(&mut pages);
    assert_eq!((pages.bytes()[0x1234], is_private(pages.base()), bed.blocks()), (7, false, 1));
    bed.write(iova + 0x1235, &[8, 9]);
    assert_eq!(pages.bytes()[0x1234..0x1238], [7, 8, 9, 0]);
    bed.unmap(iova, 0x4000);
    assert_eq!(pages.bytes()[0x1234..0x1238], [7, 8, 9, 0]);
    assert!(is_private(pages.base()));
    assert_eq!(bed.blocks(), 0);
}

#[test]
fn a_program_outlives_the_cutting_short_of_the_file_that_its_memory_is_lent_to() {
    testkit::alone!();
    let (bed, mut pages) = with_pages(4);
    pages.bytes().fill(7);
    bed.lend(&mut pages);
    bed.node.core().map.file().unwrap().set_len(4096).unwrap();
    assert_eq!(pages.bytes()[0x1234], 0, "what was lost reads as zeros");
    pages.bytes()[0x1234] = 8;
    assert_eq!(pages.bytes()[0x1234], 8);
    assert!(bed.node.core().is_lost(), "and the program is told that it has lost its devices");
}

#[test]
fn memory_with_anything_else_in_its_pages_stays() {
    testkit::alone!();
    let (bed, mut pages) = with_pages(1);
    let iova = bed.map(pages.base(), 4096, Access::BOTH);
    assert!(arena_offset(iova).is_none() && is_private(pages.base()));
    // Nor may it be moved as long as others access it at its address.
    let again = bed.map(pages.base(), 4096, WHOLE);
    assert!(arena_offset(again).is_none());
    bed.unmap(iova, 4096);
    bed.unmap(again, 4096);
    bed.lend(&mut pages);
}

#[test]
fn stacks_files_and_read_only_windows_stay_what_they_are() {
    testkit::alone!();
    let bed = Bed::new();
    let mut local = [0u8; 3 * 4096];
    let base = local.as_mut_ptr().wrapping_add(local.as_ptr().align_offset(4096));
    assert!(arena_offset(bed.map(base, 4096, WHOLE)).is_none(), "a stack was moved");
    let block = bed.transport.dma_alloc(4096, driver::transport::Scope::Opener).unwrap();
    assert!(arena_offset(bed.map(block.ptr.as_ptr(), 4096, WHOLE)).is_none(), "a file's memory was moved");
    let pages = Pages::new(1);
    pages.protect();
    let iova = bed.map(pages.base(), 4096, Access { write: false, ..WHOLE });
    assert!(arena_offset(iova).is_some());
    let rights = |at: *mut u8| areas::within(at as usize, at as usize + 1).unwrap().unwrap()[0].protection;
    assert_eq!(rights(pages.base()), libc::PROT_READ);
    bed.unmap(iova, 4096);
    assert_eq!(rights(pages.base()), libc::PROT_READ);
}

#[test]
fn registrations_share_what_is_lent_until_the_last_ends() {
    testkit::alone!();
    let (bed, mut pages) = with_pages(4);
    let base = pages.base();
    let whole = bed.lend(&mut pages);
    let part = bed.map(base.wrapping_add(4096), 4096, Access::BOTH);
    assert_eq!(part, whole + 4096);
    bed.unmap(whole, 4 * 4096);
    bed.write(part, &[5]);
    assert_eq!((pages.bytes()[4096], is_private(base)), (5, false));
    bed.unmap(part, 4096);
    assert!(is_private(base));
}

#[test]
fn a_registration_that_overlaps_keeps_what_is_lent() {
    testkit::alone!();
    let (bed, mut pages) = with_pages(4);
    let base = pages.base();
    let first = bed.map(base, 2 * 4096, WHOLE);
    let second = bed.map(base.wrapping_add(4096), 2 * 4096, WHOLE);
    assert!(arena_offset(first).is_some() && arena_offset(second).is_none());
    bed.unmap(first, 2 * 4096);
    bed.write(second, &[6]);
    assert_eq!((pages.bytes()[4096], is_private(base)), (6, false));
    bed.unmap(second, 2 * 4096);
    assert!(is_private(base));
    assert_eq!((bed.blocks(), pages.bytes()[4096]), (0, 6));
    // SAFETY: the pages are mapped until the end of the test.
    let paged = unsafe { bed.transport.dma_map_paged(base, 4096) }.unwrap();
    assert!(arena_offset(bed.map(base, 4096, WHOLE)).is_none(), "moved from under a region on demand");
    bed.transport.dma_unmap_paged(paged, 4096).unwrap();
}

#[test]
fn memory_that_the_program_gave_up_or_moved_is_no_trouble() {
    testkit::alone!();
    let (bed, mut pages) = with_pages(4);
    let iova = bed.lend(&mut pages);
    pages.cut(2);
    bed.write(iova + 0x3000, &[1]);
    bed.unmap(iova, 4 * 4096);
    assert!(is_private(pages.base()));

    let mut pages = Pages::new(2);
    pages.bytes()[5000] = 3;
    let iova = bed.lend(&mut pages);
    // As realloc does with a large block.
    // SAFETY: the pages move to an unused range, and back.
    unsafe {
        let elsewhere = libc::mremap(pages.base().cast(), 8192, 8192 * 2, libc::MREMAP_MAYMOVE);
        assert_ne!(elsewhere, libc::MAP_FAILED);
        let elsewhere = elsewhere.cast::<u8>();
        bed.write(iova + 5001, &[4]);
        assert_eq!((elsewhere.add(5000).read(), elsewhere.add(5001).read()), (3, 4));
        bed.unmap(iova, 8192);
        assert!(is_private(elsewhere) && is_private(elsewhere.add(4096)));
        assert_eq!((elsewhere.add(5000).read(), elsewhere.add(5001).read()), (3, 4));
        if elsewhere != pages.base() {
            libc::munmap(elsewhere.cast(), 8192 * 2);
        }
    }
    assert_eq!(bed.blocks(), 0);
}

#[test]
fn other_memory_at_the_same_place_is_another_registration() {
    testkit::alone!();
    let (bed, mut pages) = with_pages(2);
    let first = bed.lend(&mut pages);
    // The view of a registration cache that learns late of freed memory.
    // SAFETY: the pages are replaced in place.
    unsafe {
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED;
        let rights = libc::PROT_READ | libc::PROT_WRITE;
        assert_ne!(libc::mmap(pages.base().cast(), 8192, rights, flags, -1, 0), libc::MAP_FAILED);
    }
    let second = bed.map(pages.base(), 8192, WHOLE);
    bed.write(second + 10, &[8]);
    bed.write(first + 11, &[9]);
    assert_eq!(pages.bytes()[10..12], [8, 0]);
    bed.unmap(first, 8192);
    bed.unmap(second, 8192);
    assert_eq!((pages.bytes()[10], bed.blocks()), (8, 0));
}

#[test]
fn memory_that_may_not_be_read_comes_back_too() {
    testkit::alone!();
    let (bed, mut pages) = with_pages(2);
    let iova = bed.lend(&mut pages);
    bed.write(iova + 5000, &[3]);
    let protect = |rights| {
        // SAFETY: the test's own pages.
        assert_eq!(unsafe { libc::mprotect(pages.base().add(4096).cast(), 4096, rights) }, 0);
    };
    protect(libc::PROT_NONE);
    bed.unmap(iova, 8192);
    let areas = areas::within(pages.base() as usize + 4096, pages.base() as usize + 8192).unwrap().unwrap();
    assert!(areas[0].is_private() && areas[0].protection == libc::PROT_NONE);
    protect(libc::PROT_READ | libc::PROT_WRITE);
    assert_eq!(pages.bytes()[5000], 3);
}

#[test]
fn a_threads_own_variables_stay_where_they_are() {
    testkit::alone!();
    let bed = Bed::new();
    // SAFETY: only the address is used.
    let errno = unsafe { libc::__errno_location() } as usize & !0xfff;
    // SAFETY: a page of this thread, mapped as long as it runs.
    let iova = unsafe { bed.transport.dma_map(errno as *mut u8, 4096, WHOLE) }.unwrap();
    assert!(arena_offset(iova).is_none());
}

#[test]
fn a_child_has_a_copy_of_what_its_parent_may_not_read() {
    testkit::alone!();
    let (bed, mut pages) = with_pages(1);
    pages.bytes()[100] = 1;
    bed.lend(&mut pages);
    let (base, all) = (pages.base(), libc::PROT_READ | libc::PROT_WRITE);
    // SAFETY: the test's own page; the child only uses it and system calls.
    let status = unsafe {
        assert_eq!(libc::mprotect(base.cast(), 4096, libc::PROT_NONE), 0);
        let child = libc::fork();
        if child == 0 {
            libc::mprotect(base.cast(), 4096, all);
            let seen = base.add(100).read_volatile();
            base.add(100).write_volatile(9);
            libc::_exit(i32::from(seen != 1));
        }
        let mut status = -1;
        assert_eq!(libc::waitpid(child, &mut status, 0), child);
        assert_eq!(libc::mprotect(base.cast(), 4096, all), 0);
        status
    };
    assert_eq!((status, pages.bytes()[100]), (0, 1));
}

#[test]
fn a_child_of_fork_has_its_own_copy() {
    testkit::alone!();
    let (bed, mut pages) = with_pages(2);
    pages.bytes()[100] = 1;
    let iova = bed.lend(&mut pages);
    let (base, mut ends) = (pages.base(), [0; 2]);
    // SAFETY: two descriptors; the child only uses system calls and the pages.
    let child = unsafe {
        assert_eq!(libc::pipe(ends.as_mut_ptr()), 0);
        let child = libc::fork();
        if child == 0 {
            let mut word = 0u8;
            libc::read(ends[0], (&raw mut word).cast(), 1);
            let seen = base.add(100).read_volatile();
            base.add(100).write_volatile(9);
            base.add(4096).write_volatile(9);
            libc::_exit(i32::from(seen != 1));
        }
        child
    };
    assert!(child > 0);
    // The child does not see writes made after the fork, locally or over the wire.
    bed.write(iova + 100, &[2]);
    let mut status = -1;
    // SAFETY: the test's own child and descriptors.
    unsafe {
        assert_eq!(libc::write(ends[1], [0u8].as_ptr().cast(), 1), 1);
        assert_eq!(libc::waitpid(child, &mut status, 0), child);
        ends.into_iter().for_each(|end| drop(OwnedFd::from_raw_fd(end)));
    }
    assert_eq!(status, 0, "the child saw what came after it was made");
    assert_eq!((pages.bytes()[100], pages.bytes()[4096]), (2, 0), "the child's writes came here");
    assert!(!is_private(base), "the parent's memory stays lent");
}

#[test]
fn threads_that_write_meanwhile_lose_nothing() {
    testkit::alone!();
    let (bed, mut pages) = with_pages(2);
    let stop = AtomicBool::new(false);
    let words: &[AtomicU64] =
        // SAFETY: two pages of words; all threads use atomics.
        unsafe { std::slice::from_raw_parts(pages.base().cast(), 1024) };
    let done = std::thread::scope(|scope| {
        let _stop = testkit::Stop(&stop);
        let threads = [3usize, 700].map(|at| {
            let (stop, words) = (&stop, &words);
            scope.spawn(move || {
                let mut count = 0;
                while !stop.load(Relaxed) {
                    // Not an atomic increment: a lost write would be noticed.
                    words[at].store(words[at].load(Relaxed) + 1, Relaxed);
                    count += 1;
                }
                count
            })
        });
        for _ in 0..300 {
            let iova = bed.map(pages.base(), 8192, WHOLE);
            assert!(arena_offset(iova).is_some());
            bed.unmap(iova, 8192);
        }
        stop.store(true, Relaxed);
        threads.map(|thread| thread.join().unwrap())
    });
    let found = [3, 700].map(|at: usize| words[at].load(Relaxed));
    assert_eq!(found, done);
    assert!(is_private(pages.base()) && !pages.bytes().is_empty());
}

#[test]
fn a_program_that_leaves_the_node_keeps_its_memory() {
    testkit::alone!();
    let scratch = Scratch::new();
    let mut pages = Pages::new(3);
    pages.bytes().fill(0x5a);
    let node = scratch.node();
    let transport = NodeTransport::open(&node, 1).unwrap();
    // SAFETY: the pages outlive the node.
    let iova = unsafe { transport.dma_map(pages.base(), 3 * 4096, WHOLE) }.unwrap();
    assert!(arena_offset(iova).is_some());
    drop((transport, node));
    assert!(is_private(pages.base()));
    assert!(pages.bytes().iter().all(|byte| *byte == 0x5a));
}

#[test]
fn nothing_is_lent_to_a_node_whose_programs_keep_apart() {
    testkit::alone!();
    let scratch = Scratch::new();
    let node = scratch.node_with(&NodeOptions { no_direct_copies: true, ..NodeOptions::default() });
    let transport = NodeTransport::open(&node, 1).unwrap();
    let pages = Pages::new(1);
    // SAFETY: the page outlives the node.
    let iova = unsafe { transport.dma_map(pages.base(), 4096, WHOLE) }.unwrap();
    assert!(arena_offset(iova).is_none() && is_private(pages.base()));
}

#[test]
fn there_is_an_end_to_what_a_program_lends() {
    testkit::alone!();
    let bed = Bed::new();
    let mut many = Pages::new(600);
    let base = many.base();
    let maps: Vec<u64> = (0..300).map(|i| bed.map(base.wrapping_add(i * 8192), 4096, WHOLE)).collect();
    assert_eq!(maps.iter().filter(|iova| arena_offset(**iova).is_some()).count(), 256);
    maps.iter().for_each(|iova| bed.unmap(*iova, 4096));
    assert_eq!((bed.blocks(), bed.node.core().lent.bytes()), (0, 0));
    let large = Pages::new((16 << 20) / 4096 + 1);
    assert!(arena_offset(bed.map(large.base(), (16 << 20) + 4096, WHOLE)).is_none());
    assert_eq!(many.bytes()[0], 0);
}

pub fn lends(dir: &Path) {
    let node = Node::open(dir).unwrap();
    let transport = NodeTransport::open(&node, 1).unwrap();
    let mut pages = Pages::new(4);
    pages.bytes().fill(1);
    // SAFETY: the pages live as long as the transport.
    say(unsafe { transport.dma_map(pages.base(), 4 * 4096, WHOLE) }.unwrap());
    loop {
        listen();
        say(pages.bytes()[100]);
    }
}

/// A node, another program on it, and the address that it reports for its memory.
fn with_a_lender(env: &[(&str, &str)]) -> (Scratch, Arc<Node>, Other, u64) {
    let (scratch, node) = Scratch::with_node();
    let mut other = Other::start(command(&scratch, "lend").envs(env.iter().copied()));
    let iova = other.hear_number();
    (scratch, node, other, iova)
}

#[test]
fn a_program_may_forbid_that_its_memory_is_lent() {
    testkit::alone!();
    let (_scratch, _node, _other, iova) = with_a_lender(&[("IRONVERBS_LEND", "0")]);
    assert!(arena_offset(iova).is_none(), "{iova:#x} lies in the arena");
}

#[test]
fn a_region_of_whole_pages_is_lent_and_one_of_parts_is_not() {
    testkit::alone!();
    let (_scratch, node) = Scratch::with_node();
    let device = open_device_of(&node, 1).unwrap();
    let pd = Pd::alloc(&device).unwrap();
    let pages = Pages::new(4);
    let lent = |from: usize, len: usize| {
        let at = pages.base().wrapping_add(from);
        // SAFETY: within the pages, which outlive the region.
        let mr = unsafe { Mr::register(&pd, at, len, at as u64, AccessFlags::LOCAL_WRITE) }.unwrap();
        let bytes = node.core().lent.bytes();
        drop(mr);
        bytes
    };
    assert_eq!([lent(0, 8192), lent(4096, 4096)], [8192, 4096]);
    assert_eq!([lent(1, 8191), lent(0, 8191), lent(64, 64)], [0; 3]);
    assert_eq!(node.core().lent.bytes(), 0);
}

#[test]
fn another_program_reaches_it_without_a_call_and_a_killed_owner_leaves_nothing() {
    testkit::alone!();
    let (_scratch, node, mut other, iova) = with_a_lender(&[]);
    let (_ours, core) = (NodeTransport::open(&node, 2).unwrap(), node.core());
    let mut seen = [0; 2];
    core.drive(core.now(), |_, host| {
        host.read(Rid(1), iova + 99, &mut seen).unwrap();
        host.write(Rid(1), iova + 100, &[42]).unwrap();
    });
    other.tell("look");
    assert_eq!((seen, other.hear_number()), ([1, 1], 42));
    assert_eq!(node.status().unwrap().driver_memory, 4 * 4096);
    other.kill();
    assert_eq!(node.status().unwrap().driver_memory, 0);
}

#[test]
fn a_dead_program_has_no_memory_even_before_it_is_cleaned_up_after() {
    testkit::alone!();
    let (_scratch, node, mut other, iova) = with_a_lender(&[]);
    let (_ours, core) = (NodeTransport::open(&node, 2).unwrap(), node.core());
    let put = || {
        let one = Move { src: Source::Staged(0), dst_rid: Rid(1), dst: iova, len: 4 };
        core.drive(core.now(), |_, host| host.copy(&[1, 2, 3, 4], &[one]))
    };
    assert_eq!(put(), Ok(()));
    other.kill();
    assert_eq!(put(), Err(Abort::Gone));
    eventually("the write that failed made us look", || core.map.header().reaped.load(SeqCst) == 1);
}
