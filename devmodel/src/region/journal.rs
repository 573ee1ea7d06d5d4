//! The journal of a function, which makes a job's changes atomic.
//!
//! During a job it holds the old bytes of every row that the job changes (undo) and the list of external effects of the job
//! (completions, events, interrupts). `commit` declares the changes final and then carries the effects out. If a party dies
//! before that point, the next holder of the lock undoes its changes; if it dies later, the next holder carries the effects out
//! again. That is harmless, since each effect writes given bytes to a given place.
//!
//! Each party has its own journal for each function it locks. The lock names the party, so its journal is found when it dies,
//! and the lines it writes all the time stay in its own cache.
//!
//! Only the order of stores within one thread matters here (the stores of a killed thread are all visible), so plain stores
//! with compiler fences suffice: data is written before the count that covers it, and after the count that permits it.

use super::{
    Memic, Region, Table,
    journal_layout::{EFFECT_DATA, ENTRIES, Entry, Layout, MSIX, NOTED, Noted, UNDO, WRITE},
    memic,
    window::Block,
};
use crate::host::{Host, Iova, Party, Rid};
use hwspec::cqe::Cqe64;
use std::sync::atomic::{Ordering::*, compiler_fence};
use sync::laboratory::{Site, step};

/// An external effect of a job, carried out when it commits.
#[derive(Clone, Copy, Debug)]
pub enum Effect<'a> {
    /// Writes at most 128 bytes, the last byte last: a completion, an event, an atomic's result.
    Write {
        /// Bus address.
        at: Iova,
        /// The bytes.
        data: &'a [u8],
    },
    /// Raises an interrupt.
    Msix {
        /// Vector.
        vector: u16,
        /// Message address.
        address: u64,
        /// Message data.
        data: u32,
    },
}

/// Fill level of a journal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct JournalStats {
    /// Total rows that could not be saved. 0 in a correct model.
    pub overflows: u32,
    /// Rows saved by the current job.
    pub entries: u32,
}

/// Bit position of the table number in [`Entry::offset`].
const TABLE: u32 = 48;

#[derive(Clone, Copy)]
pub(super) struct Journal(*mut Layout);

impl Journal {
    /// The journal of `party` for the function of `block`.
    #[inline(always)]
    pub(super) fn at(region: &Region, block: &Block, party: Party) -> Self {
        Self(region.journal_pointer(block, region.journal_of(party)).cast())
    }

    #[inline(always)]
    fn words(&self) -> &Layout {
        // SAFETY: in bounds and aligned by `at`; the caller holds the function's lock; the counts are atomics and the arrays
        // are only accessed through raw pointers.
        unsafe { &*self.0 }
    }

    pub(super) fn stats(&self) -> JournalStats {
        JournalStats {
            overflows: self.words().overflows.load(Relaxed),
            entries: self.words().entries.load(Relaxed),
        }
    }

    /// Saves the `len` bytes at `at` (`offset` of `table`) before they change, once per job.
    #[inline(always)]
    pub(super) fn save(&self, table: Table, offset: usize, at: *mut u8, len: usize) {
        let words = self.words();
        let offset = (table as u64) << TABLE | offset as u64;
        let n = words.entries.load(Relaxed) as usize;
        let used = words.undo_bytes.load(Relaxed) as usize;
        if n >= ENTRIES || used + len > UNDO {
            return self.save_no_more(offset, len);
        }
        // SAFETY: entries before `n`, which is below ENTRIES, were written; the caller holds the lock.
        let noted = unsafe { std::slice::from_raw_parts((&raw const (*self.0).index).cast::<Entry>(), n) };
        if noted.iter().rev().any(|e| e.offset == offset && e.len as usize >= len) {
            return;
        }
        // SAFETY: the caller guarantees that the source is in the region; the destination is bounded above.
        unsafe {
            std::ptr::copy_nonoverlapping(at, (&raw mut (*self.0).undo).cast::<u8>().add(used), len);
            (&raw mut (*self.0).index).cast::<Entry>().add(n).write(Entry {
                offset,
                len: len as u32,
                data: used as u32,
            });
        }
        step(Site::Journal);
        words.undo_bytes.store((used + len.next_multiple_of(8)) as u32, Relaxed);
        step(Site::Journal);
        words.entries.store(n as u32 + 1, Release);
        step(Site::Journal);
        // The row must not change before this point.
        compiler_fence(SeqCst);
    }

