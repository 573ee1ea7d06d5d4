//! Memory keys.

use super::{
    call::{Call, let_go},
    memic,
    memory::LOG_PAGE,
    refusal::{Done, Syndrome},
};
use crate::{
    region::{Func, MttRange},
    state::{MemicRow, MkeyRow, PdRow},
    translate::{self, NULL_KEY, PRESENT, RESERVED_LKEY},
};
use hwspec::{
    cmd::{CmdOut, mkey::*},
    context::{AccessMode, mkey::MkeyContext},
    layout::Bits,
    pcie::MEMIC_BAR,
};

/// log2 of the largest region with a finite length.
pub(super) const LOG_MAX_LEN: u8 = 47;
/// log2 of the maximum number of key entries in a work request.
pub(super) const LOG_MAX_LIST: u8 = 16;
/// The first allocated index: those before it are reserved for the reserved lkey and the null key.
const FIRST: u32 = (NULL_KEY >> 8) + 1;
/// Bits of `MkeyRow::access`.
const LOCAL_READ: u8 = 1;
const LOCAL_WRITE: u8 = 2;
const REMOTE_READ: u8 = 4;
const REMOTE_WRITE: u8 = 8;
const ATOMIC: u8 = 16;
const FREE: u8 = 32;
const LENGTH64: u8 = 64;
const UMR: u8 = 128;
/// `MkeyRow::flags`: remote invalidation allowed, relaxed ordering of writes, of reads.
const REMOTE_INVALIDATE: u8 = 1;
const RELAXED_WRITE: u8 = 2;
const RELAXED_READ: u8 = 4;
/// `mkc.qpn` of a key that any QP may use.
const ANY_QP: u32 = 0xff_ffff;

fn access(context: &MkeyContext) -> u8 {
    [
        (context.lr(), LOCAL_READ),
        (context.lw(), LOCAL_WRITE),
        (context.rr(), REMOTE_READ),
        (context.rw(), REMOTE_WRITE),
        (context.a(), ATOMIC),
        (context.free(), FREE),
        (context.length64(), LENGTH64),
        (context.umr_en(), UMR),
    ]
    .iter()
    .fold(0, |all, (on, bit)| if *on { all | bit } else { all })
}

fn flags(context: &MkeyContext) -> u8 {
    [
        (context.en_rinval(), REMOTE_INVALIDATE),
        (context.relaxed_ordering_write(), RELAXED_WRITE),
        (context.relaxed_ordering_read(), RELAXED_READ),
    ]
    .iter()
    .fold(0, |all, (on, bit)| if *on { all | bit } else { all })
}

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
    let pd = call.own::<PdRow>(context.pd(), Syndrome::NoSuchPd)?;
    // The whole address space is available only without translation.
    let whole = context.length64() && mode == AccessMode::Pa;
    let end = context.start_addr().checked_add(context.len());
    let bounded = !context.length64() && context.len() <= 1 << LOG_MAX_LEN && end.is_some();
    Syndrome::MkeyLength.unless(whole || bounded)?;
    Syndrome::MkeyAccess.unless(!context.bsf_en() && context.bsf_octword_size() == 0)?;
    let mut device_memory = None;
    let (range, log_page) = match mode {
        AccessMode::Memic => {
            let (number, first) = memic::place(call, context.start_addr(), context.len())?;
            device_memory = Some(number);
            (MttRange { first: 0, len: number }, first)
        }
        AccessMode::Pa => (MttRange::default(), 0),
        AccessMode::Mtt => translations(call, &input, &context)?,
        AccessMode::Klm => (klms(call, &input, &context)?, 0),
        _ => return Syndrome::AccessMode.refuse(),
    };
    let index = call.alloc::<MkeyRow>(FIRST)?;
    call.hold::<PdRow>(pd);
    if let Some(index) = device_memory.and_then(|number| call.func.index::<MemicRow>(number)) {
        call.hold::<MemicRow>(index);
    }
    if let Some(row) = call.func.row_mut::<MkeyRow>(index) {
        // Device memory is addressed from 0.
        row.start = if device_memory.is_some() { 0 } else { context.start_addr() };
        row.len = context.len();
        (row.mtt, row.pages) = (range.first, range.len);
        row.log_page = log_page;
        row.pd = context.pd();
        row.variant = context.mkey_7_0();
        row.mode = mode.into_bits() as u8;
        row.access = access(&context);
        row.flags = flags(&context);
        row.qpn = context.qpn();
    }
    call.answer(&CreateMkeyOut::with(|s| s.mkey_index(call.func.number::<MkeyRow>(index))))
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
    let range = call.alloc_mtt(room as u32)?;
    for i in 0..room {
        let entry = list.get(i as usize).map_or(0, |e| e & !0xfff | e & PRESENT | always);
        call.func.set_mtt(range.first + i as u32, entry);
    }
    Ok((range, log_page))
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
    let range = call.alloc_mtt(room as u32)?;
    for i in 0..room {
        call.func.set_mtt(range.first + i as u32, list.get(i as usize).copied().unwrap_or(0));
    }
    Ok(range)
}

