//! Flow tables and the groups in them (PRM: flow tables). Entries are in [`flow_entry`](super::flow_entry).

use super::{
    call::{Call, SHARED_UID, let_go},
    refusal::{Done, Syndrome},
};
use crate::{
    region::{Func, GROUP_ETHERNET},
    state::{FlowCounterRow, FlowGroupRow, FlowTableRow},
};
use hwspec::{
    cmd::{CmdIn, flow::*},
    context::{
        flow::{FlowTableContext, MatchParam},
        vport::TrafficCounter,
    },
    layout::Layout,
};

/// `table_type`: frames that are received.
const NIC_RECEIVE: u8 = 0;
/// log2 of the most entries a table may have.
pub(super) const LOG_MAX_SIZE: u8 = 22;
/// The highest level.
pub(super) const MAX_LEVEL: u8 = 128;
/// `table_miss_action`: what the table's type does by default, which is to drop; or on to another table.
const MISS_DROP: u8 = 0;
const MISS_FORWARD: u8 = 1;
/// `modify_field_select`: where packets go that no entry matches.
const MISS_TABLE: u16 = 1;
/// `op_mod` of `SET_FLOW_TABLE_ROOT`: this table, or no table any more.
pub(super) const CONNECT: u16 = 0;
/// See [`CONNECT`].
pub(super) const DISCONNECT: u16 = 1;
/// `match_criteria_enable`: outer headers.
pub(super) const OUTER: u8 = 1;

/// Only the caller's own received frames are steered.
pub(super) fn own_tables(other: bool, vport: u16, table_type: u8) -> Done {
    Syndrome::FunctionId.unless(!other && vport == 0)?;
    Syndrome::FlowTableType.unless(table_type == NIC_RECEIVE)
}

/// A table of the caller.
pub(super) fn table(call: &Call<'_, '_, '_>, number: u32) -> Done<u32> {
    call.own::<FlowTableRow>(number, Syndrome::NoSuchFlowTable)
}

/// A table the caller may have groups and entries in: its own, or one the function's driver lets all use.
pub(super) fn open_table(call: &Call<'_, '_, '_>, number: u32) -> Done<u32> {
    let is_shared = |i: &u32| call.func.row::<FlowTableRow>(*i).is_some_and(|row| row.shared != 0);
    match call.func.index::<FlowTableRow>(number).filter(is_shared) {
        Some(index) => Ok(index),
        None => table(call, number),
    }
}

/// What happens to packets that no entry matches, as a row keeps it.
fn miss(call: &Call<'_, '_, '_>, level: u32, c: &FlowTableContext) -> Done<(u32, u32)> {
    match c.table_miss_action() {
        MISS_DROP => Ok((0, 0)),
        MISS_FORWARD => {
            let next = table(call, c.table_miss_id())?;
            Syndrome::FlowLevel
                .unless(call.func.row::<FlowTableRow>(next).is_some_and(|t| t.level > level))?;
            Ok((1, next))
        }
        _ => Syndrome::FlowAction.refuse(),
    }
}

pub(super) fn create_table(call: &mut Call<'_, '_, '_>) -> Done {
    let input: CreateFlowTableIn = call.input()?;
    own_tables(input.other_vport(), input.vport_number(), input.table_type())?;
    let c = input.flow_table_context();
    let plain = !c.reformat_en() && !c.decap_en() && !c.sw_owner() && !c.termination_table();
    Syndrome::QueueFlags.unless(plain)?;
    Syndrome::QueueSize.unless(c.log_size() <= LOG_MAX_SIZE)?;
    Syndrome::FlowLevel.unless(c.level() <= MAX_LEVEL)?;
    let (miss_action, miss) = miss(call, c.level().into(), &c)?;
    let shared = CmdIn::read(call.input).uid() == SHARED_UID;
    let index = call.alloc::<FlowTableRow>(1)?;
    if let Some(row) = call.func.row_mut::<FlowTableRow>(index) {
        row.level = c.level().into();
        row.log_size = c.log_size().into();
        row.shared = shared.into();
        (row.miss_action, row.miss) = (miss_action, miss);
    }
    let mut out = CreateFlowTableOut::zeroed();
    out.set().table_id(index);
    call.answer(&out)
}

