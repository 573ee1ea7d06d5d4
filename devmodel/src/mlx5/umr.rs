//! UMR: changes of memory keys by work requests (PRM: user-mode memory registration).
//!
//! A key's translation, range, rights, domain and low byte change atomically between two requests of the queue. A
//! driver's own UMR queue pair may change any key of its driver; other queue pairs only keys of their domain.

use super::{
    fetch::{self, Wqe},
    lists::{self, ListFault},
    work::{Failure, QpStage},
};
use crate::{
    region::Func,
    state::{MkeyRow, PdRow, QpFlags},
    translate::{self, REMOTE_INVALIDATE, RESERVED_LKEY, access},
};
use hwspec::{
    context::{AccessMode, ServiceType, mkey::ANY_QP},
    cqe::{CqeSyndrome, vendor_err},
    layout::{Layout, prefix},
    wqe::{DataSeg, KlmSeg, MkeyContextSeg, MkeyMask, UmrCheck, UmrCtrlSeg, WQE_DS, WqeOpcode},
};

/// Offsets of the mkey context and the translations after the control segment.
const CONTEXT: usize = UmrCtrlSeg::SIZE;
const ENTRIES: usize = CONTEXT + MkeyContextSeg::SIZE;
/// Size of an octoword: two pages or one KLM.
const OCTOWORD: usize = 16;

/// The failure of an illegal change to a key (IBTA 11.6.2: memory management operation error).
pub(crate) const REFUSED: Failure = Failure::new(CqeSyndrome::MwBindErr, vendor_err::LKEY);

/// Executes the next work request of the driver's own UMR queue pair.
pub(crate) fn next(w: &mut QpStage<'_, '_, '_>, index: u16) -> (u8, Result<Wqe, Failure>) {
    let mut wqe = Wqe::NONE;
    match fetch::wqe(w, index, &mut wqe) {
        Ok(()) => {
            let done = match wqe.opcode {
                WqeOpcode::Nop => Ok(()),
                WqeOpcode::Umr => carry_out(w, &wqe),
                _ => Err(fetch::refuse(CqeSyndrome::LocalQpOpErr)),
            };
            (wqe.ds, done.map(|()| wqe))
        }
        Err((ds, failure)) => (ds, Err(failure)),
    }
}

/// Executes the UMR WQE in the step's buffer.
#[cold]
pub(crate) fn carry_out(w: &mut QpStage<'_, '_, '_>, wqe: &Wqe) -> Result<(), Failure> {
    let [start, end] = wqe.data.map(usize::from);
    let bytes = w.step.buffers.wqe.get(start..end).unwrap_or_default();
    if bytes.len() < ENTRIES {
        return Err(fetch::refuse(CqeSyndrome::LocalQpOpErr));
    }
    let umr = UmrCtrlSeg::read(bytes);
    let context = MkeyContextSeg::read(&bytes[CONTEXT..]);
    let index = w.func.index::<MkeyRow>(wqe.imm >> 8).ok_or(REFUSED)?;
    let before = *w.func.row::<MkeyRow>(index).ok_or(REFUSED)?;
    let mut row = before;
    check(w, wqe, &umr, &before)?;
    let words = words(w, &umr, &before, start + ENTRIES..end)?;
    change(&mut row, &context, umr.mkey_mask())?;
    let domain = w.func.get::<PdRow>(row.pd).ok_or(REFUSED)?;
    // A region stays in its domain while windows of that domain are bound to it (IBTA 10.6.7.2.5).
    let moves = row.pd != before.pd;
    if moves && (before.head.refs != 0 || !may_use(w.q.head.uid, domain.head.uid)) {
        return Err(REFUSED);
    }
    let window = is_window(w, &row);
    let region = if window { region(w, &row, &words)? } else { None };
    if !words.is_empty() {
        // Changes of entries cannot be rolled back: the copies of earlier requests must be made with the old entries
        // first.
        if !w.step.flush() {
            return Err(REFUSED);
        }
        load(w.func, &mut row, offset(&umr), &words)?;
    }
    if moves {
        move_domain(w.func, before.pd, row.pd)?;
    }
    if window && (region.is_some() || row.access & access::FREE != 0) {
        translate::unbind(w.func, wqe.imm >> 8);
        row.bound = 0;
    }
    if let Some(region) = region {
        w.func.get_mut::<MkeyRow>(region).ok_or(REFUSED)?.head.refs += 1;
        row.bound = region + 1;
    }
    row.head = w.func.row::<MkeyRow>(index).ok_or(REFUSED)?.head;
    *w.func.row_mut::<MkeyRow>(index).ok_or(REFUSED)? = row;
    // The next request must see the changed key.
    w.step.settle = true;
    Ok(())
}

/// True if user context `uid` may use objects of context `of`: context 0 may use all.
fn may_use(uid: u16, of: u16) -> bool {
    uid == 0 || uid == of
}

