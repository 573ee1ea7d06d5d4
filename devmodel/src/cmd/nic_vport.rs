//! The context of an Ethernet vport: its addresses, additional receive filters, RoCE, MTU.

use super::{
    call::Call,
    eswitch::settings,
    refusal::{Done, Syndrome},
    vport::{MAX_MTU, MIN_MTU, books, manages, vport},
};
use crate::{
    identity,
    mlx5::eswitch,
    state::{FunctionRow, MULTICAST_LIST, UNICAST_LIST, VLAN_LIST, VportRow},
};
use hwspec::{
    cmd::vport::*,
    context::vport::{MacAddressLayout, NicVportContext},
    layout::prefix,
};

/// `modify_nic_vport_field_select`, with those in [`hwspec`].
const PERMANENT: u32 = 1 << 3;
const PROMISC: u32 = 1 << 4;
const CHANGE_EVENT: u32 = 1 << 5;
const PORT_GUID: u32 = 1 << 8;
const NODE_GUID: u32 = 1 << 9;
const KNOWN: u32 = ROCE_EN | ADDRESSES | PERMANENT | PROMISC | CHANGE_EVENT | MTU | MULTICAST_LB | UNICAST_LB;
/// Vport fields that only the e-switch manager may change.
const MANAGED: u32 = PERMANENT | CHANGE_EVENT | PORT_GUID | NODE_GUID;
/// Changes reported by an event: the bits of the context's dword that subscribe to them.
const UNICAST_CHANGED: u32 = 1 << 0;
const MULTICAST_CHANGED: u32 = 1 << 1;
const VLANS_CHANGED: u32 = 1 << 2;
const PROMISC_CHANGED: u32 = 1 << 3;
const MTU_CHANGED: u32 = 1 << 4;
/// `allowed_list_type`, with those in [`hwspec`].
const VLANS: u8 = 2;

/// `mac` as in contexts.
pub(super) fn address(mac: [u8; 6]) -> MacAddressLayout {
    MacAddressLayout::with(|s| {
        s.mac_addr_47_32(u16::from_be_bytes(prefix(&mac)))
            .mac_addr_31_0(u32::from_be_bytes(prefix(&mac[2..])))
    })
}

/// The list of a kind, one 8-byte element per entry.
fn list(f: &FunctionRow, kind: u8) -> Vec<u64> {
    let n = f.list_len.get(usize::from(kind)).map_or(0, |n| *n as usize);
    match kind {
        UNICAST => f.unicast_list.iter().take(n).copied().collect(),
        MULTICAST => f.multicast_list.iter().take(n).copied().collect(),
        VLANS => f.vlan_list.iter().take(n).map(|vlan| u64::from(*vlan) << 32).collect(),
        _ => Vec::new(),
    }
}

pub(super) fn query(call: &mut Call<'_, '_, '_>) -> Done {
    let input: QueryNicVportContextIn = call.input()?;
    let fid = vport(call)?;
    let node_id = call.step.config.node_id;
    let set = call.func.region().vport(fid);
    let guids = call.func.region().guids(call.step.config, fid);
    let [node_guid, port_guid] = guids.map(u64::from_be_bytes);
    let kind = input.allowed_list_type();
    let f = books(call, fid);
    let list = list(&f, kind);
    let context = NicVportContext::with(|s| {
        s.roce_en(f.roce_enabled != 0)
            .disable_uc_local_lb(f.local_block & FunctionRow::BLOCK_UNICAST != 0)
            .disable_mc_local_lb(f.local_block & FunctionRow::BLOCK_MULTICAST != 0)
            .mtu(f.mtu)
            .system_image_guid(u64::from_be_bytes(identity::guid(node_id, 0)))
            .port_guid(port_guid)
            .node_guid(node_guid)
            .promisc_uc(f.promiscuous & FunctionRow::ALL_UNICAST != 0)
            .promisc_mc(f.promiscuous & FunctionRow::ALL_MULTICAST != 0)
            .promisc_all(f.promiscuous & FunctionRow::ALL != 0)
            .allowed_list_type(kind)
            .allowed_list_size(list.len() as u16)
            .permanent_address(address(if set.mac == [0; 6] { f.mac } else { set.mac }))
            .arm_change_event(set.events & VportRow::ARMED != 0)
    });
    // As many entries as there is room for.
    let room = call.output.len().saturating_sub(QueryNicVportContextOut::SIZE) / 8;
    let out = QueryNicVportContextOut::with(|s| s.nic_vport_context(context));
    call.answer_list(&out, list.into_iter().take(room).map(u64::to_be_bytes))
}

