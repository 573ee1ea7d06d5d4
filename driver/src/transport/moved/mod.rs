//! Memory of the program that is moved to a file, for a device that reaches only files, and back.
//!
//! The bytes go to the file, and the file's pages take their place at the same addresses. The program does not notice: who
//! writes there meanwhile waits ([`still`]), and a child of fork gets memory of its own ([`fork`]), as it would have.

pub mod areas;
mod fork;
mod pins;
mod still;
mod table;

pub use areas::Area;
pub use pins::others_pin_memory;

use crate::transport::{Quiet, mapped::Mapped};
use std::{io, mem::MaybeUninit, os::fd::BorrowedFd};
use still::Holder;
use table::Stretch;

const PAGE: usize = 4096;

/// What to do where other threads may write to memory that is being moved, and cannot be made to wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Care {
    /// It stays.
    Must,
    /// It is moved anyway.
    Try,
}

/// A file memory is moved to.
pub struct Room<'a> {
    /// The file.
    pub file: BorrowedFd<'a>,
    /// Device number of its file system and its inode.
    pub id: (u64, u64),
    /// Where the whole file is mapped, if it is: memory that was moved is read there, whatever the program forbade for its own
    /// addresses.
    pub view: Option<usize>,
}

impl Room<'_> {
    fn stretch(&self, offset: u64, len: usize) -> Stretch {
        let view = self.view.map_or(0, |base| base + offset as usize);
        Stretch { file: self.id, offset, len: len as u64, view }
    }
}

/// Moves the memory of `area` to `offset` of `room`, where nothing but zeros is. An error leaves it where it was.
/// # Safety
/// The memory is the program's, private and readable. With [`Care::Try`], nothing else writes to it just now.
pub unsafe fn out(area: &Area, room: &Room<'_>, offset: u64, care: Care) -> io::Result<()> {
    fork::watch();
    let place = Mapped::file(room.file, offset, area.size())?;
    let holder = Holder::new();
    // Before it is there: a child that is made meanwhile finds it in any case.
    let entry = table::enter(&room.stretch(offset, area.size()));
    if care == Care::Must && entry.is_none() {
        return Err(io::ErrorKind::OutOfMemory.into());
    }
    let done = move_to(place, area, area.start, holder, care);
    if done.is_err() {
        table::leave(room.id, offset, area.size() as u64);
    }
    done
}

/// Gives what was moved from `start` to `len` bytes at `offset` of `room` memory of its own again, wherever it is by now. An error leaves
/// (the rest of) it where it is.
pub fn back(start: usize, room: &Room<'_>, offset: u64, len: usize) -> io::Result<()> {
    let whole = room.stretch(offset, len);
    for area in parts(start, &whole)? {
        let place = Mapped::private(area.size())?;
        let from = whole.address(&area);
        if from == area.start && area.protection & libc::PROT_READ == 0 {
            return Err(io::Error::from_raw_os_error(libc::EFAULT));
        }
        move_to(place, &area, from, Holder::new(), Care::Must)?;
    }
    table::leave(room.id, offset, len as u64);
    Ok(())
}

/// Whether what lies at `start` is still all of what was moved from there to `len` bytes at `offset` of `room`, in its place.
pub fn is_there(start: usize, room: &Room<'_>, offset: u64, len: usize) -> io::Result<bool> {
    let found = areas::within(start, start + len)?.unwrap_or_default();
    let mut at = start;
    for part in room.stretch(offset, len).shown(&found) {
        if part.start != at || part.offset != offset + (at - start) as u64 {
            return Ok(false);
        }
        at = part.end;
    }
    Ok(at == start + len)
}

/// Where `whole` is, which was at `start` once.
fn parts(start: usize, whole: &Stretch) -> io::Result<Vec<Area>> {
    let found = areas::within(start, start + whole.len as usize)?.unwrap_or_default();
    let parts: Vec<Area> = whole.shown(&found).collect();
    if parts.iter().map(Area::size).sum::<usize>() as u64 == whole.len {
        return Ok(parts);
    }
    // The program moved it, or gave some of it up.
    Ok(whole.shown(&areas::all()?).collect())
}

