//! Protection domains.

use super::Device;
use crate::error::Error;
use hwspec::cmd::{Opcode, resource::*};
use std::sync::Arc;

/// A protection domain: what may be used together.
pub struct Pd {
    pub(crate) device: Arc<Device>,
    pub(crate) pdn: u32,
    live: bool,
}

impl Pd {
    /// Allocates one.
    pub fn alloc(device: &Arc<Device>) -> Result<Arc<Pd>, Error> {
        let out: AllocPdOut =
            device.function.call(Opcode::AllocPd, device.opener.uid(), &AllocPdIn::zeroed())?;
        Ok(Arc::new(Pd { device: device.clone(), pdn: out.pd(), live: true }))
    }

    /// The device it belongs to.
    pub fn device(&self) -> &Arc<Device> {
        &self.device
    }

    /// Its number.
    pub fn pdn(&self) -> u32 {
        self.pdn
    }

    /// Deallocates it; EBUSY while objects of it live (they keep it; it goes with the last of them). Dropping the last
    /// reference does the same silently.
    pub fn dealloc(self: Arc<Self>) -> Result<(), Error> {
        match Arc::into_inner(self) {
            None => {
                Err(Error::Invalid { what: "the protection domain is in use".into(), errno: libc::EBUSY })
            }
            Some(mut pd) => pd.release(),
        }
    }

    fn release(&mut self) -> Result<(), Error> {
        if !std::mem::take(&mut self.live) {
            return Ok(());
        }
        let mut input = DeallocPdIn::zeroed();
        input.set().pd(self.pdn);
        self.device.function.order(Opcode::DeallocPd, self.device.opener.uid(), &input)
    }
}

impl Drop for Pd {
    fn drop(&mut self) {
        if let Err(error) = self.release() {
            tracing::warn!(%error, "a protection domain could not be deallocated");
        }
    }
}
