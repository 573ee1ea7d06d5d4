//! System calls of kernel VFIO (linux/vfio.h, linux/iommufd.h), on the structures of the bindings.

use crate::transport::Access;
use iommufd_bindings::{
    iommu_ioas_alloc, iommu_ioas_iova_ranges, iommu_ioas_map, iommu_ioas_unmap, iommu_iova_range,
    iommufd_ioas_map_flags_IOMMU_IOAS_MAP_FIXED_IOVA as MAP_FIXED_IOVA,
    iommufd_ioas_map_flags_IOMMU_IOAS_MAP_READABLE as MAP_READABLE,
    iommufd_ioas_map_flags_IOMMU_IOAS_MAP_WRITEABLE as MAP_WRITEABLE,
};
use std::{
    ffi::CStr,
    fs::{File, OpenOptions},
    io,
    mem::size_of,
    os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd},
    path::Path,
};
use vfio_bindings::bindings::vfio::*;

/// `_IO(';', 100 + n)`: VFIO ioctl numbers contain no size.
const fn number(n: u32) -> libc::c_ulong {
    ((VFIO_TYPE as u32) << 8 | (VFIO_BASE + n)) as libc::c_ulong
}

/// `_IO(';', 0x80 + n)`: iommufd's numbers follow VFIO's (`IOMMUFD_CMD_BASE`).
const fn iommufd(n: u32) -> libc::c_ulong {
    ((VFIO_TYPE as u32) << 8 | (0x80 + n)) as libc::c_ulong
}

const GET_API_VERSION: libc::c_ulong = number(0);
const CHECK_EXTENSION: libc::c_ulong = number(1);
const SET_IOMMU: libc::c_ulong = number(2);
const GROUP_GET_STATUS: libc::c_ulong = number(3);
const GROUP_SET_CONTAINER: libc::c_ulong = number(4);
const GROUP_GET_DEVICE_FD: libc::c_ulong = number(6);
const DEVICE_GET_INFO: libc::c_ulong = number(7);
const DEVICE_GET_REGION_INFO: libc::c_ulong = number(8);
const DEVICE_GET_IRQ_INFO: libc::c_ulong = number(9);
const DEVICE_SET_IRQS: libc::c_ulong = number(10);
const DEVICE_RESET: libc::c_ulong = number(11);
const IOMMU_GET_INFO: libc::c_ulong = number(12);
const IOMMU_MAP_DMA: libc::c_ulong = number(13);
const IOMMU_UNMAP_DMA: libc::c_ulong = number(14);
const DEVICE_BIND_IOMMUFD: libc::c_ulong = number(18);
const DEVICE_ATTACH_IOMMUFD_PT: libc::c_ulong = number(19);
const IOAS_ALLOC: libc::c_ulong = iommufd(1);
const IOAS_IOVA_RANGES: libc::c_ulong = iommufd(4);
const IOAS_MAP: libc::c_ulong = iommufd(5);
const IOAS_UNMAP: libc::c_ulong = iommufd(6);

/// Longest accepted answer of the kernel.
const ANSWER: usize = 64 << 10;

fn done(result: libc::c_int) -> io::Result<libc::c_int> {
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(result) }
}

/// An ioctl with a structure as argument.
/// # Safety
/// `T` is the structure of this ioctl, and its pointers are valid.
unsafe fn call<T>(fd: BorrowedFd<'_>, request: libc::c_ulong, argument: &mut T) -> io::Result<libc::c_int> {
    // SAFETY: the caller's guarantee.
    done(unsafe { libc::ioctl(fd.as_raw_fd(), request as _, std::ptr::from_mut(argument)) })
}

/// An ioctl with a number as argument.
fn value(fd: BorrowedFd<'_>, request: libc::c_ulong, argument: libc::c_ulong) -> io::Result<libc::c_int> {
    // SAFETY: the kernel does not interpret the number as an address.
    done(unsafe { libc::ioctl(fd.as_raw_fd(), request as _, argument) })
}

/// Opens a device file for reading and writing.
pub fn open(path: &Path) -> io::Result<OwnedFd> {
    OpenOptions::new().read(true).write(true).open(path).map(OwnedFd::from)
}

/// Checks that a new container supports the type 1 interface, version 2.
pub fn check_container(container: BorrowedFd<'_>) -> io::Result<bool> {
    let version = value(container, GET_API_VERSION, 0)?;
    let type1 = value(container, CHECK_EXTENSION, VFIO_TYPE1v2_IOMMU.into())?;
    Ok(version as u32 == VFIO_API_VERSION && type1 != 0)
}

