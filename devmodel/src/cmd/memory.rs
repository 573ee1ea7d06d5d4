//! The memory of queues: page lists, and user memory objects, which are page lists of their own.

use super::{
    call::Call,
    object::{Ref, to},
    refusal::{Done, Refused, Syndrome},
};
use crate::{
    region::MttRange,
    state::{UmemRow, WqMemory},
    translate,
};
use hwspec::{cmd::umem::*, context::wq::WorkQueue};

/// log2 of the smallest page.
pub(super) const LOG_PAGE: u32 = 12;
/// Number of `page_offset` units per page.
const OFFSETS: u32 = 64;
/// Maximum number of pages of a user memory object.
const MOST_PAGES: u64 = 1 << 20;

/// The memory that a command gives to a queue.
pub(super) struct Given {
    /// Offset of the page list in the input.
    pub list: usize,
    /// `log_page_size` and `page_offset` of the list.
    pub pages: (u8, u8),
    /// The user memory object with the ring, and the ring's first byte in it, instead of a list.
    pub ring: Option<(u32, u64)>,
    /// The user memory object with the doorbell record.
    pub record: Option<u32>,
    /// Address of the doorbell record, or its first byte in the object.
    pub dbr: u64,
}

/// The memory of a queue, as its row keeps it.
pub(super) struct Place {
    /// Ring.
    pub memory: WqMemory,
    /// Address of the doorbell record.
    pub dbr: u64,
    /// User memory objects of both.
    pub umems: [u16; 2],
}

impl Given {
    /// The memory in the context of a work queue; its page list is at `list` of the input.
    pub fn of(wq: &WorkQueue, list: usize) -> Self {
        Self {
            list,
            pages: (wq.log_wq_pg_sz(), wq.page_offset()),
            ring: wq.wq_umem_valid().then_some((wq.wq_umem_id(), wq.wq_umem_offset())),
            record: wq.dbr_umem_valid().then_some(wq.dbr_umem_id()),
            dbr: wq.dbr_addr(),
        }
    }

    /// Maps a ring of `bytes`.
    pub fn map(&self, call: &mut Call<'_, '_, '_>, bytes: u64) -> Done<Place> {
        let dbr = record_in(call, self.record, self.dbr)?;
        let memory = match self.ring {
            Some((umem, at)) => within(call, umem, at, bytes)?,
            None => map(call, self.list, self.pages, bytes)?,
        };
        let umems = umems(call, [self.ring.map(|(umem, _)| umem), self.record]);
        Ok(Place { memory, dbr, umems })
    }
}

/// Maps a queue of `bytes`: by the page list at `offset` of the input, with `log_page_size` (log2 of a page in units of 4096
/// bytes) and `page_offset` (the queue's start in its first page, in 64ths of a page) from its context.
pub(super) fn map(
    call: &mut Call<'_, '_, '_>,
    offset: usize,
    (log_page_size, page_offset): (u8, u8),
    bytes: u64,
) -> Done<WqMemory> {
    let log_page = u32::from(log_page_size) + LOG_PAGE;
    Syndrome::PageSize.unless(log_page <= 31)?;
    Syndrome::PageList.unless(u32::from(page_offset) < OFFSETS)?;
    let first = u64::from(page_offset) << log_page >> OFFSETS.trailing_zeros();
    let pages = (first + bytes).div_ceil(1 << log_page);
    let range = store(call, offset, pages, 0)?;
    Ok(WqMemory { mtt: range.first, pages: range.len, log_page, offset: first as u32 })
}

/// Stores the list of `pages` at `offset` of the input, of which entries may have these low bits.
fn store(call: &mut Call<'_, '_, '_>, offset: usize, pages: u64, low: u64) -> Done<MttRange> {
    let list = call.list(offset, pages as usize).or(Syndrome::PageList.refuse())?;
    let mut list: Vec<u64> = list.collect();
    Syndrome::PageAddress.unless(list.iter().all(|page| page & 0xfff & !low == 0))?;
    // Readable and writable, like the entries of a key with both rights.
    list.iter_mut().for_each(|page| *page |= 3);
    call.store(&list)
}

