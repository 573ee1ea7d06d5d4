//! The payloads, as they lie behind the header.
//!
//! Structures follow `<linux/vfio.h>` where the protocol does. [`read`] takes one from the start of a payload;
//! `as_bytes` of [`zerocopy::IntoBytes`] gives its bytes.

use crate::{Error, Result};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

pub use zerocopy;

/// The structure at the start of `payload`, and what follows it.
pub fn read<T: FromBytes>(payload: &[u8]) -> Result<(T, &[u8])> {
    T::read_from_prefix(payload).map_err(|_| {
        Error::Malformed(format!(
            "a payload has {} bytes, expected {} or more",
            payload.len(),
            size_of::<T>()
        ))
    })
}

/// `DMA_MAP` flags: the device may read, write.
pub const DMA_READ_ALLOWED: u32 = 1;
/// See [`DMA_READ_ALLOWED`].
pub const DMA_WRITE_ALLOWED: u32 = 2;

/// `DMA_MAP`: memory of the client at a bus address. With a descriptor, `offset` is in its file; without, the server
/// could only read the bytes by messages. No payload in the reply.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable)]
#[repr(C)]
pub struct DmaMap {
    /// Bytes of this structure.
    pub argsz: u32,
    /// [`DMA_READ_ALLOWED`], [`DMA_WRITE_ALLOWED`].
    pub flags: u32,
    /// Offset in the descriptor's file.
    pub offset: u64,
    /// First bus address.
    pub address: u64,
    /// Bytes.
    pub size: u64,
}

/// `DMA_UNMAP` flags, as `<linux/vfio.h>` numbers them: unmap everything.
pub const DMA_UNMAP_ALL: u32 = 1 << 1;

/// `DMA_UNMAP`, and its reply.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable)]
#[repr(C)]
pub struct DmaUnmap {
    /// Bytes of the reply at most.
    pub argsz: u32,
    /// 0, or [`DMA_UNMAP_ALL`] with address and size 0.
    pub flags: u32,
    /// First bus address.
    pub address: u64,
    /// Bytes.
    pub size: u64,
}

/// [`DeviceInfo::flags`]: `DEVICE_RESET` works.
pub const DEVICE_FLAG_RESET: u32 = 1;
/// [`DeviceInfo::flags`]: a PCI device.
pub const DEVICE_FLAG_PCI: u32 = 2;

/// `DEVICE_GET_INFO`, and its reply.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable)]
#[repr(C)]
pub struct DeviceInfo {
    /// Bytes of this structure.
    pub argsz: u32,
    /// [`DEVICE_FLAG_RESET`], [`DEVICE_FLAG_PCI`].
    pub flags: u32,
    /// Regions.
    pub num_regions: u32,
    /// Kinds of interrupts.
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
/// How many there are.
pub const REGIONS: u32 = 9;

/// [`RegionInfo::flags`]: can be read.
pub const REGION_FLAG_READ: u32 = 1;
/// [`RegionInfo::flags`]: can be written.
pub const REGION_FLAG_WRITE: u32 = 2;
/// [`RegionInfo::flags`]: can be mapped; the reply has a descriptor.
pub const REGION_FLAG_MMAP: u32 = 4;
/// [`RegionInfo::flags`]: capabilities follow.
pub const REGION_FLAG_CAPS: u32 = 8;

/// `DEVICE_GET_REGION_INFO`, and its reply before capabilities.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable)]
#[repr(C)]
pub struct RegionInfo {
    /// In a request the bytes of the reply at most; in a reply the bytes it needs to be whole.
    pub argsz: u32,
    /// `REGION_FLAG_*`.
    pub flags: u32,
    /// Which.
    pub index: u32,
    /// Where capabilities begin, from the start of this structure; 0 is nowhere.
    pub cap_offset: u32,
    /// Bytes of the region; 0: it is not there.
    pub size: u64,
    /// Where in the descriptor's file a mapping begins.
    pub offset: u64,
}

/// A part of a region that can be mapped.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable)]
#[repr(C)]
pub struct SparseArea {
    /// From the start of the region.
    pub offset: u64,
    /// Bytes.
    pub size: u64,
}

/// A capability's header, with that of the sparse-mmap capability behind it.
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
/// Capabilities looked at in one reply at most.
const CAPS: usize = 16;

impl RegionInfo {
    /// The bytes of a reply: with `areas`, only those parts can be mapped.
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

