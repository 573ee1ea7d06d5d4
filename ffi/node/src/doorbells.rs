//! Coalesced doorbells, for programs that post one request after the other.
//!
//! Acting on a doorbell costs at least one copy into another program's memory. When a program rings several doorbells
//! in a row without waiting in between, the later ones are coalesced. They are acted on together when there are enough
//! of them, when the program polls an empty CQ, or when it touches any other register. The parked thread checks every
//! millisecond for doorbells that none of these released. A program whose doorbells it had to release waits for something
//! other than completions, so nothing is coalesced for that program for a while.

use super::{
    core::{Core, MILLI},
    stopped::is_stopped,
};
use std::sync::{
    Mutex, PoisonError,
    atomic::{AtomicU32, AtomicU64, Ordering::*, fence},
};

/// Doorbells in a row that are acted on at once.
const EAGER: u32 = 8;
/// Most doorbells that are coalesced into one.
const COALESCED: u32 = 16;
/// How long (ms) nothing is coalesced after the parked thread had to release a doorbell.
const EAGER_AGAIN: u64 = 200;
/// A program that polls an empty CQ so often before a doorbell was waiting; after so many such doorbells in a row it is
/// taken to wait each time.
const IN_VAIN: u32 = 4;
const ROUNDS: u32 = 16;
/// Bits of a send doorbell that name the QP.
const QPN: u64 = 0xffff_ff00;

/// A doorbell that is yet to be acted on, and how many rang.
#[derive(Clone, Copy)]
struct Coalesced {
    offset: u32,
    value: u64,
    count: u32,
}

/// The doorbells of one function, and the polls between them. The members that every poll reads come first, in one cache
/// line.
#[derive(Default)]
#[repr(C, align(128))]
pub struct Doorbells {
    /// Polls that found nothing, ever.
    empty_polls: AtomicU32,
    /// Value of `empty_polls` at the last doorbell.
    at_doorbell: AtomicU32,
    /// 1 while `coalesced` holds a doorbell.
    pending: AtomicU32,
    /// Doorbells since the last empty poll.
    row: AtomicU32,
    /// Successive doorbells that each came after [`IN_VAIN`] empty polls or more.
    rounds: AtomicU32,
    coalesced: Mutex<Option<Coalesced>>,
    /// Doorbells ever coalesced, and the value when the parked thread last checked.
    count: AtomicU32,
    seen: AtomicU32,
    /// 1 while the parked thread checks this function.
    watched: AtomicU32,
    /// Nothing is coalesced until this time (ms).
    eager_until: AtomicU64,
}

impl Doorbells {
    /// Counts a poll that found nothing, and returns how many there were since the last doorbell. Threads may lose counts
    /// to each other, which does no harm: the count only steers heuristics.
    #[inline]
    pub fn note_empty_poll(&self) -> u32 {
        let polls = self.empty_polls.load(Relaxed).wrapping_add(1);
        self.empty_polls.store(polls, Relaxed);
        polls.wrapping_sub(self.at_doorbell.load(Relaxed))
    }

    /// Polls that found nothing, ever.
    pub fn empty_polls(&self) -> u32 {
        self.empty_polls.load(Relaxed)
    }

    /// Value of [`empty_polls`](Self::empty_polls) at the last doorbell.
    pub fn empty_polls_at_doorbell(&self) -> u32 {
        self.at_doorbell.load(Relaxed)
    }

    /// Notes a doorbell. Returns true at every [`ROUNDS`]th of a row of doorbells that each came after empty polls.
    #[inline]
    pub fn note_doorbell(&self) -> bool {
        let polls = self.empty_polls.load(Relaxed);
        let waited = polls.wrapping_sub(self.at_doorbell.load(Relaxed)) >= IN_VAIN;
        let rounds = if waited { self.rounds.load(Relaxed).wrapping_add(1) } else { 0 };
        self.at_doorbell.store(polls, Relaxed);
        self.rounds.store(rounds, Relaxed);
        waited && rounds % ROUNDS == 0
    }

    /// Ends a row of doorbells, for the program polls. Returns whether a coalesced doorbell is pending.
    #[inline]
    pub fn end_row(&self) -> bool {
        if self.row.load(Relaxed) != 0 {
            self.row.store(0, Relaxed);
        }
        self.pending.load(Relaxed) != 0
    }
}