pub(super) fn modify(call: &mut Call<'_, '_, '_>) -> Done {
    let input: ModifyNicVportContextIn = call.input()?;
    let fid = vport(call)?;
    let fields = u32::from_be_bytes(input.field_select());
    let context = input.nic_vport_context();
    let managed =
        input.other_vport() || manages(call.func) && fields & (CHANGE_EVENT | NODE_GUID | PORT_GUID) != 0;
    if managed {
        Syndrome::ModifyField.unless(fields & !MANAGED == 0)?;
        return manage(call, fid, fields, &context);
    }
    Syndrome::ModifyField.unless(fields & !KNOWN == 0)?;
    let mut changed = 0;
    if fields & MTU != 0 {
        Syndrome::Mtu.unless((MIN_MTU..=MAX_MTU).contains(&context.mtu()))?;
        *call.func.function_mut(|f| &mut f.mtu) = context.mtu();
        changed |= MTU_CHANGED;
    }
    if fields & ROCE_EN != 0 {
        *call.func.function_mut(|f| &mut f.roce_enabled) = context.roce_en().into();
    }
    let bit = |on: bool, bit: u32| if on { bit } else { 0 };
    if fields & PROMISC != 0 {
        *call.func.function_mut(|f| &mut f.promiscuous) = bit(context.promisc_uc(), FunctionRow::ALL_UNICAST)
            | bit(context.promisc_mc(), FunctionRow::ALL_MULTICAST)
            | bit(context.promisc_all(), FunctionRow::ALL);
        changed |= PROMISC_CHANGED;
    }
    let mut block = call.func.function().local_block;
    for (field, flag, on) in [
        (UNICAST_LB, FunctionRow::BLOCK_UNICAST, context.disable_uc_local_lb()),
        (MULTICAST_LB, FunctionRow::BLOCK_MULTICAST, context.disable_mc_local_lb()),
    ] {
        if fields & field != 0 {
            block = block & !flag | bit(on, flag);
        }
    }
    *call.func.function_mut(|f| &mut f.local_block) = block;
    if fields & PERMANENT != 0 {
        let mac = mac_of(&context);
        Syndrome::VportAddress.unless(mac[0] & 1 == 0 && mac != [0; 6])?;
        *call.func.function_mut(|f| &mut f.mac) = mac;
        changed |= UNICAST_CHANGED;
    }
    if fields & ADDRESSES != 0 {
        let kind = context.allowed_list_type();
        addresses(call, kind, context.allowed_list_size().into())?;
        changed |= [UNICAST_CHANGED, MULTICAST_CHANGED, VLANS_CHANGED][usize::from(kind)];
    }
    eswitch::takes(call.func, call.step.config);
    tell_manager(call, changed);
    Ok(())
}

fn mac_of(context: &NicVportContext) -> [u8; 6] {
    prefix(&context.permanent_address().as_bytes()[2..])
}

/// Changes the fields of vport `fid` that the manager controls.
fn manage(call: &mut Call<'_, '_, '_>, fid: u8, fields: u32, context: &NicVportContext) -> Done {
    let row = settings(call.func, fid)?;
    if fields & PERMANENT != 0 {
        let mac = mac_of(context);
        Syndrome::VportAddress.unless(mac[0] & 1 == 0)?;
        // Zeros remove the setting.
        row.mac = mac;
    }
    let has = |field| fields & field != 0;
    select! { has:
        NODE_GUID => row.node_guid = context.node_guid();
        PORT_GUID => row.port_guid = context.port_guid();
    }
    if fields & CHANGE_EVENT != 0 {
        let wanted = [
            (context.event_on_uc_address_change(), UNICAST_CHANGED),
            (context.event_on_mc_address_change(), MULTICAST_CHANGED),
            (context.event_on_vlan_change(), VLANS_CHANGED),
            (context.event_on_promisc_change(), PROMISC_CHANGED),
            (context.event_on_mtu(), MTU_CHANGED),
        ];
        let wanted = wanted.iter().filter(|(on, _)| *on).fold(0, |all, (_, bit)| all | bit);
        let missed = row.events & VportRow::MISSED != 0 && wanted != 0;
        let armed = context.arm_change_event() && wanted != 0;
        row.events = wanted | if armed { VportRow::ARMED } else { 0 };
        if missed && armed {
            eswitch::context_changed(call.func, fid);
        }
    }
    if fields & PERMANENT != 0 {
        call.switch_changed();
        match fid == call.func.fid() {
            true => eswitch::take_over(call.func, call.step.config),
            false => call.step.tell(fid, fid),
        }
    }
    Ok(())
}

/// Notifies the manager of these changes of the caller's context, if it has subscribed to them.
pub(super) fn tell_manager(call: &mut Call<'_, '_, '_>, changed: u32) {
    let fid = call.func.fid();
    match call.func.region().vport(fid).events & changed {
        0 => {}
        _ if fid == 0 => eswitch::context_changed(call.func, 0),
        _ => call.step.tell(0, fid),
    }
}

/// Clears the lists and all filters when the driver releases the port.
pub(super) fn forget_lists(call: &mut Call<'_, '_, '_>) {
    *call.func.function_mut(|f| &mut f.list_len) = [0; 3];
    *call.func.function_mut(|f| &mut f.promiscuous) = 0;
    eswitch::takes(call.func, call.step.config);
    tell_manager(call, UNICAST_CHANGED | MULTICAST_CHANGED | VLANS_CHANGED | PROMISC_CHANGED);
}

/// Takes the list after the context.
fn addresses(call: &mut Call<'_, '_, '_>, kind: u8, count: usize) -> Done {
    let max = match kind {
        UNICAST => UNICAST_LIST,
        MULTICAST => MULTICAST_LIST,
        VLANS => VLAN_LIST,
        _ => return Syndrome::VportList.refuse(),
    };
    Syndrome::VportList.unless(count <= max)?;
    let given: Vec<u64> = call.list(ModifyNicVportContextIn::SIZE, count)?.collect();
    let macs = match kind {
        UNICAST => call.func.function_mut(|f| &mut f.unicast_list).as_mut_slice(),
        MULTICAST => call.func.function_mut(|f| &mut f.multicast_list).as_mut_slice(),
        _ => {
            let list = call.func.function_mut(|f| &mut f.vlan_list);
            // The low 12 bits of the first dword are the number.
            list.iter_mut().zip(&given).for_each(|(to, entry)| *to = (entry >> 32) as u16 & 0xfff);
            &mut []
        }
    };
    macs.iter_mut().zip(&given).for_each(|(to, entry)| *to = entry & 0xffff_ffff_ffff);
    call.func.function_mut(|f| &mut f.list_len)[usize::from(kind)] = count as u32;
    Ok(())
}
