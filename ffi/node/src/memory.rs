//! Resolves bus addresses, and copies between the memories they refer to.
//!
//! Bits 63 to 48 of a bus address select a memory: 0xa7e0 is the arena, smaller numbers are parties. The other bits are an offset into the
//! arena or an address in the party's process. A function that is served to a guest uses all 64 bits for the guest's own addresses, which
//! only the serving party can resolve.
#![allow(unsafe_code)]

use super::{
    core::Core,
    maps::Found,
    scratch::{Scratch, Way},
    sys::{self, Piece},
};
use devmodel::{
    guarded,
    host::{Abort, Iova, Move, Rid, Source},
    serve::{store, transfer},
};
use std::io;
use std::sync::atomic::{AtomicU64, Ordering::*, fence};

/// Bits 63 to 48 of an arena address.
pub const ARENA_TAG: u64 = 0xa7e0;
const LOW: u64 = (1 << 48) - 1;
/// Maximum number of pieces per system call (IOV_MAX).
const PIECES: usize = 1024;
/// Maximum number of bytes per system call, well below the kernel's limit.
const BYTES: usize = 1 << 30;

/// The bus address of arena offset `offset`.
pub fn arena_iova(offset: u64) -> Iova {
    ARENA_TAG << 48 | offset
}

/// The arena offset that a bus address refers to.
pub fn arena_offset(iova: Iova) -> Option<u64> {
    (iova >> 48 == ARENA_TAG).then_some(iova & LOW)
}

/// The bus address of address `at` in this process. `None` if it has more than 47 bits.
pub fn own_iova(slot: u16, at: u64, len: usize) -> Option<Iova> {
    (at.checked_add(len as u64)? <= LOW).then_some(u64::from(slot) << 48 | at)
}

/// The memory that a bus address refers to.
#[derive(Clone, Copy)]
enum Place {
    /// Memory of the node or of this library, which is always mapped.
    Here(*mut u8),
    /// Memory of this program, which may have unmapped it.
    Own(*mut u8),
    There(u16, u64),
    Guest(u8, Iova),
}

/// A host's access to memory: the node, and state kept between calls.
pub struct Memory<'a> {
    pub core: &'a Core,
    pub scratch: &'a mut Scratch,
}

/// Stores `data` with its last word after all others, as required for a CQE, without a call to memcpy.
/// # Safety
/// `to` is writable for `data.len()` bytes.
#[inline(always)]
unsafe fn put(data: &[u8], to: *mut u8) {
    const LAST: usize = 56;
    // SAFETY: guaranteed by the caller; the check ensures that the last word is aligned.
    unsafe {
        match <&[u8; 64]>::try_from(data) {
            Ok(all) if to as usize % 8 == 0 => {
                let (first, last) = (&raw const *all, all.as_ptr().add(LAST).cast::<u64>().read_unaligned());
                to.cast::<[u8; LAST]>().write(first.cast::<[u8; LAST]>().read());
                AtomicU64::from_ptr(to.add(LAST).cast()).store(last, Release);
            }
            _ => store(data.as_ptr(), to, data.len()),
        }
    }
}

/// Copies `buf.len()` bytes, without a call to memcpy for the lengths of ring entries and doorbell records.
/// # Safety
/// `from` is readable for `buf.len()` bytes.
#[inline(always)]
unsafe fn fetch(from: *const u8, buf: &mut [u8]) {
    /// # Safety
    /// `N` bytes can be read and written.
    #[inline(always)]
    unsafe fn exactly<const N: usize>(from: *const u8, to: *mut u8) {
        // SAFETY: guaranteed by the caller.
        unsafe { to.cast::<[u8; N]>().write(from.cast::<[u8; N]>().read()) }
    }
    let to = buf.as_mut_ptr();
    // SAFETY: guaranteed by the caller; `buf` has that length.
    unsafe {
        match buf.len() {
            4 => exactly::<4>(from, to),
            16 => exactly::<16>(from, to),
            64 => exactly::<64>(from, to),
            len => std::ptr::copy_nonoverlapping(from, to, len),
        }
    }
}