/// True if all devices of the group belong to user space (the group is viable).
pub fn group_is_viable(group: BorrowedFd<'_>) -> io::Result<bool> {
    let mut status = vfio_group_status { argsz: size_of::<vfio_group_status>() as u32, flags: 0 };
    // SAFETY: the structure of this ioctl.
    unsafe { call(group, GROUP_GET_STATUS, &mut status)? };
    Ok(status.flags & VFIO_GROUP_FLAGS_VIABLE != 0)
}

/// Adds the group to the container and selects the IOMMU type.
pub fn set_container(group: BorrowedFd<'_>, container: BorrowedFd<'_>) -> io::Result<()> {
    let mut fd: RawFd = container.as_raw_fd();
    // SAFETY: this ioctl takes the address of a descriptor.
    unsafe { call(group, GROUP_SET_CONTAINER, &mut fd)? };
    value(container, SET_IOMMU, VFIO_TYPE1v2_IOMMU.into()).map(drop)
}

/// The device of the group with this name (its PCI address).
pub fn group_device(group: BorrowedFd<'_>, name: &CStr) -> io::Result<File> {
    // SAFETY: this ioctl takes a NUL-terminated string and returns a descriptor of ours.
    unsafe {
        let fd = done(libc::ioctl(group.as_raw_fd(), GROUP_GET_DEVICE_FD as _, name.as_ptr()))?;
        Ok(File::from_raw_fd(fd))
    }
}

/// True if the device can be reset individually.
pub fn can_reset(device: BorrowedFd<'_>) -> io::Result<bool> {
    let mut info = vfio_device_info { argsz: size_of::<vfio_device_info>() as u32, ..Default::default() };
    // SAFETY: the structure of this ioctl.
    unsafe { call(device, DEVICE_GET_INFO, &mut info)? };
    Ok(info.flags & VFIO_DEVICE_FLAGS_RESET != 0)
}

/// Function level reset.
pub fn reset(device: BorrowedFd<'_>) -> io::Result<()> {
    value(device, DEVICE_RESET, 0).map(drop)
}

/// Calls an ioctl with structure `T` followed by a list of capabilities. Returns all bytes of the answer.
/// # Safety
/// As for [`call`]; `T` begins with `argsz`, which the kernel sets to the size that it needs.
unsafe fn answer<T: Copy>(
    fd: BorrowedFd<'_>,
    request: libc::c_ulong,
    request_struct: T,
) -> io::Result<Vec<u8>> {
    let mut room = size_of::<T>();
    loop {
        // Allocated as words, for the alignment of the structure.
        let mut words = vec![0u64; room.div_ceil(8)];
        // SAFETY: the structure fits into the words, which have its alignment; `argsz` is its first member.
        let (got, argsz) = unsafe {
            let at = words.as_mut_ptr().cast::<T>();
            at.write(request_struct);
            at.cast::<u32>().write(room as u32);
            let got = libc::ioctl(fd.as_raw_fd(), request as _, at);
            (done(got), at.cast::<u32>().read() as usize)
        };
        got?;
        if argsz <= room {
            return Ok(words.iter().flat_map(|word| word.to_ne_bytes()).take(room).collect());
        }
        if argsz > ANSWER {
            return Err(io::Error::other(format!("an answer of {argsz} bytes from the kernel")));
        }
        room = argsz;
    }
}

fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_ne_bytes(bytes.get(at..at.checked_add(4)?)?.try_into().ok()?))
}

fn u64_at(bytes: &[u8], at: usize) -> Option<u64> {
    Some(u64::from_ne_bytes(bytes.get(at..at.checked_add(8)?)?.try_into().ok()?))
}

/// The list of pairs of 64-bit numbers in capability `id` of an answer: a header of 8 bytes (id, version, offset of the
/// next), the count, four reserved bytes, the pairs. Empty if there is no such capability.
fn pairs(bytes: &[u8], first: u32, id: u16) -> Vec<(u64, u64)> {
    let mut at = first as usize;
    for _ in 0..bytes.len() / size_of::<vfio_info_cap_header>() {
        let (Some(head), Some(next)) = (u32_at(bytes, at), u32_at(bytes, at + 4)) else { break };
        if at == 0 {
            break;
        }
        if head as u16 == id {
            let count = u32_at(bytes, at + 8).unwrap_or(0) as usize;
            let list = (0..count).map_while(|n| {
                let pair = at + 16 + n * 16;
                Some((u64_at(bytes, pair)?, u64_at(bytes, pair + 8)?))
            });
            return list.collect();
        }
        at = next as usize;
    }
    Vec::new()
}

