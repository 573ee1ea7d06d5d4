//! Transport interfaces and receive queue tables.

use super::{
    call::{Call, let_go},
    flow_entry,
    refusal::{Done, Syndrome},
};
use crate::{
    region::{Func, MttRange},
    state::{RqRow, RqtRow, TdRow, TirRow, TisRow},
};
use hwspec::{
    cmd::{CmdOut, tir::*},
    context::tir::{HashFields, RqtContext, TirContext, TisContext},
    layout::prefix,
};

/// log2 of the maximum size of a receive queue table.
pub(super) const LOG_MAX_RQT: u8 = 8;
/// `tirc.disp_type`.
const DIRECT: u8 = 0;
const INDIRECT: u8 = 1;
/// `tirc.rx_hash_fn`.
const NONE: u8 = 0;
const XOR: u8 = 1;
const TOEPLITZ: u8 = 2;
/// Fields that can be hashed: both addresses, both ports, and the security parameters index of AH and ESP.
const FIELDS: u32 = 0x1f;
/// Bits of `modify_tir_in.bitmask`: packet merging, hash, loopback.
const MERGE: u64 = 1 << 0;
const HASH: u64 = 1 << 2;
const SELF_LB: u64 = 1 << 4;
/// Bit of `modify_tis_in.bitmask`: priority.
const PRIO: u64 = 1 << 0;
/// Bit of `modify_rqt_in.bitmask`: the list of queues.
const RQN_LIST: u64 = 1 << 0;

pub(super) fn create_tis(call: &mut Call<'_, '_, '_>) -> Done {
    let input: CreateTisIn = call.input()?;
    let c = input.ctx();
    Syndrome::QueueFlags.unless(!c.tls_en() && c.underlay_qpn() == 0)?;
    let td = call.own::<TdRow>(c.transport_domain(), Syndrome::NoSuchTd)?;
    // Only a TIS with TLS has a protection domain.
    let index = call.alloc::<TisRow>(0)?;
    call.hold::<TdRow>(td);
    if let Some(row) = call.func.row_mut::<TisRow>(index) {
        (row.td, row.pd, row.prio) = (c.transport_domain(), c.pd(), c.prio().into());
    }
    call.answer(&CreateTisOut::with(|s| s.tisn(index)))
}

pub(super) fn modify_tis(call: &mut Call<'_, '_, '_>) -> Done {
    let input: ModifyTisIn = call.input()?;
    let index = call.own::<TisRow>(input.tisn(), Syndrome::NoSuchTis)?;
    let fields = input.bitmask();
    Syndrome::ModifyField.unless(fields & !PRIO == 0)?;
    if fields & PRIO != 0 {
        if let Some(row) = call.func.row_mut::<TisRow>(index) {
            row.prio = input.ctx().prio().into();
        }
    }
    call.answer(&CmdOut::zeroed())
}

pub(super) fn query_tis(call: &mut Call<'_, '_, '_>) -> Done {
    let input: QueryTisIn = call.input()?;
    let index = call.own::<TisRow>(input.tisn(), Syndrome::NoSuchTis)?;
    let Some(row) = call.func.row::<TisRow>(index) else { return Syndrome::NoSuchTis.refuse() };
    let c = TisContext::with(|s| s.transport_domain(row.td).pd(row.pd).prio(row.prio as u8));
    call.answer(&QueryTisOut::with(|s| s.tis_context(c)))
}

pub(super) fn destroy_tis(call: &mut Call<'_, '_, '_>) -> Done {
    let input: DestroyTisIn = call.input()?;
    let index = call.own::<TisRow>(input.tisn(), Syndrome::NoSuchTis)?;
    let td = call.func.row::<TisRow>(index).map_or(0, |row| row.td);
    call.release::<TisRow>(index, Syndrome::NoSuchTis)?;
    let_go::<TdRow>(call.func, td);
    call.answer(&CmdOut::zeroed())
}

/// Destroys the interface, even if other objects refer to it.
pub(super) fn end_tis(func: &mut Func<'_>, index: u32) {
    if let Some(td) = func.row::<TisRow>(index).map(|row| row.td) {
        let_go::<TdRow>(func, td);
        func.free::<TisRow>(index);
    }
}

/// Takes the hash settings into a row.
fn hash(row: &mut TirRow, c: &TirContext) -> Done {
    let outer = c.rx_hash_field_selector_outer();
    let known = matches!(c.rx_hash_fn(), NONE | XOR | TOEPLITZ) && outer.selected_fields() & !FIELDS == 0;
    Syndrome::HashFunction.unless(known)?;
    row.hash = c.rx_hash_fn().into();
    row.fields = outer.selected_fields()
        | u32::from(outer.l4_prot_type()) << 30
        | u32::from(outer.l3_prot_type()) << 31;
    row.symmetric = c.rx_hash_symmetric().into();
    row.key = prefix(&c.rx_hash_toeplitz_key());
    Ok(())
}

