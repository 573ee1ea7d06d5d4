//! A function bound to vfio-pci, through the kernel's VFIO.
//!
//! Kernel VFIO gives a function to one process. All openers in this process share one [`VfioTransport`]; other
//! processes get [`VfioError::Busy`].

mod iommu;
mod irq;
mod open;
mod region;
mod sys;

pub use open::VfioError;

use super::{
    Access, BARS, Bar, Combining, DmaBlock, Interrupt, Iova, Mapping, SHARED, Scope, Transport, Width,
    pieces::{self, Files, Pieces},
    pool::Pool,
};
use crate::{
    common::Common,
    pci::{Address, Sysfs},
};
use hwspec::init_segment::InitSegment;
use irq::Vectors;
use migration::Pages;
use open::Opened;
use std::{
    collections::HashMap,
    fs::File,
    io,
    sync::{Arc, Mutex, PoisonError},
};
use sys::RegionInfo;
use vfio_bindings::bindings::vfio::VFIO_PCI_CONFIG_REGION_INDEX;

/// A function bound to vfio-pci.
pub struct VfioTransport {
    address: Address,
    config: RegionInfo,
    can_reset: bool,
    vectors: Vectors,
    /// True if BAR0 is to have write-combining pages.
    combine: bool,
    bars: Mutex<HashMap<u8, Bar>>,
    pool: Pool,
    shared: Pages,
    /// Fork generation at opening: a child has another and must not use the function.
    generation: u32,
    opened: Opened,
}

/// Functions opened by this process.
static OPEN: Common<Address, VfioTransport> = Common::new();

impl VfioTransport {
    /// Opens the function at `address`, or shares it with other openers in this process.
    pub fn open(address: Address) -> Result<Arc<Self>, VfioError> {
        Self::open_with(address, false)
    }

    /// Like [`open`](Self::open). If this process has the permission, maps the function's registers through sysfs
    /// rather than VFIO, which allows write-combining doorbell pages.
    pub fn open_combining(address: Address) -> Result<Arc<Self>, VfioError> {
        Self::open_with(address, true)
    }

    fn open_with(address: Address, combine: bool) -> Result<Arc<Self>, VfioError> {
        sync::fork::watch();
        OPEN.get(address, |known| known.ours().is_ok(), || Self::fresh(address, combine))
    }

    fn fresh(address: Address, combine: bool) -> Result<Self, VfioError> {
        let opened = open::open(&Sysfs::default().device(address)?)?;
        let step = |what| move |source| VfioError::Step { address, what, source };
        let device = sys::fd(&opened.device);
        let config = sys::region(device, VFIO_PCI_CONFIG_REGION_INDEX);
        Ok(Self {
            address,
            config: config.map_err(step("find its configuration space"))?,
            can_reset: sys::can_reset(device).map_err(step("learn what it is"))?,
            vectors: Vectors::of(&opened.device).map_err(step("count its interrupt vectors"))?,
            combine,
            bars: Mutex::default(),
            pool: Pool::default(),
            shared: Pages::memory(SHARED).map_err(step("get memory for its openers"))?,
            generation: sync::fork::generation(),
            opened,
        })
    }

    /// The function's address.
    pub fn address(&self) -> Address {
        self.address
    }

    /// Number of MSI-X vectors that the kernel can connect.
    pub fn vectors(&self) -> u32 {
        self.vectors.count()
    }

    fn ours(&self) -> io::Result<()> {
        match self.generation == sync::fork::generation() {
            true => Ok(()),
            false => Err(io::Error::from_raw_os_error(libc::ENODEV)),
        }
    }

    /// Maps BAR0 through sysfs, if write-combining pages are wanted and available.
    fn in_pieces(&self, index: u8, info: &RegionInfo) -> Option<Bar> {
        if !self.combine || index != 0 || info.mappable.is_empty() || iommu::host_page() != pieces::PAGE {
            return None;
        }
        let open = || {
            let device = Sysfs::default().device(self.address).map_err(io::Error::other)?;
            let file = |name: &str| sys::open(&device.dir().join(name)).map(File::from);
            let (plain, combining) = (file("resource0")?, file("resource0_wc")?);
            let files = Files { plain, combining, _device: self.opened.device.clone() };
            Pieces::new(files, info.size as usize, InitSegment::SIZE)
        };
        match open() {
            Ok(pieces) => Some(Bar::Mapped(Arc::new(Mapping::of_pieces(Arc::new(pieces))))),
            Err(error) => {
                tracing::debug!(address = %self.address, %error, "no doorbell pages that combine writes");
                None
            }
        }
    }

