//! Completion queue elements.
//!
//! A CQE is ready for software when its `owner` bit equals the wrap parity of the consumer index
//! (`ci >> log_cq_size & 1`) and its opcode is not [`CqeOpcode::Invalid`]; the device writes the last byte last. In a
//! CQ with 128-byte entries the CQE is the second half, and the first may hold inline data or a GRH.

use crate::handle::{Qpn, Srqn};
use crate::hw_layout;

/// Offset of the byte with opcode, format, solicited and owner bits; written last.
pub const OP_OWN: usize = 0x3f;
/// Bytes of received data in the CQE itself in the 32-byte inline format.
pub const INLINE_32: usize = 32;
/// Bytes of received data in the first half of a 128-byte CQE in the 64-byte inline format.
pub const INLINE_64: usize = 64;

hw_layout! {
    /// The event reported by a CQE (`cqe.opcode`).
    pub enum CqeOpcode: u8, 4 bits {
        /// A send WQE has completed.
        Req = 0,
        RespWrImm = 1,
        RespSend = 2,
        RespSendImm = 3,
        RespSendInv = 4,
        ResizeCq = 5,
        /// A receive WQE was consumed without a packet (tag matching).
        NoPacket = 6,
        SigErr = 12,
        ReqErr = 13,
        RespErr = 14,
        /// Never written by the device: marks an unused slot.
        Invalid = 15,
    }

    /// Location of the received data (`cqe.cqe_format`).
    pub enum CqeFormat: u8, 2 bits {
        /// In the scatter list.
        NoInline = 0,
        /// In the first 32 bytes of the CQE.
        Inline32 = 1,
        /// In the 64 bytes before the CQE.
        Inline64 = 2,
        /// The CQE is an array of compressed CQEs.
        Compressed = 3,
    }

    /// Syndrome of an error CQE (`cqe.syndrome`).
    pub enum CqeSyndrome: u8, 8 bits {
        LocalLengthErr = 0x01,
        LocalQpOpErr = 0x02,
        LocalProtErr = 0x04,
        WrFlushErr = 0x05,
        MwBindErr = 0x06,
        BadRespErr = 0x10,
        LocalAccessErr = 0x11,
        RemoteInvalReqErr = 0x12,
        RemoteAccessErr = 0x13,
        RemoteOpErr = 0x14,
        TransportRetryExcErr = 0x15,
        RnrRetryExcErr = 0x16,
        RemoteAbortedErr = 0x22,
    }
}

/// `vendor_err_synd` values, as measured on ConnectX-5.
pub mod vendor_err {
    /// READ data scattered into an MR without local write access.
    pub const READ_SCATTER: u8 = 0x33;
    /// Invalid lkey.
    pub const LKEY: u8 = 0x52;
    /// SGE longer than its MR.
    pub const SGE_LENGTH: u8 = 0x53;
    /// Transport retries exceeded.
    pub const RETRY: u8 = 0x81;
    /// RNR retries exceeded.
    pub const RNR_RETRY: u8 = 0x87;
    /// Invalid rkey or bounds at the peer.
    pub const RKEY: u8 = 0x88;
    /// The peer's QP does not allow the operation.
    pub const REMOTE_QP_ACCESS: u8 = 0x8a;
    /// Flushed: the QP was in the error state.
    pub const FLUSH: u8 = 0xf5;
}