/// A region of the device (a BAR, configuration space).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RegionInfo {
    /// Offset in the device's file.
    pub offset: u64,
    /// Length in bytes, 0 if not implemented.
    pub size: u64,
    /// The mappable parts: offset and length.
    pub mappable: Vec<(u64, u64)>,
}

/// Queries region `index`.
pub fn region(device: BorrowedFd<'_>, index: u32) -> io::Result<RegionInfo> {
    let info = vfio_region_info { index, ..Default::default() };
    // SAFETY: the structure of this ioctl.
    let bytes = unsafe { answer(device, DEVICE_GET_REGION_INFO, info)? };
    let word = |at| u32_at(&bytes, at).unwrap_or(0);
    let flags = word(std::mem::offset_of!(vfio_region_info, flags));
    let size = u64_at(&bytes, std::mem::offset_of!(vfio_region_info, size)).unwrap_or(0);
    let offset = u64_at(&bytes, std::mem::offset_of!(vfio_region_info, offset)).unwrap_or(0);
    let mut mappable = Vec::new();
    if flags & VFIO_REGION_INFO_FLAG_MMAP != 0 {
        if flags & VFIO_REGION_INFO_FLAG_CAPS != 0 {
            let first = word(std::mem::offset_of!(vfio_region_info, cap_offset));
            mappable = pairs(&bytes, first, VFIO_REGION_INFO_CAP_SPARSE_MMAP as u16);
        }
        if mappable.is_empty() {
            mappable.push((0, size));
        }
    }
    mappable.retain(|(at, len)| *len > 0 && at.checked_add(*len).is_some_and(|end| end <= size));
    Ok(RegionInfo { offset, size, mappable })
}

/// Number of MSI-X vectors, and whether more can be connected while some already are.
pub fn msix(device: BorrowedFd<'_>) -> io::Result<(u32, bool)> {
    let mut info = vfio_irq_info {
        argsz: size_of::<vfio_irq_info>() as u32,
        index: VFIO_PCI_MSIX_IRQ_INDEX,
        ..Default::default()
    };
    // SAFETY: the structure of this ioctl.
    unsafe { call(device, DEVICE_GET_IRQ_INFO, &mut info)? };
    Ok((info.count, info.flags & VFIO_IRQ_INFO_NORESIZE == 0))
}

/// Connects MSI-X vectors starting at `start` to eventfds; -1 disconnects a vector.
pub fn set_msix(device: BorrowedFd<'_>, start: u32, fds: &[RawFd]) -> io::Result<()> {
    /// Words before the descriptors: argsz, flags, index, start, count.
    const HEAD: usize = 5;
    let flags = VFIO_IRQ_SET_DATA_EVENTFD | VFIO_IRQ_SET_ACTION_TRIGGER;
    let len = (HEAD + fds.len()) * 4;
    let mut words = vec![len as u32, flags, VFIO_PCI_MSIX_IRQ_INDEX, start, fds.len() as u32];
    words.extend(fds.iter().map(|fd| *fd as u32));
    // SAFETY: a vfio_irq_set followed by its list.
    done(unsafe { libc::ioctl(device.as_raw_fd(), DEVICE_SET_IRQS as _, words.as_mut_ptr()) }).and_then(
        |left| match left {
            0 => Ok(()),
            most => Err(io::Error::other(format!("the machine has {most} vectors left for the device"))),
        },
    )
}

/// Capabilities of a container's IOMMU: page sizes as a mask, and address ranges.
pub fn iommu(container: BorrowedFd<'_>) -> io::Result<(u64, Vec<(u64, u64)>)> {
    let info = vfio_iommu_type1_info { argsz: 0, flags: 0, iova_pgsizes: 0, cap_offset: 0, pad: 0 };
    // SAFETY: the structure of this ioctl.
    let bytes = unsafe { answer(container, IOMMU_GET_INFO, info)? };
    let flags = u32_at(&bytes, std::mem::offset_of!(vfio_iommu_type1_info, flags)).unwrap_or(0);
    let sizes = match flags & VFIO_IOMMU_INFO_PGSIZES {
        0 => 4096,
        _ => u64_at(&bytes, std::mem::offset_of!(vfio_iommu_type1_info, iova_pgsizes)).unwrap_or(4096),
    };
    let mut ranges = Vec::new();
    if flags & VFIO_IOMMU_INFO_CAPS != 0 {
        let first = u32_at(&bytes, std::mem::offset_of!(vfio_iommu_type1_info, cap_offset)).unwrap_or(0);
        ranges = pairs(&bytes, first, VFIO_IOMMU_TYPE1_INFO_CAP_IOVA_RANGE as u16);
    }
    Ok((sizes, ranges))
}

