//! Program memory that is lent to the node: the contents of a registration of whole pages move to the arena, and the arena's pages replace
//! them at the same addresses. Every runner then accesses the memory by loads and stores, without a system call.
//!
//! The memory returns when the last registration that touches it ends. Pages that others may be writing to by their virtual addresses are
//! not moved: those touched by registrations that are not lent.
#![allow(unsafe_code)]

use super::{
    arena::{Arena, Owner},
    core::Core,
    file::{PAGE, place_in_file},
    lent::{Range, Ranges},
    maps::Maps,
    memory,
};
use devmodel::missing::{Replace, Watched};
use driver::transport::{Access, Iova};
use migration::{Area, BackingFile, WriteProtection, areas};
use std::{
    io,
    sync::atomic::Ordering::{AcqRel, Relaxed},
};

/// Longest registration that is lent. For longer ones, moving the pages takes longer than it saves.
const LONGEST: u64 = 16 << 20;
/// Maximum number of bytes and ranges that one program lends.
const ALL: u64 = 256 << 20;
const RANGES: usize = 256;
/// Maximum number of times that a program lends. Each time may split its memory into two more mappings, of which the kernel allows 65,530
/// (`vm.max_map_count`).
const TIMES: u32 = 8192;
/// Errors that mean that memory can never be moved: no permission for userfaultfd, no such system call, or no such feature.
const NEVER: [i32; 3] = [libc::EPERM, libc::ENOSYS, libc::EINVAL];

/// Ranges of this process's memory that others access by its virtual addresses, on any node.
static BY_ADDRESS: Maps = Maps::new();

impl Core {
    /// Registers `len` bytes at `base`, whole pages, for the device, and returns their device address. Fails with EFAULT if they are not
    /// mapped or not writable, and ENOMEM if that exceeds the program's limit of locked memory.
    /// # Safety
    /// As for `Transport::dma_map`.
    pub unsafe fn register(&self, base: *mut u8, len: usize, access: Access) -> io::Result<Iova> {
        self.pinned.add(len as u64)?;
        // SAFETY: guaranteed by the caller.
        unsafe { self.map_user(base, len, access) }.inspect_err(|_| self.pinned.remove(len as u64))
    }

    /// # Safety
    /// As for `Transport::dma_map`.
    unsafe fn map_user(&self, base: *mut u8, len: usize, access: Access) -> io::Result<Iova> {
        let start = base as u64;
        let own = memory::own_iova(self.me.slot, start, len);
        let own = own.ok_or_else(|| io::Error::from_raw_os_error(libc::EFAULT))?;
        let end = start + len as u64;
        memory::check_user_range(base, len, access.write)?;
        let mut ranges = self.lent.ranges();
        if let Some(range) = ranges.list.iter_mut().find(|r| r.start <= start && end <= r.end) {
            let offset = range.offset() + (start - range.start);
            // The program may have mapped other memory there meanwhile.
            if migration::is_in_place(start as usize, &self.room(offset, len)?, place_in_file(offset), len)? {
                range.users += 1;
                return Ok(memory::arena_iova(offset));
            }
        }
        if access.exact && self.may_lend(&mut ranges, start, end) {
            // SAFETY: guaranteed by the caller.
            match unsafe { self.lend(start, end) } {
                Ok(Some(page)) => {
                    ranges.times += 1;
                    ranges.credit.take(end - start);
                    let (mark, len) = (self.map.lost().clone(), (end - start) as usize);
                    // SAFETY: pages of the file, mapped at these addresses until the range is removed from the list. Once the program has
                    // lost the node, which it is told, it finds zeros there instead of its data.
                    let watched = unsafe { Watched::new(start as *mut u8, len, Replace::Page, mark) };
                    ranges.list.push(Range { start, end, page, users: 1, _watched: watched });
                    return Ok(memory::arena_iova(u64::from(page) * PAGE as u64));
                }
                Ok(None) => {}
                Err(error) => {
                    tracing::debug!(%error, "memory stays where it is");
                    ranges.over = NEVER.iter().any(|code| error.raw_os_error() == Some(*code));
                }
            }
        }
        ranges.touching(start, end).for_each(|range| range.users += 1);
        self.tell_by_address(1);
        BY_ADDRESS.add(start, end);
        self.maps.add(start, end);
        Ok(own)
    }

    /// Ends the registration that one [`register`](Self::register) created.
    pub fn unregister(&self, iova: Iova, len: usize) -> io::Result<()> {
        let mut ranges = self.lent.ranges();
        let (start, end) = match memory::arena_offset(iova) {
            Some(offset) => {
                let of = |r: &&Range| (r.offset()..r.offset() + r.len()).contains(&offset);
                let range = ranges.list.iter().find(of);
                let range = range.ok_or_else(|| io::Error::from_raw_os_error(libc::EINVAL))?;
                let start = range.start + (offset - range.offset());
                (start, start + len as u64)
            }
            None => {
                let at = memory::own_address(self.me.slot, iova);
                let at = at.ok_or_else(|| io::Error::from_raw_os_error(libc::EINVAL))?;
                self.maps.remove(at, at + len as u64);
                BY_ADDRESS.remove(at, at + len as u64);
                self.tell_by_address(-1);
                (at, at + len as u64)
            }
        };
        self.let_go(&mut ranges, start, end);
        self.pinned.remove(len as u64);
        Ok(())
    }

