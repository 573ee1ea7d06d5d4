//! Management datagrams (IBTA ch. 12 to 16): the common header, subnet management packets, and in their own files the
//! attributes of subnet management, performance management and subnet administration, and communication management.
use crate::hw_layout;

mod address;
pub mod cm;
pub mod pma;
pub mod sa;
pub mod smp;

pub use address::{Gid, MadAddress};

/// Bytes of a MAD (IBTA 13.4.2).
pub const MAD_SIZE: usize = 256;
/// A whole management datagram.
pub type Mad = [u8; MAD_SIZE];
/// Well-known Q_Key of QP1 (IBTA 10.2.5).
pub const QP1_QKEY: u32 = 0x8001_0000;
/// Base version of every MAD.
pub const BASE_VERSION: u8 = 1;

hw_layout! {
    /// Management class (IBTA 13.4.4).
    pub enum MgmtClass: u8, 8 bits {
        SubnLid = 0x01,
        SubnAdm = 0x03,
        Perf = 0x04,
        ComMgt = 0x07,
        SubnDirected = 0x81,
    }

    /// The method that a MAD asks for (IBTA 13.4.5, 15.2.2).
    pub enum Method: u8, 8 bits {
        Get = 0x01,
        Set = 0x02,
        Send = 0x03,
        Trap = 0x05,
        TrapRepress = 0x07,
        GetTable = 0x12,
        Delete = 0x15,
        GetResp = 0x81,
        ReportResp = 0x86,
        GetTableResp = 0x92,
        DeleteResp = 0x95,
    }
}

impl Method {
    /// The method of an answer.
    pub fn answer(self) -> Option<Self> {
        Some(match self {
            Self::Get | Self::Set => Self::GetResp,
            Self::GetTable => Self::GetTableResp,
            Self::Delete => Self::DeleteResp,
            _ => return None,
        })
    }
}

/// Status common to all classes (IBTA 13.4.7).
pub mod status {
    /// Base or class version not supported.
    pub const BAD_VERSION: u16 = 1 << 2;
    /// Method not supported.
    pub const BAD_METHOD: u16 = 2 << 2;
    /// Attribute not supported with this method.
    pub const BAD_ATTRIBUTE: u16 = 3 << 2;
    /// A field of the attribute or its modifier has no such value.
    pub const BAD_FIELD: u16 = 7 << 2;
    /// Direction bit of a directed-route SMP: it is on its way back (IBTA 14.2.1.2).
    pub const DIRECTION: u16 = 1 << 15;
}

hw_layout! {
    /// Common MAD header.
    pub struct MadHeader: 24 {
        0x00 [31:24] base_version: u8,
        0x00 [23:16] mgmt_class: MgmtClass,
        0x00 [15: 8] class_version: u8,
        0x00 [ 7: 0] method: Method,
        0x04 [31:16] status: u16,
        /// Directed route: hop pointer.
        0x04 [15: 8] hop_pointer: u8,
        /// Directed route: hop count.
        0x04 [ 7: 0] hop_count: u8,
        0x08 [63: 0] transaction_id: u64,
        0x10 [31:16] attribute_id: u16,
        0x14 [31: 0] attribute_modifier: u32,
    }

    /// Subnet management packet, LID-routed or directed (IBTA 14.2.1).
    pub struct Smp: 256 {
        0x00         header: MadHeader,
        0x18 [63: 0] m_key: u64,
        /// Directed route: LIDs at both ends of the directed part.
        0x20 [31:16] dr_slid: u16,
        0x20 [15: 0] dr_dlid: u16,
        0x40         data: [u8; 64],
        /// Directed route: ports to leave by; hop 1 is entry 1.
        0x80         initial_path: [u8; 64],
        /// Directed route: ports arrived by.
        0xc0         return_path: [u8; 64],
    }

    /// `ClassPortInfo`: what a class's agent can do, and where it is (IBTA 13.4.8.1).
    pub struct ClassPortInfo: 72 {
        0x00 [31:24] base_version: u8,
        0x00 [23:16] class_version: u8,
        0x00 [15: 0] capability_mask: u16,
        0x04 [31: 5] capability_mask2: u32,
        /// Longest time to an answer: 4.096 us x 2^n.
        0x04 [ 4: 0] resp_time_value: u8,
        0x08         redirect_gid: [u8; 16],
        0x1c [31:16] redirect_lid: u16,
        0x1c [15: 0] redirect_pkey: u16,
        0x20 [23: 0] redirect_qp: u32,
        0x24 [31: 0] redirect_qkey: u32,
        0x28         trap_gid: [u8; 16],
        0x3c [31:16] trap_lid: u16,
        0x3c [15: 0] trap_pkey: u16,
        0x40 [23: 0] trap_qp: u32,
        0x44 [31: 0] trap_qkey: u32,
    }
}
