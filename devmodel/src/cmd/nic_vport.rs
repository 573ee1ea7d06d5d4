//! The context of an Ethernet vport: its addresses, what else it takes, RoCE, MTU.

use super::{
    call::Call,
    refusal::{Done, Syndrome},
    vport::{MAX_MTU, MIN_MTU, own_vport},
};
use crate::{
    identity,
    region::{Func, GROUP_NOT_OWN, GROUP_STRANGERS},
    state::{FunctionRow, MULTICAST_LIST, UNICAST_LIST, VLAN_LIST},
};
use hwspec::{
    cmd::vport::*,
    context::vport::{MacAddressLayout, NicVportContext},
    layout::prefix,
};

/// `modify_nic_vport_field_select`.
const ROCE_EN: u32 = 1 << 1;
const ADDRESSES: u32 = 1 << 2;
const PERMANENT: u32 = 1 << 3;
const PROMISC: u32 = 1 << 4;
const CHANGE_EVENT: u32 = 1 << 5;
const MTU: u32 = 1 << 6;
const MULTICAST_LB: u32 = 1 << 10;
const UNICAST_LB: u32 = 1 << 11;
const KNOWN: u32 = ROCE_EN | ADDRESSES | PERMANENT | PROMISC | CHANGE_EVENT | MTU | MULTICAST_LB | UNICAST_LB;
/// `allowed_list_type`.
const UNICAST: u8 = 0;
const MULTICAST: u8 = 1;
const VLANS: u8 = 2;
/// `FunctionRow::promiscuous`.
const ALL_UNICAST: u32 = 1;
const ALL_MULTICAST: u32 = 2;
const ALL: u32 = 4;
/// `FunctionRow::local_block`.
const BLOCK_UNICAST: u32 = 1;
const BLOCK_MULTICAST: u32 = 2;

fn address(mac: [u8; 6]) -> MacAddressLayout {
    let mut a = MacAddressLayout::zeroed();
    a.set()
        .mac_addr_47_32(u16::from_be_bytes(prefix(&mac)))
        .mac_addr_31_0(u32::from_be_bytes(prefix(&mac[2..])));
    a
}

/// The list of a kind, an 8-byte element each.
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
    own_vport(input.other_vport(), input.vport_number())?;
    let node_id = call.step.config.node_id;
    let guid = u64::from_be_bytes(identity::guid(node_id, call.func.fid()));
    let kind = input.allowed_list_type();
    let f = call.func.function();
    let list = list(f, kind);
    let mut context = NicVportContext::zeroed();
    context
        .set()
        .roce_en(f.roce_enabled != 0)
        .disable_uc_local_lb(f.local_block & BLOCK_UNICAST != 0)
        .disable_mc_local_lb(f.local_block & BLOCK_MULTICAST != 0)
        .mtu(f.mtu)
        .system_image_guid(u64::from_be_bytes(identity::guid(node_id, 0)))
        .port_guid(guid)
        .node_guid(guid)
        .promisc_uc(f.promiscuous & ALL_UNICAST != 0)
        .promisc_mc(f.promiscuous & ALL_MULTICAST != 0)
        .promisc_all(f.promiscuous & ALL != 0)
        .allowed_list_type(kind)
        .allowed_list_size(list.len() as u16)
        .permanent_address(address(f.mac));
    let mut out = QueryNicVportContextOut::zeroed();
    out.set().nic_vport_context(context);
    let mut bytes = out.as_bytes().to_vec();
    // As much of the list as there is room for.
    let room = call.output.len().saturating_sub(bytes.len()) / 8;
    list.iter().take(room).for_each(|entry| bytes.extend_from_slice(&entry.to_be_bytes()));
    call.answer_bytes(&bytes)
}

