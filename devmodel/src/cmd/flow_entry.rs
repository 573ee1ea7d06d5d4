//! Entries of flow tables: their match values and destinations.

use super::{
    call::{Call, let_go},
    flow::{MISC, OUTER, Place, changed, open_table, place, place_of_type, table},
    refusal::{Done, Refused, Syndrome},
};
use crate::{
    region::Func,
    state::{DESTINATIONS, ENTRY_COUNTERS, FlowCounterRow, FlowEntryRow, FlowGroupRow, FlowTableRow, TirRow},
};
use hwspec::{
    cmd::{CmdOut, flow::*},
    context::flow::{
        FlowContext, FlowCounterId, FlowDestination, FlowVlan, MatchHeaders, MatchMisc, MatchParam,
    },
    layout::Layout,
};

/// `op_mod` of `SET_FLOW_TABLE_ENTRY`: creates an entry.
pub(super) const ADD: u16 = 0;
/// `op_mod` of `SET_FLOW_TABLE_ENTRY`: modifies an existing entry.
pub(super) const MODIFY: u16 = 1;
/// The uplink's vport number.
const UPLINK: u32 = 0xffff;
/// `modify_enable_mask`: action, tag, destinations, counters.
const ACTION: u8 = 1 << 0;
const TAG: u8 = 1 << 1;
const LIST: u8 = 1 << 2;
const COUNTERS: u8 = 1 << 3;

/// The actions of an entry, from its context and lists.
struct Act {
    action: u32,
    tag: u32,
    to: [u32; DESTINATIONS],
    counters: [u32; ENTRY_COUNTERS],
    count: [u32; 2],
    vports: [u32; 5],
    push: [u32; 2],
}

/// A tag to push, encoded as in an entry.
fn tag(vlan: FlowVlan) -> u32 {
    u32::from_be_bytes(*vlan.as_bytes())
}

/// Checks the actions. Destination tables must be above `level`.
fn act(call: &Call<'_, '_, '_>, place: Place, level: Option<u32>, c: &FlowContext) -> Done<Act> {
    let mut act = Act {
        action: c.action().into(),
        tag: c.flow_tag(),
        to: [0; DESTINATIONS],
        counters: [0; ENTRY_COUNTERS],
        count: [0, c.flow_counter_list_size()],
        vports: [0; 5],
        push: [c.push_vlan(), c.push_vlan_2()].map(tag),
    };
    let known = FlowEntryRow::ALLOW | FlowEntryRow::DROP | FlowEntryRow::FORWARD | FlowEntryRow::COUNT;
    Syndrome::FlowAction.unless(act.action & !(known | place.tag_actions(call.step.config)) == 0)?;
    // The second action of a kind requires the first.
    let pairs = [(FlowEntryRow::POP, FlowEntryRow::POP_2), (FlowEntryRow::PUSH, FlowEntryRow::PUSH_2)];
    let whole = |(one, two)| act.action & two == 0 || act.action & one != 0;
    Syndrome::FlowAction.unless(pairs.into_iter().all(whole))?;
    for (action, tag) in [FlowEntryRow::PUSH, FlowEntryRow::PUSH_2].into_iter().zip(act.push) {
        Syndrome::FlowAction.unless(act.action & action == 0 || FlowEntryRow::is_tag(tag))?;
    }
    Syndrome::FlowAction.unless(
        act.action & (FlowEntryRow::DROP | FlowEntryRow::FORWARD)
            != FlowEntryRow::DROP | FlowEntryRow::FORWARD,
    )?;
    Syndrome::FlowAction.unless(!c.extended_destination() && c.encrypt_decrypt_type() == 0)?;
    let [destinations, counters] =
        [c.destination_list_size(), c.flow_counter_list_size()].map(|n| n as usize);
    Syndrome::FlowDestination.unless(counters <= ENTRY_COUNTERS)?;
    Syndrome::FlowDestination.unless((destinations != 0) == (act.action & FlowEntryRow::FORWARD != 0))?;
    Syndrome::FlowDestination.unless((counters != 0) == (act.action & FlowEntryRow::COUNT != 0))?;
    let list = call.input.get(SetFteIn::SIZE..).unwrap_or_default();
    Syndrome::InputLength.unless(list.len() >= (destinations + counters) * FlowDestination::SIZE)?;
    let mut items = list.chunks_exact(FlowDestination::SIZE);
    for item in items.by_ref().take(destinations) {
        let d = FlowDestination::read(item);
        let id = d.destination_id();
        match (u32::from(d.destination_type()), place.switches()) {
            (FlowEntryRow::TO_VPORT, true) => {
                to_vport(call, &mut act.vports, id)?;
                continue;
            }
            (FlowEntryRow::TO_TABLE, _) => {
                let next = table(call, place, id)?;
                // Levels increase along every path, so that packets cannot loop; unless the driver takes responsibility
                // for that.
                let higher = |level| call.func.row::<FlowTableRow>(next).is_some_and(|t| t.level > level);
                Syndrome::FlowLevel.unless(level.is_none_or(higher))?;
            }
            (FlowEntryRow::TO_TIR, false) => drop(call.own::<TirRow>(id, Syndrome::NoSuchTir)?),
            _ => return Syndrome::FlowDestination.refuse(),
        }
        let Some(to) = act.to.get_mut(act.count[0] as usize) else {
            return Syndrome::FlowDestination.refuse();
        };
        *to = u32::from(d.destination_type()) << 24 | id;
        act.count[0] += 1;
    }
    for (counter, item) in act.counters[..counters].iter_mut().zip(items) {
        *counter = FlowCounterId::read(item).flow_counter_id();
        call.own::<FlowCounterRow>(*counter, Syndrome::NoSuchFlowCounter)?;
    }
    Ok(act)
}

