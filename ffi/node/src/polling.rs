//! Selects the process that runs a function while programs poll.
//!
//! A program that does nothing but poll runs its own functions fastest: their state stays in its cache, and arriving data is copied within
//! its own memory. It announces this in the function's slot, and senders then leave frames there. The mark is removed when it stops
//! polling: by its parked thread, which checks every millisecond meanwhile; at once when it arms a CQ, because it is about to sleep; and by
//! a peer that has waited too long for a response, which then runs the function itself.

use super::{file::FUNCTIONS, patience::Patience};
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::*};

/// A process's state about polling, its own and that of others.
pub struct Polling {
    /// Per function, the number of empty polls at the parked thread's last check.
    pub seen: Box<[AtomicU32]>,
    /// Functions with frames that this process left to their pollers.
    entrusted: [AtomicU64; 2],
    /// Per function, the number of frames taken by its poller at the parked thread's last check.
    pub taken: Box<[AtomicU32]>,
    /// True if there are too few processors for the pollers.
    pub patience: Patience,
}

impl Polling {
    /// Starts without pollers.
    pub fn new() -> Self {
        let zeros = || (0..FUNCTIONS).map(|_| AtomicU32::new(0)).collect();
        Self { seen: zeros(), entrusted: Default::default(), taken: zeros(), patience: Patience::default() }
    }

    /// Records that frames for `fid` were left to its poller.
    #[inline]
    pub fn entrust(&self, fid: u8) {
        let (word, bit) = (&self.entrusted[usize::from(fid) / 64 % 2], 1 << (fid % 64));
        if word.load(Relaxed) & bit == 0 {
            word.fetch_or(bit, Relaxed);
        }
    }

    /// The recorded functions, a bit each.
    pub fn entrusted(&self) -> u128 {
        u128::from(self.entrusted[0].load(Relaxed)) | u128::from(self.entrusted[1].load(Relaxed)) << 64
    }

    /// Returns and clears the recorded functions, a bit each.
    pub fn take_entrusted(&self) -> u128 {
        u128::from(self.entrusted[0].swap(0, Relaxed)) | u128::from(self.entrusted[1].swap(0, Relaxed)) << 64
    }
}
