//! Which functions have sent frames to a function.
//!
//! A frame may refer to its sender's memory as long as it waits in a receive ring or is in the hands of whoever holds the
//! receiving function. A command that takes memory away has to wait for such frames, and for nobody else: a program that is
//! stopped while it holds a function must not hold up those it never exchanged a frame with. So each function keeps a set of
//! the functions whose memory its frames may refer to, beside the other words that are looked at without its lock.

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

/// Where the set lies among the words of a function: on the line of [`Sync::Present`], which every sender
/// looks at and hardly anybody writes.
const SENDERS: usize = 1544;
/// Functions in a word.
const BITS: u8 = u32::BITS as u8;
// The set of all functions lies between its neighbours on the line.
const _: () = {
    let end = SENDERS + 128 / BITS as usize * size_of::<AtomicU32>();
    assert!(Sync::Group as usize + size_of::<AtomicU32>() <= SENDERS && end <= Sync::Switch as usize);
};

impl Region {
    fn senders(&self, fid: u8, word: u8) -> &AtomicU32 {
        self.block(fid).word(SENDERS + usize::from(word) * size_of::<AtomicU32>())
    }

    /// Notes that a frame of `from`, which may refer to its memory, is about to wait at `to` or to be in its holder's hands.
    /// The caller holds `from`.
    #[inline]
    pub(crate) fn note_sender(&self, to: u8, from: u8) {
        let (word, bit) = (self.senders(to, from / BITS), 1 << (from % BITS));
        step(Site::Senders);
        if word.load(SeqCst) & bit == 0 {
            step(Site::Senders);
            word.fetch_or(bit, SeqCst);
        }
    }

    /// True if frames that wait at `to`, or are in its holder's hands, may refer to memory of `from`.
    pub(crate) fn may_refer(&self, to: u8, from: u8) -> bool {
        self.senders(to, from / BITS).load(SeqCst) & 1 << (from % BITS) != 0
    }
}

/// Lets no frame that waits anywhere refer to memory of `fid` any more: its bytes are fetched now. When this returns,
/// transfers to and from that memory that began before are over. It waits for those who hold a function that `fid` has sent to,
/// and for nobody else. Returns the functions it locked: others may have left work there meanwhile. `None` when patience ran out:
/// to be done again.
#[must_use]
pub(crate) fn purge_frames(
    region: &Region,
    host: &mut dyn Host,
    fid: u8,
    patience: Patience,
) -> Option<FunctionSet> {
    let hearers = || region.functions_there().filter(|other| region.may_refer(*other, fid));
    if hearers().any(|other| region.function_lock(other).is_anothers(host)) {
        // Owners that entered before are seen inside from here on; one that enters later finds no such frame.
        host.barrier();
    }
    let mut locked = 0;
    for other in hearers() {
        // Frames that a runner has in hand are those of a function it holds.
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
    /// After a reset, when no frame of `others` refers to this function's memory any more: what it was sent and what it sent
    /// binds it to nobody from here on, unless it has queues again that send.
    pub(crate) fn forget_peers(&self, host: &mut dyn Host, others: Range<u8>) {
        if self.used::<QpRow>() != 0 || self.used::<SqRow>() != 0 {
            return;
        }
        let (region, from) = (self.region(), self.fid());
        for to in others.filter(|to| region.may_refer(*to, from)) {
            step(Site::Senders);
            region.senders(to, from / BITS).fetch_and(!(1 << (from % BITS)), SeqCst);
        }
        // Nobody puts a frame in meanwhile, so none can be on its way whose sender would be forgotten.
        let Some(filler) = WireRing::of(region, self.fid()).fill(host) else { return };
        if !self.has_frame() {
            step(Site::Senders);
            let words = 0..region.functions().div_ceil(BITS);
            words.for_each(|word| region.senders(from, word).store(0, SeqCst));
        }
        drop(filler);
    }
}
