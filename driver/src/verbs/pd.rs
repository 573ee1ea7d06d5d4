//! Protection domains.

use super::Device;
use crate::error::Error;
use std::sync::Arc;

/// A protection domain: what may be used together.
pub struct Pd {
    device: Arc<Device>,
}

impl Pd {
    /// Allocates one.
    pub fn alloc(device: &Arc<Device>) -> Result<Arc<Pd>, Error> {
        let _ = device;
        Err(Error::invalid("not built"))
    }

    /// The device it belongs to.
    pub fn device(&self) -> &Arc<Device> {
        &self.device
    }

    /// Deallocates it; EBUSY while objects of it live. Dropping the last reference does the same silently.
    pub fn dealloc(self: Arc<Self>) -> Result<(), Error> {
        Err(Error::invalid("not built"))
    }
}
