//! A client's memory by bus address: windows that the client opens and closes.
//!
//! Lookups and copies hold a lock that closing a window takes exclusively: once a window is closed, no access to it is in
//! progress or can start. Each file is mapped once, even if several windows show parts of it.
#![allow(unsafe_code)]

use super::ram::{Ram, errno};
use crate::host::{Abort, Iova};
use std::{
    collections::BTreeMap,
    fs::File,
    io,
    os::{fd::OwnedFd, unix::fs::MetadataExt},
    sync::{
        Arc, OnceLock, PoisonError, RwLock, RwLockReadGuard,
        atomic::{AtomicU8, AtomicU16, AtomicU32, AtomicU64, Ordering::*, fence},
    },
};
use vfio_user_proto::{DMA_READ_ALLOWED, DMA_WRITE_ALLOWED, MAX_DMA_MAPS};

/// Maximum number of files that a client may show at a time.
const FILES: usize = 64;

#[derive(Clone)]
struct Window {
    len: u64,
    /// Flags `DMA_READ_ALLOWED` and `DMA_WRITE_ALLOWED`.
    flags: u32,
    /// Mapping and offset of its bytes. `None`: the client gave no descriptor, and accesses abort.
    ram: Option<(Arc<Ram>, u64)>,
}

impl Window {
    /// The part of the window that starts at `skip`, `len` bytes long.
    fn part(&self, skip: u64, len: u64) -> Self {
        let ram = self.ram.as_ref().map(|(ram, at)| (ram.clone(), at + skip));
        Self { len, flags: self.flags, ram }
    }
}

#[derive(Default)]
struct Windows {
    /// Keyed by first address; windows do not overlap.
    all: BTreeMap<u64, Window>,
    files: Vec<Arc<Ram>>,
}

/// Called with the bytes about to be written and their address.
type Watch = Box<dyn Fn(&GuestMemory, Iova, &[u8]) + Send + Sync>;

/// A client's memory.
#[derive(Default)]
pub struct GuestMemory {
    windows: RwLock<Windows>,
    watch: OnceLock<Watch>,
}

/// A client's memory, locked: no window closes while this lives. A caller that needs two locks that of the lower function first.
pub struct Reader<'a>(RwLockReadGuard<'a, Windows>);

impl GuestMemory {
    /// Opens a window of `len` bytes at `at`. It shows the file of the descriptor from `offset` on; without a descriptor, accesses abort.
    pub fn map(&self, at: u64, len: u64, flags: u32, fd: Option<(OwnedFd, u64)>) -> io::Result<()> {
        let last = len.checked_sub(1).and_then(|n| at.checked_add(n)).ok_or_else(|| errno(libc::EINVAL))?;
        let mut w = self.windows.write().unwrap_or_else(PoisonError::into_inner);
        let before = w.all.range(..=last).next_back();
        if before.is_some_and(|(start, window)| start + (window.len - 1) >= at) {
            return Err(errno(libc::EEXIST));
        }
        if w.all.len() >= MAX_DMA_MAPS {
            return Err(errno(libc::ENOSPC));
        }
        let ram = match fd {
            None => None,
            Some((fd, offset)) => {
                let end = offset.checked_add(len).ok_or_else(|| errno(libc::EINVAL))?;
                Some((w.ram(File::from(fd), end)?, offset))
            }
        };
        if let Some((ram, _)) = &ram {
            if flags & DMA_WRITE_ALLOWED != 0 && !ram.writable {
                return Err(errno(libc::EACCES));
            }
        }
        w.all.insert(at, Window { len, flags, ram });
        Ok(())
    }

