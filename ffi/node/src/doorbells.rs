//! Coalesced doorbells, for programs that post requests one at a time.
//!
//! Acting on a doorbell costs at least one copy into another program's memory. When a program rings several doorbells in a row without
//! waiting in between, the later ones are coalesced. They are acted on together when there are enough of them, when the program polls an
//! empty CQ, or when it accesses any other register. The parked thread checks every millisecond for doorbells that none of these events
//! released. A program with doorbells that it had to release waits for something other than completions, so nothing is coalesced for that
//! program for a while.

use std::sync::{
    Mutex,
    atomic::{AtomicU32, AtomicU64, Ordering::*},
};

/// Empty polls before a doorbell that show that the program was waiting, and the number of such doorbells in a row after which it is
/// assumed to wait each time.
const IN_VAIN: u32 = 4;
const ROUNDS: u32 = 16;

/// A coalesced doorbell that is not acted on yet, and the number of rings it stands for.
#[derive(Clone, Copy)]
pub struct Coalesced {
    pub offset: u32,
    pub value: u64,
    pub count: u32,
}

/// The doorbells of one function, and the polls between them. The members that every poll reads come first, in one cache line.
#[derive(Default)]
#[repr(C, align(128))]
pub struct Doorbells {
    /// Total number of empty polls.
    empty_polls: AtomicU32,
    /// Value of `empty_polls` at the last doorbell.
    at_doorbell: AtomicU32,
    /// 1 while `coalesced` holds a doorbell.
    pub pending: AtomicU32,
    /// Doorbells since the last empty poll.
    pub row: AtomicU32,
    /// Successive doorbells that each came after at least [`IN_VAIN`] empty polls.
    rounds: AtomicU32,
    pub coalesced: Mutex<Option<Coalesced>>,
    /// Total number of coalesced doorbells, and its value at the parked thread's last check.
    pub count: AtomicU32,
    pub seen: AtomicU32,
    /// 1 while the parked thread checks this function.
    pub watched: AtomicU32,
    /// Time (ms) until which nothing is coalesced.
    pub eager_until: AtomicU64,
}

impl Doorbells {
    /// Counts an empty poll, and returns the number since the last doorbell. Concurrent threads may lose counts, which does no harm: the
    /// count only steers heuristics.
    #[inline]
    pub fn note_empty_poll(&self) -> u32 {
        let polls = self.empty_polls.load(Relaxed).wrapping_add(1);
        self.empty_polls.store(polls, Relaxed);
        polls.wrapping_sub(self.at_doorbell.load(Relaxed))
    }

    /// Total number of empty polls.
    pub fn empty_polls(&self) -> u32 {
        self.empty_polls.load(Relaxed)
    }

    /// Value of [`empty_polls`](Self::empty_polls) at the last doorbell.
    pub fn empty_polls_at_doorbell(&self) -> u32 {
        self.at_doorbell.load(Relaxed)
    }

    /// Counts a doorbell. Returns true at every [`ROUNDS`]th in a row of doorbells that each came after empty polls.
    #[inline]
    pub fn note_doorbell(&self) -> bool {
        let polls = self.empty_polls.load(Relaxed);
        let waited = polls.wrapping_sub(self.at_doorbell.load(Relaxed)) >= IN_VAIN;
        let rounds = if waited { self.rounds.load(Relaxed).wrapping_add(1) } else { 0 };
        self.at_doorbell.store(polls, Relaxed);
        self.rounds.store(rounds, Relaxed);
        waited && rounds % ROUNDS == 0
    }

    /// Ends a row of doorbells because the program polls. Returns whether a coalesced doorbell is pending.
    #[inline]
    pub fn end_row(&self) -> bool {
        if self.row.load(Relaxed) != 0 {
            self.row.store(0, Relaxed);
        }
        self.pending.load(Relaxed) != 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_program_that_polls_often_before_each_doorbell_counts_as_waiting() {
        let rounds = |doorbells: &Doorbells, polls: u32, rounds: u32| -> Vec<u32> {
            let round = |_: &u32| {
                (0..polls).for_each(|_| _ = doorbells.note_empty_poll());
                doorbells.note_doorbell()
            };
            (1..=rounds).filter(round).collect()
        };
        let doorbells = Doorbells::default();
        assert!(rounds(&doorbells, IN_VAIN - 1, 100).is_empty());
        assert!(rounds(&doorbells, IN_VAIN, ROUNDS - 1).is_empty());
        assert!(rounds(&doorbells, 0, 1).is_empty(), "one doorbell right behind another ends the row");
        assert_eq!(rounds(&doorbells, IN_VAIN, 2 * ROUNDS), [ROUNDS, 2 * ROUNDS]);
        assert_eq!(doorbells.empty_polls(), 100 * (IN_VAIN - 1) + (3 * ROUNDS - 1) * IN_VAIN);
    }
}
