//! The set of descriptors that are event channels. It is queried on every call of librdmacm, even in a forked child.

use libc::c_int;
use std::sync::atomic::{AtomicU64, Ordering::*};

/// A bit per descriptor; a process gets no channels with higher numbers.
static OPEN: [AtomicU64; 1 << 14] = [const { AtomicU64::new(0) }; 1 << 14];

fn place(fd: c_int) -> Option<(&'static AtomicU64, u64)> {
    let fd = usize::try_from(fd).ok()?;
    Some((OPEN.get(fd / 64)?, 1 << (fd % 64)))
}

/// True if `fd` is within the range of the set.
pub fn fits(fd: c_int) -> bool {
    place(fd).is_some()
}

/// Adds `fd`.
pub fn enter(fd: c_int) {
    if let Some((word, bit)) = place(fd) {
        word.fetch_or(bit, Release);
    }
}

/// Removes `fd`. Returns true if it was a channel.
pub fn leave(fd: c_int) -> bool {
    place(fd).is_some_and(|(word, bit)| word.fetch_and(!bit, AcqRel) & bit != 0)
}

/// True if `fd` is a channel.
pub fn holds(fd: c_int) -> bool {
    place(fd).is_some_and(|(word, bit)| word.load(Acquire) & bit != 0)
}
