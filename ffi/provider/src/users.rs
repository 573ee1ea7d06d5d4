//! Use counts of objects.

use libc::c_int;
use std::sync::atomic::{AtomicU32, Ordering};

/// Counts the objects that use another object, which can be destroyed only when the count is zero.
#[derive(Default)]
pub struct Users(AtomicU32);

impl Users {
    /// Adds a use until the result is dropped. The returned reference may outlive every other reference, because the counted object is not
    /// destroyed before the count is zero (V3).
    pub fn hold(&'static self) -> Use {
        self.0.fetch_add(1, Ordering::Relaxed);
        Use(self)
    }

    /// Fails with EBUSY unless the count is zero.
    pub fn none(&self) -> Result<(), c_int> {
        if self.0.load(Ordering::Acquire) == 0 { Ok(()) } else { Err(libc::EBUSY) }
    }
}

/// One use in the [`Users`] count of an object. Structures declare it after the driver's object, so that the latter is dropped before the
/// count falls.
pub struct Use(&'static Users);

impl Drop for Use {
    fn drop(&mut self) {
        self.0.0.fetch_sub(1, Ordering::Release);
    }
}