    /// A reply, and the parts that can be mapped; none: the whole region, if `REGION_FLAG_MMAP` is set.
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
/// Errors of the device.
pub const IRQ_ERR: u32 = 3;
/// The server requests the device back.
pub const IRQ_REQ: u32 = 4;
/// How many there are.
pub const IRQS: u32 = 5;

/// [`IrqInfo::flags`]: signalled through eventfds.
pub const IRQ_FLAG_EVENTFD: u32 = 1;
/// [`IrqInfo::flags`]: can be masked.
pub const IRQ_FLAG_MASKABLE: u32 = 2;
/// [`IrqInfo::flags`]: masks itself when it fires.
pub const IRQ_FLAG_AUTOMASKED: u32 = 4;
/// [`IrqInfo::flags`]: vectors are set up all at once.
pub const IRQ_FLAG_NORESIZE: u32 = 8;

/// `DEVICE_GET_IRQ_INFO`, and its reply.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable)]
#[repr(C)]
pub struct IrqInfo {
    /// Bytes of this structure.
    pub argsz: u32,
    /// `IRQ_FLAG_*`.
    pub flags: u32,
    /// Which kind.
    pub index: u32,
    /// Interrupts of the kind.
    pub count: u32,
}

/// [`IrqSet::flags`], data: none; a byte per vector in the payload; a descriptor per vector.
pub const IRQ_SET_DATA_NONE: u32 = 1;
/// See [`IRQ_SET_DATA_NONE`].
pub const IRQ_SET_DATA_BOOL: u32 = 1 << 1;
/// See [`IRQ_SET_DATA_NONE`]. Without descriptors the vectors lose theirs.
pub const IRQ_SET_DATA_EVENTFD: u32 = 1 << 2;
/// [`IrqSet::flags`], action: mask, unmask, trigger.
pub const IRQ_SET_MASK: u32 = 1 << 3;
/// See [`IRQ_SET_MASK`].
pub const IRQ_SET_UNMASK: u32 = 1 << 4;
/// See [`IRQ_SET_MASK`].
pub const IRQ_SET_TRIGGER: u32 = 1 << 5;

/// `DEVICE_SET_IRQS`. No payload in the reply.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable)]
#[repr(C)]
pub struct IrqSet {
    /// Bytes of this structure and what follows.
    pub argsz: u32,
    /// One `IRQ_SET_DATA_*` and one action.
    pub flags: u32,
    /// Which kind.
    pub index: u32,
    /// First vector.
    pub start: u32,
    /// Vectors; 0, with `start` 0 and no data: the whole kind is switched off.
    pub count: u32,
}

/// `REGION_READ` and `REGION_WRITE`, and their replies; the data of the write and of the read's reply follow.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable)]
#[repr(C)]
pub struct RegionAccess {
    /// From the start of the region.
    pub offset: u64,
    /// Which.
    pub region: u32,
    /// Bytes.
    pub count: u32,
}

/// One write of `REGION_WRITE_MULTI`, at most 8 bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable)]
#[repr(C)]
pub struct SmallWrite {
    /// Place of the write, and how many bytes of `data` are valid.
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

/// `DMA_READ` and `DMA_WRITE`, from server to client, and their replies; the data of the write and of the read's reply
/// follow.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable)]
#[repr(C)]
pub struct DmaAccess {
    /// Bus address.
    pub address: u64,
    /// Bytes.
    pub count: u64,
}
