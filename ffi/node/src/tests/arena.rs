//! The arena's books.

#![allow(unsafe_code)]

use super::bed::{OnNode, Scratch};
use crate::{
    arena::{Arena, Owner},
    file::PAGE,
    node::Node,
};
use std::{collections::BTreeMap, sync::atomic::Ordering::*, time::Instant};

fn with_arena<R>(node: &Node, f: impl FnOnce(&Arena<'_>) -> R) -> R {
    let lock = node.core().locks.lock().unwrap();
    f(&Arena::new(&node.core().map, &lock))
}

#[test]
fn blocks_never_overlap_and_all_come_back() {
    let (_scratch, node) = Scratch::with_node();
    let mut live: BTreeMap<u32, u32> = BTreeMap::new();
    let mut seed = 7u64;
    let mut random = move |below: u64| {
        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        (seed >> 33) % below
    };
    for _ in 0..2000 {
        if random(5) < 3 || live.is_empty() {
            let len = 1 + random(40_000) as usize;
            let page = with_arena(&node, |a| a.alloc(len, Owner::Party(9), node.dir())).unwrap();
            let pages = len.div_ceil(PAGE) as u32;
            let before = live.range(..page + pages).next_back();
            assert!(before.is_none_or(|(at, n)| at + n <= page), "block {page} lies in {before:?}");
            live.insert(page, pages);
        } else {
            let nth = random(live.len() as u64) as usize;
            let page = *live.keys().nth(nth).unwrap();
            live.remove(&page);
            with_arena(&node, |a| a.free(page));
        }
        if random(100) == 0 {
            // Simulates a party that died during a change: the next one rebuilds the lists.
            node.core().map.header().arena_busy.store(1, SeqCst);
        }
    }
    let sum: u64 = live.values().map(|n| u64::from(*n)).sum();
    assert_eq!(with_arena(&node, |a| a.count(Owner::Party(9))), (live.len(), sum));
    assert_eq!(with_arena(&node, |a| a.free_all(Owner::Party(9))), live.len());
    assert_eq!(node.core().map.header().arena_used.load(SeqCst), 0);
}

#[test]
fn memory_comes_zeroed_also_when_it_was_used_before() {
    let (_scratch, node) = Scratch::with_node();
    let mut pages = Vec::new();
    for _ in 0..3 {
        let page = with_arena(&node, |a| a.alloc(3 * PAGE, Owner::Function(1), node.dir())).unwrap();
        let at = node.core().map.arena(u64::from(page) * PAGE as u64, 3 * PAGE).unwrap();
        #[allow(unsafe_code)]
        // SAFETY: a block that is not shared.
        let bytes = unsafe { std::slice::from_raw_parts_mut(at.as_ptr(), 3 * PAGE) };
        assert!(bytes.iter().all(|b| *b == 0));
        bytes.fill(0xa5);
        with_arena(&node, |a| a.free(page));
        pages.push(page);
    }
    assert_eq!(pages, [pages[0]; 3], "what is free is used again");
}

#[test]
fn freeing_twice_or_in_the_middle_of_a_block_does_nothing() {
    let (_scratch, node) = Scratch::with_node();
    let page = with_arena(&node, |a| a.alloc(4 * PAGE, Owner::Party(3), node.dir())).unwrap();
    with_arena(&node, |a| {
        a.free(page + 1);
        assert_eq!(a.count(Owner::Party(3)), (1, 4));
        a.free(page);
        a.free(page);
        a.free(u32::MAX);
        assert_eq!(a.count(Owner::Party(3)), (0, 0));
    });
    assert_eq!(node.core().map.header().arena_used.load(SeqCst), 0);
}

#[test]
fn more_than_the_arena_has_is_refused() {
    let (_scratch, node) = Scratch::with_node();
    let refused = with_arena(&node, |a| a.alloc(1 << 46, Owner::Party(3), node.dir()));
    assert!(refused.unwrap_err().to_string().contains("no room"));
    assert_eq!(node.core().map.header().arena_used.load(SeqCst), 0);
}

#[test]
fn the_ten_thousandth_block_costs_no_more_than_the_first() {
    let (_scratch, node) = Scratch::with_node();
    let round = || {
        let begin = Instant::now();
        for _ in 0..1000 {
            with_arena(&node, |a| a.alloc(2 * PAGE, Owner::Party(9), node.dir())).unwrap();
        }
        begin.elapsed()
    };
    let times: Vec<_> = (0..20).map(|_| round()).collect();
    let half = |t: &[std::time::Duration]| t.iter().min().unwrap().as_nanos();
    let (early, late) = (half(&times[..10]), half(&times[10..]));
    assert!(late < 3 * early, "1000 blocks took {early} ns at first and {late} ns later");
    let memory = node.status().unwrap().memory;
    assert!(memory < (20_000 * 2 * PAGE + (16 << 20)) as u64, "{memory} bytes");
    assert_eq!(with_arena(&node, |a| a.free_all(Owner::Party(9))), 20_000);
    assert!(node.status().unwrap().memory < 16 << 20, "freed memory goes back");
}

/// Prevents the calling thread from punching holes into files from now on.
fn forbid_holes() {
    let op = |code: u32, jf, k| seccompiler::sock_filter { code: code as u16, jt: 0, jf, k };
    let holes = libc::FALLOC_FL_PUNCH_HOLE as u32;
    let (number, mode) = (0, 24);
    let sys_fallocate = libc::SYS_fallocate as u32;
    let filter = [
        op(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, 0, number),
        op(libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K, 3, sys_fallocate),
        op(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, 0, mode),
        op(libc::BPF_JMP | libc::BPF_JSET | libc::BPF_K, 1, holes),
        op(libc::BPF_RET | libc::BPF_K, 0, libc::SECCOMP_RET_ERRNO | libc::ENOMEM as u32),
        op(libc::BPF_RET | libc::BPF_K, 0, libc::SECCOMP_RET_ALLOW),
    ];
    seccompiler::apply_filter(&filter).unwrap();
}

#[test]
fn a_block_is_free_and_zero_where_no_holes_can_be_made() {
    testkit::alone!();
    let (_scratch, node) = Scratch::with_node();
    forbid_holes();
    let (len, owner) = (40 * PAGE, Owner::Party(9));
    let mut first = None;
    for _ in 0..3 {
        let page = with_arena(&node, |a| a.alloc(len, owner, node.dir())).unwrap();
        assert_eq!(*first.get_or_insert(page), page, "the block was used again");
        let at = node.core().map.arena(u64::from(page) * PAGE as u64, len).unwrap();
        // SAFETY: within the block, which belongs to this thread.
        let bytes = unsafe { std::slice::from_raw_parts_mut(at.as_ptr(), len) };
        assert!(bytes.iter().all(|byte| *byte == 0));
        bytes.fill(0xee);
        with_arena(&node, |a| a.free(page));
        assert_eq!(with_arena(&node, |a| a.count(owner)), (0, 0));
    }
}
