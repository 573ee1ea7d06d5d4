//! Base transport header and its opcodes (IBTA 9.2.1, table 38).
use crate::handle::{Psn, Qpn};
use crate::hw_layout;
use crate::layout::prefix;

hw_layout! {
    /// BTH: the first header of every InfiniBand transport packet.
    pub struct Bth: 12 {
        0x00 [31:24] opcode: BthOpcode,
        0x00 [23:23] se: bool,
        /// Path migration state; 1 when migration is not used.
        0x00 [22:22] mig_req: bool,
        0x00 [21:20] pad_count: u8,
        0x00 [19:16] tver: u8,
        0x00 [15: 0] pkey: u16,
        /// Congestion encountered on the way (IBTA; RoCEv2 uses the ECN bits of the IP header).
        0x04 [31:31] fecn: bool,
        /// Congestion notification.
        0x04 [30:30] becn: bool,
        0x04 [23: 0] dest_qp: Qpn,
        0x08 [31:31] ack_req: bool,
        0x08 [23: 0] psn: Psn,
    }
}

impl Bth {
    /// The first word, and the second and third as one. They are always stored and loaded in these units, since a
    /// load that overlaps several earlier stores stalls the processor.
    #[inline(always)]
    pub fn words(&self) -> (u32, u64) {
        let bytes = self.as_bytes();
        (u32::from_be_bytes(prefix(bytes)), u64::from_be_bytes(prefix(&bytes[4..])))
    }

    /// Builds a BTH from its [`words`](Self::words).
    #[inline(always)]
    pub fn from_words(first: u32, rest: u64) -> Self {
        let mut bytes = [0; Self::SIZE];
        bytes[..4].copy_from_slice(&first.to_be_bytes());
        bytes[4..].copy_from_slice(&rest.to_be_bytes());
        Self::from_bytes(bytes)
    }
}

hw_layout! {
    /// BTH opcode: transport in the upper three bits, operation in the lower five.
    pub enum BthOpcode: u8, 8 bits {
        RcSendFirst = 0x00,
        RcSendMiddle = 0x01,
        RcSendLast = 0x02,
        RcSendLastImm = 0x03,
        RcSendOnly = 0x04,
        RcSendOnlyImm = 0x05,
        RcWriteFirst = 0x06,
        RcWriteMiddle = 0x07,
        RcWriteLast = 0x08,
        RcWriteLastImm = 0x09,
        RcWriteOnly = 0x0a,
        RcWriteOnlyImm = 0x0b,
        RcReadRequest = 0x0c,
        RcReadRespFirst = 0x0d,
        RcReadRespMiddle = 0x0e,
        RcReadRespLast = 0x0f,
        RcReadRespOnly = 0x10,
        RcAck = 0x11,
        RcAtomicAck = 0x12,
        RcCompareSwap = 0x13,
        RcFetchAdd = 0x14,
        RcSendLastInv = 0x16,
        RcSendOnlyInv = 0x17,
        UcSendFirst = 0x20,
        UcSendMiddle = 0x21,
        UcSendLast = 0x22,
        UcSendLastImm = 0x23,
        UcSendOnly = 0x24,
        UcSendOnlyImm = 0x25,
        UcWriteFirst = 0x26,
        UcWriteMiddle = 0x27,
        UcWriteLast = 0x28,
        UcWriteLastImm = 0x29,
        UcWriteOnly = 0x2a,
        UcWriteOnlyImm = 0x2b,
        UdSendOnly = 0x64,
        UdSendOnlyImm = 0x65,
        /// Congestion notification packet (annex A17).
        Cnp = 0x81,
        XrcSendFirst = 0xa0,
        XrcSendMiddle = 0xa1,
        XrcSendLast = 0xa2,
        XrcSendLastImm = 0xa3,
        XrcSendOnly = 0xa4,
        XrcSendOnlyImm = 0xa5,
        XrcWriteFirst = 0xa6,
        XrcWriteMiddle = 0xa7,
        XrcWriteLast = 0xa8,
        XrcWriteLastImm = 0xa9,
        XrcWriteOnly = 0xaa,
        XrcWriteOnlyImm = 0xab,
        XrcReadRequest = 0xac,
        XrcReadRespFirst = 0xad,
        XrcReadRespMiddle = 0xae,
        XrcReadRespLast = 0xaf,
        XrcReadRespOnly = 0xb0,
        XrcAck = 0xb1,
        XrcAtomicAck = 0xb2,
        XrcCompareSwap = 0xb3,
        XrcFetchAdd = 0xb4,
        XrcSendLastInv = 0xb6,
        XrcSendOnlyInv = 0xb7,
    }

    /// Transport of an opcode: its upper three bits.
    pub enum Transport: u8, 3 bits { Rc = 0, Uc = 1, Rd = 2, Ud = 3, Cnp = 4, Xrc = 5, }
}

