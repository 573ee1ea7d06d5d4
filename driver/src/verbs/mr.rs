//! Memory regions.
#![allow(unsafe_code)]

use super::{AccessFlags, Pd};
use crate::error::Error;
use std::sync::Arc;

/// Memory the device may reach with a key.
pub struct Mr {
    lkey: u32,
}

impl Mr {
    /// Registers `len` bytes at `addr`; keys address them from `hca_va` on (usually `addr as u64`).
    /// # Safety
    /// The memory stays mapped while registered, and changes under the process.
    pub unsafe fn register(
        pd: &Arc<Pd>,
        addr: *mut u8,
        len: usize,
        hca_va: u64,
        access: AccessFlags,
    ) -> Result<Mr, Error> {
        let _ = (pd, addr, len, hca_va, access);
        Err(Error::invalid("not built"))
    }

    /// Key for work requests of this side.
    pub fn lkey(&self) -> u32 {
        self.lkey
    }

    /// Key to give to peers.
    pub fn rkey(&self) -> u32 {
        self.lkey
    }

    /// Deregisters: when it returns the device touches the memory no more. Dropping does the same silently.
    pub fn deregister(self) -> Result<(), Error> {
        Err(Error::invalid("not built"))
    }
}
