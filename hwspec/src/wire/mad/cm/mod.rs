//! Communication management (IBTA ch. 12): the MADs by which two parties agree on a connection, or ask for a datagram
//! service. Offsets are those of the whole MAD; the tables of IBTA 12.6 to 12.11 count from byte 24.
use super::{BASE_VERSION, MadHeader, Method, MgmtClass};
use crate::hw_layout;

mod ip;
mod reason;

pub use ip::{CMA_HEADER_SIZE, CmaHeader, PortSpace, port_of, service_id};
pub use reason::{ApStatus, RejectReason, SidrStatus};

/// Class version of communication management (IBTA 12.6).
pub const CLASS_VERSION: u8 = 2;

hw_layout! {
    /// Attribute ids: which message it is (IBTA table 97).
    pub enum CmAttribute: u16, 16 bits {
        ClassPortInfo = 0x01,
        Req = 0x10,
        Mra = 0x11,
        Rej = 0x12,
        Rep = 0x13,
        Rtu = 0x14,
        Dreq = 0x15,
        Drep = 0x16,
        SidrReq = 0x17,
        SidrRep = 0x18,
        Lap = 0x19,
        Apr = 0x1a,
    }

    /// Which message an MRA or a REJ is about (IBTA 12.6.6, 12.6.7).
    pub enum Concerning: u8, 2 bits {
        Req = 0,
        Rep = 1,
        /// In a REJ: no particular one. In an MRA: a LAP.
        Unspecified = 2,
    }

    /// `transport_service` of a REQ (IBTA 12.7.10).
    pub enum TransportService: u8, 2 bits {
        Rc = 0,
        Uc = 1,
        Rd = 2,
        /// Which one says `extended_transport` (annex A14).
        Extended = 3,
    }
}

/// `extended_transport` of XRC (annex A14.8).
pub const EXTENDED_XRC: u8 = 1;

/// The common header of a message.
pub fn header(attribute: CmAttribute, transaction_id: u64, modifier: u32) -> MadHeader {
    let mut header = MadHeader::zeroed();
    header
        .set()
        .base_version(BASE_VERSION)
        .mgmt_class(MgmtClass::ComMgt)
        .class_version(CLASS_VERSION)
        .method(Method::Send)
        .transaction_id(transaction_id)
        .attribute_id(attribute.raw())
        .attribute_modifier(modifier);
    header
}

hw_layout! {
    /// One of the two paths of a REQ (IBTA 12.6.5). Local is the side that sends the REQ.
    pub struct ReqPath: 44 {
        0x00 [31:16] local_lid: u16,
        0x00 [15: 0] remote_lid: u16,
        0x04         local_gid: [u8; 16],
        0x14         remote_gid: [u8; 16],
        0x24 [31:12] flow_label: u32,
        0x24 [ 5: 0] packet_rate: u8,
        0x28 [31:24] traffic_class: u8,
        0x28 [23:16] hop_limit: u8,
        0x28 [15:12] sl: u8,
        0x28 [11:11] subnet_local: bool,
        /// 4.096 us x 2^n.
        0x28 [ 7: 3] local_ack_timeout: u8,
    }
}

