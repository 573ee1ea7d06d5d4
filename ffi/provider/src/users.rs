//! How many objects use another.

use libc::c_int;
use std::sync::atomic::{AtomicU32, Ordering};

/// Counts the objects that use another, which can only be destroyed when there are none left.
#[derive(Default)]
pub struct Users(AtomicU32);

impl Users {
    /// One more.
    pub fn add(&self) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }

    /// One less.
    pub fn remove(&self) {
        self.0.fetch_sub(1, Ordering::Release);
    }

    /// EBUSY while there are any.
    pub fn none(&self) -> Result<(), c_int> {
        if self.0.load(Ordering::Acquire) == 0 { Ok(()) } else { Err(libc::EBUSY) }
    }
}
