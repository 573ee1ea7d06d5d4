//! UDP header.
use crate::hw_layout;

/// The destination port of RoCEv2.
pub const ROCE_PORT: u16 = 4791;
/// First source port used by RoCEv2 for flow entropy (annex A17).
pub const MIN_SRC_PORT: u16 = 0xc000;

hw_layout! {
    /// UDP header. RoCEv2 sends checksum 0.
    pub struct Udp: 8 {
        0x00 [31:16] src_port: u16,
        0x00 [15: 0] dst_port: u16,
        /// Length of the datagram in bytes, including this header.
        0x04 [31:16] length: u16,
        0x04 [15: 0] checksum: u16,
    }
}
