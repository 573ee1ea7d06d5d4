//! A mutex for critical sections of tens of nanoseconds, never held across a wait: it protects a queue during one post
//! or poll.
//!
//! Nearly every queue is used by one thread, and a locked instruction costs that thread more than everything else in
//! the mutex: it waits until all its earlier stores are visible, including those to cache lines of other processors. So
//! a thread that calls [`BiasedMutex::lock_biased`] becomes the owner and locks with plain loads and stores from then
//! on. The first other thread that locks revokes the ownership for good, and pays for both with a barrier in every
//! thread of the process.
//!
//! Both this type and [`Lock`](crate::Lock) use the handshake of [`bias`], but this one needs none of the parts that
//! make `Lock` slower to enter. Its contenders are threads of one process, distinguished by one load, so there are no
//! parties to ask for and no seats for former owners that may come back. It never finds a dead holder: a thread that
//! panics unlocks, and a process that dies takes the mutex with it. And it loses its owner at most once, so it needs no
//! counters.
//!
//! A child of fork has a copy. The forking thread is the child's only one, and keeps its ownerships; mutexes owned by
//! other threads it locks as any thief does. A mutex held by another thread at the time of the fork stays locked in the
//! child, as with `pthread_mutex_t`.
#![allow(unsafe_code)]

use crate::{
    bias::{
        self, AtomicBool, AtomicUsize,
        Ordering::{Acquire, Relaxed, Release, SeqCst},
        spin_loop, yield_now,
    },
    thread::this_thread,
};
use std::{
    cell::UnsafeCell,
    ops::{Deref, DerefMut},
    sync::atomic::compiler_fence,
};

/// A value protected by a biased spin lock, which yields the processor after a while, since the holder may have been
/// descheduled.
pub struct BiasedMutex<T> {
    locked: AtomicBool,
    /// The owner is inside.
    inside: AtomicBool,
    /// The thread that bypasses `locked`; [`NOBODY`] initially, or [`REVOKED`].
    owner: AtomicUsize,
    value: UnsafeCell<T>,
}
// SAFETY: the mutex gives out one reference at a time.
unsafe impl<T: Send> Sync for BiasedMutex<T> {}

/// Exclusive access; unlocks on drop.
pub struct BiasedGuard<'a, T> {
    mutex: &'a BiasedMutex<T>,
    /// The word that excludes others: `locked`, or `inside` for the owner.
    word: &'a AtomicBool,
}

const NOBODY: usize = 0;
/// Several threads use the mutex: it will not have an owner again.
const REVOKED: usize = 1;

impl<T> BiasedMutex<T> {
    /// Creates a mutex that is unlocked and has no owner.
    pub fn new(value: T) -> Self {
        Self {
            locked: AtomicBool::new(false),
            inside: AtomicBool::new(false),
            owner: AtomicUsize::new(NOBODY),
            value: UnsafeCell::new(value),
        }
    }

