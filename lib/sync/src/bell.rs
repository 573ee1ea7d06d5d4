//! A bell for one thread that sleeps until there is work, in memory that programs share.

use crate::bias::{AtomicU32, Ordering::SeqCst};

/// Those who have work for the thread ring. The thread asks how often that was, looks for work, and sleeps unless it was rung meanwhile. One of
/// those who ring asks the kernel to wake it, and only while it sleeps.
#[derive(Debug, Default)]
#[repr(C)]
pub struct Bell {
    /// Counts rings; the thread sleeps on this word.
    rung: AtomicU32,
    /// 1 while it sleeps or is about to.
    sleeping: AtomicU32,
}

impl Bell {
    /// How often it was rung: asked for before the thread looks for work.
    #[inline]
    pub fn rung(&self) -> u32 {
        self.rung.load(SeqCst)
    }

    /// There is work, which was published before. `wake` wakes whoever sleeps on the word.
    #[inline]
    pub fn ring(&self, wake: impl FnOnce(&AtomicU32)) {
        self.rung.fetch_add(1, SeqCst);
        in_one_order();
        // A compare-exchange and no swap, for the model checker: see `BiasedMutex`.
        if self.sleeping.load(SeqCst) != 0 && self.sleeping.compare_exchange(1, 0, SeqCst, SeqCst).is_ok() {
            // The thread may have woken, seen the first ring, found nothing and be about to sleep again: then nobody else wakes it any more, so
            // it must not find the number that it has seen.
            self.rung.fetch_add(1, SeqCst);
            wake(&self.rung);
        }
    }

    /// Sleeps by `sleep`, which returns at once where the word is no longer `seen`.
    #[inline]
    pub fn sleep<T>(&self, seen: u32, sleep: impl FnOnce(&AtomicU32, u32) -> T) -> T {
        self.sleeping.store(1, SeqCst);
        in_one_order();
        let result = sleep(&self.rung, seen);
        self.sleeping.store(0, SeqCst);
        result
    }

    /// The thread is gone, and another one may take its place.
    pub fn reset(&self) {
        self.sleeping.store(0, SeqCst);
    }
}

/// All see what is sequentially consistent in one order; loom knows that of fences alone.
#[inline(always)]
fn in_one_order() {
    #[cfg(all(test, loom))]
    crate::bias::fence(SeqCst);
}

#[cfg(all(test, loom))]
mod model;
