//! The lock of a queue: held for tens of nanoseconds around one post or poll, never across a wait.

use std::{
    cell::UnsafeCell,
    ops::{Deref, DerefMut},
    sync::atomic::{
        AtomicBool,
        Ordering::{Acquire, Relaxed, Release},
    },
};

/// A value behind a spin lock that yields the CPU after a while (the holder may have been scheduled out).
pub struct Spin<T> {
    locked: AtomicBool,
    value: UnsafeCell<T>,
}
// SAFETY: the lock gives out one reference at a time.
unsafe impl<T: Send> Sync for Spin<T> {}

/// Exclusive access; unlocks when dropped.
pub struct SpinGuard<'a, T>(&'a Spin<T>);

impl<T> Spin<T> {
    /// Unlocked.
    pub const fn new(value: T) -> Self {
        Self { locked: AtomicBool::new(false), value: UnsafeCell::new(value) }
    }

    /// Waits for the lock.
    #[inline]
    pub fn lock(&self) -> SpinGuard<'_, T> {
        if self.locked.swap(true, Acquire) {
            self.wait();
        }
        SpinGuard(self)
    }

    #[cold]
    fn wait(&self) {
        let mut spins = 0u32;
        loop {
            while self.locked.load(Relaxed) {
                spins += 1;
                match spins < 200 {
                    true => std::hint::spin_loop(),
                    false => std::thread::yield_now(),
                }
            }
            if !self.locked.swap(true, Acquire) {
                return;
            }
        }
    }
}

impl<T> Deref for SpinGuard<'_, T> {
    type Target = T;
    #[inline]
    fn deref(&self) -> &T {
        // SAFETY: we hold the lock.
        unsafe { &*self.0.value.get() }
    }
}

impl<T> DerefMut for SpinGuard<'_, T> {
    #[inline]
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY: we hold the lock.
        unsafe { &mut *self.0.value.get() }
    }
}

impl<T> Drop for SpinGuard<'_, T> {
    #[inline]
    fn drop(&mut self) {
        self.0.locked.store(false, Release);
    }
}

#[cfg(test)]
mod tests {
    use super::Spin;

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
}
