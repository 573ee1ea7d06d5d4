//! Index management of a ring with many producers ("fillers") and one consumer ("taker").
//!
//! The slots belong to the user. A slot has a word that identifies its frame and is written last: a producer that dies
//! leaves no partial frame, and the consumer only has to read slots. Indices count all frames since the beginning.
//! Producers hold a [`Lock`](crate::Lock), so the next producer detects the death of its predecessor, and
//! [counts](Ring::recount) frames that were filled but not counted.
//!
//! A slot belongs to the producers from the time it is given back until its word shows a frame, and to the consumer
//! from then on. The model checker verifies this with its own slots: `scripts/test-loom.sh`.

use crate::{
    bias::{AtomicU16, AtomicU32, Ordering::*},
    laboratory::{Site, step},
};

/// The indices of a ring of `SLOTS` slots, a power of two.
#[derive(Clone, Copy, Debug)]
pub struct Ring<'a, const SLOTS: usize> {
    /// Number of frames put in. Written and read by producers only.
    pub tail: &'a AtomicU32,
    /// Producers' last reading of `head`. The consumer writes `head` all the time, so producers read it again only when
    /// there seems to be little room.
    pub seen: &'a AtomicU32,
    /// Number of slots given back by the consumer.
    pub head: &'a AtomicU32,
}

impl<const SLOTS: usize> Ring<'_, SLOTS> {
    /// The word of a slot that contains frame `n`. No other frame in that slot has the same value within 2^16 rounds,
    /// and uninitialized memory matches none.
    #[inline(always)]
    fn lap(n: u32) -> u16 {
        const { assert!(SLOTS.is_power_of_two()) };
        ((n / SLOTS as u32) as u16).wrapping_add(1)
    }

    /// True if frame `n` is present, according to the `word` of its slot.
    #[inline(always)]
    pub fn is_there(word: &AtomicU16, n: u32) -> bool {
        word.load(SeqCst) == Self::lap(n)
    }

    /// Minimum number of free slots, for callers without the lock.
    #[inline(always)]
    pub fn free(&self) -> usize {
        let tail = self.tail.load(Relaxed);
        // The head may be one ahead of the tail, until `recount`.
        let left = |head: u32| SLOTS - ((tail.wrapping_sub(head) as i32).max(0) as usize).min(SLOTS);
        match left(self.seen.load(Relaxed)) {
            plenty if plenty >= SLOTS / 2 => plenty,
            _ => left(self.head.load(Acquire)),
        }
    }

    /// True if a frame is waiting, according to the words of the slots, for callers without the lock.
    #[inline(always)]
    pub fn waits<'w>(&self, word: impl FnOnce(u32) -> &'w AtomicU16) -> bool {
        let next = self.head.load(Acquire);
        // If frames were taken in the meantime, the slot may already contain a later one.
        Self::is_there(word(next), next) || self.head.load(Acquire) != next
    }

    /// The number of the next frame. Its slot belongs to the caller until it [publishes](Self::publish) the frame.
    /// `None` if all slots are full. The caller holds the producers' lock.
    #[inline(always)]
    pub fn room(&self) -> Option<u32> {
        let tail = self.tail.load(Acquire);
        let mut head = self.seen.load(Relaxed);
        if tail.wrapping_sub(head) as usize > SLOTS / 2 {
            head = self.head.load(Acquire);
            self.seen.store(head, Release);
        }
        ((tail.wrapping_sub(head) as usize) < SLOTS).then_some(tail)
    }

    /// Marks frame `n`, obtained from [`room`](Self::room), as present in the `word` of its slot, and counts it.
    #[inline(always)]
    pub fn publish(&self, word: &AtomicU16, n: u32) {
        step(Site::Ring);
        word.store(Self::lap(n), Release);
        step(Site::Ring);
        self.tail.store(n.wrapping_add(1), Release);
        step(Site::Ring);
    }

    /// Counts a frame that a dead producer completed but did not count. The caller holds the producers' lock.
    // Not checked for every frame: a word that is read before it is written moves between processors twice.
    #[cold]
    pub fn recount<'w>(&self, word: impl Fn(u32) -> &'w AtomicU16) {
        let mut next = self.tail.load(Acquire);
        while Self::is_there(word(next), next) {
            next = next.wrapping_add(1);
        }
        step(Site::Ring);
        self.tail.store(next, Release);
    }

    /// Gives the slots of all frames before `next` back to the producers. Called by the consumer.
    #[inline(always)]
    pub fn give_back(&self, next: u32) {
        if self.head.load(Relaxed) != next {
            step(Site::Ring);
            self.head.store(next, Release);
        }
    }
}

#[cfg(all(test, loom))]
mod model;
