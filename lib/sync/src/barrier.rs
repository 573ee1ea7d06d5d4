//! Memory barriers in other threads: membarrier(2).
#![allow(unsafe_code)]

use std::{
    sync::atomic::{Ordering::SeqCst, fence},
    time::Duration,
};

/// From `linux/membarrier.h`: a memory barrier in every running thread of this process.
const PRIVATE_EXPEDITED: libc::c_int = 1 << 3;
const REGISTER_PRIVATE_EXPEDITED: libc::c_int = 1 << 4;

/// Time after which a thread's stores have left its processor even without a barrier.
pub const DRAINED: Duration = Duration::from_millis(10);

/// Registers this process for [`in_this_process`]. Returns false if the kernel does not support the call.
pub fn register() -> bool {
    // SAFETY: affects only the kernel's scheduling of this process; a kernel that does not know the command
    // refuses it.
    unsafe { libc::syscall(libc::SYS_membarrier, REGISTER_PRIVATE_EXPEDITED, 0, 0) == 0 }
}

/// Executes a full memory barrier in every thread of this process. Returns false if the kernel refused; then this
/// sleeps for [`DRAINED`] to the same effect.
pub fn in_this_process() -> bool {
    fence(SeqCst);
    // SAFETY: passes no memory.
    let done = unsafe { libc::syscall(libc::SYS_membarrier, PRIVATE_EXPEDITED, 0, 0) } == 0;
    // The program may have disabled the call since registration, or the kernel may be out of memory.
    if !done {
        std::thread::sleep(DRAINED);
    }
    fence(SeqCst);
    done
}
