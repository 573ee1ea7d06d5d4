//! The address space of a function in the IOMMU.

use super::sys;
use crate::{
    dma::PAGE_SIZE,
    transport::{
        Access, Iova,
        fork::Absence,
        iova::IovaSpace,
        pool::{Piece, Source},
    },
};
use migration::Pages;
use std::{
    collections::HashMap,
    io,
    os::fd::{AsFd, OwnedFd},
    sync::{Mutex, MutexGuard, PoisonError},
};

/// Mappable addresses where the kernel does not report them (before Linux 5.4): the smallest IOMMUs have 39 bits, and
/// interrupt messages are written to 0xfee00000.
const USUAL: [(u64, u64); 2] = [(0, 0xfedf_ffff), (0xfef0_0000, (1 << 39) - 1)];

enum Kind {
    /// A container and its group.
    Container { container: OwnedFd, group: OwnedFd },
    /// An iommufd and one of its address spaces.
    Iommufd { iommufd: OwnedFd, ioas: u32 },
}

/// Page size of the host, 64 KiB on some: the unit in which the kernel maps memory for the device. The device's own
/// pages have 4096 bytes.
pub fn host_page() -> usize {
    // SAFETY: accesses no memory.
    let size = unsafe { libc::sysconf(libc::_SC_PAGESIZE) };
    usize::try_from(size)
        .ok()
        .filter(|size| size.is_power_of_two())
        .map_or(PAGE_SIZE, |size| size.max(PAGE_SIZE))
}

/// One address space of an IOMMU.
pub struct Iommu {
    kind: Kind,
    space: Mutex<IovaSpace>,
    /// Our own memory in the address space.
    own: Mutex<HashMap<Iova, Pages>>,
    /// Marks its files absent from children of fork, which would keep them busy.
    _absence: Vec<Absence>,
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Iommu {
    /// The address space of a container with its group and IOMMU type already set.
    pub fn container(container: OwnedFd, group: OwnedFd) -> io::Result<Self> {
        let (sizes, mut ranges) = sys::iommu(container.as_fd())?;
        let smallest = 1u64 << sizes.trailing_zeros().min(63);
        if smallest > host_page() as u64 {
            return Err(io::Error::new(
                io::ErrorKind::Unsupported,
                format!("the IOMMU's smallest page has {smallest} bytes, {} were expected", host_page()),
            ));
        }
        if ranges.is_empty() {
            ranges = USUAL.to_vec();
        }
        Ok(Self::new(Kind::Container { container, group }, ranges))
    }

    /// Address space `ioas` of an iommufd.
    pub fn iommufd(iommufd: OwnedFd, ioas: u32) -> io::Result<Self> {
        let ranges = sys::iova_ranges(iommufd.as_fd(), ioas)?;
        Ok(Self::new(Kind::Iommufd { iommufd, ioas }, ranges))
    }

    fn new(kind: Kind, ranges: Vec<(u64, u64)>) -> Self {
        tracing::debug!(?ranges, "addresses for the device");
        let files = match &kind {
            Kind::Container { container, group } => vec![container.as_fd(), group.as_fd()],
            Kind::Iommufd { iommufd, .. } => vec![iommufd.as_fd()],
        };
        let absence = files.into_iter().map(Absence::of_file).collect();
        Self {
            kind,
            space: Mutex::new(IovaSpace::new(host_page() as u64, ranges)),
            own: Mutex::default(),
            _absence: absence,
        }
    }

    /// The descriptor of the group, to open its devices.
    pub fn group(&self) -> Option<std::os::fd::BorrowedFd<'_>> {
        match &self.kind {
            Kind::Container { group, .. } => Some(group.as_fd()),
            Kind::Iommufd { .. } => None,
        }
    }

    /// Maps `len` bytes at `base` for the device.
    /// # Safety
    /// The memory stays mapped in this process until `unmap`, and the device may change it at any time.
    pub unsafe fn map(&self, base: *mut u8, len: usize, access: Access) -> io::Result<Iova> {
        let (vaddr, size) = (base as u64, len as u64);
        let iova = locked(&self.space).alloc(size, vaddr).ok_or_else(|| {
            let why = format!("no {len} bytes are left of the addresses the IOMMU allows");
            io::Error::new(io::ErrorKind::OutOfMemory, why)
        })?;
        // SAFETY: the caller's guarantee.
        let mapped = unsafe {
            match &self.kind {
                Kind::Container { container, .. } => sys::map(container.as_fd(), vaddr, iova, size, access),
                Kind::Iommufd { iommufd, ioas } => {
                    sys::map_ioas(iommufd.as_fd(), *ioas, vaddr, iova, size, access)
                }
            }
        };
        mapped.map(|()| iova).map_err(|error| {
            locked(&self.space).free(iova, size);
            explain(error, len)
        })
    }

    /// Undoes one `map`.
    pub fn unmap(&self, iova: Iova, len: usize) -> io::Result<()> {
        let size = len as u64;
        let done = match &self.kind {
            Kind::Container { container, .. } => sys::unmap(container.as_fd(), iova, size)?,
            Kind::Iommufd { iommufd, ioas } => sys::unmap_ioas(iommufd.as_fd(), *ioas, iova, size)?,
        };
        if done != size {
            // The range stays allocated, since part of it may still be mapped.
            return Err(io::Error::other(format!(
                "{len} bytes at {iova:#x} were to be unmapped, {done} were"
            )));
        }
        locked(&self.space).free(iova, size);
        Ok(())
    }
}

impl Source for Iommu {
    fn obtain(&self, len: usize) -> io::Result<Piece> {
        let len = len.next_multiple_of(host_page());
        let memory = Pages::memory(len)?;
        let ptr = memory.ptr();
        // SAFETY: our own mapping, kept until it is unmapped; only blocks of it are handed out.
        let iova = unsafe { self.map(ptr.as_ptr(), len, Access::BOTH)? };
        locked(&self.own).insert(iova, memory);
        Ok(Piece { ptr, iova, len })
    }

    fn release(&self, piece: Piece) {
        match self.unmap(piece.iova, piece.len) {
            Ok(()) => drop(locked(&self.own).remove(&piece.iova)),
            // The device may still write to the memory, so it stays as long as the address space.
            Err(error) => {
                tracing::warn!(iova = piece.iova, %error, "memory of the device could not be unmapped");
            }
        }
    }
}

/// Adds advice to an error.
fn explain(error: io::Error, len: usize) -> io::Error {
    match (error.raw_os_error(), sys::memlock()) {
        (Some(libc::ENOMEM), Some(limit)) => io::Error::new(
            io::ErrorKind::OutOfMemory,
            format!(
                "{len} more bytes cannot be locked in memory: the limit is {} KiB in all (ulimit -l, LimitMEMLOCK=)",
                limit / 1024
            ),
        ),
        (Some(libc::ENOSPC), _) => io::Error::new(
            io::ErrorKind::OutOfMemory,
            "all mappings the kernel allows are used (vfio_iommu_type1.dma_entry_limit)",
        ),
        (Some(libc::EFAULT), _) => io::Error::new(
            io::ErrorKind::InvalidInput,
            format!("not all of the {len} bytes are memory that can be pinned"),
        ),
        _ => error,
    }
}
