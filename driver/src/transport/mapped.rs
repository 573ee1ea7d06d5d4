//! Mappings of this process, given back when dropped.

use super::fork::Absence;
use std::{
    io,
    os::fd::{AsRawFd, BorrowedFd},
    ptr::NonNull,
};

/// Size of a huge page.
pub const HUGE: usize = 2 << 20;

/// A mapping, unmapped when dropped.
#[derive(Debug)]
pub struct Mapped {
    ptr: NonNull<u8>,
    len: usize,
    _absence: Option<Absence>,
}
// SAFETY: an address range; what it holds is touched by volatile accesses and atomics only.
unsafe impl Send for Mapped {}
// SAFETY: a shared reference gives the address alone; whoever touches what lies there does so by volatile accesses and atomics.
unsafe impl Sync for Mapped {}

impl Mapped {
    fn new(len: usize, protection: i32, flags: i32, file: Option<(BorrowedFd<'_>, u64)>) -> io::Result<Self> {
        let (fd, offset) = file.map_or((-1, 0), |(fd, offset)| (fd.as_raw_fd(), offset));
        // SAFETY: a new mapping where the kernel likes; nothing of ours is there.
        let at =
            unsafe { libc::mmap(std::ptr::null_mut(), len, protection, flags, fd, offset as libc::off_t) };
        match NonNull::new(at.cast::<u8>()) {
            Some(ptr) if at != libc::MAP_FAILED => Ok(Self { ptr, len, _absence: None }),
            _ => Err(io::Error::last_os_error()),
        }
    }

    /// `len` bytes at `offset` of a file, shared with it.
    pub fn file(fd: BorrowedFd<'_>, offset: u64, len: usize) -> io::Result<Self> {
        Self::new(len, libc::PROT_READ | libc::PROT_WRITE, libc::MAP_SHARED, Some((fd, offset)))
    }

    /// Memory at `offset` of a file shared with whoever has the file. It is not there in children of fork.
    pub fn shared_memory(fd: BorrowedFd<'_>, offset: u64, len: usize) -> io::Result<Self> {
        let mapped = Self::file(fd, offset, len)?;
        mapped.advise(libc::MADV_DONTFORK);
        Ok(mapped)
    }

    /// Registers at `offset` of a device's file. In children of fork there is no device: they read as all ones.
    pub fn registers(fd: BorrowedFd<'_>, offset: u64, len: usize) -> io::Result<Self> {
        let mut mapped = Self::file(fd, offset, len)?;
        mapped._absence = Some(Absence::of_registers(mapped.ptr, len));
        Ok(mapped)
    }

    /// `len` bytes of zeroed memory in huge pages, where the machine keeps some ready.
    fn huge(len: usize) -> io::Result<Self> {
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_HUGETLB | libc::MAP_HUGE_2MB;
        Self::new(len, libc::PROT_READ | libc::PROT_WRITE, flags, None)
    }

    /// `len` bytes of zeroed memory, in huge pages if they are to be had: those the machine keeps ready, else those
    /// the kernel puts together by itself. It is not there in children of fork.
    pub fn memory(len: usize) -> io::Result<Self> {
        let mapped = match len % HUGE {
            0 => Self::huge(len).or_else(|_| Self::aligned(len))?,
            _ => Self::private(len)?,
        };
        mapped.advise(libc::MADV_DONTFORK);
        Ok(mapped)
    }

    /// `len` bytes of zeroed memory, as a program's own is.
    pub fn private(len: usize) -> io::Result<Self> {
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
        Self::new(len, libc::PROT_READ | libc::PROT_WRITE, flags, None)
    }

    /// Memory that begins where a huge page could.
    fn aligned(len: usize) -> io::Result<Self> {
        let room = len.checked_add(HUGE).ok_or_else(|| io::Error::from_raw_os_error(libc::ENOMEM))?;
        let whole = std::mem::ManuallyDrop::new(Self::private(room)?);
        let base = whole.ptr.as_ptr();
        let lead = base.align_offset(HUGE).min(HUGE);
        let trim = |at: *mut u8, len: usize| {
            if len > 0 {
                // SAFETY: an end of the mapping made above, which nobody knows yet.
                unsafe { libc::munmap(at.cast(), len) };
            }
        };
        trim(base, lead);
        trim(base.wrapping_add(lead + len), HUGE - lead);
        let ptr = NonNull::new(base.wrapping_add(lead)).unwrap_or(whole.ptr);
        let mapped = Self { ptr, len, _absence: None };
        mapped.advise(libc::MADV_HUGEPAGE);
        Ok(mapped)
    }

    /// Advice the kernel may not take; then the memory is what it was.
    fn advise(&self, advice: i32) {
        // SAFETY: our own mapping; none of the advice used here changes what it holds for this process.
        unsafe { libc::madvise(self.ptr.as_ptr().cast(), self.len, advice) };
    }

    /// Where it is.
    pub fn ptr(&self) -> NonNull<u8> {
        self.ptr
    }

    /// Bytes.
    pub fn len(&self) -> usize {
        self.len
    }
}

impl Drop for Mapped {
    fn drop(&mut self) {
        // SAFETY: our own mapping; whoever was given its address keeps this value alive.
        unsafe { libc::munmap(self.ptr.as_ptr().cast(), self.len) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_of_huge_size_begins_where_a_huge_page_could() {
        for len in [HUGE, 3 * HUGE] {
            let memory = Mapped::memory(len).unwrap();
            assert_eq!((memory.ptr().as_ptr() as usize % HUGE, memory.len()), (0, len));
            // SAFETY: both ends of our own mapping.
            unsafe {
                assert_eq!(memory.ptr().as_ptr().read(), 0);
                memory.ptr().as_ptr().add(len - 1).write(1);
            }
        }
        assert_eq!(Mapped::memory(4096).unwrap().len(), 4096);
        assert!(Mapped::memory(usize::MAX - 4095).is_err());
    }
}
