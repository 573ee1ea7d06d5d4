//! Protection domains.

use super::{Device, ends::ends};
use crate::{
    dma::{Buffers, DmaMem},
    error::Error,
    transport::Scope,
};
use hwspec::cmd::{CmdIn, Opcode, resource::*};
use std::sync::Arc;

/// A protection domain: objects that may be used together.
pub struct Pd {
    pub(crate) device: Arc<Device>,
    pub(crate) pdn: u32,
    /// The domain that this one is an alias of (as a parent domain).
    parent: Option<Arc<Pd>>,
    /// The source of memory for its queues, if it is not the transport.
    buffers: Option<Arc<dyn Buffers>>,
    live: bool,
}

/// Allocates memory for a queue, from `buffers` or the transport.
pub(super) fn queue_memory(
    device: &Arc<Device>,
    buffers: Option<&Arc<dyn Buffers>>,
    len: usize,
) -> Result<DmaMem, Error> {
    let transport = &device.function.transport;
    if let Some(buffers) = buffers {
        if let Some(mem) = DmaMem::from_caller(transport, buffers, len)? {
            return Ok(mem);
        }
    }
    DmaMem::alloc(transport, len, Scope::Opener)
}

impl Pd {
    /// Allocates a protection domain.
    pub fn alloc(device: &Arc<Device>) -> Result<Arc<Pd>, Error> {
        let out: AllocPdOut = device.function.call(Opcode::AllocPd, device.opener.uid(), &CmdIn::zeroed())?;
        Ok(Arc::new(Pd { device: device.clone(), pdn: out.pd(), parent: None, buffers: None, live: true }))
    }

    /// Creates an alias of `parent` (`ibv_alloc_parent_domain`): objects of both may be used together. The memory of
    /// its queues comes from `buffers`, if given.
    pub fn face(parent: &Arc<Pd>, buffers: Option<Arc<dyn Buffers>>) -> Arc<Pd> {
        let (device, pdn) = (parent.device.clone(), parent.pdn);
        Arc::new(Pd { device, pdn, parent: Some(parent.clone()), buffers, live: true })
    }

    /// Allocates memory for a queue of this domain, at least `len` bytes.
    pub(crate) fn queue_memory(self: &Arc<Self>, len: usize) -> Result<DmaMem, Error> {
        queue_memory(&self.device, self.buffers(), len)
    }

    /// The source of memory for its queues, if it is not the transport.
    pub fn buffers(&self) -> Option<&Arc<dyn Buffers>> {
        self.buffers.as_ref()
    }

    /// A domain of the function itself, which this opener must not deallocate.
    pub(crate) fn of_function(device: &Arc<Device>, pdn: u32) -> Arc<Pd> {
        Arc::new(Pd { device: device.clone(), pdn, parent: None, buffers: None, live: false })
    }

    /// The device it belongs to.
    pub fn device(&self) -> &Arc<Device> {
        &self.device
    }

    /// True if objects of both may be used together, i.e. both are aliases of one domain.
    pub fn is_same(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.device, &other.device) && self.pdn == other.pdn
    }

    /// Its number.
    pub fn pdn(&self) -> u32 {
        self.pdn
    }

    fn release(&mut self) -> Result<(), Error> {
        if self.parent.is_some() {
            return Ok(());
        }
        self.device.function.destroy_object(Opcode::DeallocPd, self.device.opener.uid(), self.pdn)
    }
}

ends! {
    /// Deallocates the domain. EBUSY while it has objects, which keep it until the last of them is gone. Dropping the
    /// last reference does the same without reporting errors.
    Pd.dealloc: "the protection domain is in use", "a protection domain could not be deallocated"
}