    /// Counts a row that the journal has no room for, unless it is saved already: its change cannot be undone.
    #[cold]
    fn save_no_more(&self, offset: u64, len: usize) {
        let n = (self.words().entries.load(Relaxed) as usize).min(ENTRIES);
        // SAFETY: bounded above; the caller holds the lock.
        let noted = unsafe { std::slice::from_raw_parts((&raw const (*self.0).index).cast::<Entry>(), n) };
        if !noted.iter().any(|e| e.offset == offset && e.len as usize >= len) {
            self.words().overflows.fetch_add(1, Relaxed);
        }
    }

    /// Records an effect. Returns false if there is no room.
    #[inline(always)]
    pub(super) fn effect(&self, effect: Effect<'_>) -> bool {
        let words = self.words();
        let n = words.effects.load(Relaxed) as usize;
        if n >= NOTED {
            return false;
        }
        // SAFETY: bounded above; the caller holds the lock; any bytes are a valid `Noted`.
        let noted = unsafe { &mut *(&raw mut (*self.0).effect).cast::<Noted>().add(n) };
        match effect {
            Effect::Write { at, data } => {
                let Some(place) = noted.data.get_mut(..data.len()) else { return false };
                place.copy_from_slice(data);
                (noted.kind, noted.len, noted.at) = (WRITE, data.len() as u32, at);
            }
            Effect::Msix { vector, address, data } => {
                (noted.kind, noted.len, noted.at, noted.message) = (MSIX, vector.into(), address, data);
            }
        }
        step(Site::Journal);
        words.effects.store(n as u32 + 1, Release);
        step(Site::Journal);
        true
    }

    /// Records a zeroed completion to be written to `at` and returns its index in the list of effects. `None` if there is no room.
    #[inline(always)]
    pub(super) fn note_completion(&mut self, at: Iova) -> Option<usize> {
        let n = self.words().effects.load(Relaxed) as usize;
        if n >= NOTED {
            return None;
        }
        // SAFETY: bounded above; the caller holds the lock; any bytes are a valid `Noted`.
        unsafe {
            let noted = (&raw mut (*self.0).effect).cast::<Noted>().add(n);
            ((*noted).kind, (*noted).len, (*noted).at) = (WRITE, Cqe64::SIZE as u32, at);
        }
        *self.noted_completion(n) = Cqe64::zeroed();
        step(Site::Journal);
        // Like the others, a completion that is not filled in yet is not written before the commit.
        self.words().effects.store(n as u32 + 1, Release);
        Some(n)
    }

    /// The completion that effect `n` writes.
    // Filled in place: copying it immediately would stall until its fields have been stored.
    #[inline(always)]
    pub(super) fn noted_completion(&mut self, n: usize) -> &mut Cqe64 {
        // SAFETY: bounded; the caller holds the lock and has no other reference, since the only journal in use is private in a
        // `&mut Func`; any bytes are a valid `Noted`, and any data bytes are a valid CQE, which is a byte array.
        unsafe {
            let noted = (&raw mut (*self.0).effect).cast::<Noted>().add(n.min(NOTED - 1));
            &mut *(&raw mut (*noted).data).cast::<Cqe64>()
        }
    }

    /// True if a job of ordinary size still fits.
    #[inline]
    pub(super) fn has_room(&self) -> bool {
        let words = self.words();
        (words.entries.load(Relaxed) as usize) < ENTRIES / 2
            && (words.undo_bytes.load(Relaxed) as usize) < UNDO / 2
            && (words.effects.load(Relaxed) as usize) < NOTED / 2
    }

