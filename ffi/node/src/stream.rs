//! Doorbells of a program that posts one request after the other.
//!
//! Each doorbell that is acted on at once costs a copy into another program's memory of its own. When a program rings several
//! in a row without waiting for anything, the later ones are gathered: they are acted on together when there are enough
//! of them, when the program polls and finds nothing, or touches any other register; or by the parked thread, which
//! looks every millisecond meanwhile. A program that left it to the parked thread has its doorbells acted on at once for a
//! while: it waits for something other than completions.

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
/// Doorbells gathered at most.
const GATHERED: u32 = 16;
/// Time (ms) for which nothing is gathered after it did harm.
const SOBER: u64 = 200;
/// Polls in vain before a doorbell that tell of waiting, and how many such doorbells in a row of a habit.
const IN_VAIN: u32 = 4;
const ROUNDS: u32 = 16;
/// Bits of a send doorbell that name the QP.
const QPN: u64 = 0xffff_ff00;

/// A doorbell that waits.
#[derive(Clone, Copy)]
struct Gathered {
    offset: u32,
    value: u64,
    count: u32,
}

/// The doorbells of one function, and the polls between them. What every poll looks at comes first, in one cache line.
#[derive(Default)]
#[repr(C, align(128))]
pub struct Stream {
    /// Polls that found nothing, ever.
    polls: AtomicU32,
    /// How many there were at the last doorbell.
    mark: AtomicU32,
    /// 1: one waits.
    waits: AtomicU32,
    /// Doorbells since the last poll that found nothing.
    row: AtomicU32,
    /// Doorbells in a row of which each came after some polls in vain.
    rounds: AtomicU32,
    gathered: Mutex<Option<Gathered>>,
    /// Doorbells gathered, ever, and how many there were when the parked thread last looked.
    total: AtomicU32,
    seen: AtomicU32,
    /// 1: the parked thread looks.
    watched: AtomicU32,
    /// Until when (ms) nothing is gathered.
    sober: AtomicU64,
}

impl Stream {
    /// Counts a poll that found nothing; returns how many there were since the last doorbell. Threads may lose a count to
    /// each other: it is no more than a rhythm.
    #[inline]
    pub fn polled(&self) -> u32 {
        let polls = self.polls.load(Relaxed).wrapping_add(1);
        self.polls.store(polls, Relaxed);
        polls.wrapping_sub(self.mark.load(Relaxed))
    }

    /// Polls that found nothing, ever.
    pub fn polls(&self) -> u32 {
        self.polls.load(Relaxed)
    }

    /// How many of them there were when a doorbell last rang.
    pub fn polls_before_doorbell(&self) -> u32 {
        self.mark.load(Relaxed)
    }

    /// A doorbell rang: the program does something. True now and then if it polls in vain between any two of them.
    #[inline]
    pub fn rang(&self) -> bool {
        let polls = self.polls.load(Relaxed);
        let waited = polls.wrapping_sub(self.mark.load(Relaxed)) >= IN_VAIN;
        let rounds = if waited { self.rounds.load(Relaxed).wrapping_add(1) } else { 0 };
        self.mark.store(polls, Relaxed);
        self.rounds.store(rounds, Relaxed);
        waited && rounds % ROUNDS == 0
    }

    /// Whether doorbells were gathered, to be acted on now that the program polls.
    #[inline]
    pub fn pauses(&self) -> bool {
        if self.row.load(Relaxed) != 0 {
            self.row.store(0, Relaxed);
        }
        self.waits.load(Relaxed) != 0
    }
}

impl Core {
    /// Takes a send doorbell to be acted on later; false if it should be acted on now.
    #[inline]
    pub fn gather(&self, fid: u8, offset: u32, value: u64) -> bool {
        let stream = self.stream(fid);
        let row = stream.row.load(Relaxed);
        if row < EAGER {
            stream.row.store(row + 1, Relaxed);
            return false;
        }
        self.gather_more(stream, fid, offset, value)
    }