/// Copies so that the last byte becomes visible last. Either side may be program memory that is no longer mapped.
/// # Safety
/// Both are ranges of [`Place::Here`], [`Place::Own`] or a guest's window.
unsafe fn carry(from: *const u8, to: *mut u8, len: usize) -> Result<(), Abort> {
    let (source, destination) = (from as usize..from as usize + len, to as usize..to as usize + len);
    let failed = |at| if destination.contains(&at) { Abort::Destination } else { Abort::Source };
    if source.contains(&destination.start) && source.start != destination.start {
        // The ranges overlap: a forward copy would read bytes that it has already overwritten.
        let mut whole = vec![0; len];
        // SAFETY: guaranteed by the caller.
        return unsafe {
            guarded::copy(from, whole.as_mut_ptr(), len).map_err(|_| Abort::Source)?;
            guarded::copy(whole.as_ptr(), to, len).map_err(|_| Abort::Destination)
        };
    }
    // SAFETY: guaranteed by the caller.
    unsafe { guarded::copy(from, to, len) }.map_err(failed)
}

impl Memory<'_> {
    #[inline(always)]
    fn place(&mut self, rid: Rid, at: Iova, len: usize) -> Option<Place> {
        let server = self.core.server(rid.0);
        if server == 0 && at >> 48 == ARENA_TAG {
            // The fast path: rings, doorbell records and completions.
            return self.core.map.arena(at & LOW, len).map(|p| Place::Here(p.as_ptr()));
        }
        self.place_outside(server, rid, at, len)
    }

    /// [`place`](Self::place) for an arena address of a function that is not served.
    #[inline(always)]
    fn in_arena(&self, rid: Rid, at: Iova, len: usize) -> Option<*mut u8> {
        let plain = at >> 48 == ARENA_TAG && self.core.server(rid.0) == 0;
        if !plain {
            return None;
        }
        self.core.map.arena(at & LOW, len).map(|p| p.as_ptr())
    }

    /// [`place`](Self::place) for any other address, of a function that `server` serves if that is not 0.
    #[inline(never)]
    fn place_outside(&mut self, server: u32, rid: Rid, at: Iova, len: usize) -> Option<Place> {
        if server != 0 {
            return (server == u32::from(self.core.me.slot)).then_some(Place::Guest(rid.0, at));
        }
        let (tag, low) = (at >> 48, at & LOW);
        let slot = u16::try_from(tag).ok().filter(|s| *s != 0)?;
        let end = low.checked_add(len as u64)?;
        if end > LOW || !self.core.has_open(slot, rid.0) {
            return None;
        }
        if slot != self.core.me.slot {
            return Some(Place::There(slot, low));
        }
        if self.core.maps.covers(low, end, &mut self.scratch.found) {
            return Some(Place::Own(low as usize as *mut u8));
        }
        self.paged(slot, low, end)
    }

    /// Resolves on-demand paged memory of this process. The kernel copies, as for another process: it faults pages in, and reports those
    /// that it cannot.
    #[cold]
    fn paged(&self, slot: u16, low: u64, end: u64) -> Option<Place> {
        let mapped = self.core.paged.covers(low, end, &mut Found::default());
        mapped.then_some(Place::There(slot, low))
    }

    /// Implements `Bus::read`.
    #[inline]
    pub fn read(&mut self, rid: Rid, at: Iova, buf: &mut [u8]) -> Result<(), Abort> {
        self.scratch.touched.note(rid.0);
        if let Some(from) = self.in_arena(rid, at, buf.len()) {
            // SAFETY: the arena has the range; other processes may change it, like device memory.
            unsafe { fetch(from, buf) };
            fence(Acquire);
            return Ok(());
        }
        self.read_elsewhere(rid, at, buf)
    }

    #[inline(never)]
    fn read_elsewhere(&mut self, rid: Rid, at: Iova, buf: &mut [u8]) -> Result<(), Abort> {
        match self.place(rid, at, buf.len()).ok_or(Abort::Source)? {
            // SAFETY: `place` checked the range; other processes may change it, like device memory.
            Place::Here(from) => unsafe { fetch(from, buf) },
            // SAFETY: as above, if it is mapped.
            Place::Own(from) => unsafe { carry(from, buf.as_mut_ptr(), buf.len())? },
            Place::There(slot, from) => {
                let local = [Piece { iov_base: buf.as_mut_ptr().cast(), iov_len: buf.len() }];
                let remote = [Piece { iov_base: from as *mut _, iov_len: buf.len() }];
                self.call(Way::From(slot), &local, &remote, buf.len())?;
            }
            Place::Guest(fid, from) => self.core.guest_place(fid).memory.read(from, buf)?,
        }
        fence(Acquire);
        Ok(())
    }

    /// Implements `Bus::write`.
    #[inline]
    pub fn write(&mut self, rid: Rid, at: Iova, data: &[u8]) -> Result<(), Abort> {
        self.scratch.touched.note(rid.0);
        if let Some(to) = self.in_arena(rid, at, data.len()) {
            // SAFETY: the arena has the range; `data` is local memory outside it.
            unsafe { put(data, to) };
            return Ok(());
        }
        self.write_elsewhere(rid, at, data)
    }

    #[inline(never)]
    fn write_elsewhere(&mut self, rid: Rid, at: Iova, data: &[u8]) -> Result<(), Abort> {
        match self.place(rid, at, data.len()).ok_or(Abort::Destination)? {
            // SAFETY: `place` checked the range; `data` is local memory outside it.
            Place::Here(to) => unsafe { store(data.as_ptr(), to, data.len()) },
            // SAFETY: as above, if it is mapped.
            Place::Own(to) => unsafe { carry(data.as_ptr(), to, data.len())? },
            Place::There(slot, to) => {
                // The kernel copies in no particular order, so the word with the owner bit is written by a separate call.
                let last = data.len() - data.len().min(8);
                for (offset, part) in [(0, &data[..last]), (last, &data[last..])] {
                    if !part.is_empty() {
                        let local =
                            [Piece { iov_base: part.as_ptr().cast_mut().cast(), iov_len: part.len() }];
                        let remote =
                            [Piece { iov_base: (to + offset as u64) as *mut _, iov_len: part.len() }];
                        self.call(Way::To(slot), &local, &remote, part.len())?;
                    }
                }
            }
            Place::Guest(fid, to) => self.core.guest_place(fid).memory.write(to, data)?,
        }
        Ok(())
    }

    /// Implements `Bus::copy`. Successive moves to or from one party are batched into one system call.
    #[inline]
    pub fn copy(&mut self, staged: &[u8], moves: &[Move]) -> Result<(), Abort> {
        let result = self.copy_all(staged, moves);
        self.scratch.local.clear();
        self.scratch.remote.clear();
        self.scratch.bytes = 0;
        self.scratch.way = None;
        result
    }

    fn copy_all(&mut self, staged: &[u8], moves: &[Move]) -> Result<(), Abort> {
        for one in moves {
            let len = one.len as usize;
            let from = match one.src {
                Source::Bus(rid, at) => {
                    self.scratch.touched.note(rid.0);
                    self.owner_lives(rid)?;
                    self.place(rid, at, len)
                }
                Source::Staged(at) => {
                    let bytes = staged.get(at as usize..).and_then(|b| b.get(..len));
                    bytes.map(|b| Place::Here(b.as_ptr().cast_mut()))
                }
            };
            let from = from.ok_or(Abort::Source)?;
            self.scratch.touched.note(one.dst_rid.0);
            self.owner_lives(one.dst_rid)?;
            let to = self.place(one.dst_rid, one.dst, len).ok_or(Abort::Destination)?;
            match (from, to) {
                (Place::Here(from), Place::Here(to)) => {
                    // Pending moves into this process's memory precede this one.
                    if matches!(self.scratch.way, Some(Way::From(_))) {
                        self.flush()?;
                    }
                    // SAFETY: `place` checked both ranges.
                    unsafe { store(from, to, len) };
                }
                (Place::Here(from) | Place::Own(from), Place::Here(to) | Place::Own(to)) => {
                    if matches!(self.scratch.way, Some(Way::From(_))) {
                        self.flush()?;
                    }
                    // SAFETY: `place` checked both ranges.
                    unsafe { carry(from, to, len)? };
                }
                (Place::Here(from) | Place::Own(from), Place::There(slot, to)) => {
                    self.gather(Way::To(slot), from, to, len)?;
                }
                (Place::There(slot, from), Place::Here(to) | Place::Own(to)) => {
                    self.gather(Way::From(slot), to, from, len)?;
                }
                (Place::There(a, from), Place::There(b, to)) => self.across((a, from), (b, to), len)?,
                (from, to) => self.copy_guest(from, to, len)?,
            }
        }
        self.flush()
    }

    /// Memory that a program lent remains until the cleanup after its death; other memory of a dead program is gone.
    #[inline]
    fn owner_lives(&mut self, rid: Rid) -> Result<(), Abort> {
        match self.core.died(rid.0) {
            None => Ok(()),
            Some(slot) => {
                self.scratch.suspect = slot;
                Err(Abort::Gone)
            }
        }
    }

    #[inline]
    fn gather(&mut self, way: Way, here: *mut u8, there: u64, len: usize) -> Result<(), Abort> {
        let s = &*self.scratch;
        if s.way != Some(way) || s.local.len() == PIECES || s.bytes + len > BYTES {
            self.flush()?;
        }
        let s = &mut *self.scratch;
        s.way = Some(way);
        s.bytes += len;
        // Merges adjacent pieces.
        if let (Some(local), Some(remote)) = (s.local.last_mut(), s.remote.last_mut()) {
            let joins = local.iov_base as usize + local.iov_len == here as usize
                && remote.iov_base as u64 + remote.iov_len as u64 == there;
            if joins {
                local.iov_len += len;
                remote.iov_len += len;
                return Ok(());
            }
        }
        s.local.push(Piece { iov_base: here.cast(), iov_len: len });
        s.remote.push(Piece { iov_base: there as *mut _, iov_len: len });
        Ok(())
    }

    fn flush(&mut self) -> Result<(), Abort> {
        let Some(way) = self.scratch.way.take() else { return Ok(()) };
        let (local, remote) =
            (std::mem::take(&mut self.scratch.local), std::mem::take(&mut self.scratch.remote));
        let result = self.call(way, &local, &remote, self.scratch.bytes);
        self.scratch.bytes = 0;
        (self.scratch.local, self.scratch.remote) = (local, remote);
        self.scratch.local.clear();
        self.scratch.remote.clear();
        result
    }

    /// Makes one system call for a batch. Copying fewer bytes than requested is an abort.
    fn call(&mut self, way: Way, local: &[Piece], remote: &[Piece], bytes: usize) -> Result<(), Abort> {
        let (slot, theirs, ours) = match way {
            Way::From(slot) => (slot, Abort::Source, Abort::Destination),
            Way::To(slot) => (slot, Abort::Destination, Abort::Source),
        };
        // A party that is not reachable here has just died: copies are only requested for reachable parties.
        let Some(pid) = self.core.copied(slot) else { return Err(Abort::Gone) };
        // SAFETY: `place` checked the local ranges, or they are the caller's buffer.
        let done = unsafe {
            match way {
                Way::From(_) => sys::read_process(pid, local, remote),
                Way::To(_) => sys::write_process(pid, local, remote),
            }
        };
        match done {
            Ok(n) if n == bytes => Ok(()),
            Ok(_) => Err(if is_there(local, ours == Abort::Destination) { theirs } else { ours }),
            Err(e) => {
                if e.raw_os_error() == Some(libc::ESRCH) {
                    self.scratch.suspect = slot;
                    return Err(Abort::Gone);
                }
                // The program has changed its credentials (setuid, capset). This copy counts as lost; when it is requested again, its owner
                // performs it.
                if e.raw_os_error() == Some(libc::EPERM) {
                    self.core.reaches_no_longer(slot);
                    return Err(Abort::Gone);
                }
                Err(if is_there(local, ours == Abort::Destination) { theirs } else { ours })
            }
        }
    }

    /// Copies from or to the memory of a guest that this process serves.
    fn copy_guest(&mut self, from: Place, to: Place, len: usize) -> Result<(), Abort> {
        self.flush()?;
        let core = self.core;
        let memory = |fid: u8| &core.guest_place(fid).memory;
        let mut done = 0;
        match (from, to) {
            (Place::Guest(a, from), Place::Guest(b, to)) => {
                transfer((memory(a), from), (memory(b), to), len as u64, b < a)
            }
            (Place::Guest(a, from), Place::Here(to) | Place::Own(to)) => {
                memory(a).lock().pieces(from, len as u64, false, |piece, n| {
                    // SAFETY: `place` checked the destination, `pieces` gives mapped memory.
                    unsafe { carry(piece, to.add(done), n)? };
                    done += n;
                    Ok(())
                })
            }
            (Place::Here(from) | Place::Own(from), Place::Guest(b, to)) => {
                memory(b).lock().pieces(to, len as u64, true, |piece, n| {
                    // SAFETY: `place` checked the source, `pieces` gives mapped memory.
                    unsafe { carry(from.add(done), piece, n)? };
                    done += n;
                    Ok(())
                })
            }
            (Place::Guest(a, from), Place::There(slot, to)) => {
                memory(a).lock().pieces(from, len as u64, false, |piece, n| {
                    self.one_call(Way::To(slot), piece, to + done as u64, n)?;
                    done += n;
                    Ok(())
                })
            }
            (Place::There(slot, from), Place::Guest(b, to)) => {
                memory(b).lock().pieces(to, len as u64, true, |piece, n| {
                    self.one_call(Way::From(slot), piece, from + done as u64, n)?;
                    done += n;
                    Ok(())
                })
            }
            _ => Err(Abort::Source),
        }
    }

    fn one_call(&mut self, way: Way, here: *mut u8, there: u64, len: usize) -> Result<(), Abort> {
        let local = [Piece { iov_base: here.cast(), iov_len: len }];
        let remote = [Piece { iov_base: there as *mut _, iov_len: len }];
        self.call(way, &local, &remote, len)
    }

    /// Copies from one other party to another, through a local buffer.
    #[cold]
    fn across(&mut self, from: (u16, u64), to: (u16, u64), len: usize) -> Result<(), Abort> {
        self.flush()?;
        let mut bounce = std::mem::take(&mut self.scratch.bounce);
        bounce.resize(len.max(bounce.len()), 0);
        let local = [Piece { iov_base: bounce.as_mut_ptr().cast(), iov_len: len }];
        let at = |at: u64| [Piece { iov_base: at as *mut _, iov_len: len }];
        let result = self
            .call(Way::From(from.0), &local, &at(from.1), len)
            .and_then(|()| self.call(Way::To(to.0), &local, &at(to.1), len));
        self.scratch.bounce = bounce;
        result
    }
}