pub(super) fn create_tir(call: &mut Call<'_, '_, '_>) -> Done {
    let input: CreateTirIn = call.input()?;
    let c = input.ctx();
    let plain = !c.tls_en() && !c.tunneled_offload_en() && c.packet_merge_mask() == 0;
    Syndrome::QueueFlags.unless(plain)?;
    let td = call.own::<TdRow>(c.transport_domain(), Syndrome::NoSuchTd)?;
    let (mut rq, mut rqt) = (None, None);
    match c.disp_type() {
        DIRECT => rq = Some(call.own::<RqRow>(c.inline_rqn(), Syndrome::NoSuchRq)?),
        INDIRECT => rqt = Some(call.own::<RqtRow>(c.indirect_table(), Syndrome::NoSuchRqt)?),
        _ => return Syndrome::QueueFlags.refuse(),
    }
    let index = call.alloc::<TirRow>(0)?;
    call.hold::<TdRow>(td);
    rq.iter().for_each(|rq| call.hold::<RqRow>(*rq));
    rqt.iter().for_each(|rqt| call.hold::<RqtRow>(*rqt));
    if let Some(row) = call.func.row_mut::<TirRow>(index) {
        row.td = c.transport_domain();
        row.disp = c.disp_type().into();
        row.rqn = c.inline_rqn();
        row.rqt = c.indirect_table();
        row.self_loopback = c.self_lb_block().into();
        hash(row, &c)?;
    }
    call.answer(&CreateTirOut::with(|s| s.tirn(index)))
}

pub(super) fn modify_tir(call: &mut Call<'_, '_, '_>) -> Done {
    let input: ModifyTirIn = call.input()?;
    let index = call.own::<TirRow>(input.tirn(), Syndrome::NoSuchTir)?;
    let (fields, c) = (input.bitmask(), input.ctx());
    Syndrome::ModifyField.unless(fields & !(MERGE | HASH | SELF_LB) == 0)?;
    Syndrome::QueueFlags.unless(fields & MERGE == 0 || c.packet_merge_mask() == 0)?;
    let Some(row) = call.func.row_mut::<TirRow>(index) else { return Syndrome::NoSuchTir.refuse() };
    if fields & HASH != 0 {
        hash(row, &c)?;
    }
    if fields & SELF_LB != 0 {
        row.self_loopback = c.self_lb_block().into();
    }
    call.answer(&CmdOut::zeroed())
}

pub(super) fn query_tir(call: &mut Call<'_, '_, '_>) -> Done {
    let input: QueryTirIn = call.input()?;
    let index = call.own::<TirRow>(input.tirn(), Syndrome::NoSuchTir)?;
    let Some(row) = call.func.row::<TirRow>(index) else { return Syndrome::NoSuchTir.refuse() };
    let outer = HashFields::with(|s| {
        s.l3_prot_type(row.fields >> 31 != 0)
            .l4_prot_type(row.fields >> 30 & 1 != 0)
            .selected_fields(row.fields & FIELDS)
    });
    let mut c = TirContext::zeroed();
    c.set()
        .disp_type(row.disp as u8)
        .inline_rqn(row.rqn)
        .indirect_table(row.rqt)
        .rx_hash_symmetric(row.symmetric != 0)
        .rx_hash_fn(row.hash as u8)
        .self_lb_block(row.self_loopback as u8)
        .transport_domain(row.td)
        .rx_hash_toeplitz_key(row.key)
        .rx_hash_field_selector_outer(outer);
    call.answer(&QueryTirOut::with(|s| s.tir_context(c)))
}

pub(super) fn destroy_tir(call: &mut Call<'_, '_, '_>) -> Done {
    let input: DestroyTirIn = call.input()?;
    let index = call.own::<TirRow>(input.tirn(), Syndrome::NoSuchTir)?;
    let refs = call.func.row::<TirRow>(index).map_or(0, |row| row.head.refs);
    Syndrome::InUse.unless(refs == 0)?;
    end_tir(call.func, index);
    call.answer(&CmdOut::zeroed())
}

/// Destroys the interface, even if other objects refer to it.
pub(super) fn end_tir(func: &mut Func<'_>, index: u32) {
    flow_entry::end_with(func, index);
    let Some(row) = func.row::<TirRow>(index) else { return };
    let (td, direct, rqn, rqt) = (row.td, row.disp == u32::from(DIRECT), row.rqn, row.rqt);
    let_go::<TdRow>(func, td);
    match direct {
        true => let_go::<RqRow>(func, rqn),
        false => let_go::<RqtRow>(func, rqt),
    }
    func.free::<TirRow>(index);
}

