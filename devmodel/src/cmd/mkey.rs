//! Memory keys.

use super::{
    bind::{Bound, cast},
    call::Call,
    memic,
    memory::LOG_PAGE,
    object,
    refusal::{Done, Syndrome},
};
use crate::{
    region::{Func, MttRange},
    state::{MkeyRow, PdRow},
    translate::{self, PRESENT, REMOTE_INVALIDATE, RESERVED_LKEY, access::*},
};
use hwspec::{
    cmd::mkey::*,
    context::{AccessMode, mkey::MkeyContext},
    layout::{Bits, prefix},
    pcie::MEMIC_BAR,
};

/// log2 of the largest region with a finite length.
pub(super) const LOG_MAX_LEN: u8 = 47;
/// log2 of the maximum number of key entries in a work request.
pub(super) const LOG_MAX_LIST: u8 = 16;
/// `MkeyRow::flags`: relaxed ordering of writes, of reads.
const RELAXED_WRITE: u8 = 2;
const RELAXED_READ: u8 = 4;

bind! { MkeyContext <-> MkeyRow {
    free <-> access[FREE],
    umr_en <-> access[UMR],
    a <-> access[ATOMIC],
    rw <-> access[REMOTE_WRITE],
    rr <-> access[REMOTE_READ],
    lw <-> access[LOCAL_WRITE],
    lr <-> access[LOCAL_READ],
    length64 <-> access[LENGTH64],
    en_rinval <-> flags[REMOTE_INVALIDATE],
    relaxed_ordering_write <-> flags[RELAXED_WRITE],
    relaxed_ordering_read <-> flags[RELAXED_READ],
    qpn <-> qpn,
    mkey_7_0 <-> variant,
    pd <-> pd,
    len <-> len,
} shows row {
    access_mode_1_0 = row.mode & 3,
    access_mode_4_2 = row.mode >> 2,
    start_addr = if memic(row).is_some() { MEMIC_BAR + u64::from(row.log_page) } else { row.start },
    translations_octword_size = if memic(row).is_some() { 0 } else { row.pages.div_ceil(2) },
    log_page_size = if memic(row).is_some() { 0 } else { row.log_page as u8 },
} }

/// Number of pages of `1 << log_page` bytes that the region covers.
fn pages(context: &MkeyContext, log_page: u32) -> u64 {
    let first = context.start_addr() & ((1 << log_page) - 1);
    (first + context.len()).div_ceil(1 << log_page)
}

pub(super) fn create(call: &mut Call<'_, '_, '_>) -> Done {
    let input: CreateMkeyIn = call.input()?;
    let context = input.memory_key_mkey_entry();
    Syndrome::Umem.unless(!input.mkey_umem_valid())?;
    let mode = AccessMode::from_bits(
        u64::from(context.access_mode_4_2()) << 2 | u64::from(context.access_mode_1_0()),
    );
    call.own::<PdRow>(context.pd())?;
    // The whole address space is available only without translation.
    let whole = context.length64() && mode == AccessMode::Pa;
    let end = context.start_addr().checked_add(context.len());
    let bounded = !context.length64() && context.len() <= 1 << LOG_MAX_LEN && end.is_some();
    Syndrome::MkeyLength.unless(whole || bounded)?;
    Syndrome::MkeyAccess.unless(!context.bsf_en() && context.bsf_octword_size() == 0)?;
    let (range, log_page) = match mode {
        AccessMode::Memic => {
            let (number, first) = memic::place(call, context.start_addr(), context.len())?;
            (MttRange { first: 0, len: number }, first)
        }
        AccessMode::Pa => (MttRange::default(), 0),
        AccessMode::Mtt => translations(call, &input, &context)?,
        AccessMode::Klm => (klms(call, &input, &context)?, 0),
        _ => return Syndrome::AccessMode.refuse(),
    };
    let index = call.make::<MkeyRow>(|row| {
        row.take(&context);
        // Device memory is addressed from 0.
        row.start = if mode == AccessMode::Memic { 0 } else { context.start_addr() };
        (row.mtt, row.pages, row.log_page) = (range.first, range.len, log_page);
        row.mode = mode.into_bits() as u8;
    })?;
    call.created::<MkeyRow>(index)
}

