//! Forks: a child has our memory but not our life; it must leave the node alone until it opens it itself.
#![allow(unsafe_code)]

use super::sys;
use std::sync::{
    Once,
    atomic::{AtomicU32, Ordering::Relaxed},
};

static FORKS: AtomicU32 = AtomicU32::new(0);
static HANDLER: Once = Once::new();

// SAFETY: only touches an atomic, as a fork handler may.
unsafe extern "C" fn in_child() {
    FORKS.fetch_add(1, Relaxed);
}

/// How many forks lie between the first user of the node and this process. Differs between parent and child.
#[inline]
pub fn generation() -> u32 {
    FORKS.load(Relaxed)
}

/// Starts counting.
pub fn watch() {
    HANDLER.call_once(|| sys::at_fork_in_child(in_child));
}
