//! The memory of an adapter and its layout.

use super::{
    Geometry, Table,
    layout::{OUTLET_LANES, Outlet, PAGE},
    window::Block,
    words::Sync,
};
use std::{
    ops::Range,
    ptr::NonNull,
    sync::{Mutex, atomic::AtomicPtr},
};

/// The backing memory of a region.
///
/// # Safety
/// The memory is page-aligned, zero when a region is created in it, and modified only by regions. A pointer from [`map`](Self::map)
/// stays valid as long as the `Memory` lives, and two mappings of the same place show the same memory.
pub unsafe trait Memory: Send + std::marker::Sync {
    /// Maps whole pages at `offset`, which are within the region. `None` if this process has no address space left.
    fn map(&self, offset: usize, len: usize) -> Option<NonNull<u8>>;

    /// Called when this process cannot map memory that it needs and leaves the adapter.
    fn lost(&self) {}

    /// True if this process takes part in the adapter; false for an observer.
    fn takes_part(&self) -> bool {
        true
    }

    /// Backs `len` bytes at `offset` of the region with memory, so that accesses cannot fail. Returns false if there is none.
    fn back(&self, offset: usize, len: usize) -> bool;

    /// Returns whole pages at `offset`, which are not used until they are backed again. Their memory may be reclaimed; they
    /// then read as zeros or keep their contents.
    fn give_back(&self, _offset: usize, _len: usize) {}
}

/// Magic number of a formatted region; its low byte is the version of the layout.
const MAGIC: u64 = 0x6972_6f6e_7665_721b;

/// Memory that holds an adapter.
pub struct Region {
    /// The header, followed by the words that parties access without a lock.
    front: NonNull<u8>,
    pub(super) len: usize,
    pub(super) geometry: Geometry,
    pub(super) offsets: [usize; Table::ALL.len()],
    pub(super) counts: [usize; Table::ALL.len()],
    pub(super) sizes: [usize; Table::ALL.len()],
    /// For each object table, the index of its first row in [`Table::Link`].
    pub(super) links: [Option<usize>; Table::ALL.len()],
    /// For each function, the parts that are mapped.
    pub(super) blocks: Box<[Block]>,
    /// For each lane of an outlet, its ring once it is mapped.
    pub(super) lanes: [[AtomicPtr<u8>; OUTLET_LANES]; 2],
    /// Held while mapping more memory.
    pub(super) mapping: Mutex<()>,
    pub(super) memory: Box<dyn Memory>,
}

// SAFETY: the region is shared memory by design; every access goes through atomics or is made under a function's lock.
unsafe impl Send for Region {}
// SAFETY: shared references give access to atomics; rows are reached only through a `Func`, which holds its function's lock.
unsafe impl std::marker::Sync for Region {}

#[repr(C)]
pub(super) struct Header {
    magic: u64,
    pub(super) geometry: Geometry,
    /// Key of the hash that picks unpredictable numbers.
    key: [u64; 2],
}

/// Formatting or attaching a region failed.
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
    /// No part of it can be mapped.
    #[error("no address space is left to map the adapter's region (ulimit -v)")]
    AddressSpace,
    /// Not a region of this version.
    #[error(
        "the adapter's region starts with {found:#x}, expected {MAGIC:#x}: made by another version; delete the adapter (ironverbs adapter delete)"
    )]
    Magic {
        /// First eight bytes.
        found: u64,
    },
    /// Its tables have sizes that the interface cannot express.
    #[error(
        "the adapter's region says its tables are {found:?}, expected what an adapter can have; delete the adapter (ironverbs adapter delete)"
    )]
    Geometry {
        /// The geometry in its header.
        found: Geometry,
    },
}

/// Zeroed, page-aligned private memory; untouched pages cost nothing.
struct Private(NonNull<u8>, std::alloc::Layout);
// SAFETY: owned memory without thread affinity.
unsafe impl Send for Private {}
// SAFETY: only `Region` touches the bytes.
unsafe impl std::marker::Sync for Private {}
// SAFETY: allocated, aligned and zeroed by `Region::private`, which gives the pointer to no other code; all of it is one mapping.
unsafe impl Memory for Private {
    fn map(&self, offset: usize, len: usize) -> Option<NonNull<u8>> {
        let base = self.0.align_offset(PAGE);
        assert!(base + offset + len <= self.1.size(), "offset {offset:#x}+{len:#x} of a private region");
        // SAFETY: within the allocation by the check.
        Some(unsafe { self.0.add(base + offset) })
    }

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
    /// Creates an adapter in private memory.
    pub fn private(geometry: Geometry) -> Self {
        let size = geometry.size();
        // Aligned by hand: for an alignment of more than a word the allocator zeroes the memory itself, instead of using pages
        // that are zero already and cost nothing until they are touched.
        let layout = std::alloc::Layout::from_size_align(size.saturating_add(PAGE), align_of::<u64>())
            .unwrap_or_else(|_| std::alloc::Layout::new::<[Header; 2]>());
        // SAFETY: the size is not zero.
        let memory = match NonNull::new(unsafe { std::alloc::alloc_zeroed(layout) }) {
            Some(memory) => memory,
            None => std::alloc::handle_alloc_error(layout),
        };
        let memory = Box::new(Private(memory, layout));
        let front = memory.map(0, Geometry::FRONT).unwrap_or(memory.0);
        let region = Self::new(front, geometry, memory);
        region.format();
        region
    }

