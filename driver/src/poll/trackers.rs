//! The posted work requests of a QP, as needed by polls.

use crate::{inline::Inbox, shared_receive::SharedReceives, verbs::WcOpcode};
use std::sync::{
    Arc,
    atomic::{
        AtomicU32, AtomicU64,
        Ordering::{Acquire, Relaxed, Release},
    },
};

/// The posted work requests of a QP. Posts write here (under the queue's lock) before the doorbell; polls read (under
/// the CQ's lock) after the CQE.
pub struct QpQueues {
    pub qpn: u32,
    /// True if its completions have more than the plain fields: the source of a datagram, or the verified checksums of
    /// a raw packet.
    pub extended: bool,
    /// True for a raw packet QP, which consists of two queues on the device.
    pub raw: bool,
    pub sq: SendTracker,
    pub rq: RecvTracker,
    /// The buffers of its receives, for messages that arrive in the CQE.
    pub inbox: Option<Inbox>,
    /// The shared receive queue, if it has no receive queue of its own.
    pub srq: Option<Arc<SharedReceives>>,
}

/// Outstanding send work requests.
pub struct SendTracker {
    /// By first basic block: the caller's id, and `number << 32 | basic block after the last`.
    slots: Box<[(AtomicU64, AtomicU64)]>,
    mask: u32,
    /// Work requests posted.
    head: AtomicU32,
    /// `number of the last completed work request << 32 | completed basic blocks`.
    tail: AtomicU64,
}

/// [`SendTracker::tail`] before the first completion, since numbers begin with 0.
const NONE_DONE: u64 = (u32::MAX as u64) << 32;

impl SendTracker {
    /// A tracker for a ring of `blocks` basic blocks (a power of two; 0: no send queue).
    pub fn new(blocks: u32) -> Self {
        let slots = (0..blocks.max(1)).map(|_| Default::default()).collect();
        Self { slots, mask: blocks.max(1) - 1, head: AtomicU32::new(0), tail: AtomicU64::new(NONE_DONE) }
    }

    /// Records a work request before the device can see it.
    #[inline(always)]
    pub fn put(&self, block: u32, wr_id: u64, number: u32, end: u32) {
        let slot = &self.slots[(block & self.mask) as usize];
        slot.0.store(wr_id, Relaxed);
        slot.1.store(u64::from(number) << 32 | u64::from(end), Relaxed);
    }

    /// Records whether the UMR at `block`, which has several blocks, binds a memory window, since the device's
    /// completion does not tell.
    pub fn mark(&self, block: u32, binds: bool) {
        self.slots[(block.wrapping_add(1) & self.mask) as usize].0.store(binds.into(), Relaxed);
    }

    /// The operation of a completed UMR at block `counter`.
    #[cold]
    pub(super) fn change(&self, counter: u16) -> WcOpcode {
        let slot = (u32::from(counter).wrapping_add(1) & self.mask) as usize;
        if self.slots[slot].0.load(Relaxed) == 0 { WcOpcode::LocalInv } else { WcOpcode::BindMw }
    }

    /// Publishes the work requests up to `head` to polls.
    #[inline(always)]
    pub fn publish(&self, head: u32) {
        self.head.store(head, Release);
    }

    /// Number of completed work requests and basic blocks.
    #[inline(always)]
    pub fn done(&self) -> (u32, u32) {
        let tail = self.tail.load(Acquire);
        (((tail >> 32) as u32).wrapping_add(1), tail as u32)
    }

    /// Completes the work request at basic block `counter` and all before it. `None` if none is outstanding there.
    #[inline(always)]
    pub(super) fn complete(&self, counter: u16) -> Option<u64> {
        let slot = &self.slots[(u32::from(counter) & self.mask) as usize];
        let meta = slot.1.load(Relaxed);
        let (number, done) = ((meta >> 32) as u32, ((self.tail.load(Relaxed) >> 32) as u32).wrapping_add(1));
        if number.wrapping_sub(done) >= self.head.load(Acquire).wrapping_sub(done) {
            return None;
        }
        let wr_id = slot.0.load(Relaxed);
        self.tail.store(meta, Release);
        Some(wr_id)
    }

    /// Clears the tracker after a reset of the QP.
    pub fn reset(&self) {
        self.head.store(0, Relaxed);
        self.tail.store(NONE_DONE, Release);
    }
}

/// Outstanding receive work requests.
pub struct RecvTracker {
    wr_ids: Box<[AtomicU64]>,
    mask: u32,
    head: AtomicU32,
    tail: AtomicU32,
}

impl RecvTracker {
    /// A tracker for a ring of `entries` (a power of two; 0: no receive queue).
    pub fn new(entries: u32) -> Self {
        let wr_ids = (0..entries.max(1)).map(|_| AtomicU64::new(0)).collect();
        Self { wr_ids, mask: entries.max(1) - 1, head: AtomicU32::new(0), tail: AtomicU32::new(0) }
    }

    /// Records a work request before the device can see it.
    #[inline(always)]
    pub fn put(&self, number: u32, wr_id: u64) {
        self.wr_ids[(number & self.mask) as usize].store(wr_id, Relaxed);
    }

    /// Publishes the work requests up to `head` to polls.
    #[inline(always)]
    pub fn publish(&self, head: u32) {
        self.head.store(head, Release);
    }

    /// Number of completed work requests.
    #[inline(always)]
    pub fn done(&self) -> u32 {
        self.tail.load(Acquire)
    }

    /// The number of the receive at `counter`, if it is outstanding.
    #[inline(always)]
    pub(super) fn number(&self, counter: u16) -> Option<u32> {
        let tail = self.tail.load(Relaxed);
        let ahead = u32::from(counter.wrapping_sub(tail as u16));
        (ahead < self.head.load(Acquire).wrapping_sub(tail)).then_some(tail.wrapping_add(ahead))
    }

    /// Completes receive `number` and all before it, so that their entries may be reused.
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

    /// Clears the tracker after a reset of the QP.
    pub fn reset(&self) {
        self.head.store(0, Relaxed);
        self.tail.store(0, Release);
    }
}
