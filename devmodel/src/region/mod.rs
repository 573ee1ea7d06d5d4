//! The flat region: all state of the adapter, in one pointer-free piece of memory.
//!
//! Fixed tables of plain-data rows, found by index, so that a copy of the bytes is a snapshot and several processes may
//! map the same adapter. Which bytes lie where follows from the [`Geometry`] alone.
//!
//! Unsafe code of the model lives in this folder. What it relies on: a row is only touched through a [`Func`], which
//! holds its function's lock; words that several parties touch without a lock are atomics; parties of one region trust
//! each other (hostile guests come in through a server that maps nothing of it).
#![allow(unsafe_code)]

mod alloc;
mod back;
mod func;
mod geometry;
mod journal;
mod look;
pub(crate) mod memic;
mod outlet;
mod queues;
mod ring;
mod senders;
#[cfg(test)]
mod tests;

pub use crate::state::Table;
pub use alloc::{MttRange, Shortage};
pub use back::Memory;
pub use func::{Func, Held, Row};
pub use geometry::Geometry;
pub use journal::{Effect, JournalStats};
pub use look::PortGlimpse;
pub use memic::Memic;
pub use outlet::{Left, MAX_FRAME, Outlet, OutletRing};
pub use queues::{READY_SQ, TimerKind};
pub use ring::{Piece, SLOTS, Slot, SlotPayload, WireRing};
pub(crate) use senders::purge_frames;
pub use sync::{Lock, Patience};

use crate::host::{Host, Party};
use std::{ops::Range, ptr::NonNull, sync::atomic::AtomicU32};

/// Magic number of a formatted region; its low byte is the version of the layout.
const MAGIC: u64 = 0x6972_6f6e_7665_7212;

/// Functions of an adapter, by bit.
pub type FunctionSet = u128;

/// Memory that holds an adapter.
pub struct Region {
    base: NonNull<u8>,
    len: usize,
    geometry: Geometry,
    block: usize,
    first: usize,
    offsets: [usize; Table::ALL.len()],
    counts: [usize; Table::ALL.len()],
    sizes: [usize; Table::ALL.len()],
    /// First bytes of the outlets.
    outlets: [usize; 2],
    memory: Box<dyn Memory>,
}

/// Bytes of the words below.
const SYNC: usize = 4096;
const PAGE: usize = 4096;

/// Words of a function that parties touch without holding its lock, by cache line: what the holder writes, what senders write,
/// what both look at. Processors fetch lines in pairs and the next ones ahead, so those lie well apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(usize)]
pub enum Sync {
    /// Receive ring: frames put in, free-running. For fillers: who takes frames looks at the slots.
    RxTail = 516,
    /// Receive ring: frames that found no room.
    RxFull = 520,
    /// Receive ring: `RxHead` as its fillers last saw it. They look again only when the ring seems full.
    RxSeen = 524,
    /// Payloads of the receive ring that have memory, a bit for each few of them: the first half.
    RxBacked = 528,
    /// The second half.
    RxBackedToo = 532,
    /// Receive ring: slots given back to the senders, free-running.
    RxHead = 4,
    /// 1: powered and present (the PF, and VFs from VF Enable on).
    Present = 1536,
    /// Not 0: takes frames to group addresses. Bits: [`GROUP_QP`], [`GROUP_ETHERNET`], [`GROUP_STRANGERS`];
    /// and [`GROUP_NOT_OWN`], which says something of them.
    Group = 1540,
    /// QPs that wait to send: bit 0 if the ready ring is not empty.
    Ready = 8,
    /// Earliest timer, in units of 2^20 ps, rounded down; 0 is none.
    Timer = 12,
}

/// Where the function's lock lies among these words, and that of its receive ring's fillers.
const FUNCTION_LOCK: usize = 16;
const RING_LOCK: usize = 536;