    /// Closes all windows within `at..at + len`, and the parts of others in that range. No access is in progress after this
    /// returns. It is no error if nothing is open there.
    pub fn unmap(&self, at: u64, len: u64) -> io::Result<()> {
        let last = len.checked_sub(1).and_then(|n| at.checked_add(n)).ok_or_else(|| errno(libc::EINVAL))?;
        let mut w = self.windows.write().unwrap_or_else(PoisonError::into_inner);
        let first = w.all.range(..at).next_back().map_or(at, |(start, _)| *start);
        let touched: Vec<u64> = w
            .all
            .range(first..=last)
            .filter(|(start, window)| **start + (window.len - 1) >= at)
            .map(|(start, _)| *start)
            .collect();
        // A hole in the middle of a window splits it in two.
        let holed = touched.first().and_then(|start| Some((start, w.all.get(start)?)));
        if holed.is_some_and(|(start, window)| *start < at && start + (window.len - 1) > last)
            && w.all.len() >= MAX_DMA_MAPS
        {
            return Err(errno(libc::ENOSPC));
        }
        for start in touched {
            let Some(window) = w.all.remove(&start) else { continue };
            let end = start + (window.len - 1);
            if start < at {
                w.all.insert(start, window.part(0, at - start));
            }
            if end > last {
                w.all.insert(last + 1, window.part(last + 1 - start, end - last));
            }
        }
        w.files.retain(|ram| Arc::strong_count(ram) > 1);
        Ok(())
    }

    /// Closes all windows.
    pub fn unmap_all(&self) {
        *self.windows.write().unwrap_or_else(PoisonError::into_inner) = Windows::default();
    }

    /// Number of open windows.
    pub fn windows(&self) -> usize {
        self.windows.read().unwrap_or_else(PoisonError::into_inner).all.len()
    }

    /// Keeps all windows open while the result lives.
    #[inline]
    pub fn lock(&self) -> Reader<'_> {
        Reader(self.windows.read().unwrap_or_else(PoisonError::into_inner))
    }

    /// Reads `buf.len()` bytes at `at`.
    #[inline]
    pub fn read(&self, at: Iova, buf: &mut [u8]) -> Result<(), Abort> {
        let mut to = buf.as_mut_ptr();
        self.lock().pieces(at, buf.len() as u64, false, |from, len| {
            // SAFETY: `pieces` returns mapped memory, in total as many bytes as `buf` has.
            unsafe {
                std::ptr::copy_nonoverlapping(from, to, len);
                to = to.add(len);
            }
            Ok(())
        })?;
        fence(Acquire);
        Ok(())
    }

    /// Calls `watch` before each [`write`](Self::write) from now on, on the writing thread. Only the first `watch` is kept.
    pub fn watch(&self, watch: impl Fn(&Self, Iova, &[u8]) + Send + Sync + 'static) {
        // A second one would mean a second recording of a function, which cannot be requested.
        drop(self.watch.set(Box::new(watch)));
    }

    /// Writes `data` at `at`; the last byte becomes visible last.
    #[inline]
    pub fn write(&self, at: Iova, data: &[u8]) -> Result<(), Abort> {
        if let Some(watch) = self.watch.get() {
            watch(self, at, data);
        }
        let mut from = data.as_ptr();
        self.lock().pieces(at, data.len() as u64, true, |to, len| {
            // SAFETY: `pieces` returns mapped memory, in total as many bytes as `data` has.
            unsafe {
                store(from, to, len);
                from = from.add(len);
            }
            Ok(())
        })
    }
}

impl Windows {
    /// The mapping of `file`, of which the client shows the bytes up to `end`.
    fn ram(&mut self, file: File, end: u64) -> io::Result<Arc<Ram>> {
        let meta = file.metadata()?;
        if end > meta.len() {
            return Err(errno(libc::EINVAL));
        }
        let id = (meta.dev(), meta.ino());
        // A file that was mapped read-only may arrive again with a writable descriptor, or may have grown.
        let known = self.files.iter().find(|ram| ram.file == id && end <= ram.len() && ram.writable);
        if let Some(ram) = known.filter(|ram| !ram.is_torn()) {
            return Ok(ram.clone());
        }
        if self.files.len() >= FILES {
            return Err(errno(libc::ENOSPC));
        }
        let ram = Arc::new(Ram::new(file)?);
        if end > ram.len() {
            return Err(errno(libc::EINVAL));
        }
        self.files.push(ram.clone());
        Ok(ram)
    }
}

