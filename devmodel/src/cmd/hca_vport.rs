//! The virtual port on InfiniBand: its context, GIDs and P_Keys (PRM: HCA vport commands).

use super::{
    call::Call,
    refusal::{Done, Syndrome},
};
use crate::{LinkLayer, identity, state::PORT_GUIDS, subnet};
use hwspec::{
    cmd::vport::*,
    context::vport::{HcaVportContext, Pkey},
    layout::Layout,
    wire::mad::smp::{PHYS_DISABLED, PHYS_LINK_UP, port_state},
};

/// `field_select`: port GUID, node GUID, state policy.
const STATE_POLICY: u32 = 1 << 2;
/// `vport_state_policy`: down, up, follow.
const DOWN: u8 = 0;
const FOLLOW: u8 = 2;
/// Index that means the whole table.
const ALL: u16 = 0xffff;

/// These commands belong to InfiniBand, and a function speaks for its own vport only.
fn own_vport(call: &Call<'_, '_, '_>, other: bool, number: u16, port: u8) -> Done {
    Syndrome::NotOnThisLink.unless(call.step.config.link_layer == LinkLayer::Infiniband)?;
    own(other, number, port)
}

fn own(other: bool, number: u16, port: u8) -> Done {
    Syndrome::FunctionId.unless(!other && number == 0)?;
    Syndrome::Port.unless(port <= 1)
}

pub(super) fn query_context(call: &mut Call<'_, '_, '_>) -> Done {
    let input: QueryHcaVportContextIn = call.input()?;
    own_vport(call, input.other_vport(), input.vport_number(), input.port_num())?;
    let (fid, node) = (call.func.fid(), call.step.config.node_id);
    let f = call.func.function();
    let guid = u64::from_be_bytes(identity::guid(node, fid));
    let up = f.vport_state != 0;
    let state = if up { port_state::ACTIVE } else { port_state::DOWN };
    let mut context = HcaVportContext::zeroed();
    context
        .set()
        .has_smi(true)
        .port_physical_state(if up { PHYS_LINK_UP } else { PHYS_DISABLED })
        .vport_state_policy(f.vport_admin_state as u8)
        .port_state(state)
        .vport_state(state)
        .system_image_guid(u64::from_be_bytes(identity::guid(node, 0)))
        .port_guid(guid)
        .node_guid(guid)
        .cap_mask1(f.ib.capability_mask)
        .cap_mask1_field_select(subnet::SOFT_CAPABILITIES)
        .lid(identity::lid(fid))
        .subnet_timeout(f.ib.subnet_timeout)
        .sm_lid(identity::SWITCH_LID)
        .qkey_violation_counter(f.ib.qkey_violations)
        .pkey_violation_counter(f.ib.pkey_violations);
    let mut out = QueryHcaVportContextOut::zeroed();
    out.set().hca_vport_context(context);
    call.answer(&out)
}

pub(super) fn modify_context(call: &mut Call<'_, '_, '_>) -> Done {
    let input: ModifyHcaVportContextIn = call.input()?;
    own_vport(call, input.other_vport(), input.vport_number(), input.port_num())?;
    let context = input.hca_vport_context();
    // GUIDs follow from the function's number.
    Syndrome::ModifyField.unless(context.field_select() & !STATE_POLICY == 0)?;
    let chosen = context.cap_mask1_field_select();
    Syndrome::ModifyField.unless(chosen & !subnet::SOFT_CAPABILITIES == 0)?;
    let mask = call.func.function_mut(|f| &mut f.ib.capability_mask);
    *mask = *mask & !chosen | context.cap_mask1() & chosen;
    if context.field_select() & STATE_POLICY != 0 {
        let policy = context.vport_state_policy();
        Syndrome::VportState.unless(policy <= FOLLOW)?;
        *call.func.function_mut(|f| &mut f.vport_admin_state) = policy.into();
        subnet::set_link(call.func, policy != DOWN);
    }
    call.answer(&ModifyHcaVportContextOut::zeroed())
}

/// Entries of a table of `len` that `index` means.
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
    own_vport(call, input.other_vport(), input.vport_number(), input.port_num())?;
    let range = entries(input.gid_index(), PORT_GUIDS)?;
    let mut out = QueryHcaVportGidOut::zeroed();
    out.set().gids_num(range.len() as u16);
    let mut bytes = out.bytes().to_vec();
    for index in range {
        bytes.extend_from_slice(&call.func.function().ib.gid(index).unwrap_or_default());
    }
    call.answer_bytes(&bytes)
}

pub(super) fn query_pkey(call: &mut Call<'_, '_, '_>) -> Done {
    let input: QueryHcaVportPkeyIn = call.input()?;
    // RoCE has P_Keys too, if only the default one (A17.7.1).
    own(input.other_vport(), input.vport_number(), input.port_num())?;
    let pkeys = call.func.function().ib.pkeys;
    let range = entries(input.pkey_index(), pkeys.len())?;
    let mut bytes = QueryHcaVportPkeyOut::zeroed().bytes().to_vec();
    for pkey in &pkeys[range] {
        let mut entry = Pkey::zeroed();
        entry.set().pkey(*pkey);
        bytes.extend_from_slice(entry.bytes());
    }
    call.answer_bytes(&bytes)
}
