//! Outstanding requests, at both ends of a connection.

use hwspec::{handle::Psn, wire::BthOpcode};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// log2 of the longest message that a requester sends. At the minimum MTU it takes a quarter of all PSNs, so
/// outstanding PSNs can be compared within half of the PSN space (IBTA 9.3.3.1 would allow twice this length).
pub const LOG_MAX_MESSAGE: u8 = 30;
/// The longest message that a responder accepts (IBTA 9.7.4.1.6).
pub(crate) const MAX_MESSAGE: u32 = 1 << 31;

/// The operation of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
#[allow(missing_docs)]
pub enum Kind {
    Send = 0,
    SendImm = 1,
    SendInvalidate = 2,
    Write = 3,
    WriteImm = 4,
    Read = 5,
    CompareSwap = 6,
    FetchAdd = 7,
}

impl Kind {
    const ALL: [Self; 8] = [
        Self::Send,
        Self::SendImm,
        Self::SendInvalidate,
        Self::Write,
        Self::WriteImm,
        Self::Read,
        Self::CompareSwap,
        Self::FetchAdd,
    ];

    /// True if the response carries data, rather than being an acknowledgement only.
    #[inline(always)]
    pub(crate) fn is_answered(self) -> bool {
        self as u8 >= Self::Read as u8
    }

    /// True if it writes to the peer's memory.
    #[inline(always)]
    pub(crate) fn is_write(self) -> bool {
        matches!(self, Self::Write | Self::WriteImm)
    }

    /// Number of PSNs in a message of `length` bytes (IBTA 9.7.2, row 44 of the conformance table).
    #[inline(always)]
    pub(crate) fn packets(self, length: u32, mtu: u32) -> u32 {
        match self {
            Self::CompareSwap | Self::FetchAdd => 1,
            _ if length <= mtu => 1,
            Self::Send | Self::SendImm | Self::SendInvalidate | Self::Write | Self::WriteImm | Self::Read => {
                length.div_ceil(mtu)
            }
        }
    }

    /// Opcode of one of its packets (IBTA 9.2.1).
    #[inline(always)]
    pub(crate) fn opcode(self, first: bool, last: bool) -> BthOpcode {
        use BthOpcode as Bth;
        // In order: middle, last, first, only.
        const OPCODES: [[Bth; 4]; 8] = [
            [Bth::RcSendMiddle, Bth::RcSendLast, Bth::RcSendFirst, Bth::RcSendOnly],
            [Bth::RcSendMiddle, Bth::RcSendLastImm, Bth::RcSendFirst, Bth::RcSendOnlyImm],
            [Bth::RcSendMiddle, Bth::RcSendLastInv, Bth::RcSendFirst, Bth::RcSendOnlyInv],
            [Bth::RcWriteMiddle, Bth::RcWriteLast, Bth::RcWriteFirst, Bth::RcWriteOnly],
            [Bth::RcWriteMiddle, Bth::RcWriteLastImm, Bth::RcWriteFirst, Bth::RcWriteOnlyImm],
            [Bth::RcReadRequest; 4],
            [Bth::RcCompareSwap; 4],
            [Bth::RcFetchAdd; 4],
        ];
        OPCODES[self as usize][usize::from(first) << 1 | usize::from(last)]
    }
}

/// The earlier requests that must complete before a request may start (IBTA 10.8.3.3).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Order {
    /// None.
    None,
    /// Earlier READs and atomics.
    Answers,
    /// All earlier requests.
    All,
}

/// An outstanding request, from its work request to its completion.
#[derive(Clone, Copy, Debug, Default, FromBytes, IntoBytes, KnownLayout, Immutable)]
#[repr(C)]
pub struct Request {
    /// First PSN.
    pub psn: u32,
    /// Number of PSNs; 0 for a request that sends nothing.
    pub packets: u32,
    /// Bytes of the message.
    pub length: u32,
    /// The [`Kind`] of a request that sends packets.
    pub kind: u8,
    /// 1: it failed before it was sent completely, and completes in error when the requests before it have completed.
    pub failed: u8,
    /// Padding.
    pub reserved: u16,
}

impl Request {
    /// Maximum number of outstanding requests per connection.
    pub const PER_QP: usize = 64;

    /// The operation of the request.
    #[inline(always)]
    pub(crate) fn kind(&self) -> Kind {
        Kind::ALL[usize::from(self.kind & 7)]
    }

    /// True if it is a READ or an atomic.
    #[inline(always)]
    pub(crate) fn is_answered(&self) -> bool {
        self.packets != 0 && self.kind().is_answered()
    }

    /// The PSN after its last.
    #[inline(always)]
    pub(crate) fn end(&self) -> Psn {
        Psn::new(self.psn).add(self.packets)
    }
}

/// An outgoing packet of a SEND or WRITE, or a train of MIDDLEs.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Outgoing {
    /// PSN of the first packet.
    pub psn: Psn,
    pub packets: u16,
    /// Position in the message.
    pub first: bool,
    pub last: bool,
    /// The range of the message's bytes that it carries.
    pub from: u32,
    pub len: u32,
    /// True if AckReq is set.
    pub ask: bool,
}

/// A READ or atomic that the responder has accepted, kept to answer duplicates (IBTA 9.7.5.1.4).
#[derive(Clone, Copy, Debug, Default, FromBytes, IntoBytes, KnownLayout, Immutable)]
#[repr(C)]
pub struct ReadResource {
    /// 0 none, [`READ`](Self::READ), [`ATOMIC`](Self::ATOMIC).
    pub kind: u32,
    /// 0: not yet answered. [`ANSWERED`](Self::ANSWERED), or answered and requested [`AGAIN`](Self::AGAIN).
    pub answered: u32,
    /// READ: start of the range of bytes to send.
    pub start: u32,
    /// READ: end of that range.
    pub end: u32,
    /// XRC: the SRQ that the request named.
    pub xrc_srqn: u32,
    /// First PSN of the response.
    pub psn: u32,
    /// Number of PSNs of the response.
    pub packets: u32,
    /// READ: length in bytes.
    pub length: u32,
    /// READ: address.
    pub va: u64,
    /// READ: key.
    pub rkey: u32,
    /// MSN of the response.
    pub msn: u32,
    /// Atomic: the original value.
    pub original: u64,
}

impl ReadResource {
    /// READs and atomics that are remembered per connection.
    pub const PER_QP: usize = 16;
    /// A READ.
    pub const READ: u32 = 1;
    /// An atomic.
    pub const ATOMIC: u32 = 2;
    /// The request was answered.
    pub const ANSWERED: u32 = 1;
    /// The request was answered, and the requester repeats it.
    pub const AGAIN: u32 = 2;

    /// True if `psn` belongs to the response.
    pub(crate) fn covers(&self, psn: Psn) -> bool {
        let ahead = psn.ahead_of(Psn::new(self.psn));
        ahead >= 0 && (ahead as u32) < self.packets
    }
}
