//! The lock of a queue: held for tens of nanoseconds around one post or poll, never across a wait.
//!
//! Nearly every queue is used by one thread, and a locked instruction costs that thread more than the rest of its way through
//! the lock: it waits until all its earlier stores have arrived, those to lines of other processors too. So a thread that
//! posts or polls makes the lock its own, and takes it from then on by plain loads and stores. The first other thread that
//! comes takes that away for good: it pays for both, by a barrier in every thread of the process (`membarrier`).

use std::{
    cell::UnsafeCell,
    ops::{Deref, DerefMut},
    sync::atomic::{
        AtomicBool, AtomicU32, AtomicUsize,
        Ordering::{Acquire, Relaxed, Release, SeqCst},
        compiler_fence, fence,
    },
    time::Duration,
};

/// A value behind a spin lock that yields the CPU after a while (the holder may have been scheduled out).
pub struct Spin<T> {
    locked: AtomicBool,
    /// The owner is inside.
    inside: AtomicBool,
    /// The thread that does without `locked`; [`NOBODY`] yet, or [`COMMON`].
    owner: AtomicUsize,
    value: UnsafeCell<T>,
}
// SAFETY: the lock gives out one reference at a time.
unsafe impl<T: Send> Sync for Spin<T> {}

/// Exclusive access; unlocks when dropped.
pub struct SpinGuard<'a, T> {
    lock: &'a Spin<T>,
    /// What says that we are inside.
    word: &'a AtomicBool,
}

const NOBODY: usize = 0;
/// Several threads use it: it has no owner any more.
const COMMON: usize = 1;
/// Locks taken from their owners after which no more are given away: a program whose queues are everybody's.
const ENOUGH: u32 = 64;

impl<T> Spin<T> {
    /// Unlocked.
    pub const fn new(value: T) -> Self {
        Self {
            locked: AtomicBool::new(false),
            inside: AtomicBool::new(false),
            owner: AtomicUsize::new(NOBODY),
            value: UnsafeCell::new(value),
        }
    }

    /// Waits for the lock.
    #[inline]
    pub fn lock(&self) -> SpinGuard<'_, T> {
        self.lock_as_owner().unwrap_or_else(|| self.lock_as_any(false))
    }

    /// As [`lock`](Self::lock), where the thread is likely to be the only one that comes here often: it becomes the owner if
    /// there is none yet.
    #[inline(always)]
    pub fn lock_often(&self) -> SpinGuard<'_, T> {
        match self.lock_as_owner() {
            Some(guard) => guard,
            None => self.lock_as_any(true),
        }
    }

    #[inline(always)]
    fn lock_as_owner(&self) -> Option<SpinGuard<'_, T>> {
        let me = this_thread();
        if self.owner.load(Relaxed) != me || self.inside.load(Relaxed) {
            return None;
        }
        self.inside.store(true, Relaxed);
        // Whoever takes the lock from us has a barrier carried out here between its store to `owner` and its look at `inside`:
        // either we see the one, or it sees the other.
        compiler_fence(SeqCst);
        if self.owner.load(Relaxed) == me {
            compiler_fence(Acquire);
            return Some(SpinGuard { lock: self, word: &self.inside });
        }
        self.inside.store(false, Release);
        None
    }

    #[inline(never)]
    fn lock_as_any(&self, often: bool) -> SpinGuard<'_, T> {
        if self.locked.swap(true, Acquire) {
            wait(|| !self.locked.load(Relaxed) && !self.locked.swap(true, Acquire));
        }
        match self.owner.load(Relaxed) {
            COMMON => {}
            NOBODY if often && may_own() => return self.own(),
            NOBODY => {}
            _ => self.share(),
        }
        SpinGuard { lock: self, word: &self.locked }
    }

    /// Becomes its owner, who is inside from here on as at every later time; `locked` is ours until then.
    #[cold]
    fn own(&self) -> SpinGuard<'_, T> {
        self.inside.store(true, Relaxed);
        self.owner.store(this_thread(), Relaxed);
        self.locked.store(false, Release);
        SpinGuard { lock: self, word: &self.inside }
    }

    /// Takes the lock from its owner; `locked` is ours.
    #[cold]
    fn share(&self) {
        self.owner.store(COMMON, SeqCst);
        barrier();
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
            true => std::hint::spin_loop(),
            false => std::thread::yield_now(),
        }
    }
}

/// What [`this_thread`] says of all threads where they cannot be told apart.
pub const ANY_THREAD: usize = 2;

/// A number that no other thread has while this one lives, above [`ANY_THREAD`].
#[inline(always)]
pub fn this_thread() -> usize {
    #[cfg(all(target_arch = "x86_64", target_os = "linux"))]
    {
        let at: usize;
        // SAFETY: the psABI has the thread control block begin with its own address.
        unsafe {
            std::arch::asm!("mov {}, fs:0", out(reg) at, options(nostack, preserves_flags, pure, readonly))
        };
        at
    }
    #[cfg(not(all(target_arch = "x86_64", target_os = "linux")))]
    ANY_THREAD
}

