//! Virtual port commands.
use super::CmdOut;
use crate::context::vport::{
    HcaVportContext, MacAddressLayout, NicVportContext, Pkey, RoceAddr, TrafficCounter,
};

/// `modify_nic_vport_field_select`: `roce_en`.
pub const ROCE_EN: u32 = 1 << 1;
/// `modify_nic_vport_field_select`: the list of addresses.
pub const ADDRESSES: u32 = 1 << 2;
/// `modify_nic_vport_field_select`: `mtu`.
pub const MTU: u32 = 1 << 6;
/// `modify_nic_vport_field_select`: `disable_mc_local_lb`.
pub const MULTICAST_LB: u32 = 1 << 10;
/// `modify_nic_vport_field_select`: `disable_uc_local_lb`.
pub const UNICAST_LB: u32 = 1 << 11;
/// `allowed_list_type`: unicast addresses.
pub const UNICAST: u8 = 0;
/// `allowed_list_type`: multicast addresses.
pub const MULTICAST: u8 = 1;

commands! {
    0x750 QueryVportState
        in QueryVportStateIn: 0x10, uid; other_vport vport_number {}
        out QueryVportStateOut: 0x10 {
            0x00c [ 7: 4] admin_state: u8,
            0x00c [ 3: 0] state: u8,
        }

    0x751 ModifyVportState
        in ModifyVportStateIn: 0x10; other_vport vport_number { 0x00c [ 7: 4] admin_state: u8 }
        out CmdOut

    0x754 QueryNicVportContext
        in QueryNicVportContextIn: 0x10, uid; other_vport vport_number {
            0x00c [26:24] allowed_list_type: u8,
        }
        out QueryNicVportContextOut: 0x110 { 0x010 nic_vport_context: NicVportContext } then current_uc_mac_address: [MacAddressLayout]

    0x755 ModifyNicVportContext
        in ModifyNicVportContextIn: 0x200; other_vport vport_number {
            0x00c         field_select: [u8; 0x4],
            0x100         nic_vport_context: NicVportContext,
        } then current_uc_mac_address: [MacAddressLayout]
        out CmdOut

    0x762 QueryHcaVportContext
        in QueryHcaVportContextIn: 0x10, uid {
            0x008 [31:31] other_vport: bool,
            0x008 [19:16] port_num: u8,
            0x008 [15: 0] vport_number: u16,
        }
        out QueryHcaVportContextOut: 0x210 { 0x010 hca_vport_context: HcaVportContext }

    /// `field_select` of the context selects the valid fields.
    0x763 ModifyHcaVportContext
        in ModifyHcaVportContextIn: 0x210 {
            0x008 [31:31] other_vport: bool,
            0x008 [19:16] port_num: u8,
            0x008 [15: 0] vport_number: u16,
            0x010         hca_vport_context: HcaVportContext,
        }
        out CmdOut

    0x764 QueryHcaVportGid
        in QueryHcaVportGidIn: 0x10 {
            0x008 [31:31] other_vport: bool,
            0x008 [19:16] port_num: u8,
            0x008 [15: 0] vport_number: u16,
            0x00c [15: 0] gid_index: u16,
        }
        out QueryHcaVportGidOut: 0x10 { 0x00c [31:16] gids_num: u16 } then gid: [[u8; 16]]

    0x765 QueryHcaVportPkey
        in QueryHcaVportPkeyIn: 0x10 {
            0x008 [31:31] other_vport: bool,
            0x008 [19:16] port_num: u8,
            0x008 [15: 0] vport_number: u16,
            0x00c [15: 0] pkey_index: u16,
        }
        out CmdOut then pkey: [Pkey]

    0x761 SetRoceAddress
        in SetRoceAddressIn: 0x30 {
            0x008 [31:16] roce_address_index: u16,
            0x008 [ 3: 0] vhca_port_num: u8,
            0x010         roce_address: RoceAddr,
        }
        out CmdOut

    0x760 QueryRoceAddress
        in QueryRoceAddressIn: 0x10, uid {
            0x008 [31:16] roce_address_index: u16,
            0x008 [ 3: 0] vhca_port_num: u8,
        }
        out QueryRoceAddressOut: 0x30 { 0x010 roce_address: RoceAddr }

    0x770 QueryVportCounter
        in QueryVportCounterIn: 0x20, uid {
            0x008 [31:31] other_vport: bool,
            0x008 [19:16] port_num: u8,
            0x008 [15: 0] vport_number: u16,
            0x018 [31:31] clear: bool,
        }
        out QueryVportCounterOut: 0x210 {
            0x010         received_errors: TrafficCounter,
            0x020         transmit_errors: TrafficCounter,
            0x030         received_ib_unicast: TrafficCounter,
            0x040         transmitted_ib_unicast: TrafficCounter,
            0x050         received_ib_multicast: TrafficCounter,
            0x060         transmitted_ib_multicast: TrafficCounter,
            0x070         received_eth_broadcast: TrafficCounter,
            0x080         transmitted_eth_broadcast: TrafficCounter,
            0x090         received_eth_unicast: TrafficCounter,
            0x0a0         transmitted_eth_unicast: TrafficCounter,
            0x0b0         received_eth_multicast: TrafficCounter,
            0x0c0         transmitted_eth_multicast: TrafficCounter,
        }

    0x50d MadIfc
        in MadIfcIn: 0x110 {
            0x008 [31:16] remote_lid: u16,
            0x008 [ 7: 0] port: u8,
            0x010         mad: [u8; 0x100],
        }
        out MadIfcOut: 0x110 { 0x010 response_mad_packet: [u8; 0x100] }
}
