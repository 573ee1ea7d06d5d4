//! How a process accesses a region: parts of its tables are mapped when their rows are first used.
//!
//! A region is large and mostly empty. Mapped whole it would count against address space limits, a program that locks its memory would
//! fill it, and tools that track addresses would refuse it. So for each table a process maps the rows up to the last one it has used, and
//! doubles that when it is not enough. Earlier mappings stay, because references into them may exist; both show the same memory.

use super::{
    Geometry, Region, Table,
    layout::{Outlet, PAGE, SLOTS},
    words::{FUNCTION_LOCK, RING_LOCK, Sync},
};
use crate::host::Party;
use std::{
    ptr::NonNull,
    sync::{
        PoisonError,
        atomic::{AtomicPtr, AtomicU32, AtomicUsize, Ordering::*},
    },
};
use sync::Lock;

/// Minimum mapping of a table, in bytes.
const LEAST: usize = 64 << 10;
/// Bytes of a journal.
const JOURNAL: usize = super::journal_layout::SIZE;

/// The mapped rows of a table, starting at the first.
struct Window {
    at: AtomicPtr<u8>,
    rows: AtomicUsize,
}

impl Window {
    fn new() -> Self {
        Self { at: AtomicPtr::default(), rows: AtomicUsize::new(0) }
    }
}

/// Panic payload of a thread that unwinds because its process can map no more of the adapter.
#[derive(Clone, Copy, Debug)]
pub struct NoAddresses;

impl NoAddresses {
    /// Unwinds with this as the reason.
    pub fn unwind() -> ! {
        std::panic::resume_unwind(Box::new(Self))
    }
}

/// A function's part of the region, as mapped by this process.
pub(super) struct Block {
    /// The function.
    pub(super) fid: u8,
    /// Its offset in the region.
    pub(super) offset: usize,
    /// Words that parties access without the function's lock.
    words: *mut u8,
    windows: [Window; Table::ALL.len()],
    /// Journals of the parties that this process works for or recovers.
    journals: Box<[AtomicPtr<u8>]>,
}

// SAFETY: the pointers are into memory that is shared by design; every access goes through atomics or is made under a function's lock.
unsafe impl Send for Block {}
// SAFETY: as for `Send`.
unsafe impl std::marker::Sync for Block {}

impl Block {
    /// A word that parties access without the function's lock.
    #[inline(always)]
    pub(super) fn sync(&self, word: Sync) -> &AtomicU32 {
        self.word(word as usize)
    }

    /// The word at offset `at` of those words.
    #[inline(always)]
    pub(super) fn word(&self, at: usize) -> &AtomicU32 {
        debug_assert!(at % 4 == 0 && at < super::layout::SYNC);
        // SAFETY: the region's front contains these words for all functions; they are only ever accessed as atomics.
        unsafe { &*self.words.add(at).cast::<AtomicU32>() }
    }

    /// The function's lock.
    #[inline(always)]
    pub(super) fn function_lock(&self) -> &Lock {
        // SAFETY: as in `word`; a lock consists of words that are only ever accessed as atomics.
        unsafe { &*self.words.add(FUNCTION_LOCK).cast::<Lock>() }
    }

    /// The lock of the fillers of its receive ring.
    #[inline(always)]
    pub(super) fn ring_lock(&self) -> &Lock {
        // SAFETY: as in `function_lock`.
        unsafe { &*self.words.add(RING_LOCK).cast::<Lock>() }
    }
}

impl Region {
    /// The functions' blocks; nothing is mapped yet except the words at `front`.
    pub(super) fn blocks(geometry: &Geometry, front: *mut u8) -> Box<[Block]> {
        let block = |fid| Block {
            fid,
            offset: geometry.block_at(fid),
            words: front.wrapping_add(Geometry::words_at(fid)),
            windows: std::array::from_fn(|_| Window::new()),
            journals: (0..Table::Journal.rows(geometry)).map(|_| AtomicPtr::default()).collect(),
        };
        (0..geometry.functions).map(block).collect()
    }

    /// The block of function `fid`.
    #[inline(always)]
    pub(super) fn block(&self, fid: u8) -> &Block {
        match self.blocks.get(usize::from(fid)) {
            Some(block) => block,
            None => no_function(fid),
        }
    }

