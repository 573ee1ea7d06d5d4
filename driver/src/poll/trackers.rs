//! Posted work requests of a QP, as polls need them.

use crate::{inline::Inbox, shared_receive::SharedReceives, verbs::WcOpcode};
use std::sync::{
    Arc,
    atomic::{
        AtomicU32, AtomicU64,
        Ordering::{Acquire, Relaxed, Release},
    },
};

/// What a QP keeps of posted work requests, for whoever polls. Written by posts (under the queue's lock) before the
/// doorbell, read by polls (under the CQ's lock) after the CQE.
pub struct QpQueues {
    pub qpn: u32,
    /// Whether completions say more than what came: from whom, as messages come from whoever knows the number; or of raw
    /// packets, what was found right.
    pub tells_more: bool,
    /// Whether it is of raw packets, two queues on the device.
    pub raw: bool,
    pub sq: SendTracker,
    pub rq: RecvTracker,
    /// Where the receives point, for messages that come in the CQE.
    pub inbox: Option<Inbox>,
    /// Where they come from, if not from an own queue.
    pub srq: Option<Arc<SharedReceives>>,
}

/// Send work requests under way.
pub struct SendTracker {
    /// By first basic block: the caller's id, and `number << 32 | first basic block behind it`.
    slots: Box<[(AtomicU64, AtomicU64)]>,
    mask: u32,
    /// Work requests posted.
    head: AtomicU32,
    /// `work requests done << 32 | basic blocks done`.
    tail: AtomicU64,
}

impl SendTracker {
    /// For a ring of `blocks` basic blocks (a power of two; 0: no send queue).
    pub fn new(blocks: u32) -> Self {
        let slots = (0..blocks.max(1)).map(|_| Default::default()).collect();
        Self { slots, mask: blocks.max(1) - 1, head: AtomicU32::new(0), tail: AtomicU64::new(0) }
    }

    /// Writes down a work request before the device can see it.
    #[inline(always)]
    pub fn put(&self, block: u32, wr_id: u64, number: u32, end: u32) {
        let slot = &self.slots[(block & self.mask) as usize];
        slot.0.store(wr_id, Relaxed);
        slot.1.store(u64::from(number) << 32 | u64::from(end), Relaxed);
    }

    /// Notes that the work request at `block`, of several blocks, binds a memory window, or does not: the device's
    /// completion tells changes of keys not apart.
    pub fn mark(&self, block: u32, binds: bool) {
        self.slots[(block.wrapping_add(1) & self.mask) as usize].0.store(binds.into(), Relaxed);
    }

    /// What a change of a key was, of the work request whose completion names block `counter`.
    #[cold]
    pub(super) fn change(&self, counter: u16) -> WcOpcode {
        let slot = (u32::from(counter).wrapping_add(1) & self.mask) as usize;
        if self.slots[slot].0.load(Relaxed) == 0 { WcOpcode::LocalInv } else { WcOpcode::BindMw }
    }

    /// Makes all up to `head` count.
    #[inline(always)]
    pub fn publish(&self, head: u32) {
        self.head.store(head, Release);
    }

    /// Work requests and basic blocks done.
    #[inline(always)]
    pub fn done(&self) -> (u32, u32) {
        let tail = self.tail.load(Acquire);
        ((tail >> 32) as u32, tail as u32)
    }

    /// The work request at basic block `counter` is done, and all before it. `None` if nothing is under way there.
    #[inline(always)]
    pub(super) fn complete(&self, counter: u16) -> Option<u64> {
        let slot = &self.slots[(u32::from(counter) & self.mask) as usize];
        let meta = slot.1.load(Relaxed);
        let (number, tail) = ((meta >> 32) as u32, (self.tail.load(Relaxed) >> 32) as u32);
        if number.wrapping_sub(tail) >= self.head.load(Acquire).wrapping_sub(tail) {
            return None;
        }
        let wr_id = slot.0.load(Relaxed);
        self.tail.store(u64::from(number.wrapping_add(1)) << 32 | meta & 0xffff_ffff, Release);
        Some(wr_id)
    }

    /// Forgets everything (the QP is reset).
    pub fn reset(&self) {
        self.head.store(0, Relaxed);
        self.tail.store(0, Release);
    }
}

/// Receive work requests under way.
pub struct RecvTracker {
    wr_ids: Box<[AtomicU64]>,
    mask: u32,
    head: AtomicU32,
    tail: AtomicU32,
}

impl RecvTracker {
    /// For a ring of `entries` (a power of two; 0: no receive queue).
    pub fn new(entries: u32) -> Self {
        let wr_ids = (0..entries.max(1)).map(|_| AtomicU64::new(0)).collect();
        Self { wr_ids, mask: entries.max(1) - 1, head: AtomicU32::new(0), tail: AtomicU32::new(0) }
    }

    /// Writes down a work request before the device can see it.
    #[inline(always)]
    pub fn put(&self, number: u32, wr_id: u64) {
        self.wr_ids[(number & self.mask) as usize].store(wr_id, Relaxed);
    }

    /// Makes all up to `head` count.
    #[inline(always)]
    pub fn publish(&self, head: u32) {
        self.head.store(head, Release);
    }

    /// Work requests done.
    #[inline(always)]
    pub fn done(&self) -> u32 {
        self.tail.load(Acquire)
    }

    /// The receive that `counter` names, if it is under way.
    #[inline(always)]
    pub(super) fn number(&self, counter: u16) -> Option<u32> {
        let tail = self.tail.load(Relaxed);
        let ahead = u32::from(counter.wrapping_sub(tail as u16));
        (ahead < self.head.load(Acquire).wrapping_sub(tail)).then_some(tail.wrapping_add(ahead))
    }

    /// Receive `number` is done, and all before it: its entry may be used again.
    #[inline(always)]
    pub(super) fn retire(&self, number: u32) -> u64 {
        let wr_id = self.wr_ids[(number & self.mask) as usize].load(Relaxed);
        self.tail.store(number.wrapping_add(1), Release);
        wr_id
    }

    #[inline(always)]
    pub(super) fn complete(&self, counter: u16) -> Option<u64> {
        Some(self.retire(self.number(counter)?))
    }

    /// Forgets everything (the QP is reset).
    pub fn reset(&self) {
        self.head.store(0, Relaxed);
        self.tail.store(0, Release);
    }
}
