//! Virtual port contexts and RoCE addresses.
use crate::hw_layout;

hw_layout! {
    /// One entry of the RoCE address table.
    pub struct RoceAddr: 0x20 {
        0x000         source_l3_address: [u8; 0x10],
        0x010 [28:28] vlan_valid: bool,
        0x010 [27:16] vlan_id: u16,
        0x010 [15: 0] source_mac_47_32: u16,
        0x014 [31: 0] source_mac_31_0: u32,
        0x018 [11: 8] roce_l3_type: u8,
        0x018 [ 7: 0] roce_version: u8,
    }

    /// A MAC address in a vport list.
    pub struct MacAddressLayout: 0x8 {
        0x000 [15: 0] mac_addr_47_32: u16,
        0x004 [31: 0] mac_addr_31_0: u32,
    }

    /// Ethernet vport context.
    pub struct NicVportContext: 0x100 {
        0x000 [26:24] min_wqe_inline_mode: u8,
        0x000 [ 2: 2] disable_mc_local_lb: bool,
        0x000 [ 1: 1] disable_uc_local_lb: bool,
        0x000 [ 0: 0] roce_en: bool,
        0x004 [31:31] arm_change_event: bool,
        0x004 [ 4: 4] event_on_mtu: bool,
        0x004 [ 3: 3] event_on_promisc_change: bool,
        0x004 [ 2: 2] event_on_vlan_change: bool,
        0x004 [ 1: 1] event_on_mc_address_change: bool,
        0x004 [ 0: 0] event_on_uc_address_change: bool,
        0x008 [31:31] vhca_id_type: bool,
        0x008 [19:16] affiliation_criteria: u8,
        0x008 [15: 0] affiliated_vhca_id: u16,
        0x024 [15: 0] mtu: u16,
        0x028 [63: 0] system_image_guid: u64,
        0x030 [63: 0] port_guid: u64,
        0x038 [63: 0] node_guid: u64,
        0x068 [31:16] qkey_violation_counter: u16,
        0x0f0 [31:31] promisc_uc: bool,
        0x0f0 [30:30] promisc_mc: bool,
        0x0f0 [29:29] promisc_all: bool,
        0x0f0 [26:24] allowed_list_type: u8,
        0x0f0 [11: 0] allowed_list_size: u16,
        0x0f4         permanent_address: MacAddressLayout,
    }

    /// InfiniBand vport context.
    pub struct HcaVportContext: 0x200 {
        0x000 [31: 0] field_select: u32,
        0x020 [31:31] sm_virt_aware: bool,
        0x020 [30:30] has_smi: bool,
        0x020 [29:29] has_raw: bool,
        0x020 [28:28] grh_required: bool,
        0x020 [15:12] port_physical_state: u8,
        0x020 [11: 8] vport_state_policy: u8,
        0x020 [ 7: 4] port_state: u8,
        0x020 [ 3: 0] vport_state: u8,
        0x028 [63: 0] system_image_guid: u64,
        0x030 [63: 0] port_guid: u64,
        0x038 [63: 0] node_guid: u64,
        0x040 [31: 0] cap_mask1: u32,
        0x044 [31: 0] cap_mask1_field_select: u32,
        0x048 [31: 0] cap_mask2: u32,
        0x04c [31: 0] cap_mask2_field_select: u32,
        0x060 [31:16] lid: u16,
        0x060 [11: 8] init_type_reply: u8,
        0x060 [ 7: 5] lmc: u8,
        0x060 [ 4: 0] subnet_timeout: u8,
        0x064 [31:16] sm_lid: u16,
        0x064 [15:12] sm_sl: u8,
        0x068 [31:16] qkey_violation_counter: u16,
        0x068 [15: 0] pkey_violation_counter: u16,
    }

    /// Packets and octets of one traffic class.
    pub struct TrafficCounter: 0x10 {
        0x000 [63: 0] packets: u64,
        0x008 [63: 0] octets: u64,
    }

    /// One P_Key in a port's table.
    pub struct Pkey: 0x4 {
        0x000 [15: 0] pkey: u16,
    }
}
