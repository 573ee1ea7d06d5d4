//! More pollers than processors.
//!
//! A thread that polls an empty CQ keeps its processor until the kernel preempts it, milliseconds later, while the thread that could make
//! progress may wait for that processor. Yielding is not enough: it only lets threads run that wait for the same processor, and the other
//! thread may wait behind one that spins on something else and never calls this library. But the kernel prefers a waking thread that has
//! used less than its share. So while the process is short of processors, all threads that poll in vain sleep about half of the time and
//! get their turn when they wake. A process is short of processors for a second after one of its threads saw a long time pass between two
//! checks and the kernel counted an involuntary context switch. A program with enough processors never sleeps, and pays one comparison per
//! few dozen polls.

use super::sys;
use std::{
    cell::Cell,
    sync::atomic::{AtomicU64, Ordering::Relaxed},
};

/// Picoseconds per microsecond.
const MICRO: u64 = 1_000_000;
/// If more time than this passes between two checks of a polling thread, it asks the kernel whether it was preempted.
const LONG: u64 = 500 * MICRO;
/// After a thread was preempted, its process counts as short of processors for this long.
const SHORT: u64 = 1_000_000 * MICRO;
/// A thread naps after this many checks in a row, each after a few dozen polls, without progress: about 25 us.
const IN_VAIN: u32 = 8;
/// Length of a nap (ns): about as long, so that the thread uses less than its share of a processor shared by two.
const NAP: u32 = 20_000;

/// State of a polled function. It changes with any progress of the function.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
pub struct Seen {
    /// Function number.
    pub fid: u8,
    /// Number of frames it has consumed, free-running.
    pub taken: u32,
    /// Empty polls at the last doorbell.
    pub rang: u32,
}

/// A thread's own state.
#[derive(Clone, Copy, Default)]
struct Thread {
    /// Time of its last check, ps; 0 if none.
    last: u64,
    /// Its involuntary context switches when it last asked.
    switches: u64,
    /// The state at its last check.
    seen: Seen,
    /// Checks since `seen` last changed.
    vain: u32,
}

thread_local! {
    static THREAD: Cell<Thread> = const { Cell::new(Thread { last: 0, switches: 0, seen: Seen { fid: 0, taken: 0, rang: 0 }, vain: 0 }) };
}

/// Tracks whether a process has too few processors for its threads.
#[derive(Default)]
pub struct Patience {
    /// Time until which it is short of processors, ps.
    short: AtomicU64,
}

impl Patience {
    /// Called after a few dozen empty polls. The calling thread naps if it should make way for others. Returns true if naps replace yields
    /// for it: the scheduler treats a yielding thread as having used its share.
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

    /// A thread that checks `looks` times, every 3 us from `begin` (us) on; `taken` is the number of frames consumed at each check.
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
        // The thread did something else for a while, and no switch is counted.
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
        // A thread that receives frames does not nap, however many polls between them are empty.
        assert_eq!(naps(&patience, &mut waited, 6_000, 10_000, |n| n / (IN_VAIN / 2)), 0);
        // The state expires after a second.
        assert_eq!(naps(&patience, &mut waited, 1_100_000, 10_000, |_| 0), 0);
    }
}
