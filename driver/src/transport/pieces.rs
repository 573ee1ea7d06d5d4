//! A BAR that is mapped piece by piece through its sysfs files, as it becomes known which pages are needed and with
//! which memory type.
//!
//! x86 has one memory type for all mappings of a page: a second mapping silently gets the type of the first. Linux maps
//! a whole BAR uncached for itself on the first access to it through VFIO. A later mapping through `resource0_wc`
//! combines nothing, and an earlier one makes the whole BAR write-combining, command doorbell included. So a BAR with
//! write-combining pages is never accessed through VFIO. Nor may the kernel claim it for VFIO: kernels with
//! `CONFIG_IO_STRICT_DEVMEM` then revoke the mappings through sysfs.

use super::fork::{Absence, Alone};
use migration::Pages;
use std::{
    fs::File,
    io,
    os::fd::{AsFd, AsRawFd},
    sync::{Arc, Mutex, PoisonError},
};

/// Size of the pages that are mapped, those of the host.
pub const PAGE: usize = 4096;

/// The files through which a BAR is mapped.
#[derive(Debug)]
pub struct Files {
    /// Uncached mappings: `resource0`.
    pub plain: File,
    /// Write-combining mappings: `resource0_wc`.
    pub combining: File,
    /// The VFIO device, which must not be closed, and thereby reset, while its registers are mapped.
    pub _device: Arc<Alone<File>>,
}

/// A BAR at consecutive addresses. Unmapped pages are backed by memory that is never read.
#[derive(Debug)]
pub struct Pieces {
    /// Dropped before the rest, since the fork handler must have released it first.
    _absences: [Absence; 3],
    files: Files,
    /// True if each page is mapped.
    mapped: Mutex<Vec<bool>>,
    room: Pages,
}

impl Pieces {
    /// Reserves addresses for a BAR of `len` bytes and maps the first `first`.
    ///
    /// # Errors
    /// It is not made of whole pages, or the kernel does not map it.
    pub fn new(files: Files, len: usize, first: usize) -> io::Result<Self> {
        if len % PAGE != 0 {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        let room = Pages::private(len)?;
        let absences = [
            Absence::of_file(files.plain.as_fd()),
            Absence::of_file(files.combining.as_fd()),
            Absence::of_registers(room.ptr(), len),
        ];
        let mapped = Mutex::new(vec![false; len / PAGE]);
        let this = Self { _absences: absences, files, mapped, room };
        this.reach(0, first.min(len))?;
        Ok(this)
    }

    /// Address of its first byte.
    pub fn base(&self) -> *mut u8 {
        self.room.ptr().as_ptr()
    }

    /// Length in bytes.
    pub fn len(&self) -> usize {
        self.room.len()
    }

    /// Maps `len` bytes at `offset`, which lie within the BAR, unless they are mapped already.
    pub fn reach(&self, offset: usize, len: usize) -> io::Result<()> {
        let mut mapped = self.mapped.lock().unwrap_or_else(PoisonError::into_inner);
        let (mut page, end) = (offset / PAGE, (offset + len).div_ceil(PAGE));
        while page < end {
            let run = mapped[page..end].iter().take_while(|mapped| !**mapped).count();
            if run > 0 {
                self.map(page * PAGE, run * PAGE)?;
                mapped[page..page + run].fill(true);
            }
            page += run.max(1);
        }
        Ok(())
    }

    fn map(&self, offset: usize, len: usize) -> io::Result<()> {
        assert!(offset + len <= self.len(), "pages outside of the BAR");
        let at = self.base().wrapping_add(offset).cast();
        let (access, how) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_SHARED | libc::MAP_FIXED);
        // SAFETY: replaces pages of `room` that are not in use yet, since pages are mapped before they are used.
        let got =
            unsafe { libc::mmap(at, len, access, how, self.files.plain.as_raw_fd(), offset as libc::off_t) };
        if got == libc::MAP_FAILED { Err(io::Error::last_os_error()) } else { Ok(()) }
    }

