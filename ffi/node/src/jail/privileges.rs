//! The other rights that a server gives up: inherited descriptors, and the capabilities of root.
#![allow(unsafe_code)]

use super::role::Needs;
use crate::capabilities::{self, Sets};
use std::io;

/// Lets a process of root, without other capabilities, copy to and from programs that have some.
const CAP_SYS_PTRACE: u32 = 19;

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
    let [low, _] = capabilities::get()?;
    let keep = if needs.copies { 1 << CAP_SYS_PTRACE } else { 0 };
    let low = Sets { effective: low.effective & keep, permitted: low.permitted & keep, inheritable: 0 };
    capabilities::set([low, Sets::default()])
}