    /// Pointer to row `index` of `table`, of `size` bytes.
    #[inline(always)]
    pub(super) fn row_pointer(&self, block: &Block, table: Table, index: usize, size: usize) -> *mut u8 {
        debug_assert_eq!(size, self.sizes[table as usize]);
        let window = &block.windows[table as usize];
        if index >= window.rows.load(Acquire) {
            return self.row_beyond(block, table, index);
        }
        // SAFETY: the window has at least this many rows; the address may already be that of a later mapping, which has more.
        unsafe { window.at.load(Acquire).add(index * size) }
    }

    /// [`row_pointer`](Self::row_pointer) of a row that is not mapped yet.
    #[cold]
    #[inline(never)]
    fn row_beyond(&self, block: &Block, table: Table, index: usize) -> *mut u8 {
        if index >= self.counts[table as usize] {
            no_row(index, table);
        }
        if !self.reach(block, table, index) {
            self.leave();
        }
        // SAFETY: the window contains the row now.
        unsafe { block.windows[table as usize].at.load(Relaxed).add(index * self.sizes[table as usize]) }
    }

    /// Maps row `index`, which is within `table`. Returns false if no address space is left.
    pub(super) fn reach(&self, block: &Block, table: Table, index: usize) -> bool {
        let window = &block.windows[table as usize];
        if index < window.rows.load(Acquire) {
            return true;
        }
        let _alone = self.mapping.lock().unwrap_or_else(PoisonError::into_inner);
        let before = window.rows.load(Relaxed);
        if index < before {
            return true;
        }
        let (rows, size) = (self.counts[table as usize], self.sizes[table as usize]);
        let wanted = (2 * before).max(LEAST / size).max(index + 1).min(rows);
        let Some(at) = self.map(block.offset + self.offsets[table as usize], wanted * size) else {
            return false;
        };
        window.at.store(at, Release);
        window.rows.store(wanted, Release);
        true
    }

    /// Maps the parts of every present function that `party` touches when it sends or receives frames, so that this cannot fail
    /// there. Returns false if no address space is left.
    pub fn reach_all(&self, party: Party) -> bool {
        self.functions_there().all(|fid| self.reach_function(self.block(fid), party))
    }

    /// [`reach_all`](Self::reach_all) for one function.
    pub(super) fn reach_function(&self, block: &Block, party: Party) -> bool {
        self.reach(block, Table::Function, 0)
            && self.reach(block, Table::RxSlot, SLOTS - 1)
            // A rollback republishes the first timer's deadline.
            && self.reach(block, Table::Timer, 0)
            && self.reach_journal(block, self.journal_of(party))
    }

    /// Called when state cannot be read: an observer then sees nothing; a participant unwinds rather than continue with wrong values.
    #[cold]
    pub(super) fn unseen(&self) {
        if self.memory.takes_part() {
            NoAddresses::unwind();
        }
    }

    /// Leaves the adapter, because this process cannot map a part of it: the job it has begun is rolled back during unwinding,
    /// and it takes part no longer.
    #[cold]
    fn leave(&self) -> ! {
        self.memory.lost();
        NoAddresses::unwind()
    }

    /// Pointer to journal `index` of a function. Each party has its own, so only those in use are mapped.
    #[inline(always)]
    pub(super) fn journal_pointer(&self, block: &Block, index: usize) -> *mut u8 {
        match block.journals.get(index).map(|journal| journal.load(Acquire)) {
            Some(journal) if !journal.is_null() => journal,
            _ => self.journal_beyond(block, index),
        }
    }

    #[cold]
    #[inline(never)]
    fn journal_beyond(&self, block: &Block, index: usize) -> *mut u8 {
        let Some(place) = block.journals.get(index) else { no_row(index, Table::Journal) };
        if !self.reach_journal(block, index) {
            self.leave();
        }
        place.load(Acquire)
    }

    fn reach_journal(&self, block: &Block, index: usize) -> bool {
        let place = &block.journals[index];
        let _alone = self.mapping.lock().unwrap_or_else(PoisonError::into_inner);
        if place.load(Relaxed).is_null() {
            let at = block.offset + self.offsets[Table::Journal as usize] + index * JOURNAL;
            let skip = at % PAGE;
            let Some(base) = self.map(at - skip, JOURNAL + skip) else { return false };
            place.store(base.wrapping_add(skip), Release);
        }
        true
    }

