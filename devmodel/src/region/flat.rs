//! The memory of an adapter, and what lies where in it.

use super::{
    Geometry, Table,
    layout::{OUTLET_WORDS, Outlet, PAGE},
    words::{FUNCTION_LOCK, RING_LOCK, Sync},
};
use std::{ops::Range, ptr::NonNull, sync::atomic::AtomicU32};
use sync::Lock;

/// What a region lies in.
pub trait Memory: Send + std::marker::Sync {
    /// Sees to it that `len` bytes at `offset` of the region have memory, so that touching them can't fail. False: there is none.
    fn back(&self, offset: usize, len: usize) -> bool;
}

/// Magic number of a formatted region; its low byte is the version of the layout.
const MAGIC: u64 = 0x6972_6f6e_7665_7216;

/// Memory that holds an adapter.
pub struct Region {
    pub(super) base: NonNull<u8>,
    pub(super) len: usize,
    pub(super) geometry: Geometry,
    pub(super) block: usize,
    pub(super) first: usize,
    pub(super) offsets: [usize; Table::ALL.len()],
    pub(super) counts: [usize; Table::ALL.len()],
    pub(super) sizes: [usize; Table::ALL.len()],
    /// First bytes of the outlets.
    pub(super) outlets: [usize; 2],
    pub(super) memory: Box<dyn Memory>,
}

// SAFETY: the region is shared memory by design; every access goes through atomics or under a function's lock.
unsafe impl Send for Region {}
// SAFETY: shared references give atomics, and rows only to a `Func`, which has its function's lock.
unsafe impl std::marker::Sync for Region {}

#[repr(C)]
pub(super) struct Header {
    magic: u64,
    pub(super) geometry: Geometry,
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
    pub(super) fn choice(&self, words: [u64; 3]) -> u64 {
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
    pub(super) fn at(&self, offset: usize, len: usize) -> *mut u8 {
        assert!(offset <= self.len && len <= self.len - offset, "region offset {offset:#x}+{len:#x}");
        // SAFETY: checked above.
        unsafe { self.base.as_ptr().add(offset) }
    }

    /// First byte of a lane of an outlet.
    #[inline(always)]
    pub(super) fn outlet_lane(&self, which: Outlet, lane: usize) -> usize {
        self.outlets[which as usize] + lane * (OUTLET_WORDS + self.geometry.outlet_size(which))
    }

    /// Pointer to row `index` of `table`, of `size` bytes, in the block that starts at `base` (see `checked_base`).
    #[inline(always)]
    pub(super) fn row_pointer(&self, base: usize, table: Table, index: usize, size: usize) -> *mut u8 {
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
    pub(super) fn checked_base(&self, fid: u8) -> usize {
        if fid >= self.geometry.functions {
            no_function(fid);
        }
        self.first + fid as usize * self.block
    }

    #[inline(always)]
    pub(super) fn rows(&self, table: Table) -> usize {
        self.counts[table as usize]
    }

    /// log2 of the number of rows of an adapter-wide numbered table.
    #[inline(always)]
    pub(super) fn log_rows(&self, table: Table) -> u32 {
        self.counts[table as usize].trailing_zeros()
    }

    /// A word of `fid` that parties touch without its lock.
    #[inline(always)]
    pub fn sync(&self, fid: u8, word: Sync) -> &AtomicU32 {
        self.sync_at(self.checked_base(fid), word)
    }

    /// [`sync`](Self::sync), of the function whose block starts at `base` (see `checked_base`).
    #[inline(always)]
    pub(super) fn sync_at(&self, base: usize, word: Sync) -> &AtomicU32 {
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
    pub(super) fn function_lock_at(&self, base: usize) -> &Lock {
        self.lock_at(base + FUNCTION_LOCK)
    }

    #[inline(always)]
    pub(super) fn ring_lock_at(&self, base: usize) -> &Lock {
        self.lock_at(base + RING_LOCK)
    }

    #[inline(always)]
    pub(super) fn lock_at(&self, offset: usize) -> &Lock {
        // SAFETY: as in `sync_at`, for the callers above; a lock is words that are only ever used as atomics.
        unsafe { &*self.base.as_ptr().add(offset).cast::<Lock>() }
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

/// All of an adapter's state, in our own memory.
#[derive(Clone)]
pub struct Snapshot {
    geometry: Geometry,
    pub(super) pages: Vec<(usize, Box<[u8]>)>,
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