pub(super) fn modify_table(call: &mut Call<'_, '_, '_>) -> Done {
    let input: ModifyFlowTableIn = call.input()?;
    own_tables(input.other_vport(), input.vport_number(), input.table_type())?;
    let index = table(call, input.table_id())?;
    Syndrome::ModifyField.unless(input.modify_field_select() == MISS_TABLE)?;
    let level = call.func.row::<FlowTableRow>(index).map_or(0, |row| row.level);
    let (action, next) = miss(call, level, &input.flow_table_context())?;
    if let Some(row) = call.func.row_mut::<FlowTableRow>(index) {
        (row.miss_action, row.miss) = (action, next);
    }
    call.answer(&ModifyFlowTableOut::zeroed())
}

pub(super) fn query_table(call: &mut Call<'_, '_, '_>) -> Done {
    let input: QueryFlowTableIn = call.input()?;
    own_tables(false, 0, input.table_type())?;
    let index = table(call, input.table_id())?;
    let Some(row) = call.func.row::<FlowTableRow>(index) else { return Syndrome::NoSuchFlowTable.refuse() };
    let mut c = FlowTableContext::zeroed();
    c.set()
        .level(row.level as u8)
        .log_size(row.log_size as u8)
        .table_miss_action(row.miss_action as u8)
        .table_miss_id(row.miss);
    let mut out = QueryFlowTableOut::zeroed();
    out.set().flow_table_context(c);
    call.answer(&out)
}

pub(super) fn destroy_table(call: &mut Call<'_, '_, '_>) -> Done {
    let input: DestroyFlowTableIn = call.input()?;
    own_tables(input.other_vport(), input.vport_number(), input.table_type())?;
    let index = table(call, input.table_id())?;
    let refs = call.func.row::<FlowTableRow>(index).map_or(0, |row| row.head.refs);
    Syndrome::InUse.unless(refs == 0)?;
    end_table(call.func, index);
    call.answer(&DestroyFlowTableOut::zeroed())
}

/// Ends the table. Packets sent there by a miss or as the first table are dropped from now on.
pub(super) fn end_table(func: &mut Func<'_>, index: u32) {
    let root = func.function_mut(|f| &mut f.flow_root);
    root.iter_mut().filter(|root| **root == index + 1).for_each(|root| *root = 0);
    let steers = root.iter().any(|root| *root != 0);
    func.takes_frames(GROUP_ETHERNET, steers);
    func.free::<FlowTableRow>(index);
}

pub(super) fn set_root(call: &mut Call<'_, '_, '_>) -> Done {
    let input: SetFlowTableRootIn = call.input()?;
    own_tables(input.other_vport(), input.vport_number(), input.table_type())?;
    Syndrome::QueueFlags.unless(input.underlay_qpn() == 0)?;
    let root = match call.op_mod {
        CONNECT => table(call, input.table_id())? + 1,
        DISCONNECT => 0,
        _ => return Syndrome::OpMod.refuse(),
    };
    call.func.function_mut(|f| &mut f.flow_root)[usize::from(input.table_type())] = root;
    call.func.takes_frames(GROUP_ETHERNET, root != 0);
    call.answer(&SetFlowTableRootOut::zeroed())
}

pub(super) fn create_group(call: &mut Call<'_, '_, '_>) -> Done {
    let input: CreateFlowGroupIn = call.input()?;
    own_tables(input.other_vport(), input.vport_number(), input.table_type())?;
    let index = open_table(call, input.table_id())?;
    let (start, end) = (input.start_flow_index(), input.end_flow_index());
    let size = call.func.row::<FlowTableRow>(index).map_or(0, |row| 1u32 << row.log_size);
    Syndrome::FlowRange.unless(start <= end && end < size)?;
    let overlaps = call
        .func
        .live::<FlowGroupRow>()
        .into_iter()
        .filter_map(|g| call.func.row::<FlowGroupRow>(g))
        .any(|g| g.table == index && g.start <= end && start <= g.end);
    Syndrome::FlowRange.unless(!overlaps)?;
    let mask = input.match_criteria();
    criteria(&mask, input.match_criteria_enable())?;
    let group = call.alloc::<FlowGroupRow>(1)?;
    call.hold::<FlowTableRow>(index);
    if let Some(row) = call.func.row_mut::<FlowGroupRow>(group) {
        (row.table, row.start, row.end) = (index, start, end);
        row.criteria = input.match_criteria_enable().into();
        if row.criteria != 0 {
            row.mask = *mask.outer_headers().as_bytes();
        }
    }
    let mut out = CreateFlowGroupOut::zeroed();
    out.set().group_id(group);
    call.answer(&out)
}

