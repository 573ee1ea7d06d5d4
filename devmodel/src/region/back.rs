//! Backing memory of the region: which parts are backed, and when.
//!
//! A region is sparse. If its pages come from a file system that may be full, the first touch of a missing page kills the
//! program. So memory is requested before it is used, and a refusal is an error of the call that needs it: a function's
//! registers, journals and ring when it is opened, rows when their numbers are first handed out, payloads when the first frame
//! with one arrives. Each page is requested once.

use super::{
    Func, Geometry, Region, Shortage, Sync, Table, journal_layout,
    layout::{OUTLET_LANES, Outlet, PAGE, PAYLOAD, SLOTS},
    queues::READY,
    window::Block,
};
use crate::host::Party;
use crate::state::{FunctionRow, ReadResource, SendRecord};
use std::sync::atomic::Ordering::{AcqRel, Acquire};

/// Payload slots of the receive ring that are backed together.
const TOGETHER: usize = SLOTS / 64;

/// Rows in other tables that belong to one row of `table`: the table, and how many per row.
pub(super) const fn along(table: Table) -> &'static [(Table, u32)] {
    match table {
        Table::Qp => &[
            (Table::SendRecord, SendRecord::PER_QP as u32),
            (Table::ReadResource, ReadResource::PER_QP as u32),
            (Table::Congestion, 1),
        ],
        _ => &[],
    }
}

/// Numbers of timers and ready-ring entries to back, from the number of rows of each table that were ever used: as many timers as
/// `Table::Timer` has room for, and a power of two of ready-ring entries. Zero without queues and tables of the subnet administrator,
/// because the first page of either is always mapped.
pub(super) fn at_once(used: impl Fn(Table) -> u32) -> [u32; 2] {
    let timers = match 3 * used(Table::Qp) + used(Table::Cq) + used(Table::Rq) + used(Table::SubnetSend) {
        0 => 0,
        some => some + 2,
    };
    let ready = match used(Table::Qp) + used(Table::Sq) {
        0 => 0,
        some => some.next_power_of_two(),
    };
    [timers, ready]
}

impl Region {
    /// Backs `len` bytes at `from` of a function's table with memory and maps them in this process.
    pub(super) fn back_part(&self, block: &Block, table: Table, from: usize, len: usize) -> bool {
        let last = (from + len.max(1) - 1) / self.sizes[table as usize];
        self.reach(block, table, last.min(self.counts[table as usize] - 1))
            && self.memory.back(block.offset + self.offsets[table as usize] + from, len)
    }

    /// Backs the memory that is needed before any function is used: the words that parties access without a lock. The cleanup
    /// of a dead party reads all of them.
    pub fn back_words(&self) -> bool {
        self.memory.back(0, Geometry::FRONT)
    }

    /// Backs the memory that every use of function `fid` by `party` touches beyond [`back_words`](Self::back_words): its registers, the
    /// slots of its receive ring, and as much of the party's journal as jobs of ordinary size fill. Returns false if there is none.
    pub fn back_function(&self, fid: u8, party: Party) -> bool {
        let block = self.block(fid);
        let slots = SLOTS * self.sizes[Table::RxSlot as usize];
        self.reach_function(block, party)
            // Tearing a function down asks for each row if it is backed.
            && self.reach(block, Table::Link, self.rows(Table::Link) - 1)
            && self.back_part(block, Table::Function, 0, size_of::<FunctionRow>())
            && self.back_part(block, Table::RxSlot, 0, slots)
            && self.back_journal(fid, party)
    }

    /// The part of [`back_function`](Self::back_function) needed by a party that runs the function without having it open.
    pub fn back_journal(&self, fid: u8, party: Party) -> bool {
        let first = self.offsets[Table::Journal as usize] + self.journal_of(party) * journal_layout::SIZE;
        let at = self.block(fid).offset + first;
        journal_layout::OFTEN_USED.iter().all(|(from, len)| self.memory.back(at + from, *len))
    }

    /// [`back_journal`](Self::back_journal) for every present function.
    pub fn back_journals(&self, party: Party) -> bool {
        self.functions_there().all(|fid| self.back_journal(fid, party))
    }

    /// Backs the first lane of an outlet with memory; on failure returns the number of bytes it needs. The other lanes, which
    /// are used only while a filler of the first is stopped, request memory for each frame.
    pub fn back_outlet(&self, which: Outlet) -> Result<(), usize> {
        let len = self.geometry.outlet_size(which);
        let mapped = (0..OUTLET_LANES).all(|lane| self.lane_pointer(which, lane).is_some());
        if mapped && self.memory.back(self.geometry.lane_at(which, 0), len) { Ok(()) } else { Err(len) }
    }