    /// Makes the changes final and carries out the effects.
    #[inline]
    pub(super) fn commit(&self, region: &Region, host: &mut dyn Host, fid: u8) {
        let words = self.words();
        let effects = words.effects.load(Relaxed) as usize;
        step(Site::Journal);
        if effects == 0 {
            // Drop the undo list: from here on a death undoes nothing.
            words.entries.store(0, Release);
            step(Site::Journal);
            words.undo_bytes.store(0, Relaxed);
            // The next job starts after this point.
            compiler_fence(SeqCst);
            return;
        }
        words.committed.store(1, Release);
        compiler_fence(SeqCst);
        step(Site::Journal);
        self.carry_out(region, host, fid, effects);
        self.clear();
    }

    #[inline(always)]
    fn carry_out(&self, region: &Region, host: &mut dyn Host, fid: u8, effects: usize) {
        for i in 0..effects.min(NOTED) {
            step(Site::Effect);
            // SAFETY: bounded; the caller holds the lock; any bytes are a valid `Noted`.
            let noted = unsafe { &*(&raw const (*self.0).effect).cast::<Noted>().add(i) };
            if noted.kind != WRITE {
                host.msix(Rid(fid), noted.len as u16, noted.at, noted.message);
                continue;
            }
            let data = &noted.data[..(noted.len as usize).min(EFFECT_DATA)];
            // If a queue's memory is gone, its entry is lost, as on a bus.
            match memic::is_within(noted.at) {
                true => Memic::of(region, fid).write(noted.at, data),
                false => host.write(Rid(fid), noted.at, data),
            }
            .unwrap_or_default();
        }
    }

    /// True if nothing was recorded since the last commit.
    #[inline]
    pub(super) fn is_empty(&self) -> bool {
        let words = self.words();
        words.entries.load(Relaxed) == 0 && words.effects.load(Relaxed) == 0
    }

    /// Undoes the changes and discards the effects.
    pub(super) fn take_back(&self, region: &Region, block: &Block) {
        let n = (self.words().entries.load(Acquire) as usize).min(ENTRIES);
        for i in (0..n).rev() {
            step(Site::Undo);
            // SAFETY: `i` is bounded; entries were written by `save` and are checked again in case the region is corrupted.
            unsafe {
                let e = (&raw const (*self.0).index).cast::<Entry>().add(i).read();
                let table = Table::ALL.get((e.offset >> TABLE) as usize);
                let offset = (e.offset & ((1 << TABLE) - 1)) as usize;
                let to = table.and_then(|table| region.bytes_pointer(block, *table, offset, e.len as usize));
                if let Some(to) = to.filter(|_| (e.data as usize) + (e.len as usize) <= UNDO) {
                    std::ptr::copy_nonoverlapping(
                        (&raw const (*self.0).undo).cast::<u8>().add(e.data as usize),
                        to,
                        e.len as usize,
                    );
                }
            }
        }
        self.clear();
    }

    /// Completes or rolls back the job of a dead holder.
    pub(super) fn recover(&self, region: &Region, block: &Block, host: &mut dyn Host) {
        if self.words().committed.load(Acquire) == 1 {
            self.carry_out(region, host, block.fid, self.words().effects.load(Acquire) as usize);
            self.clear();
        } else {
            self.take_back(region, block);
        }
    }

    #[inline]
    fn clear(&self) {
        let words = self.words();
        step(Site::Journal);
        // Drop the undo list first: from here on a death undoes nothing.
        words.entries.store(0, Release);
        step(Site::Journal);
        words.undo_bytes.store(0, Relaxed);
        step(Site::Journal);
        words.effects.store(0, Release);
        step(Site::Journal);
        words.committed.store(0, Release);
        step(Site::Journal);
        compiler_fence(SeqCst);
    }
}
