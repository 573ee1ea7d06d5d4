//! Migrates pages of a running program to a file, for a device that can only access files, and back.
//!
//! The bytes are copied to the file, and the file's pages are mapped at the same addresses in place of the old ones.
//! This is transparent to the program: a thread that writes there in the meantime waits (write protection by
//! userfaultfd), and a child of fork gets private memory again, as it would have had.
//!
//! ```
//! use ironverbs_migration::{BackingFile, Pages, WriteProtection, areas};
//! use std::os::unix::fs::MetadataExt;
//! # const PAGE: usize = 4096;
//!
//! let file = testkit::memfd(1 << 20); // in a program, memfd_create(2)
//! let meta = file.metadata()?;
//! let backing = BackingFile { file: &file, id: (meta.dev(), meta.ino()), view: None };
//!
//! // Memory of the program.
//! let pages = Pages::private(PAGE)?;
//! let start = pages.ptr().as_ptr() as usize;
//! // SAFETY: a byte of our own page.
//! unsafe { pages.ptr().as_ptr().write(7) };
//!
//! let area = areas::within(start, start + PAGE)?.expect("it is mapped")[0];
//! // SAFETY: private memory of ours, to which no other thread writes.
//! unsafe { ironverbs_migration::migrate(&area, &backing, 0x2000, WriteProtection::IfAvailable)? };
//! assert!(ironverbs_migration::is_in_place(start, &backing, 0x2000, PAGE)?);
//! // SAFETY: the same byte.
//! assert_eq!(unsafe { pages.ptr().as_ptr().read() }, 7);
//! # Ok::<(), std::io::Error>(())
//! ```
#![allow(unsafe_code)]

pub mod areas;
mod fork;
mod pages;
mod pins;
mod table;
mod write_protect;

pub use areas::Area;
pub use pages::{Pages, map_error};
pub use pins::others_pin_memory;

use std::{fs::File, io, mem::MaybeUninit};
use sync::Quiet;
use table::Extent;
use write_protect::Hold;

const PAGE: usize = 4096;

/// Determines if memory must be write-protected during its migration, so that other threads that write to it wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WriteProtection {
    /// The memory does not migrate if it cannot be protected.
    Required,
    /// The memory always migrates: the caller knows that nothing else writes to it.
    IfAvailable,
}

/// A file that pages migrate to.
pub struct BackingFile<'a> {
    /// The file.
    pub file: &'a File,
    /// Device number of its file system, and its inode.
    pub id: (u64, u64),
    /// For pages that are also mapped in a view: the address there of the file's first byte. Migrated pages are read
    /// through the view, independently of the protection that the program set at its own addresses.
    pub view: Option<usize>,
}

impl BackingFile<'_> {
    fn extent(&self, offset: u64, len: usize) -> Extent {
        let view = self.view.map_or(0, |base| base.wrapping_add(offset as usize));
        Extent { file: self.id, offset, len: len as u64, view }
    }
}

/// Migrates the pages of `area` to `offset` of `backing`; the file must contain zeros there. After an error they are in
/// their old place.
/// # Safety
/// The memory belongs to the program, is private and readable. With [`WriteProtection::IfAvailable`], nothing else
/// writes to it during the call.
pub unsafe fn migrate(
    area: &Area,
    backing: &BackingFile<'_>,
    offset: u64,
    protection: WriteProtection,
) -> io::Result<()> {
    fork::watch();
    let pages = Pages::file(backing.file, offset, area.size())?;
    let hold = Hold::new();
    // Entered before the pages are in place, so that a child forked at any moment finds them.
    let entry = table::enter(&backing.extent(offset, area.size()));
    if protection == WriteProtection::Required && entry.is_none() {
        return Err(io::ErrorKind::OutOfMemory.into());
    }
    let done = replace(pages, area, area.start, hold, protection);
    if done.is_err() {
        table::leave(backing.id, offset, area.size() as u64);
    }
    done
}

/// Restores private memory for the pages that migrated from `start` to `len` bytes at `offset` of `backing`, wherever
/// the program has mapped them since. After an error, the remaining pages are in their old place.
pub fn restore(start: usize, backing: &BackingFile<'_>, offset: u64, len: usize) -> io::Result<()> {
    let whole = backing.extent(offset, len);
    for area in find(start, &whole)? {
        let pages = Pages::private(area.size())?;
        let from = whole.address(&area);
        if from == area.start && area.protection & libc::PROT_READ == 0 {
            return Err(io::Error::from_raw_os_error(libc::EFAULT));
        }
        replace(pages, &area, from, Hold::new(), WriteProtection::Required)?;
    }
    table::leave(backing.id, offset, len as u64);
    Ok(())
}

/// True if the `len` bytes at `start` are mapped, completely and in order, from `offset` of `backing`, as left by
/// [`migrate`].
pub fn is_in_place(start: usize, backing: &BackingFile<'_>, offset: u64, len: usize) -> io::Result<bool> {
    let found = areas::within(start, start + len)?.unwrap_or_default();
    let mut at = start;
    for part in backing.extent(offset, len).mapped_in(&found) {
        if part.start != at || part.offset != offset + (at - start) as u64 {
            return Ok(false);
        }
        at = part.end;
    }
    Ok(at == start + len)
}

