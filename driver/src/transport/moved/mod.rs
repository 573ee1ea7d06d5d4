//! Memory of the program that is moved to a file, for a device that reaches only files, and back.
//!
//! The bytes go to the file, and the file's pages take their place at the same addresses. The program does not notice: who
//! writes there meanwhile waits ([`still`]), and a child of fork gets memory of its own ([`fork`]), as it would have.

pub mod areas;
mod fork;
mod still;

pub use areas::Area;

use crate::transport::mapped::Mapped;
use std::{
    io,
    mem::MaybeUninit,
    os::fd::BorrowedFd,
    sync::{Mutex, MutexGuard, PoisonError},
};
use still::Still;

const PAGE: usize = 4096;

/// A part of a file that memory of the program was moved to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Stretch {
    file: (u64, u64),
    offset: u64,
    len: u64,
    /// Addresses at which the file is mapped for other reasons.
    view: (usize, usize),
}

impl Stretch {
    /// The parts of `areas` that show it and are the program's.
    fn shown<'a>(&'a self, areas: &'a [Area]) -> impl Iterator<Item = Area> + 'a {
        let is_view = |area: &Area| area.start < self.view.1 && self.view.0 < area.end;
        areas.iter().filter(move |area| area.shared && area.file == self.file && !is_view(area)).filter_map(
            |area| {
                let first = area.offset.max(self.offset);
                let end = (area.offset + area.size() as u64).min(self.offset + self.len);
                let start = area.start + (first.saturating_sub(area.offset)) as usize;
                (first < end).then(|| Area {
                    start,
                    end: start + (end - first) as usize,
                    offset: first,
                    ..*area
                })
            },
        )
    }
}

/// All there are.
static MOVED: Mutex<Vec<Stretch>> = Mutex::new(Vec::new());

fn moved() -> MutexGuard<'static, Vec<Stretch>> {
    MOVED.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Whether other threads may write to memory that is being moved.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Care {
    /// It is moved only if who writes there can be made to wait.
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
    /// First address, and behind the last, at which it is mapped for other reasons.
    pub view: (usize, usize),
}

/// Moves the memory of `area` to `offset` of `room`, where nothing but zeros is. An error leaves it where it was.
/// # Safety
/// The memory is the program's, private and readable. With [`Care::Try`], nothing else writes to it just now.
pub unsafe fn out(area: &Area, room: &Room<'_>, offset: u64, care: Care) -> io::Result<()> {
    let mut moved = moved();
    moved.try_reserve(1).map_err(|_| io::ErrorKind::OutOfMemory)?;
    fork::watch();
    let place = Mapped::file(room.file, offset, area.size())?;
    let quiet = Quiet::new();
    let still = Still::hold(area.start, area.size());
    if care == Care::Must && still.is_err() {
        return still.map(|_| ());
    }
    // SAFETY: the caller's memory, which nobody writes to, and our own mapping as long.
    unsafe {
        copy(area.start, place.ptr().as_ptr(), area.size());
        put(place, area)?;
    }
    drop((still, quiet));
    moved.push(Stretch { file: room.id, offset, len: area.size() as u64, view: room.view });
    Ok(())
}

/// Gives what was moved from `start` to `len` bytes at `offset` of `room` memory of its own again, wherever it is by now. An error leaves
/// (the rest of) it where it is.
pub fn back(start: usize, room: &Room<'_>, offset: u64, len: usize) -> io::Result<()> {
    let mut moved = moved();
    let whole = Stretch { file: room.id, offset, len: len as u64, view: room.view };
    let found = areas::within(start, start + len)?.unwrap_or_default();
    let mut parts: Vec<Area> = whole.shown(&found).collect();
    if parts.iter().map(Area::size).sum::<usize>() != len {
        // The program moved it, or gave some of it up.
        parts = whole.shown(&areas::all()?).collect();
    }
    for area in parts {
        let place = Mapped::private(area.size())?;
        let quiet = Quiet::new();
        let still = Still::hold(area.start, area.size())?;
        // SAFETY: the memory that was moved, which nobody writes to, and our own mapping as long.
        unsafe {
            copy(area.start, place.ptr().as_ptr(), area.size());
            put(place, &area)?;
        }
        drop((still, quiet));
    }
    moved.retain(|one| one.file != room.id || one.offset < offset || one.offset >= offset + len as u64);
    Ok(())
}

/// Whether memory can be held still here while it is moved; else why not.
pub fn can_hold_still() -> io::Result<()> {
    let page = Mapped::private(PAGE)?;
    // SAFETY: our own page.
    unsafe { page.ptr().as_ptr().write_volatile(1) };
    Still::hold(page.ptr().as_ptr() as usize, PAGE).map(drop)
}

/// Takes note that nothing of the program lies at `len` bytes from `offset` of file `id` any more.
pub fn forget(id: (u64, u64), offset: u64, len: u64) {
    moved().retain(|one| one.file != id || one.offset < offset || one.offset >= offset + len);
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
        libc::mremap(at, area.size(), area.size(), flags, area.start as *mut libc::c_void)
    };
    if done == libc::MAP_FAILED {
        return Err(io::Error::last_os_error());
    }
    // It is elsewhere now, and the program's.
    std::mem::forget(place);
    Ok(())
}

/// As long as it lives no signal handler runs in this thread: one that wrote to memory held still would wait for ever.
struct Quiet(libc::sigset_t);

impl Quiet {
    fn new() -> Self {
        let (mut all, mut old) =
            (MaybeUninit::<libc::sigset_t>::uninit(), MaybeUninit::<libc::sigset_t>::uninit());
        // SAFETY: both sets are written before they are read.
        unsafe {
            libc::sigfillset(all.as_mut_ptr());
            libc::pthread_sigmask(libc::SIG_SETMASK, all.as_ptr(), old.as_mut_ptr());
            Self(old.assume_init())
        }
    }
}

impl Drop for Quiet {
    fn drop(&mut self) {
        // SAFETY: the mask as it was.
        unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, &raw const self.0, std::ptr::null_mut()) };
    }
}

/// First address of the stack of this thread, and behind its last. `None` for the main thread, whose stack the kernel names.
pub fn stack() -> Option<(usize, usize)> {
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

/// Whether `area` is memory of the program's own that can be moved: private, and no stack of ours or the main thread's. A thread
/// that forks on a stack in a file would meet its child there.
pub fn can_be_moved(area: &Area) -> bool {
    // Where the thread's control block lies the C library writes in a child before anybody is asked.
    // SAFETY: a number.
    let block = unsafe { libc::pthread_self() } as usize;
    let touches = |(low, high): (usize, usize)| area.start < high && low < area.end;
    area.is_private() && !stack().is_some_and(touches) && !touches((block, block + PAGE))
}