    /// Index of `party`'s journal, modulo a power of two: parties that share a journal never hold the function at the same time.
    #[inline(always)]
    pub(super) fn journal_of(&self, party: Party) -> usize {
        usize::from(party.0) & (self.rows(Table::Journal) - 1)
    }

    /// Pointer to `len` bytes at `offset` of `table`, if they are within it.
    pub(super) fn bytes_pointer(
        &self,
        block: &Block,
        table: Table,
        offset: usize,
        len: usize,
    ) -> Option<*mut u8> {
        let size = self.sizes[table as usize];
        let end =
            offset.checked_add(len).filter(|end| len > 0 && *end <= self.counts[table as usize] * size)?;
        let (first, last) = (offset / size, (end - 1) / size);
        if first != last {
            return None;
        }
        // SAFETY: within the row by the check.
        Some(unsafe { self.row_pointer(block, table, first, size).add(offset % size) })
    }

    /// True if row `index` of `table` is mapped. A row that is not mapped may still be in use; `Func::is_known` checks that, so
    /// that a packet or request with an unused number maps nothing.
    #[inline(always)]
    pub(super) fn is_mapped(&self, block: &Block, table: Table, index: usize) -> bool {
        index < block.windows[table as usize].rows.load(Acquire)
    }

    /// The ring of a lane of an outlet. `None` if no address space is left.
    pub(super) fn lane_pointer(&self, which: Outlet, lane: usize) -> Option<NonNull<u8>> {
        let place = &self.lanes[which as usize][lane];
        if place.load(Acquire).is_null() {
            let _alone = self.mapping.lock().unwrap_or_else(PoisonError::into_inner);
            if place.load(Relaxed).is_null() {
                let at = self.map(self.geometry.lane_at(which, lane), self.geometry.outlet_size(which))?;
                place.store(at, Release);
            }
        }
        NonNull::new(place.load(Acquire))
    }

    fn map(&self, offset: usize, len: usize) -> Option<*mut u8> {
        self.memory.map(offset, len).map(|at| at.as_ptr())
    }

    /// A word of `fid` that parties access without its lock.
    #[inline(always)]
    pub fn sync(&self, fid: u8, word: Sync) -> &AtomicU32 {
        self.block(fid).sync(word)
    }

    /// The lock of `fid`, for inspection.
    #[inline]
    pub fn function_lock(&self, fid: u8) -> &Lock {
        self.block(fid).function_lock()
    }

    /// The lock of the fillers of `fid`'s receive ring, for inspection.
    #[inline]
    pub fn ring_lock(&self, fid: u8) -> &Lock {
        self.block(fid).ring_lock()
    }
}

// Out of line, so that row lookups need not keep values for these messages.
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

#[cfg(test)]
mod tests {
    use super::super::{Func, Memory, Outlet, OutletRing, Shortage, tests::machine};
    use crate::{
        host::Party,
        region::{Geometry, Origin, Region, Table},
        state::{MkeyRow, PdRow, QpRow},
    };
    use std::{
        ptr::NonNull,
        sync::{
            Arc, Mutex,
            atomic::{AtomicBool, Ordering::Relaxed},
        },
    };

    /// A region's memory that refuses to map once `full`, and records its mappings.
    struct Counted {
        of: Arc<Region>,
        full: Arc<AtomicBool>,
        mapped: Arc<Mutex<Vec<(usize, usize)>>>,
    }

    // SAFETY: that region's memory keeps the contract and lives as long as it.
    unsafe impl Memory for Counted {
        fn map(&self, offset: usize, len: usize) -> Option<NonNull<u8>> {
            self.mapped.lock().unwrap().push((offset, len));
            if self.full.load(Relaxed) { None } else { self.of.memory.map(offset, len) }
        }
        fn back(&self, _: usize, _: usize) -> bool {
            true
        }
    }

    type Maps = (Region, Arc<AtomicBool>, Arc<Mutex<Vec<(usize, usize)>>>);

    /// A region, and another process's view of it.
    fn twice(geometry: Geometry) -> (Arc<Region>, Maps) {
        let of = Arc::new(Region::private(geometry));
        let (full, mapped) = (Arc::default(), Arc::default());
        let memory = Counted { of: of.clone(), full: Arc::clone(&full), mapped: Arc::clone(&mapped) };
        (of.clone(), (Region::attach(of.len, Box::new(memory)).unwrap(), full, mapped))
    }

