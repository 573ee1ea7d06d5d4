//! A client's memory, mapped through its descriptor; it may disappear at any time.
//!
//! A client can truncate its file at any time. An access to a missing page is handled by [`missing`](crate::missing): the whole
//! mapping is given up, and the read or write counts as an abort.
#![allow(unsafe_code)]

use crate::missing::{Mark, Replace, Watched};
use std::{
    fs::File,
    io,
    mem::MaybeUninit,
    os::{fd::AsRawFd, unix::fs::MetadataExt},
    sync::Arc,
};
use vm_memory::{FileOffset, mmap::MmapRegion};

/// A client's file, mapped whole.
pub(super) struct Ram {
    // Declared before the region, so that watching ends before the region is unmapped.
    _watched: Watched,
    torn: Arc<Mark>,
    region: MmapRegion,
    /// Identity of the file: device and inode.
    pub(super) file: (u64, u64),
    /// True if it may be written.
    pub(super) writable: bool,
}
/// True for file systems with pages from memory or a local disk. On any other a page may take forever.
fn is_local(file: &File) -> io::Result<bool> {
    const TMPFS: i64 = 0x0102_1994;
    const RAMFS: i64 = 0x8584_58f6;
    const HUGETLBFS: i64 = 0x9584_58f6;
    const EXT: i64 = 0xef53;
    const XFS: i64 = 0x5846_5342;
    const BTRFS: i64 = 0x9123_683e;
    let mut stat = MaybeUninit::<libc::statfs>::uninit();
    // SAFETY: a successful call has written the structure.
    let kind = unsafe {
        if libc::fstatfs(file.as_raw_fd(), stat.as_mut_ptr()) == -1 {
            return Err(io::Error::last_os_error());
        }
        stat.assume_init().f_type
    };
    Ok([TMPFS, RAMFS, HUGETLBFS, EXT, XFS, BTRFS].contains(&(kind as _)))
}

pub(super) fn errno(code: i32) -> io::Error {
    io::Error::from_raw_os_error(code)
}

impl Ram {
    /// Maps all of `file`, writable if permitted.
    pub(super) fn new(file: File) -> io::Result<Self> {
        let meta = file.metadata()?;
        if !meta.is_file() || !is_local(&file)? {
            return Err(errno(libc::ENODEV));
        }
        let len = usize::try_from(meta.len()).map_err(|_| errno(libc::EFBIG))?;
        let id = (meta.dev(), meta.ino());
        let flags = libc::MAP_SHARED | libc::MAP_NORESERVE;
        let map = |prot| {
            let file = FileOffset::new(file.try_clone()?, 0);
            MmapRegion::build(Some(file), len, prot, flags).map_err(|e| match e {
                vm_memory::mmap::MmapRegionError::Mmap(e) => e,
                _ => errno(libc::EINVAL),
            })
        };
        let (region, writable) = match map(libc::PROT_READ | libc::PROT_WRITE) {
            Ok(region) => (region, true),
            Err(e) if matches!(e.raw_os_error(), Some(libc::EACCES | libc::EPERM)) => {
                (map(libc::PROT_READ)?, false)
            }
            Err(e) => return Err(e),
        };
        let torn = Arc::<Mark>::default();
        // SAFETY: our own mapping, which lives as long as the region; a client's memory may hold any bytes.
        let watched = unsafe { Watched::new(region.as_ptr(), region.size(), Replace::All, torn.clone()) };
        Ok(Self { _watched: watched, torn, region, file: id, writable })
    }

    /// Pointer to its first byte.
    pub(super) fn base(&self) -> *mut u8 {
        self.region.as_ptr()
    }

    /// Length in bytes.
    pub(super) fn len(&self) -> u64 {
        self.region.size() as u64
    }

    /// True if the file was found truncated. A copy made before this returns false is as good as the client's memory.
    #[inline]
    pub(super) fn is_torn(&self) -> bool {
        self.torn.is_set()
    }
}
