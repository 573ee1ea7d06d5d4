//! The table of addresses by which the port gives frames from the wire to a physical function.
use crate::context::vport::MacAddressLayout;

/// Opcode of `SET_L2_TABLE_ENTRY`.
pub const SET_L2_TABLE_ENTRY: u16 = 0x829;

cmd_in! {
    /// `SET_L2_TABLE_ENTRY` input.
    pub struct SetL2TableEntryIn: 0x40 {
        0x014 [23: 0] table_index: u32,
        0x01c [12:12] vlan_valid: bool,
        0x01c [11: 0] vlan: u16,
        0x020         mac_address: MacAddressLayout,
    }
}

cmd_out! {
    /// `SET_L2_TABLE_ENTRY` output.
    pub struct SetL2TableEntryOut: 0x10 {}
}
