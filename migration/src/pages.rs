//! Mappings of this process, unmapped when dropped.

use std::{
    io,
    os::fd::{AsRawFd, BorrowedFd},
    ptr::NonNull,
};

/// Size of a huge page.
pub const HUGE: usize = 2 << 20;

/// Pages mapped into this process, unmapped when dropped.
#[derive(Debug)]
pub struct Pages {
    ptr: NonNull<u8>,
    len: usize,
}
// SAFETY: an address range; what it holds is touched by volatile accesses and atomics only.
unsafe impl Send for Pages {}
// SAFETY: a shared reference gives the address alone; whoever touches what lies there does so by volatile accesses and atomics.
unsafe impl Sync for Pages {}

impl Pages {
    fn new(len: usize, protection: i32, flags: i32, file: Option<(BorrowedFd<'_>, u64)>) -> io::Result<Self> {
        let (fd, offset) = file.map_or((-1, 0), |(fd, offset)| (fd.as_raw_fd(), offset));
        // SAFETY: a new mapping at an address of the kernel's choice, where nothing of ours is.
        let at =
            unsafe { libc::mmap(std::ptr::null_mut(), len, protection, flags, fd, offset as libc::off_t) };
        match NonNull::new(at.cast::<u8>()) {
            Some(ptr) if at != libc::MAP_FAILED => Ok(Self { ptr, len }),
            _ => Err(io::Error::last_os_error()),
        }
    }

    /// `len` bytes at `offset` of a file, shared with it.
    pub fn file(fd: BorrowedFd<'_>, offset: u64, len: usize) -> io::Result<Self> {
        Self::new(len, libc::PROT_READ | libc::PROT_WRITE, libc::MAP_SHARED, Some((fd, offset)))
    }

    /// `len` bytes at `offset` of a file, shared with every process that has the file but for children of fork, which have nothing
    /// there.
    pub fn shared_memory(fd: BorrowedFd<'_>, offset: u64, len: usize) -> io::Result<Self> {
        let pages = Self::file(fd, offset, len)?;
        pages.advise(libc::MADV_DONTFORK);
        Ok(pages)
    }

    /// `len` bytes of zeroed memory in huge pages that the machine keeps ready.
    fn huge(len: usize) -> io::Result<Self> {
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_HUGETLB | libc::MAP_HUGE_2MB;
        Self::new(len, libc::PROT_READ | libc::PROT_WRITE, flags, None)
    }

    /// `len` bytes of zeroed memory, in huge pages if possible: those the machine keeps ready, else those the kernel assembles by
    /// itself. Children of fork have nothing there.
    pub fn memory(len: usize) -> io::Result<Self> {
        let pages = match len % HUGE {
            0 => Self::huge(len).or_else(|_| Self::aligned(len))?,
            _ => Self::private(len)?,
        };
        pages.advise(libc::MADV_DONTFORK);
        Ok(pages)
    }

    /// `len` bytes of zeroed memory like any that a program allocates.
    pub fn private(len: usize) -> io::Result<Self> {
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
        Self::new(len, libc::PROT_READ | libc::PROT_WRITE, flags, None)
    }

    /// Memory that begins at a multiple of a huge page.
    fn aligned(len: usize) -> io::Result<Self> {
        let room = len.checked_add(HUGE).ok_or_else(|| io::Error::from_raw_os_error(libc::ENOMEM))?;
        let whole = std::mem::ManuallyDrop::new(Self::private(room)?);
        let base = whole.ptr.as_ptr();
        let lead = base.align_offset(HUGE).min(HUGE);
        let trim = |at: *mut u8, len: usize| {
            if len > 0 {
                // SAFETY: an end of the mapping made above, which nothing refers to yet.
                unsafe { libc::munmap(at.cast(), len) };
            }
        };
        trim(base, lead);
        trim(base.wrapping_add(lead + len), HUGE - lead);
        let ptr = NonNull::new(base.wrapping_add(lead)).unwrap_or(whole.ptr);
        let pages = Self { ptr, len };
        pages.advise(libc::MADV_HUGEPAGE);
        Ok(pages)
    }

    /// Gives advice, which the kernel may ignore.
    fn advise(&self, advice: i32) {
        // SAFETY: our own mapping; none of the advice used here changes what it holds for this process.
        unsafe { libc::madvise(self.ptr.as_ptr().cast(), self.len, advice) };
    }

    /// Never: the kernel maps no pages at all for a length of 0.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Where they begin.
    pub fn ptr(&self) -> NonNull<u8> {
        self.ptr
    }

    /// Length in bytes.
    pub fn len(&self) -> usize {
        self.len
    }
}

impl Drop for Pages {
    fn drop(&mut self) {
        // SAFETY: our own mapping; users of its address keep this value alive.
        unsafe { libc::munmap(self.ptr.as_ptr().cast(), self.len) };
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