impl Core {
    /// Coalesces a send doorbell. Returns false if the caller must act on it now.
    #[inline]
    pub fn coalesce(&self, fid: u8, offset: u32, value: u64) -> bool {
        let doorbells = self.doorbells(fid);
        let row = doorbells.row.load(Relaxed);
        if row < EAGER {
            doorbells.row.store(row + 1, Relaxed);
            return false;
        }
        self.coalesce_after_row(doorbells, fid, offset, value)
    }

    #[inline(never)]
    fn coalesce_after_row(&self, doorbells: &Doorbells, fid: u8, offset: u32, value: u64) -> bool {
        if doorbells.watched.load(Relaxed) == 0 && self.now() / MILLI < doorbells.eager_until.load(Relaxed) {
            return false;
        }
        doorbells.count.fetch_add(1, Relaxed);
        let mut place = doorbells.coalesced.lock().unwrap_or_else(PoisonError::into_inner);
        let before = *place;
        let mut now = Coalesced { offset, value, count: 1 };
        let same = before.is_some_and(|b| b.offset == offset && (b.value ^ value) & QPN == 0);
        if let Some(before) = before.filter(|_| same) {
            now.count += before.count;
        }
        let due = if now.count >= COALESCED {
            *place = None;
            doorbells.pending.store(0, Relaxed);
            Some(now)
        } else {
            *place = Some(now);
            doorbells.pending.store(1, SeqCst);
            before.filter(|_| !same)
        };
        drop(place);
        // Sets `pending` before it reads `watched`. The parked thread clears `watched` and then reads `pending`, so one of the
        // two sees the other.
        fence(SeqCst);
        if doorbells.watched.load(Relaxed) == 0 && doorbells.watched.swap(1, SeqCst) == 0 {
            self.wake(self.me.slot);
        }
        if let Some(due) = due {
            self.ring(fid, due.offset, due.value);
        }
        true
    }

    /// Ends the row of doorbells and acts on those that were coalesced.
    #[inline]
    pub fn flush(&self, fid: u8) {
        if self.doorbells(fid).end_row() {
            self.flush_coalesced(fid);
        }
    }

    /// Acts on the coalesced doorbell, if there is one.
    #[cold]
    pub fn flush_coalesced(&self, fid: u8) {
        let doorbells = self.doorbells(fid);
        let mut place = doorbells.coalesced.lock().unwrap_or_else(PoisonError::into_inner);
        let due = place.take();
        // Under the lock, so that a doorbell that is coalesced next keeps its flag.
        doorbells.pending.store(0, Relaxed);
        drop(place);
        if let Some(due) = due {
            self.ring(fid, due.offset, due.value);
        }
    }

    /// Acts on a doorbell.
    #[inline]
    pub fn ring(&self, fid: u8, offset: u32, value: u64) {
        let now = self.now();
        self.drive(now, |runner, host| {
            self.adapter.bar_write64(runner, host, now, fid, offset.into(), value);
        });
    }

    /// Releases doorbells that were coalesced and then forgotten. Returns true if it must be called again soon.
    pub fn check_coalesced(&self) -> bool {
        let mut again = false;
        for fid in self.open_functions() {
            let doorbells = self.doorbells(fid);
            if doorbells.watched.load(Acquire) == 0 {
                continue;
            }
            let count = doorbells.count.load(Relaxed);
            if doorbells.seen.swap(count, Relaxed) != count {
                again = true;
                continue;
            }
            // The doorbell would wait for the stopped holder, and with it this thread's work for other functions.
            let holder = self.adapter.region().function_lock(fid).holder();
            if holder.is_some_and(|party| is_stopped(self, party)) {
                again = true;
                continue;
            }
            doorbells.watched.store(0, SeqCst);
            fence(SeqCst);
            if doorbells.pending.load(SeqCst) != 0 {
                doorbells.eager_until.store(self.now() / MILLI + EAGER_AGAIN, Relaxed);
                doorbells.row.store(0, Relaxed);
                self.flush_coalesced(fid);
            }
        }
        again
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
