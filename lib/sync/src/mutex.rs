//! A mutex for tens of nanoseconds, never held across a wait: that of a queue during one post or poll.
//!
//! One thread uses nearly every queue, and a locked instruction costs that thread more than the rest of its way through
//! the mutex: it waits until all its earlier stores have arrived, those to lines of other processors too. So a thread
//! that calls [`BiasedMutex::lock_biased`] becomes the owner and locks with plain loads and stores from then on. The
//! first other thread that locks takes that away for good, and pays for both by a barrier in every thread of the
//! process.
//!
//! It is a type of its own beside [`Lock`](crate::Lock), though both stand on the same handshake ([`bias`]), because it
//! needs none of what makes that one slower to enter. Its contenders are threads of one process, told apart by one
//! load, so there are no parties to ask for and no seats for former owners that may come back. It never finds a dead
//! holder: a thread that panics unlocks, and a process that dies takes the mutex with it. And it loses its owner once
//! at most, so it counts nothing.
//!
//! A child of fork has a copy. In it the thread that forked is the only one, and owns what it owned before; it locks
//! what other threads owned as any thief does. A mutex that another thread held at the time of the fork stays locked in
//! the child, as it does with `pthread_mutex_t`.
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

/// A value behind a biased spin lock, which yields the processor after a while, since the holder may have been
/// scheduled out.
pub struct BiasedMutex<T> {
    locked: AtomicBool,
    /// The owner is inside.
    inside: AtomicBool,
    /// The thread that does without `locked`; [`NOBODY`] yet, or [`REVOKED`].
    owner: AtomicUsize,
    value: UnsafeCell<T>,
}
// SAFETY: the mutex gives out one reference at a time.
unsafe impl<T: Send> Sync for BiasedMutex<T> {}

/// Exclusive access; unlocks when dropped.
pub struct BiasedGuard<'a, T> {
    mutex: &'a BiasedMutex<T>,
    /// The word that keeps others out: `locked`, or `inside` for the owner.
    word: &'a AtomicBool,
}

const NOBODY: usize = 0;
/// Several threads use it: it will have no owner again.
const REVOKED: usize = 1;

impl<T> BiasedMutex<T> {
    /// Unlocked and without an owner.
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

    /// As [`lock`](Self::lock), and makes the calling thread the owner if the mutex has never had one: for the calls
    /// that a single thread is likely to make most of.
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

    /// A compare-exchange and no swap, for a swap that finds the word locked is a store to the model checker, which it
    /// may order behind the holder's store that unlocks.
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

    /// Becomes the owner, and is inside as at every later time. `locked` is ours until then.
    #[cold]
    fn own(&self) -> BiasedGuard<'_, T> {
        self.inside.store(true, Relaxed);
        self.owner.store(this_thread(), Relaxed);
        self.locked.store(false, Release);
        BiasedGuard { mutex: self, word: &self.inside }
    }

    /// Takes the mutex from its owner for good. `locked` is ours.
    #[cold]
    fn revoke(&self) {
        bias::revoke(|| self.owner.store(REVOKED, SeqCst), budget::spend);
        wait(|| !self.inside.load(Acquire));
    }
}

/// Waits until `done`.
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

/// How many mutexes may still be given an owner. A program whose queues are used by all of its threads would pay for a
/// barrier with each of them, so owners are no longer given after a number of revocations.
#[cfg(not(all(test, loom)))]
mod budget {
    use crate::{
        barrier,
        thread::{ANY_THREAD, this_thread},
    };
    use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

    /// Revocations after which mutexes get no owner.
    const REVOCATIONS: u32 = 64;

    /// One more than the revocations left; 0: not known yet.
    static LEFT: AtomicU32 = AtomicU32::new(0);

    /// True if a mutex may be given an owner: where threads can be told apart and the kernel has the barrier.
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

/// Under loom every mutex may have an owner, and the barrier is a fence: see [`bias`].
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
        // SAFETY: we hold the mutex.
        unsafe { &*self.mutex.value.get() }
    }
}

impl<T> DerefMut for BiasedGuard<'_, T> {
    #[inline]
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY: we hold the mutex.
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
