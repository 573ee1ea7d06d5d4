//! The journal of a function: how a job's changes become final as a whole.
//!
//! While a job runs, the old bytes of every row it changes lie here (undo) beside the list of what it wants done to the
//! outside when it is through (effects: completions, events, interrupts). `commit` declares the changes final and then
//! carries the effects out. A party that dies before that point leaves changes that the next holder of the lock takes
//! back; one that dies behind it leaves effects that the next holder carries out again: each is a write of given bytes
//! to a given place, so twice is as good as once.
//!
//! Each party has a journal of its own for each function it locks: the lock names the party, so the journal is found
//! when it dies, and the lines it writes all the time stay in its own cache.
//!
//! Only the order of stores of one thread matters here (a killed thread's stores are all visible), so ordinary stores
//! do, between compiler fences: what a count tells of comes before it, and what it allows after.

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

/// Something done to the outside when a job commits.
#[derive(Clone, Copy, Debug)]
pub enum Effect<'a> {
    /// Writes at most 128 bytes, the last one last: a completion, an event, an atomic's result.
    Write {
        /// Where.
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

/// The numbers of rows in a journal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct JournalStats {
    /// Rows whose changes could not be noted, ever. 0 in a correct model.
    pub overflows: u32,
    /// Rows noted by the job under way.
    pub entries: u32,
}

/// Where the number of the table lies in [`Entry::offset`].
const TABLE: u32 = 48;

#[derive(Clone, Copy)]
pub(super) struct Journal(*mut Layout);

impl Journal {
    /// The journal of `party` for a function.
    #[inline(always)]
    pub(super) fn at(region: &Region, block: &Block, party: Party) -> Self {
        Self(region.journal_pointer(block, region.journal_of(party)).cast())
    }

    #[inline(always)]
    fn words(&self) -> &Layout {
        // SAFETY: in bounds and aligned by `at`; the caller holds the function's lock; counters are atomics and the
        // arrays are only touched through raw pointers.
        unsafe { &*self.0 }
    }

    pub(super) fn stats(&self) -> JournalStats {
        JournalStats {
            overflows: self.words().overflows.load(Relaxed),
            entries: self.words().entries.load(Relaxed),
        }
    }

    /// Notes the bytes at `at` before they change, once per job: `len` at `offset` of a table.
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
        // SAFETY: source in the region by the caller; destination bounded above.
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
        // The row is not changed before.
        compiler_fence(SeqCst);
    }

    /// There is no room for a row: unless it is noted already, its change will not be taken back.
    #[cold]
    fn save_no_more(&self, offset: u64, len: usize) {
        let n = (self.words().entries.load(Relaxed) as usize).min(ENTRIES);
        // SAFETY: bounded above; the caller holds the lock.
        let noted = unsafe { std::slice::from_raw_parts((&raw const (*self.0).index).cast::<Entry>(), n) };
        if !noted.iter().any(|e| e.offset == offset && e.len as usize >= len) {
            self.words().overflows.fetch_add(1, Relaxed);
        }
    }

    /// Notes an effect. False if there is no room.
    #[inline(always)]
    pub(super) fn effect(&self, effect: Effect<'_>) -> bool {
        let words = self.words();
        let n = words.effects.load(Relaxed) as usize;
        if n >= NOTED {
            return false;
        }
        // SAFETY: bounded above; the caller holds the lock; whatever the bytes are they are a `Noted`.
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

    /// Notes a completion that goes to `at`, all zero so far: which effect it is. `None` if there is no room.
    #[inline(always)]
    pub(super) fn note_completion(&mut self, at: Iova) -> Option<usize> {
        let n = self.words().effects.load(Relaxed) as usize;
        if n >= NOTED {
            return None;
        }
        // SAFETY: bounded above; the caller holds the lock; whatever the bytes are they are a `Noted`.
        unsafe {
            let noted = (&raw mut (*self.0).effect).cast::<Noted>().add(n);
            ((*noted).kind, (*noted).len, (*noted).at) = (WRITE, Cqe64::SIZE as u32, at);
        }
        *self.noted_completion(n) = Cqe64::zeroed();
        step(Site::Journal);
        // One that is not filled in yet is carried out no more than the others: not before the commit.
        self.words().effects.store(n as u32 + 1, Release);
        Some(n)
    }

    /// The completion that effect `n` writes.
    // Filled in where it stays: one that is copied right behind waits until its parts have been stored.
    #[inline(always)]
    pub(super) fn noted_completion(&mut self, n: usize) -> &mut Cqe64 {
        // SAFETY: bounded; the caller holds the lock and, as the only journal in use is private in a `&mut Func`, no other
        // reference; whatever the bytes are they are a `Noted`, and whatever its data are they are a CQE, which is a string of
        // bytes.
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
            // The undo list goes: from here on a death takes nothing back.
            words.entries.store(0, Release);
            step(Site::Journal);
            words.undo_bytes.store(0, Relaxed);
            // The next job begins behind it.
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
            // SAFETY: bounded; the caller holds the lock; whatever the bytes are they are a `Noted`.
            let noted = unsafe { &*(&raw const (*self.0).effect).cast::<Noted>().add(i) };
            if noted.kind != WRITE {
                host.msix(Rid(fid), noted.len as u16, noted.at, noted.message);
                continue;
            }
            let data = &noted.data[..(noted.len as usize).min(EFFECT_DATA)];
            // A queue whose memory is gone loses its entry, as on a bus.
            match memic::is_within(noted.at) {
                true => Memic::of(region, fid).write(noted.at, data),
                false => host.write(Rid(fid), noted.at, data),
            }
            .unwrap_or_default();
        }
    }

    /// True if nothing was noted since the last commit.
    #[inline]
    pub(super) fn is_empty(&self) -> bool {
        let words = self.words();
        words.entries.load(Relaxed) == 0 && words.effects.load(Relaxed) == 0
    }

    /// Takes the changes back and forgets the effects.
    pub(super) fn take_back(&self, region: &Region, block: &Block) {
        let n = (self.words().entries.load(Acquire) as usize).min(ENTRIES);
        for i in (0..n).rev() {
            step(Site::Undo);
            // SAFETY: `i` is bounded; entries were written by `save`, and are checked again for a damaged region.
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

    /// Finishes or takes back what a dead holder left.
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
        // The undo list goes first: from here on a death takes nothing back.
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
