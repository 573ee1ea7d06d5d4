//! The parties that run functions while programs poll.
//!
//! A program that does nothing but poll runs its own functions fastest: their state stays in its cache, and what arrives is
//! copied within its own memory. It says so in the function's slot, and others leave what they send there to it. The
//! word is taken back when it stops: by its parked thread, which looks every millisecond meanwhile; at once when it arms a
//! CQ, for then it is about to sleep; and by a peer that has waited too long for an answer, who then runs the function.

use super::{file::FUNCTIONS, patience::Patience};
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::*};

/// The knowledge of a process about polling, its own and that of others.
pub struct Polling {
    /// For each function the empty polls when the parked thread last checked.
    pub seen: Box<[AtomicU32]>,
    /// Functions whose frames we left to their pollers.
    entrusted: [AtomicU64; 2],
    /// For each function how far its poller had taken frames when our parked thread last checked.
    pub taken: Box<[AtomicU32]>,
    /// True if there are too few processors for the pollers.
    pub patience: Patience,
}

impl Polling {
    /// Nobody polls.
    pub fn new() -> Self {
        let zeros = || (0..FUNCTIONS).map(|_| AtomicU32::new(0)).collect();
        Self { seen: zeros(), entrusted: Default::default(), taken: zeros(), patience: Patience::default() }
    }

    /// Notes that frames for `fid` were left to its poller.
    #[inline]
    pub fn entrust(&self, fid: u8) {
        let (word, bit) = (&self.entrusted[usize::from(fid) / 64 % 2], 1 << (fid % 64));
        if word.load(Relaxed) & bit == 0 {
            word.fetch_or(bit, Relaxed);
        }
    }

    /// Takes the functions noted, a bit each.
    pub fn take_entrusted(&self) -> u128 {
        u128::from(self.entrusted[0].swap(0, Relaxed)) | u128::from(self.entrusted[1].swap(0, Relaxed)) << 64
    }
}
