//! The payloads, as they follow the header.
//!
//! Structures follow `<linux/vfio.h>` where the protocol does. [`read`] reads one from the start of a payload;
//! `as_bytes` of [`zerocopy::IntoBytes`] returns its bytes.

use crate::{Error, Result};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

pub use zerocopy;

/// Returns the structure at the start of `payload`, and the rest.
pub fn read<T: FromBytes>(payload: &[u8]) -> Result<(T, &[u8])> {
    T::read_from_prefix(payload).map_err(|_| {
        Error::Malformed(format!(
            "a payload has {} bytes, expected {} or more",
            payload.len(),
            size_of::<T>()
        ))
    })
}

/// `DMA_MAP` flags: the device may read.
pub const DMA_READ_ALLOWED: u32 = 1;
/// `DMA_MAP` flags: the device may write.
pub const DMA_WRITE_ALLOWED: u32 = 2;

/// `DMA_MAP`: maps memory of the client at a bus address. With a descriptor, `offset` is in its file; without one, the
/// server can access the memory only by messages. The reply has no payload.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable)]
#[repr(C)]
pub struct DmaMap {
    /// Length of this structure in bytes.
    pub argsz: u32,
    /// [`DMA_READ_ALLOWED`], [`DMA_WRITE_ALLOWED`].
    pub flags: u32,
    /// Offset in the descriptor's file.
    pub offset: u64,
    /// First bus address.
    pub address: u64,
    /// Length in bytes.
    pub size: u64,
}

/// `DMA_UNMAP` flags, numbered as in `<linux/vfio.h>`: unmap everything.
pub const DMA_UNMAP_ALL: u32 = 1 << 1;

/// `DMA_UNMAP`, and its reply.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable)]
#[repr(C)]
pub struct DmaUnmap {
    /// Maximum length of the reply in bytes.
    pub argsz: u32,
    /// 0, or [`DMA_UNMAP_ALL`] with address and size 0.
    pub flags: u32,
    /// First bus address.
    pub address: u64,
    /// Length in bytes.
    pub size: u64,
}

/// [`DeviceInfo::flags`]: `DEVICE_RESET` is supported.
pub const DEVICE_FLAG_RESET: u32 = 1;
/// [`DeviceInfo::flags`]: a PCI device.
pub const DEVICE_FLAG_PCI: u32 = 2;

/// `DEVICE_GET_INFO`, and its reply.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable)]
#[repr(C)]
pub struct DeviceInfo {
    /// Length of this structure in bytes.
    pub argsz: u32,
    /// [`DEVICE_FLAG_RESET`], [`DEVICE_FLAG_PCI`].
    pub flags: u32,
    /// Number of regions.
    pub num_regions: u32,
    /// Number of interrupt kinds.
    pub num_irqs: u32,
}

/// Regions of a PCI device (`VFIO_PCI_*_REGION_INDEX`): BAR0 to BAR5 are 0 to 5.
pub const REGION_BAR0: u32 = 0;
/// Expansion ROM.
pub const REGION_ROM: u32 = 6;
/// Configuration space.
pub const REGION_CONFIG: u32 = 7;
/// VGA.
pub const REGION_VGA: u32 = 8;
/// Number of regions.
pub const REGIONS: u32 = 9;

/// [`RegionInfo::flags`]: readable.
pub const REGION_FLAG_READ: u32 = 1;
/// [`RegionInfo::flags`]: writable.
pub const REGION_FLAG_WRITE: u32 = 2;
/// [`RegionInfo::flags`]: mappable; the reply has a descriptor.
pub const REGION_FLAG_MMAP: u32 = 4;
/// [`RegionInfo::flags`]: capabilities follow.
pub const REGION_FLAG_CAPS: u32 = 8;

/// `DEVICE_GET_REGION_INFO`, and its reply without capabilities.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable)]
#[repr(C)]
pub struct RegionInfo {
    /// In a request, the maximum length of the reply in bytes; in a reply, the length of the complete reply.
    pub argsz: u32,
    /// `REGION_FLAG_*`.
    pub flags: u32,
    /// Index of the region.
    pub index: u32,
    /// Offset of the capabilities from the start of this structure, 0 if there are none.
    pub cap_offset: u32,
    /// Length of the region in bytes, 0 if it is not implemented.
    pub size: u64,
    /// Offset of the mapping in the descriptor's file.
    pub offset: u64,
}

/// A mappable part of a region.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable)]
#[repr(C)]
pub struct SparseArea {
    /// Offset from the start of the region.
    pub offset: u64,
    /// Length in bytes.
    pub size: u64,
}

/// A capability header followed by the header of the sparse-mmap capability.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable)]
#[repr(C)]
struct SparseHeader {
    id: u16,
    version: u16,
    next: u32,
    areas: u32,
    reserved: u32,
}

/// `VFIO_REGION_INFO_CAP_SPARSE_MMAP`.
const CAP_SPARSE_MMAP: u16 = 1;
/// Maximum number of capabilities read from one reply.
const CAPS: usize = 16;

impl RegionInfo {
    /// The bytes of a reply; with `areas`, only those parts are mappable.
    pub fn encode(mut self, areas: &[SparseArea]) -> Vec<u8> {
        self.argsz = size_of::<Self>() as u32;
        if areas.is_empty() {
            return self.as_bytes().to_vec();
        }
        self.cap_offset = self.argsz;
        self.flags |= REGION_FLAG_CAPS;
        self.argsz += (size_of::<SparseHeader>() + size_of_val(areas)) as u32;
        let sparse =
            SparseHeader { id: CAP_SPARSE_MMAP, version: 1, areas: areas.len() as u32, ..Default::default() };
        [self.as_bytes(), sparse.as_bytes(), areas.as_bytes()].concat()
    }