/// From `linux/membarrier.h`: a memory barrier in every thread of this process that runs now.
const PRIVATE_EXPEDITED: libc::c_int = 1 << 3;
const REGISTER_PRIVATE_EXPEDITED: libc::c_int = 1 << 4;

/// Time after which what a thread stored has left its processor, though nothing made it.
pub const DRAINED: Duration = Duration::from_millis(10);

/// Owners that locks may still be given; one less for each that lost it. 0 is not known yet, 1 none.
static OWNERS: AtomicU32 = AtomicU32::new(0);

/// Whether locks are given to threads: where threads can be told apart and the kernel has the barrier.
#[cold]
fn may_own() -> bool {
    if OWNERS.load(Relaxed) == 0 {
        let known = this_thread() != ANY_THREAD;
        // SAFETY: changes how the kernel schedules us; a kernel that does not know it refuses.
        let barrier =
            known && unsafe { libc::syscall(libc::SYS_membarrier, REGISTER_PRIVATE_EXPEDITED, 0, 0) == 0 };
        let _ = OWNERS.compare_exchange(0, if barrier { ENOUGH + 1 } else { 1 }, Relaxed, Relaxed);
    }
    OWNERS.load(Relaxed) > 1
}

fn barrier() {
    let _ = OWNERS.fetch_update(Relaxed, Relaxed, |left| (left > 1).then(|| left - 1));
    fence(SeqCst);
    // SAFETY: takes no memory.
    let done = || unsafe { libc::syscall(libc::SYS_membarrier, PRIVATE_EXPEDITED, 0, 0) } == 0;
    // It was registered before the first lock had an owner. A program may have forbidden itself the call since then, and the kernel
    // may have no memory for it: a store is seen by all within far less than the time slept.
    if !done() {
        OWNERS.store(1, Relaxed);
        std::thread::sleep(DRAINED);
    }
    fence(SeqCst);
}

impl<T> Deref for SpinGuard<'_, T> {
    type Target = T;
    #[inline]
    fn deref(&self) -> &T {
        // SAFETY: we hold the lock.
        unsafe { &*self.lock.value.get() }
    }
}

impl<T> DerefMut for SpinGuard<'_, T> {
    #[inline]
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY: we hold the lock.
        unsafe { &mut *self.lock.value.get() }
    }
}

impl<T> Drop for SpinGuard<'_, T> {
    #[inline]
    fn drop(&mut self) {
        self.word.store(false, Release);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_holder_at_a_time() {
        let counter = Spin::new(0u64);
        std::thread::scope(|scope| {
            for _ in 0..3 {
                scope.spawn(|| (0..10_000).for_each(|_| *counter.lock() += 1));
            }
        });
        assert_eq!(*counter.lock(), 30_000);
    }

    #[test]
    fn a_lock_that_one_thread_owned_excludes_it_when_others_come() {
        for round in 0..200 {
            // Two words that are one number whenever the lock is held by one.
            let pair = Spin::new((0u64, 0u64));
            let turn = |guard: &mut (u64, u64)| {
                assert_eq!(guard.0, guard.1);
                guard.0 += 1;
                std::hint::black_box(&guard);
                guard.1 += 1;
            };
            std::thread::scope(|scope| {
                scope.spawn(|| (0..2_000).for_each(|_| turn(&mut pair.lock_often())));
                scope.spawn(|| {
                    // Not before it has an owner, as a rule.
                    (0..round * 5).for_each(|_| std::hint::spin_loop());
                    (0..50).for_each(|_| turn(&mut pair.lock()));
                });
                scope.spawn(|| (0..50).for_each(|_| turn(&mut pair.lock_often())));
            });
            assert_eq!(*pair.lock(), (2_100, 2_100));
        }
    }

    #[test]
    fn a_thread_that_is_alone_owns_its_lock() {
        if !may_own() {
            return;
        }
        let lock = Spin::new(0);
        drop(lock.lock());
        assert_eq!(lock.owner.load(Relaxed), NOBODY, "who comes once does not count");
        drop(lock.lock_often());
        if !may_own() {
            // Other tests took the last.
            return;
        }
        assert_eq!(lock.owner.load(Relaxed), this_thread());
        let guard = lock.lock_often();
        assert!(std::ptr::eq(guard.word, &lock.inside) && !lock.locked.load(Relaxed));
        drop(guard);
        std::thread::scope(|scope| scope.spawn(|| *lock.lock() += 1).join()).unwrap();
        assert_eq!((lock.owner.load(Relaxed), *lock.lock()), (COMMON, 1));
    }
}
