//! A locked function: the only way to access its rows.

use super::{
    Effect, JournalStats, Lookup, Lookups, Patience, Region, Sync, Table, WireRing, freed::Freed,
    journal::Journal, window::Block,
};
use crate::{
    host::{Host, Iova, Rid},
    state::{CounterRow, Counters, FunctionRow, ReadResource, Row, SendRecord},
    transport::Congestion,
};
use hwspec::cqe::Cqe64;
use std::{
    marker::PhantomData,
    mem::ManuallyDrop,
    sync::atomic::{AtomicU32, Ordering::Release},
};
use sync::{Dead, Holding};

/// A journaled row held by reference, so that a job does not look it up for each access.
///
/// The user keeps the function locked, and takes no other reference to the same row from the function while a part of this one
/// is borrowed.
pub struct Held<'r, R> {
    row: *mut R,
    _region: PhantomData<&'r Region>,
}

impl<R> std::ops::Deref for Held<'_, R> {
    type Target = R;

    #[inline(always)]
    fn deref(&self) -> &R {
        // SAFETY: `hold` checked that the row is allocated; rows are plain data; the region outlives us; by the contract above
        // the function is locked, and no other code changes the row while this reference lives.
        unsafe { &*self.row }
    }
}

impl<R> std::ops::DerefMut for Held<'_, R> {
    #[inline(always)]
    fn deref_mut(&mut self) -> &mut R {
        // SAFETY: as for `deref`.
        unsafe { &mut *self.row }
    }
}

/// A locked function.
///
/// Every change goes through a `*_mut` method, which saves the old bytes in a journal: [`commit`](Self::commit) makes all changes of a job
/// final and [`rollback`](Self::rollback) undoes all of them. This also holds if the runner is killed in between.
pub struct Func<'r> {
    region: &'r Region,
    block: &'r Block,
    lock: Holding<'r>,
    journal: Journal,
    /// Registers and bookkeeping, accessed all the time.
    row: *mut FunctionRow,
    /// Rows and translations freed by this job.
    pub(super) freed: Vec<Freed>,
    /// Records the lookups of this job, if requested.
    lookups: Option<&'r Lookups>,
    // Not `Send`: the lock belongs to one thread.
    _not_send: PhantomData<*mut ()>,
}

/// The parts of a function that its holder accesses at once. They are mapped before the lock is taken, so that a failure to map
/// them leaves nothing locked.
struct Reached<'r> {
    block: &'r Block,
    row: *mut FunctionRow,
    journal: Journal,
}

impl<'r> Reached<'r> {
    #[inline(always)]
    fn of(region: &'r Region, fid: u8, host: &dyn Host) -> Self {
        let block = region.block(fid);
        let row = region.row_pointer(block, Table::Function, 0, size_of::<FunctionRow>()).cast();
        Self { block, row, journal: Journal::at(region, block, host.party()) }
    }
}

impl<'r> Func<'r> {
    /// Locks `fid`, waiting for the current holder. A job that a dead holder left half done is completed or rolled back first.
    #[inline(never)]
    pub fn lock(region: &'r Region, fid: u8, host: &mut dyn Host) -> Self {
        let at = Reached::of(region, fid, host);
        let (lock, dead) = at.block.function_lock().acquire(host);
        Self::repaired(region, at, host, lock, dead)
    }

    /// Like [`lock`](Self::lock), but returns `None` when `patience` runs out.
    #[inline(never)]
    pub fn lock_with(region: &'r Region, fid: u8, host: &mut dyn Host, patience: Patience) -> Option<Self> {
        let at = Reached::of(region, fid, host);
        let (lock, dead) = at.block.function_lock().acquire_with(host, patience)?;
        Some(Self::repaired(region, at, host, lock, dead))
    }

    /// Takes the lock from a dead holder. Returns `None` if a stopped process holds it.
    pub fn lock_from_dead(region: &'r Region, fid: u8, host: &mut dyn Host) -> Option<Self> {
        let at = Reached::of(region, fid, host);
        let (lock, dead) = at.block.function_lock().acquire_from_dead(host, Patience::UntilStopped)?;
        Some(Self::repaired(region, at, host, lock, dead))
    }

