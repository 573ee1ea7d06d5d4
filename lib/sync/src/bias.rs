//! The handshake of biased locking, on which [`Lock`](crate::Lock) and [`BiasedMutex`](crate::BiasedMutex) are built.
//!
//! A biased lock has an owner that enters without a locked instruction. The owner stores a mark that says it is inside
//! and then checks that it still owns the lock. A thief stores that the lock is no longer the owner's, has a barrier
//! carried out in every thread that could be the owner, and then looks at the mark. Wherever the barrier falls in the
//! owner's thread, one of the two sees the other: behind the mark, the thief sees the mark; before the owner's check,
//! the owner sees that the lock is gone.
//!
//! loom knows no `membarrier`. Under it the owner has a fence where it otherwise has a fence of the compiler alone, and
//! the thief's barrier is a fence of its own thread: that is what the kernel's barrier amounts to at either of the two
//! places.

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

/// The owner's half: stores its mark, then says whether it still owns the lock and so is inside. If not, the caller
/// takes the mark back.
#[inline(always)]
pub fn enter(mark: impl FnOnce(), is_owner: impl FnOnce() -> bool) -> bool {
    mark();
    #[cfg(all(test, loom))]
    fence(Ordering::SeqCst);
    // Enough for this processor. `barrier` of the thief makes it so for all others.
    #[cfg(not(all(test, loom)))]
    std::sync::atomic::compiler_fence(Ordering::SeqCst);
    is_owner()
}

/// The thief's half: announces that the lock is being taken from its owner. When this returns, an owner that is inside
/// or will be is seen by its mark.
#[inline(always)]
pub fn revoke(announce: impl FnOnce(), barrier: impl FnOnce()) {
    announce();
    barrier();
}
