//! Destroys objects whose owner has to keep them if the device refuses.

use crate::error::Error;
use std::sync::Arc;

/// An object of the device that can be destroyed where it lies.
pub trait InPlace {
    /// Destroys it. If the device refuses, calls on the object stay valid but are served no more, and a second call finds
    /// nothing left to do; a region to which windows are bound stays whole. EBUSY, of an `Arc`: there are other references,
    /// and nothing was done.
    fn destroy_in_place(&mut self) -> Result<(), Error>;
}

impl<T: InPlace> InPlace for Arc<T> {
    fn destroy_in_place(&mut self) -> Result<(), Error> {
        Arc::get_mut(self).ok_or_else(|| Error::busy("the object is in use"))?.destroy_in_place()
    }
}
