//! Work requests and work completions.

use super::Ah;

bitflags::bitflags! {
    /// `ibv_send_flags`.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
    pub struct SendFlags: u32 {
        /// Wait for earlier READs and atomics.
        const FENCE = 1;
        /// Report successful completion too (signaled).
        const SIGNALED = 1 << 1;
        /// Raise a solicited event at the peer.
        const SOLICITED = 1 << 2;
        /// Copy the data from the buffers at once; lkeys are not used.
        const INLINE = 1 << 3;
        /// The device computes IPv4 and TCP or UDP checksums (raw packets).
        const IP_CSUM = 1 << 4;
    }
}

impl SendFlags {
    /// Flags supported by all services.
    pub const COMMON: Self = Self::IP_CSUM.complement();
}

bitflags::bitflags! {
    /// `ibv_wc_flags`.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
    pub struct WcFlags: u32 {
        /// The first 40 bytes are a GRH (UD).
        const GRH = 1;
        /// `imm_or_inv` is immediate data.
        const WITH_IMM = 1 << 1;
        /// The device verified IPv4 and TCP or UDP checksums (raw packets).
        const IP_CSUM = 1 << 2;
        /// `imm_or_inv` is the rkey that the peer invalidated.
        const WITH_INV = 1 << 3;
    }
}

/// A scatter/gather element, with the layout of `ibv_sge`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct Sge {
    /// Address within the memory region (its `hca_va`); for inline data, an address in this process.
    pub addr: u64,
    /// Length in bytes. 0 is an empty element.
    pub length: u32,
    /// Local key.
    pub lkey: u32,
}

/// The operation of a send work request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum SendOp {
    Send,
    /// Immediate data: four bytes in network order, as `u32::from_be_bytes` reads them.
    SendImm(u32),
    /// Invalidates the peer's rkey.
    SendInv(u32),
    Write {
        raddr: u64,
        rkey: u32,
    },
    WriteImm {
        raddr: u64,
        rkey: u32,
        imm: u32,
    },
    Read {
        raddr: u64,
        rkey: u32,
    },
    /// Compare and swap, values in host order.
    CmpSwap {
        raddr: u64,
        rkey: u32,
        compare: u64,
        swap: u64,
    },
    FetchAdd {
        raddr: u64,
        rkey: u32,
        add: u64,
    },
    /// Invalidates a local key: that of a type 2 memory window bound on this QP.
    LocalInv(u32),
    /// Binds a memory window; built by [`Mw::binding`](super::Mw::binding).
    BindMw {
        /// The window's key before the bind.
        mw: u32,
        /// Low byte of its new key.
        variant: u8,
        /// Only this QP may use it (type 2).
        tied: bool,
        /// Key of the region.
        lkey: u32,
        /// First byte, as addressed by the region's key.
        addr: u64,
        /// Length in bytes; 0 unbinds the window.
        len: u64,
        /// Access rights of peers.
        access: super::AccessFlags,
    },
}

/// A send work request.
#[derive(Clone, Copy, Debug)]
pub struct SendWr<'a> {
    /// Returned in the completion.
    pub wr_id: u64,
    /// The operation.
    pub op: SendOp,
    /// Local memory.
    pub sge: &'a [Sge],
    /// Options.
    pub flags: SendFlags,
}

/// The destination of a work request, on services other than RC and UC.
#[derive(Clone, Copy, Default)]
pub enum Target<'a> {
    /// None: the queue pair is connected, or sends raw packets.
    #[default]
    Peer,
    /// The destination of a datagram (UD). A `qkey` with its top bit set selects the queue pair's own (IBTA
    /// 10.2.5).
    Datagram {
        /// The path.
        ah: &'a Ah,
        /// The queue pair, or 0xffffff for the members of the group.
        qpn: u32,
        /// Its Q_Key.
        qkey: u32,
    },
    /// The shared receive queue at the target (XRC).
    Srq(u32),
}

/// A receive work request.
#[derive(Clone, Copy, Debug)]
pub struct RecvWr<'a> {
    /// Returned in the completion.
    pub wr_id: u64,
    /// Buffers for the message.
    pub sge: &'a [Sge],
}

/// `ibv_wc_status`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[repr(u32)]
#[allow(missing_docs)]
pub enum WcStatus {
    #[default]
    Success = 0,
    LocLenErr = 1,
    LocQpOpErr = 2,
    LocEecOpErr = 3,
    LocProtErr = 4,
    WrFlushErr = 5,
    MwBindErr = 6,
    BadRespErr = 7,
    LocAccessErr = 8,
    RemInvReqErr = 9,
    RemAccessErr = 10,
    RemOpErr = 11,
    RetryExcErr = 12,
    RnrRetryExcErr = 13,
    RemAbortErr = 16,
    GeneralErr = 21,
}

/// `ibv_wc_opcode`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[repr(u32)]
#[allow(missing_docs)]
pub enum WcOpcode {
    #[default]
    Send = 0,
    RdmaWrite = 1,
    RdmaRead = 2,
    CompSwap = 3,
    FetchAdd = 4,
    BindMw = 5,
    LocalInv = 6,
    Recv = 128,
    RecvRdmaWithImm = 129,
}

/// The destination of a completion from a poll, in the caller's format.
pub trait CompletionSlot {
    /// Writes the completion, overwriting any previous contents.
    fn put(&mut self, completion: Completion);
}

impl CompletionSlot for Completion {
    #[inline(always)]
    fn put(&mut self, completion: Completion) {
        *self = completion;
    }
}

/// A work completion.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Completion {
    /// The id of the work request.
    pub wr_id: u64,
    /// Success, or the reason of the failure.
    pub status: WcStatus,
    /// The operation that completed; only meaningful on success.
    pub opcode: WcOpcode,
    /// The device's own error code.
    pub vendor_err: u32,
    /// Bytes received, read, or 8 for an atomic.
    pub byte_len: u32,
    /// Immediate data (as read by `u32::from_be_bytes`) or the invalidated rkey, depending on `flags`.
    pub imm_or_inv: u32,
    /// Local QP number.
    pub qpn: u32,
    /// Remote QP number (UD).
    pub src_qp: u32,
    /// Flags for the validity of further fields.
    pub flags: WcFlags,
    /// LID of the sender (UD on InfiniBand).
    pub slid: u16,
    /// Service level (UD on InfiniBand).
    pub sl: u8,
    /// Path bits of the destination LID (UD on InfiniBand).
    pub path_bits: u8,
}