pub(super) fn modify(call: &mut Call<'_, '_, '_>) -> Done {
    let input: ModifyNicVportContextIn = call.input()?;
    own_vport(input.other_vport(), input.vport_number())?;
    let fields = u32::from_be_bytes(input.field_select());
    Syndrome::ModifyField.unless(fields & !KNOWN == 0)?;
    let context = input.nic_vport_context();
    if fields & MTU != 0 {
        Syndrome::Mtu.unless((MIN_MTU..=MAX_MTU).contains(&context.mtu()))?;
        *call.func.function_mut(|f| &mut f.mtu) = context.mtu();
    }
    if fields & ROCE_EN != 0 {
        *call.func.function_mut(|f| &mut f.roce_enabled) = context.roce_en().into();
    }
    if fields & PROMISC != 0 {
        let bit = |on: bool, bit: u32| if on { bit } else { 0 };
        *call.func.function_mut(|f| &mut f.promiscuous) = bit(context.promisc_uc(), ALL_UNICAST)
            | bit(context.promisc_mc(), ALL_MULTICAST)
            | bit(context.promisc_all(), ALL);
    }
    let mut block = call.func.function().local_block;
    for (field, bit, on) in [
        (UNICAST_LB, BLOCK_UNICAST, context.disable_uc_local_lb()),
        (MULTICAST_LB, BLOCK_MULTICAST, context.disable_mc_local_lb()),
    ] {
        if fields & field != 0 {
            block = block & !bit | if on { bit } else { 0 };
        }
    }
    *call.func.function_mut(|f| &mut f.local_block) = block;
    if fields & PERMANENT != 0 {
        let mac: [u8; 6] = prefix(&context.permanent_address().as_bytes()[2..]);
        Syndrome::VportAddress.unless(mac[0] & 1 == 0 && mac != [0; 6])?;
        *call.func.function_mut(|f| &mut f.mac) = mac;
    }
    if fields & ADDRESSES != 0 {
        addresses(call, context.allowed_list_type(), context.allowed_list_size().into())?;
    }
    takes(call.func, call.step.config.node_id);
    call.answer(&ModifyNicVportContextOut::zeroed())
}

/// Takes the list behind the context.
fn addresses(call: &mut Call<'_, '_, '_>, kind: u8, count: usize) -> Done {
    let max = match kind {
        UNICAST => UNICAST_LIST,
        MULTICAST => MULTICAST_LIST,
        VLANS => VLAN_LIST,
        _ => return Syndrome::VportList.refuse(),
    };
    Syndrome::VportList.unless(count <= max)?;
    let given: Vec<u64> = call.list(ModifyNicVportContextIn::SIZE, count)?.collect();
    let mac = |entry: &u64| entry & 0xffff_ffff_ffff;
    match kind {
        UNICAST => {
            let list = call.func.function_mut(|f| &mut f.unicast_list);
            list.iter_mut().zip(&given).for_each(|(to, entry)| *to = mac(entry));
        }
        MULTICAST => {
            let list = call.func.function_mut(|f| &mut f.multicast_list);
            list.iter_mut().zip(&given).for_each(|(to, entry)| *to = mac(entry));
        }
        _ => {
            let list = call.func.function_mut(|f| &mut f.vlan_list);
            // The number is in the low 12 bits of the first dword.
            list.iter_mut().zip(&given).for_each(|(to, entry)| *to = (entry >> 32) as u16 & 0xfff);
        }
    }
    call.func.function_mut(|f| &mut f.list_len)[usize::from(kind)] = count as u32;
    Ok(())
}

/// Tells the switch whether frames to other addresses than the function's own are wanted.
fn takes(func: &Func<'_>, node_id: u16) {
    let f = func.function();
    let own = identity::mac(node_id, func.fid());
    let strange = |entry: &u64| entry.to_be_bytes()[2..] != own;
    let strangers = f.promiscuous & (ALL_UNICAST | ALL) != 0
        || f.mac != own
        || f.unicast_list.iter().take(f.list_len[0] as usize).any(strange);
    func.takes_frames(GROUP_STRANGERS, strangers);
    func.takes_frames(GROUP_NOT_OWN, f.local_block & BLOCK_MULTICAST != 0);
}
