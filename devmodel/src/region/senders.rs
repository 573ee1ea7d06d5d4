//! The set of functions that have sent frames to a function.
//!
//! A frame may refer to its sender's memory while it waits in a receive ring or is being processed by the holder of the
//! receiving function. A command that takes memory away has to wait for such frames and for nothing else: a program that is
//! stopped while it holds a function must not delay functions with which it never exchanged a frame. Therefore each function
//! keeps the set of functions that its frames may refer to, next to the other words that are read without its lock.

use super::{Func, FunctionSet, Patience, Region, Sync, WireRing};
use crate::{
    host::{Host, Rid},
    state::{QpRow, SqRow},
};
use std::{
    ops::Range,
    sync::atomic::{AtomicU32, Ordering::SeqCst},
};
use sync::laboratory::{Site, step};

/// Offset of the set among the words of a function: on the line of [`Sync::Present`], which every sender reads and which is
/// rarely written.
const SENDERS: usize = 1544;
/// Functions per word.
const BITS: u8 = u32::BITS as u8;
// The set of all functions fits between its neighbours on the line.
const _: () = {
    let end = SENDERS + 128 / BITS as usize * size_of::<AtomicU32>();
    assert!(Sync::Group as usize + size_of::<AtomicU32>() <= SENDERS && end <= Sync::Switch as usize);
};

impl Region {
    fn senders(&self, fid: u8, word: u8) -> &AtomicU32 {
        self.block(fid).word(SENDERS + usize::from(word) * size_of::<AtomicU32>())
    }

    /// Records that a frame of `from`, which may refer to the memory of `from`, is about to wait at `to` or to be processed by
    /// the holder of `to`. The caller holds `from`.
    #[inline]
    pub(crate) fn note_sender(&self, to: u8, from: u8) {
        let (word, bit) = (self.senders(to, from / BITS), 1 << (from % BITS));
        step(Site::Senders);
        if word.load(SeqCst) & bit == 0 {
            step(Site::Senders);
            word.fetch_or(bit, SeqCst);
        }
    }

    /// True if frames that wait at `to`, or are being processed by its holder, may refer to memory of `from`.
    pub(crate) fn may_refer(&self, to: u8, from: u8) -> bool {
        self.senders(to, from / BITS).load(SeqCst) & 1 << (from % BITS) != 0
    }
}

/// Removes all references of waiting frames to memory of `fid` by copying the payload in now. On return, transfers to and from
/// that memory that began earlier are over. Waits only for holders of functions that `fid` has sent to. Returns the functions
/// that it locked: other parties may have left work there in the meantime. `None` when patience ran out; call again later.
#[must_use]
pub(crate) fn purge_frames(
    region: &Region,
    host: &mut dyn Host,
    fid: u8,
    patience: Patience,
) -> Option<FunctionSet> {
    let hearers = || region.functions_there().filter(|other| region.may_refer(*other, fid));
    if hearers().any(|other| region.function_lock(other).is_anothers(host)) {
        // After the barrier, owners that entered earlier are seen as holders; an owner that enters later finds no such frame.
        host.barrier();
    }
    let mut locked = 0;
    for other in hearers() {
        // Frames that a runner is processing belong to a function that it holds.
        let held = region.function_lock(other).holder().is_some();
        if held || WireRing::of(region, other).waits() {
            let mut func = Func::lock_with(region, other, host, patience)?;
            func.fetch_pieces(host, Rid(fid));
            locked |= 1 << other;
        }
    }
    Some(locked)
}

impl Func<'_> {
    /// Clears the sender sets after a reset, when no frame of `others` refers to this function's memory any more, so that
    /// frames it received or sent earlier delay nothing from now on. Does nothing if the function has send queues again.
    pub(crate) fn forget_peers(&self, host: &mut dyn Host, others: Range<u8>) {
        if self.used::<QpRow>() != 0 || self.used::<SqRow>() != 0 {
            return;
        }
        let (region, from) = (self.region(), self.fid());
        for to in others.filter(|to| region.may_refer(*to, from)) {
            step(Site::Senders);
            region.senders(to, from / BITS).fetch_and(!(1 << (from % BITS)), SeqCst);
        }
        // With the ring locked no frame can be added, so no sender of a frame in flight is removed from the set.
        let Some(filler) = WireRing::of(region, self.fid()).fill(host) else { return };
        if !self.has_frame() {
            step(Site::Senders);
            let words = 0..region.functions().div_ceil(BITS);
            words.for_each(|word| region.senders(from, word).store(0, SeqCst));
        }
        drop(filler);
    }
}
