//! Other privileges that a server drops: inherited descriptors, and root's capabilities.
#![allow(unsafe_code)]

use super::role::Needs;
use crate::capabilities::{self, Sets};
use std::io;

/// Lets a root process without other capabilities copy to and from programs that have some.
const CAP_SYS_PTRACE: u32 = 19;

/// Closes all descriptors but the standard streams. Kernels before 5.9 have no such call; there they stay open.
///
/// # Safety
/// No code in this process uses any of them.
pub unsafe fn close_inherited() {
    // SAFETY: guaranteed by the caller.
    unsafe { libc::syscall(libc::SYS_close_range, 3, libc::c_uint::MAX, 0) };
}

/// Drops the calling thread's capabilities, except the one for copies if it is needed and present.
pub fn drop_capabilities(needs: Needs) -> io::Result<()> {
    let [low, _] = capabilities::get()?;
    let keep = if needs.copies { 1 << CAP_SYS_PTRACE } else { 0 };
    let low = Sets { effective: low.effective & keep, permitted: low.permitted & keep, inheritable: 0 };
    capabilities::set([low, Sets::default()])
}