    /// True if the payload of slot `index` of a function's receive ring is backed; requests memory if it is not.
    #[inline(always)]
    pub(super) fn has_payload(&self, block: &Block, index: usize) -> bool {
        let group = index / TOGETHER;
        let word = if group < 32 { Sync::RxBacked } else { Sync::RxBackedToo };
        block.sync(word).load(Acquire) & 1 << (group % 32) != 0 || self.back_payload(block, group, word)
    }

    #[cold]
    #[inline(never)]
    fn back_payload(&self, block: &Block, group: usize, word: Sync) -> bool {
        let len = TOGETHER * PAYLOAD;
        let backed = self.back_part(block, Table::RxPayload, group * len, len);
        if backed {
            block.sync(word).fetch_or(1 << (group % 32), AcqRel);
        }
        backed
    }
}

impl Func<'_> {
    /// Maps row `index` of `table`.
    pub(super) fn reach(&self, table: Table, index: u32) -> Result<(), Shortage> {
        let index = (index as usize).min(self.rows(table) as usize - 1);
        if self.region().reach(self.block(), table, index) { Ok(()) } else { Err(Shortage::NoMemory) }
    }

    /// Maps all memory that using row `index` of an object table touches; another process may have backed it.
    pub(super) fn reach_row(&self, table: Table, index: u32) -> Result<(), Shortage> {
        self.reach(table, index)?;
        self.reach(Table::Link, self.link(table, index))?;
        along(table).iter().try_for_each(|(other, each)| self.reach(*other, (index + 1) * each - 1))?;
        let [timers, ready] = at_once(|table| self.function().free[table as usize].fresh);
        self.reach(Table::Timer, timers)?;
        self.reach(Table::Ready, ready.max(READY))
    }

    /// Backs rows `from..to` of `table` with memory. Rows before `from` are backed already.
    pub(crate) fn back_rows(&self, table: Table, from: u32, to: u32) -> Result<(), Shortage> {
        self.reach(table, to.saturating_sub(1))?;
        let size = self.region().sizes[table as usize];
        // Tables begin at page boundaries.
        let had = (from as usize * size).next_multiple_of(PAGE);
        let end = (to.min(self.rows(table)) as usize * size).next_multiple_of(PAGE);
        let there = end <= had || self.region().back_part(self.block(), table, had, end - had);
        if there { Ok(()) } else { Err(Shortage::NoMemory) }
    }

    /// Backs the rows of other tables that belong to row `index` of `table`, which was never used.
    pub(super) fn back_along(&self, table: Table, index: u32) -> Result<(), Shortage> {
        let there = along(table).iter().all(|(other, each)| {
            let size = self.region().sizes[*other as usize] * *each as usize;
            self.region().back_part(self.block(), *other, index as usize * size, size)
        });
        if there { Ok(()) } else { Err(Shortage::NoMemory) }
    }

    /// Backs rows `fresh..end` of `table`, which were never used, and the timers and ready-ring entries that they may need.
    pub(super) fn back_fresh(&self, table: Table, fresh: u32, end: u32) -> Result<(), Shortage> {
        self.back_rows(table, fresh, end)?;
        if !self.back_links(table, fresh, end) {
            return Err(Shortage::NoMemory);
        }
        if matches!(table, Table::Qp | Table::Cq | Table::Sq | Table::Rq | Table::SubnetSend) {
            let before = |t: Table| self.function().free[t as usize].fresh;
            let after = |t: Table| if t as u8 == table as u8 { end } else { before(t) };
            let ([timers, ready], [more_timers, more_ready]) = (at_once(before), at_once(after));
            self.back_rows(Table::Timer, timers, more_timers)?;
            self.back_rows(Table::Ready, ready, more_ready)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Origin, OutletRing, SlotPayload, TimerKind, WireRing, tests::machine};
    use super::{super::Memory, *};
    use crate::state::{CqRow, FlowEntryRow, FreeList, MkeyRow, QpRow};
    use std::{
        collections::BTreeSet,
        ptr::NonNull,
        sync::{
            Arc, Mutex,
            atomic::{AtomicUsize, Ordering::Relaxed},
        },
    };

    /// Grants a limited number of pages and records which.
    struct Scarce {
        within: Region,
        books: Arc<Books>,
    }

    #[derive(Default)]
    struct Books {
        left: AtomicUsize,
        given: Mutex<BTreeSet<usize>>,
        asked: AtomicUsize,
    }

    // SAFETY: the memory of another region that is not otherwise in use.
    unsafe impl Memory for Scarce {
        fn map(&self, offset: usize, len: usize) -> Option<NonNull<u8>> {
            self.within.memory.map(offset, len)
        }

        fn back(&self, offset: usize, len: usize) -> bool {
            self.books.asked.fetch_add(1, Relaxed);
            let mut given = self.books.given.lock().unwrap();
            let pages = (offset / PAGE)..(offset + len).div_ceil(PAGE);
            let new: Vec<usize> = pages.filter(|page| !given.contains(page)).collect();
            let enough = self.books.left.load(Relaxed).checked_sub(new.len());
            if let Some(left) = enough {
                self.books.left.store(left, Relaxed);
                given.extend(new);
            }
            enough.is_some() && self.within.memory.back(offset, len)
        }
    }

    fn region(pages: usize) -> (Region, Arc<Books>) {
        let within = Region::private(Geometry::SMALL);
        let (len, books) = (within.len, Arc::new(Books::default()));
        books.left.store(pages, Relaxed);
        (Region::attach(len, Box::new(Scarce { within, books: books.clone() })).unwrap(), books)
    }

    /// Pages of function 1's block that were written to without having been backed before.
    fn untold(region: &Region, books: &Books) -> Vec<usize> {
        let block = region.block(1).offset..region.block(2).offset;
        let given = books.given.lock().unwrap();
        let touched = region.snapshot().pages.into_iter().map(|(offset, _)| offset);
        touched.filter(|offset| block.contains(offset) && !given.contains(&(offset / PAGE))).collect()
    }

    #[test]
    fn what_is_used_was_asked_for_before() {
        let (region, books) = region(usize::MAX);
        assert!(region.back_words() && region.back_function(1, Party(1)));
        let mut host = machine(1);
        let mut func = Func::lock(&region, 1, &mut host);
        let qps: Vec<u32> = (0..200).map(|_| func.alloc_from::<QpRow>(0, Party(1), 2).unwrap()).collect();
        let cq = func.alloc::<CqRow>(0, Party(1)).unwrap();
        func.alloc::<FlowEntryRow>(0, Party(1)).unwrap();
        func.commit(&mut host);
        for (i, qp) in qps.iter().enumerate() {
            func.send_record_mut(*qp, 63).request.psn = 1;
            func.read_resource_mut(*qp, 15).psn = 1;
            assert!(func.arm_timer(*qp, TimerKind::Connection(crate::transport::Timer::Ack), 1 + i as u64));
            assert!(func.arm_timer(*qp, TimerKind::Connection(crate::transport::Timer::Rnr), 1 + i as u64));
            assert!(func.arm_timer(*qp, TimerKind::Rate, 1 + i as u64));
            func.make_ready(*qp);
            func.commit(&mut host);
        }
        // Cycle through the ring without letting it become empty.
        for _ in 0..5000 {
            let qp = func.take_ready().unwrap();
            func.make_ready(qp);
            func.commit(&mut host);
        }
        assert!(func.arm_timer(cq, TimerKind::Cq, 1));
        assert!(func.arm_timer(0, TimerKind::Command, 1) && func.arm_timer(0, TimerKind::Pace, 1));
        for len in [1, 30, 500] {
            let range = func.alloc_mtt(len).unwrap();
            (range.first..range.first + len).for_each(|entry| func.set_mtt(entry, 1));
        }
        func.commit(&mut host);
        drop(func);
        for n in 0..SLOTS {
            let payload = SlotPayload::Bytes(&[1; 900]);
            assert!(WireRing::of(&region, 1).push(&mut host, &[1; 60], payload, false), "frame {n}");
        }
        assert_eq!(untold(&region, &books), [] as [usize; 0]);
    }

    #[test]
    fn every_timer_is_backed_where_all_queues_are_used() {
        let (region, _) = region(usize::MAX);
        assert!(region.back_words() && region.back_function(1, Party(1)));
        let mut host = machine(1);
        let func = Func::lock(&region, 1, &mut host);
        let [timers, _] = at_once(|table| func.rows(table));
        assert_eq!(timers, func.rows(Table::Timer));
    }

    #[test]
    fn rows_without_memory_are_refused_and_nothing_changes() {
        let (region, books) = region(usize::MAX);
        assert!(region.back_words() && region.back_function(1, Party(1)));
        let mut host = machine(1);
        let mut func = Func::lock(&region, 1, &mut host);
        books.left.store(0, Relaxed);
        assert_eq!(func.alloc_from::<QpRow>(0, Party(1), 2), Err(Shortage::NoMemory));
        let free = func.function().free[Table::Qp as usize];
        assert_eq!((free.fresh, free.unused_in_block(), free.used), (0, 0, 0), "no block was begun");
        // The rows of a block, one page of timers and one of ready-ring entries.
        let block = ((2 + FreeList::BLOCK as usize) * size_of::<QpRow>()).div_ceil(PAGE) + 2;
        books.left.store(block + 8, Relaxed);
        let made = (0..200).take_while(|_| func.alloc_from::<QpRow>(0, Party(1), 2).is_ok()).count();
        // Two and a half KiB of send records are most of what each further QP takes.
        assert!((1..20).contains(&made), "{made} queue pairs in 32 KiB");
        let unused = func.function().free[Table::Qp as usize].unused_in_block().count_ones();
        assert_eq!(unused as usize, FreeList::BLOCK as usize - made);
        assert_eq!(func.alloc::<QpRow>(0, Party(1)), Err(Shortage::NoMemory));
        assert_eq!((func.used::<QpRow>() as usize, func.live::<QpRow>().len()), (made, made));
        books.left.store(0, Relaxed);
        assert_eq!(func.alloc::<MkeyRow>(0, Party(1)), Err(Shortage::NoMemory));
        assert_eq!(func.alloc_mtt(4), Err(Shortage::NoMemory));
        assert_eq!(func.function().mtt_used, 0);
        func.commit(&mut host);
        drop(func);
        let mut push = |len| {
            let payload = [1; 4096];
            WireRing::of(&region, 1).push(&mut host, &[1; 60], SlotPayload::Bytes(&payload[..len]), false)
        };
        assert!(!push(900), "there is no memory for the payload");
        assert!(push(2), "a short one lies in its slot");
        books.left.store(usize::MAX, Relaxed);
        assert!(push(900));
        let mut func = Func::lock(&region, 1, &mut host);
        assert!(func.alloc::<QpRow>(0, Party(1)).is_ok());
    }

    #[test]
    fn memory_is_asked_for_once_a_page() {
        let (region, books) = region(usize::MAX);
        let mut host = machine(1);
        let mut func = Func::lock(&region, 1, &mut host);
        func.alloc::<FlowEntryRow>(0, Party(1)).unwrap();
        let asked = books.asked.load(Relaxed);
        (0..PAGE / size_of::<FlowEntryRow>() - 1)
            .for_each(|_| _ = func.alloc::<FlowEntryRow>(0, Party(1)).unwrap());
        assert_eq!(books.asked.load(Relaxed), asked);
        func.alloc::<FlowEntryRow>(0, Party(1)).unwrap();
        assert_eq!(books.asked.load(Relaxed), asked + 1);
    }

    #[test]
    fn memory_for_rows_in_mixed_order_is_asked_for_once_a_block() {
        let (region, books) = region(usize::MAX);
        let mut host = machine(1);
        let mut func = Func::lock(&region, 1, &mut host);
        for blocks in 1..=2 {
            (0..FreeList::BLOCK).for_each(|_| _ = func.alloc::<MkeyRow>(0, Party(1)).unwrap());
            // One more request for the links of a thousand rows.
            assert_eq!(books.asked.load(Relaxed), blocks + 1);
        }
    }

    #[test]
    fn a_list_that_leads_out_of_the_table_has_no_rows() {
        let region = Region::private(Geometry::SMALL);
        let mut host = machine(1);
        let mut func = Func::lock(&region, 1, &mut host);
        let rows = func.rows(Table::Mkey);
        (0..rows).for_each(|_| _ = func.alloc::<MkeyRow>(0, Party(1)).unwrap());
        func.function_mut(|f| &mut f.free)[Table::Mkey as usize].head = rows + 1;
        assert_eq!(func.alloc::<MkeyRow>(0, Party(1)), Err(Shortage::Full));
        func.function_mut(|f| &mut f.mtt_free)[2] = func.rows(Table::Mtt);
        assert_eq!(func.alloc_mtt(4), Err(Shortage::Full));
    }

    #[test]
    fn a_spare_lane_of_an_outlet_asks_for_each_frame() {
        let (region, books) = region(usize::MAX);
        assert!(region.back_words() && region.back_outlet(Outlet::Uplink).is_ok());
        let ring = OutletRing::of(&region, Outlet::Uplink);
        ring.open(true);
        books.left.store(0, Relaxed);
        let mut others = machine(9);
        let mut push = |stopped: &[u16]| {
            others.stopped.extend(stopped);
            ring.push(&mut others, Origin { from: Some(1), now: 1 }, &[7; 1000])
        };
        assert!(push(&[]), "the first lane has memory");
        ring.hold_lane(0, &mut machine(1));
        assert!(!push(&[1]), "there is no memory for the second");
        books.left.store(1, Relaxed);
        assert!(push(&[]));
        let mut frame = Vec::new();
        let taken = std::iter::from_fn(|| ring.pop(&mut frame)).count();
        assert_eq!((taken, ring.lost()), (2, 1));
        let outlets = region.geometry.lane_at(Outlet::Uplink, 0)..region.block(0).offset;
        let given = books.given.lock().unwrap();
        for (offset, _) in region.snapshot().pages {
            assert!(!outlets.contains(&offset) || given.contains(&(offset / PAGE)), "{offset:#x}");
        }
    }
}