    /// Like [`register`](Self::register), for memory with pages that may come and go.
    pub fn register_paged(&self, base: *mut u8, len: usize) -> io::Result<Iova> {
        let at = base as u64;
        let iova = memory::own_iova(self.me.slot, at, len);
        let iova = iova.ok_or_else(|| io::Error::from_raw_os_error(libc::EFAULT))?;
        self.lent.ranges().touching(at, at + len as u64).for_each(|range| range.users += 1);
        self.tell_by_address(1);
        BY_ADDRESS.add(at, at + len as u64);
        self.paged.add(at, at + len as u64);
        Ok(iova)
    }

    /// Ends the registration that one [`register_paged`](Self::register_paged) created.
    pub fn unregister_paged(&self, iova: Iova, len: usize) -> io::Result<()> {
        let at = memory::own_address(self.me.slot, iova);
        let at = at.ok_or_else(|| io::Error::from_raw_os_error(libc::EINVAL))?;
        let mut ranges = self.lent.ranges();
        self.paged.remove(at, at + len as u64);
        BY_ADDRESS.remove(at, at + len as u64);
        self.tell_by_address(-1);
        self.let_go(&mut ranges, at, at + len as u64);
        Ok(())
    }

    /// Adds `more` to the number of ranges used by their virtual addresses. Called before the device has a key to the first, and after the
    /// last key is gone.
    fn tell_by_address(&self, more: i32) {
        self.map.party(self.me.slot).by_address.fetch_add(more as u32, AcqRel);
    }

    /// Moves all lent memory back before this process leaves the node. Returns false if some of it cannot be moved now.
    pub fn take_all_back(&self) -> bool {
        let mut ranges = self.lent.ranges();
        ranges.list.iter_mut().for_each(|range| range.users = 0);
        self.take_back_unused(&mut ranges);
        ranges.list.is_empty()
    }

    fn let_go(&self, ranges: &mut Ranges, start: u64, end: u64) {
        ranges.touching(start, end).for_each(|range| range.users = range.users.saturating_sub(1));
        self.take_back_unused(ranges);
    }

    /// Moves unused ranges back. Ranges that cannot be moved now, because other threads may write to them, stay lent; the next registration
    /// may reuse them.
    fn take_back_unused(&self, ranges: &mut Ranges) {
        ranges.list.retain(|range| {
            range.users != 0
                || self.fetch(range).is_err_and(|error| {
                    tracing::debug!(%error, "memory stays lent");
                    true
                })
        });
    }

    fn fetch(&self, range: &Range) -> io::Result<()> {
        let (offset, len) = (range.offset(), range.len() as usize);
        if migration::others_pin_memory()? {
            return Err(io::Error::other("something else may have the kernel write to it"));
        }
        migration::restore(range.start as usize, &self.room(offset, len)?, place_in_file(offset), len)?;
        self.free(range.page);
        Ok(())
    }

    fn free(&self, page: u32) {
        if let Ok(lock) = self.locks.lock() {
            Arena::new(&self.map, &lock).free(page);
        }
    }

    /// The part of the node's file for memory that is lent to `len` bytes of the arena at `offset`; other processes' requests access it
    /// where this one has mapped it.
    fn room(&self, offset: u64, len: usize) -> io::Result<BackingFile<'_>> {
        let view = self.map.reach_arena(offset, len).ok().flatten();
        let first = view.map(|at| (at.as_ptr() as usize).wrapping_sub(place_in_file(offset) as usize));
        Ok(BackingFile { file: self.map.file()?, id: self.map.id, view: first })
    }

    fn may_lend(&self, ranges: &mut Ranges, start: u64, end: u64) -> bool {
        let len = end - start;
        self.lent.enabled
            && !ranges.over
            // Without a parked thread, other processes would continue to write to the memory after this process has died.
            && self.map.life(self.me.slot).load(Relaxed) != 0
            && len != 0
            && len <= LONGEST
            && ranges.bytes() + len <= ALL
            && ranges.list.len() < RANGES
            && ranges.times < TIMES
            && ranges.touching(start, end).next().is_none()
            && !BY_ADDRESS.touches(start, end)
            && ranges.credit.allows(len, self.now())
            && self.leaves_room(len)
    }

    /// Moves `start..end` to the arena, and returns the first page of its block. `None` if this kind of memory is not moved, or if there is
    /// no room.
    unsafe fn lend(&self, start: u64, end: u64) -> io::Result<Option<u32>> {
        let parts = areas::within(start as usize, end as usize)?;
        let Some(parts) = parts.filter(|parts| {
            parts.iter().all(|part| part.is_private() && !migration::holds_thread_state(part))
        }) else {
            return Ok(None);
        };
        let [Area { protection, .. }, rest @ ..] = &parts[..] else { return Ok(None) };
        if rest.iter().any(|part| part.protection != *protection) || migration::others_pin_memory()? {
            return Ok(None);
        }
        let Ok(lock) = self.locks.lock() else { return Ok(None) };
        let (len, owner) = ((end - start) as usize, Owner::Party(self.me.slot));
        let Ok(page) = Arena::new(&self.map, &lock).alloc(len, owner, &self.dir) else { return Ok(None) };
        drop(lock);
        let whole = Area { start: start as usize, end: end as usize, ..parts[0] };
        let offset = u64::from(page) * PAGE as u64;
        let Some(room) = self.room(offset, len).ok().filter(|room| room.view.is_some()) else {
            self.free(page);
            return Ok(None);
        };
        // SAFETY: the caller's memory, which was just checked to be private.
        let done =
            unsafe { migration::migrate(&whole, &room, place_in_file(offset), WriteProtection::Required) };
        done.inspect_err(|_| self.free(page))?;
        Ok(Some(page))
    }
}