/// Maps our memory for the device.
/// # Safety
/// The memory stays mapped in this process until `unmap`, and the device may change it at any time.
pub unsafe fn map(
    container: BorrowedFd<'_>,
    vaddr: u64,
    iova: u64,
    size: u64,
    access: Access,
) -> io::Result<()> {
    let read = if access.read { VFIO_DMA_MAP_FLAG_READ } else { 0 };
    let write = if access.write { VFIO_DMA_MAP_FLAG_WRITE } else { 0 };
    let argsz = size_of::<vfio_iommu_type1_dma_map>() as u32;
    let mut map = vfio_iommu_type1_dma_map { argsz, flags: read | write, vaddr, iova, size };
    // SAFETY: the structure of this ioctl; the caller's guarantee about the memory.
    unsafe { call(container, IOMMU_MAP_DMA, &mut map) }.map(drop)
}

/// Undoes `map`. Returns the number of bytes unmapped.
pub fn unmap(container: BorrowedFd<'_>, iova: u64, size: u64) -> io::Result<u64> {
    let mut unmap = vfio_iommu_type1_dma_unmap {
        argsz: size_of::<vfio_iommu_type1_dma_unmap>() as u32,
        iova,
        size,
        ..Default::default()
    };
    // SAFETY: the structure of this ioctl.
    unsafe { call(container, IOMMU_UNMAP_DMA, &mut unmap)? };
    Ok(unmap.size)
}

/// Binds a VFIO character device to an iommufd, and attaches it to a new address space. Returns the id of the address
/// space.
pub fn bind_iommufd(device: BorrowedFd<'_>, iommufd: BorrowedFd<'_>) -> io::Result<u32> {
    let mut bind = vfio_device_bind_iommufd {
        // In older kernels the structure lacks the token.
        argsz: std::mem::offset_of!(vfio_device_bind_iommufd, token_uuid_ptr) as u32,
        iommufd: iommufd.as_raw_fd(),
        ..Default::default()
    };
    let mut space = iommu_ioas_alloc { size: size_of::<iommu_ioas_alloc>() as u32, ..Default::default() };
    // SAFETY: the structures of these ioctls; the first version of the attach structure ended before `pasid`.
    unsafe {
        call(device, DEVICE_BIND_IOMMUFD, &mut bind)?;
        call(iommufd, IOAS_ALLOC, &mut space)?;
        let mut attach = vfio_device_attach_iommufd_pt {
            argsz: std::mem::offset_of!(vfio_device_attach_iommufd_pt, pasid) as u32,
            pt_id: space.out_ioas_id,
            ..Default::default()
        };
        call(device, DEVICE_ATTACH_IOMMUFD_PT, &mut attach)?;
    }
    Ok(space.out_ioas_id)
}

/// The address ranges that an iommufd address space allows.
pub fn iova_ranges(iommufd: BorrowedFd<'_>, ioas: u32) -> io::Result<Vec<(u64, u64)>> {
    /// More ranges than any IOMMU has.
    const MOST: usize = 256;
    let mut list = vec![iommu_iova_range { start: 0, last: 0 }; MOST];
    let mut query = iommu_ioas_iova_ranges {
        size: size_of::<iommu_ioas_iova_ranges>() as u32,
        ioas_id: ioas,
        num_iovas: MOST as u32,
        allowed_iovas: list.as_mut_ptr() as u64,
        ..Default::default()
    };
    // SAFETY: the structure of this ioctl, with room for the number of ranges that it states.
    unsafe { call(iommufd, IOAS_IOVA_RANGES, &mut query)? };
    Ok(list.iter().take(query.num_iovas as usize).map(|range| (range.start, range.last)).collect())
}

