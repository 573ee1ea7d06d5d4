//! A bell in shared memory for one thread that sleeps until there is work.

use crate::bias::{AtomicU32, Ordering::SeqCst};

/// Producers of work ring the bell. The thread reads the number of rings, looks for work, and sleeps unless the bell
/// was rung in the meantime. Only one of the producers asks the kernel to wake the thread, and only while it sleeps.
#[derive(Debug, Default)]
#[repr(C)]
pub struct Bell {
    /// Number of rings; the thread sleeps on this word.
    rung: AtomicU32,
    /// 1 while the thread sleeps or is about to.
    sleeping: AtomicU32,
}

impl Bell {
    /// The number of rings, to be read before the thread looks for work.
    #[inline]
    pub fn rung(&self) -> u32 {
        self.rung.load(SeqCst)
    }

    /// Rings after work has been published. `wake` wakes a sleeper on the word.
    #[inline]
    pub fn ring(&self, wake: impl FnOnce(&AtomicU32)) {
        self.rung.fetch_add(1, SeqCst);
        in_one_order();
        // A compare-exchange rather than a swap, for the model checker, as in `BiasedMutex`.
        if self.sleeping.load(SeqCst) != 0 && self.sleeping.compare_exchange(1, 0, SeqCst, SeqCst).is_ok() {
            // The thread may have woken up, seen the first ring, found nothing and be about to sleep again. Then this
            // is the last ring, so the thread must not find the number that it has already seen.
            self.rung.fetch_add(1, SeqCst);
            wake(&self.rung);
        }
    }

    /// Sleeps by calling `sleep`, which returns at once if the word is no longer `seen`.
    #[inline]
    pub fn sleep<T>(&self, seen: u32, sleep: impl FnOnce(&AtomicU32, u32) -> T) -> T {
        self.sleeping.store(1, SeqCst);
        in_one_order();
        let result = sleep(&self.rung, seen);
        self.sleeping.store(0, SeqCst);
        result
    }

    /// Resets the bell after its thread is gone, for a new one.
    pub fn reset(&self) {
        self.sleeping.store(0, SeqCst);
    }
}

/// Sequentially consistent accesses have a single order for all threads; loom provides that only for fences.
#[inline(always)]
fn in_one_order() {
    #[cfg(all(test, loom))]
    crate::bias::fence(SeqCst);
}

#[cfg(all(test, loom))]
mod model;
