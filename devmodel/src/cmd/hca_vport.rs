//! The virtual port on InfiniBand: its context, GIDs and P_Keys (PRM: HCA vport commands).

use super::{
    call::Call,
    eswitch::settings,
    refusal::{Done, Syndrome},
    vport::{books, vport},
};
use crate::{LinkLayer, identity, mlx5::eswitch, state::PORT_GUIDS, subnet};
use hwspec::{
    cmd::{CmdOut, vport::*},
    context::vport::{HcaVportContext, Pkey},
    layout::prefix,
    wire::mad::smp::{PHYS_DISABLED, PHYS_LINK_UP, port_state},
};

/// `field_select`: port GUID, node GUID, state policy.
const PORT_GUID: u32 = 1 << 0;
const NODE_GUID: u32 = 1 << 1;
const STATE_POLICY: u32 = 1 << 2;
/// `vport_state_policy`: down, up, follow.
const DOWN: u8 = 0;
const FOLLOW: u8 = 2;
/// Index that selects the whole table.
const ALL: u16 = 0xffff;

/// The function with the vport that a command is about. These commands exist on InfiniBand only.
fn subject(call: &Call<'_, '_, '_>, port: u8) -> Done<u8> {
    Syndrome::NotOnThisLink.unless(call.step.config.link_layer == LinkLayer::Infiniband)?;
    subject_on_any_link(call, port)
}

fn subject_on_any_link(call: &Call<'_, '_, '_>, port: u8) -> Done<u8> {
    Syndrome::Port.unless(port <= 1)?;
    vport(call)
}

pub(super) fn query_context(call: &mut Call<'_, '_, '_>) -> Done {
    let input: QueryHcaVportContextIn = call.input()?;
    let fid = subject(call, input.port_num())?;
    let (f, region) = (books(call, fid), call.func.region());
    let set = region.vport(fid).admin_state.checked_sub(1).filter(|_| input.other_vport());
    let [node_guid, port_guid] = region.guids(call.step.config, fid).map(u64::from_be_bytes);
    let up = f.vport_state != 0;
    let state = if up { port_state::ACTIVE } else { port_state::DOWN };
    let context = HcaVportContext::with(|s| {
        s.has_smi(true)
            .port_physical_state(if up { PHYS_LINK_UP } else { PHYS_DISABLED })
            .vport_state_policy(set.unwrap_or(f.vport_admin_state) as u8)
            .port_state(state)
            .vport_state(state)
            .system_image_guid(u64::from_be_bytes(identity::guid(call.step.config.node_id, 0)))
            .port_guid(port_guid)
            .node_guid(node_guid)
            .cap_mask1(f.ib.capability_mask)
            .cap_mask1_field_select(subnet::SOFT_CAPABILITIES)
            .lid(identity::lid(call.step.config.node_id, fid))
            .subnet_timeout(f.ib.subnet_timeout)
            .sm_lid(identity::switch_lid(call.step.config.node_id))
            .qkey_violation_counter(f.ib.qkey_violations)
            .pkey_violation_counter(f.ib.pkey_violations)
    });
    call.answer(&QueryHcaVportContextOut::with(|s| s.hca_vport_context(context)))
}

pub(super) fn modify_context(call: &mut Call<'_, '_, '_>) -> Done {
    let input: ModifyHcaVportContextIn = call.input()?;
    let fid = subject(call, input.port_num())?;
    let context = input.hca_vport_context();
    if input.other_vport() {
        return manage(call, fid, &context);
    }
    // Only the manager sets a port's GUIDs.
    Syndrome::ModifyField.unless(context.field_select() & !STATE_POLICY == 0)?;
    let chosen = context.cap_mask1_field_select();
    Syndrome::ModifyField.unless(chosen & !subnet::SOFT_CAPABILITIES == 0)?;
    let mask = call.func.function_mut(|f| &mut f.ib.capability_mask);
    *mask = *mask & !chosen | context.cap_mask1() & chosen;
    if context.field_select() & STATE_POLICY != 0 {
        let policy = context.vport_state_policy();
        Syndrome::VportState.unless(policy <= FOLLOW)?;
        *call.func.function_mut(|f| &mut f.vport_admin_state) = policy.into();
        subnet::set_link(call.func, policy != DOWN && !eswitch::is_held_down(call.func));
    }
    Ok(())
}

/// Changes the fields of vport `fid` that the manager controls. Zeros remove a GUID.
fn manage(call: &mut Call<'_, '_, '_>, fid: u8, context: &HcaVportContext) -> Done {
    let (fields, policy) = (context.field_select(), context.vport_state_policy());
    let known = fields & !(PORT_GUID | NODE_GUID | STATE_POLICY) == 0;
    Syndrome::ModifyField.unless(known && context.cap_mask1_field_select() == 0)?;
    Syndrome::VportState.unless(fields & STATE_POLICY == 0 || policy <= FOLLOW)?;
    let row = settings(call.func, fid)?;
    let has = |field| fields & field != 0;
    select! { has:
        PORT_GUID => row.port_guid = context.port_guid();
        NODE_GUID => row.node_guid = context.node_guid();
        STATE_POLICY => row.admin_state = u32::from(policy) + 1;
    }
    match fid == call.func.fid() {
        true => eswitch::take_over(call.func, call.step.config),
        false => call.step.tell(fid, fid),
    }
    Ok(())
}

/// The entries of a table of `len` selected by `index`.
fn entries(index: u16, len: usize) -> Done<std::ops::Range<usize>> {
    if index == ALL {
        return Ok(0..len);
    }
    let index = usize::from(index);
    Syndrome::TableIndex.unless(index < len)?;
    Ok(index..index + 1)
}

pub(super) fn query_gid(call: &mut Call<'_, '_, '_>) -> Done {
    let input: QueryHcaVportGidIn = call.input()?;
    let fid = subject(call, input.port_num())?;
    let (range, port) = (entries(input.gid_index(), PORT_GUIDS)?, books(call, fid).ib);
    let out = QueryHcaVportGidOut::with(|s| s.gids_num(range.len() as u16));
    // An entry without a GUID still has the prefix. Linux reads the subnet prefix from the last entry.
    let empty = prefix(&port.gid_prefix);
    call.answer_list(&out, range.map(|index| port.gid(index).unwrap_or(empty)))
}

pub(super) fn query_pkey(call: &mut Call<'_, '_, '_>) -> Done {
    let input: QueryHcaVportPkeyIn = call.input()?;
    // RoCE has P_Keys too, although only the default one (A17.7.1).
    let fid = subject_on_any_link(call, input.port_num())?;
    let pkeys = books(call, fid).ib.pkeys;
    let range = entries(input.pkey_index(), pkeys.len())?;
    call.answer_list(&CmdOut::zeroed(), pkeys[range].iter().map(|pkey| Pkey::with(|s| s.pkey(*pkey))))
}
