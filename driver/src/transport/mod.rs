//! Transports: access to one PCI function, its DMA and its interrupts.
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

/// An address as seen by the device.
pub type Iova = u64;

/// Bytes of the area shared by openers of a function.
const SHARED: usize = 64 << 10;
/// BARs of a function.
const BARS: u8 = 6;

/// The device's access to a range of memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Access {
    /// The device may read.
    pub read: bool,
    /// The device may write.
    pub write: bool,
    /// The range is made of whole pages of the program, with nothing else in them.
    pub exact: bool,
}

impl Access {
    /// Reads and writes of data anywhere in the pages.
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
    /// The width in bytes.
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
    /// This opener: the block is freed when the opener exits, even if it dies.
    Opener,
}

/// Zeroed, page-aligned memory that the device accesses at `iova`.
#[derive(Debug)]
pub struct DmaBlock {
    /// Address in this process.
    pub ptr: NonNull<u8>,
    /// Address as seen by the device.
    pub iova: Iova,
    /// Length in bytes.
    pub len: usize,
}
// SAFETY: a block is memory shared with a device; it is only accessed through atomics (module `dma`).
unsafe impl Send for DmaBlock {}
// SAFETY: a shared reference gives the addresses alone; `dma` accesses the memory through atomics only.
unsafe impl Sync for DmaBlock {}

/// One PCI function: kernel VFIO, a vfio-user socket, or a model in this process.
///
/// Control path only, except for [`Transport::idle`] and [`Bar::doorbell`].
///
/// # Safety
/// The blocks of `dma_alloc`, `dma_attach` and `shared` are memory of their length that stays mapped until it is freed or detached, and is
/// accessed in this process only through such blocks, by atomics; that of `dma_alloc` is zeroed. `bar` returns registers that stay mapped while the
/// transport lives; `dma_unmap` returns `Ok` only once the device cannot access the range.
pub unsafe trait Transport: Send + Sync {
    /// Reads configuration space. The value is in host order, converted from PCI's little-endian.
    fn config_read(&self, offset: u16, width: Width) -> io::Result<u32>;
    /// Writes configuration space.
    fn config_write(&self, offset: u16, width: Width, value: u32) -> io::Result<()>;
    /// The register window behind base address register `index`.
    fn bar(&self, index: u8) -> io::Result<Bar>;
    /// The doorbell pages of BAR0 mapped write-combining, if available.
    fn combining(&self) -> Option<Arc<dyn Combining>> {
        None
    }
    /// Page size of [`dma_map`](Self::dma_map), which takes only whole pages: at least 4096, a power of two.
    fn page_size(&self) -> usize {
        4096
    }
    /// Maps `len` bytes of user memory at `base` for the device, contiguous in its address space. `base` and `len` are
    /// whole pages of [`page_size`](Self::page_size). A range may be mapped several times and overlap others.
    /// # Safety
    /// The range stays mapped in this process until `dma_unmap`. Until then the device may change it at any time.
    unsafe fn dma_map(&self, base: *mut u8, len: usize, access: Access) -> io::Result<Iova>;
    /// Undoes one `dma_map`. Once it returns, the device can no longer access the range.
    fn dma_unmap(&self, iova: Iova, len: usize) -> io::Result<()>;
    /// True if memory can be mapped page by page as the device touches it ([`Transport::dma_map_paged`]), because the
    /// transport resolves page faults, as address translation services and page requests of PCIe do.
    fn pages_on_demand(&self) -> bool {
        false
    }
    /// Like `dma_map`, for memory that need not be mapped yet, or ever. A device access to a missing page aborts.
    /// Nothing is pinned.
    /// # Safety
    /// The device may change what is mapped in the range at any time until `dma_unmap_paged`.
    unsafe fn dma_map_paged(&self, base: *mut u8, len: usize) -> io::Result<Iova> {
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
    /// Allocates zeroed, page-aligned memory for the driver's own structures (rings, doorbell records, command queue,
    /// pages for the chip).
    fn dma_alloc(&self, len: usize, scope: Scope) -> io::Result<DmaBlock>;
    /// Frees a block of `dma_alloc` or `dma_attach`.
    fn dma_free(&self, block: DmaBlock);
    /// Returns a view of the [`Scope::Function`] block at `iova`, allocated by any opener, even one that is gone.
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
    /// True if openers may share a vector: each connects its own eventfd, and all of them are signalled. Otherwise only
    /// the last opener to connect gets the interrupts.
    fn shares_vectors(&self) -> bool {
        false
    }
    /// Function level reset.
    fn reset(&self) -> io::Result<()>;
    /// A small zero-initialised area shared by all openers of this function, at least 64 KiB (private memory if there
    /// is only one opener). The device need not access it. Every call returns the same memory, which is never freed.
    fn shared(&self) -> io::Result<DmaBlock>;
    /// Our id among the openers: never 0, and never reused. By default all of them are in this process, and die with it.
    fn opener(&self) -> u32 {
        1
    }
    /// A name that is unique to this function on the machine, and the same every time the function is opened. `None` if
    /// there is none.
    fn name(&self) -> Option<String> {
        None
    }
    /// True if another opener is alive, for locks and claims in `shared`.
    fn alive(&self, opener: u32) -> bool {
        opener == self.opener()
    }
    /// Called after an unsuccessful poll. A model in this process runs its pending work. Must be cheap.
    fn idle(&self);
    /// Like `idle`, for a program that polls for a completion. In virtual time it returns only when some state may have
    /// changed, since nothing happens while a program polls.
    #[inline]
    fn empty_poll(&self) {
        self.idle();
    }
    /// Called when a completion was found after an [`empty_poll`](Self::empty_poll), to account for the time that a
    /// program takes to notice it.
    #[inline]
    fn noticed(&self) {}
    /// Waits for `time` before the caller checks again for an action of another opener or the device.
    fn nap(&self, time: Duration) {
        std::thread::sleep(time);
    }
    /// True if the device completes everything that a register write requests before the write returns, as a model in
    /// this process does. Anything not done by then will never be done.
    fn acts_at_once(&self) -> bool {
        false
    }
    /// True if the connection to the device is known to be gone for good, without asking the device. Must be cheap.
    fn is_gone(&self) -> bool {
        false
    }
    /// Resolves the MAC of the port with a GID (neighbour resolution, since RoCE has no subnet manager), on transports
    /// that know the device's peers. `None`: unknown here; it may still be in the opener's list or the GID itself.
    fn resolve(&self, dgid: &[u8; 16]) -> Option<[u8; 6]> {
        let _ = dgid;
        None
    }
}