    /// Decodes a reply and its mappable parts; if there are none, the whole region is mappable if `REGION_FLAG_MMAP`
    /// is set.
    pub fn decode(payload: &[u8]) -> Result<(Self, Vec<SparseArea>)> {
        let (info, _): (Self, _) = read(payload)?;
        let mut areas = Vec::new();
        let mut at = if info.flags & REGION_FLAG_CAPS != 0 { info.cap_offset as usize } else { 0 };
        for _ in 0..CAPS {
            let Some(cap) = payload.get(at..).filter(|_| at != 0) else { break };
            let (header, mut rest): (SparseHeader, _) = read(cap)?;
            if header.id == CAP_SPARSE_MMAP {
                for _ in 0..header.areas {
                    let (area, behind) = read(rest)?;
                    areas.push(area);
                    rest = behind;
                }
            }
            at = header.next as usize;
        }
        Ok((info, areas))
    }
}

/// Kinds of interrupts (`VFIO_PCI_*_IRQ_INDEX`): INTx.
pub const IRQ_INTX: u32 = 0;
/// MSI.
pub const IRQ_MSI: u32 = 1;
/// MSI-X.
pub const IRQ_MSIX: u32 = 2;
/// Device errors.
pub const IRQ_ERR: u32 = 3;
/// The server requests the return of the device.
pub const IRQ_REQ: u32 = 4;
/// Number of interrupt kinds.
pub const IRQS: u32 = 5;

/// [`IrqInfo::flags`]: signalled through eventfds.
pub const IRQ_FLAG_EVENTFD: u32 = 1;
/// [`IrqInfo::flags`]: maskable.
pub const IRQ_FLAG_MASKABLE: u32 = 2;
/// [`IrqInfo::flags`]: masked automatically when it fires.
pub const IRQ_FLAG_AUTOMASKED: u32 = 4;
/// [`IrqInfo::flags`]: all vectors must be set up at once.
pub const IRQ_FLAG_NORESIZE: u32 = 8;

/// `DEVICE_GET_IRQ_INFO`, and its reply.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable)]
#[repr(C)]
pub struct IrqInfo {
    /// Length of this structure in bytes.
    pub argsz: u32,
    /// `IRQ_FLAG_*`.
    pub flags: u32,
    /// The kind of interrupt.
    pub index: u32,
    /// Number of interrupts of this kind.
    pub count: u32,
}

/// [`IrqSet::flags`], data: none.
pub const IRQ_SET_DATA_NONE: u32 = 1;
/// [`IrqSet::flags`], data: one byte per vector in the payload.
pub const IRQ_SET_DATA_BOOL: u32 = 1 << 1;
/// [`IrqSet::flags`], data: one descriptor per vector. Without descriptors the vectors are disconnected.
pub const IRQ_SET_DATA_EVENTFD: u32 = 1 << 2;
/// [`IrqSet::flags`], action: mask.
pub const IRQ_SET_MASK: u32 = 1 << 3;
/// [`IrqSet::flags`], action: unmask.
pub const IRQ_SET_UNMASK: u32 = 1 << 4;
/// [`IrqSet::flags`], action: trigger.
pub const IRQ_SET_TRIGGER: u32 = 1 << 5;

/// `DEVICE_SET_IRQS`. The reply has no payload.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable)]
#[repr(C)]
pub struct IrqSet {
    /// Length in bytes of this structure and the data after it.
    pub argsz: u32,
    /// One `IRQ_SET_DATA_*` and one action.
    pub flags: u32,
    /// The kind of interrupt.
    pub index: u32,
    /// First vector.
    pub start: u32,
    /// Number of vectors. 0, with `start` 0 and no data, disables the whole kind.
    pub count: u32,
}

/// `REGION_READ` and `REGION_WRITE`, and their replies, followed by the data of the write or of the read's reply.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable)]
#[repr(C)]
pub struct RegionAccess {
    /// Offset from the start of the region.
    pub offset: u64,
    /// Index of the region.
    pub region: u32,
    /// Length in bytes.
    pub count: u32,
}

/// One write of `REGION_WRITE_MULTI`, at most 8 bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable)]
#[repr(C)]
pub struct SmallWrite {
    /// Location of the write, and number of valid bytes in `data`.
    pub access: RegionAccess,
    /// The bytes.
    pub data: [u8; 8],
}

impl SmallWrite {
    /// The payload of a `REGION_WRITE_MULTI`.
    pub fn encode(writes: &[Self]) -> Vec<u8> {
        [(writes.len() as u64).as_bytes(), writes.as_bytes()].concat()
    }

    /// The writes in the payload of a `REGION_WRITE_MULTI`, in order.
    pub fn decode(payload: &[u8]) -> Result<Vec<Self>> {
        let (count, mut rest): (u64, _) = read(payload)?;
        let there = rest.len() / size_of::<Self>();
        if count > there as u64 {
            return Err(Error::Malformed(format!("{count} writes announced, {there} found")));
        }
        let mut writes = Vec::with_capacity(there);
        for _ in 0..count {
            let (one, behind) = read(rest)?;
            writes.push(one);
            rest = behind;
        }
        Ok(writes)
    }
}

/// `DMA_READ` and `DMA_WRITE`, from server to client, and their replies, followed by the data of the write or of the
/// read's reply.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable)]
#[repr(C)]
pub struct DmaAccess {
    /// Bus address.
    pub address: u64,
    /// Length in bytes.
    pub count: u64,
}
