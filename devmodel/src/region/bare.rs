//! Returning memory: pages without a row in use, and free translations.
//!
//! The links of a table's free rows are in a separate table ([`Table::Link`]), so that nothing of value is left on such a page. After its
//! page is returned a row is bare: it is backed again before it is used. A page is returned after the commit of the job that freed its
//! last row; if the process is killed before that, the page waits for the next row that is freed there, or for the function's reset.

use super::{
    Func, Region, Table,
    back::{along, at_once},
    freed::Freed,
    layout::PAGE,
    window::Block,
};
use crate::state::{FreeList, Head};

/// In a row's link: its memory was returned.
const BARE: u32 = 1 << 31;
/// log2 of the smallest range of translations that contains at least one page between its first and last entry.
const LARGE: u32 = 10;

impl Region {
    /// True if row `index` of `table` of a function has no memory; such a row is free.
    pub(super) fn is_bare(&self, block: &Block, table: Table, index: usize) -> bool {
        let Some(first) = self.links[table as usize] else { return false };
        let at = self.row_pointer(block, Table::Link, first + index, size_of::<u32>());
        // SAFETY: in bounds by `row_pointer`; aligned because tables begin at page boundaries; read volatile because the word
        // may change during the read.
        unsafe { at.cast::<u32>().read_volatile() & BARE != 0 }
    }

    /// Returns the memory of `len` bytes at `from` of a table.
    fn give_part_back(&self, block: &Block, table: Table, from: usize, len: usize) {
        self.memory.give_back(block.offset + self.offsets[table as usize] + from, len);
    }
}

