//! Use counts of objects.

use libc::c_int;
use std::sync::Arc;
use std::sync::atomic::{Ordering, fence};

/// Counts the objects that use another object, which can be destroyed only when the count is zero.
#[derive(Default)]
pub struct Users(Arc<()>);

impl Users {
    /// Adds a use until the result is dropped.
    pub fn hold(&self) -> Use {
        Use { _count: Arc::clone(&self.0) }
    }

    /// Fails with EBUSY unless the count is zero.
    pub fn none(&self) -> Result<(), c_int> {
        if Arc::strong_count(&self.0) > 1 {
            return Err(libc::EBUSY);
        }
        // The last user's accesses happened before the drop of its `Use`.
        fence(Ordering::Acquire);
        Ok(())
    }
}

/// One use in the [`Users`] count of an object. Structures declare it after the driver's object, so that the latter is dropped before the
/// count falls.
pub struct Use {
    _count: Arc<()>,
}
