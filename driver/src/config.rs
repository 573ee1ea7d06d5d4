//! PCI configuration space, as far as the driver needs it.

use crate::{
    error::Error,
    transport::{Transport, Width},
};
use hwspec::pcie::{CAP_ID_MSIX, CONFIG_SIZE, EXTENDED_CONFIG_SIZE, MsixCap, StatusCommand};

/// Offset of the first extended capability.
const EXTENDED: u16 = 0x100;
/// Offset of the status and command registers.
pub const STATUS_COMMAND: u16 = 4;
/// Offset of the pointer to the first capability.
const CAP_POINTER: u16 = 0x34;

/// A function's configuration space.
pub struct Config<'a>(pub &'a dyn Transport);

impl Config<'_> {
    /// The dword at `offset`.
    pub fn read(&self, offset: u16) -> Result<u32, Error> {
        self.0.config_read(offset, Width::B4).map_err(Error::io("cannot read configuration space"))
    }

    /// Writes the lower or upper half of a dword.
    pub fn write16(&self, offset: u16, value: u16) -> Result<(), Error> {
        let write = self.0.config_write(offset, Width::B2, value.into());
        write.map_err(Error::io("cannot write configuration space"))
    }

    /// Vendor, device and revision.
    pub fn identity(&self) -> Result<(u16, u16, u8), Error> {
        let id = self.read(0)?;
        Ok((id as u16, (id >> 16) as u16, self.read(8)? as u8))
    }

    /// Enables memory accesses to the function and DMA by it (PCI 6.2.2). INTx stays disabled.
    pub fn enable_memory_and_bus_master(&self) -> Result<(), Error> {
        let mut command = StatusCommand::from_bytes(self.read(STATUS_COMMAND)?.to_be_bytes());
        command.set().memory_space(true).bus_master(true).interrupt_disable(true);
        self.write16(STATUS_COMMAND, u32::from_be_bytes(*command.as_bytes()) as u16)
    }

    /// Stops DMA.
    pub fn disable_bus_master(&self) -> Result<(), Error> {
        let mut command = StatusCommand::from_bytes(self.read(STATUS_COMMAND)?.to_be_bytes());
        command.set().bus_master(false);
        self.write16(STATUS_COMMAND, u32::from_be_bytes(*command.as_bytes()) as u16)
    }

    /// Returns the offset of capability `id` (PCI 6.7).
    pub fn capability(&self, id: u8) -> Result<Option<u16>, Error> {
        let mut at = self.read(CAP_POINTER)? as u16 & 0xfc;
        for _ in 0..CONFIG_SIZE / 4 {
            if at == 0 {
                break;
            }
            let head = self.read(at)?;
            if head as u8 == id {
                return Ok(Some(at));
            }
            at = (head >> 8) as u16 & 0xfc;
        }
        Ok(None)
    }

    /// Returns the offset of extended capability `id` (PCI Express 7.6.3).
    pub fn extended_capability(&self, id: u16) -> Result<Option<u16>, Error> {
        let mut at = EXTENDED;
        for _ in 0..EXTENDED_CONFIG_SIZE / 8 {
            let head = self.read(at)?;
            if head == 0 || head == u32::MAX {
                break;
            }
            if head as u16 == id {
                return Ok(Some(at));
            }
            at = (head >> 20) as u16 & 0xffc;
            if at < EXTENDED {
                break;
            }
        }
        Ok(None)
    }

    /// Number of MSI-X vectors (PCI Express 7.7.2).
    pub fn msix_vectors(&self) -> Result<u16, Error> {
        Ok(self.msix()?.1.table_size() + 1)
    }

    /// Enables MSI-X.
    pub fn enable_msix(&self) -> Result<(), Error> {
        let (at, mut msix) = self.msix()?;
        msix.set().enable(true).function_mask(false);
        let head = u32::from_be_bytes(hwspec::layout::prefix(msix.as_bytes()));
        self.write16(at + 2, (head >> 16) as u16)
    }

    fn msix(&self) -> Result<(u16, MsixCap), Error> {
        let at = self.capability(CAP_ID_MSIX)?;
        let at = at.ok_or_else(|| Error::device("an MSI-X capability", "none in configuration space"))?;
        let mut bytes = [0; MsixCap::SIZE];
        bytes[..4].copy_from_slice(&self.read(at)?.to_be_bytes());
        Ok((at, MsixCap::from_bytes(bytes)))
    }
}