impl Func<'_> {
    /// Index in [`Table::Link`] of the link of row `index` of `table`.
    pub(super) fn link(&self, table: Table, index: u32) -> u32 {
        self.region().links[table as usize].map_or(0, |first| first as u32) + index
    }

    /// The row of `table` that follows `index` in the free list, plus one; 0 is none.
    pub(super) fn next_free(&self, table: Table, index: u32) -> u32 {
        *self.plain::<u32>(Table::Link, self.link(table, index)) & !BARE
    }

    /// Sets the successor that [`next_free`](Self::next_free) returns.
    pub(super) fn set_next_free(&mut self, table: Table, index: u32, next: u32) {
        let link = self.link(table, index);
        let bare = *self.plain::<u32>(Table::Link, link) & BARE;
        *self.plain_mut(Table::Link, link) = bare | next;
    }

    /// Clears the stale link of row `index`, which is backed but has not been used since the function's reset.
    pub(super) fn forget_link(&mut self, table: Table, index: u32) {
        let link = self.link(table, index);
        if *self.plain::<u32>(Table::Link, link) != 0 {
            *self.plain_mut::<u32>(Table::Link, link) = 0;
        }
    }

    /// Backs the links of rows `from..to`, which were never used. Returns false if there is no memory.
    pub(super) fn back_links(&self, table: Table, from: u32, to: u32) -> bool {
        if self.reach(Table::Link, self.link(table, to)).is_err() {
            return false;
        }
        let [begin, end] = [from, to].map(|row| self.link(table, row) as usize * size_of::<u32>());
        // Earlier rows have backed their part of the page.
        let had = if from == 0 { begin / PAGE * PAGE } else { begin.next_multiple_of(PAGE) };
        end <= had || self.region().back_part(self.block(), Table::Link, had, end - had)
    }

    /// Prepares row `index` of `table` for use: backs it again if its memory was returned, together with its rows in other tables.
    pub(super) fn clothe(&mut self, table: Table, index: u32) -> bool {
        if !self.region().is_bare(self.block(), table, index as usize) {
            return true;
        }
        let size = self.region().sizes[table as usize];
        let there = self.region().back_part(self.block(), table, index as usize * size, size)
            && self.back_along(table, index).is_ok();
        if there {
            let link = self.link(table, index);
            *self.plain_mut::<u32>(Table::Link, link) &= !BARE;
        }
        there
    }

    /// Backs translations that were freed before and are about to be reused.
    pub(super) fn clothe_translations(&self, first: u32, class: u32) -> bool {
        let size = size_of::<u64>();
        class < LARGE
            || self.region().back_part(self.block(), Table::Mtt, first as usize * size, size << class)
    }

    /// Returns the pages of the rows and translations that the last job freed.
    #[cold]
    pub(super) fn give_back(&mut self) {
        for freed in std::mem::take(&mut self.freed) {
            match freed {
                Freed::Row(table, index) => {
                    self.give_pages_back(table, (table, 1), index);
                    along(table).iter().for_each(|of_it| self.give_pages_back(table, *of_it, index));
                }
                Freed::Translations(first, len) => {
                    let (size, class) = (size_of::<u64>(), len.next_power_of_two());
                    // The first entry holds the link to the next free range.
                    let from = ((first as usize + 1) * size).next_multiple_of(PAGE);
                    let to = (first + class) as usize * size / PAGE * PAGE;
                    if from < to {
                        self.region().give_part_back(self.block(), Table::Mtt, from, to - from);
                    }
                }
            }
        }
    }

    /// Returns the pages that hold the entries of row `index` of `owner` in `table` (`each` entries per row of `owner`), unless
    /// another row on the page is in use.
    fn give_pages_back(&mut self, owner: Table, (table, each): (Table, u32), index: u32) {
        let size = self.region().sizes[table as usize] * each as usize;
        let (first, last) = (index as usize * size / PAGE, ((index as usize + 1) * size - 1) / PAGE);
        for page in first..=last {
            let rows = (page * PAGE / size) as u32..=((page * PAGE + PAGE - 1) / size) as u32;
            if rows.clone().any(|row| self.is_kept(owner, row)) {
                continue;
            }
            for row in rows.filter(|row| *row < self.rows(owner)) {
                let link = self.link(owner, row) as usize;
                let at = self.region().row_pointer(self.block(), Table::Link, link, size_of::<u32>());
                // SAFETY: in bounds by `row_pointer`; the word is ours by the lock. It is not journaled, because it remains
                // valid after a rollback: a bare row that has memory after all is just backed once more.
                unsafe { *at.cast::<u32>() |= BARE };
            }
            self.region().give_part_back(self.block(), table, page * PAGE, PAGE);
        }
    }

    /// True if row `index` of `table` is in use or must stay backed: rows never used, and the block that numbers are currently taken from.
    fn is_kept(&self, table: Table, index: u32) -> bool {
        let fresh = self.function().free[table as usize].fresh;
        let block = if Table::KNOWN_TO_PEERS.contains(&table) { FreeList::BLOCK } else { 1 };
        if index >= self.rows(table) {
            return false;
        }
        if u64::from(index) + u64::from(block) > fresh.into() {
            return true;
        }
        let size = self.region().sizes[table as usize];
        let is_live = || {
            let row = self.region().row_pointer(self.block(), table, index as usize, size);
            // SAFETY: in bounds by `row_pointer`; every row of such a table begins with a head, which is plain data; we hold the lock.
            unsafe { (*row.cast::<Head>()).live != 0 }
        };
        !self.region().is_bare(self.block(), table, index as usize) && is_live()
    }

    /// Returns the memory of a function that was just reset and had the free lists `before`: all rows of tables that start
    /// afresh, all translations, and the timers and ready-ring entries that no row needs to have backed.
    pub(crate) fn give_all_back(&self, before: &[FreeList]) {
        let fresh = |table: Table| self.function().free[table as usize].fresh.min(self.rows(table));
        let anew = Table::of_objects().filter(|t| fresh(*t) == 0 && before[*t as usize].fresh != 0);
        let [timers, ready] = at_once(fresh);
        for (table, from) in
            anew.chain([Table::Mtt]).map(|t| (t, 0)).chain([(Table::Timer, timers), (Table::Ready, ready)])
        {
            let size = self.region().sizes[table as usize];
            let (from, end) =
                ((from as usize * size).next_multiple_of(PAGE), self.region().rows(table) * size);
            let len = end.next_multiple_of(PAGE).saturating_sub(from);
            if len != 0 {
                self.region().give_part_back(self.block(), table, from, len);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        host::Party,
        region::{Geometry, Memory, tests::machine},
        state::{CqRow, MkeyRow, QpRow},
    };
    use std::{
        collections::BTreeSet,
        ptr::NonNull,
        sync::{Arc, Mutex},
    };

    /// Memory that records which pages it has backed and overwrites them when they are returned.
    struct Pages(Region, Arc<Mutex<BTreeSet<usize>>>);

    // SAFETY: the memory of another region that is not otherwise in use.
    unsafe impl Memory for Pages {
        fn map(&self, offset: usize, len: usize) -> Option<NonNull<u8>> {
            self.0.memory.map(offset, len)
        }
        fn back(&self, offset: usize, len: usize) -> bool {
            self.1.lock().unwrap().extend(offset / PAGE..(offset + len).div_ceil(PAGE));
            true
        }
        fn give_back(&self, offset: usize, len: usize) {
            assert!(offset % PAGE == 0 && len % PAGE == 0, "whole pages");
            let pages = offset / PAGE..(offset + len) / PAGE;
            let mut given = self.1.lock().unwrap();
            for page in pages.filter(|page| given.remove(page)) {
                // SAFETY: a page of the region, which outlives its memory.
                unsafe { self.0.memory.map(page * PAGE, PAGE).unwrap().write_bytes(0x5a, PAGE) };
            }
        }
    }

    fn region() -> (Region, Arc<Mutex<BTreeSet<usize>>>) {
        let within = Region::private(Geometry::SMALL);
        let (len, given) = (within.len, Arc::default());
        let region = Region::attach(len, Box::new(Pages(within, Arc::clone(&given)))).unwrap();
        assert!(region.back_words() && region.back_function(1, Party(1)));
        (region, given)
    }

    #[test]
    fn pages_go_back_when_their_last_row_is_free_and_come_again() {
        let (region, given) = region();
        let mut host = machine(1);
        let mut func = Func::lock(&region, 1, &mut host);
        let had = |given: &Mutex<BTreeSet<usize>>| given.lock().unwrap().len();
        let before = had(&given);
        let mut most = 0;
        for round in 0..5 {
            let mut made = Vec::new();
            for _ in 0..200 {
                let rows = (func.alloc_from::<QpRow>(0, Party(1), 2), func.alloc::<CqRow>(0, Party(1)));
                let key = func.alloc::<MkeyRow>(0, Party(1)).unwrap();
                let (qp, cq) = (rows.0.unwrap(), rows.1.unwrap());
                func.send_record_mut(qp, 63).request.psn = 1;
                let range = func.alloc_mtt(if qp % 7 == 0 { 1024 } else { 3 }).ok();
                if let Some(range) = range {
                    (range.first..range.first + range.len).for_each(|entry| func.set_mtt(entry, 1));
                }
                func.commit(&mut host);
                made.push((qp, cq, key, range));
            }
            most = most.max(had(&given));
            // Free half of them first, so that pages hold both freed and live rows.
            let (one, two): (Vec<_>, Vec<_>) = made.into_iter().partition(|(qp, ..)| qp % 3 == 0);
            for (qp, cq, key, range) in one.into_iter().chain(two) {
                func.free::<QpRow>(qp);
                func.free::<CqRow>(cq);
                func.free::<MkeyRow>(key);
                range.into_iter().for_each(|range| func.free_mtt(range));
                func.commit(&mut host);
            }
            let left = had(&given) - before;
            assert!(left * 3 < most - before, "round {round}: {left} pages are left of {}", most - before);
        }
        assert_eq!((func.used::<QpRow>(), func.live::<MkeyRow>().len()), (0, 0));
    }

    #[test]
    fn a_row_that_is_used_again_in_the_same_job_keeps_its_memory() {
        let (region, given) = region();
        let mut host = machine(1);
        let mut func = Func::lock(&region, 1, &mut host);
        let all: Vec<u32> = (0..).map_while(|_| func.alloc::<CqRow>(0, Party(1)).ok()).collect();
        func.commit(&mut host);
        let full = given.lock().unwrap().len();
        for cq in &all {
            func.free::<CqRow>(*cq);
            assert_eq!(func.alloc::<CqRow>(0, Party(1)), Ok(*cq), "the only one that is free");
            func.commit(&mut host);
            assert!(func.row::<CqRow>(*cq).is_some());
        }
        assert_eq!(given.lock().unwrap().len(), full);
        // A job that is rolled back has freed nothing.
        func.free::<CqRow>(all[0]);
        func.rollback();
        func.commit(&mut host);
        assert!(func.row::<CqRow>(all[0]).is_some() && given.lock().unwrap().len() == full);
    }
}
