//! Transport interfaces and receive queue tables.

use super::{
    bind::{Bound, cast},
    call::Call,
    flow_entry,
    object::{self, Object},
    refusal::{Done, Refused, Syndrome},
};
use crate::{
    region::Func,
    state::{RqRow, RqtRow, TdRow, TirRow, TisRow},
};
use hwspec::{cmd::tir::*, context::tir::*, layout::prefix};

/// log2 of the maximum size of a receive queue table.
pub(super) const LOG_MAX_RQT: u8 = 8;
/// Fields that can be hashed: both addresses, both ports, and the security parameters index of AH and ESP.
const FIELDS: u32 = 0x1f;
/// Bits of `modify_tir_in.bitmask`: packet merging, hash, loopback.
const MERGE: u64 = 1 << 0;
const HASH: u64 = 1 << 2;
const SELF_LB: u64 = 1 << 4;
/// The domain of an interface in none. DPDK creates the interface of its drop queue so.
const NO_DOMAIN: u32 = 0;
/// Bit of `modify_tis_in.bitmask`: priority.
const PRIO: u64 = 1 << 0;
/// Bit of `modify_rqt_in.bitmask`: the list of queues.
const RQN_LIST: u64 = 1 << 0;

bind! { TisContext <-> TisRow {
    transport_domain <-> td,
    pd <-> pd,
    prio <-> prio,
} }

bind! { TirContext <-> TirRow {
    disp_type <-> disp,
    inline_rqn <-> rqn,
    indirect_table <-> rqt,
    self_lb_block <-> self_loopback,
    transport_domain <-> td,
} shows row {
    rx_hash_symmetric = row.symmetric != 0,
    rx_hash_fn = row.hash as u8,
    rx_hash_toeplitz_key = row.key,
    rx_hash_field_selector_outer = HashFields::with(|s| {
        s.l3_prot_type(row.fields >> 31 != 0)
            .l4_prot_type(row.fields >> 30 & 1 != 0)
            .selected_fields(row.fields & FIELDS)
    }),
} }

bind! { RqtContext <-> RqtRow {
    rqt_max_size <-> max,
    rqt_actual_size <-> actual,
} }

pub(super) fn create_tis(call: &mut Call<'_, '_, '_>) -> Done {
    let c = call.input::<CreateTisIn>()?.ctx();
    Syndrome::QueueFlags.unless(!c.tls_en() && c.underlay_qpn() == 0)?;
    call.own::<TdRow>(c.transport_domain())?;
    // Only a TIS with TLS has a protection domain.
    let index = call.make::<TisRow>(|row| row.take(&c))?;
    call.created::<TisRow>(index)
}

pub(super) fn modify_tis(call: &mut Call<'_, '_, '_>) -> Done {
    let input: ModifyTisIn = call.input()?;
    let index = call.named::<TisRow>()?;
    let fields = input.bitmask();
    Syndrome::ModifyField.unless(fields & !PRIO == 0)?;
    if fields & PRIO != 0 {
        call.row_mut::<TisRow>(index)?.prio = input.ctx().prio().into();
    }
    Ok(())
}

pub(super) fn query_tis(call: &mut Call<'_, '_, '_>) -> Done {
    let context = call.row::<TisRow>(call.named::<TisRow>()?)?.show();
    call.answer(&QueryTisOut::with(|s| s.tis_context(context)))
}

/// Takes the hash settings into a row.
fn hash(row: &mut TirRow, c: &TirContext) -> Done {
    let outer = c.rx_hash_field_selector_outer();
    let known = matches!(c.rx_hash_fn(), NO_HASH | XOR | TOEPLITZ) && outer.selected_fields() & !FIELDS == 0;
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
    if c.transport_domain() != NO_DOMAIN {
        call.own::<TdRow>(c.transport_domain())?;
    }
    match c.disp_type() {
        DIRECT => call.own::<RqRow>(c.inline_rqn())?,
        INDIRECT => call.own::<RqtRow>(c.indirect_table())?,
        _ => return Syndrome::QueueFlags.refuse(),
    };
    let index = call.make::<TirRow>(|row| row.take(&c))?;
    hash(call.row_mut::<TirRow>(index)?, &c)?;
    call.created::<TirRow>(index)
}

