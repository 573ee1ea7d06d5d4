//! Flow tables and the groups in them (PRM: flow tables). Entries are in [`flow_entry`](super::flow_entry).

use super::{
    bind::{Bound, cast},
    call::{Call, SHARED_UID},
    eswitch::settings,
    object,
    refusal::{Done, Syndrome},
    vport::{manages, vport},
};
use crate::{
    Config, LinkLayer,
    region::{Func, GROUP_ETHERNET},
    state::{FlowCounterRow, FlowEntryRow, FlowGroupRow, FlowTableRow, MATCH, VportRow},
};
use hwspec::{
    cmd::{CmdIn, CmdOut, flow::*},
    context::{
        flow::{FlowTableContext, MatchMisc, MatchParam, OUTER},
        vport::TrafficCounter,
    },
    layout::Layout,
};
use std::sync::atomic::Ordering::Relaxed;

/// `table_type`: received frames.
const NIC_RECEIVE: u8 = 0;
/// `table_type`: frames to a vport, frames from a vport, and frames between vports (the forwarding database).
const EGRESS: u8 = 2;
const INGRESS: u8 = 3;
const FDB: u8 = 4;
/// log2 of the maximum number of entries in a table.
pub(super) const LOG_MAX_SIZE: u8 = 22;
/// The highest level.
pub(super) const MAX_LEVEL: u8 = 128;
/// `table_miss_action`: the default of the table's type, which is to drop; or forward to another table.
const MISS_DROP: u8 = 0;
const MISS_FORWARD: u8 = 1;
/// `modify_field_select`: destination of packets that match no entry.
const MISS_TABLE: u16 = 1;
/// `op_mod` of `SET_FLOW_TABLE_ROOT`: sets this table.
pub(super) const CONNECT: u16 = 0;
/// `op_mod` of `SET_FLOW_TABLE_ROOT`: removes the root table.
pub(super) const DISCONNECT: u16 = 1;
/// `match_criteria_enable`: source vport of a frame, in the forwarding database.
pub(super) const MISC: u8 = 2;

bind! { FlowTableContext <-> FlowTableRow {
    level <-> level,
    log_size <-> log_size,
    table_miss_action <-> miss_action,
    table_miss_id <-> miss,
} }

/// A namespace of tables: tables of one type and vport cannot refer to those of another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Place {
    /// `table_type`.
    pub kind: u32,
    /// The vport, for types with tables per vport; `None` if the command does not specify it.
    pub vport: Option<u32>,
}

impl Place {
    fn holds(self, table: &FlowTableRow) -> bool {
        table.kind == self.kind && self.vport.is_none_or(|vport| vport == table.vport)
    }

    /// The VLAN tag actions allowed in entries of its tables, as advertised in the capabilities.
    pub(super) fn tag_actions(self, config: &Config) -> u32 {
        match self.kind as u8 {
            FDB => FlowEntryRow::TAGS,
            INGRESS | EGRESS if config.strict.card.steers_tags() => FlowEntryRow::TAGS,
            _ => 0,
        }
    }

    /// True if its tables belong to the e-switch.
    pub(super) fn switches(self) -> bool {
        self.kind != u32::from(NIC_RECEIVE)
    }
}

/// The namespace of a command's tables; all inputs have these fields in the same places. Every function has tables for received
/// frames; the driver of the e-switch manager has those for frames between functions.
pub(super) fn place(call: &Call<'_, '_, '_>) -> Done<Place> {
    let input = DestroyFlowTableIn::read(call.input);
    let vport = match input.table_type() {
        NIC_RECEIVE | FDB => {
            Syndrome::FunctionId.unless(!input.other_vport() && input.vport_number() == 0)?;
            0
        }
        _ => vport(call)?,
    };
    Ok(Place { vport: Some(vport.into()), ..place_of_type(call)? })
}

