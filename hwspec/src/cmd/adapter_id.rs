//! `QUERY_ADAPTER`.
use super::CmdIn;
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

commands! {
    0x101 QueryAdapter in CmdIn out QueryAdapterOut: 0x110 { 0x010 query_adapter_struct: AdapterParams }
}
