//! Requests under way, at both ends of a connection.

use hwspec::{handle::Psn, wire::BthOpcode};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// log2 of the longest message a requester sends. At the least MTU it takes a quarter of all PSNs, so what is under way
/// compares by half of them (IBTA 9.3.3.1 would let it be twice as long).
pub const LOG_MAX_MESSAGE: u8 = 30;
/// The longest message a responder takes (IBTA 9.7.4.1.6).
pub(crate) const MAX_MESSAGE: u32 = 1 << 31;

/// The operation that a request asks of the peer.
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

    /// True if an answer with data is waited for, and not only an acknowledgement.
    #[inline(always)]
    pub(crate) fn is_answered(self) -> bool {
        self as u8 >= Self::Read as u8
    }

    /// True if it writes to the peer's memory.
    #[inline(always)]
    pub(crate) fn is_write(self) -> bool {
        matches!(self, Self::Write | Self::WriteImm)
    }

    /// PSNs that a message of `length` takes (IBTA 9.7.2, row 44 of the conformance table).
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
        // In the middle, the last, the first, the only one.
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

/// The earlier requests that a request waits for before it may begin (IBTA 10.8.3.3).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Order {
    /// Nothing.
    None,
    /// READs and atomics before it.
    Answers,
    /// All before it.
    All,
}

/// A request under way, from its work request to its completion.
#[derive(Clone, Copy, Debug, Default, FromBytes, IntoBytes, KnownLayout, Immutable)]
#[repr(C)]
pub struct Request {
    /// First PSN.
    pub psn: u32,
    /// PSNs it takes; 0 is a request that sends nothing.
    pub packets: u32,
    /// Bytes of the message.
    pub length: u32,
    /// [`Kind`], if it sends anything.
    pub kind: u8,
    /// 1: it failed before all of it was sent, and completes with that when those before it have completed.
    pub failed: u8,
    /// Padding.
    pub reserved: u16,
}

impl Request {
    /// Requests under way at most, per connection.
    pub const PER_QP: usize = 64;

    /// The operation it asks for.
    #[inline(always)]
    pub(crate) fn kind(&self) -> Kind {
        Kind::ALL[usize::from(self.kind & 7)]
    }

    /// True if it is a READ or an atomic.
    #[inline(always)]
    pub(crate) fn is_answered(&self) -> bool {
        self.packets != 0 && self.kind().is_answered()
    }

    /// The PSN behind its last.
    #[inline(always)]
    pub(crate) fn end(&self) -> Psn {
        Psn::new(self.psn).add(self.packets)
    }
}

/// A packet of a SEND or WRITE that is to be sent, or a train of MIDDLEs.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Outgoing {
    /// The first one's PSN.
    pub psn: Psn,
    pub packets: u16,
    /// Its place in the message.
    pub first: bool,
    pub last: bool,
    /// The bytes of the message that it carries.
    pub from: u32,
    pub len: u32,
    /// True if it asks for an acknowledgement.
    pub ask: bool,
}

/// A READ or atomic the responder has accepted: kept to answer duplicates (IBTA 9.7.5.1.4).
#[derive(Clone, Copy, Debug, Default, FromBytes, IntoBytes, KnownLayout, Immutable)]
#[repr(C)]
pub struct ReadResource {
    /// 0 none, [`READ`](Self::READ), [`ATOMIC`](Self::ATOMIC).
    pub kind: u32,
    /// 0: not yet answered. [`ANSWERED`](Self::ANSWERED), or answered and asked for [`AGAIN`](Self::AGAIN).
    pub answered: u32,
    /// READ: the bytes to be sent, from and up to.
    pub start: u32,
    /// See `start`.
    pub end: u32,
    /// XRC: the SRQ the request named.
    pub xrc_srqn: u32,
    /// First PSN of the answer.
    pub psn: u32,
    /// PSNs of the answer.
    pub packets: u32,
    /// READ: bytes.
    pub length: u32,
    /// READ: address.
    pub va: u64,
    /// READ: key.
    pub rkey: u32,
    /// MSN the answer carries.
    pub msn: u32,
    /// Atomic: the original value.
    pub original: u64,
}

impl ReadResource {
    /// READs and atomics remembered, per connection.
    pub const PER_QP: usize = 16;
    /// A READ.
    pub const READ: u32 = 1;
    /// An atomic.
    pub const ATOMIC: u32 = 2;
    /// It was answered.
    pub const ANSWERED: u32 = 1;
    /// It was answered, and the requester asks again.
    pub const AGAIN: u32 = 2;

    /// True if `psn` is one of its answer's.
    pub(crate) fn covers(&self, psn: Psn) -> bool {
        let ahead = psn.ahead_of(Psn::new(self.psn));
        ahead >= 0 && (ahead as u32) < self.packets
    }
}
