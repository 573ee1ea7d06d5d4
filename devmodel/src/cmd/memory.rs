//! Page lists of queues.

use super::{
    call::Call,
    refusal::{Done, Refused, Syndrome},
};
use crate::{
    region::{Func, MttRange},
    state::WqMemory,
};

/// log2 of the smallest page.
pub(super) const LOG_PAGE: u32 = 12;
/// Entries per page of the unit of `page_offset`.
const OFFSETS: u32 = 64;

/// The geometry of a queue's memory as a context gives it.
pub(super) struct Layout {
    /// `log_page_size`: log2 of a page in units of 4096 bytes.
    pub log_page_size: u8,
    /// `page_offset`: where the queue begins in its first page, in 64ths of a page.
    pub page_offset: u8,
    /// Bytes of the queue.
    pub bytes: u64,
}

/// Takes the page list at `offset` of the input.
pub(super) fn map(call: &mut Call<'_, '_, '_>, offset: usize, layout: Layout) -> Done<WqMemory> {
    let log_page = u32::from(layout.log_page_size) + LOG_PAGE;
    Syndrome::PageSize.unless(log_page <= 31)?;
    Syndrome::PageList.unless(u32::from(layout.page_offset) < OFFSETS)?;
    let first = u64::from(layout.page_offset) << log_page >> OFFSETS.trailing_zeros();
    let pages = (first + layout.bytes).div_ceil(1 << log_page);
    let list: Vec<u64> = call.list(offset, pages as usize).or(Syndrome::PageList.refuse())?.collect();
    Syndrome::PageAddress.unless(list.iter().all(|p| p & 0xfff == 0))?;
    let range = call.func.alloc_mtt(pages as u32).ok_or(Refused(Syndrome::NoTranslation))?;
    for (i, page) in list.iter().enumerate() {
        // Readable and writable, as the entries of a key that allows both.
        call.func.set_mtt(range.first + i as u32, page | 3);
    }
    Ok(WqMemory { mtt: range.first, pages: range.len, log_page, offset: first as u32 })
}

/// Gives the entries of a queue's page list back.
pub(super) fn unmap(func: &mut Func<'_>, memory: WqMemory) {
    func.free_mtt(MttRange { first: memory.mtt, len: memory.pages });
}

/// `page_offset` and `log_page_size` as a context shows them.
pub(super) fn shown(memory: &WqMemory) -> (u8, u8) {
    let offset = u64::from(memory.offset) << OFFSETS.trailing_zeros() >> memory.log_page;
    (offset as u8, memory.log_page.saturating_sub(LOG_PAGE) as u8)
}

/// A doorbell record's address.
pub(super) fn record(at: u64) -> Done<u64> {
    Syndrome::DoorbellRecord.unless(at % 8 == 0)?;
    Ok(at)
}