/// Like [`place`], for commands that do not specify the vport.
pub(super) fn place_of_type(call: &Call<'_, '_, '_>) -> Done<Place> {
    let kind = DestroyFlowTableIn::read(call.input).table_type();
    let known = match kind {
        NIC_RECEIVE => true,
        EGRESS | INGRESS | FDB => {
            manages(call.func) && call.uid == 0 && call.step.config.link_layer == LinkLayer::Ethernet
        }
        _ => false,
    };
    Syndrome::FlowTableType.unless(known)?;
    Ok(Place { kind: kind.into(), vport: None })
}

/// A table owned by the caller.
pub(super) fn table(call: &Call<'_, '_, '_>, place: Place, number: u32) -> Done<u32> {
    let index = call.own::<FlowTableRow>(number)?;
    Syndrome::NoSuchFlowTable.unless(place.holds(call.row::<FlowTableRow>(index)?))?;
    Ok(index)
}

/// A table in which the caller may create groups and entries: its own, or one that the function's driver shares.
pub(super) fn open_table(call: &Call<'_, '_, '_>, place: Place, number: u32) -> Done<u32> {
    let is_shared =
        |i: &u32| call.func.row::<FlowTableRow>(*i).is_some_and(|row| row.shared != 0 && place.holds(row));
    match call.func.index::<FlowTableRow>(number).filter(is_shared) {
        Some(index) => Ok(index),
        None => table(call, place, number),
    }
}

/// Propagates a change to the tables of the e-switch.
pub(super) fn changed(call: &Call<'_, '_, '_>, place: Place) {
    if place.switches() {
        call.switch_changed();
    }
}

/// The action on packets that match no entry, encoded as in a row.
fn miss(call: &Call<'_, '_, '_>, place: Place, level: u32, c: &FlowTableContext) -> Done<(u32, u32)> {
    match c.table_miss_action() {
        MISS_DROP => Ok((0, 0)),
        MISS_FORWARD => {
            let next = table(call, place, c.table_miss_id())?;
            Syndrome::FlowLevel.unless(call.row::<FlowTableRow>(next)?.level > level)?;
            Ok((1, next))
        }
        _ => Syndrome::FlowAction.refuse(),
    }
}

pub(super) fn create_table(call: &mut Call<'_, '_, '_>) -> Done {
    let input: CreateFlowTableIn = call.input()?;
    let place = place(call)?;
    let c = input.flow_table_context();
    let plain = !c.reformat_en() && !c.decap_en() && !c.sw_owner() && !c.termination_table();
    Syndrome::QueueFlags.unless(plain)?;
    Syndrome::QueueSize.unless(c.log_size() <= LOG_MAX_SIZE)?;
    Syndrome::FlowLevel.unless(c.level() <= MAX_LEVEL)?;
    let (miss_action, miss) = miss(call, place, c.level().into(), &c)?;
    let shared = CmdIn::read(call.input).uid() == SHARED_UID;
    let index = call.make::<FlowTableRow>(|row| {
        row.take(&c);
        row.shared = shared.into();
        (row.miss_action, row.miss) = (miss_action, miss);
        (row.kind, row.vport) = (place.kind, place.vport.unwrap_or(0));
    })?;
    call.created::<FlowTableRow>(index)
}

pub(super) fn modify_table(call: &mut Call<'_, '_, '_>) -> Done {
    let input: ModifyFlowTableIn = call.input()?;
    let place = place(call)?;
    let index = table(call, place, input.table_id())?;
    Syndrome::ModifyField.unless(input.modify_field_select() == MISS_TABLE)?;
    let level = call.row::<FlowTableRow>(index)?.level;
    let (action, next) = miss(call, place, level, &input.flow_table_context())?;
    let row = call.row_mut::<FlowTableRow>(index)?;
    (row.miss_action, row.miss) = (action, next);
    changed(call, place);
    Ok(())
}

pub(super) fn query_table(call: &mut Call<'_, '_, '_>) -> Done {
    let input: QueryFlowTableIn = call.input()?;
    let place = place_of_type(call)?;
    let index = table(call, place, input.table_id())?;
    let context = call.row::<FlowTableRow>(index)?.show();
    call.answer(&QueryFlowTableOut::with(|s| s.flow_table_context(context)))
}

pub(super) fn destroy_table(call: &mut Call<'_, '_, '_>) -> Done {
    let input: DestroyFlowTableIn = call.input()?;
    let place = place(call)?;
    let index = table(call, place, input.table_id())?;
    call.end::<FlowTableRow>(index)
}