/// [`Sync::Group`]: a QP is attached to a group.
pub const GROUP_QP: u32 = 1;
/// [`Sync::Group`]: there are flow tables.
pub const GROUP_ETHERNET: u32 = 2;
/// [`Sync::Group`]: takes unicast frames to other addresses than its own.
pub const GROUP_STRANGERS: u32 = 4;
/// [`Sync::Group`]: the net device's own frames to groups do not come back to it.
pub const GROUP_NOT_OWN: u32 = 8;

// SAFETY: the region is shared memory by design; every access goes through atomics or under a function's lock.
unsafe impl Send for Region {}
// SAFETY: shared references give atomics, and rows only to a `Func`, which has its function's lock.
unsafe impl std::marker::Sync for Region {}

#[repr(C)]
struct Header {
    magic: u64,
    geometry: Geometry,
    /// Of the numbers that are not to be foreseen.
    key: [u64; 2],
}

/// A region could not be formatted or attached.
#[derive(Debug, thiserror::Error)]
pub enum RegionError {
    /// Too small for its geometry.
    #[error("the adapter's region has {found} bytes, expected {expected}")]
    Size {
        /// Bytes the geometry needs.
        expected: usize,
        /// Bytes there are.
        found: usize,
    },
    /// Not a region of this version.
    #[error(
        "the adapter's region starts with {found:#x}, expected {MAGIC:#x}: made by another version; reset the node"
    )]
    Magic {
        /// First eight bytes.
        found: u64,
    },
    /// Its tables have sizes that the interface cannot name.
    #[error(
        "the adapter's region says its tables are {found:?}, expected what an adapter can have; reset the node"
    )]
    Geometry {
        /// The geometry in its header.
        found: Geometry,
    },
}

/// Zeroed private memory, page-aligned; untouched pages cost nothing.
struct Private(NonNull<u8>, std::alloc::Layout);
// SAFETY: owned memory without thread affinity.
unsafe impl Send for Private {}
// SAFETY: only `Region` touches the bytes.
unsafe impl std::marker::Sync for Private {}
impl Memory for Private {
    fn back(&self, _: usize, _: usize) -> bool {
        true
    }
}
impl Drop for Private {
    fn drop(&mut self) {
        // SAFETY: allocated in `Region::private` with this layout.
        unsafe { std::alloc::dealloc(self.0.as_ptr(), self.1) }
    }
}

impl Region {
    /// A fresh adapter in private memory.
    pub fn private(geometry: Geometry) -> Self {
        let size = geometry.size();
        // Aligned by hand: the allocator writes zeros to what it aligns to more than a word itself, instead of taking
        // pages that are zero and cost nothing until they are touched.
        let layout = std::alloc::Layout::from_size_align(size.saturating_add(PAGE), align_of::<u64>())
            .unwrap_or_else(|_| std::alloc::Layout::new::<[Header; 2]>());
        // SAFETY: the size is not zero.
        let memory = match NonNull::new(unsafe { std::alloc::alloc_zeroed(layout) }) {
            Some(memory) => memory,
            None => std::alloc::handle_alloc_error(layout),
        };
        // SAFETY: less than a page further, and the allocation is a page longer than the region.
        let base = unsafe { memory.add(memory.align_offset(PAGE)) };
        let region = Self::new(base, size, geometry, Box::new(Private(memory, layout)));
        region.format();
        region
    }

    /// A fresh adapter in memory that is all zero.
    ///
    /// # Safety
    /// `base` points to `len` bytes, page-aligned, valid as long as `memory` lives, changed by nothing but regions.
    pub unsafe fn create(
        base: NonNull<u8>,
        len: usize,
        geometry: Geometry,
        memory: Box<dyn Memory>,
    ) -> Result<Self, RegionError> {
        if len < geometry.size() {
            return Err(RegionError::Size { expected: geometry.size(), found: len });
        }
        let region = Self::new(base, len, geometry, memory);
        region.format();
        Ok(region)
    }

