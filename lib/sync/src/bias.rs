//! The handshake of biased locking, the base of [`Lock`](crate::Lock) and [`BiasedMutex`](crate::BiasedMutex).
//!
//! A biased lock has an owner that enters without a locked instruction. The owner stores a mark that it is inside, and
//! then checks that it still owns the lock. A thief stores that the lock no longer belongs to the owner, executes a
//! barrier in every thread that could be the owner, and then reads the mark. Wherever the barrier takes effect in the
//! owner's thread, one of the two sees the other: after the mark, the thief sees the mark; before the owner's check,
//! the owner sees that the lock is gone.
//!
//! loom does not support `membarrier`. Under loom the owner has a full fence instead of a compiler fence, and the
//! thief's barrier is a fence in its own thread: at either of the two places, this is equivalent to the kernel's
//! barrier.

#[cfg(all(test, loom))]
pub use ::loom::{
    hint::spin_loop,
    sync::atomic::{AtomicBool, AtomicU16, AtomicU32, AtomicUsize, Ordering, fence},
    thread::yield_now,
};
#[cfg(not(all(test, loom)))]
pub use std::{
    hint::spin_loop,
    sync::atomic::{AtomicBool, AtomicU16, AtomicU32, AtomicUsize, Ordering},
    thread::yield_now,
};

/// The owner's half: stores its mark, then returns true if it still owns the lock and is therefore inside. Otherwise,
/// the caller removes the mark.
#[inline(always)]
pub fn enter(mark: impl FnOnce(), is_owner: impl FnOnce() -> bool) -> bool {
    mark();
    #[cfg(all(test, loom))]
    fence(Ordering::SeqCst);
    // Sufficient for this processor. The thief's `barrier` extends it to all others.
    #[cfg(not(all(test, loom)))]
    std::sync::atomic::compiler_fence(Ordering::SeqCst);
    is_owner()
}

/// The thief's half: announces that the lock is being taken from its owner. Once it returns, an owner that is inside,
/// or gets there, is visible by its mark.
#[inline(always)]
pub fn revoke(announce: impl FnOnce(), barrier: impl FnOnce()) {
    announce();
    barrier();
}