/// Takes the translation entries after the input. A key in the free state may have room without entries.
fn translations(
    call: &mut Call<'_, '_, '_>,
    input: &CreateMkeyIn,
    context: &MkeyContext,
) -> Done<(MttRange, u32)> {
    let log_page = u32::from(context.log_page_size());
    Syndrome::PageSize.unless(log_page >= LOG_PAGE)?;
    let room = room(context)?;
    let given = u64::from(input.translations_octword_actual_size()) * 2;
    let needed = if context.free() { 0 } else { pages(context, log_page) };
    Syndrome::PageList.unless(given <= room && (context.free() || (needed <= given)))?;
    if context.free() && given == 0 {
        // They are supplied when the key is set up.
        return Ok((MttRange { first: 0, len: room as u32 }, log_page));
    }
    let always = if input.pg_access() { 0 } else { PRESENT };
    let list: Vec<u64> = call.list(CreateMkeyIn::SIZE, given as usize)?.collect();
    Syndrome::PageAddress.unless(list.iter().take(needed as usize).all(|e| e & 0xfff & !PRESENT == 0))?;
    let list: Vec<u64> = list.iter().map(|e| e & !0xfff | e & PRESENT | always).collect();
    Ok((call.store_in(&list, room as u32)?, log_page))
}

/// Room of the key in translation entries of 8 bytes. The device handles 64 bytes at a time.
fn room(context: &MkeyContext) -> Done<u64> {
    // An octword, 16 bytes, holds two entries.
    let room = (u64::from(context.translations_octword_size()) * 2).next_multiple_of(8);
    Syndrome::NoTranslation.unless(room <= u64::from(u32::MAX >> 1))?;
    Ok(room)
}

/// Entries of an indirect key: two words each, stored unchanged.
fn klms(call: &mut Call<'_, '_, '_>, input: &CreateMkeyIn, context: &MkeyContext) -> Done<MttRange> {
    let room = room(context)?;
    let given = u64::from(input.translations_octword_actual_size()) * 2;
    Syndrome::PageList.unless(given <= room && room / 2 <= 1 << LOG_MAX_LIST)?;
    if given == 0 {
        return Ok(MttRange { first: 0, len: room as u32 });
    }
    let list: Vec<u64> = call.list(CreateMkeyIn::SIZE, given as usize)?.collect();
    let physical = list.chunks(2).any(|klm| klm[0] as u32 == RESERVED_LKEY);
    Syndrome::MkeyAccess.unless(call.uid == 0 || !physical)?;
    call.store_in(&list, room as u32)
}

pub(super) fn query(call: &mut Call<'_, '_, '_>) -> Done {
    let input: QueryMkeyIn = call.input()?;
    let row = *call.row::<MkeyRow>(call.named::<MkeyRow>()?)?;
    let (mtt, pages) = (row.mtt, if row.mtt == 0 { 0 } else { row.pages });
    let mut out = QueryMkeyOut::with(|s| s.memory_key_mkey_entry(row.show()));
    if input.pg_access() {
        let mut first = [0; 32];
        for i in 0..pages.min(4) {
            let entry = call.func.mtt(mtt + i).to_be_bytes();
            first[8 * i as usize..][..8].copy_from_slice(&entry);
        }
        out.set().bsf0_klm0_pas_mtt0_1(prefix(&first)).bsf1_klm1_pas_mtt2_3(prefix(&first[16..]));
    }
    call.answer(&out)
}

pub(super) fn destroy(call: &mut Call<'_, '_, '_>) -> Done {
    let index = call.named::<MkeyRow>()?;
    let row = *call.row::<MkeyRow>(index)?;
    call.end::<MkeyRow>(index)?;
    // Frames in flight may still refer to its memory, if it ever had any.
    call.quiesce = row.access & FREE == 0 || row.mtt != 0;
    Ok(())
}

/// The device memory allocation of a key.
pub(super) fn memic(row: &MkeyRow) -> Option<u32> {
    (row.mode == AccessMode::Memic.raw()).then_some(row.pages)
}

/// The translation entries of a key.
pub(super) fn entries(row: &MkeyRow) -> MttRange {
    MttRange { first: row.mtt, len: if memic(row).is_some() { 0 } else { row.pages } }
}

/// Destroys the key.
pub(super) fn end(func: &mut Func<'_>, index: u32) {
    let number = func.number::<MkeyRow>(index);
    translate::unbind(func, number);
    object::end::<MkeyRow>(func, index);
}
