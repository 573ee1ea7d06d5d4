//! Attributes of subnet management (IBTA 14.2.5).
use crate::hw_layout;

/// Attribute ids (IBTA table 190).
pub mod attribute {
    #![allow(missing_docs)]
    pub const NODE_DESCRIPTION: u16 = 0x10;
    pub const NODE_INFO: u16 = 0x11;
    pub const SWITCH_INFO: u16 = 0x12;
    pub const GUID_INFO: u16 = 0x14;
    pub const PORT_INFO: u16 = 0x15;
    pub const PKEY_TABLE: u16 = 0x16;
    pub const SL_TO_VL: u16 = 0x17;
    pub const VL_ARBITRATION: u16 = 0x18;
    pub const SM_INFO: u16 = 0x20;
}

/// Class version of subnet management packets.
pub const CLASS_VERSION: u8 = 1;
/// `node_type`: channel adapter.
pub const CHANNEL_ADAPTER: u8 = 1;
/// `node_type`: switch.
pub const SWITCH: u8 = 2;
/// GUIDs in a `GuidInfo` block.
pub const GUIDS_PER_BLOCK: usize = 8;
/// P_Keys in a `P_KeyTable` block.
pub const PKEYS_PER_BLOCK: usize = 32;

/// `port_state` (IBTA 14.2.5.6).
pub mod port_state {
    #![allow(missing_docs)]
    pub const DOWN: u8 = 1;
    pub const INIT: u8 = 2;
    pub const ARMED: u8 = 3;
    pub const ACTIVE: u8 = 4;
}

/// `port_physical_state`: disabled.
pub const PHYS_DISABLED: u8 = 3;
/// `port_physical_state`: link up.
pub const PHYS_LINK_UP: u8 = 5;
/// `mtu_cap` and `neighbor_mtu`: 2048 bytes.
pub const MTU_2048: u8 = 4;
/// `mtu_cap` and `neighbor_mtu`: 4096 bytes.
pub const MTU_4096: u8 = 5;
/// Link width 4x.
pub const WIDTH_4X: u8 = 2;

hw_layout! {
    /// `NodeInfo`.
    pub struct NodeInfo: 40 {
        0x00 [31:24] base_version: u8,
        0x00 [23:16] class_version: u8,
        0x00 [15: 8] node_type: u8,
        0x00 [ 7: 0] num_ports: u8,
        0x04         system_image_guid: [u8; 8],
        0x0c         node_guid: [u8; 8],
        0x14         port_guid: [u8; 8],
        0x1c [31:16] partition_cap: u16,
        0x1c [15: 0] device_id: u16,
        0x20 [31: 0] revision: u32,
        0x24 [31:24] local_port_num: u8,
        0x24 [23: 0] vendor_id: u32,
    }

    /// `SwitchInfo`.
    pub struct SwitchInfo: 20 {
        0x00 [31:16] linear_fdb_cap: u16,
        0x00 [15: 0] random_fdb_cap: u16,
        0x04 [31:16] multicast_fdb_cap: u16,
        0x04 [15: 0] linear_fdb_top: u16,
        0x08 [31:24] default_port: u8,
        0x08 [23:16] default_multicast_primary_port: u8,
        0x08 [15: 8] default_multicast_not_primary_port: u8,
        0x08 [ 7: 3] life_time_value: u8,
        0x08 [ 2: 2] port_state_change: bool,
        0x0c [31:16] lids_per_port: u16,
        0x0c [15: 0] partition_enforcement_cap: u16,
        0x10 [27:27] enhanced_port0: bool,
    }

    /// `PortInfo`.
    pub struct PortInfo: 64 {
        0x00 [63: 0] m_key: u64,
        0x08         gid_prefix: [u8; 8],
        0x10 [31:16] lid: u16,
        0x10 [15: 0] master_sm_lid: u16,
        0x14 [31: 0] capability_mask: u32,
        0x18 [31:16] diag_code: u16,
        0x18 [15: 0] m_key_lease_period: u16,
        0x1c [31:24] local_port_num: u8,
        0x1c [23:16] link_width_enabled: u8,
        0x1c [15: 8] link_width_supported: u8,
        0x1c [ 7: 0] link_width_active: u8,
        0x20 [31:28] link_speed_supported: u8,
        0x20 [27:24] port_state: u8,
        0x20 [23:20] port_physical_state: u8,
        0x20 [19:16] link_down_default_state: u8,
        0x20 [15:14] m_key_protect_bits: u8,
        0x20 [10: 8] lmc: u8,
        0x20 [ 7: 4] link_speed_active: u8,
        0x20 [ 3: 0] link_speed_enabled: u8,
        0x24 [31:28] neighbor_mtu: u8,
        0x24 [27:24] master_sm_sl: u8,
        0x24 [23:20] vl_cap: u8,
        0x24 [19:16] init_type: u8,
        0x24 [15: 8] vl_high_limit: u8,
        0x24 [ 7: 0] vl_arbitration_high_cap: u8,
        0x28 [31:24] vl_arbitration_low_cap: u8,
        0x28 [23:20] init_type_reply: u8,
        0x28 [19:16] mtu_cap: u8,
        0x28 [15:13] vl_stall_count: u8,
        0x28 [12: 8] hoq_life: u8,
        0x28 [ 7: 4] operational_vls: u8,
        0x2c [31:16] m_key_violations: u16,
        0x2c [15: 0] p_key_violations: u16,
        0x30 [31:16] q_key_violations: u16,
        0x30 [15: 8] guid_cap: u8,
        0x30 [ 7: 7] client_reregister: bool,
        0x30 [ 4: 0] subnet_timeout: u8,
        0x34 [28:24] resp_time_value: u8,
        0x34 [23:20] local_phy_errors: u8,
        0x34 [19:16] overrun_errors: u8,
        0x38 [23: 0] link_round_trip_latency: u32,
        0x3c [31:16] capability_mask2: u16,
        0x3c [15:12] link_speed_ext_active: u8,
        0x3c [11: 8] link_speed_ext_supported: u8,
        0x3c [ 4: 0] link_speed_ext_enabled: u8,
    }

    /// `SMInfo`.
    pub struct SmInfo: 24 {
        0x00         guid: [u8; 8],
        0x08 [63: 0] sm_key: u64,
        0x10 [31: 0] act_count: u32,
        0x14 [31:28] priority: u8,
        /// 3 is master.
        0x14 [27:24] sm_state: u8,
    }
}
