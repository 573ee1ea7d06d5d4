//! The interface between a server and a function.

use super::{GuestMemory, Irqs};

/// The memory and interrupts provided by the client of a function.
#[derive(Default)]
pub struct Guest {
    /// Its memory.
    pub memory: GuestMemory,
    /// Its interrupts.
    pub irqs: Irqs,
}

impl Guest {
    /// Drops the resources of a disconnected client: no access to its memory and no interrupt after this returns.
    pub fn forget(&self) {
        self.memory.unmap_all();
        self.irqs.clear();
        // Cannot fail without a descriptor to check.
        let _ = self.irqs.set_failure(None);
    }
}

/// A function, as a server accesses it. Accesses have a register's size and are aligned; each is complete when it returns.
pub trait Function: Send + Sync {
    /// The memory and interrupts provided by its client.
    fn guest(&self) -> &Guest;
    /// Reads `width` (1, 2 or 4) bytes of configuration space.
    fn config_read(&self, offset: usize, width: usize) -> u32;
    /// Writes `width` (1, 2 or 4) bytes of configuration space.
    fn config_write(&self, offset: usize, width: usize, value: u32);
    /// Reads a register of BAR0, big-endian like all of them, as `Adapter::bar_read32` does.
    fn bar_read32(&self, offset: u64) -> u32;
    /// Writes a register of BAR0.
    fn bar_write32(&self, offset: u64, value: u32);
    /// Writes an 8-byte register of BAR0.
    fn bar_write64(&self, offset: u64, value: u64);
    /// Unmasks or masks an MSI-X vector.
    fn vector(&self, vector: u16, sends: bool);
    /// Resets this function only.
    fn reset(&self);
    /// Asks the driver for pages, or to return some if negative, as `Adapter::ask_pages` does.
    fn ask_pages(&self, pages: i32) -> bool;
}
