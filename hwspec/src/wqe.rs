//! Work queue elements: the 16-byte segments of send, receive and shared receive WQEs.
//!
//! A send WQE is a control segment, then the segments of its opcode (remote address, atomic, address vector, UMR), then
//! data or inline segments. Its length is counted in `ds` units of 16 bytes, and it occupies whole 64-byte basic
//! blocks. A receive WQE consists of data segments only; a WQE of a shared receive queue begins with a next segment.

use crate::handle::{Qpn, Srqn};
use crate::hw_layout;
use crate::layout::Bits;

/// The mkey context segment of a UMR WQE is a memory key context.
pub use crate::context::mkey::MkeyContext as MkeyContextSeg;

/// Size of a send WQE basic block in bytes, the unit of `wqe_idx` and the send doorbell.
pub const WQE_BB: usize = 64;
/// log2 of [`WQE_BB`].
pub const WQE_BB_SHIFT: u32 = 6;
/// Size of a segment in bytes, the unit of `ds`.
pub const WQE_DS: usize = 16;
/// Segments in one basic block.
pub const DS_PER_BB: usize = WQE_BB / WQE_DS;
/// Maximum length of a send WQE in basic blocks.
pub const MAX_WQE_BBS: usize = 16;
/// Maximum value of `ds` in a control segment.
pub const MAX_DS: usize = 63;
/// Maximum length of the WQE of an RDMA READ in bytes, which limits its scatter entries.
pub const MAX_READ_WQE: usize = 512;
/// Maximum number of scatter entries of an RDMA READ: those that fit into a 512-byte WQE after control and remote
/// address.
pub const MAX_SGE_READ: usize = (MAX_READ_WQE - 2 * WQE_DS) / WQE_DS;
/// Bit in the first word of a segment that contains its data inline.
pub const INLINE_BIT: u32 = 0x8000_0000;
/// The lkey that ends the scatter list of a receive WQE before its last slot: the reserved terminator that every
/// function recognizes if it has no mkey of its own for that purpose (`terminate_scatter_list_mkey`).
pub const INVALID_LKEY: u32 = 0x100;
/// Marks an address vector that extends to all 48 bytes, with addresses for RoCE or a GRH.
pub const EXTENDED_UD_AV: u32 = 0x8000_0000;
/// A `byte_count` of zero in a data segment means this many bytes.
pub const ZERO_BYTE_COUNT: u32 = 0x8000_0000;

hw_layout! {
    /// Send WQE opcode (`ctrl.opcode`).
    pub enum WqeOpcode: u8, 8 bits {
        Nop = 0x00,
        SendInval = 0x01,
        RdmaWrite = 0x08,
        RdmaWriteImm = 0x09,
        Send = 0x0a,
        SendImm = 0x0b,
        /// Large send (TSO).
        Lso = 0x0e,
        RdmaRead = 0x10,
        AtomicCs = 0x11,
        AtomicFa = 0x12,
        AtomicMaskedCs = 0x14,
        AtomicMaskedFa = 0x15,
        BindMw = 0x18,
        LocalInval = 0x1b,
        ConfigCmd = 0x1f,
        SetPsv = 0x20,
        GetPsv = 0x21,
        CheckPsv = 0x22,
        Dump = 0x23,
        Umr = 0x25,
        EnhancedMpsw = 0x29,
        AccessAso = 0x2d,
    }
}

impl WqeOpcode {
    /// True if a remote address segment follows the control segment.
    #[inline]
    pub fn has_raddr(self) -> bool {
        matches!(self, Self::RdmaWrite | Self::RdmaWriteImm | Self::RdmaRead) || self.is_atomic()
    }
    /// True if an atomic segment follows the remote address segment.
    #[inline]
    pub fn is_atomic(self) -> bool {
        matches!(self, Self::AtomicCs | Self::AtomicFa | Self::AtomicMaskedCs | Self::AtomicMaskedFa)
    }
    /// True if `ctrl.imm` holds immediate data for the peer.
    #[inline]
    pub fn has_imm(self) -> bool {
        matches!(self, Self::RdmaWriteImm | Self::SendImm)
    }
}

