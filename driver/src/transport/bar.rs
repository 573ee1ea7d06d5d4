//! Register windows.

use super::fork::Absence;
use crate::{dma::order::before_device_looks, error::Error};
use hwspec::doorbell::UAR_SIZE;
use migration::Pages;
use std::{fs::File, io, sync::Arc};

/// Registers accessed by calls. Values are in host order: the first byte of the register in memory is the most
/// significant.
pub trait Registers: Send + Sync {
    /// Reads four bytes at `offset`.
    fn read32(&self, offset: u32) -> u32;
    /// Writes four bytes at `offset`.
    fn write32(&self, offset: u32, value: u32);
    /// Writes eight bytes at `offset` in one access (a doorbell).
    fn write64(&self, offset: u32, value: u64);
}

/// Registers mapped into this process.
#[derive(Debug)]
pub struct Mapping {
    base: *mut u8,
    len: usize,
    /// The pages to unmap with the last user of the registers. The handler for forks must have let go of them first.
    _owned: Option<(Absence, Pages)>,
}
// SAFETY: a mapping of device registers, only touched by volatile accesses.
unsafe impl Send for Mapping {}
// SAFETY: registers may be accessed from any thread; each access is one volatile load or store.
unsafe impl Sync for Mapping {}

impl Mapping {
    /// Registers at `base`, `len` bytes.
    /// # Safety
    /// The range is a mapping of device registers (or of memory that stands for them), 8-byte aligned, and stays
    /// mapped as long as this value lives.
    pub unsafe fn new(base: *mut u8, len: usize) -> Self {
        Self { base, len, _owned: None }
    }

    /// Registers at `offset` of a device's file, unmapped with this value. In children of fork there is no device: they
    /// read as all ones.
    pub(super) fn of_file(file: &File, offset: u64, len: usize) -> io::Result<Self> {
        let pages = Pages::file(file, offset, len)?;
        let absence = Absence::of_registers(pages.ptr(), len);
        Ok(Self { base: pages.ptr().as_ptr(), len, _owned: Some((absence, pages)) })
    }

    /// Length in bytes.
    pub(super) fn len(&self) -> usize {
        self.len
    }

    #[inline]
    fn at<T>(&self, offset: u32) -> *mut T {
        let size = size_of::<T>();
        let offset = offset as usize;
        assert!(
            offset % size == 0 && offset + size <= self.len,
            "register {offset:#x} is outside of the BAR"
        );
        self.base.wrapping_add(offset).cast()
    }
}

/// A register window, accessed by plain loads and stores or by calls.
#[derive(Clone)]
pub enum Bar {
    /// Mapped: stores go to the device.
    Mapped(Arc<Mapping>),
    /// Not mapped: each access is a call.
    Trapped(Arc<dyn Registers>),
}

impl Bar {
    /// Whether `len` bytes at `offset` are within it. Of a window that is not mapped, whoever answers the calls knows.
    pub fn has(&self, offset: u64, len: u64) -> bool {
        let end = offset.checked_add(len);
        end.is_some_and(|end| match self {
            Bar::Mapped(mapping) => end <= mapping.len() as u64,
            Bar::Trapped(_) => end <= 1 << 32,
        })
    }

    /// Checks that doorbell page `uar`, of which the device spoke, is within the window.
    pub fn check_page(&self, uar: u32) -> Result<(), Error> {
        match self.has(u64::from(uar) * UAR_SIZE as u64, UAR_SIZE as u64) {
            true => Ok(()),
            false => Err(Error::device("a doorbell page within BAR0", format!("page {uar:#x}"))),
        }
    }

    /// Reads the register at `offset`.
    pub fn read32(&self, offset: u32) -> u32 {
        match self {
            // SAFETY: `at` checked bounds and alignment; the mapping lives.
            Bar::Mapped(m) => u32::from_be(unsafe { m.at::<u32>(offset).read_volatile() }),
            Bar::Trapped(r) => r.read32(offset),
        }
    }

    /// Writes the register at `offset`, after all earlier stores to memory.
    pub fn write32(&self, offset: u32, value: u32) {
        before_device_looks();
        match self {
            // SAFETY: `at` checked bounds and alignment; the mapping lives.
            Bar::Mapped(m) => unsafe { m.at::<u32>(offset).write_volatile(value.to_be()) },
            Bar::Trapped(r) => r.write32(offset, value),
        }
    }

    /// Rings a doorbell: one 8-byte store of the big-endian register value `value`, after all earlier stores to
    /// memory (queue entries, doorbell record).
    #[inline]
    pub fn doorbell(&self, offset: u32, value: u64) {
        before_device_looks();
        match self {
            // SAFETY: `at` checked bounds and alignment; the mapping lives.
            Bar::Mapped(m) => unsafe { m.at::<u64>(offset).write_volatile(value.to_be()) },
            Bar::Trapped(r) => r.write64(offset, value),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_doorbell_page_outside_of_the_window_is_refused() {
        let mut words = vec![0u64; 2 * UAR_SIZE / 8];
        // SAFETY: the words outlive the mapping.
        let mapping = unsafe { Mapping::new(words.as_mut_ptr().cast(), 2 * UAR_SIZE) };
        let bar = Bar::Mapped(Arc::new(mapping));
        assert!(bar.check_page(0).is_ok() && bar.check_page(1).is_ok());
        for page in [2, 0xff_ffff, u32::MAX] {
            let error = bar.check_page(page).unwrap_err().to_string();
            assert!(error.contains(&format!("{page:#x}")), "{error}");
        }
    }
}