/// True if memory of this process is mapped, for writing if `write`.
#[cold]
fn is_there(pieces: &[Piece], write: bool) -> bool {
    pieces.iter().all(|piece| {
        let (at, page) = (page_start(piece.iov_base.cast()), super::file::PAGE);
        let len = (piece.iov_len + piece.iov_base as usize % page).next_multiple_of(page);
        populates(at, len, write) != Some(false)
    })
}

/// Checks whether pages of this process can be faulted in, for writing if `write`. `None`: not known on kernels before 5.14.
fn populates(at: *mut u8, len: usize, write: bool) -> Option<bool> {
    // SAFETY: faulting pages in changes nothing.
    match unsafe { sys::populate(at, len, write) } {
        Ok(()) => Some(true),
        // Either the kernel does not support the call, or the pages are not writable. A try with a page that is writable tells them apart.
        Err(e) if e.raw_os_error() == Some(libc::EINVAL) => {
            let own = Box::new([0u8; 2 * super::file::PAGE]);
            let page = page_start(own.as_ptr().wrapping_add(super::file::PAGE));
            // SAFETY: a whole page within `own`, which is alive; faulting it in changes nothing.
            let knows = unsafe { sys::populate(page, super::file::PAGE, write) }.is_ok();
            knows.then_some(false)
        }
        Err(_) => Some(false),
    }
}

/// The address in this process that a bus address refers to.
pub fn own_address(slot: u16, iova: Iova) -> Option<u64> {
    (iova >> 48 == u64::from(slot)).then_some(iova & LOW)
}

/// Fails with EFAULT unless this process's memory from `base` on is mapped, and writable if `write`.
pub fn check_user_range(base: *mut u8, len: usize, write: bool) -> io::Result<()> {
    let pid = std::process::id();
    let readable = |at: usize| sys::peek(pid, at as u64).is_ok();
    let there = populates(base, len, write)
        .unwrap_or_else(|| (base as usize..base as usize + len).step_by(super::file::PAGE).all(readable));
    if there { Ok(()) } else { Err(io::Error::from_raw_os_error(libc::EFAULT)) }
}

fn page_start(at: *const u8) -> *mut u8 {
    at.wrapping_sub(at as usize % super::file::PAGE).cast_mut()
}
