//! State that a runner's host keeps between calls.
#![allow(unsafe_code)]

use super::{maps::Found, sys::Piece, waits::Waits};

/// The direction of a batch of copies.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Way {
    From(u16),
    To(u16),
}

/// State that a host keeps between calls.
#[derive(Default)]
pub struct Scratch {
    pub local: Vec<Piece>,
    pub remote: Vec<Piece>,
    pub bytes: usize,
    pub way: Option<Way>,
    pub bounce: Vec<u8>,
    pub found: Found,
    /// Functions with memory that was touched.
    pub touched: Functions,
    /// Functions with frames that were left to their pollers.
    pub entrusted: Functions,
    /// Functions of the adapter beside this one that have frames of this runner, a bit each.
    pub due_beside: u128,
    /// True if the caller itself takes the frames that leave by the uplink, so that no thread needs to be woken for them.
    pub quiet: bool,
    /// Per function, the timer word when it was last read.
    pub timers: Vec<u32>,
    /// Party that a copy found dead; 0 if none.
    pub suspect: u16,
    /// True if a single thread uses this runner and the barriers of other programs reach it.
    pub steady: bool,
    /// Parties that the runner waited for.
    pub waits: Waits,
}

// SAFETY: the pieces' pointers are only set within one call, which clears them.
unsafe impl Send for Scratch {}

/// A set of functions, which nearly always has one member.
#[derive(Default)]
pub struct Functions {
    /// The function added last, plus one.
    last: u8,
    /// Functions added before, a bit each.
    others: u128,
}

/// The functions with their bits set.
pub fn bits(set: u128) -> impl Iterator<Item = u8> {
    std::iter::successors(Some(set), |set| Some(set & set.wrapping_sub(1)))
        .take_while(|set| *set != 0)
        .map(|set| set.trailing_zeros() as u8)
}

impl Functions {
    /// Adds `fid`.
    #[inline(always)]
    pub fn note(&mut self, fid: u8) {
        if self.last != fid + 1 {
            self.note_another(fid);
        }
    }

    #[inline]
    fn note_another(&mut self, fid: u8) {
        if let Some(before) = self.last.checked_sub(1) {
            self.others |= 1 << before;
        }
        self.last = fid + 1;
    }

    #[inline(never)]
    fn drain_others(&mut self, last: u8, each: &mut dyn FnMut(u8)) {
        bits(std::mem::take(&mut self.others) & !(1 << last)).for_each(each);
    }

    /// Calls `each` for every function and empties the set.
    #[inline(always)]
    pub fn drain(&mut self, mut each: impl FnMut(u8)) {
        if let Some(last) = std::mem::take(&mut self.last).checked_sub(1) {
            each(last);
            if self.others != 0 {
                self.drain_others(last, &mut each);
            }
        }
    }
}
