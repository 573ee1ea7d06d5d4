//! Identification of the current thread with one load.
#![allow(unsafe_code)]

/// The value of [`this_thread`] for all threads on platforms that cannot distinguish them.
pub const ANY_THREAD: usize = 2;

/// A number above [`ANY_THREAD`] that is unique among live threads. The only thread in a child of fork has the number
/// of the forking thread.
#[inline(always)]
#[cfg(not(all(test, loom)))]
pub fn this_thread() -> usize {
    #[cfg(all(target_arch = "x86_64", target_os = "linux"))]
    {
        let at: usize;
        // SAFETY: according to the psABI, the thread control block begins with its own address.
        unsafe {
            std::arch::asm!("mov {}, fs:0", out(reg) at, options(nostack, preserves_flags, pure, readonly))
        };
        at
    }
    #[cfg(not(all(target_arch = "x86_64", target_os = "linux")))]
    ANY_THREAD
}

#[cfg(all(test, loom))]
pub use model::{run_as, this_thread};

/// loom runs all its threads on one machine thread, so tests number them.
#[cfg(all(test, loom))]
mod model {
    use std::cell::Cell;

    loom::thread_local! {
        static NUMBER: Cell<usize> = Cell::new(super::ANY_THREAD + 1);
    }

    /// Sets the number of the calling thread to `number` above [`ANY_THREAD`](super::ANY_THREAD).
    pub fn run_as(number: usize) {
        NUMBER.with(|this| this.set(super::ANY_THREAD + number));
    }

    /// The number that the test gave to this thread.
    pub fn this_thread() -> usize {
        NUMBER.with(Cell::get)
    }
}
