//! Which descriptors are event channels: asked on every call librdmacm makes, also in a forked child.

use libc::c_int;
use std::sync::atomic::{AtomicU64, Ordering::*};

/// A bit for every descriptor; more than these a process is not given channels under.
static OPEN: [AtomicU64; 1 << 14] = [const { AtomicU64::new(0) }; 1 << 14];

fn place(fd: c_int) -> Option<(&'static AtomicU64, u64)> {
    let fd = usize::try_from(fd).ok()?;
    Some((OPEN.get(fd / 64)?, 1 << (fd % 64)))
}

/// True if there is room to note `fd`.
pub fn fits(fd: c_int) -> bool {
    place(fd).is_some()
}

/// `fd` is a channel now.
pub fn enter(fd: c_int) {
    if let Some((word, bit)) = place(fd) {
        word.fetch_or(bit, Release);
    }
}

/// `fd` is none any more. Whether it was.
pub fn leave(fd: c_int) -> bool {
    place(fd).is_some_and(|(word, bit)| word.fetch_and(!bit, AcqRel) & bit != 0)
}

/// True if `fd` is a channel.
pub fn holds(fd: c_int) -> bool {
    place(fd).is_some_and(|(word, bit)| word.load(Acquire) & bit != 0)
}
