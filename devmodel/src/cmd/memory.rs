//! Page lists of queues, and user memory objects, which are page lists of their own.

use super::{
    call::{Call, let_go},
    refusal::{Done, Refused, Syndrome},
};
use crate::{
    region::{Func, MttRange},
    state::{UmemRow, WqMemory},
    translate,
};
use hwspec::cmd::{CmdOut, umem::*};

/// log2 of the smallest page.
pub(super) const LOG_PAGE: u32 = 12;
/// Number of `page_offset` units per page.
const OFFSETS: u32 = 64;
/// Maximum number of pages of a user memory object.
const MOST_PAGES: u64 = 1 << 20;

/// The geometry of a queue's memory, from its context.
pub(super) struct Layout {
    /// `log_page_size`: log2 of a page in units of 4096 bytes.
    pub log_page_size: u8,
    /// `page_offset`: start of the queue in its first page, in 64ths of a page.
    pub page_offset: u8,
    /// Size of the queue in bytes.
    pub bytes: u64,
}

/// Maps the page list at `offset` of the input.
pub(super) fn map(call: &mut Call<'_, '_, '_>, offset: usize, layout: Layout) -> Done<WqMemory> {
    let log_page = u32::from(layout.log_page_size) + LOG_PAGE;
    Syndrome::PageSize.unless(log_page <= 31)?;
    Syndrome::PageList.unless(u32::from(layout.page_offset) < OFFSETS)?;
    let first = u64::from(layout.page_offset) << log_page >> OFFSETS.trailing_zeros();
    let pages = (first + layout.bytes).div_ceil(1 << log_page);
    let list: Vec<u64> = call.list(offset, pages as usize).or(Syndrome::PageList.refuse())?.collect();
    Syndrome::PageAddress.unless(list.iter().all(|p| p & 0xfff == 0))?;
    let range = call.alloc_mtt(pages as u32)?;
    for (i, page) in list.iter().enumerate() {
        // Readable and writable, like the entries of a key with both rights.
        call.func.set_mtt(range.first + i as u32, page | 3);
    }
    Ok(WqMemory { mtt: range.first, pages: range.len, log_page, offset: first as u32 })
}

/// The index of a user memory object for the caller's queues. Even the function's driver cannot use those of other
/// contexts: they are destroyed with their context, whether in use or not.
fn find(call: &Call<'_, '_, '_>, umem: u32) -> Done<u32> {
    let index = call.own::<UmemRow>(umem, Syndrome::NoSuchUmem)?;
    let own = call.func.row::<UmemRow>(index).is_some_and(|row| row.head.uid == call.uid);
    Syndrome::NoSuchUmem.unless(own)?;
    Ok(index)
}

/// Takes references to the objects of a queue's ring and doorbell record. Returns them as stored in the queue's row.
pub(super) fn hold(call: &mut Call<'_, '_, '_>, umems: [Option<u32>; 2]) -> [u16; 2] {
    umems.map(|umem| {
        let Some(index) = umem.and_then(|umem| call.func.index::<UmemRow>(umem)) else { return 0 };
        call.hold::<UmemRow>(index);
        index as u16 + 1
    })
}

/// Drops the references of a destroyed queue to its objects.
pub(super) fn release(func: &mut Func<'_>, umems: [u16; 2]) {
    for index in umems.iter().filter_map(|umem| umem.checked_sub(1)) {
        let number = func.number::<UmemRow>(index.into());
        let_go::<UmemRow>(func, number);
    }
}

/// Maps the pages of a user memory object from byte `at` on. The queue gets its own copy of the page list.
pub(super) fn within(call: &mut Call<'_, '_, '_>, umem: u32, at: u64, bytes: u64) -> Done<WqMemory> {
    let index = find(call, umem)?;
    let Some(whole) = call.func.row::<UmemRow>(index).map(|row| row.memory) else {
        return Syndrome::NoSuchUmem.refuse();
    };
    let begin = at.checked_add(whole.offset.into()).ok_or(Refused(Syndrome::PageList))?;
    let (first, offset) = (begin >> whole.log_page, begin & ((1 << whole.log_page) - 1));
    let pages = (offset + bytes).div_ceil(1 << whole.log_page);
    let fits = first.checked_add(pages).is_some_and(|end| end <= whole.pages.into());
    Syndrome::PageList.unless(fits)?;
    let range = call.alloc_mtt(pages as u32)?;
    for page in 0..pages as u32 {
        let entry = call.func.mtt(whole.mtt + first as u32 + page);
        call.func.set_mtt(range.first + page, entry);
    }
    Ok(WqMemory { mtt: range.first, pages: range.len, log_page: whole.log_page, offset: offset as u32 })
}

/// The address of a doorbell record: `at` itself, or byte `at` of a user memory object.
pub(super) fn record_in(call: &Call<'_, '_, '_>, umem: Option<u32>, at: u64) -> Done<u64> {
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
    let list = call.list(CreateUmemIn::SIZE, pages as usize).or(Syndrome::PageList.refuse())?;
    let list: Vec<u64> = list.collect();
    Syndrome::PageAddress.unless(list.iter().all(|page| page & 0xfff == 0 || page & 0xfff <= 3))?;
    let range = call.alloc_mtt(pages as u32)?;
    for (entry, page) in (range.first..).zip(&list) {
        // The low bits of the entry are the permissions; the object is only used for queues.
        call.func.set_mtt(entry, page | 3);
    }
    let index = call.alloc::<UmemRow>(0)?;
    if let Some(row) = call.func.row_mut::<UmemRow>(index) {
        row.memory = WqMemory { mtt: range.first, pages: range.len, log_page, offset };
    }
    call.answer(&CreateUmemOut::with(|s| s.umem_id(call.func.number::<UmemRow>(index))))
}

/// `DESTROY_UMEM`. As for every object, it is refused with BAD_RES_STATE while another object uses it (PRM: command
/// status 0x9, "object is referenced by another").
pub(super) fn destroy(call: &mut Call<'_, '_, '_>) -> Done {
    let input: DestroyUmemIn = call.input()?;
    let index = call.own::<UmemRow>(input.umem_id(), Syndrome::NoSuchUmem)?;
    let refs = call.func.row::<UmemRow>(index).map_or(0, |row| row.head.refs);
    Syndrome::InUse.unless(refs == 0)?;
    end(call.func, index);
    call.answer(&CmdOut::zeroed())
}

/// Destroys a user memory object.
pub(super) fn end(func: &mut Func<'_>, index: u32) {
    let Some(memory) = func.row::<UmemRow>(index).map(|row| row.memory) else { return };
    unmap(func, memory);
    func.free::<UmemRow>(index);
}

/// Frees the translation entries of a queue's page list.
pub(super) fn unmap(func: &mut Func<'_>, memory: WqMemory) {
    func.free_mtt(MttRange { first: memory.mtt, len: memory.pages });
}

/// `page_offset` and `log_page_size` as shown in a context.
pub(super) fn page_layout(memory: &WqMemory) -> (u8, u8) {
    let offset = u64::from(memory.offset) << OFFSETS.trailing_zeros() >> memory.log_page;
    (offset as u8, memory.log_page.saturating_sub(LOG_PAGE) as u8)
}

/// The address of a doorbell record, if it is aligned.
pub(super) fn record(at: u64) -> Done<u64> {
    Syndrome::DoorbellRecord.unless(at % 8 == 0)?;
    Ok(at)
}