/// The index of a user memory object for the caller's queues. Even the function's driver cannot use those of other
/// contexts: they are destroyed with their context, whether in use or not.
fn find(call: &Call<'_, '_, '_>, umem: u32) -> Done<u32> {
    let index = call.own::<UmemRow>(umem)?;
    Syndrome::NoSuchUmem.unless(call.row::<UmemRow>(index)?.head.uid == call.uid)?;
    Ok(index)
}

/// The user memory objects of a queue's ring and doorbell record, as stored in its row.
fn umems(call: &Call<'_, '_, '_>, umems: [Option<u32>; 2]) -> [u16; 2] {
    umems.map(|umem| {
        umem.and_then(|umem| call.func.index::<UmemRow>(umem)).map_or(0, |index| index as u16 + 1)
    })
}

/// The reference of a queue to the user memory object stored in its row.
pub(super) fn umem(stored: u16) -> Option<Ref> {
    to::<UmemRow>(stored.checked_sub(1).map(u32::from))
}

/// Maps the pages of a user memory object from byte `at` on. The queue gets its own copy of the page list.
fn within(call: &mut Call<'_, '_, '_>, umem: u32, at: u64, bytes: u64) -> Done<WqMemory> {
    let index = find(call, umem)?;
    let whole = call.row::<UmemRow>(index)?.memory;
    let begin = at.checked_add(whole.offset.into()).ok_or(Refused(Syndrome::PageList))?;
    let (first, offset) = (begin >> whole.log_page, begin & ((1 << whole.log_page) - 1));
    let pages = (offset + bytes).div_ceil(1 << whole.log_page);
    let fits = first.checked_add(pages).is_some_and(|end| end <= whole.pages.into());
    Syndrome::PageList.unless(fits)?;
    let list: Vec<u64> =
        (0..pages as u32).map(|page| call.func.mtt(whole.mtt + first as u32 + page)).collect();
    let range = call.store(&list)?;
    Ok(WqMemory { mtt: range.first, pages: range.len, log_page: whole.log_page, offset: offset as u32 })
}

/// The address of a doorbell record: `at` itself, or byte `at` of a user memory object.
fn record_in(call: &Call<'_, '_, '_>, umem: Option<u32>, at: u64) -> Done<u64> {
    let Some(umem) = umem else { return record(at) };
    let index = find(call, umem)?;
    let row = call.func.row::<UmemRow>(index);
    let found = row.and_then(|row| translate::queue(call.func, &row.memory, u32::try_from(at).ok()?));
    record(found.ok_or(Refused(Syndrome::PageList))?)
}

/// `CREATE_UMEM`.
pub(super) fn create(call: &mut Call<'_, '_, '_>) -> Done {
    let input: CreateUmemIn = call.input()?;
    let umem = input.umem();
    let log_page = u32::from(umem.log_page_size()) + LOG_PAGE;
    Syndrome::PageSize.unless(log_page <= 31 && !umem.ats())?;
    let offset = umem.page_offset();
    let pages = umem.num_of_mtt();
    Syndrome::PageList.unless(u64::from(offset) < 1 << log_page && (1..=MOST_PAGES).contains(&pages))?;
    // The low bits of the entries are the permissions; the object is only used for queues.
    let range = store(call, CreateUmemIn::SIZE, pages, 3)?;
    let memory = WqMemory { mtt: range.first, pages: range.len, log_page, offset };
    let index = call.make::<UmemRow>(|row| row.memory = memory)?;
    call.created::<UmemRow>(index)
}

/// The translation entries of a queue's page list.
pub(super) fn entries(memory: &WqMemory) -> MttRange {
    MttRange { first: memory.mtt, len: memory.pages }
}

/// `page_offset` as shown in a context.
pub(super) fn page_offset(memory: &WqMemory) -> u8 {
    (u64::from(memory.offset) << OFFSETS.trailing_zeros() >> memory.log_page) as u8
}

/// `log_page_size` as shown in a context.
pub(super) fn log_page_size(memory: &WqMemory) -> u8 {
    memory.log_page.saturating_sub(LOG_PAGE) as u8
}

/// The address of a doorbell record, if it is aligned.
fn record(at: u64) -> Done<u64> {
    Syndrome::DoorbellRecord.unless(at % 8 == 0)?;
    Ok(at)
}