/// First octoword to change.
fn offset(umr: &UmrCtrlSeg) -> u64 {
    match umr.translation_offset_en() {
        true => u64::from(umr.xlt_offset_47_16()) << 16 | u64::from(umr.xlt_offset()),
        false => 0,
    }
}

/// Checks that this queue pair may change this key, and that the key is in the expected state.
fn check(w: &QpStage<'_, '_, '_>, wqe: &Wqe, umr: &UmrCtrlSeg, row: &MkeyRow) -> Result<(), Failure> {
    let mask = umr.mkey_mask();
    let free = row.access & access::FREE != 0;
    // Page entries, and a key of pages with changed rights or bounds, can reach any memory of the function.
    let indirect = row.mode == AccessMode::Klm.raw() || w.q.has(QpFlags::RESERVED_LKEY);
    let of_domain = row.pd == w.q.pd && !mask.contains(MkeyMask::PD) && indirect;
    // The creator of the queue may change any key that it could have created itself.
    let by_owner = w.is(ServiceType::RegUmr) && may_use(w.q.head.uid, row.head.uid);
    let own = by_owner || of_domain;
    // IBTA 10.6.7.2.2: a program binds a window to the queue pair of the request, and to no other.
    let tied = row.qpn == w.qpn() || !umr.check_qpn() || is_layout(row) && !free;
    let named = mask.contains(MkeyMask::KEY) || row.variant == wqe.imm as u8;
    let expected = match umr.check_free() {
        UmrCheck::NotFree => free,
        UmrCheck::Free => !free,
        _ => true,
    };
    // Without an offset this field would be the size of signature data, which is not supported.
    let plain = umr.translation_offset_en() || umr.xlt_offset() == 0;
    if row.access & access::UMR != 0 && own && tied && named && expected && plain {
        Ok(())
    } else {
        Err(REFUSED)
    }
}

/// Changes the fields of the context selected by `mask`.
fn change(row: &mut MkeyRow, context: &MkeyContextSeg, mask: MkeyMask) -> Result<(), Failure> {
    let has = |bit| mask.contains(bit);
    // Only commands of the owner set the bounds of device memory.
    let bounds = MkeyMask::LEN | MkeyMask::START_ADDR;
    if row.mode == AccessMode::Memic.raw() && mask.intersects(bounds) {
        return Err(REFUSED);
    }
    let signature = has(MkeyMask::BSF_EN) && context.bsf_en();
    if signature || mask.bits() & !MkeyMask::all().bits() != 0 {
        return Err(REFUSED);
    }
    for (bit, flag, on) in [
        (MkeyMask::LR, access::LOCAL_READ, context.lr()),
        (MkeyMask::LW, access::LOCAL_WRITE, context.lw()),
        (MkeyMask::RR, access::REMOTE_READ, context.rr()),
        (MkeyMask::RW, access::REMOTE_WRITE, context.rw()),
        (MkeyMask::A, access::ATOMIC, context.a()),
        (MkeyMask::FREE, access::FREE, context.free()),
        (MkeyMask::LEN, access::LENGTH64, context.length64()),
    ] {
        if has(bit) {
            row.access = if on { row.access | flag } else { row.access & !flag };
        }
    }
    if has(MkeyMask::LEN) {
        row.len = context.len();
    }
    if has(MkeyMask::PAGE_SIZE) && row.mode == AccessMode::Mtt.raw() {
        row.log_page = context.log_page_size().into();
    }
    if has(MkeyMask::START_ADDR) {
        row.start = context.start_addr();
    }
    if has(MkeyMask::PD) {
        row.pd = context.pd();
    }
    if has(MkeyMask::EN_RINVAL) {
        row.flags = row.flags & !REMOTE_INVALIDATE | u8::from(context.en_rinval());
    }
    if has(MkeyMask::KEY) {
        row.variant = context.mkey_7_0();
    }
    if has(MkeyMask::QPN) {
        row.qpn = context.qpn();
    }
    // Only a key of physical memory has no end.
    let unbounded = row.access & access::LENGTH64 != 0 && row.mode != AccessMode::Pa.raw();
    let usable = row.access & access::FREE != 0
        || !unbounded
            && row.start.checked_add(row.len).is_some()
            && (row.mode != AccessMode::Mtt.raw() || (12..=31).contains(&row.log_page));
    if usable { Ok(()) } else { Err(REFUSED) }
}

/// True if the key has the bytes of several others and is of no queue pair: a window of neither type (libmlx5 invalidates it as those of
/// type 2).
fn is_layout(row: &MkeyRow) -> bool {
    row.mode == AccessMode::Klm.raw() && row.qpn == ANY_QP && row.bound == 0
}

/// True if the key is a memory window: created by a program, which cannot name physical memory, from one part of a
/// region.
fn is_window(w: &QpStage<'_, '_, '_>, row: &MkeyRow) -> bool {
    row.mode == AccessMode::Klm.raw() && !w.is(ServiceType::RegUmr) && !w.q.has(QpFlags::RESERVED_LKEY)
}