    #[inline(never)]
    fn gather_more(&self, stream: &Stream, fid: u8, offset: u32, value: u64) -> bool {
        if stream.watched.load(Relaxed) == 0 && self.now() / MILLI < stream.sober.load(Relaxed) {
            return false;
        }
        stream.total.fetch_add(1, Relaxed);
        let mut place = stream.gathered.lock().unwrap_or_else(PoisonError::into_inner);
        let before = *place;
        let mut now = Gathered { offset, value, count: 1 };
        let same = before.is_some_and(|b| b.offset == offset && (b.value ^ value) & QPN == 0);
        if let Some(before) = before.filter(|_| same) {
            now.count += before.count;
        }
        let due = if now.count >= GATHERED {
            *place = None;
            stream.waits.store(0, Relaxed);
            Some(now)
        } else {
            *place = Some(now);
            stream.waits.store(1, SeqCst);
            before.filter(|_| !same)
        };
        drop(place);
        // What waits before the question whether somebody looks, for who stops looking looks once more.
        fence(SeqCst);
        if stream.watched.load(Relaxed) == 0 && stream.watched.swap(1, SeqCst) == 0 {
            self.wake(self.me.slot);
        }
        if let Some(due) = due {
            self.ring(fid, due.offset, due.value);
        }
        true
    }

    /// Acts on what was gathered: the program waits, or does something else.
    #[inline]
    pub fn release(&self, fid: u8) {
        if self.stream(fid).pauses() {
            self.release_now(fid);
        }
    }

    /// See [`release`](Self::release).
    #[cold]
    pub fn release_now(&self, fid: u8) {
        let stream = self.stream(fid);
        let mut place = stream.gathered.lock().unwrap_or_else(PoisonError::into_inner);
        let due = place.take();
        // Before another can put one in its place.
        stream.waits.store(0, Relaxed);
        drop(place);
        if let Some(due) = due {
            self.ring(fid, due.offset, due.value);
        }
    }

    /// A doorbell, acted on.
    #[inline]
    pub fn ring(&self, fid: u8, offset: u32, value: u64) {
        let now = self.now();
        self.drive(now, |runner, host| {
            self.adapter.bar_write64(runner, host, now, fid, offset.into(), value);
        });
    }

    /// Looks after doorbells that nobody came back for. True if it has to be done again soon.
    pub fn check_streams(&self) -> bool {
        let mut again = false;
        for fid in self.open_functions() {
            let stream = self.stream(fid);
            if stream.watched.load(Acquire) == 0 {
                continue;
            }
            let total = stream.total.load(Relaxed);
            if stream.seen.swap(total, Relaxed) != total {
                again = true;
                continue;
            }
            // The doorbell would wait for it, and our other functions with it.
            let holder = self.adapter.region().function_lock(fid).holder();
            if holder.is_some_and(|party| is_stopped(self, party)) {
                again = true;
                continue;
            }
            stream.watched.store(0, SeqCst);
            fence(SeqCst);
            if stream.waits.load(SeqCst) != 0 {
                stream.sober.store(self.now() / MILLI + SOBER, Relaxed);
                stream.row.store(0, Relaxed);
                self.release_now(fid);
            }
        }
        again
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_that_waits_between_any_two_doorbells_is_told_from_one_that_only_asks() {
        let rounds = |stream: &Stream, polls: u32, rounds: u32| -> Vec<u32> {
            let round = |_: &u32| {
                (0..polls).for_each(|_| _ = stream.polled());
                stream.rang()
            };
            (1..=rounds).filter(round).collect()
        };
        let stream = Stream::default();
        assert!(rounds(&stream, IN_VAIN - 1, 100).is_empty());
        assert!(rounds(&stream, IN_VAIN, ROUNDS - 1).is_empty());
        assert!(rounds(&stream, 0, 1).is_empty(), "one doorbell right behind another ends the row");
        assert_eq!(rounds(&stream, IN_VAIN, 2 * ROUNDS), [ROUNDS, 2 * ROUNDS]);
        assert_eq!(stream.polls(), 100 * (IN_VAIN - 1) + (3 * ROUNDS - 1) * IN_VAIN);
    }
}
