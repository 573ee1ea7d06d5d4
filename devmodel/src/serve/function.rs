//! The interface between a server and a function.

use super::{GuestMemory, Irqs};

/// The memory and interrupts that the client of a function gave.
#[derive(Default)]
pub struct Guest {
    /// Its memory.
    pub memory: GuestMemory,
    /// Its interrupts.
    pub irqs: Irqs,
}

impl Guest {
    /// The client is gone: no access to its memory and no interrupt after this returns.
    pub fn forget(&self) {
        self.memory.unmap_all();
        self.irqs.clear();
        // Nothing to admit: it can't fail.
        let _ = self.irqs.set_failure(None);
    }
}

/// A function, as a server reaches it. Accesses are of registers' own size and aligned; each is over when it returns.
pub trait Function: Send + Sync {
    /// The memory and interrupts that its client gave.
    fn guest(&self) -> &Guest;
    /// Reads `width` (1, 2 or 4) bytes of configuration space.
    fn config_read(&self, offset: usize, width: usize) -> u32;
    /// Writes `width` (1, 2 or 4) bytes of configuration space.
    fn config_write(&self, offset: usize, width: usize, value: u32);
    /// Reads a register of BAR0, big-endian as all of them are: see `Adapter::bar_read32`.
    fn bar_read32(&self, offset: u64) -> u32;
    /// Writes a register of BAR0.
    fn bar_write32(&self, offset: u64, value: u32);
    /// Writes a register of 8 bytes of BAR0.
    fn bar_write64(&self, offset: u64, value: u64);
    /// Lets a vector of MSI-X send, or masks it.
    fn vector(&self, vector: u16, sends: bool);
    /// Resets the function, and no other.
    fn reset(&self);
    /// Asks its driver for pages, or to take some back: see `Adapter::ask_pages`.
    fn ask_pages(&self, pages: i32) -> bool;
}