/// The key index of the region that `words` bind a window to; `None` if they unbind it. IBTA 10.6.7.2.4: the region
/// has the window's domain and contains all of it, and rights that let peers modify the memory require local write
/// access to the region.
fn region(w: &QpStage<'_, '_, '_>, window: &MkeyRow, words: &[u64]) -> Result<Option<u32>, Failure> {
    if window.qpn != ANY_QP && window.qpn != w.qpn() {
        return Err(REFUSED);
    }
    let [head, address, rest @ ..] = words else { return Ok(None) };
    let (bytes, key) = (head >> 32, *head as u32);
    if bytes == 0 || rest.iter().any(|word| *word != 0) {
        return Ok(None);
    }
    let row = translate::key(w.func, w.user(), key, 0).map_err(|_| REFUSED)?;
    let changes = window.access & (access::REMOTE_WRITE | access::ATOMIC | access::LOCAL_WRITE) != 0;
    let need = if changes { access::LOCAL_WRITE } else { 0 };
    let held = translate::check(w.func, w.user(), key, *address, bytes, need).is_ok();
    let sound = held && window.len <= bytes && row.mode != AccessMode::Klm.raw();
    if sound { Ok(Some(key >> 8)) } else { Err(REFUSED) }
}

fn move_domain(func: &mut Func<'_>, from: u32, to: u32) -> Result<(), Failure> {
    func.get_mut::<PdRow>(to).ok_or(REFUSED)?.head.refs += 1;
    if let Some(pd) = func.get_mut::<PdRow>(from) {
        pd.head.refs = pd.head.refs.saturating_sub(1);
    }
    Ok(())
}

/// The translation entries of the request, from the WQE itself or from the memory that it points to.
fn words(
    w: &mut QpStage<'_, '_, '_>,
    umr: &UmrCtrlSeg,
    row: &MkeyRow,
    rest: std::ops::Range<usize>,
) -> Result<Vec<u64>, Failure> {
    let octowords = usize::from(umr.xlt_octowords());
    if octowords == 0 {
        return Ok(Vec::new());
    }
    let len = octowords * OCTOWORD;
    let mut bytes = vec![0; len];
    let given = w.step.buffers.wqe.get(rest).unwrap_or_default();
    if umr.inline_data() {
        // Zero-padded to the end of the WQE, which may be before the end of the last octoword.
        let n = given.len().min(len);
        bytes[..n].copy_from_slice(&given[..n]);
    } else {
        let seg = DataSeg::read(given.get(..WQE_DS).ok_or(REFUSED)?);
        fetch_list(w, &seg, &mut bytes)?;
    }
    let words: Vec<u64> = bytes.chunks_exact(8).map(|b| u64::from_be_bytes(prefix(b))).collect();
    let sound = match AccessMode::from_raw(row.mode) {
        AccessMode::Mtt => words.iter().all(|entry| entry & 0xffc == 0),
        // Keys of physical memory are allowed only for queue pairs that may use it.
        AccessMode::Klm => {
            let physical = |klm: &[u8]| KlmSeg::read(klm).mkey() == RESERVED_LKEY;
            w.q.has(QpFlags::RESERVED_LKEY) || !bytes.chunks_exact(KlmSeg::SIZE).any(physical)
        }
        _ => false,
    };
    if sound { Ok(words) } else { Err(REFUSED) }
}

/// Reads the list of entries from the memory of a data segment.
fn fetch_list(w: &mut QpStage<'_, '_, '_>, seg: &DataSeg, bytes: &mut [u8]) -> Result<(), Failure> {
    let bad = Failure::new(CqeSyndrome::LocalProtErr, vendor_err::LKEY);
    let (domain, rid) = (w.domain(), w.func.rid());
    let (len, pieces) = (bytes.len() as u32, &mut w.step.buffers.pieces);
    lists::resolve(w.func, domain, seg.as_bytes(), 0, len, lists::GATHER, pieces)
        .map_err(ListFault::failure)?;
    if !w.step.flush() {
        return Err(bad);
    }
    let mut rest = bytes;
    for i in 0..w.step.buffers.pieces.len() {
        let piece = w.step.buffers.pieces[i];
        let (here, after) = rest.split_at_mut((piece.len as usize).min(rest.len()));
        w.step.read(rid, piece.at, here).map_err(|_| bad)?;
        rest = after;
    }
    Ok(())
}

/// Writes translation entries into the key's range, which is allocated now if it has none yet.
fn load(func: &mut Func<'_>, row: &mut MkeyRow, offset: u64, words: &[u64]) -> Result<(), Failure> {
    let first = offset * 2;
    if first + words.len() as u64 > u64::from(row.pages) {
        return Err(REFUSED);
    }
    if row.mtt == 0 {
        let range = func.alloc_mtt(row.pages).map_err(|_| REFUSED)?;
        (row.mtt, row.pages) = (range.first, range.len);
        for i in 0..range.len {
            func.set_mtt(range.first + i, 0);
        }
    }
    for (i, word) in words.iter().enumerate() {
        func.set_mtt(row.mtt + first as u32 + i as u32, *word);
    }
    Ok(())
}
