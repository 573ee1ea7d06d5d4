//! Pollers that outnumber processors.
//!
//! A thread that polls in vain keeps its processor until the kernel takes it away, milliseconds later, while the thread that has a
//! completion to take may wait for it. To yield is not enough: it lets in only those that wait for the same processor, and the other
//! may wait behind a thread that spins on something else and never calls us. But the kernel lets a thread that wakes go first if it
//! used less than its share. So all who poll in vain sleep about half of the time, and are waked into their turn, while the
//! process is short of processors: for a second after one of its threads found that much time had passed between two looks, and
//! that the kernel counts a switch it did not ask for. A program that has its processors to itself never sleeps, and pays a
//! comparison in some dozens of polls.

use super::sys;
use std::{
    cell::Cell,
    sync::atomic::{AtomicU64, Ordering::Relaxed},
};

/// In ps.
const MICRO: u64 = 1_000_000;
/// If more time than this passes between two checks of a polling thread, it asks the kernel whether it was made to
/// wait.
const LONG: u64 = 500 * MICRO;
/// After a thread was made to wait, its process counts as short of processors for so long.
const SHORT: u64 = 1_000_000 * MICRO;
/// A thread naps after so many checks in a row, some dozens of polls each, in which nothing happened: some 25 us.
const IN_VAIN: u32 = 8;
/// How long (ns) it naps: about as long, so that it uses less than its share of a processor shared by two.
const NAP: u32 = 20_000;

/// State of a polled function: while it stays the same, nothing happens there.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
pub struct Seen {
    /// Its number.
    pub fid: u8,
    /// Frames it has consumed, free-running.
    pub taken: u32,
    /// Empty polls at the last doorbell.
    pub rang: u32,
}

/// A thread's own state.
#[derive(Clone, Copy, Default)]
struct Thread {
    /// When it last checked, ps; 0 is never.
    last: u64,
    /// How often it had been made to wait by then, as far as it asked.
    switches: u64,
    /// The state that it saw then.
    seen: Seen,
    /// Checks since `seen` last changed.
    vain: u32,
}

thread_local! {
    static THREAD: Cell<Thread> = const { Cell::new(Thread { last: 0, switches: 0, seen: Seen { fid: 0, taken: 0, rang: 0 }, vain: 0 }) };
}

/// Says if a process has too few processors for its threads.
#[derive(Default)]
pub struct Patience {
    /// Until when it is short of processors, ps.
    short: AtomicU64,
}

impl Patience {
    /// Called after some dozens of empty polls. The calling thread naps if it should make way for others. Returns
    /// whether naps replace yields for it: the scheduler takes a thread that yields to have used its share.
    pub fn look(&self, seen: Seen, now: impl Fn() -> u64) -> bool {
        let mut thread = THREAD.get();
        if self.gives_way(&mut thread, now(), seen, sys::involuntary_switches) {
            sys::nap(NAP);
            thread.last = now();
        }
        THREAD.set(thread);
        thread.last < self.short.load(Relaxed)
    }

    fn gives_way(&self, thread: &mut Thread, now: u64, seen: Seen, switches: impl Fn() -> u64) -> bool {
        let first = thread.last == 0;
        if first || now.saturating_sub(thread.last) > LONG {
            let before = std::mem::replace(&mut thread.switches, switches());
            if !first && thread.switches != before {
                self.short.store(now + SHORT, Relaxed);
            }
            thread.vain = 0;
        }
        thread.last = now;
        thread.vain = if thread.seen == seen { thread.vain + 1 } else { 0 };
        thread.seen = seen;
        let enough = thread.vain >= IN_VAIN && now < self.short.load(Relaxed);
        if enough {
            thread.vain = 0;
        }
        enough
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A thread that checks every 3 us from `begin` (us) on, `looks` times; `taken` says how many frames were
    /// consumed at each check.
    fn naps(
        patience: &Patience,
        thread: &mut Thread,
        begin: u64,
        looks: u32,
        taken: impl Fn(u32) -> u32,
    ) -> usize {
        (0..looks)
            .filter(|n| {
                let now = (begin + 3 * u64::from(*n)) * MICRO;
                patience.gives_way(thread, now, Seen { fid: 1, taken: taken(*n), rang: 0 }, || 7)
            })
            .count()
    }

    #[test]
    fn a_thread_with_a_processor_of_its_own_never_naps() {
        let (patience, mut thread) = (Patience::default(), Thread::default());
        assert_eq!(naps(&patience, &mut thread, 1, 100_000, |_| 0), 0);
        // It did something else for a while, and no switch is counted.
        assert_eq!(naps(&patience, &mut thread, 1_000_000, 100_000, |_| 0), 0);
    }

    #[test]
    fn after_one_was_made_to_wait_all_that_poll_in_vain_nap_now_and_then() {
        let (patience, mut waited, mut other) = (Patience::default(), Thread::default(), Thread::default());
        let look = |thread: &mut Thread, at: u64, switches| {
            patience.gives_way(thread, at * MICRO, Seen { fid: 1, ..Seen::default() }, || switches)
        };
        assert!(!look(&mut waited, 1, 3) && !look(&mut other, 1, 3));
        assert!(!look(&mut waited, 4_000, 4), "it has not polled in vain since");
        let looks = 10 * IN_VAIN;
        assert_eq!(naps(&patience, &mut waited, 4_003, looks, |_| 0), 10);
        assert_eq!(naps(&patience, &mut other, 10, looks, |_| 0), 10, "another thread of the process");
        // One to which frames come does not, however many polls find none between them.
        assert_eq!(naps(&patience, &mut waited, 6_000, 10_000, |n| n / (IN_VAIN / 2)), 0);
        // A second later it is forgotten.
        assert_eq!(naps(&patience, &mut waited, 1_100_000, 10_000, |_| 0), 0);
    }
}
