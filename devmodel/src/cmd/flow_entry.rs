//! Entries of flow tables: their match values and destinations.

use super::{
    call::Call,
    flow::{Place, changed, group, matched, open_table, place, place_of_type, shown, table},
    object::{self, Object, Ref, to},
    refusal::{Done, Refused, Syndrome},
};
use crate::{
    region::Func,
    state::{ENTRY_COUNTERS, FlowCounterRow, FlowEntryRow, FlowGroupRow, FlowTableRow, TirRow},
};
use hwspec::{
    cmd::flow::*,
    context::flow::{FlowContext, FlowCounterId, FlowDestination, FlowVlan},
    layout::Layout,
};
use zerocopy::FromZeros;

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

/// A tag to push, encoded as in an entry.
fn tag(vlan: FlowVlan) -> u32 {
    u32::from_be_bytes(*vlan.as_bytes())
}

/// An entry with the actions of a command, from its context and lists, which are checked. Destination tables must be above `level`.
fn act(call: &Call<'_, '_, '_>, place: Place, level: Option<u32>, c: &FlowContext) -> Done<FlowEntryRow> {
    let mut act = FlowEntryRow {
        action: c.action().into(),
        tag: c.flow_tag(),
        count: [0, c.flow_counter_list_size()],
        push: [c.push_vlan(), c.push_vlan_2()].map(tag),
        ..FlowEntryRow::new_zeroed()
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
                let next = call.row::<FlowTableRow>(next)?.level;
                Syndrome::FlowLevel.unless(level.is_none_or(|level| next > level))?;
            }
            (FlowEntryRow::TO_TIR, false) => drop(call.own::<TirRow>(id)?),
            _ => return Syndrome::FlowDestination.refuse(),
        }
        let to = act.to.get_mut(act.count[0] as usize).ok_or(Refused(Syndrome::FlowDestination))?;
        *to = u32::from(d.destination_type()) << 24 | id;
        act.count[0] += 1;
    }
    for (counter, item) in act.counters[..counters].iter_mut().zip(items) {
        *counter = FlowCounterId::read(item).flow_counter_id();
        call.own::<FlowCounterRow>(*counter)?;
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

/// The destinations of an entry other than vports: type and number.
fn destinations(row: &FlowEntryRow) -> impl Iterator<Item = (u32, u32)> {
    row.to.iter().take(row.count[0] as usize).map(|to| (to >> 24, to & 0xff_ffff))
}

/// The counters of an entry.
fn counters(row: &FlowEntryRow) -> impl Iterator<Item = u32> {
    row.counters.iter().take(row.count[1] as usize).copied()
}

/// The objects that the actions of an entry name.
pub(super) fn refers(row: &FlowEntryRow) -> impl Iterator<Item = Ref> {
    let destination = |(kind, id)| match kind {
        FlowEntryRow::TO_TABLE => to::<FlowTableRow>(id),
        _ => to::<TirRow>(id),
    };
    destinations(row).filter_map(destination).chain(counters(row).filter_map(to::<FlowCounterRow>))
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
    let place = place(call)?;
    let table = open_table(call, place, input.table_id())?;
    let level = call.row::<FlowTableRow>(table)?.level;
    let act = act(call, place, (!input.ignore_flow_level()).then_some(level), &input.flow_context())?;
    let (before, here) = find(call.func, table, input.flow_index());
    match call.op_mod {
        ADD => {
            Syndrome::InUse.unless(here.is_none())?;
            insert(call, (place, table), before, &input, act)?;
        }
        MODIFY => {
            let index = here.ok_or(Refused(Syndrome::NoSuchFlowEntry))?;
            // A table may be shared by all user contexts, but an entry belongs to its creator.
            call.own::<FlowEntryRow>(index)?;
            modify(call, index, input.modify_enable_mask(), act)?;
        }
        _ => return Syndrome::OpMod.refuse(),
    }
    changed(call, place);
    Ok(())
}

fn insert(
    call: &mut Call<'_, '_, '_>,
    (place, table): (Place, u32),
    before: Option<u32>,
    input: &SetFteIn,
    act: FlowEntryRow,
) -> Done {
    let (c, flow) = (input.flow_context(), input.flow_index());
    let group = group(call, place, input.table_id(), c.group_id())?;
    let g = call.row::<FlowGroupRow>(group)?;
    Syndrome::FlowRange.unless((g.start..=g.end).contains(&flow))?;
    let (value, port) = matched(g.criteria, &c.match_value());
    let next = match before {
        Some(before) => call.row::<FlowEntryRow>(before)?.next,
        None => call.row::<FlowTableRow>(table)?.first,
    };
    let entry = FlowEntryRow { table, group, flow, next, value, port, ..act };
    let index = call.make::<FlowEntryRow>(|row| *row = entry)?;
    link(call.func, table, before, index + 1);
    Ok(())
}

fn modify(call: &mut Call<'_, '_, '_>, index: u32, mask: u8, act: FlowEntryRow) -> Done {
    Syndrome::ModifyField.unless(mask & !(ACTION | TAG | LIST | COUNTERS) == 0)?;
    let old = *call.row::<FlowEntryRow>(index)?;
    // Takes the new references before dropping the old ones.
    call.fill::<FlowEntryRow>(index, |row| {
        let has = |field| mask & field != 0;
        select! { has:
            ACTION => (row.action, row.push) = (act.action, act.push);
            TAG => row.tag = act.tag;
            LIST => (row.to, row.count[0], row.vports) = (act.to, act.count[0], act.vports);
            COUNTERS => (row.counters, row.count[1]) = (act.counters, act.count[1]);
        }
    })?;
    old.refers().for_each(|reference| reference.drop(call.func));
    Ok(())
}

pub(super) fn query(call: &mut Call<'_, '_, '_>) -> Done {
    let input: QueryFteIn = call.input()?;
    let place = place_of_type(call)?;
    let table = table(call, place, input.table_id())?;
    let (_, here) = find(call.func, table, input.flow_index());
    let row = call.row::<FlowEntryRow>(here.ok_or(Refused(Syndrome::NoSuchFlowEntry))?)?;
    let mut c = FlowContext::zeroed();
    c.set()
        .group_id(row.group)
        .flow_tag(row.tag)
        .action(row.action as u16)
        .push_vlan(Layout::read(&row.push[0].to_be_bytes()))
        .push_vlan_2(Layout::read(&row.push[1].to_be_bytes()))
        .destination_list_size(row.count[0] + vports(row).count() as u32)
        .flow_counter_list_size(row.count[1])
        .match_value(shown(&row.value, row.port));
    let all = destinations(row).chain(vports(row).map(|vport| (FlowEntryRow::TO_VPORT, vport)));
    let destination =
        |(kind, id)| *FlowDestination::with(|s| s.destination_type(kind as u8).destination_id(id)).as_bytes();
    let counter = |id| *FlowCounterId::with(|s| s.flow_counter_id(id)).as_bytes();
    let list: Vec<_> = all.map(destination).chain(counters(row).map(counter)).collect();
    call.answer_list(&QueryFteOut::with(|s| s.flow_context(c)), list)
}

pub(super) fn delete(call: &mut Call<'_, '_, '_>) -> Done {
    let input: DeleteFteIn = call.input()?;
    let place = place(call)?;
    let table = open_table(call, place, input.table_id())?;
    let (_, here) = find(call.func, table, input.flow_index());
    let index = here.ok_or(Refused(Syndrome::NoSuchFlowEntry))?;
    call.own::<FlowEntryRow>(index)?;
    end(call.func, index);
    changed(call, place);
    Ok(())
}

/// Destroys the entries that forward to TIR `tir`, which is destroyed although they refer to it.
pub(super) fn end_with(func: &mut Func<'_>, tir: u32) {
    if func.row::<TirRow>(tir).is_none_or(|row| row.head.refs == 0) {
        return;
    }
    let leads = |row: &FlowEntryRow| destinations(row).any(|to| to == (FlowEntryRow::TO_TIR, tir));
    func.which(leads).into_iter().for_each(|index| end(func, index));
}

/// Destroys the entry.
pub(super) fn end(func: &mut Func<'_>, index: u32) {
    let Some(row) = func.row::<FlowEntryRow>(index).copied() else { return };
    let (before, _) = find(func, row.table, row.flow);
    link(func, row.table, before, row.next);
    object::end::<FlowEntryRow>(func, index);
}
