//! Mappings of this process, unmapped on drop.

use mmap_rs::{MmapFlags, MmapMut, MmapOptions, PageSize};
use std::{fs::File, io, ptr::NonNull};

/// Size of a huge page.
pub const HUGE: usize = 2 << 20;

/// Pages mapped into this process, unmapped on drop.
#[derive(Debug)]
pub struct Pages {
    ptr: NonNull<u8>,
    map: MmapMut,
}
// SAFETY: an address range; its contents are accessed by volatile accesses and atomics only.
unsafe impl Send for Pages {}
// SAFETY: a shared reference gives only the address; all accesses to the contents are volatile or atomic.
unsafe impl Sync for Pages {}

/// The kernel's error for a mapping that could not be created.
pub fn map_error(error: mmap_rs::Error) -> io::Error {
    match error {
        mmap_rs::Error::Nix(errno) => errno.into(),
        // A length of zero, or an impossible file offset.
        _ => io::Error::from_raw_os_error(libc::EINVAL),
    }
}

fn options<'f>(len: usize) -> io::Result<MmapOptions<'f>> {
    MmapOptions::new(len).map_err(map_error)
}

impl Pages {
    fn new(options: MmapOptions<'_>) -> io::Result<Self> {
        Self::over(options.map_mut().map_err(map_error)?)
    }

    fn over(mut map: MmapMut) -> io::Result<Self> {
        let ptr = NonNull::new(map.as_mut_ptr()).ok_or_else(|| io::Error::from_raw_os_error(libc::ENOMEM))?;
        Ok(Self { ptr, map })
    }

    /// Maps `len` bytes at `offset` of a file, shared.
    pub fn file(file: &File, offset: u64, len: usize) -> io::Result<Self> {
        // SAFETY: other processes write to the file, so there must be no slice of the mapping: `map` is private, and
        // used only for its length. Accesses by address are as described at `Send` and `Sync` above.
        let options = unsafe { options(len)?.with_file(file, offset) };
        Self::new(options.with_flags(MmapFlags::SHARED))
    }

    /// Maps `len` bytes at `offset` of a file, shared with every process that has the file, but unmapped in children of
    /// fork.
    pub fn shared_memory(file: &File, offset: u64, len: usize) -> io::Result<Self> {
        let pages = Self::file(file, offset, len)?;
        pages.advise(libc::MADV_DONTFORK);
        Ok(pages)
    }

    /// Allocates `len` bytes of zeroed memory in preallocated huge pages.
    fn huge(len: usize) -> io::Result<Self> {
        Self::new(options(len)?.with_page_size(PageSize::_2M))
    }

    /// Allocates `len` bytes of zeroed memory, in huge pages if possible: preallocated ones, or else transparent ones.
    /// The memory is unmapped in children of fork.
    pub fn memory(len: usize) -> io::Result<Self> {
        let pages = match len % HUGE {
            0 => Self::huge(len).or_else(|_| Self::aligned(len))?,
            _ => Self::private(len)?,
        };
        pages.advise(libc::MADV_DONTFORK);
        Ok(pages)
    }

    /// Allocates `len` bytes of zeroed memory as any program does.
    pub fn private(len: usize) -> io::Result<Self> {
        Self::new(options(len)?)
    }

    /// Allocates memory aligned to a huge page.
    fn aligned(len: usize) -> io::Result<Self> {
        let room = len.checked_add(HUGE).ok_or_else(|| io::Error::from_raw_os_error(libc::ENOMEM))?;
        let mut map = options(room)?.map_mut().map_err(map_error)?;
        let lead = map.as_ptr().align_offset(HUGE).min(HUGE);
        // The excess at both ends is unmapped.
        drop(map.split_to(lead).map_err(map_error)?);
        drop(map.split_off(len).map_err(map_error)?);
        let pages = Self::over(map)?;
        pages.advise(libc::MADV_HUGEPAGE);
        Ok(pages)
    }

    /// Calls madvise; the kernel may ignore it.
    fn advise(&self, advice: i32) {
        // SAFETY: our own mapping; none of the advice used here changes its contents for this process.
        unsafe { libc::madvise(self.ptr.as_ptr().cast(), self.len(), advice) };
    }

    /// Always false: the kernel maps no pages for a length of 0.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Their first address.
    pub fn ptr(&self) -> NonNull<u8> {
        self.ptr
    }

    /// Length in bytes.
    pub fn len(&self) -> usize {
        self.map.size()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_of_huge_size_begins_where_a_huge_page_could() {
        for len in [HUGE, 3 * HUGE] {
            let memory = Pages::memory(len).unwrap();
            assert_eq!((memory.ptr().as_ptr() as usize % HUGE, memory.len()), (0, len));
            // SAFETY: both ends of our own mapping.
            unsafe {
                assert_eq!(memory.ptr().as_ptr().read(), 0);
                memory.ptr().as_ptr().add(len - 1).write(1);
            }
        }
        assert_eq!(Pages::memory(4096).unwrap().len(), 4096);
        assert!(Pages::memory(usize::MAX - 4095).is_err());
    }
}