/// The areas where `whole` is mapped. It was once at `start`, and nearly always still is.
fn find(start: usize, whole: &Extent) -> io::Result<Vec<Area>> {
    let found = areas::within(start, start + whole.len as usize)?.unwrap_or_default();
    let parts: Vec<Area> = whole.mapped_in(&found).collect();
    if parts.iter().map(Area::size).sum::<usize>() as u64 == whole.len {
        return Ok(parts);
    }
    // The program has remapped it, or unmapped a part.
    Ok(whole.mapped_in(&areas::all()?).collect())
}

/// Copies the bytes at `from` to `pages`, and maps these at the addresses of `area`.
fn replace(
    pages: Pages,
    area: &Area,
    from: usize,
    hold: io::Result<Hold>,
    protection: WriteProtection,
) -> io::Result<()> {
    // From here on nothing is allocated, since the memory may belong to the allocator, and signal handlers are blocked,
    // since one that wrote to the memory would wait forever.
    let quiet = Quiet::new();
    let held = hold.and_then(|hold| hold.begin(area.start, area.size()));
    if protection == WriteProtection::Required && held.is_err() {
        return held.map(drop);
    }
    // SAFETY: memory of the program without other writers, and our own mapping of the same length.
    let done = unsafe {
        copy(from, pages.ptr().as_ptr(), area.size());
        put(pages, area)
    };
    drop((held, quiet));
    done
}

/// Fails with the reason if this process cannot make threads wait that write to migrating memory.
pub fn check_write_protection() -> io::Result<()> {
    let page = Pages::private(PAGE)?;
    // SAFETY: the page is our own.
    unsafe { page.ptr().as_ptr().write_volatile(1) };
    Hold::of_several()?.begin(page.ptr().as_ptr() as usize, PAGE).map(drop)
}

/// Records that the program no longer has any mapping of `len` bytes at `offset` of file `id`.
pub fn forget(id: (u64, u64), offset: u64, len: u64) {
    table::leave(id, offset, len);
}

/// Copies whole pages except those of zeros, which stay unallocated at the destination.
/// # Safety
/// `len` bytes at `from` are readable, and as many at `to` are zero and writable.
unsafe fn copy(from: usize, to: *mut u8, len: usize) {
    for offset in (0..len).step_by(PAGE) {
        // SAFETY: the caller's guarantee; a page is a number of words.
        unsafe {
            let page = (from as *const u8).add(offset);
            let words = std::slice::from_raw_parts(page.cast::<u64>(), PAGE / 8);
            if words.iter().any(|word| *word != 0) {
                std::ptr::copy_nonoverlapping(page, to.add(offset), PAGE);
            }
        }
    }
}

/// Moves the mapping `pages` to the addresses of `area`, replacing the mapping there, with the same protection.
/// # Safety
/// The pages have the contents and the length of `area`.
unsafe fn put(pages: Pages, area: &Area) -> io::Result<()> {
    let at = pages.ptr().as_ptr().cast::<libc::c_void>();
    let both = libc::PROT_READ | libc::PROT_WRITE;
    // SAFETY: our own mapping, which then replaces memory with the same contents.
    let done = unsafe {
        if area.protection != both && libc::mprotect(at, area.size(), area.protection) != 0 {
            return Err(io::Error::last_os_error());
        }
        let flags = libc::MREMAP_MAYMOVE | libc::MREMAP_FIXED;
        // Does not use the C library's function, which other libraries replace to be notified of unmapped memory. UCX's
        // version drops the address, allocates, and would invalidate the program's registration of this very memory.
        libc::syscall(libc::SYS_mremap, at, area.size(), area.size(), flags, area.start)
    };
    if done != area.start as libc::c_long {
        return Err(io::Error::last_os_error());
    }
    // The mapping has moved and belongs to the program.
    std::mem::forget(pages);
    Ok(())
}

/// The first address of this thread's stack and the one after its last. `None` for the main thread, since the kernel
/// marks its stack in the list of areas.
fn stack() -> Option<(usize, usize)> {
    // SAFETY: takes no arguments and returns a number.
    if unsafe { libc::syscall(libc::SYS_gettid) } == libc::c_long::from(std::process::id() as i32) {
        return None;
    }
    // SAFETY: the attributes are initialized by a successful call, and destroyed once.
    unsafe {
        let mut attributes = MaybeUninit::<libc::pthread_attr_t>::uninit();
        if libc::pthread_getattr_np(libc::pthread_self(), attributes.as_mut_ptr()) != 0 {
            return None;
        }
        let (mut low, mut len) = (std::ptr::null_mut(), 0);
        let got = libc::pthread_attr_getstack(attributes.as_ptr(), &mut low, &mut len);
        libc::pthread_attr_destroy(attributes.as_mut_ptr());
        (got == 0).then_some((low as usize, low as usize + len))
    }
}

/// True if `area` contains this thread's stack or thread-local variables. These cannot migrate: the migration itself
/// writes to them, and in a child of fork the C library does so before any handler runs.
pub fn holds_thread_state(area: &Area) -> bool {
    let local = 0u8;
    // SAFETY: both calls only return addresses.
    let (block, errno) = unsafe { (libc::pthread_self() as usize, libc::__errno_location() as usize) };
    let used = [&raw const local as usize, errno, block, block + PAGE - 1];
    let touches = |(low, high): (usize, usize)| area.start < high && low < area.end;
    area.special || stack().is_some_and(touches) || used.iter().any(|at| (area.start..area.end).contains(at))
}
