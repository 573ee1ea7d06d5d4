//! Register windows.

use super::{
    fork::Absence,
    pieces::{self, Pieces},
};
use crate::{dma::order::before_device_looks, error::Error};
use hwspec::doorbell::UAR_SIZE;
use migration::Pages;
use std::{
    fs::File,
    io,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
};

/// Registers accessed by calls. Values are in host order: the first byte of a register in memory is the most
/// significant one.
pub trait Registers: Send + Sync {
    /// Reads four bytes at `offset`.
    fn read32(&self, offset: u32) -> u32;
    /// Writes four bytes at `offset`.
    fn write32(&self, offset: u32, value: u32);
    /// Writes eight bytes at `offset` in one access (a doorbell).
    fn write64(&self, offset: u32, value: u64);
}

/// Write-combining doorbell pages: stores may reach the device late, several of them in one write of up to 64 bytes,
/// and in any order between two [barriers](crate::dma::order::around_combined).
pub trait Combining: Send + Sync {
    /// Doorbell page `uar`, a window of [`UAR_SIZE`] bytes. The page must not be accessed in any other way.
    ///
    /// # Errors
    /// The kernel does not map it, or it has already been accessed otherwise.
    fn page(&self, uar: u32) -> io::Result<Bar>;
}

/// Registers mapped into this process.
#[derive(Debug)]
pub struct Mapping {
    base: *mut u8,
    len: usize,
    owned: Owned,
}

/// Pages that are unmapped with the last user of the registers.
#[derive(Debug)]
enum Owned {
    /// None: the creator unmaps them.
    Nothing,
    /// All of them. The fork handler must release the pages first.
    Whole { _absence: Absence, _pages: Pages },
    /// The pages in use.
    Pieces(Arc<Pieces>),
}

// SAFETY: a mapping of device registers, only accessed by volatile loads and stores.
unsafe impl Send for Mapping {}
// SAFETY: registers may be accessed from any thread; each access is one volatile load or store.
unsafe impl Sync for Mapping {}

impl Mapping {
    /// Registers at `base`, of `len` bytes.
    /// # Safety
    /// The range is a mapping of device registers (or of memory in their place), 8-byte aligned, and stays mapped as
    /// long as this value lives.
    pub unsafe fn new(base: *mut u8, len: usize) -> Self {
        Self { base, len, owned: Owned::Nothing }
    }

    /// Maps the registers at `offset` of a device's file, until this value is dropped. Children of fork have no device:
    /// there the registers read as all ones.
    pub(super) fn of_file(file: &File, offset: u64, len: usize) -> io::Result<Self> {
        let pages = Pages::file(file, offset, len)?;
        let absence = Absence::of_registers(pages.ptr(), len);
        let base = pages.ptr().as_ptr();
        Ok(Self { base, len, owned: Owned::Whole { _absence: absence, _pages: pages } })
    }

    /// Registers mapped piece by piece.
    pub(super) fn of_pieces(pieces: Arc<Pieces>) -> Self {
        Self { base: pieces.base(), len: pieces.len(), owned: Owned::Pieces(pieces) }
    }

    /// Write-combining doorbell pages of registers that are mapped piece by piece.
    pub(super) fn combining(&self) -> Option<Arc<dyn Combining>> {
        match &self.owned {
            Owned::Pieces(pieces) => Some(pieces.clone()),
            _ => None,
        }
    }

