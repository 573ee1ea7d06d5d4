//! The memory of an adapter, and what lies where in it.

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

/// The memory that a region lies in.
///
/// # Safety
/// The memory is page-aligned, zero when a region is created in it, and changed by nothing but regions. A pointer from [`map`](Self::map)
/// stays valid as long as this lives, and two mappings of a place show the same memory.
pub unsafe trait Memory: Send + std::marker::Sync {
    /// Where whole pages at `offset` of the region, which has them, can be reached. `None`: this process has no address space left.
    fn map(&self, offset: usize, len: usize) -> Option<NonNull<u8>>;

    /// This process can't see what it must, and takes no part in the adapter any more.
    fn lost(&self) {}

    /// True if this process takes part in the adapter, and does not only look.
    fn takes_part(&self) -> bool {
        true
    }

    /// Sees to it that `len` bytes at `offset` of the region have memory, so that touching them can't fail. False: there is none.
    fn back(&self, offset: usize, len: usize) -> bool;

    /// Whole pages at `offset` are not used until they are asked for again: their memory may be taken. They read as zeros then, or as
    /// before.
    fn give_back(&self, _offset: usize, _len: usize) {}
}

/// Magic number of a formatted region; its low byte is the version of the layout.
const MAGIC: u64 = 0x6972_6f6e_7665_7218;

/// Memory that holds an adapter.
pub struct Region {
    /// Where the header lies, and the words that parties touch without a lock.
    front: NonNull<u8>,
    pub(super) len: usize,
    pub(super) geometry: Geometry,
    pub(super) offsets: [usize; Table::ALL.len()],
    pub(super) counts: [usize; Table::ALL.len()],
    pub(super) sizes: [usize; Table::ALL.len()],
    /// For each table of objects the first of its rows in [`Table::Link`].
    pub(super) links: [Option<usize>; Table::ALL.len()],
    /// Of each function what is mapped.
    pub(super) blocks: Box<[Block]>,
    /// Of each lane of an outlet its ring, once it is mapped.
    pub(super) lanes: [[AtomicPtr<u8>; OUTLET_LANES]; 2],
    /// Held while more is mapped.
    pub(super) mapping: Mutex<()>,
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
    /// Nothing of it can be mapped.
    #[error("no address space is left to map the adapter's region (ulimit -v)")]
    AddressSpace,
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
// SAFETY: allocated, aligned and zeroed by `Region::private`, which tells nobody else of it; all of it is one mapping.
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
        let memory = Box::new(Private(memory, layout));
        let front = memory.map(0, Geometry::FRONT).unwrap_or(memory.0);
        let region = Self::new(front, geometry, memory);
        region.format();
        region
    }

    /// A fresh adapter in `len` bytes of memory that is all zero.
    pub fn create(len: usize, geometry: Geometry, memory: Box<dyn Memory>) -> Result<Self, RegionError> {
        if len < geometry.size() {
            return Err(RegionError::Size { expected: geometry.size(), found: len });
        }
        let region = Self::new(Self::front_of(len, &*memory)?, geometry, memory);
        region.format();
        Ok(region)
    }

    /// The adapter that another party created in these `len` bytes of memory.
    pub fn attach(len: usize, memory: Box<dyn Memory>) -> Result<Self, RegionError> {
        let front = Self::front_of(len, &*memory)?;
        // SAFETY: in bounds, aligned; a header is plain data.
        let header = unsafe { front.cast::<Header>().read_volatile() };
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

    /// Gives the adapter the key of its choices, before anything is chosen or anybody attaches.
    pub(crate) fn set_key(&self, key: [u64; 2]) {
        let header = self.front.as_ptr().cast::<Header>();
        // SAFETY: in bounds and aligned, at the start of a page; nobody else uses the region yet.
        unsafe { (&raw mut (*header).key).write_volatile(key) }
    }

    /// The hash of these words under a key that stays in the region: SipHash-2-4, so that no number of answers tells the next.
    #[allow(deprecated)] // For maps, which is not what it is for here; std has no other name for it.
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

    /// The functions that are there: the PF and the VFs from 1 on. VFs come in this order and go in reverse, so those
    /// behind the first that is missing need not be looked at, and cost no memory.
    pub(crate) fn functions_there(&self) -> Range<u8> {
        let all = self.functions();
        0..(1..all).find(|vf| !self.is_present(*vf)).unwrap_or(all)
    }

    /// A copy of all that is not zero: (offset, 4 KiB page) pairs. The caller sees to it that nobody runs.
    pub fn snapshot(&self) -> Snapshot {
        let pages = (0..self.len).step_by(PAGE).filter_map(|offset| {
            let page = self.page(offset)?;
            // SAFETY: a page of the region; no runner is active, by the caller's promise.
            let bytes = unsafe { std::slice::from_raw_parts(page.as_ptr(), PAGE) };
            bytes.iter().any(|b| *b != 0).then(|| (offset, bytes.into()))
        });
        Snapshot { geometry: self.geometry, pages: pages.collect() }
    }

    /// A private adapter in the state of `snapshot`.
    pub fn restore(snapshot: &Snapshot) -> Self {
        let region = Self::private(snapshot.geometry);
        for (offset, page) in &snapshot.pages {
            let Some(to) = region.page(*offset) else { continue };
            // SAFETY: a page of the new region, which nobody uses yet; pages of a snapshot are whole.
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

    /// Words of a lane of an outlet, as they lie.
    #[inline(always)]
    pub(super) fn lane_words(&self, which: Outlet, lane: usize) -> *mut u8 {
        debug_assert!(lane < OUTLET_LANES);
        // SAFETY: the front holds them.
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