    /// Creates an adapter in `len` bytes of zeroed memory.
    pub fn create(len: usize, geometry: Geometry, memory: Box<dyn Memory>) -> Result<Self, RegionError> {
        if len < geometry.size() {
            return Err(RegionError::Size { expected: geometry.size(), found: len });
        }
        let region = Self::new(Self::front_of(len, &*memory)?, geometry, memory);
        region.format();
        Ok(region)
    }

    /// Attaches to the adapter that another party created in these `len` bytes of memory.
    pub fn attach(len: usize, memory: Box<dyn Memory>) -> Result<Self, RegionError> {
        let front = Self::front_of(len, &*memory)?;
        // SAFETY: in bounds, aligned; a header is plain data.
        let header = unsafe { front.cast::<Header>().read_volatile() };
        if header.magic != MAGIC {
            return Err(RegionError::Magic { found: header.magic });
        }
        let geometry = header.geometry;
        // Check before sizes are computed from it.
        if !geometry.is_sane() {
            return Err(RegionError::Geometry { found: geometry });
        }
        if len < geometry.size() {
            return Err(RegionError::Size { expected: geometry.size(), found: len });
        }
        Ok(Self::new(front, geometry, memory))
    }

    fn front_of(len: usize, memory: &dyn Memory) -> Result<NonNull<u8>, RegionError> {
        if len < Geometry::FRONT {
            return Err(RegionError::Size { expected: Geometry::FRONT, found: len });
        }
        memory.map(0, Geometry::FRONT).ok_or(RegionError::AddressSpace)
    }

    fn format(&self) {
        // SAFETY: the memory is ours and large enough.
        unsafe {
            let header = self.front.cast::<Header>();
            (&raw mut (*header.as_ptr()).geometry).write_volatile(self.geometry);
            std::sync::atomic::fence(std::sync::atomic::Ordering::Release);
            (&raw mut (*header.as_ptr()).magic).write_volatile(MAGIC);
        }
    }

    /// Sets the key of [`choice`](Self::choice), before any number is chosen and before another party attaches.
    pub(crate) fn set_key(&self, key: [u64; 2]) {
        let header = self.front.as_ptr().cast::<Header>();
        // SAFETY: in bounds and aligned, at the start of a page; the region has no other user yet.
        unsafe { (&raw mut (*header).key).write_volatile(key) }
    }

    /// Hash of `words` under a key that stays in the region: SipHash-2-4, so that known results do not reveal the next one.
    #[allow(deprecated)] // Deprecated for hash maps, which is not its use here; std has no other name for it.
    pub(super) fn choice(&self, words: [u64; 3]) -> u64 {
        use std::hash::{Hasher, SipHasher};
        let header = self.front.as_ptr().cast::<Header>();
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

    /// True if `fid` is powered and present.
    #[inline]
    pub fn is_present(&self, fid: u8) -> bool {
        self.sync(fid, Sync::Present).load(std::sync::atomic::Ordering::Acquire) != 0
    }

    /// The functions that are present: the PF and the VFs from 1 on. VFs are added in this order and removed in reverse, so the
    /// scan stops at the first missing one and touches no memory of the others.
    pub(crate) fn functions_there(&self) -> Range<u8> {
        let all = self.functions();
        0..(1..all).find(|vf| !self.is_present(*vf)).unwrap_or(all)
    }

    /// Copies all nonzero memory as (offset, 4 KiB page) pairs. The caller ensures that no runner is active.
    pub fn snapshot(&self) -> Snapshot {
        let pages = (0..self.len).step_by(PAGE).filter_map(|offset| {
            let page = self.page(offset)?;
            // SAFETY: a page of the region; no runner is active, by the caller's promise.
            let bytes = unsafe { std::slice::from_raw_parts(page.as_ptr(), PAGE) };
            bytes.iter().any(|b| *b != 0).then(|| (offset, bytes.into()))
        });
        Snapshot { geometry: self.geometry, pages: pages.collect() }
    }

    /// Creates a private adapter in the state of `snapshot`.
    pub fn restore(snapshot: &Snapshot) -> Self {
        let region = Self::private(snapshot.geometry);
        for (offset, page) in &snapshot.pages {
            let Some(to) = region.page(*offset) else { continue };
            // SAFETY: a page of the new region, which has no other user yet; pages of a snapshot are whole.
            unsafe { std::ptr::copy_nonoverlapping(page.as_ptr(), to.as_ptr(), page.len()) }
        }
        region
    }

    fn page(&self, offset: usize) -> Option<NonNull<u8>> {
        self.memory.map(offset, PAGE)
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

    /// Pointer to the words of a lane of an outlet.
    #[inline(always)]
    pub(super) fn lane_words(&self, which: Outlet, lane: usize) -> *mut u8 {
        debug_assert!(lane < OUTLET_LANES);
        // SAFETY: the front contains the words of all lanes.
        unsafe { self.front.as_ptr().add(Geometry::lane_words_at(which, lane)) }
    }

    fn new(front: NonNull<u8>, geometry: Geometry, memory: Box<dyn Memory>) -> Self {
        let each = |f: &dyn Fn(Table) -> usize| Table::ALL.map(f);
        Self {
            front,
            len: geometry.size(),
            geometry,
            offsets: each(&|t| geometry.table_offset(t)),
            counts: each(&|t| t.rows(&geometry)),
            sizes: each(&|t| t.row_size()),
            links: Table::ALL.map(|t| geometry.links_before(t)),
            blocks: Self::blocks(&geometry, front.as_ptr()),
            lanes: Default::default(),
            mapping: Mutex::new(()),
            memory,
        }
    }
}

/// All state of an adapter, copied to private memory.
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