/// Adds vport `number` to the destinations.
fn to_vport(call: &Call<'_, '_, '_>, vports: &mut [u32; 5], number: u32) -> Done {
    if number == UPLINK {
        vports[4] |= FlowEntryRow::UPLINK;
        return Ok(());
    }
    Syndrome::FlowDestination.unless(number < call.func.region().functions().into())?;
    vports[number as usize / 32] |= 1 << (number % 32);
    Ok(())
}

/// The destination vports of an entry, by number.
fn vports(row: &FlowEntryRow) -> impl Iterator<Item = u32> {
    let [functions @ .., uplink] = row.vports;
    let bit = move |n: &u32| functions[*n as usize / 32] & 1 << (n % 32) != 0;
    (0..128).filter(bit).chain((uplink & FlowEntryRow::UPLINK != 0).then_some(UPLINK))
}

/// Takes a reference to each object that the entry forwards to.
fn hold(call: &mut Call<'_, '_, '_>, act: &Act) {
    for to in &act.to[..act.count[0] as usize] {
        match to >> 24 {
            FlowEntryRow::TO_TABLE => call.hold::<FlowTableRow>(to & 0xff_ffff),
            _ => call.hold::<TirRow>(to & 0xff_ffff),
        }
    }
    act.counters[..act.count[1] as usize].iter().for_each(|c| call.hold::<FlowCounterRow>(*c));
}

fn release(func: &mut Func<'_>, row: &FlowEntryRow) {
    for to in row.to.iter().take(row.count[0] as usize) {
        match to >> 24 {
            FlowEntryRow::TO_TABLE => let_go::<FlowTableRow>(func, to & 0xff_ffff),
            _ => let_go::<TirRow>(func, to & 0xff_ffff),
        }
    }
    row.counters.iter().take(row.count[1] as usize).for_each(|c| let_go::<FlowCounterRow>(func, *c));
}

/// The entry of `table` at flow index `flow`, and its predecessor.
fn find(func: &Func<'_>, table: u32, flow: u32) -> (Option<u32>, Option<u32>) {
    let (mut before, mut at) = (None, func.row::<FlowTableRow>(table).map_or(0, |t| t.first));
    while let Some(row) = at.checked_sub(1).and_then(|i| func.row::<FlowEntryRow>(i)) {
        if row.flow >= flow {
            let here = (row.flow == flow).then_some(at - 1);
            return (before, here);
        }
        before = Some(at - 1);
        at = row.next;
    }
    (before, None)
}