/// What can be matched: fields of the outer headers, and of those none this device does not see.
fn criteria(mask: &MatchParam, enable: u8) -> Done {
    Syndrome::FlowMatch.unless(enable & !OUTER == 0)?;
    Syndrome::FlowMatch.unless(enable == 0 || mask.outer_headers().reserved_set().is_none())
}

pub(super) fn query_group(call: &mut Call<'_, '_, '_>) -> Done {
    let input: QueryFlowGroupIn = call.input()?;
    own_tables(false, 0, input.table_type())?;
    let index = group(call, input.table_id(), input.group_id())?;
    let Some(row) = call.func.row::<FlowGroupRow>(index) else { return Syndrome::NoSuchFlowGroup.refuse() };
    let mut mask = MatchParam::zeroed();
    mask.set().outer_headers(Layout::read(&row.mask));
    let mut out = QueryFlowGroupOut::zeroed();
    out.set()
        .start_flow_index(row.start)
        .end_flow_index(row.end)
        .match_criteria_enable(row.criteria as u8)
        .match_criteria(mask);
    call.answer(&out)
}

/// A group of a table of the caller.
pub(super) fn group(call: &Call<'_, '_, '_>, table_id: u32, group_id: u32) -> Done<u32> {
    let table = open_table(call, table_id)?;
    let group = call.own::<FlowGroupRow>(group_id, Syndrome::NoSuchFlowGroup)?;
    let of_table = call.func.row::<FlowGroupRow>(group).is_some_and(|row| row.table == table);
    Syndrome::NoSuchFlowGroup.unless(of_table)?;
    Ok(group)
}

pub(super) fn destroy_group(call: &mut Call<'_, '_, '_>) -> Done {
    let input: DestroyFlowGroupIn = call.input()?;
    own_tables(input.other_vport(), input.vport_number(), input.table_type())?;
    let index = group(call, input.table_id(), input.group_id())?;
    let refs = call.func.row::<FlowGroupRow>(index).map_or(0, |row| row.head.refs);
    Syndrome::InUse.unless(refs == 0)?;
    end_group(call.func, index);
    call.answer(&DestroyFlowGroupOut::zeroed())
}

/// Ends the group, whoever refers to it.
pub(super) fn end_group(func: &mut Func<'_>, index: u32) {
    let Some(table) = func.row::<FlowGroupRow>(index).map(|row| row.table) else { return };
    let_go::<FlowTableRow>(func, table);
    func.free::<FlowGroupRow>(index);
}

pub(super) fn alloc_counter(call: &mut Call<'_, '_, '_>) -> Done {
    let input: AllocFlowCounterIn = call.input()?;
    // Counters come one by one.
    Syndrome::QueueFlags.unless(input.flow_counter_bulk() == 0)?;
    let index = call.alloc::<FlowCounterRow>(1)?;
    let mut out = AllocFlowCounterOut::zeroed();
    out.set().flow_counter_id(index);
    call.answer(&out)
}

pub(super) fn dealloc_counter(call: &mut Call<'_, '_, '_>) -> Done {
    let input: DeallocFlowCounterIn = call.input()?;
    call.release::<FlowCounterRow>(input.flow_counter_id(), Syndrome::NoSuchFlowCounter)?;
    call.answer(&DeallocFlowCounterOut::zeroed())
}

/// One counter, or all of a range: numbers in it that are nobody's read zero.
pub(super) fn query_counter(call: &mut Call<'_, '_, '_>) -> Done {
    let input: QueryFlowCounterIn = call.input()?;
    let (first, count) = (input.flow_counter_id(), u32::from(input.num_of_counters()));
    if count == 0 {
        call.own::<FlowCounterRow>(first, Syndrome::NoSuchFlowCounter)?;
    }
    let mut bytes = QueryFlowCounterOut::zeroed().as_bytes().to_vec();
    for id in first..first.saturating_add(count.max(1)) {
        let own = call.own::<FlowCounterRow>(id, Syndrome::NoSuchFlowCounter).ok();
        let mut counter = TrafficCounter::zeroed();
        if let Some(row) = own.and_then(|i| call.func.row::<FlowCounterRow>(i)) {
            counter.set().packets(row.packets).octets(row.octets);
        }
        if let Some(row) = own.filter(|_| input.clear()).and_then(|i| call.func.row_mut::<FlowCounterRow>(i))
        {
            (row.packets, row.octets) = (0, 0);
        }
        bytes.extend_from_slice(counter.as_bytes());
    }
    call.answer_bytes(&bytes)
}