/// The operation that a packet belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[allow(missing_docs)]
pub enum Operation {
    Send,
    Write,
    ReadRequest,
    ReadResponse,
    Ack,
    AtomicAck,
    CompareSwap,
    FetchAdd,
    Cnp,
}

// One entry per operation code (the lower five bits): position in the message, headers, payload.
const FIRST: u16 = 1 << 0;
const MIDDLE: u16 = 1 << 1;
const LAST: u16 = 1 << 2;
const ONLY: u16 = FIRST | LAST;
const REQUEST: u16 = 1 << 3;
const PAYLOAD: u16 = 1 << 4;
const RETH: u16 = 1 << 5;
const AETH: u16 = 1 << 6;
const ATOMIC: u16 = 1 << 7;
const ATOMIC_ACK: u16 = 1 << 8;
const IMM: u16 = 1 << 9;
const IETH: u16 = 1 << 10;
const DETH: u16 = 1 << 11;
const XRCETH: u16 = 1 << 12;
const KNOWN: u16 = 1 << 13;

const OPERATIONS: [u16; 32] = {
    const DATA: u16 = KNOWN | REQUEST | PAYLOAD;
    const RESP: u16 = KNOWN | PAYLOAD;
    let mut t = [0; 32];
    t[0x00] = DATA | FIRST;
    t[0x01] = DATA | MIDDLE;
    t[0x02] = DATA | LAST;
    t[0x03] = DATA | LAST | IMM;
    t[0x04] = DATA | ONLY;
    t[0x05] = DATA | ONLY | IMM;
    t[0x06] = DATA | FIRST | RETH;
    t[0x07] = DATA | MIDDLE;
    t[0x08] = DATA | LAST;
    t[0x09] = DATA | LAST | IMM;
    t[0x0a] = DATA | ONLY | RETH;
    t[0x0b] = DATA | ONLY | RETH | IMM;
    t[0x0c] = KNOWN | REQUEST | ONLY | RETH;
    t[0x0d] = RESP | FIRST | AETH;
    t[0x0e] = RESP | MIDDLE;
    t[0x0f] = RESP | LAST | AETH;
    t[0x10] = RESP | ONLY | AETH;
    t[0x11] = KNOWN | ONLY | AETH;
    t[0x12] = KNOWN | ONLY | AETH | ATOMIC_ACK;
    t[0x13] = KNOWN | REQUEST | ONLY | ATOMIC;
    t[0x14] = KNOWN | REQUEST | ONLY | ATOMIC;
    t[0x16] = DATA | LAST | IETH;
    t[0x17] = DATA | ONLY | IETH;
    t
};

const FACTS: [u16; 256] = {
    let mut t = [0; 256];
    let mut op = 0;
    while op < 32 {
        let facts = OPERATIONS[op];
        t[op] = facts;
        if op <= 0x0b {
            t[0x20 | op] = facts;
        }
        if op == 0x04 || op == 0x05 {
            t[0x60 | op] = facts | DETH;
        }
        t[0xa0 | op] = if facts & REQUEST != 0 { facts | XRCETH } else { facts };
        op += 1;
    }
    t[0x81] = KNOWN | ONLY;
    t
};

/// Bytes of the extended headers that follow the BTH, per opcode.
const EXT_LEN: [u8; 256] = {
    const SIZES: [(u16, u8); 8] =
        [(RETH, 16), (AETH, 4), (ATOMIC, 28), (ATOMIC_ACK, 8), (IMM, 4), (IETH, 4), (DETH, 8), (XRCETH, 4)];
    let mut t = [0; 256];
    let mut op = 0;
    while op < 256 {
        let mut i = 0;
        while i < SIZES.len() {
            if FACTS[op] & SIZES[i].0 != 0 {
                t[op] += SIZES[i].1;
            }
            i += 1;
        }
        // CNP: 16 reserved bytes follow (annex A17.9.3).
        if op == 0x81 {
            t[op] = 16;
        }
        op += 1;
    }
    t
};