/// Links `index` after `before`, or as the first entry of the table.
fn link(func: &mut Func<'_>, table: u32, before: Option<u32>, index: u32) {
    let place = match before {
        Some(before) => func.row_mut::<FlowEntryRow>(before).map(|row| &mut row.next),
        None => func.row_mut::<FlowTableRow>(table).map(|row| &mut row.first),
    };
    if let Some(place) = place {
        *place = index;
    }
}

pub(super) fn set(call: &mut Call<'_, '_, '_>) -> Done {
    let input: SetFteIn = call.input()?;
    let place = place(call, input.other_vport(), input.vport_number(), input.table_type())?;
    let table = open_table(call, place, input.table_id())?;
    let level = call.func.row::<FlowTableRow>(table).map_or(0, |row| row.level);
    let c = input.flow_context();
    let act = act(call, place, (!input.ignore_flow_level()).then_some(level), &c)?;
    let (before, here) = find(call.func, table, input.flow_index());
    match call.op_mod {
        ADD => {
            Syndrome::InUse.unless(here.is_none())?;
            insert(call, (place, table), before, &input, &act)?;
        }
        MODIFY => {
            let index = here.ok_or(Refused(Syndrome::NoSuchFlowEntry))?;
            // A table may be shared by all user contexts, but an entry belongs to its creator.
            call.own::<FlowEntryRow>(index, Syndrome::NoSuchFlowEntry)?;
            modify(call, index, input.modify_enable_mask(), act)?;
        }
        _ => return Syndrome::OpMod.refuse(),
    }
    changed(call, place);
    call.answer(&CmdOut::zeroed())
}

fn insert(
    call: &mut Call<'_, '_, '_>,
    (place, table): (Place, u32),
    before: Option<u32>,
    input: &SetFteIn,
    act: &Act,
) -> Done {
    let (c, flow) = (input.flow_context(), input.flow_index());
    let group = super::flow::group(call, place, input.table_id(), c.group_id())?;
    let Some(g) = call.func.row::<FlowGroupRow>(group) else { return Syndrome::NoSuchFlowGroup.refuse() };
    Syndrome::FlowRange.unless((g.start..=g.end).contains(&flow))?;
    let criteria = g.criteria;
    let index = call.alloc::<FlowEntryRow>(0)?;
    call.hold::<FlowGroupRow>(group);
    hold(call, act);
    let next = match before {
        Some(before) => call.func.row::<FlowEntryRow>(before).map_or(0, |row| row.next),
        None => call.func.row::<FlowTableRow>(table).map_or(0, |row| row.first),
    };
    if let Some(row) = call.func.row_mut::<FlowEntryRow>(index) {
        (row.table, row.group, row.flow, row.next) = (table, group, flow, next);
        (row.action, row.tag, row.push) = (act.action, act.tag, act.push);
        (row.to, row.counters, row.count, row.vports) = (act.to, act.counters, act.count, act.vports);
        if criteria & u32::from(OUTER) != 0 {
            row.value = *c.match_value().outer_headers().as_bytes();
        }
        if criteria & u32::from(MISC) != 0 {
            row.port = c.match_value().misc_parameters().source_port().into();
        }
    }
    link(call.func, table, before, index + 1);
    Ok(())
}

fn modify(call: &mut Call<'_, '_, '_>, index: u32, mask: u8, act: Act) -> Done {
    Syndrome::ModifyField.unless(mask & !(ACTION | TAG | LIST | COUNTERS) == 0)?;
    let Some(old) = call.func.row::<FlowEntryRow>(index).copied() else {
        return Syndrome::NoSuchFlowEntry.refuse();
    };
    let mut new = old;
    if mask & ACTION != 0 {
        (new.action, new.push) = (act.action, act.push);
    }
    if mask & TAG != 0 {
        new.tag = act.tag;
    }
    if mask & LIST != 0 {
        (new.to, new.count[0], new.vports) = (act.to, act.count[0], act.vports);
    }
    if mask & COUNTERS != 0 {
        (new.counters, new.count[1]) = (act.counters, act.count[1]);
    }
    // Takes the new references before dropping the old ones.
    let whole = Act {
        action: new.action,
        tag: new.tag,
        to: new.to,
        counters: new.counters,
        count: new.count,
        vports: new.vports,
        push: new.push,
    };
    hold(call, &whole);
    release(call.func, &old);
    if let Some(row) = call.func.row_mut::<FlowEntryRow>(index) {
        (row.action, row.tag, row.push) = (new.action, new.tag, new.push);
        (row.to, row.counters, row.count, row.vports) = (new.to, new.counters, new.count, new.vports);
    }
    Ok(())
}