    /// Builds the function of a lock that was taken from `dead`.
    #[inline(always)]
    fn repaired(
        region: &'r Region,
        at: Reached<'r>,
        host: &mut dyn Host,
        lock: Holding<'r>,
        dead: Dead,
    ) -> Self {
        let func = Self::locked(region, at, lock);
        if dead.is_any() {
            // If this process unwinds here because it can map no more, it keeps the lock until it exits: the next process finds
            // both dead and repairs.
            let held = ManuallyDrop::new(func);
            held.repair(host, dead);
            return ManuallyDrop::into_inner(held);
        }
        func
    }

    /// Completes or rolls back the jobs that dead holders left.
    #[cold]
    fn repair(&self, host: &mut dyn Host, dead: Dead) {
        for party in dead.0.into_iter().flatten() {
            Journal::at(self.region, self.block, party).recover(self.region, self.block, host);
        }
        self.lock.repaired();
        self.publish();
    }

    /// Locks `fid` without an atomic read-modify-write. Succeeds if this runner owns the lock and it is free.
    #[inline(always)]
    pub(crate) fn lock_own(region: &'r Region, fid: u8, host: &mut dyn Host) -> Option<Self> {
        let at = Reached::of(region, fid, host);
        let lock = at.block.function_lock().enter(host)?;
        Some(Self::locked(region, at, lock))
    }

    /// Locks `fid` if it is free. Does not check whether the holder is dead; [`lock`](Self::lock) does.
    // Built in place: copying it immediately would stall until its fields have been stored.
    #[inline(always)]
    pub fn try_lock(region: &'r Region, fid: u8, host: &mut dyn Host) -> Option<Self> {
        let at = Reached::of(region, fid, host);
        let lock = at.block.function_lock().try_acquire(host)?;
        Some(Self::locked(region, at, lock))
    }

    #[inline(always)]
    fn locked(region: &'r Region, at: Reached<'r>, lock: Holding<'r>) -> Self {
        let Reached { block, row, journal } = at;
        Self { region, block, lock, journal, row, freed: Vec::new(), lookups: None, _not_send: PhantomData }
    }

    /// Records key and translation lookups in `lookups` from now on.
    pub(crate) fn note_lookups(&mut self, lookups: &'r Lookups) {
        self.lookups = Some(lookups);
    }

    /// Records a lookup. Returns false if it is to fail regardless of the tables.
    #[inline(always)]
    pub(crate) fn looks_up(&self, lookup: Lookup) -> bool {
        self.lookups.is_none_or(|lookups| lookups.note(lookup))
    }

