//! The order of things in a ring that many programs fill and one empties.
//!
//! The slots are the user's. A slot has a word that says which frame is in it, the last thing its filler writes: so a
//! filler who dies leaves no half of a frame, and whoever takes frames looks at slots alone. Indices count all frames
//! there ever were. Fillers hold a [`Lock`](crate::Lock), so the next of them learns that one died, and
//! [counts](Ring::recount) what it had filled and not counted.
//!
//! A slot belongs to the fillers from when it is given back until its word says that a frame is there, and to the taker
//! from then on. The model checker judges that by slots of its own: `scripts/test-loom.sh`.

use crate::{
    bias::{AtomicU16, AtomicU32, Ordering::*},
    laboratory::{Site, step},
};

/// The indices of a ring of `SLOTS` slots, a power of two.
#[derive(Clone, Copy, Debug)]
pub struct Ring<'a, const SLOTS: usize> {
    /// Frames put in. The fillers write it, and look at it; who takes frames does not.
    pub tail: &'a AtomicU32,
    /// `head` as fillers last saw it: the taker writes that all the time, so they look again only when there seems to be
    /// little room.
    pub seen: &'a AtomicU32,
    /// Slots given back by the taker.
    pub head: &'a AtomicU32,
}

impl<const SLOTS: usize> Ring<'_, SLOTS> {
    /// The value of the word of a slot when frame `n` is in it. No other frame of that slot for 2^16 times around the ring
    /// says the same, and memory nobody wrote says none.
    #[inline(always)]
    fn lap(n: u32) -> u16 {
        const { assert!(SLOTS.is_power_of_two()) };
        ((n / SLOTS as u32) as u16).wrapping_add(1)
    }

    /// True if frame `n` is there, by the `word` of its slot.
    #[inline(always)]
    pub fn is_there(word: &AtomicU16, n: u32) -> bool {
        word.load(SeqCst) == Self::lap(n)
    }

    /// Free slots, at least: for whoever has no lock.
    #[inline(always)]
    pub fn free(&self) -> usize {
        let tail = self.tail.load(Relaxed);
        // The head may be one ahead of what was counted, see `recount`.
        let left = |head: u32| SLOTS - ((tail.wrapping_sub(head) as i32).max(0) as usize).min(SLOTS);
        match left(self.seen.load(Relaxed)) {
            plenty if plenty >= SLOTS / 2 => plenty,
            _ => left(self.head.load(Acquire)),
        }
    }

    /// True if a frame waits to be taken, by the words of the slots of frames: for whoever has no lock.
    #[inline(always)]
    pub fn waits<'w>(&self, word: impl FnOnce(u32) -> &'w AtomicU16) -> bool {
        let next = self.head.load(Acquire);
        // Where frames were taken meanwhile, that slot may hold a later one already.
        Self::is_there(word(next), next) || self.head.load(Acquire) != next
    }

    /// The frame to put in next, whose slot is the caller's until it [publishes](Self::publish) it; `None` if all slots
    /// are full. The caller holds the fillers' lock.
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

    /// Says by the `word` of its slot that frame `n`, which [`room`](Self::room) named, is there, and counts it.
    #[inline(always)]
    pub fn publish(&self, word: &AtomicU16, n: u32) {
        step(Site::Ring);
        word.store(Self::lap(n), Release);
        step(Site::Ring);
        self.tail.store(n.wrapping_add(1), Release);
        step(Site::Ring);
    }

    /// Counts the frame of one who died when it was there and not counted yet. The caller holds the fillers' lock.
    // Not looked for at every frame: what is read before it is written crosses from processor to processor twice.
    #[cold]
    pub fn recount<'w>(&self, word: impl Fn(u32) -> &'w AtomicU16) {
        let mut next = self.tail.load(Acquire);
        while Self::is_there(word(next), next) {
            next = next.wrapping_add(1);
        }
        step(Site::Ring);
        self.tail.store(next, Release);
    }

    /// Gives the slots of all frames before `next` back to the fillers. The caller is the one that takes frames.
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