pub(super) fn query(call: &mut Call<'_, '_, '_>) -> Done {
    let input: QueryFteIn = call.input()?;
    let place = place_of_type(call, input.table_type())?;
    let table = table(call, place, input.table_id())?;
    let (_, here) = find(call.func, table, input.flow_index());
    let Some(row) = here.and_then(|i| call.func.row::<FlowEntryRow>(i)) else {
        return Syndrome::NoSuchFlowEntry.refuse();
    };
    let mut value = MatchParam::zeroed();
    let misc = MatchMisc::with(|s| s.source_port(row.port as u16));
    value.set().outer_headers(MatchHeaders::read(&row.value)).misc_parameters(misc);
    let mut c = FlowContext::zeroed();
    c.set()
        .group_id(row.group)
        .flow_tag(row.tag)
        .action(row.action as u16)
        .push_vlan(Layout::read(&row.push[0].to_be_bytes()))
        .push_vlan_2(Layout::read(&row.push[1].to_be_bytes()))
        .destination_list_size(row.count[0] + vports(row).count() as u32)
        .flow_counter_list_size(row.count[1])
        .match_value(value);
    let mut bytes = QueryFteOut::with(|s| s.flow_context(c)).as_bytes().to_vec();
    let to = row.to.iter().take(row.count[0] as usize).map(|to| (to >> 24, to & 0xff_ffff));
    for (kind, id) in to.chain(vports(row).map(|vport| (FlowEntryRow::TO_VPORT, vport))) {
        let d = FlowDestination::with(|s| s.destination_type(kind as u8).destination_id(id));
        bytes.extend_from_slice(d.as_bytes());
    }
    for counter in row.counters.iter().take(row.count[1] as usize) {
        bytes.extend_from_slice(FlowCounterId::with(|s| s.flow_counter_id(*counter)).as_bytes());
    }
    call.answer_bytes(&bytes)
}

pub(super) fn delete(call: &mut Call<'_, '_, '_>) -> Done {
    let input: DeleteFteIn = call.input()?;
    let place = place(call, input.other_vport(), input.vport_number(), input.table_type())?;
    let table = open_table(call, place, input.table_id())?;
    let (_, here) = find(call.func, table, input.flow_index());
    let index = here.ok_or(Refused(Syndrome::NoSuchFlowEntry))?;
    call.own::<FlowEntryRow>(index, Syndrome::NoSuchFlowEntry)?;
    end(call.func, index);
    changed(call, place);
    call.answer(&CmdOut::zeroed())
}

/// Destroys the entries that forward to TIR `tir`, which is destroyed although they refer to it.
pub(super) fn end_with(func: &mut Func<'_>, tir: u32) {
    if func.row::<TirRow>(tir).is_none_or(|row| row.head.refs == 0) {
        return;
    }
    for index in func.live::<FlowEntryRow>() {
        let leads = func.row::<FlowEntryRow>(index).is_some_and(|row| {
            row.to.iter().take(row.count[0] as usize).any(|to| *to == FlowEntryRow::TO_TIR << 24 | tir)
        });
        if leads {
            end(func, index);
        }
    }
}

/// Destroys the entry.
pub(super) fn end(func: &mut Func<'_>, index: u32) {
    let Some(row) = func.row::<FlowEntryRow>(index).copied() else { return };
    let (before, _) = find(func, row.table, row.flow);
    link(func, row.table, before, row.next);
    release(func, &row);
    let_go::<FlowGroupRow>(func, row.group);
    func.free::<FlowEntryRow>(index);
}