    /// The function's number.
    #[inline(always)]
    pub fn fid(&self) -> u8 {
        self.block.fid
    }
    /// Its requester ID.
    #[inline(always)]
    pub fn rid(&self) -> Rid {
        Rid(self.block.fid)
    }
    /// The region it belongs to.
    #[inline(always)]
    pub fn region(&self) -> &'r Region {
        self.region
    }

    /// Its block in the region.
    #[inline(always)]
    pub(super) fn block(&self) -> &'r Block {
        self.block
    }

    /// True if row `index` of an object table can be in use, so that a packet or request with any other number maps nothing.
    #[inline(always)]
    fn is_known(&self, table: Table, index: u32) -> bool {
        self.region.is_mapped(self.block, table, index as usize) || self.was_used(table, index)
    }

    #[cold]
    #[inline(never)]
    fn was_used(&self, table: Table, index: u32) -> bool {
        index < self.function().free[table as usize].fresh.min(self.rows(table))
    }

    #[inline(always)]
    fn row_of<R>(&self, table: Table, index: usize) -> *mut R {
        self.region.row_pointer(self.block, table, index, size_of::<R>()).cast()
    }

    /// Saves row `index` of `table`, located at `at`, in the journal.
    #[inline(always)]
    fn save<R>(&self, table: Table, index: usize, at: *mut R) {
        self.journal.save(table, index * size_of::<R>(), at.cast(), size_of::<R>());
    }

    /// Row `index` of `table`, saved in the journal.
    #[inline(always)]
    fn saved<R>(&self, table: Table, index: usize) -> *mut R {
        let at = self.row_of::<R>(table, index);
        self.save(table, index, at);
        at
    }

    /// A word of this function that parties access without the lock.
    #[inline(always)]
    pub(super) fn sync(&self, word: Sync) -> &'r AtomicU32 {
        self.block.sync(word)
    }

    /// Tells the switch if this function accepts frames of `kind`, a bit of [`Sync::Group`].
    pub fn takes_frames(&self, kind: u32, on: bool) {
        let word = self.sync(Sync::Group);
        match on {
            true => word.fetch_or(kind, Release),
            false => word.fetch_and(!kind, Release),
        };
    }

    /// Registers and bookkeeping.
    #[inline]
    pub fn function(&self) -> &FunctionRow {
        // SAFETY: in bounds; we hold the lock.
        unsafe { &*self.row }
    }

    /// Mutable access to the part of the registers and bookkeeping that `field` selects.
    #[inline]
    pub fn function_mut<T: Copy>(&mut self, field: fn(&mut FunctionRow) -> &mut T) -> &mut T {
        // SAFETY: as in `function`; `&mut self` makes us the only user.
        let row: &mut FunctionRow = unsafe { &mut *self.row };
        let field = field(row);
        let at = (&raw mut *field).cast::<u8>();
        self.journal.save(Table::Function, at as usize - self.row as usize, at, size_of::<T>());
        field
    }

    /// Adds to a counter of the port. Not journaled: a job that is rolled back has still been counted.
    #[inline]
    pub fn count(&mut self, counter: Counters, n: u64) {
        // SAFETY: in bounds; plain data; we hold the lock and `&mut self`.
        let row: &mut FunctionRow = unsafe { &mut *self.row };
        row.counters[counter as usize] = row.counters[counter as usize].wrapping_add(n);
    }

    /// Adds to a counter of counter set `set`, if it exists. Not journaled either.
    #[cold]
    pub fn count_in_set(&mut self, set: u32, counter: Counters, n: u64) {
        if self.row::<CounterRow>(set).is_none() {
            return;
        }
        // SAFETY: in bounds and allocated by the check; plain data; we hold the lock and `&mut self`.
        let row: &mut CounterRow = unsafe { &mut *self.row_of::<CounterRow>(Table::Counter, set as usize) };
        row.values[counter as usize] = row.values[counter as usize].wrapping_add(n);
    }

    /// Row `index`, if it is allocated.
    #[inline]
    pub fn row<R: Row>(&self, index: u32) -> Option<&R> {
        if !self.is_known(R::TABLE, index) {
            return None;
        }
        // SAFETY: in bounds; rows are plain data; we hold the lock.
        let row: &R = unsafe { &*self.row_of::<R>(R::TABLE, index as usize) };
        (row.head().live != 0).then_some(row)
    }

    /// Mutable row `index`, if it is allocated.
    #[inline]
    pub fn row_mut<R: Row>(&mut self, index: u32) -> Option<&mut R> {
        if !self.is_known(R::TABLE, index) {
            return None;
        }
        let at = self.row_of::<R>(R::TABLE, index as usize);
        // SAFETY: in bounds; rows are plain data; we hold the lock.
        if unsafe { &*at }.head().live == 0 {
            return None;
        }
        self.save::<R>(R::TABLE, index as usize, at);
        // SAFETY: in bounds by the check; plain data; ours by the lock; `&mut self` excludes another reference of ours. The
        // reference is made only now, because the journal has read the row by its address.
        Some(unsafe { &mut *at })
    }

    /// Holds row `index`, if it is allocated, to read and change it while a job needs it, but not across a commit, a rollback or the
    /// release of the lock.
    #[inline(always)]
    pub(crate) fn hold<R: Row>(&mut self, index: u32) -> Option<Held<'r, R>> {
        self.row_mut::<R>(index).map(|row| Held { row: std::ptr::from_mut(row), _region: PhantomData })
    }

    /// Row `index`, allocated or not, saved in the journal.
    pub(super) fn any_row_mut<R: Row>(&mut self, index: u32) -> &mut R {
        // SAFETY: in bounds by `row_of`; plain data; we hold the lock and `&mut self`.
        unsafe { &mut *self.saved::<R>(R::TABLE, index as usize) }
    }

    /// The number by which the driver knows row `index`: adapter-wide for QPs, CQs, SRQs, PDs and mkeys.
    #[inline(always)]
    pub fn number<R: Row>(&self, index: u32) -> u32 {
        if R::TABLE.is_global() {
            R::TABLE.mark() | u32::from(self.block.fid) << self.region.log_rows(R::TABLE) | index
        } else {
            index
        }
    }

    /// The index of `number`, if it is one of this function's.
    #[inline]
    pub fn index<R: Row>(&self, number: u32) -> Option<u32> {
        if !R::TABLE.is_global() {
            return Some(number);
        }
        let log = self.region.log_rows(R::TABLE);
        let number = number ^ R::TABLE.mark();
        (number >> log == u32::from(self.block.fid)).then_some(number & ((1 << log) - 1))
    }

    /// The row with `number`, if it is this function's and allocated.
    #[inline]
    pub fn get<R: Row>(&self, number: u32) -> Option<&R> {
        self.row(self.index::<R>(number)?)
    }

    /// The row with `number`, mutable.
    #[inline]
    pub fn get_mut<R: Row>(&mut self, number: u32) -> Option<&mut R> {
        self.row_mut(self.index::<R>(number)?)
    }

    /// Send record `at` (free-running) of QP `qp`.
    #[inline]
    pub fn send_record(&self, qp: u32, at: u32) -> &SendRecord {
        let i = qp as usize * SendRecord::PER_QP + at as usize % SendRecord::PER_QP;
        // SAFETY: in bounds by `row_of`; plain data; we hold the lock.
        unsafe { &*self.row_of::<SendRecord>(Table::SendRecord, i) }
    }

    /// Mutable send record `at` of QP `qp`. Journaled, because it may overwrite an old record that becomes valid again after a rollback.
    #[inline]
    pub fn send_record_mut(&mut self, qp: u32, at: u32) -> &mut SendRecord {
        let i = qp as usize * SendRecord::PER_QP + at as usize % SendRecord::PER_QP;
        // SAFETY: in bounds by `row_of`; plain data; we hold the lock and `&mut self`.
        unsafe { &mut *self.saved::<SendRecord>(Table::SendRecord, i) }
    }

    /// READ resource `at` (free-running) of QP `qp`.
    #[inline]
    pub fn read_resource(&self, qp: u32, at: u32) -> &ReadResource {
        let i = qp as usize * ReadResource::PER_QP + at as usize % ReadResource::PER_QP;
        // SAFETY: in bounds by `row_of`; plain data; we hold the lock.
        unsafe { &*self.row_of::<ReadResource>(Table::ReadResource, i) }
    }

    /// Mutable READ resource `at` of QP `qp`. Journaled, because it may overwrite an old one.
    #[inline]
    pub fn read_resource_mut(&mut self, qp: u32, at: u32) -> &mut ReadResource {
        let i = qp as usize * ReadResource::PER_QP + at as usize % ReadResource::PER_QP;
        // SAFETY: in bounds by `row_of`; plain data; we hold the lock and `&mut self`.
        unsafe { &mut *self.saved::<ReadResource>(Table::ReadResource, i) }
    }

    /// Mutable rate limiter state of QP `qp`; journaled.
    pub fn congestion_mut(&mut self, qp: u32) -> &mut Congestion {
        self.plain_mut(Table::Congestion, qp)
    }

    /// Translation entry `index`: the bus address of a page, with access bits in the low bits.
    #[inline]
    pub fn mtt(&self, index: u32) -> u64 {
        if index as usize >= self.region.rows(Table::Mtt) {
            return 0;
        }
        // SAFETY: in bounds by the check; plain data; we hold the lock.
        unsafe { self.row_of::<u64>(Table::Mtt, index as usize).read() }
    }

    /// Writes translation entry `index` of a range that no row refers to yet (not journaled).
    pub fn set_mtt(&mut self, index: u32, value: u64) {
        // SAFETY: in bounds by `row_of`; plain data; we hold the lock and `&mut self`.
        unsafe { self.row_of::<u64>(Table::Mtt, index as usize).write(value) }
    }

    /// Writes entry `index` of the ready ring, which is not part of the ring yet (not journaled).
    pub(super) fn set_ready(&mut self, index: u32, entry: u32) {
        // SAFETY: in bounds by `row_of`; plain data; we hold the lock and `&mut self`.
        unsafe { self.row_of::<u32>(Table::Ready, index as usize).write(entry) }
    }

    /// A plain row of `table` that is not an object: timers, ready-ring entries, free translation entries.
    pub(super) fn plain<T: Copy>(&self, table: Table, index: u32) -> &T {
        // SAFETY: in bounds by `row_of`; plain data of this size; we hold the lock.
        unsafe { &*self.row_of::<T>(table, index as usize) }
    }

    /// Mutable [`plain`](Self::plain) row; journaled.
    pub(super) fn plain_mut<T: Copy>(&mut self, table: Table, index: u32) -> &mut T {
        // SAFETY: in bounds by `row_of`; plain data of this size; we hold the lock and `&mut self`.
        unsafe { &mut *self.saved::<T>(table, index as usize) }
    }

    /// Number of rows of `table`.
    pub fn rows(&self, table: Table) -> u32 {
        self.region.rows(table) as u32
    }

    /// Records an effect to carry out when the job commits. Returns false if the journal is full: commit first.
    #[inline]
    pub fn effect(&mut self, effect: Effect<'_>) -> bool {
        self.journal.effect(effect)
    }

    /// Records a completion, zeroed, to be written to `at` when the job commits. Returns its index in the list of effects, or
    /// `None` if the journal is full: commit first.
    #[inline(always)]
    pub(crate) fn note_completion(&mut self, at: Iova) -> Option<usize> {
        self.journal.note_completion(at)
    }

    /// The completion that was recorded as effect `noted` of the current job, to be filled in.
    #[inline(always)]
    pub(crate) fn noted_completion(&mut self, noted: usize) -> &mut Cqe64 {
        self.journal.noted_completion(noted)
    }

    /// True if the journal has room for another job of ordinary size.
    pub fn has_room(&self) -> bool {
        self.journal.has_room()
    }

    /// Makes the job's changes final and carries out its effects, in order. Bulk copies must have been done before.
    #[inline]
    pub fn commit(&mut self, host: &mut dyn Host) {
        self.journal.commit(self.region, host, self.block.fid);
        if !self.freed.is_empty() {
            self.give_back();
        }
        self.block.ring().give_back(self.function().rx_next);
    }

    /// Fill level of the journal.
    pub fn journal_stats(&self) -> JournalStats {
        self.journal.stats()
    }

    /// Undoes the job's changes and discards its effects.
    #[inline]
    pub fn rollback(&mut self) {
        if !self.journal.is_empty() {
            self.freed = Vec::new();
            self.take_back();
        }
    }

    #[cold]
    fn take_back(&self) {
        self.journal.take_back(self.region, self.block);
        self.publish();
    }

    /// Unlocks. Uncommitted changes are rolled back.
    #[inline]
    pub fn unlock(self) {
        let mut this = ManuallyDrop::new(self);
        this.rollback();
        this.lock.release();
    }

    /// Unlocks, then returns true if a frame waits: a frame pushed while we held the lock was left to us.
    #[inline(never)]
    pub fn unlock_and_look(self) -> bool {
        let (region, fid) = (self.region, self.block.fid);
        let mut this = ManuallyDrop::new(self);
        this.rollback();
        this.lock.release_first();
        WireRing::of(region, fid).waits()
    }

    /// Republishes the words by which parties without the lock see pending work.
    fn publish(&self) {
        self.publish_timer();
        self.publish_ready();
    }
}

impl Drop for Func<'_> {
    fn drop(&mut self) {
        self.rollback();
        self.lock.release();
    }
}