/// Puts `place` where `area` is, with the bytes that are at `from`.
fn move_to(
    place: Mapped,
    area: &Area,
    from: usize,
    holder: io::Result<Holder>,
    care: Care,
) -> io::Result<()> {
    // From here on nothing is allocated: the memory may be the allocator's.
    // A signal handler that wrote to it would wait for ever.
    let quiet = Quiet::new();
    let still = holder.and_then(|holder| holder.hold(area.start, area.size()));
    if care == Care::Must && still.is_err() {
        return still.map(drop);
    }
    // SAFETY: memory of the program's that nobody writes to, and our own mapping as long.
    let done = unsafe {
        copy(from, place.ptr().as_ptr(), area.size());
        put(place, area)
    };
    drop((still, quiet));
    done
}

/// Whether memory can be held still here while it is moved; else why not.
pub fn can_hold_still() -> io::Result<()> {
    let page = Mapped::private(PAGE)?;
    // SAFETY: our own page.
    unsafe { page.ptr().as_ptr().write_volatile(1) };
    Holder::new()?.hold(page.ptr().as_ptr() as usize, PAGE).map(drop)
}

/// Takes note that nothing of the program lies at `len` bytes from `offset` of file `id` any more.
pub fn forget(id: (u64, u64), offset: u64, len: u64) {
    table::leave(id, offset, len);
}

/// Copies whole pages; those of zeros stay as they are.
/// # Safety
/// `len` readable bytes at `from`, as many at `to`, where zeros are.
unsafe fn copy(from: usize, to: *mut u8, len: usize) {
    for offset in (0..len).step_by(PAGE) {
        // SAFETY: the caller's promise; a page is of words.
        unsafe {
            let page = (from as *const u8).add(offset);
            let words = std::slice::from_raw_parts(page.cast::<u64>(), PAGE / 8);
            if words.iter().any(|word| *word != 0) {
                std::ptr::copy_nonoverlapping(page, to.add(offset), PAGE);
            }
        }
    }
}

/// Puts `place` where `area` is, with the same rights.
/// # Safety
/// It holds the same bytes, and is as long.
unsafe fn put(place: Mapped, area: &Area) -> io::Result<()> {
    let at = place.ptr().as_ptr().cast::<libc::c_void>();
    let both = libc::PROT_READ | libc::PROT_WRITE;
    // SAFETY: our own mapping; then it replaces memory by what holds the same bytes.
    let done = unsafe {
        if area.protection != both && libc::mprotect(at, area.size(), area.protection) != 0 {
            return Err(io::Error::last_os_error());
        }
        let flags = libc::MREMAP_MAYMOVE | libc::MREMAP_FIXED;
        // Not by the C library, whose function others put theirs in the place of to hear of mappings that go: UCX's loses the
        // address, allocates, and would take the program's registration of this very memory for void.
        libc::syscall(libc::SYS_mremap, at, area.size(), area.size(), flags, area.start)
    };
    if done != area.start as libc::c_long {
        return Err(io::Error::last_os_error());
    }
    // It is elsewhere now, and the program's.
    std::mem::forget(place);
    Ok(())
}

/// First address of the stack of this thread, and behind its last. `None` for the main thread, whose stack the kernel names.
fn stack() -> Option<(usize, usize)> {
    // SAFETY: numbers.
    if unsafe { libc::syscall(libc::SYS_gettid) } == libc::c_long::from(std::process::id() as i32) {
        return None;
    }
    // SAFETY: the attributes are written by a call that succeeds, and destroyed once.
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

/// Whether `area` has a stack that is in use here or a thread's own variables: this call itself writes to them while they
/// move, and the C library in a child of fork before anybody is asked.
pub fn is_in_use(area: &Area) -> bool {
    let local = 0u8;
    // SAFETY: two addresses.
    let (block, errno) = unsafe { (libc::pthread_self() as usize, libc::__errno_location() as usize) };
    let used = [&raw const local as usize, errno, block, block + PAGE - 1];
    let touches = |(low, high): (usize, usize)| area.start < high && low < area.end;
    area.special || stack().is_some_and(touches) || used.iter().any(|at| (area.start..area.end).contains(at))
}