    /// Waits for the mutex.
    #[inline]
    pub fn lock(&self) -> BiasedGuard<'_, T> {
        self.lock_as_owner().unwrap_or_else(|| self.lock_as_any(false))
    }

    /// Like [`lock`](Self::lock), but makes the calling thread the owner if the mutex has never had one: for the calls
    /// that are mostly made by a single thread.
    #[inline(always)]
    pub fn lock_biased(&self) -> BiasedGuard<'_, T> {
        match self.lock_as_owner() {
            Some(guard) => guard,
            None => self.lock_as_any(true),
        }
    }

    #[inline(always)]
    fn lock_as_owner(&self) -> Option<BiasedGuard<'_, T>> {
        let me = this_thread();
        if self.owner.load(Relaxed) != me || self.inside.load(Relaxed) {
            return None;
        }
        if bias::enter(|| self.inside.store(true, Relaxed), || self.owner.load(Relaxed) == me) {
            compiler_fence(Acquire);
            return Some(BiasedGuard { mutex: self, word: &self.inside });
        }
        self.inside.store(false, Release);
        None
    }

    /// A compare-exchange rather than a swap: for the model checker, a swap that finds the word locked is a store,
    /// which it may order after the holder's unlocking store.
    #[inline(always)]
    fn try_lock_word(&self) -> bool {
        self.locked.compare_exchange(false, true, Acquire, Relaxed).is_ok()
    }

    #[inline(never)]
    fn lock_as_any(&self, biased: bool) -> BiasedGuard<'_, T> {
        if !self.try_lock_word() {
            wait(|| !self.locked.load(Relaxed) && self.try_lock_word());
        }
        match self.owner.load(Relaxed) {
            REVOKED => {}
            NOBODY if biased && budget::is_left() => return self.own(),
            NOBODY => {}
            _ => self.revoke(),
        }
        BiasedGuard { mutex: self, word: &self.locked }
    }

    /// Becomes the owner, and enters as at every later time. The caller has `locked` until then.
    #[cold]
    fn own(&self) -> BiasedGuard<'_, T> {
        self.inside.store(true, Relaxed);
        self.owner.store(this_thread(), Relaxed);
        self.locked.store(false, Release);
        BiasedGuard { mutex: self, word: &self.inside }
    }

    /// Revokes the ownership for good. The caller has `locked`.
    #[cold]
    fn revoke(&self) {
        bias::revoke(|| self.owner.store(REVOKED, SeqCst), budget::spend);
        wait(|| !self.inside.load(Acquire));
    }
}

/// Waits until `done` returns true.
#[cold]
fn wait(done: impl Fn() -> bool) {
    let mut spins = 0u32;
    while !done() {
        spins += 1;
        match spins < 200 {
            true => spin_loop(),
            false => yield_now(),
        }
    }
}

/// Number of mutexes that may still get an owner. A program that uses every queue from all its threads would pay for a
/// barrier with each queue, so after a number of revocations mutexes get no owner.
#[cfg(not(all(test, loom)))]
mod budget {
    use crate::{
        barrier,
        thread::{ANY_THREAD, this_thread},
    };
    use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

    /// Number of revocations after which mutexes get no owner.
    const REVOCATIONS: u32 = 64;

    /// Revocations left plus one; 0: not yet known.
    static LEFT: AtomicU32 = AtomicU32::new(0);

    /// True if a mutex may get an owner: the platform can identify threads and the kernel has the barrier.
    #[cold]
    pub fn is_left() -> bool {
        if LEFT.load(Relaxed) == 0 {
            let usable = this_thread() != ANY_THREAD && barrier::register();
            let _ = LEFT.compare_exchange(0, if usable { REVOCATIONS + 1 } else { 1 }, Relaxed, Relaxed);
        }
        LEFT.load(Relaxed) > 1
    }

    /// The barrier of a revocation.
    pub fn spend() {
        let _ = LEFT.fetch_update(Relaxed, Relaxed, |left| (left > 1).then(|| left - 1));
        if !barrier::in_this_process() {
            LEFT.store(1, Relaxed);
        }
    }
}

/// Under loom every mutex may have an owner, and the barrier is a fence, as explained in [`bias`].
#[cfg(all(test, loom))]
mod budget {
    use crate::bias::{Ordering::SeqCst, fence};

    pub fn is_left() -> bool {
        true
    }

    pub fn spend() {
        fence(SeqCst);
    }
}

impl<T> Deref for BiasedGuard<'_, T> {
    type Target = T;
    #[inline]
    fn deref(&self) -> &T {
        // SAFETY: this guard holds the mutex.
        unsafe { &*self.mutex.value.get() }
    }
}

impl<T> DerefMut for BiasedGuard<'_, T> {
    #[inline]
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY: this guard holds the mutex.
        unsafe { &mut *self.mutex.value.get() }
    }
}

impl<T> Drop for BiasedGuard<'_, T> {
    #[inline]
    fn drop(&mut self) {
        self.word.store(false, Release);
    }
}

#[cfg(all(test, loom))]
mod model;
#[cfg(all(test, not(loom)))]
mod tests;
