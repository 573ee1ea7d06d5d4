//! Transports: how a driver reaches one PCI function, its DMA and its interrupts.
#![allow(unsafe_code)]

mod bar;
#[cfg(test)]
pub(crate) mod fake;
mod fork;
mod interrupt;
mod iova;
mod pieces;
mod pool;
pub mod vfio;
mod vfio_user;

pub use bar::{Bar, Combining, Mapping, Registers};
pub use interrupt::{Bell, Interrupt};
pub use sync::{Identity, Kept, Quiet, forward};
pub use vfio_user::VfioUserTransport;

use std::{io, ptr::NonNull, sync::Arc, time::Duration};

/// An address as the device sees it.
pub type Iova = u64;

/// The device's access to a range of memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Access {
    /// The device may read.
    pub read: bool,
    /// The device may write.
    pub write: bool,
    /// The range is whole pages of the program, which hold nothing else.
    pub exact: bool,
}

impl Access {
    /// Reads and writes of data that lies somewhere in the pages.
    pub const BOTH: Self = Self { read: true, write: true, exact: false };
}

/// Size of a configuration space access.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Width {
    /// One byte.
    B1,
    /// Two bytes.
    B2,
    /// Four bytes.
    B4,
}

impl Width {
    /// The same as a number.
    pub fn bytes(self) -> usize {
        match self {
            Self::B1 => 1,
            Self::B2 => 2,
            Self::B4 => 4,
        }
    }
}

/// The owner of a block of driver memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scope {
    /// The function: it outlives this opener (command queue, pages given to the chip).
    Function,
    /// This opener: it is freed when the opener goes, even if it dies.
    Opener,
}

/// Zeroed, page-aligned memory that the device reaches at `iova`.
#[derive(Debug)]
pub struct DmaBlock {
    /// Where this process sees it.
    pub ptr: NonNull<u8>,
    /// Where the device sees it.
    pub iova: Iova,
    /// Bytes.
    pub len: usize,
}
// SAFETY: a block is memory shared with a device; it is only touched through atomics (see `dma`).
unsafe impl Send for DmaBlock {}
// SAFETY: a shared reference gives the addresses alone; `dma` touches what lies there through atomics only.
unsafe impl Sync for DmaBlock {}