macro_rules! facts { ($($(#[$m:meta])* $name:ident = $bits:ident;)*) => {
    impl BthOpcode { $(
        $(#[$m])*
        #[inline]
        pub fn $name(self) -> bool { self.facts() & $bits != 0 }
    )* }
} }

facts! {
    /// True if the opcode is defined (RD is not implemented and counts as undefined).
    is_known = KNOWN;
    /// Begins a message: FIRST or ONLY.
    is_first = FIRST;
    /// In the middle of a message: MIDDLE.
    is_middle = MIDDLE;
    /// Ends a message: LAST or ONLY.
    is_last = LAST;
    /// Sent by a requester.
    is_request = REQUEST;
    /// May carry payload.
    has_payload = PAYLOAD;
    /// A [`Reth`](super::Reth) follows.
    has_reth = RETH;
    /// An [`Aeth`](super::Aeth) follows.
    has_aeth = AETH;
    /// An [`AtomicEth`](super::AtomicEth) follows.
    has_atomic_eth = ATOMIC;
    /// An [`AtomicAckEth`](super::AtomicAckEth) follows.
    has_atomic_ack_eth = ATOMIC_ACK;
    /// An [`ImmDt`](super::ImmDt) follows.
    has_imm = IMM;
    /// An [`Ieth`](super::Ieth) follows.
    has_ieth = IETH;
    /// A [`Deth`](super::Deth) follows.
    has_deth = DETH;
    /// An [`XrcEth`](super::XrcEth) follows.
    has_xrceth = XRCETH;
}

impl BthOpcode {
    #[inline(always)]
    fn facts(self) -> u16 {
        FACTS[usize::from(self.raw())]
    }
    /// A whole message in one packet.
    #[inline]
    pub fn is_only(self) -> bool {
        self.facts() & ONLY == ONLY
    }
    /// A response or acknowledge.
    #[inline]
    pub fn is_response(self) -> bool {
        self.facts() & (KNOWN | REQUEST) == KNOWN && self != Self::Cnp
    }
    /// Bytes of the extended headers between BTH and payload, 0 if the opcode is unknown.
    #[inline]
    pub fn ext_len(self) -> usize {
        EXT_LEN[usize::from(self.raw())].into()
    }
    /// The transport.
    #[inline]
    pub fn transport(self) -> Transport {
        Transport::from_raw(self.raw() >> 5)
    }
    /// The operation that the packet belongs to, `None` if the opcode is unknown.
    #[inline]
    pub fn operation(self) -> Option<Operation> {
        if !self.is_known() {
            return None;
        }
        if self == Self::Cnp {
            return Some(Operation::Cnp);
        }
        Some(match self.raw() & 0x1f {
            0x00..=0x05 | 0x16 | 0x17 => Operation::Send,
            0x06..=0x0b => Operation::Write,
            0x0c => Operation::ReadRequest,
            0x0d..=0x10 => Operation::ReadResponse,
            0x11 => Operation::Ack,
            0x12 => Operation::AtomicAck,
            0x13 => Operation::CompareSwap,
            0x14 => Operation::FetchAdd,
            _ => return None,
        })
    }
    /// The same operation on another transport.
    #[inline]
    pub fn on(self, transport: Transport) -> Self {
        Self::from_raw(transport.raw() << 5 | self.raw() & 0x1f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_named_opcode_is_known_and_no_other() {
        for raw in 0..=255u8 {
            let op = BthOpcode::from_raw(raw);
            assert_eq!(op.is_known(), op.is_named(), "{op:?}");
            assert_eq!(op.operation().is_some(), op.is_known(), "{op:?}");
        }
    }

    #[test]
    fn headers_follow_the_opcode() {
        for (op, len) in [
            (BthOpcode::RcSendFirst, 0),
            (BthOpcode::RcSendOnlyImm, 4),
            (BthOpcode::RcSendOnlyInv, 4),
            (BthOpcode::RcWriteFirst, 16),
            (BthOpcode::RcWriteMiddle, 0),
            (BthOpcode::RcWriteOnlyImm, 20),
            (BthOpcode::RcReadRequest, 16),
            (BthOpcode::RcReadRespFirst, 4),
            (BthOpcode::RcReadRespMiddle, 0),
            (BthOpcode::RcAck, 4),
            (BthOpcode::RcAtomicAck, 12),
            (BthOpcode::RcCompareSwap, 28),
            (BthOpcode::UcWriteOnly, 16),
            (BthOpcode::UdSendOnly, 8),
            (BthOpcode::UdSendOnlyImm, 12),
            (BthOpcode::XrcSendOnly, 4),
            (BthOpcode::XrcReadRespOnly, 4),
            (BthOpcode::XrcFetchAdd, 32),
            (BthOpcode::Cnp, 16),
        ] {
            assert_eq!(op.ext_len(), len, "{op:?}");
        }
        assert!(
            BthOpcode::RcReadRespOnly.is_only()
                && BthOpcode::RcReadRespOnly.is_response()
                && !BthOpcode::RcReadRespOnly.is_request()
        );
        assert!(
            BthOpcode::RcWriteLastImm.has_imm()
                && BthOpcode::RcWriteLastImm.is_last()
                && !BthOpcode::RcWriteLastImm.is_first()
        );
        assert_eq!(BthOpcode::RcSendLastImm.on(Transport::Xrc), BthOpcode::XrcSendLastImm);
        assert_eq!(BthOpcode::UdSendOnly.transport(), Transport::Ud);
    }
}
