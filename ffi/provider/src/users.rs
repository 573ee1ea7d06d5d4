//! How many objects use another.

use libc::c_int;
use std::sync::atomic::{AtomicU32, Ordering};

/// Counts the objects that use another, which can only be destroyed when there are none left.
#[derive(Default)]
pub struct Users(AtomicU32);

impl Users {
    /// Counts one more, until the result is dropped. The reference may outlive every other one, since the object that has
    /// the count is not destroyed while there are any (V3).
    pub fn hold(&'static self) -> Use {
        self.0.fetch_add(1, Ordering::Relaxed);
        Use(self)
    }

    /// EBUSY while there are any.
    pub fn none(&self) -> Result<(), c_int> {
        if self.0.load(Ordering::Acquire) == 0 { Ok(()) } else { Err(libc::EBUSY) }
    }
}

/// One of the [`Users`] of an object. A structure has it behind the driver's object, which therefore is gone when the
/// count falls.
pub struct Use(&'static Users);

impl Drop for Use {
    fn drop(&mut self) {
        self.0.0.fetch_sub(1, Ordering::Release);
    }
}
