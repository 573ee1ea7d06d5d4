//! Subnet administration (IBTA 15.2): MAD format and records.
use super::{MadHeader, smp::NodeInfo, smp::PortInfo};
use crate::hw_layout;

/// Class version.
pub const CLASS_VERSION: u8 = 2;
/// Bytes of records in one MAD.
pub const DATA_SIZE: usize = 200;
/// Bytes of the administrator's own header, which RMPP counts as payload and repeats in every segment.
pub const HEADER_SIZE: usize = 20;

hw_layout! {
    /// Attribute ids (IBTA table 202).
    pub enum SaAttribute: u16, 16 bits {
        ClassPortInfo = 0x01,
        NodeRecord = 0x11,
        PortInfoRecord = 0x12,
        SmInfoRecord = 0x18,
        ServiceRecord = 0x31,
        PathRecord = 0x35,
        McMemberRecord = 0x38,
    }
}

/// Status of subnet administration, in the upper byte (IBTA table 203).
pub mod status {
    /// No room for what was asked.
    pub const NO_RESOURCES: u16 = 0x0100;
    /// The request is invalid.
    pub const REQ_INVALID: u16 = 0x0200;
    /// Nothing matches.
    pub const NO_RECORDS: u16 = 0x0300;
    /// More than one record matches a Get.
    pub const TOO_MANY_RECORDS: u16 = 0x0400;
    /// The GID is not one of the requester.
    pub const INVALID_GID: u16 = 0x0500;
    /// Components that are needed are missing.
    pub const INSUFFICIENT_COMPONENTS: u16 = 0x0600;
}

/// RMPP (IBTA 13.6.2.1): version, packet types, flags, reasons for an ABORT.
pub mod rmpp {
    #![allow(missing_docs)]
    pub const VERSION: u8 = 1;
    pub const DATA: u8 = 1;
    pub const ACK: u8 = 2;
    pub const STOP: u8 = 3;
    pub const ABORT: u8 = 4;
    /// `rmpp_resp_time` of packets without a response time.
    pub const NO_RESP_TIME: u8 = 0x1f;
    /// The type is unknown or out of place.
    pub const BAD_TYPE: u8 = 121;
    /// An ACK's window ends before the segment that it acknowledges.
    pub const WINDOW_TOO_SMALL: u8 = 122;
    /// An ACK acknowledges a segment that was not sent.
    pub const SEGMENT_TOO_BIG: u8 = 123;
    /// The receiver did not respond to any retry.
    pub const TOO_MANY_RETRIES: u8 = 126;
    pub const UNSPECIFIED: u8 = 127;
    pub const ACTIVE: u8 = 1;
    pub const FIRST: u8 = 2;
    pub const LAST: u8 = 4;
}

hw_layout! {
    /// A MAD of subnet administration (IBTA 15.2.1.1).
    pub struct SaMad: 256 {
        0x00         header: MadHeader,
        0x18 [31:24] rmpp_version: u8,
        0x18 [23:16] rmpp_type: u8,
        0x18 [15:11] rmpp_resp_time: u8,
        0x18 [10: 8] rmpp_flags: u8,
        0x18 [ 7: 0] rmpp_status: u8,
        /// Number of the segment, from 1.
        0x1c [31: 0] rmpp_segment: u32,
        /// DATA: bytes of SA headers and records, in the first segment those of all segments, in the last segment its own. ACK: the last
        /// segment that may be sent.
        0x20 [31: 0] rmpp_payload_len: u32,
        0x24         sm_key: [u8; 8],
        /// Distance of records, in 8-byte units.
        0x2c [31:16] attribute_offset: u16,
        0x30 [63: 0] component_mask: u64,
        0x38         data: [u8; 200],
    }
}

/// Components of a `PathRecord`, by bit of the mask.
pub mod path {
    #![allow(missing_docs)]
    pub const SERVICE_ID: u64 = 3;
    pub const DGID: u64 = 1 << 2;
    pub const SGID: u64 = 1 << 3;
    pub const DLID: u64 = 1 << 4;
    pub const SLID: u64 = 1 << 5;
    pub const FLOW_LABEL: u64 = 1 << 8;
    pub const HOP_LIMIT: u64 = 1 << 9;
    pub const TRAFFIC_CLASS: u64 = 1 << 10;
    pub const REVERSIBLE: u64 = 1 << 11;
    pub const NUMB_PATH: u64 = 1 << 12;
    pub const PKEY: u64 = 1 << 13;
    pub const QOS_CLASS: u64 = 1 << 14;
    pub const SL: u64 = 1 << 15;
    pub const MTU_SELECTOR: u64 = 1 << 16;
    pub const MTU: u64 = 1 << 17;
    pub const RATE_SELECTOR: u64 = 1 << 18;
    pub const RATE: u64 = 1 << 19;
    pub const LIFE_TIME_SELECTOR: u64 = 1 << 20;
    pub const LIFE_TIME: u64 = 1 << 21;
}