pub(super) fn modify_tir(call: &mut Call<'_, '_, '_>) -> Done {
    let input: ModifyTirIn = call.input()?;
    let index = call.named::<TirRow>()?;
    let (fields, c) = (input.bitmask(), input.ctx());
    Syndrome::ModifyField.unless(fields & !(MERGE | HASH | SELF_LB) == 0)?;
    Syndrome::QueueFlags.unless(fields & MERGE == 0 || c.packet_merge_mask() == 0)?;
    let row = call.row_mut::<TirRow>(index)?;
    if fields & HASH != 0 {
        hash(row, &c)?;
    }
    if fields & SELF_LB != 0 {
        row.self_loopback = c.self_lb_block().into();
    }
    Ok(())
}

pub(super) fn query_tir(call: &mut Call<'_, '_, '_>) -> Done {
    let context = call.row::<TirRow>(call.named::<TirRow>()?)?.show();
    call.answer(&QueryTirOut::with(|s| s.tir_context(context)))
}

/// Destroys the interface, even if other objects refer to it.
pub(super) fn end(func: &mut Func<'_>, index: u32) {
    flow_entry::end_with(func, index);
    object::end::<TirRow>(func, index);
}

/// Stores the checked queue numbers after a table's context in new translation entries.
fn queues(call: &mut Call<'_, '_, '_>, offset: usize, count: u16) -> Done<u32> {
    let bytes = call.input.get(offset..).and_then(|b| b.get(..usize::from(count) * 4));
    let bytes = bytes.ok_or(Refused(Syndrome::InputLength))?;
    let list: Vec<_> =
        bytes.chunks_exact(4).map(|word| u32::from_be_bytes(prefix(word)) & 0xff_ffff).collect();
    for rqn in &list {
        call.own::<RqRow>(*rqn)?;
    }
    let list: Vec<u64> = list.into_iter().map(u64::from).collect();
    Ok(call.store(&list)?.first)
}

pub(super) fn create_rqt(call: &mut Call<'_, '_, '_>) -> Done {
    let c = call.input::<CreateRqtIn>()?.rqt_context();
    let (max, actual) = (c.rqt_max_size(), c.rqt_actual_size());
    Syndrome::RqtSize.unless((1..=1 << LOG_MAX_RQT).contains(&max) && (1..=max).contains(&actual))?;
    let mtt = queues(call, CreateRqtIn::SIZE, actual)?;
    let index = call.make::<RqtRow>(|row| {
        row.take(&c);
        row.mtt = mtt;
    })?;
    call.created::<RqtRow>(index)
}

pub(super) fn modify_rqt(call: &mut Call<'_, '_, '_>) -> Done {
    let input: ModifyRqtIn = call.input()?;
    let index = call.named::<RqtRow>()?;
    let fields = input.bitmask();
    Syndrome::ModifyField.unless(fields & !RQN_LIST == 0)?;
    if fields & RQN_LIST != 0 {
        let actual = input.ctx().rqt_actual_size();
        let old = *call.row::<RqtRow>(index)?;
        Syndrome::RqtSize.unless(actual != 0 && u32::from(actual) <= old.max)?;
        let mtt = queues(call, ModifyRqtIn::SIZE, actual)?;
        call.func.free_mtt(old.entries());
        let row = call.row_mut::<RqtRow>(index)?;
        (row.mtt, row.actual) = (mtt, actual.into());
    }
    Ok(())
}

pub(super) fn query_rqt(call: &mut Call<'_, '_, '_>) -> Done {
    let row = *call.row::<RqtRow>(call.named::<RqtRow>()?)?;
    let list: Vec<_> =
        (row.mtt..).map(|at| (call.func.mtt(at) as u32).to_be_bytes()).take(row.actual as usize).collect();
    call.answer_list(&QueryRqtOut::with(|s| s.rqt_context(row.show())), list)
}