    /// Makes `len` bytes at `offset` accessible. Returns false if they are out of bounds or cannot be mapped.
    fn reach(&self, offset: u64, len: u64) -> bool {
        let within = offset.checked_add(len).is_some_and(|end| end <= self.len as u64);
        within
            && match &self.owned {
                Owned::Pieces(pieces) => {
                    let reached = pieces.reach(offset as usize, len as usize);
                    reached
                        .inspect_err(|error| tracing::debug!(offset, %error, "registers are not mapped"))
                        .is_ok()
                }
                _ => true,
            }
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

impl Combining for Pieces {
    fn page(&self, uar: u32) -> io::Result<Bar> {
        const { assert!(pieces::PAGE == UAR_SIZE) };
        let file = self.combining(uar as usize)?;
        let mapping = Mapping::of_file(file, u64::from(uar) * UAR_SIZE as u64, UAR_SIZE)?;
        Ok(Bar::Mapped(Arc::new(mapping)))
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
    /// Makes `len` bytes at `offset` accessible, and returns whether that worked. Required before any access beyond the
    /// initialization segment and its neighbours. A trapped window leaves the bounds check to the handler of its calls.
    pub fn reach(&self, offset: u64, len: u64) -> bool {
        match self {
            Bar::Mapped(mapping) => mapping.reach(offset, len),
            Bar::Trapped(_) => offset.checked_add(len).is_some_and(|end| end <= 1 << 32),
        }
    }

    /// Makes doorbell page `uar`, a number from the device, accessible.
    pub fn reach_page(&self, uar: u32) -> Result<(), Error> {
        match self.reach(u64::from(uar) * UAR_SIZE as u64, UAR_SIZE as u64) {
            true => Ok(()),
            false => Err(Error::device("a doorbell page within BAR0", format!("page {uar:#x}"))),
        }
    }

    /// Reads the register at `offset`.
    pub fn read32(&self, offset: u32) -> u32 {
        match self {
            // SAFETY: `at` checked bounds and alignment; the mapping is alive.
            Bar::Mapped(m) => u32::from_be(unsafe { m.at::<u32>(offset).read_volatile() }),
            Bar::Trapped(r) => r.read32(offset),
        }
    }

    /// Writes the register at `offset`, after all earlier stores to memory.
    pub fn write32(&self, offset: u32, value: u32) {
        before_device_looks();
        match self {
            // SAFETY: `at` checked bounds and alignment; the mapping is alive.
            Bar::Mapped(m) => unsafe { m.at::<u32>(offset).write_volatile(value.to_be()) },
            Bar::Trapped(r) => r.write32(offset, value),
        }
    }

    /// Rings a doorbell: one 8-byte store of the big-endian register value `value`, after all earlier stores to memory
    /// (queue entries, doorbell record).
    #[inline]
    pub fn doorbell(&self, offset: u32, value: u64) {
        before_device_looks();
        match self {
            // SAFETY: `at` checked bounds and alignment; the mapping is alive.
            Bar::Mapped(m) => unsafe { m.at::<u64>(offset).write_volatile(value.to_be()) },
            Bar::Trapped(r) => r.write64(offset, value),
        }
    }

    /// Copies a basic block of a ring to `offset`, a multiple of 64, in ascending order and without any barrier.
    #[inline]
    pub fn copy_block(&self, offset: u32, block: &[AtomicU64; 8]) {
        let words = block.iter().map(|word| word.load(Relaxed));
        match self {
            Bar::Mapped(m) => {
                let to = m.at::<[u64; 8]>(offset).cast::<u64>();
                for (at, word) in words.enumerate() {
                    // SAFETY: `at` checked bounds and alignment of all eight words; the mapping is alive.
                    unsafe { to.add(at).write_volatile(word) };
                }
            }
            Bar::Trapped(r) => {
                for (at, word) in (offset..).step_by(8).zip(words) {
                    r.write64(at, u64::from_be(word));
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_block_lies_in_the_registers_as_in_its_ring() {
        let mut words = vec![0u64; UAR_SIZE / 8];
        // SAFETY: the words outlive the mapping.
        let mapping = unsafe { Mapping::new(words.as_mut_ptr().cast(), UAR_SIZE) };
        let block = [1, 2, 3, 4, 5, 6, 7, u64::MAX].map(AtomicU64::new);
        Bar::Mapped(Arc::new(mapping)).copy_block(0x940, &block);
        assert_eq!(words[0x940 / 8..][..8], [1, 2, 3, 4, 5, 6, 7, u64::MAX]);
        assert_eq!(words.iter().filter(|word| **word != 0).count(), 8);
    }

    #[test]
    fn a_doorbell_page_outside_of_the_window_is_refused() {
        let mut words = vec![0u64; 2 * UAR_SIZE / 8];
        // SAFETY: the words outlive the mapping.
        let mapping = unsafe { Mapping::new(words.as_mut_ptr().cast(), 2 * UAR_SIZE) };
        let bar = Bar::Mapped(Arc::new(mapping));
        assert!(bar.reach_page(0).is_ok() && bar.reach_page(1).is_ok());
        for page in [2, 0xff_ffff, u32::MAX] {
            let error = bar.reach_page(page).unwrap_err().to_string();
            assert!(error.contains(&format!("{page:#x}")), "{error}");
        }
    }
}