/// Components of an `MCMemberRecord`, by bit of the mask.
pub mod member {
    #![allow(missing_docs)]
    pub const MGID: u64 = 1 << 0;
    pub const PORT_GID: u64 = 1 << 1;
    pub const QKEY: u64 = 1 << 2;
    pub const MLID: u64 = 1 << 3;
    pub const MTU_SELECTOR: u64 = 1 << 4;
    pub const MTU: u64 = 1 << 5;
    pub const TRAFFIC_CLASS: u64 = 1 << 6;
    pub const PKEY: u64 = 1 << 7;
    pub const RATE_SELECTOR: u64 = 1 << 8;
    pub const RATE: u64 = 1 << 9;
    pub const LIFE_TIME_SELECTOR: u64 = 1 << 10;
    pub const LIFE_TIME: u64 = 1 << 11;
    pub const SL: u64 = 1 << 12;
    pub const FLOW_LABEL: u64 = 1 << 13;
    pub const HOP_LIMIT: u64 = 1 << 14;
    pub const SCOPE: u64 = 1 << 15;
    pub const JOIN_STATE: u64 = 1 << 16;
}

/// `capability_mask2` of the administrator's `ClassPortInfo`: groups can be joined to send only, as a full member.
pub const SEND_ONLY_FULL_MEMBER: u32 = 1 << 1;

/// Bits of `join_state` (IBTA 15.2.5.17).
pub mod join_state {
    #![allow(missing_docs)]
    pub const FULL: u8 = 1;
    pub const NON_MEMBER: u8 = 2;
    pub const SEND_ONLY_NON_MEMBER: u8 = 4;
    pub const SEND_ONLY_FULL: u8 = 8;
}

hw_layout! {
    /// How a component limits the answer (IBTA 15.2.5.16).
    pub enum Selector: u8, 2 bits { Greater = 0, Less = 1, Exactly = 2, Largest = 3, }

    /// `PathRecord`.
    pub struct PathRecord: 64 {
        0x00 [63: 0] service_id: u64,
        0x08         dgid: [u8; 16],
        0x18         sgid: [u8; 16],
        0x28 [31:16] dlid: u16,
        0x28 [15: 0] slid: u16,
        0x2c [31:31] raw_traffic: bool,
        0x2c [27: 8] flow_label: u32,
        0x2c [ 7: 0] hop_limit: u8,
        0x30 [31:24] traffic_class: u8,
        0x30 [23:23] reversible: bool,
        0x30 [22:16] numb_path: u8,
        0x30 [15: 0] pkey: u16,
        0x34 [31:20] qos_class: u16,
        0x34 [19:16] sl: u8,
        0x34 [15:14] mtu_selector: Selector,
        0x34 [13: 8] mtu: u8,
        0x34 [ 7: 6] rate_selector: Selector,
        0x34 [ 5: 0] rate: u8,
        0x38 [31:30] life_time_selector: Selector,
        /// 4.096 us x 2^n.
        0x38 [29:24] life_time: u8,
        0x38 [23:16] preference: u8,
    }

    /// `MCMemberRecord`.
    pub struct McMemberRecord: 52 {
        0x00         mgid: [u8; 16],
        0x10         port_gid: [u8; 16],
        0x20 [31: 0] qkey: u32,
        0x24 [31:16] mlid: u16,
        0x24 [15:14] mtu_selector: Selector,
        0x24 [13: 8] mtu: u8,
        0x24 [ 7: 0] traffic_class: u8,
        0x28 [31:16] pkey: u16,
        0x28 [15:14] rate_selector: Selector,
        0x28 [13: 8] rate: u8,
        0x28 [ 7: 6] life_time_selector: Selector,
        0x28 [ 5: 0] life_time: u8,
        0x2c [31:28] sl: u8,
        0x2c [27: 8] flow_label: u32,
        0x2c [ 7: 0] hop_limit: u8,
        0x30 [31:28] scope: u8,
        0x30 [27:24] join_state: u8,
        0x30 [23:23] proxy_join: bool,
    }

    /// `NodeRecord`.
    pub struct NodeRecord: 108 {
        0x00 [31:16] lid: u16,
        0x04         node_info: NodeInfo,
        0x2c         node_description: [u8; 64],
    }

    /// `PortInfoRecord`.
    pub struct PortInfoRecord: 68 {
        0x00 [31:16] endport_lid: u16,
        0x00 [15: 8] port_num: u8,
        0x04         port_info: PortInfo,
    }
}
