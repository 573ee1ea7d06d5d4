//! Forks: a child has its parent's memory, but must not touch the parent's devices, or its locks in shared memory.
#![allow(unsafe_code)]

use std::sync::{
    Once,
    atomic::{AtomicU32, Ordering::Relaxed},
};

static FORKS: AtomicU32 = AtomicU32::new(0);
static HANDLER: Once = Once::new();

extern "C" fn in_child() {
    FORKS.fetch_add(1, Relaxed);
}

/// The number of forks between the first call of [`watch`] and this process. It differs between parent and child, so an
/// object that records it at creation can detect use by another process.
#[inline]
pub fn generation() -> u32 {
    FORKS.load(Relaxed)
}

/// Starts counting.
pub fn watch() {
    // SAFETY: the handler only adds to an atomic, which is allowed between fork and exec.
    HANDLER.call_once(|| unsafe {
        libc::pthread_atfork(None, None, Some(in_child));
    });
}
