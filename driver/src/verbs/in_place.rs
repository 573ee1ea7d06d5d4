//! Destruction of objects that the owner has to keep if the device refuses.

use crate::error::Error;
use std::sync::Arc;

/// An object of the device that can be destroyed through a reference.
pub trait InPlace {
    /// Destroys the object. If the device refuses, calls on the object remain valid but fail, and a second destroy has
    /// nothing left to do; a region with bound windows stays intact. EBUSY, for an `Arc`: there are other references,
    /// and nothing was done.
    fn destroy_in_place(&mut self) -> Result<(), Error>;
}

impl<T: InPlace> InPlace for Arc<T> {
    fn destroy_in_place(&mut self) -> Result<(), Error> {
        Arc::get_mut(self).ok_or_else(|| Error::busy("the object is in use"))?.destroy_in_place()
    }
}