    /// The adapter that another party created in this memory.
    ///
    /// # Safety
    /// As for [`create`](Self::create).
    pub unsafe fn attach(
        base: NonNull<u8>,
        len: usize,
        memory: Box<dyn Memory>,
    ) -> Result<Self, RegionError> {
        if len < size_of::<Header>() {
            return Err(RegionError::Size { expected: size_of::<Header>(), found: len });
        }
        // SAFETY: in bounds, aligned; a header is plain data.
        let header = unsafe { base.cast::<Header>().read_volatile() };
        if header.magic != MAGIC {
            return Err(RegionError::Magic { found: header.magic });
        }
        let geometry = header.geometry;
        // Sizes are computed only of tables that can be.
        if !geometry.is_sane() {
            return Err(RegionError::Geometry { found: geometry });
        }
        if len < geometry.size() {
            return Err(RegionError::Size { expected: geometry.size(), found: len });
        }
        Ok(Self::new(base, len, geometry, memory))
    }

    fn format(&self) {
        // SAFETY: the memory is ours and large enough.
        unsafe {
            let header = self.base.cast::<Header>();
            (&raw mut (*header.as_ptr()).geometry).write_volatile(self.geometry);
            std::sync::atomic::fence(std::sync::atomic::Ordering::Release);
            (&raw mut (*header.as_ptr()).magic).write_volatile(MAGIC);
        }
    }

    /// Gives the adapter the key of its choices, before anything is chosen or anybody attaches.
    pub(crate) fn set_key(&self, key: [u64; 2]) {
        let header = self.at(0, size_of::<Header>()).cast::<Header>();
        // SAFETY: in bounds and aligned, at the start of a page; nobody else uses the region yet.
        unsafe { (&raw mut (*header).key).write_volatile(key) }
    }

    /// What a key that stays in the region makes of these words: SipHash-2-4, so that no number of answers tells the next.
    #[allow(deprecated)] // For maps, which is not what it is for here; std has no other name for it.
    fn choice(&self, words: [u64; 3]) -> u64 {
        use std::hash::{Hasher, SipHasher};
        let header = self.at(0, size_of::<Header>()).cast::<Header>();
        // SAFETY: in bounds and aligned; the key does not change once the adapter is powered on.
        let [first, second] = unsafe { (&raw const (*header).key).read_volatile() };
        let mut hasher = SipHasher::new_with_keys(first, second);
        words.into_iter().for_each(|word| hasher.write_u64(word));
        hasher.finish()
    }

    /// Sizes of the tables.
    pub fn geometry(&self) -> &Geometry {
        &self.geometry
    }

    /// Number of functions: the PF and all VFs that could be enabled.
    pub fn functions(&self) -> u8 {
        self.geometry.functions
    }

    /// Whether `fid` is powered and present.
    #[inline]
    pub fn is_present(&self, fid: u8) -> bool {
        self.sync(fid, Sync::Present).load(std::sync::atomic::Ordering::Acquire) != 0
    }

    /// The functions that are there: the PF and the VFs from 1 on. VFs come in this order and go in reverse, so those
    /// behind the first that is missing need not be looked at, and cost no memory.
    pub(crate) fn functions_there(&self) -> Range<u8> {
        let all = self.functions();
        0..(1..all).find(|vf| !self.is_present(*vf)).unwrap_or(all)
    }

    /// A copy of all that is not zero: (offset, 4 KiB page) pairs. The caller sees to it that nobody runs.
    pub fn snapshot(&self) -> Snapshot {
        let mut pages = Vec::new();
        for offset in (0..self.len).step_by(4096) {
            // SAFETY: in bounds; no runner is active, by the caller's promise.
            let page = unsafe {
                std::slice::from_raw_parts(self.base.as_ptr().add(offset), 4096.min(self.len - offset))
            };
            if page.iter().any(|b| *b != 0) {
                pages.push((offset, page.into()));
            }
        }
        Snapshot { geometry: self.geometry, pages }
    }

