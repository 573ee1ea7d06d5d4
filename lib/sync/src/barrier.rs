//! Memory barriers in other threads: membarrier(2).
#![allow(unsafe_code)]

use std::{
    sync::atomic::{Ordering::SeqCst, fence},
    time::Duration,
};

/// From `linux/membarrier.h`: a memory barrier in every thread of this process that runs now.
const PRIVATE_EXPEDITED: libc::c_int = 1 << 3;
const REGISTER_PRIVATE_EXPEDITED: libc::c_int = 1 << 4;

/// Time after which what a thread stored has left its processor, though nothing made it.
pub const DRAINED: Duration = Duration::from_millis(10);

/// Lets [`in_this_process`] reach the threads of this process. False: the kernel has no such call.
pub fn register() -> bool {
    // SAFETY: changes how the kernel schedules us; a kernel that does not know it refuses.
    unsafe { libc::syscall(libc::SYS_membarrier, REGISTER_PRIVATE_EXPEDITED, 0, 0) == 0 }
}

/// A full memory barrier in every thread of this process. False: the kernel refused, and the same was reached by
/// sleeping for [`DRAINED`].
pub fn in_this_process() -> bool {
    fence(SeqCst);
    // SAFETY: takes no memory.
    let done = unsafe { libc::syscall(libc::SYS_membarrier, PRIVATE_EXPEDITED, 0, 0) } == 0;
    // A program may have forbidden itself the call since it registered, and the kernel may have no memory for it.
    if !done {
        std::thread::sleep(DRAINED);
    }
    fence(SeqCst);
    done
}