/// Declares messages in the rows of [`hw_layout!`]. All begin with the common header; those between two parties that know each other go on
/// with the communication ids of both.
macro_rules! messages { ($(
    $(#[$m:meta])* pub struct $Message:ident $(by $local:ident $remote:ident)? { $($row:tt)* }
)*) => { hw_layout! { $(
    $(#[$m])*
    pub struct $Message: 256 {
        0x00 header: MadHeader,
        $( 0x18 [31: 0] $local: u32,
        0x1c [31: 0] $remote: u32, )?
        $($row)*
    }
)* } } }

messages! {
    /// REQ: request for communication (IBTA 12.6.5).
    pub struct Req {
        0x18 [31: 0] local_comm_id: u32,
        0x1c [23: 0] vendor_id: u32,
        0x20 [63: 0] service_id: u64,
        0x28 [63: 0] local_ca_guid: u64,
        0x34 [31: 0] local_qkey: u32,
        0x38 [31: 8] local_qpn: u32,
        0x38 [ 7: 0] responder_resources: u8,
        0x3c [31: 8] local_eecn: u32,
        0x3c [ 7: 0] initiator_depth: u8,
        0x40 [31: 8] remote_eecn: u32,
        /// 4.096 us x 2^n, as all timeouts here.
        0x40 [ 7: 3] remote_cm_response_timeout: u8,
        0x40 [ 2: 1] transport_service: TransportService,
        0x40 [ 0: 0] end_to_end_flow_control: bool,
        0x44 [31: 8] starting_psn: u32,
        0x44 [ 7: 3] local_cm_response_timeout: u8,
        0x44 [ 2: 0] retry_count: u8,
        0x48 [31:16] pkey: u16,
        /// 1 to 5: 256 to 4096 bytes.
        0x48 [15:12] path_mtu: u8,
        0x48 [11:11] rdc_exists: bool,
        0x48 [10: 8] rnr_retry_count: u8,
        0x48 [ 7: 4] max_cm_retries: u8,
        0x48 [ 3: 3] srq: bool,
        0x48 [ 2: 0] extended_transport: u8,
        0x4c         primary: ReqPath,
        0x78         alternate: ReqPath,
        0xa4         private_data: [u8; 92],
    }

    /// MRA: message receipt acknowledgment (IBTA 12.6.6).
    pub struct Mra by local_comm_id remote_comm_id {
        0x20 [31:30] message: Concerning,
        0x20 [23:19] service_timeout: u8,
        0x22         private_data: [u8; 222],
    }

    /// REJ: reject (IBTA 12.6.7).
    pub struct Rej by local_comm_id remote_comm_id {
        0x20 [31:30] message: Concerning,
        /// Bytes of `info` that mean something.
        0x20 [23:17] info_length: u8,
        0x20 [15: 0] reason: RejectReason,
        /// Additional reject information.
        0x24         info: [u8; 72],
        0x6c         private_data: [u8; 148],
    }

    /// REP: reply to request for communication (IBTA 12.6.8).
    pub struct Rep by local_comm_id remote_comm_id {
        0x20 [31: 0] local_qkey: u32,
        0x24 [31: 8] local_qpn: u32,
        0x24 [ 7: 0] vendor_id_high: u8,
        /// The QP number of an XRC target (annex A14.8).
        0x28 [31: 8] local_eecn: u32,
        0x28 [ 7: 0] vendor_id_middle: u8,
        0x2c [31: 8] starting_psn: u32,
        0x2c [ 7: 0] vendor_id_low: u8,
        0x30 [31:24] responder_resources: u8,
        0x30 [23:16] initiator_depth: u8,
        0x30 [15:11] target_ack_delay: u8,
        /// 1: not supported, 2: rejected.
        0x30 [10: 9] failover_accepted: u8,
        0x30 [ 8: 8] end_to_end_flow_control: bool,
        0x30 [ 7: 5] rnr_retry_count: u8,
        0x30 [ 4: 4] srq: bool,
        0x34 [63: 0] local_ca_guid: u64,
        0x3c         private_data: [u8; 196],
    }

    /// RTU: ready to use (IBTA 12.6.9).
    pub struct Rtu by local_comm_id remote_comm_id {
        0x20         private_data: [u8; 224],
    }

    /// DREQ: request for communication release (IBTA 12.6.10).
    pub struct Dreq by local_comm_id remote_comm_id {
        0x20 [31: 8] remote_qpn: u32,
        0x24         private_data: [u8; 220],
    }

    /// DREP: reply to request for communication release (IBTA 12.6.11).
    pub struct Drep by local_comm_id remote_comm_id {
        0x20         private_data: [u8; 224],
    }

    /// LAP: load alternate path (IBTA 12.8.1), as far as a refusal needs it.
    pub struct Lap by local_comm_id remote_comm_id {
        0x24 [31: 8] remote_qpn: u32,
        0x24 [ 7: 3] remote_cm_response_timeout: u8,
        0x2c [31:16] alternate_local_lid: u16,
        0x2c [15: 0] alternate_remote_lid: u16,
        0x30         alternate_local_gid: [u8; 16],
        0x40         alternate_remote_gid: [u8; 16],
        0x50 [31:12] alternate_flow_label: u32,
        0x50 [ 7: 0] alternate_traffic_class: u8,
        0x54 [31:24] alternate_hop_limit: u8,
        0x54 [21:16] alternate_packet_rate: u8,
        0x54 [15:12] alternate_sl: u8,
        0x54 [11:11] alternate_subnet_local: bool,
        0x54 [ 7: 3] alternate_local_ack_timeout: u8,
        0x58         private_data: [u8; 168],
    }

    /// APR: alternate path response (IBTA 12.8.2).
    pub struct Apr by local_comm_id remote_comm_id {
        0x20 [31:24] info_length: u8,
        0x20 [23:16] status: ApStatus,
        0x24         info: [u8; 72],
        0x6c         private_data: [u8; 148],
    }

    /// SIDR_REQ: service id resolution request (IBTA 12.11.1).
    pub struct SidrReq {
        0x18 [31: 0] request_id: u32,
        0x1c [31:16] pkey: u16,
        0x20 [63: 0] service_id: u64,
        0x28         private_data: [u8; 216],
    }

    /// SIDR_REP: service id resolution response (IBTA 12.11.2).
    pub struct SidrRep {
        0x18 [31: 0] request_id: u32,
        0x1c [31:24] status: SidrStatus,
        0x1c [23:16] info_length: u8,
        /// Upper 16 bits of the vendor id.
        0x1c [15: 0] vendor_id_high: u16,
        0x20 [31: 8] qpn: u32,
        0x20 [ 7: 0] vendor_id_low: u8,
        0x24 [63: 0] service_id: u64,
        0x2c [31: 0] qkey: u32,
        0x30         info: [u8; 72],
        0x78         private_data: [u8; 136],
    }
}
