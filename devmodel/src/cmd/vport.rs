//! The virtual port: state, context, RoCE addresses, counters.

use super::{
    call::Call,
    refusal::{Done, Syndrome},
};
use crate::{
    mlx5::port::set_link,
    state::{ROCE_ADDRESSES, RoceAddress},
};
use hwspec::{cmd::vport::*, context::vport::RoceAddr, layout::prefix};

/// Largest MTU of the port: bytes of a frame, its check sequence included.
pub(super) const MAX_MTU: u16 = 9216;
/// Smallest MTU an IPv4 link may have.
pub(super) const MIN_MTU: u16 = 68;
/// `roce_version`: RoCE v2.
const ROCE_V2: u8 = 2;
/// `roce_l3_type`.
const IPV4: u8 = 0;
const IPV6: u8 = 1;
/// First 12 bytes of a GID that is an IPv4 address.
const MAPPED: [u8; 12] = [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff];
/// `admin_state`: follow the link.
const FOLLOW: u8 = 2;
/// `op_mod` of the state commands: which port of the vport is meant. All have the same state.
pub(super) const VNIC: u16 = 0;
/// See [`VNIC`].
pub(super) const ESWITCH: u16 = 1;
/// See [`VNIC`].
pub(super) const UPLINK: u16 = 2;

/// A function speaks for its own vport only.
pub(super) fn own_vport(other: bool, number: u16) -> Done {
    Syndrome::FunctionId.unless(!other && number == 0)
}

pub(super) fn query_state(call: &mut Call<'_, '_, '_>) -> Done {
    let input: QueryVportStateIn = call.input()?;
    own_vport(input.other_vport(), input.vport_number())?;
    let f = call.func.function();
    let mut out = QueryVportStateOut::zeroed();
    out.set().admin_state(f.vport_admin_state as u8).state(f.vport_state as u8);
    call.answer(&out)
}

pub(super) fn modify_state(call: &mut Call<'_, '_, '_>) -> Done {
    let input: ModifyVportStateIn = call.input()?;
    own_vport(input.other_vport(), input.vport_number())?;
    let admin = input.admin_state();
    Syndrome::VportState.unless(admin <= FOLLOW)?;
    *call.func.function_mut(|f| &mut f.vport_admin_state) = admin.into();
    set_link(call.func, admin != 0);
    call.answer(&ModifyVportStateOut::zeroed())
}

pub(super) fn set_roce_address(call: &mut Call<'_, '_, '_>) -> Done {
    let input: SetRoceAddressIn = call.input()?;
    let index = usize::from(input.roce_address_index());
    Syndrome::AddressIndex.unless(index < ROCE_ADDRESSES)?;
    Syndrome::Port.unless(input.vhca_port_num() <= 1)?;
    let given = input.roce_address();
    let l3 = given.source_l3_address();
    let mut address = RoceAddress::default();
    // An address of zeros clears the entry.
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
    call.answer(&SetRoceAddressOut::zeroed())
}

pub(super) fn query_roce_address(call: &mut Call<'_, '_, '_>) -> Done {
    let input: QueryRoceAddressIn = call.input()?;
    let index = usize::from(input.roce_address_index());
    Syndrome::AddressIndex.unless(index < ROCE_ADDRESSES)?;
    Syndrome::Port.unless(input.vhca_port_num() <= 1)?;
    let address = call.func.function().roce[index];
    let mut entry = RoceAddr::zeroed();
    entry
        .set()
        .source_l3_address(address.gid)
        .source_mac_47_32(u16::from_be_bytes(prefix(&address.mac)))
        .source_mac_31_0(u32::from_be_bytes(prefix(&address.mac[2..])))
        .vlan_valid(address.vlan().is_some())
        .vlan_id(address.vlan().unwrap_or(0))
        .roce_l3_type(address.l3_type)
        .roce_version(address.version);
    let mut out = QueryRoceAddressOut::zeroed();
    out.set().roce_address(entry);
    call.answer(&out)
}
