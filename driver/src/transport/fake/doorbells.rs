//! Write-combining doorbell pages as the chip sees them: one store at a time.

use super::{Bar, Chip, Combining, PAGE_SIZE, Registers};
use std::{io, sync::Arc};

/// The doorbell pages of a chip.
pub struct Pages(pub Arc<Chip>);

struct Page {
    chip: Arc<Chip>,
    at: u32,
}

impl Combining for Pages {
    fn page(&self, uar: u32) -> io::Result<Bar> {
        if self.0.state().unmapped {
            return Err(io::ErrorKind::AddrInUse.into());
        }
        Ok(Bar::Trapped(Arc::new(Page { chip: self.0.clone(), at: uar * PAGE_SIZE as u32 })))
    }
}

impl Registers for Page {
    fn read32(&self, offset: u32) -> u32 {
        self.chip.read32(self.at + offset)
    }

    fn write32(&self, offset: u32, value: u32) {
        self.chip.write32(self.at + offset, value);
    }

    fn write64(&self, offset: u32, value: u64) {
        self.chip.write64(self.at + offset, value);
    }
}