hw_layout! {
    /// Network header of a received RoCE packet (`cqe.rx_roce_l3_type`).
    pub enum RoceL3Type: u8, 2 bits { Grh = 0, Ipv6 = 1, Ipv4 = 2, }

    /// Completion queue element without an error.
    pub struct Cqe64: 0x40 {
        0x00 [15: 0] wqe_id: u16,
        0x0c [31: 0] rx_hash_result: u32,
        0x10 [31:24] rx_hash_type: u8,
        /// Path bits of the destination LID.
        0x10 [22:16] ml_path: u8,
        0x14 [31:16] check_sum: u16,
        0x14 [15: 0] slid: u16,
        /// Nonzero if a GRH was received (40 bytes before the UD payload).
        0x18 [29:28] grh: u8,
        /// Service level on InfiniBand; on RoCE, bits 1:0 are the [`RoceL3Type`].
        0x18 [27:24] sl: u8,
        /// Source QP of a UD packet.
        0x18 [23: 0] rqpn: Qpn,
        0x1c [31:24] hds_ip_ext: u8,
        0x1c [22:20] l4_hdr_type: u8,
        0x1c [19:18] l3_hdr_type: u8,
        0x1c [17:17] ip_frag: bool,
        /// A VLAN tag was stripped; it is in `vlan_info`.
        0x1c [16:16] cv: bool,
        0x1c [15: 0] vlan_info: u16,
        0x20 [31:24] lro_num_seg: u8,
        /// SRQ number, or the user index of QP or SRQ (CQE version 1).
        0x20 [23: 0] srqn_uidx: u32,
        /// Immediate data, invalidated rkey, or P_Key index.
        0x24 [31: 0] imm_inval_pkey: u32,
        0x2c [31: 0] byte_cnt: u32,
        0x30 [63: 0] timestamp: u64,
        /// Opcode of the send WQE; drop count in a responder CQE.
        0x38 [31:24] sop: u8,
        0x38 [23: 0] qpn: Qpn,
        /// Index of the completed WQE: basic block of a send, slot of a receive.
        0x3c [31:16] wqe_counter: u16,
        0x3c [15: 8] signature: u8,
        0x3c [ 7: 4] opcode: CqeOpcode,
        0x3c [ 3: 2] cqe_format: CqeFormat,
        /// The sender requested a solicited event.
        0x3c [ 1: 1] se: bool,
        0x3c [ 0: 0] owner: bool,
    }
}

impl Cqe64 {
    /// The network header of a received RoCE packet.
    #[inline]
    pub fn roce_l3_type(&self) -> RoceL3Type {
        RoceL3Type::from_raw(self.sl() & 3)
    }
    /// The same bytes, read as an error CQE.
    #[inline]
    pub fn as_error(&self) -> CqeError {
        CqeError::from_bytes(*self.as_bytes())
    }
}

hw_layout! {
    /// Completion queue element with an error: opcode [`CqeOpcode::ReqErr`] or [`CqeOpcode::RespErr`].
    pub struct CqeError: 0x40 {
        /// SRQ number, or the user index of QP or SRQ (CQE version 1).
        0x20 [23: 0] srqn: Srqn,
        0x34 [15: 8] vendor_err_synd: u8,
        0x34 [ 7: 0] syndrome: CqeSyndrome,
        0x38 [31:24] s_wqe_opcode: u8,
        0x38 [23: 0] qpn: Qpn,
        0x3c [31:16] wqe_counter: u16,
        0x3c [15: 8] signature: u8,
        0x3c [ 7: 4] opcode: CqeOpcode,
        0x3c [ 3: 2] cqe_format: CqeFormat,
        0x3c [ 1: 1] se: bool,
        0x3c [ 0: 0] owner: bool,
    }
}

/// Fields in the CQE of a received Ethernet frame.
pub mod eth {
    /// `hds_ip_ext`: layer 2 is OK.
    pub const L2_OK: u8 = 1 << 0;
    /// `hds_ip_ext`: the IP header checksum is OK, or the header has none.
    pub const L3_OK: u8 = 1 << 1;
    /// `hds_ip_ext`: the TCP or UDP checksum is OK.
    pub const L4_OK: u8 = 1 << 2;
    /// `l3_hdr_type`.
    pub const L3_IPV6: u8 = 1;
    /// `l3_hdr_type`.
    pub const L3_IPV4: u8 = 2;
    /// `l4_hdr_type`: TCP without ACK.
    pub const L4_TCP: u8 = 1;
    /// `l4_hdr_type`.
    pub const L4_UDP: u8 = 2;
    /// `l4_hdr_type`: TCP with ACK and no data.
    pub const L4_TCP_ACK: u8 = 3;
    /// `l4_hdr_type`: TCP with ACK and data.
    pub const L4_TCP_ACK_DATA: u8 = 4;
    /// `rx_hash_type`: hashed fields of IP, bits 3:2, and of layer 4, bits 7:6. This one: IPv4.
    pub const HASH_IPV4: u8 = 1 << 2;
    /// `rx_hash_type`: IPv6.
    pub const HASH_IPV6: u8 = 2 << 2;
    /// `rx_hash_type`: TCP.
    pub const HASH_TCP: u8 = 1 << 6;
    /// `rx_hash_type`: UDP.
    pub const HASH_UDP: u8 = 2 << 6;
}