    /// A private adapter in the state of `snapshot`.
    pub fn restore(snapshot: &Snapshot) -> Self {
        let region = Self::private(snapshot.geometry);
        for (offset, page) in &snapshot.pages {
            // SAFETY: offsets come from a region of the same geometry.
            unsafe {
                std::ptr::copy_nonoverlapping(page.as_ptr(), region.base.as_ptr().add(*offset), page.len())
            }
        }
        region
    }

    /// Pointer to `offset`, of which `len` bytes are in bounds.
    #[inline(always)]
    fn at(&self, offset: usize, len: usize) -> *mut u8 {
        assert!(offset <= self.len && len <= self.len - offset, "region offset {offset:#x}+{len:#x}");
        // SAFETY: checked above.
        unsafe { self.base.as_ptr().add(offset) }
    }

    /// First byte of a lane of an outlet.
    #[inline(always)]
    fn outlet_lane(&self, which: Outlet, lane: usize) -> usize {
        self.outlets[which as usize] + lane * (outlet::WORDS + self.geometry.outlet_size(which))
    }

    /// Pointer to row `index` of `table`, of `size` bytes, in the block that starts at `base` (see `checked_base`).
    #[inline(always)]
    fn row_pointer(&self, base: usize, table: Table, index: usize, size: usize) -> *mut u8 {
        if index >= self.counts[table as usize] {
            no_row(index, table);
        }
        let offset = base + self.offsets[table as usize] + index * size;
        debug_assert!(offset + size <= self.len && size == self.sizes[table as usize]);
        // SAFETY: the memory holds all blocks of the geometry (checked when the region is made), a block holds all rows
        // of all tables, and the index is one of them.
        unsafe { self.base.as_ptr().add(offset) }
    }

    #[inline(always)]
    fn checked_base(&self, fid: u8) -> usize {
        if fid >= self.geometry.functions {
            no_function(fid);
        }
        self.first + fid as usize * self.block
    }

    #[inline(always)]
    fn rows(&self, table: Table) -> usize {
        self.counts[table as usize]
    }

    /// log2 of the number of rows of an adapter-wide numbered table.
    #[inline(always)]
    fn log_rows(&self, table: Table) -> u32 {
        self.counts[table as usize].trailing_zeros()
    }

    /// A word of `fid` that parties touch without its lock.
    #[inline(always)]
    pub fn sync(&self, fid: u8, word: Sync) -> &AtomicU32 {
        self.sync_at(self.checked_base(fid), word)
    }

    /// [`sync`](Self::sync), of the function whose block starts at `base` (see `checked_base`).
    #[inline(always)]
    fn sync_at(&self, base: usize, word: Sync) -> &AtomicU32 {
        // They are the first table.
        let offset = base + word as usize;
        // SAFETY: the memory holds all blocks of the geometry, a block holds these words; aligned by `Sync`; only ever used
        // as an atomic.
        unsafe { &*self.base.as_ptr().add(offset).cast::<AtomicU32>() }
    }

    /// The lock of `fid`, to look at.
    #[inline]
    pub fn function_lock(&self, fid: u8) -> &Lock {
        self.function_lock_at(self.checked_base(fid))
    }

    /// The lock of the fillers of `fid`'s receive ring, to look at.
    #[inline]
    pub fn ring_lock(&self, fid: u8) -> &Lock {
        self.ring_lock_at(self.checked_base(fid))
    }

    /// The lock of the function whose block starts at `base` (see `checked_base`).
    #[inline(always)]
    fn function_lock_at(&self, base: usize) -> &Lock {
        self.lock_at(base + FUNCTION_LOCK)
    }

    #[inline(always)]
    fn ring_lock_at(&self, base: usize) -> &Lock {
        self.lock_at(base + RING_LOCK)
    }

