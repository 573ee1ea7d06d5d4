//! What else a server gives up: descriptors it did not ask for, and the capabilities of root.
#![allow(unsafe_code)]

use super::Needs;
use std::io;

/// `_LINUX_CAPABILITY_VERSION_3` of `linux/capability.h`: two words for each set.
const VERSION: u32 = 0x2008_0522;
/// Lets a process of root copy to and from programs that have capabilities, which it has not.
const CAP_SYS_PTRACE: u32 = 19;

/// `struct __user_cap_header_struct`.
#[repr(C)]
struct Header {
    version: u32,
    /// 0: the calling thread.
    thread: libc::c_int,
}

/// `struct __user_cap_data_struct`, one for each 32 capabilities.
#[repr(C)]
#[derive(Clone, Copy, Default)]
struct Sets {
    effective: u32,
    permitted: u32,
    inheritable: u32,
}

/// Closes all descriptors but the standard streams. Where the kernel has no such call (before 5.9) they stay.
///
/// # Safety
/// Nobody in this process has any.
pub unsafe fn close_inherited() {
    // SAFETY: the caller's promise.
    unsafe { libc::syscall(libc::SYS_close_range, 3, libc::c_uint::MAX, 0) };
}

/// Leaves the calling thread without capabilities, but the one that copies need where it has that.
pub fn drop_capabilities(needs: Needs) -> io::Result<()> {
    let header = Header { version: VERSION, thread: 0 };
    let mut sets = [Sets::default(); 2];
    // SAFETY: the kernel writes two sets of three words.
    if unsafe { libc::syscall(libc::SYS_capget, &raw const header, sets.as_mut_ptr()) } != 0 {
        return Err(io::Error::last_os_error());
    }
    let keep = if needs.copies { 1 << CAP_SYS_PTRACE } else { 0 };
    let low =
        Sets { effective: sets[0].effective & keep, permitted: sets[0].permitted & keep, inheritable: 0 };
    let left = [low, Sets::default()];
    // SAFETY: the kernel reads two sets of three words.
    match unsafe { libc::syscall(libc::SYS_capset, &raw const header, left.as_ptr()) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}
