//! Which thread this is, by one load.
#![allow(unsafe_code)]

/// The value that [`this_thread`] returns for all threads where they cannot be told apart.
pub const ANY_THREAD: usize = 2;

/// A number that no other thread has while this one lives, above [`ANY_THREAD`]. The one thread of a child of fork has
/// the number of the thread that forked.
#[inline(always)]
#[cfg(not(all(test, loom)))]
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

#[cfg(all(test, loom))]
pub use model::{run_as, this_thread};

/// loom runs all its threads on one of the machine's, so a test numbers them.
#[cfg(all(test, loom))]
mod model {
    use std::cell::Cell;

    loom::thread_local! {
        static NUMBER: Cell<usize> = Cell::new(super::ANY_THREAD + 1);
    }

    /// The calling thread is number `number` above [`ANY_THREAD`](super::ANY_THREAD) from now on.
    pub fn run_as(number: usize) {
        NUMBER.with(|this| this.set(super::ANY_THREAD + number));
    }

    /// The number that the test gave this thread.
    pub fn this_thread() -> usize {
        NUMBER.with(Cell::get)
    }
}