pub(super) fn query(call: &mut Call<'_, '_, '_>) -> Done {
    let input: QueryMkeyIn = call.input()?;
    let index = call.own::<MkeyRow>(input.mkey_index(), Syndrome::NoSuchMkey)?;
    let Some(row) = call.func.row::<MkeyRow>(index) else { return Syndrome::NoSuchMkey.refuse() };
    let has = |bit| row.access & bit != 0;
    let in_device = row.mode == AccessMode::Memic.raw();
    let context = MkeyContext::with(|s| {
        s.free(has(FREE))
            .access_mode_1_0(row.mode & 3)
            .access_mode_4_2(row.mode >> 2)
            .umr_en(has(UMR))
            .a(has(ATOMIC))
            .rw(has(REMOTE_WRITE))
            .rr(has(REMOTE_READ))
            .lw(has(LOCAL_WRITE))
            .lr(has(LOCAL_READ))
            .qpn(row.qpn & ANY_QP)
            .mkey_7_0(row.variant)
            .length64(has(LENGTH64))
            .en_rinval(row.flags & REMOTE_INVALIDATE != 0)
            .relaxed_ordering_write(row.flags & RELAXED_WRITE != 0)
            .relaxed_ordering_read(row.flags & RELAXED_READ != 0)
            .pd(row.pd)
            .start_addr(if in_device { MEMIC_BAR + u64::from(row.log_page) } else { row.start })
            .len(row.len)
            .translations_octword_size(if in_device { 0 } else { row.pages.div_ceil(2) })
            .log_page_size(if in_device { 0 } else { row.log_page as u8 })
    });
    let (mtt, pages) = (row.mtt, if row.mtt == 0 { 0 } else { row.pages });
    let mut out = QueryMkeyOut::zeroed();
    out.set().memory_key_mkey_entry(context);
    if input.pg_access() {
        let mut first = [0; 32];
        for i in 0..pages.min(4) {
            let entry = call.func.mtt(mtt + i).to_be_bytes();
            first[8 * i as usize..][..8].copy_from_slice(&entry);
        }
        out.set()
            .bsf0_klm0_pas_mtt0_1(hwspec::layout::prefix(&first))
            .bsf1_klm1_pas_mtt2_3(hwspec::layout::prefix(&first[16..]));
    }
    call.answer(&out)
}

pub(super) fn destroy(call: &mut Call<'_, '_, '_>) -> Done {
    let input: DestroyMkeyIn = call.input()?;
    let index = call.own::<MkeyRow>(input.mkey_index(), Syndrome::NoSuchMkey)?;
    let refs = call.func.row::<MkeyRow>(index).map_or(0, |row| row.head.refs);
    Syndrome::InUse.unless(refs == 0)?;
    // Frames in flight may still refer to its memory, if it ever had any.
    let used = call.func.row::<MkeyRow>(index).is_some_and(|row| row.access & FREE == 0 || row.mtt != 0);
    end(call.func, index);
    call.quiesce = used;
    call.answer(&CmdOut::zeroed())
}

/// The device memory allocation of a key.
pub(super) fn memic(row: &MkeyRow) -> Option<u32> {
    (row.mode == AccessMode::Memic.raw()).then_some(row.pages)
}

/// Destroys the key.
pub(super) fn end(func: &mut Func<'_>, index: u32) {
    let number = func.number::<MkeyRow>(index);
    translate::unbind(func, number);
    let Some(row) = func.row::<MkeyRow>(index) else { return };
    let (range, pd) = (MttRange { first: row.mtt, len: row.pages }, row.pd);
    match memic(row) {
        Some(number) => let_go::<MemicRow>(func, number),
        None => func.free_mtt(range),
    }
    let_go::<PdRow>(func, pd);
    func.free::<MkeyRow>(index);
}
