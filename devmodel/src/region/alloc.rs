//! Allocation of rows and of translation ranges.

use super::{Func, Row, Table, freed::Freed};
use crate::{
    host::Party,
    state::{FreeList, Head},
};

/// A range of translation entries.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MttRange {
    /// First entry; 0 means no range.
    pub first: u32,
    /// Entries requested; the range holds the next power of two.
    pub len: u32,
}

/// Why an allocation failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Shortage {
    /// All rows are in use.
    Full,
    /// The free rows have no backing memory and the machine has none left; [`Memory`](super::Memory) provides it.
    NoMemory,
}

impl Func<'_> {
    /// Allocates a zeroed row for `uid` and `party`.
    pub fn alloc<R: Row + zerocopy::FromZeros>(&mut self, uid: u16, party: Party) -> Result<u32, Shortage> {
        self.alloc_from::<R>(uid, party, 0)
    }

    /// Allocates a row with an index of at least `first`; the first numbers of some tables are reserved (QP0, QP1, key 0).
    pub fn alloc_from<R: Row + zerocopy::FromZeros>(
        &mut self,
        uid: u16,
        party: Party,
        first: u32,
    ) -> Result<u32, Shortage> {
        let rows = self.rows(R::TABLE);
        let mut free = self.function().free[R::TABLE as usize];
        // Prefer numbers that were never used, so that a freed number is reused as late as possible.
        if free.unused_in_block() == 0 && free.fresh.max(first) < rows {
            let start = free.fresh.max(first);
            let mixed = if Table::KNOWN_TO_PEERS.contains(&R::TABLE) { FreeList::BLOCK } else { 1 };
            let block = mixed.min(rows - start);
            self.back_fresh(R::TABLE, free.fresh, start + block)?;
            free.fresh = start + block;
            free.set_unused_in_block(u64::MAX >> (FreeList::BLOCK - block));
        }
        let unused = free.unused_in_block();
        let index = if unused != 0 {
            let bit = match unused.is_power_of_two() {
                true => unused,
                false => self.any_of(unused, R::TABLE, free.fresh),
            };
            free.set_unused_in_block(unused & !bit);
            // A number before the first row or past the table means that the region is corrupted.
            let index = free.fresh.checked_sub(1 + bit.trailing_zeros()).filter(|index| *index < rows);
            let index = index.ok_or(Shortage::Full)?;
            self.reach_row(R::TABLE, index)?;
            self.back_along(R::TABLE, index)?;
            self.forget_link(R::TABLE, index);
            index
        } else {
            // A free list that leads out of the table is corrupted; the rest of it is lost.
            let index = free.head.checked_sub(1).filter(|index| *index < rows).ok_or(Shortage::Full)?;
            self.reach_row(R::TABLE, index)?;
            if !self.clothe(R::TABLE, index) {
                return Err(Shortage::NoMemory);
            }
            free.head = self.next_free(R::TABLE, index);
            if free.head == 0 {
                free.tail = 0;
            }
            index
        };
        free.used += 1;
        *self.function_mut(|f| &mut f.free[R::TABLE as usize]) = free;
        let row = self.any_row_mut::<R>(index);
        *row = R::new_zeroed();
        *row.head_mut() = Head { live: 1, uid, party: party.0, ..Head::default() };
        Ok(index)
    }

    /// Picks one bit of `unused` (rows of `table` before `fresh`) by a keyed hash, so that earlier choices do not reveal the
    /// next one. The earlier choices are part of the hash, so there is no state beyond the rows; a block that is handed out
    /// again after a reset is shuffled differently.
    fn any_of(&self, unused: u64, table: Table, fresh: u32) -> u64 {
        let resets = u64::from(self.function().resets);
        let place = u64::from(fresh) << 32 | u64::from(table as u8) << 8 | u64::from(self.fid());
        let mut left = self.region().choice([unused, resets, place]) % u64::from(unused.count_ones());
        let mut rest = unused;
        while left > 0 {
            rest &= rest - 1;
            left -= 1;
        }
        rest & rest.wrapping_neg()
    }

    /// Frees row `index`.
    pub fn free<R: Row>(&mut self, index: u32) {
        let mut free = self.function().free[R::TABLE as usize];
        let Some(row) = self.row_mut::<R>(index) else { return };
        *row.head_mut() = Head::default();
        match free.tail.checked_sub(1).filter(|tail| *tail < self.rows(R::TABLE)) {
            Some(tail) => self.set_next_free(R::TABLE, tail, index + 1),
            None => free.head = index + 1,
        }
        self.set_next_free(R::TABLE, index, 0);
        self.freed.push(Freed::Row(R::TABLE, index));
        free.tail = index + 1;
        free.used = free.used.saturating_sub(1);
        *self.function_mut(|f| &mut f.free[R::TABLE as usize]) = free;
    }

    /// Rows of `R` in use.
    pub fn used<R: Row>(&self) -> u32 {
        self.function().free[R::TABLE as usize].used
    }

    /// All rows of `R` in use with their indices, in ascending order. Scans all rows ever used.
    pub fn objects<R: Row>(&self) -> impl Iterator<Item = (u32, &R)> {
        let used = self.function().free[R::TABLE as usize].fresh.min(self.rows(R::TABLE));
        let has_memory = |index: &u32| !self.region().is_bare(self.block(), R::TABLE, *index as usize);
        (0..used).filter(has_memory).filter_map(|index| Some((index, self.row::<R>(index)?)))
    }

    /// Indices of the rows of `R` in use that match `pick`, in ascending order.
    pub fn which<R: Row>(&self, pick: impl Fn(&R) -> bool) -> Vec<u32> {
        self.objects::<R>().filter(|(_, row)| pick(row)).map(|(index, _)| index).collect()
    }

    /// Indices of all rows of `R` in use, in ascending order.
    pub fn live<R: Row>(&self) -> Vec<u32> {
        self.which::<R>(|_| true)
    }

    /// Allocates `len` translation entries, not cleared.
    pub fn alloc_mtt(&mut self, len: u32) -> Result<MttRange, Shortage> {
        if len == 0 {
            return Ok(MttRange::default());
        }
        if len > self.rows(Table::Mtt) / 2 {
            return Err(Shortage::Full);
        }
        let class = len.next_power_of_two().trailing_zeros();
        // The allocation may reuse translations that this job freed.
        self.freed.retain(|freed| !matches!(freed, Freed::Translations(..)));
        let first = self.take_mtt(class)?;
        *self.function_mut(|f| &mut f.mtt_used) += 1 << class;
        Ok(MttRange { first, len })
    }

    fn take_mtt(&mut self, class: u32) -> Result<u32, Shortage> {
        let head = *self.function().mtt_free.get(class as usize).ok_or(Shortage::Full)?;
        // A corrupted list may lead past the table.
        if u64::from(head) + (1 << class) > self.rows(Table::Mtt).into() {
            return Err(Shortage::Full);
        }
        if head != 0 {
            self.reach(Table::Mtt, head + (1 << class) - 1)?;
            if !self.clothe_translations(head, class) {
                return Err(Shortage::NoMemory);
            }
            // Journaled, because the entry will be overwritten: after a rollback the list must be intact.
            let next = *self.plain_mut::<u64>(Table::Mtt, head) as u32;
            self.function_mut(|f| &mut f.mtt_free)[class as usize] = next;
            return Ok(head);
        }
        // Entry 0 means "none", so fresh entries start after it; they are not aligned.
        let fresh = self.function().mtt_fresh.max(1);
        if u64::from(fresh) + (1 << class) <= self.rows(Table::Mtt).into() {
            self.back_rows(Table::Mtt, self.function().mtt_fresh, fresh + (1 << class))?;
            *self.function_mut(|f| &mut f.mtt_fresh) = fresh + (1 << class);
            return Ok(fresh);
        }
        // Split a larger range; its upper half becomes free.
        if class >= 30 {
            return Err(Shortage::Full);
        }
        let first = self.take_mtt(class + 1)?;
        self.give_mtt(first + (1 << class), class);
        Ok(first)
    }

    fn give_mtt(&mut self, first: u32, class: u32) {
        let head = self.function().mtt_free[class as usize];
        *self.plain_mut::<u64>(Table::Mtt, first) = head.into();
        self.function_mut(|f| &mut f.mtt_free)[class as usize] = first;
    }

    /// Frees a range.
    pub fn free_mtt(&mut self, range: MttRange) {
        // A range past the table means that the region is corrupted.
        let rows = self.rows(Table::Mtt);
        if range.first == 0 || range.len == 0 || range.first >= rows || range.len > rows {
            return;
        }
        let class = range.len.next_power_of_two().trailing_zeros();
        self.give_mtt(range.first, class);
        self.freed.push(Freed::Translations(range.first, range.len));
        let used = self.function().mtt_used;
        *self.function_mut(|f| &mut f.mtt_used) = used.saturating_sub(1 << class);
    }
}
