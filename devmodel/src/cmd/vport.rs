//! The virtual port: state, context, RoCE addresses, counters.

use super::{
    call::Call,
    refusal::{Done, Syndrome},
};
use crate::{
    mlx5::eswitch,
    region::Func,
    state::{FunctionRow, ROCE_ADDRESSES, RoceAddress},
};
use hwspec::{
    cmd::vport::*,
    context::vport::RoceAddr,
    layout::{Layout, prefix},
};
use zerocopy::FromZeros;

/// Largest MTU of the port: bytes of a frame including its check sequence.
pub(super) const MAX_MTU: u16 = 9216;
/// Smallest MTU of an IPv4 link.
pub(super) const MIN_MTU: u16 = 68;
/// `roce_version`: RoCE v2.
const ROCE_V2: u8 = 2;
/// `roce_l3_type`.
const IPV4: u8 = 0;
const IPV6: u8 = 1;
/// First 12 bytes of a GID with an IPv4 address.
pub(super) const MAPPED: [u8; 12] = [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff];
/// `admin_state`: follow the link.
const FOLLOW: u32 = 2;
/// `admin_state`: down, regardless of the link.
const DOWN: u32 = 0;
/// `op_mod` of the state commands: the vport's own port. All ports have the same state.
pub(super) const VNIC: u16 = 0;
/// `op_mod` of the state commands: the port at the e-switch.
pub(super) const ESWITCH: u16 = 1;
/// `op_mod` of the state commands: the uplink.
pub(super) const UPLINK: u16 = 2;

/// True if the function manages the e-switch: the PF, if VFs are possible.
pub(super) fn manages(func: &Func<'_>) -> bool {
    func.fid() == 0 && func.region().functions() > 1
}

/// The function with the vport that a command is about: the caller's own, or any for the driver of the e-switch
/// manager. All inputs name it in the same places.
pub(super) fn vport(call: &Call<'_, '_, '_>) -> Done<u8> {
    let input = QueryVportStateIn::read(call.input);
    let number = input.vport_number();
    if !input.other_vport() {
        Syndrome::FunctionId.unless(number == 0)?;
        return Ok(call.func.fid());
    }
    let there = number < call.func.region().functions().into();
    Syndrome::FunctionId.unless(manages(call.func) && call.uid == 0 && there)?;
    Ok(number as u8)
}

/// The registers and bookkeeping of `fid`: current for the caller, slightly stale for other functions.
pub(super) fn books(call: &Call<'_, '_, '_>, fid: u8) -> FunctionRow {
    match fid == call.func.fid() {
        true => *call.func.function(),
        false => call.func.region().look(fid, 0).unwrap_or_else(FunctionRow::new_zeroed),
    }
}

pub(super) fn query_state(call: &mut Call<'_, '_, '_>) -> Done {
    let input: QueryVportStateIn = call.input()?;
    let fid = vport(call)?;
    let (f, set) = (books(call, fid), call.func.region().vport(fid).admin_state.checked_sub(1));
    let state = if set == Some(DOWN) { 0 } else { f.vport_state };
    let admin = set.filter(|_| input.other_vport()).unwrap_or(f.vport_admin_state);
    call.answer(&QueryVportStateOut::with(|s| s.admin_state(admin as u8).state(state as u8)))
}

pub(super) fn modify_state(call: &mut Call<'_, '_, '_>) -> Done {
    let input: ModifyVportStateIn = call.input()?;
    let fid = vport(call)?;
    let admin = u32::from(input.admin_state());
    Syndrome::VportState.unless(admin <= FOLLOW)?;
    if input.other_vport() {
        super::eswitch::settings(call.func, fid)?.admin_state = admin + 1;
        call.switch_changed();
        if fid != call.func.fid() {
            call.step.tell(fid, fid);
        }
    } else {
        *call.func.function_mut(|f| &mut f.vport_admin_state) = admin;
        eswitch::set_link(call.func, admin != DOWN);
    }
    Ok(())
}

pub(super) fn set_roce_address(call: &mut Call<'_, '_, '_>) -> Done {
    let input: SetRoceAddressIn = call.input()?;
    let index = usize::from(input.roce_address_index());
    Syndrome::AddressIndex.unless(index < ROCE_ADDRESSES)?;
    Syndrome::Port.unless(input.vhca_port_num() <= 1)?;
    let given = input.roce_address();
    let l3 = given.source_l3_address();
    let mut address = RoceAddress::default();
    // An all-zero address clears the entry.
    if l3 != [0; 16] {
        let known = given.roce_version() == ROCE_V2 && matches!(given.roce_l3_type(), IPV4 | IPV6);
        Syndrome::RoceAddress.unless(known)?;
        let vlan = if given.vlan_valid() { RoceAddress::VLAN_VALID | given.vlan_id() } else { 0 };
        address = RoceAddress {
            gid: l3,
            mac: prefix(&given.as_bytes()[0x12..]),
            valid: 1,
            version: given.roce_version(),
            l3_type: given.roce_l3_type(),
            vlan: vlan.to_be_bytes(),
            ..address
        };
        if address.l3_type == IPV4 {
            // Drivers differ in whether they write the prefix of a mapped address.
            address.gid[..12].copy_from_slice(&MAPPED);
        }
    }
    call.func.function_mut(|f| &mut f.roce)[index] = address;
    Ok(())
}

pub(super) fn query_roce_address(call: &mut Call<'_, '_, '_>) -> Done {
    let input: QueryRoceAddressIn = call.input()?;
    let index = usize::from(input.roce_address_index());
    Syndrome::AddressIndex.unless(index < ROCE_ADDRESSES)?;
    Syndrome::Port.unless(input.vhca_port_num() <= 1)?;
    let address = call.func.function().roce[index];
    let entry = RoceAddr::with(|s| {
        s.source_l3_address(address.gid)
            .source_mac_47_32(u16::from_be_bytes(prefix(&address.mac)))
            .source_mac_31_0(u32::from_be_bytes(prefix(&address.mac[2..])))
            .vlan_valid(address.vlan().is_some())
            .vlan_id(address.vlan().unwrap_or(0))
            .roce_l3_type(address.l3_type)
            .roce_version(address.version)
    });
    call.answer(&QueryRoceAddressOut::with(|s| s.roce_address(entry)))
}
