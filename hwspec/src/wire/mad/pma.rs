//! Attributes of performance management (IBTA 16.1.3), at byte [`DATA`] of the MAD.
use crate::hw_layout;

/// Where the attribute lies in the MAD.
pub const DATA: usize = 64;
/// Class version.
pub const CLASS_VERSION: u8 = 1;
/// `ClassPortInfo`.
pub const CLASS_PORT_INFO: u16 = 0x01;
/// `PortCounters`.
pub const PORT_COUNTERS: u16 = 0x12;
/// `PortCountersExtended`.
pub const PORT_COUNTERS_EXTENDED: u16 = 0x1d;
/// `capability_mask` of `ClassPortInfo`: all counters of `PortCountersExtended`.
pub const EXTENDED_WIDTH: u16 = 1 << 9;

hw_layout! {
    /// `PortCounters`. Counters stay at their largest value; data are counted in units of four octets.
    pub struct PortCounters: 44 {
        0x00 [23:16] port_select: u8,
        0x00 [15: 0] counter_select: u16,
        0x04 [31:16] symbol_errors: u16,
        0x04 [15: 8] link_error_recovery: u8,
        0x04 [ 7: 0] link_downed: u8,
        0x08 [31:16] rcv_errors: u16,
        0x08 [15: 0] rcv_remote_physical_errors: u16,
        0x0c [31:16] rcv_switch_relay_errors: u16,
        0x0c [15: 0] xmit_discards: u16,
        0x10 [31:24] xmit_constraint_errors: u8,
        0x10 [23:16] rcv_constraint_errors: u8,
        0x10 [15: 8] counter_select2: u8,
        0x10 [ 7: 4] local_link_integrity_errors: u8,
        0x10 [ 3: 0] excessive_buffer_overruns: u8,
        0x14 [15: 0] vl15_dropped: u16,
        0x18 [31: 0] xmit_data: u32,
        0x1c [31: 0] rcv_data: u32,
        0x20 [31: 0] xmit_pkts: u32,
        0x24 [31: 0] rcv_pkts: u32,
        0x28 [31: 0] xmit_wait: u32,
    }

    /// `PortCountersExtended`.
    pub struct PortCountersExtended: 72 {
        0x00 [23:16] port_select: u8,
        0x00 [15: 0] counter_select: u16,
        0x08 [63: 0] xmit_data: u64,
        0x10 [63: 0] rcv_data: u64,
        0x18 [63: 0] xmit_pkts: u64,
        0x20 [63: 0] rcv_pkts: u64,
        0x28 [63: 0] unicast_xmit_pkts: u64,
        0x30 [63: 0] unicast_rcv_pkts: u64,
        0x38 [63: 0] multicast_xmit_pkts: u64,
        0x40 [63: 0] multicast_rcv_pkts: u64,
    }
}