/// Destroys the table. Packets that a miss or the root setting sends to it are dropped from now on.
pub(super) fn end_table(func: &mut Func<'_>, index: u32) {
    let Some(table) = func.row::<FlowTableRow>(index).copied() else { return };
    let root = func.function_mut(|f| &mut f.flow_root);
    root.iter_mut().filter(|root| **root == index + 1).for_each(|root| *root = 0);
    let steers = root[0] != 0;
    func.takes_frames(GROUP_ETHERNET, steers);
    object::end::<FlowTableRow>(func, index);
    if table.kind != u32::from(NIC_RECEIVE) {
        if let Some(set) = func.row_mut::<VportRow>(table.vport) {
            for first in [&mut set.ingress, &mut set.egress] {
                if *first == index + 1 {
                    *first = 0;
                }
            }
        }
        func.region().switch_changed();
    }
}

pub(super) fn set_root(call: &mut Call<'_, '_, '_>) -> Done {
    let input: SetFlowTableRootIn = call.input()?;
    let place = place(call)?;
    Syndrome::QueueFlags.unless(input.underlay_qpn() == 0)?;
    let root = match call.op_mod {
        CONNECT => table(call, place, input.table_id())? + 1,
        DISCONNECT => 0,
        _ => return Syndrome::OpMod.refuse(),
    };
    match input.table_type() {
        NIC_RECEIVE => {
            call.func.function_mut(|f| &mut f.flow_root)[0] = root;
            call.func.takes_frames(GROUP_ETHERNET, root != 0);
        }
        FDB => call.func.function_mut(|f| &mut f.flow_root)[1] = root,
        kind => {
            // A place of these types has a vport, and its number is a function's.
            let set = settings(call.func, place.vport.unwrap_or(0) as u8)?;
            *if kind == INGRESS { &mut set.ingress } else { &mut set.egress } = root;
        }
    }
    changed(call, place);
    Ok(())
}

pub(super) fn create_group(call: &mut Call<'_, '_, '_>) -> Done {
    let input: CreateFlowGroupIn = call.input()?;
    let place = place(call)?;
    let index = open_table(call, place, input.table_id())?;
    let (start, end) = (input.start_flow_index(), input.end_flow_index());
    let size = 1u32 << call.row::<FlowTableRow>(index)?.log_size;
    Syndrome::FlowRange.unless(start <= end && end < size)?;
    let overlaps = |group: &FlowGroupRow| group.table == index && group.start <= end && start <= group.end;
    Syndrome::FlowRange.unless(!call.func.objects().any(|(_, group)| overlaps(group)))?;
    let mask = input.match_criteria();
    criteria(place, &mask, input.match_criteria_enable())?;
    let group = call.make::<FlowGroupRow>(|row| {
        (row.table, row.start, row.end) = (index, start, end);
        row.criteria = input.match_criteria_enable().into();
        (row.mask, row.port) = matched(row.criteria, &mask);
    })?;
    call.created::<FlowGroupRow>(group)
}

/// The headers and the source vport of `param`, as far as `criteria` includes them, as in a row.
pub(super) fn matched(criteria: u32, param: &MatchParam) -> ([u8; MATCH], u32) {
    let has = |part: u8| criteria & u32::from(part) != 0;
    let headers = if has(OUTER) { *param.outer_headers().as_bytes() } else { [0; MATCH] };
    (headers, if has(MISC) { param.misc_parameters().source_port().into() } else { 0 })
}

/// Headers and source vport of a row, as a query shows them.
pub(super) fn shown(headers: &[u8; MATCH], port: u32) -> MatchParam {
    let misc = MatchMisc::with(|s| s.source_port(port as u16));
    MatchParam::with(|s| s.outer_headers(Layout::read(headers)).misc_parameters(misc))
}