/// Like [`map`], in an iommufd address space.
/// # Safety
/// As for [`map`].
pub unsafe fn map_ioas(
    iommufd: BorrowedFd<'_>,
    ioas: u32,
    vaddr: u64,
    iova: u64,
    size: u64,
    access: Access,
) -> io::Result<()> {
    let read = if access.read { MAP_READABLE } else { 0 };
    let write = if access.write { MAP_WRITEABLE } else { 0 };
    let mut map = iommu_ioas_map {
        size: size_of::<iommu_ioas_map>() as u32,
        flags: MAP_FIXED_IOVA | read | write,
        ioas_id: ioas,
        user_va: vaddr,
        length: size,
        iova,
        ..Default::default()
    };
    // SAFETY: the structure of this ioctl; the caller's guarantee about the memory.
    unsafe { call(iommufd, IOAS_MAP, &mut map) }.map(drop)
}

/// Like [`unmap`], in an iommufd address space.
pub fn unmap_ioas(iommufd: BorrowedFd<'_>, ioas: u32, iova: u64, length: u64) -> io::Result<u64> {
    let mut unmap =
        iommu_ioas_unmap { size: size_of::<iommu_ioas_unmap>() as u32, ioas_id: ioas, iova, length };
    // SAFETY: the structure of this ioctl.
    unsafe { call(iommufd, IOAS_UNMAP, &mut unmap)? };
    Ok(unmap.length)
}

/// Limit of locked memory for this process (`RLIMIT_MEMLOCK`) in bytes, `None` if unlimited.
pub fn memlock() -> Option<u64> {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: the structure of this call.
    let got = unsafe { libc::getrlimit(libc::RLIMIT_MEMLOCK, &mut limit) };
    (got == 0 && limit.rlim_cur != libc::RLIM_INFINITY).then_some(limit.rlim_cur)
}

/// Reads at `offset` of the device's file: all bytes or an error.
pub fn read_at(device: &File, bytes: &mut [u8], offset: u64) -> io::Result<()> {
    std::os::unix::fs::FileExt::read_exact_at(device, bytes, offset)
}

/// Writes at `offset` of the device's file: all bytes or an error.
pub fn write_at(device: &File, bytes: &[u8], offset: u64) -> io::Result<()> {
    std::os::unix::fs::FileExt::write_all_at(device, bytes, offset)
}

/// Borrows a file's descriptor.
pub fn fd(file: &File) -> BorrowedFd<'_> {
    file.as_fd()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn capability(id: u16, next: u32, pairs: &[(u64, u64)]) -> Vec<u8> {
        let mut bytes = (u32::from(id) | 1 << 16).to_ne_bytes().to_vec();
        bytes.extend(next.to_ne_bytes());
        bytes.extend((pairs.len() as u32).to_ne_bytes());
        bytes.extend([0; 4]);
        pairs.iter().for_each(|(a, b)| {
            bytes.extend(a.to_ne_bytes());
            bytes.extend(b.to_ne_bytes());
        });
        bytes
    }

    #[test]
    fn ranges_are_found_behind_other_capabilities() {
        let mut bytes = vec![0; 24];
        let second = 24 + capability(3, 0, &[]).len() as u32;
        bytes.extend(capability(3, second, &[]));
        bytes.extend(capability(1, 0, &[(0, 0xfedf_ffff), (0xfef0_0000, 0x7f_ffff_ffff)]));
        assert_eq!(pairs(&bytes, 24, 1), [(0, 0xfedf_ffff), (0xfef0_0000, 0x7f_ffff_ffff)]);
        assert_eq!(pairs(&bytes, 24, 2), []);
    }

    #[test]
    fn a_list_that_is_cut_off_or_runs_in_circles_ends() {
        let mut bytes = vec![0; 24];
        bytes.extend(capability(1, 24, &[(1, 2), (3, 4)]));
        bytes.truncate(bytes.len() - 1);
        assert_eq!(pairs(&bytes, 24, 1), [(1, 2)]);
        assert_eq!(pairs(&bytes, 24, 9), []);
        assert_eq!(pairs(&bytes, 0, 1), []);
        assert_eq!(pairs(&bytes, u32::MAX, 1), []);
    }

    #[test]
    fn ioctl_numbers_are_those_of_the_headers() {
        assert_eq!((GET_API_VERSION, IOMMU_MAP_DMA, DEVICE_ATTACH_IOMMUFD_PT), (0x3b64, 0x3b71, 0x3b77));
        assert_eq!((IOAS_ALLOC, IOAS_IOVA_RANGES, IOAS_MAP, IOAS_UNMAP), (0x3b81, 0x3b84, 0x3b85, 0x3b86));
    }
}