hw_layout! {
    /// The operations that must complete before a WQE starts (`ctrl.fm`).
    pub enum FenceMode: u8, 3 bits {
        None = 0,
        /// Earlier local operations (UMR, invalidate).
        InitiatorSmall = 1,
        /// Earlier RDMA READs and atomics.
        Fence = 2,
        /// All earlier operations.
        StrongOrdering = 3,
        /// Both the small and the full fence.
        SmallAndFence = 4,
    }

    /// Condition for a WQE to generate a CQE (`ctrl.ce`).
    pub enum CqeMode: u8, 2 bits {
        OnError = 0,
        OnFirstError = 1,
        Always = 2,
        /// A CQE, and an event even if the CQ is not armed.
        AlwaysAndEqe = 3,
    }

    /// Control segment: the first segment of every send WQE. The doorbell write consists of its first 8 bytes.
    pub struct CtrlSeg: 0x10 {
        0x00 [31:24] opmod: u8,
        /// Index of the first basic block, modulo 2^16.
        0x00 [23: 8] wqe_idx: u16,
        0x00 [ 7: 0] opcode: WqeOpcode,
        0x04 [31: 8] qpn: Qpn,
        /// Length of the WQE in 16-byte units, including this segment.
        0x04 [ 5: 0] ds: u8,
        0x08 [31:24] signature: u8,
        0x08 [ 7: 5] fm: FenceMode,
        0x08 [ 3: 2] ce: CqeMode,
        /// Solicited event at the receiver.
        0x08 [ 1: 1] se: bool,
        /// Immediate data, rkey to invalidate, or the mkey that a UMR modifies.
        0x0c [31: 0] imm: u32,
    }

    /// Remote address segment of RDMA and atomic WQEs.
    pub struct RaddrSeg: 0x10 {
        0x00 [63: 0] raddr: u64,
        0x08 [31: 0] rkey: u32,
    }

    /// Data segment: one scatter or gather entry.
    pub struct DataSeg: 0x10 {
        /// Set in an inline segment, which has the layout of [`InlineSeg`].
        0x00 [31:31] inline_data: bool,
        /// Length in bytes; 0 means 2^31.
        0x00 [30: 0] byte_count: u32,
        0x04 [31: 0] lkey: u32,
        0x08 [63: 0] addr: u64,
    }

    /// Header of an inline segment; the data follows immediately, and both together are padded to 16 bytes.
    pub struct InlineSeg: 0x4 {
        0x00 [31:31] inline_data: bool,
        0x00 [ 9: 0] byte_count: u16,
    }
}

impl InlineSeg {
    /// The header for `len` bytes of data (at most 0x3ff).
    #[inline]
    pub fn new(len: u16) -> Self {
        let mut seg = Self::zeroed();
        seg.set().inline_data(true).byte_count(len & 0x3ff);
        seg
    }
    /// Bytes occupied by the header and `len` bytes of data: whole 16-byte units.
    #[inline]
    pub const fn span(len: usize) -> usize {
        (Self::SIZE + len).next_multiple_of(WQE_DS)
    }
}

hw_layout! {
    /// Atomic segment: operands of an 8-byte compare-and-swap or fetch-and-add.
    pub struct AtomicSeg: 0x10 {
        /// The value to swap in, or to add.
        0x00 [63: 0] swap_add: u64,
        0x08 [63: 0] compare: u64,
    }

    /// XRC segment: the shared receive queue at the target.
    pub struct XrcSeg: 0x10 {
        0x00 [23: 0] xrc_srqn: Srqn,
    }

    /// UD address vector (`ud_adrs_vector`). The first 16 bytes are the base; the rest is valid if `ext` is set.
    pub struct AvSeg: 0x30 {
        /// Upper half of `dc_key`. With its top bit set, the QP's own Q_Key is used (IBTA 10.2.5).
        0x00 [31: 0] qkey: u32,
        0x08 [31:31] ext: bool,
        0x08 [23: 0] destination_qp_dct: Qpn,
        0x0c [31:28] static_rate: u8,
        0x0c [27:24] sl_eth_prio: u8,
        0x0c [23:23] fl: bool,
        0x0c [22:16] mlid: u8,
        /// Destination LID on InfiniBand, UDP source port on RoCEv2.
        0x0c [15: 0] rlid_udp_sport: u16,
        0x14 [31: 0] rmac_47_16: u32,
        0x18 [31:16] rmac_15_0: u16,
        0x18 [15: 8] tclass: u8,
        0x18 [ 7: 0] hop_limit: u8,
        0x1c [30:30] grh: bool,
        0x1c [27:20] src_addr_index: u8,
        0x1c [19: 0] flow_label: u32,
        0x20         rgid_rip: [u8; 0x10],
    }
}

impl AvSeg {
    /// Bytes of the vector without its extension.
    pub const BASE_SIZE: usize = 16;

    /// The destination MAC.
    #[inline]
    pub fn rmac(&self) -> [u8; 6] {
        crate::layout::prefix(&self.as_bytes()[0x14..])
    }
    /// Writes the destination MAC.
    #[inline]
    pub fn set_rmac(&mut self, mac: [u8; 6]) {
        let [a, b, c, d, e, f] = mac;
        self.set().rmac_47_16(u32::from_be_bytes([a, b, c, d])).rmac_15_0(u16::from_be_bytes([e, f]));
    }
}

hw_layout! {
    /// The mkey state that makes a UMR fail (`umr.check_free`).
    pub enum UmrCheck: u8, 2 bits { None = 0, NotFree = 1, Free = 2, }
}