/// Checks the match criteria: the outer headers, except for fields that this device does not parse, and in the forwarding database the
/// source vport.
fn criteria(place: Place, mask: &MatchParam, enable: u8) -> Done {
    let known = OUTER | if place.kind == u32::from(FDB) { MISC } else { 0 };
    Syndrome::FlowMatch.unless(enable & !known == 0)?;
    Syndrome::FlowMatch.unless(enable & OUTER == 0 || mask.outer_headers().is_clean())?;
    let mut misc = mask.misc_parameters();
    misc.set().source_port(0);
    Syndrome::FlowMatch.unless(enable & MISC == 0 || misc.as_bytes().iter().all(|byte| *byte == 0))
}

pub(super) fn query_group(call: &mut Call<'_, '_, '_>) -> Done {
    let input: QueryFlowGroupIn = call.input()?;
    let place = place_of_type(call)?;
    let index = group(call, place, input.table_id(), input.group_id())?;
    let row = call.row::<FlowGroupRow>(index)?;
    let out = QueryFlowGroupOut::with(|s| {
        s.start_flow_index(row.start)
            .end_flow_index(row.end)
            .match_criteria_enable(row.criteria as u8)
            .match_criteria(shown(&row.mask, row.port))
    });
    call.answer(&out)
}

/// A group in a table of the caller.
pub(super) fn group(call: &Call<'_, '_, '_>, place: Place, table_id: u32, group_id: u32) -> Done<u32> {
    let table = open_table(call, place, table_id)?;
    let group = call.own::<FlowGroupRow>(group_id)?;
    Syndrome::NoSuchFlowGroup.unless(call.row::<FlowGroupRow>(group)?.table == table)?;
    Ok(group)
}

pub(super) fn destroy_group(call: &mut Call<'_, '_, '_>) -> Done {
    let input: DestroyFlowGroupIn = call.input()?;
    let place = place(call)?;
    let index = group(call, place, input.table_id(), input.group_id())?;
    call.end::<FlowGroupRow>(index)
}

pub(super) fn alloc_counter(call: &mut Call<'_, '_, '_>) -> Done {
    let input: AllocFlowCounterIn = call.input()?;
    // Bulk allocation of counters is not supported.
    Syndrome::QueueFlags.unless(input.flow_counter_bulk() == 0)?;
    let index = call.make::<FlowCounterRow>(|_| {})?;
    if manages(call.func) {
        call.func.back_flow_counts()?;
        forget_count(call, index);
    }
    call.created::<FlowCounterRow>(index)
}

/// Queries one counter or a range. Numbers in the range that the caller may not use read as zero.
pub(super) fn query_counter(call: &mut Call<'_, '_, '_>) -> Done {
    let input: QueryFlowCounterIn = call.input()?;
    let (first, count) = (input.flow_counter_id(), u32::from(input.num_of_counters()));
    if count == 0 {
        call.own::<FlowCounterRow>(first)?;
    }
    let mut counters = Vec::new();
    for id in first..first.saturating_add(count.max(1)) {
        let own = call.own::<FlowCounterRow>(id).ok();
        let mut counter = TrafficCounter::zeroed();
        if let Some(row) = own.and_then(|i| call.func.row::<FlowCounterRow>(i)) {
            let [packets, octets] = switched(call, id);
            counter.set().packets(row.packets.wrapping_add(packets)).octets(row.octets.wrapping_add(octets));
        }
        if let Some(row) = own.filter(|_| input.clear()).and_then(|i| call.func.row_mut::<FlowCounterRow>(i))
        {
            (row.packets, row.octets) = (0, 0);
            if manages(call.func) {
                forget_count(call, id);
            }
        }
        counters.push(counter);
    }
    call.answer_list(&CmdOut::zeroed(), counters)
}

/// The e-switch's part of counter `index`: all senders use the manager's tables.
fn switched(call: &Call<'_, '_, '_>, index: u32) -> [u64; 2] {
    let counts = call.func.region().flow_count(index).filter(|_| manages(call.func));
    counts.map_or([0; 2], |counts| counts.map(|count| count.load(Relaxed)))
}

fn forget_count(call: &Call<'_, '_, '_>, index: u32) {
    let counts = call.func.region().flow_count(index);
    counts.into_iter().flatten().for_each(|count| count.store(0, Relaxed));
}