    #[inline(always)]
    fn lock_at(&self, offset: usize) -> &Lock {
        // SAFETY: as in `sync_at`, for the callers above; a lock is words that are only ever used as atomics.
        unsafe { &*self.base.as_ptr().add(offset).cast::<Lock>() }
    }

    /// Takes all locks from `party`, which is dead; what it was at is finished or taken back. Returns the functions that were
    /// locked for that: others may have left work there meanwhile. `None` if somebody has one of them who is stopped: to be done
    /// again.
    pub fn free_locks_of(&self, host: &mut dyn Host, party: Party) -> Option<FunctionSet> {
        let held = self.free_locks_among(0..self.functions(), host, party)?;
        for which in [Outlet::Uplink, Outlet::Capture] {
            OutletRing::of(self, which).free_lock_of(host, party)?;
        }
        Some(held)
    }

    /// As [`free_locks_of`](Self::free_locks_of), of some functions alone.
    pub fn free_locks_among(
        &self,
        fids: Range<u8>,
        host: &mut dyn Host,
        party: Party,
    ) -> Option<FunctionSet> {
        let mut held = 0;
        for fid in fids.start..fids.end.min(self.functions()) {
            if self.function_lock(fid).is_of(party) {
                drop(Func::lock_with(self, fid, host, Patience::UntilStopped)?);
                held |= 1 << fid;
            }
            self.function_lock(fid).free_of(host, party, || {})?;
            self.ring_lock(fid).free_of(host, party, || WireRing::of(self, fid).recount())?;
        }
        Some(held)
    }

    fn new(base: NonNull<u8>, len: usize, geometry: Geometry, memory: Box<dyn Memory>) -> Self {
        let each = |f: &dyn Fn(Table) -> usize| Table::ALL.map(f);
        Self {
            base,
            len,
            geometry,
            block: geometry.block(),
            first: geometry.function_base(0),
            offsets: each(&|t| geometry.table_offset(t)),
            counts: each(&|t| t.rows(&geometry)),
            sizes: each(&|t| t.row_size()),
            outlets: [Outlet::Uplink, Outlet::Capture].map(|which| geometry.outlet_base(which)),
            memory,
        }
    }
}

// Out of line, so that where rows are looked up nothing is kept for these messages.
#[cold]
#[inline(never)]
fn no_row(index: usize, table: Table) -> ! {
    panic!("no row {index} of {table:?}")
}

#[cold]
#[inline(never)]
fn no_function(fid: u8) -> ! {
    panic!("no function {fid}")
}

/// Asks the processor to bring the cache line at `at` near, if it can be asked.
#[inline(always)]
fn prefetch(at: *const u8) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: a hint that touches nothing, whatever the address.
    unsafe {
        std::arch::x86_64::_mm_prefetch::<{ std::arch::x86_64::_MM_HINT_T0 }>(at.cast());
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = at;
}

/// [`prefetch`], of a line that is about to be written.
#[inline(always)]
fn prefetch_to_write(at: *const u8) {
    // The intrinsic for it asks for the line to read where the target is not said to know better. A processor that does not know
    // it does nothing. Miri runs no assembly.
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    // SAFETY: a hint that touches nothing, whatever the address.
    unsafe {
        std::arch::asm!("prefetchw [{}]", in(reg) at, options(readonly, nostack, preserves_flags));
    }
    #[cfg(not(all(target_arch = "x86_64", not(miri))))]
    let _ = at;
}

/// All of an adapter's state, in our own memory.
#[derive(Clone)]
pub struct Snapshot {
    geometry: Geometry,
    pages: Vec<(usize, Box<[u8]>)>,
}

impl Snapshot {
    /// Bytes held.
    pub fn bytes(&self) -> usize {
        self.pages.iter().map(|(_, p)| p.len()).sum()
    }
}

impl PartialEq for Snapshot {
    fn eq(&self, other: &Self) -> bool {
        self.pages == other.pages
    }
}