    #[test]
    fn journals_lie_in_every_block_and_nowhere_else() {
        let geometry = Geometry::SMALL;
        let (first, len) =
            (geometry.table_offset(Table::Journal), Table::Journal.rows(&geometry) * super::JOURNAL);
        for fid in 0..geometry.functions {
            let at = geometry.block_at(fid) + first;
            let found = [at - 1, at, at + len - 1, at + len].map(|offset| geometry.is_journal(offset));
            assert_eq!(found, [false, true, true, false], "function {fid}");
        }
        // The arena follows the region.
        assert!((0..len).step_by(4096).all(|past| !geometry.is_journal(geometry.size() + first + past)));
    }

    #[test]
    fn a_lock_of_the_dead_stays_taken_when_what_they_left_cannot_be_mapped() {
        let (region, (theirs, full, _)) = twice(Geometry::SMALL);
        let (mut first, mut second, mut third) = (machine(1), machine(2), machine(3));
        let mut func = Func::lock(&region, 1, &mut first);
        let pd = func.alloc::<PdRow>(7, Party(1)).unwrap();
        std::mem::forget(func);
        assert!(theirs.reach_function(theirs.block(1), Party(2)));
        full.store(true, Relaxed);
        second.dead.insert(1);
        let tried = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            drop(Func::lock(&theirs, 1, &mut second));
        }));
        assert!(tried.is_err(), "the journal of the dead can't be seen");
        third.dead.extend([1, 2]);
        let func = Func::lock(&region, 1, &mut third);
        assert!(func.row::<PdRow>(pd).is_none(), "what it had begun is taken back by the next");
    }

    #[test]
    fn rows_that_another_process_made_are_found_and_no_more_is_mapped_than_twice_them() {
        let geometry = Geometry { log_mkey: 17, ..Geometry::SMALL };
        let (region, (theirs, _, mapped)) = twice(geometry);
        let mut host = machine(1);
        for round in 0..40 {
            let mut func = Func::lock(&region, 1, &mut host);
            let keys: Vec<u32> = (0..100).map(|_| func.alloc::<MkeyRow>(0, Party(1)).unwrap()).collect();
            func.commit(&mut host);
            drop(func);
            let func = Func::lock(&theirs, 1, &mut host);
            for key in keys {
                assert!(func.row::<MkeyRow>(key).is_some(), "round {round}: key {key}");
            }
            assert!(func.row::<MkeyRow>(func.rows(Table::Mkey) - 1).is_none(), "nobody made the last");
        }
        let table = theirs.block(1).offset + theirs.offsets[Table::Mkey as usize];
        let sizes = mapped.lock().unwrap().iter().filter(|(at, _)| *at == table).map(|(_, len)| *len).max();
        let used = 4000 * size_of::<MkeyRow>();
        assert!(sizes.is_some_and(|len| len >= used && len <= 2 * used + (64 << 10)), "{sizes:?} of {used}");
    }

    #[test]
    fn where_no_more_can_be_mapped_requests_are_refused_and_work_under_way_is_taken_back() {
        let (region, (theirs, full, _)) = twice(Geometry::SMALL);
        let mut host = machine(1);
        assert!(theirs.reach_function(theirs.block(1), Party(1)));
        let mut func = Func::lock(&region, 1, &mut host);
        let pd = func.alloc::<PdRow>(7, Party(1)).unwrap();
        func.commit(&mut host);
        drop(func);
        full.store(true, Relaxed);
        let mut func = Func::lock(&theirs, 1, &mut host);
        assert_eq!(func.alloc::<QpRow>(0, Party(1)), Err(Shortage::NoMemory));
        *func.function_mut(|f| &mut f.mtu) = 77;
        let looked =
            std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| func.row::<PdRow>(pd).is_some()));
        assert!(looked.is_err(), "the row is there and can't be seen");
        drop(func);
        let ring = OutletRing::of(&theirs, Outlet::Uplink);
        ring.open(true);
        assert!(
            !ring.push(&mut host, Origin { from: None, now: 0 }, &[1; 60]),
            "there is no ring to push to"
        );
        assert_eq!((ring.pop(&mut Vec::new()), ring.lost()), (None, 1));
        let func = Func::try_lock(&region, 1, &mut host).expect("nobody holds it");
        assert!(func.function().mtu != 77 && func.row::<PdRow>(pd).is_some());
    }
}