    /// Returns the file to map `page` write-combining. Fails if the page is already mapped, or outside.
    pub fn combining(&self, page: usize) -> io::Result<&File> {
        let mapped = self.mapped.lock().unwrap_or_else(PoisonError::into_inner);
        match mapped.get(page) {
            Some(false) => Ok(&self.files.combining),
            Some(true) => Err(io::ErrorKind::AddrInUse.into()),
            None => Err(io::ErrorKind::InvalidInput.into()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Bar, Combining, Mapping};
    use super::*;
    use std::os::unix::fs::FileExt;

    const LEN: usize = 16 * PAGE;

    fn file() -> File {
        testkit::memfd(LEN as u64)
    }

    /// A BAR in pieces, and files in place of those in sysfs.
    fn bar() -> (Bar, Arc<dyn Combining>, [File; 2]) {
        let (plain, combining) = (file(), file());
        let kept = [plain.try_clone().unwrap(), combining.try_clone().unwrap()];
        let files = Files { plain, combining, _device: Arc::new(Alone::new(file())) };
        let mapping = Mapping::of_pieces(Arc::new(Pieces::new(files, LEN, 0x1014).unwrap()));
        let combining = mapping.combining().unwrap();
        (Bar::Mapped(Arc::new(mapping)), combining, kept)
    }

    #[test]
    fn a_bar_of_less_than_a_page_is_refused() {
        for (len, fits) in [(256, false), (PAGE + 256, false), (PAGE, true)] {
            let files = Files { plain: file(), combining: file(), _device: Arc::new(Alone::new(file())) };
            assert_eq!(Pieces::new(files, len, 0x1014).is_ok(), fits, "{len}");
        }
    }

    fn word(file: &File, at: u64) -> u64 {
        let mut bytes = [0; 8];
        file.read_exact_at(&mut bytes, at).unwrap();
        u64::from_be_bytes(bytes)
    }

    #[test]
    fn pages_are_mapped_as_they_are_reached_and_each_in_one_way() {
        let (bar, combining, [plain, combined]) = bar();
        bar.doorbell(0x1010, 1);
        assert_eq!(word(&plain, 0x1010), 1, "the first pages are mapped at once");
        bar.doorbell(0x5800, 2);
        assert_eq!(word(&plain, 0x5800), 0, "not reached yet");
        bar.reach_page(5).unwrap();
        bar.doorbell(0x5800, 3);
        let page = combining.page(6).unwrap();
        page.doorbell(0x800, 4);
        assert_eq!((word(&plain, 0x5800), word(&plain, 0x6800), word(&combined, 0x6800)), (3, 0, 4));
        for (uar, why) in
            [(1, "mapped at once"), (5, "reached"), (16, "past the end"), (u32::MAX, "far past")]
        {
            assert!(combining.page(uar).is_err(), "{why}");
        }
        // Device memory around the page; part of it is already mapped.
        assert!(bar.reach(4 * PAGE as u64, 2 * PAGE as u64) && bar.reach(8 * PAGE as u64, 8 * PAGE as u64));
        bar.doorbell(0x5800, 5);
        bar.doorbell(0xfff8, 6);
        assert_eq!((word(&plain, 0x5800), word(&plain, 0xfff8)), (5, 6));
        assert!(!bar.reach(8 * PAGE as u64, 8 * PAGE as u64 + 1) && bar.reach_page(16).is_err());
        drop((bar, combining));
        page.doorbell(0x900, 7);
        assert_eq!(word(&combined, 0x6900), 7, "a page outlives the rest");
    }

    #[test]
    fn a_child_of_fork_has_none_of_it() {
        let (bar, combining, [plain, combined]) = bar();
        bar.reach_page(5).unwrap();
        let page = combining.page(6).unwrap();
        // SAFETY: the child touches its own memory only, and exits.
        let child = unsafe {
            let child = libc::fork();
            if child == 0 {
                let gone = bar.read32(0x10) == u32::MAX && page.read32(0x800) == u32::MAX;
                bar.doorbell(0x5800, 1);
                page.doorbell(0x800, 1);
                let refused = bar.reach_page(7).is_err() && combining.page(8).is_err();
                libc::_exit(i32::from(!(gone && refused)));
            }
            child
        };
        let mut status = -1;
        // SAFETY: the process is our own child.
        assert_eq!(unsafe { libc::waitpid(child, &mut status, 0) }, child);
        assert_eq!((status, word(&plain, 0x5800), word(&combined, 0x6800)), (0, 0, 0));
        page.doorbell(0x800, 2);
        assert_eq!(word(&combined, 0x6800), 2);
    }
}