/// One PCI function: kernel VFIO, a vfio-user socket, or a model in this process.
///
/// Control path only, but for [`Transport::idle`] and [`Bar::doorbell`].
pub trait Transport: Send + Sync {
    /// Reads configuration space; the value is little-endian PCI in host order.
    fn config_read(&self, offset: u16, width: Width) -> io::Result<u32>;
    /// Writes configuration space.
    fn config_write(&self, offset: u16, width: Width, value: u32) -> io::Result<()>;
    /// The register window behind base address register `index`.
    fn bar(&self, index: u8) -> io::Result<Bar>;
    /// The doorbell pages of BAR0 as pages that combine writes, where they can be had.
    fn combining(&self) -> Option<Arc<dyn Combining>> {
        None
    }
    /// Bytes of the pages of which [`dma_map`](Self::dma_map) takes whole ones: at least 4096, a power of two.
    fn page_size(&self) -> usize {
        4096
    }
    /// Maps `len` bytes of user memory at `base` for the device, contiguous in its address space. `base` and `len` are
    /// whole pages of [`page_size`](Self::page_size). A range may be mapped several times and overlap others.
    /// # Safety
    /// The range stays mapped in this process until `dma_unmap`. From now on the device may change it at any time.
    unsafe fn dma_map(&self, base: *mut u8, len: usize, access: Access) -> io::Result<Iova>;
    /// Undoes one `dma_map`. When it returns, the device no longer reaches the range.
    fn dma_unmap(&self, iova: Iova, len: usize) -> io::Result<()>;
    /// True if memory can be mapped page by page as the device touches it ([`Transport::dma_map_paged`]), because the
    /// transport resolves page faults, as address translation services and page requests of PCIe do.
    fn pages_on_demand(&self) -> bool {
        false
    }
    /// As `dma_map`, of memory that need not be mapped yet, or ever. An access of the device to a page that is missing
    /// aborts. Nothing is pinned.
    fn dma_map_paged(&self, base: *mut u8, len: usize) -> io::Result<Iova> {
        let _ = (base, len);
        Err(io::ErrorKind::Unsupported.into())
    }
    /// Undoes one `dma_map_paged`.
    fn dma_unmap_paged(&self, iova: Iova, len: usize) -> io::Result<()> {
        let _ = (iova, len);
        Err(io::ErrorKind::Unsupported.into())
    }
    /// Populates the pages of a range of a paged mapping, writable if `write`. EFAULT: there is no such memory.
    fn populate(&self, base: *mut u8, len: usize, write: bool) -> io::Result<()> {
        let _ = (base, len, write);
        Err(io::ErrorKind::Unsupported.into())
    }
    /// Zeroed, page-aligned memory for the driver's own structures (rings, doorbell records, command queue, pages for
    /// the chip).
    fn dma_alloc(&self, len: usize, scope: Scope) -> io::Result<DmaBlock>;
    /// Frees a block of `dma_alloc` or `dma_attach`.
    fn dma_free(&self, block: DmaBlock);
    /// A view of the [`Scope::Function`] block that an opener, perhaps another one that is gone, was given at `iova`.
    /// Freeing any view frees the block for all. Transports with a single opener need not implement it.
    fn dma_attach(&self, iova: Iova, len: usize) -> io::Result<DmaBlock> {
        let _ = (iova, len);
        Err(io::Error::new(io::ErrorKind::Unsupported, "this transport has no memory shared between openers"))
    }
    /// Drops a view obtained from `dma_attach` without freeing the block.
    fn dma_detach(&self, block: DmaBlock) {
        let _ = block;
    }
    /// Connects MSI-X vector `vector` (table entry included) to an eventfd with counter semantics.
    fn interrupt(&self, vector: u16) -> io::Result<Interrupt>;
    /// True if openers may share a vector: each connects an eventfd of its own, and all of them are signalled.
    /// Otherwise the last opener to connect it has it alone.
    fn shares_vectors(&self) -> bool {
        false
    }
    /// Function level reset.
    fn reset(&self) -> io::Result<()>;
    /// One small zero-initialised area shared by all openers of this function, at least 64 KiB (private memory where
    /// there is only one opener). The device need not reach it. Every call returns the same memory; it is never freed.
    fn shared(&self) -> io::Result<DmaBlock>;
    /// Our id among the openers: never 0, and never used again.
    fn opener(&self) -> u32;
    /// A name that tells this function from all others of the machine, the same whenever it is opened; `None` where
    /// there is none.
    fn name(&self) -> Option<String> {
        None
    }
    /// True if another opener still lives, for locks and claims in `shared`.
    fn alive(&self, opener: u32) -> bool;
    /// Called when a poll found nothing. A model in this process runs what is due. Must be cheap.
    fn idle(&self);
    /// The same for a program that looks for a completion. In virtual time it returns when something may be different, for nothing happens
    /// while a program polls.
    #[inline]
    fn empty_poll(&self) {
        self.idle();
    }
    /// Called when there was a completion behind an [`empty_poll`](Self::empty_poll): to notice it takes a program its time.
    #[inline]
    fn noticed(&self) {}
    /// Waits `time` before the caller checks again for something that another opener or the device does.
    fn nap(&self, time: Duration) {
        std::thread::sleep(time);
    }
    /// True if the device completes all that a register write asks for before that write returns, as a model in this
    /// process does, so that what it has not done by then it never will.
    fn acts_at_once(&self) -> bool {
        false
    }
    /// True if the way to the device is gone for good, as far as is known without asking the device. Must be cheap.
    fn is_gone(&self) -> bool {
        false
    }
    /// MAC of the port with a GID (neighbour resolution, since RoCE has no subnet manager), on transports that know the
    /// device's peers. `None`: unknown here, though the opener's list or the GID itself may have it.
    fn resolve(&self, dgid: &[u8; 16]) -> Option<[u8; 6]> {
        let _ = dgid;
        None
    }
}