impl Reader<'_> {
    /// Calls `f` with the pieces of our address space that make up `len` bytes at `at`, in order: each a pointer and a length,
    /// valid while this reader lives. Aborts with a source error, or a destination error if `write` is set. Nothing was
    /// transferred if the first piece is refused.
    #[inline]
    pub fn pieces(
        &self,
        at: Iova,
        len: u64,
        write: bool,
        mut f: impl FnMut(*mut u8, usize) -> Result<(), Abort>,
    ) -> Result<(), Abort> {
        let (abort, need) = match write {
            true => (Abort::Destination, DMA_WRITE_ALLOWED),
            false => (Abort::Source, DMA_READ_ALLOWED),
        };
        let (mut at, mut left) = (at, len);
        while left > 0 {
            let (start, window) = self.0.all.range(..=at).next_back().ok_or(abort)?;
            let skip = at - start;
            if skip >= window.len || window.flags & need == 0 {
                return Err(abort);
            }
            let Some((ram, offset)) = &window.ram else { return Err(abort) };
            let here = left.min(window.len - skip);
            // SAFETY: the window is within the mapping, which was checked when it was opened.
            let pointer = unsafe { ram.base().add((offset + skip) as usize) };
            f(pointer, here as usize)?;
            if ram.is_torn() {
                return Err(abort);
            }
            left -= here;
            if left > 0 {
                at = at.checked_add(here).ok_or(abort)?;
            }
        }
        Ok(())
    }
}

/// Copies `len` bytes from one client's memory to another's, or within one. If `swapped`, `to` is locked first. All callers
/// that copy between the same two memories must lock them in the same order.
pub fn transfer(
    from: (&GuestMemory, Iova),
    to: (&GuestMemory, Iova),
    len: u64,
    swapped: bool,
) -> Result<(), Abort> {
    let within = std::ptr::eq(from.0, to.0);
    let early = (swapped && !within).then(|| to.0.lock());
    let source = from.0.lock();
    let late = (!swapped && !within).then(|| to.0.lock());
    let destination = early.as_ref().or(late.as_ref()).unwrap_or(&source);
    let mut at = to.1;
    source.pieces(from.1, len, false, |piece, n| {
        let mut piece: *const u8 = piece;
        destination.pieces(at, n as u64, true, |to, m| {
            // SAFETY: both are mapped while their readers live.
            unsafe {
                store(piece, to, m);
                piece = piece.add(m);
            }
            Ok(())
        })?;
        at = at.wrapping_add(n as u64);
        Ok(())
    })
}

/// Copies such that the last byte becomes visible last; aligned words are stored in one access.
/// # Safety
/// `len` bytes must be readable at `from` and writable at `to`. They may overlap.
#[inline]
pub unsafe fn store(from: *const u8, to: *mut u8, len: usize) {
    // SAFETY: guaranteed by the caller; alignment is checked for each size.
    unsafe {
        match len {
            0 => {}
            1 => AtomicU8::from_ptr(to).store(from.read(), Release),
            2 if to as usize % 2 == 0 => {
                AtomicU16::from_ptr(to.cast()).store(from.cast::<u16>().read_unaligned(), Release)
            }
            4 if to as usize % 4 == 0 => {
                AtomicU32::from_ptr(to.cast()).store(from.cast::<u32>().read_unaligned(), Release)
            }
            8 if to as usize % 8 == 0 => {
                AtomicU64::from_ptr(to.cast()).store(from.cast::<u64>().read_unaligned(), Release)
            }
            _ => {
                let last = from.add(len - 1).read();
                std::ptr::copy(from, to, len - 1);
                AtomicU8::from_ptr(to.add(len - 1)).store(last, Release);
            }
        }
    }
}
