//! Register windows.

use super::fork::Absence;
use migration::Pages;
use std::{
    fs::File,
    io,
    sync::{
        Arc,
        atomic::{Ordering::Release, fence},
    },
};

/// Orders earlier stores to memory before later stores to registers, as the device sees them. x86 keeps that order by
/// itself once the compiler does. Elsewhere a fence between processors is not enough, since the device is none of them.
#[inline(always)]
fn before_registers() {
    fence(Release);
    #[cfg(target_arch = "aarch64")]
    // SAFETY: a barrier: touches nothing.
    unsafe {
        std::arch::asm!("dmb oshst", options(nostack, preserves_flags));
    }
}

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
        before_registers();
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
        before_registers();
        match self {
            // SAFETY: `at` checked bounds and alignment; the mapping lives.
            Bar::Mapped(m) => unsafe { m.at::<u64>(offset).write_volatile(value.to_be()) },
            Bar::Trapped(r) => r.write64(offset, value),
        }
    }
}
