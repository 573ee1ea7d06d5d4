//! `QUERY_ADAPTER`.
use crate::hw_layout;

hw_layout! {
    /// Identity of the adapter.
    pub struct AdapterParams: 0x100 {
        0x018 [23: 0] ieee_vendor_id: u32,
        0x01c [15: 0] vsd_vendor_id: u16,
        0x020         vsd: [u8; 0xd0],
        0x0f0         vsd_contd_psid: [u8; 0x10],
    }
}

hw_layout! {
    /// `QUERY_ADAPTER` input.
    pub struct QueryAdapterIn: 0x10 {
        0x000 [31:16] opcode: u16,
        0x004 [15: 0] op_mod: u16,
    }
}

hw_layout! {
    /// `QUERY_ADAPTER` output.
    pub struct QueryAdapterOut: 0x110 {
        0x000 [31:24] status: u8,
        0x004 [31: 0] syndrome: u32,
        0x010         query_adapter_struct: AdapterParams,
    }
}