bitflags::bitflags! {
    /// The mkey fields changed by a UMR (`umr.mkey_mask`).
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
    pub struct MkeyMask: u64 {
        /// `len`
        const LEN = 1 << 0;
        /// `log_page_size`
        const PAGE_SIZE = 1 << 1;
        /// `start_addr`
        const START_ADDR = 1 << 6;
        /// `pd`
        const PD = 1 << 7;
        /// `en_rinval`
        const EN_RINVAL = 1 << 8;
        /// Signature errors.
        const EN_SIGERR = 1 << 9;
        /// `bsf_en`
        const BSF_EN = 1 << 12;
        /// `mkey_7_0`
        const KEY = 1 << 13;
        /// `qpn`
        const QPN = 1 << 14;
        /// `lr`
        const LR = 1 << 17;
        /// `lw`
        const LW = 1 << 18;
        /// `rr`
        const RR = 1 << 19;
        /// `rw`
        const RW = 1 << 20;
        /// `a`
        const A = 1 << 21;
        /// `small_fence_on_rdma_read_response`
        const SMALL_FENCE = 1 << 23;
        /// `relaxed_ordering_write`
        const RELAXED_ORDERING_WRITE = 1 << 25;
        /// `free`
        const FREE = 1 << 29;
        /// `relaxed_ordering_read`
        const RELAXED_ORDERING_READ = 1 << 47;
    }
}

impl Bits for MkeyMask {
    const WIDTH: usize = 64;
    #[inline(always)]
    fn from_bits(raw: u64) -> Self {
        Self::from_bits_retain(raw)
    }
    #[inline(always)]
    fn into_bits(self) -> u64 {
        self.bits()
    }
}

hw_layout! {
    /// UMR control segment; an mkey context segment and the translation entries follow.
    pub struct UmrCtrlSeg: 0x30 {
        /// The translation entries follow inline; otherwise a data segment points to them.
        0x00 [31:31] inline_data: bool,
        0x00 [30:29] check_free: UmrCheck,
        0x00 [28:28] translation_offset_en: bool,
        0x00 [27:27] check_qpn: bool,
        /// Translation entries, in 16-byte units.
        0x04 [31:16] xlt_octowords: u16,
        /// First entry to change; without `translation_offset_en`, the length of the BSF.
        0x04 [15: 0] xlt_offset: u16,
        0x08 [63: 0] mkey_mask: MkeyMask,
        0x10 [31: 0] xlt_offset_47_16: u32,
    }

    /// KLM: a translation entry of an indirect mkey.
    pub struct KlmSeg: 0x10 {
        0x00 [31: 0] byte_count: u32,
        0x04 [31: 0] mkey: u32,
        0x08 [63: 0] address: u64,
    }

    /// Next segment: the first segment of a WQE in a shared receive queue or linked-list RMP.
    pub struct NextSeg: 0x10 {
        0x00 [15: 0] next_wqe_index: u16,
        0x04 [31:24] signature: u8,
    }

    /// Ethernet segment: the port's offloads for the frame. Its last four bytes are the start of the inline headers, or
    /// the VLAN tag to insert.
    pub struct EthSeg: 0x10 {
        0x00 [31:24] swp_outer_l4_offset: u8,
        0x00 [23:16] swp_outer_l3_offset: u8,
        0x00 [15: 8] swp_inner_l4_offset: u8,
        0x00 [ 7: 0] swp_inner_l3_offset: u8,
        /// Fill in the TCP or UDP checksum.
        0x04 [31:31] l4_csum: bool,
        /// Fill in the IPv4 header checksum.
        0x04 [30:30] l3_csum: bool,
        0x04 [29:29] l4_inner_csum: bool,
        0x04 [28:28] l3_inner_csum: bool,
        0x04 [23:16] swp_flags: u8,
        /// Large send: payload bytes of each segment but the last.
        0x04 [15: 0] mss: u16,
        0x08 [31: 0] flow_table_metadata: u32,
        /// The low half is a VLAN tag to insert after the MACs, not inline headers.
        0x0c [31:31] insert_vlan: bool,
        /// Length of the inline headers in bytes, the first two of them in this segment. With `insert_vlan`, the kind
        /// of tag, read by [`EthSeg::is_svlan`].
        0x0c [25:16] inline_hdr_sz: u16,
        /// Tag control information to insert.
        0x0c [15: 0] vlan_tci: u16,
    }
}

impl EthSeg {
    /// Offset of the inline headers in the segment.
    pub const INLINE_START: usize = 0xe;

    /// True if the tag to insert is a service tag (IEEE 802.1ad).
    pub fn is_svlan(&self) -> bool {
        self.insert_vlan() && self.inline_hdr_sz() & 1 != 0
    }
}