/// The checked queue numbers after a table's context.
fn queues(call: &Call<'_, '_, '_>, offset: usize, count: u16) -> Done<Vec<u32>> {
    let bytes = call.input.get(offset..).and_then(|b| b.get(..usize::from(count) * 4));
    let Some(bytes) = bytes else { return Syndrome::InputLength.refuse() };
    let mut list = Vec::with_capacity(count.into());
    for word in bytes.chunks_exact(4) {
        let rqn = u32::from_be_bytes(prefix(word)) & 0xff_ffff;
        call.own::<RqRow>(rqn, Syndrome::NoSuchRq)?;
        list.push(rqn);
    }
    Ok(list)
}

/// Stores a list in translation entries of its own.
fn note(call: &mut Call<'_, '_, '_>, list: &[u32]) -> Done<u32> {
    let range = call.alloc_mtt(list.len() as u32)?;
    for (i, rqn) in list.iter().enumerate() {
        call.func.set_mtt(range.first + i as u32, (*rqn).into());
    }
    Ok(range.first)
}

pub(super) fn create_rqt(call: &mut Call<'_, '_, '_>) -> Done {
    let input: CreateRqtIn = call.input()?;
    let c = input.rqt_context();
    let (max, actual) = (c.rqt_max_size(), c.rqt_actual_size());
    Syndrome::RqtSize.unless((1..=1 << LOG_MAX_RQT).contains(&max) && (1..=max).contains(&actual))?;
    let list = queues(call, CreateRqtIn::SIZE, actual)?;
    let mtt = note(call, &list)?;
    let index = call.alloc::<RqtRow>(0)?;
    if let Some(row) = call.func.row_mut::<RqtRow>(index) {
        (row.mtt, row.max, row.actual) = (mtt, max.into(), actual.into());
    }
    call.answer(&CreateRqtOut::with(|s| s.rqtn(index)))
}

pub(super) fn modify_rqt(call: &mut Call<'_, '_, '_>) -> Done {
    let input: ModifyRqtIn = call.input()?;
    let index = call.own::<RqtRow>(input.rqtn(), Syndrome::NoSuchRqt)?;
    let fields = input.bitmask();
    Syndrome::ModifyField.unless(fields & !RQN_LIST == 0)?;
    if fields & RQN_LIST != 0 {
        let actual = input.ctx().rqt_actual_size();
        let Some(row) = call.func.row::<RqtRow>(index) else { return Syndrome::NoSuchRqt.refuse() };
        let old = *row;
        Syndrome::RqtSize.unless(actual != 0 && u32::from(actual) <= old.max)?;
        let list = queues(call, ModifyRqtIn::SIZE, actual)?;
        let mtt = note(call, &list)?;
        call.func.free_mtt(MttRange { first: old.mtt, len: old.actual });
        if let Some(row) = call.func.row_mut::<RqtRow>(index) {
            (row.mtt, row.actual) = (mtt, actual.into());
        }
    }
    call.answer(&CmdOut::zeroed())
}

pub(super) fn query_rqt(call: &mut Call<'_, '_, '_>) -> Done {
    let input: QueryRqtIn = call.input()?;
    let index = call.own::<RqtRow>(input.rqtn(), Syndrome::NoSuchRqt)?;
    let Some(row) = call.func.row::<RqtRow>(index) else { return Syndrome::NoSuchRqt.refuse() };
    let row = *row;
    let c = RqtContext::with(|s| s.rqt_max_size(row.max as u16).rqt_actual_size(row.actual as u16));
    let mut bytes = QueryRqtOut::with(|s| s.rqt_context(c)).as_bytes().to_vec();
    for i in 0..row.actual {
        bytes.extend_from_slice(&(call.func.mtt(row.mtt + i) as u32).to_be_bytes());
    }
    call.answer_bytes(&bytes)
}

pub(super) fn destroy_rqt(call: &mut Call<'_, '_, '_>) -> Done {
    let input: DestroyRqtIn = call.input()?;
    let index = call.own::<RqtRow>(input.rqtn(), Syndrome::NoSuchRqt)?;
    let refs = call.func.row::<RqtRow>(index).map_or(0, |row| row.head.refs);
    Syndrome::InUse.unless(refs == 0)?;
    end_rqt(call.func, index);
    call.answer(&CmdOut::zeroed())
}

/// Destroys the table, even if other objects refer to it.
pub(super) fn end_rqt(func: &mut Func<'_>, index: u32) {
    let Some(row) = func.row::<RqtRow>(index) else { return };
    let range = MttRange { first: row.mtt, len: row.actual };
    func.free_mtt(range);
    func.free::<RqtRow>(index);
}