    fn config_at(&self, offset: u16, width: Width) -> io::Result<(u64, usize)> {
        self.ours()?;
        let (at, len) = (u64::from(offset), width.bytes());
        match at + len as u64 <= self.config.size && at % len as u64 == 0 {
            true => Ok((self.config.offset + at, len)),
            false => Err(io::Error::from_raw_os_error(libc::EINVAL)),
        }
    }
}

// SAFETY: the kernel's IOMMU maps and unmaps before its ioctl returns; blocks are mappings of this type, freed by `dma_free` alone.
unsafe impl Transport for VfioTransport {
    fn page_size(&self) -> usize {
        iommu::host_page()
    }

    fn name(&self) -> Option<String> {
        Some(self.address.to_string())
    }

    fn config_read(&self, offset: u16, width: Width) -> io::Result<u32> {
        let (at, len) = self.config_at(offset, width)?;
        let mut bytes = [0; 4];
        sys::read_at(&self.opened.device, &mut bytes[..len], at)?;
        Ok(u32::from_le_bytes(bytes))
    }

    fn config_write(&self, offset: u16, width: Width, value: u32) -> io::Result<()> {
        let (at, len) = self.config_at(offset, width)?;
        sys::write_at(&self.opened.device, &value.to_le_bytes()[..len], at)
    }

    fn bar(&self, index: u8) -> io::Result<Bar> {
        self.ours()?;
        if index >= BARS {
            return Err(io::Error::from_raw_os_error(libc::ENXIO));
        }
        let mut bars = self.bars.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(bar) = bars.get(&index) {
            return Ok(bar.clone());
        }
        let info = sys::region(sys::fd(&self.opened.device), index.into())?;
        let bar = match self.in_pieces(index, &info) {
            Some(bar) => bar,
            None => region::open(&self.opened.device, &info)?,
        };
        bars.insert(index, bar.clone());
        Ok(bar)
    }

    fn combining(&self) -> Option<Arc<dyn Combining>> {
        match self.bar(0) {
            Ok(Bar::Mapped(mapping)) => mapping.combining(),
            _ => None,
        }
    }

    unsafe fn dma_map(&self, base: *mut u8, len: usize, access: Access) -> io::Result<Iova> {
        self.ours()?;
        // SAFETY: the caller's guarantee.
        unsafe { self.opened.iommu.map(base, len, access) }
    }

    fn dma_unmap(&self, iova: Iova, len: usize) -> io::Result<()> {
        self.ours()?;
        self.opened.iommu.unmap(iova, len)
    }

    fn dma_alloc(&self, len: usize, _: Scope) -> io::Result<DmaBlock> {
        self.ours()?;
        self.pool.alloc(len, &*self.opened.iommu)
    }

    fn dma_free(&self, block: DmaBlock) {
        if self.ours().is_ok() && !self.pool.free(block.iova, &*self.opened.iommu) {
            tracing::warn!(iova = block.iova, "a block that was never given out was to be freed");
        }
    }

    fn dma_attach(&self, iova: Iova, len: usize) -> io::Result<DmaBlock> {
        self.ours()?;
        self.pool.find(iova, len).ok_or_else(|| io::Error::from_raw_os_error(libc::EINVAL))
    }

    fn interrupt(&self, vector: u16) -> io::Result<Interrupt> {
        self.ours()?;
        self.vectors.connect(&self.opened.device, vector)
    }

    fn reset(&self) -> io::Result<()> {
        self.ours()?;
        if !self.can_reset {
            let why = format!("{} cannot be reset by itself", self.address);
            return Err(io::Error::new(io::ErrorKind::Unsupported, why));
        }
        sys::reset(sys::fd(&self.opened.device))
    }

    fn shared(&self) -> io::Result<DmaBlock> {
        Ok(DmaBlock { ptr: self.shared.ptr(), iova: 0, len: SHARED })
    }

    fn idle(&self) {}
}

impl Drop for VfioTransport {
    fn drop(&mut self) {
        if self.ours().is_ok() {
            self.pool.clear(&*self.opened.iommu);
        }
    }
}
