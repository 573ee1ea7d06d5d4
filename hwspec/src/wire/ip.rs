//! IPv4 and IPv6 headers, as used by RoCEv2 (annex A17: no IPv4 options, no extension headers).
use super::eth::ip_offset;
use crate::{
    hw_layout,
    layout::{Layout, prefix},
};

/// IP protocol number of UDP.
pub const PROTO_UDP: u8 = 17;
/// Prefix of a GID with an IPv4 address: `::ffff:0:0/96`.
pub const V4_MAPPED: [u8; 12] = [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff];

hw_layout! {
    /// IPv4 header without options.
    pub struct Ipv4: 20 {
        0x00 [31:28] version: u8,
        /// Header length in 32-bit words.
        0x00 [27:24] ihl: u8,
        0x00 [23:18] dscp: u8,
        0x00 [17:16] ecn: u8,
        /// Length of the packet in bytes, including this header.
        0x00 [15: 0] total_len: u16,
        0x04 [31:16] identification: u16,
        0x04 [14:14] dont_fragment: bool,
        0x04 [13:13] more_fragments: bool,
        0x04 [12: 0] fragment_offset: u16,
        0x08 [31:24] ttl: u8,
        0x08 [23:16] protocol: u8,
        0x08 [15: 0] checksum: u16,
        0x0c         src: [u8; 4],
        0x10         dst: [u8; 4],
    }
}

/// The checksum (RFC 791) of a header with words that add up to `sum`, its checksum field counted as 0.
#[inline]
pub(super) fn folded(mut sum: u64) -> u16 {
    // 32-bit words: ones' complement sums of 32-bit and of 16-bit words fold to the same 16 bits.
    sum = (sum & 0xffff_ffff) + (sum >> 32);
    sum = (sum & 0xffff) + (sum >> 16);
    sum = (sum & 0xffff) + (sum >> 16);
    sum = (sum & 0xffff) + (sum >> 16);
    !(sum as u16)
}

impl Ipv4 {
    /// The correct header checksum; the `checksum` field counts as 0 (RFC 791).
    #[inline]
    pub fn expected_checksum(&self) -> u16 {
        folded(self.sum())
    }
    /// Sum of the words; the `checksum` field counts as 0.
    #[inline]
    pub(super) fn sum(&self) -> u64 {
        let word = |at: usize| u32::from_be_bytes(prefix(&self.as_bytes()[at..]));
        [word(0), word(4), word(8) & 0xffff_0000, word(12), word(16)].into_iter().map(u64::from).sum()
    }
    /// True if the checksum is right.
    #[inline]
    pub fn checksum_ok(&self) -> bool {
        // In ones' complement both encodings of zero are equal.
        let (have, want) = (self.checksum(), self.expected_checksum());
        have == want || (have | want == 0xffff && have & want == 0)
    }
}

/// Marks a frame, or its headers, as a congested switch does: ECN 0b11 (RFC 3168). Leaves a frame that is too short
/// unchanged.
pub fn mark_congested(frame: &mut [u8]) {
    let at = ip_offset(frame);
    let is_v6 = frame.get(at).is_some_and(|byte| byte >> 4 == 6);
    if is_v6 {
        if let Some(byte) = frame.get_mut(at + 1) {
            *byte |= 0x30;
        }
    } else if let Some(bytes) = frame.get_mut(at..at + Ipv4::SIZE) {
        let mut header = Ipv4::read(bytes);
        header.set().ecn(3);
        let sum = header.expected_checksum();
        header.set().checksum(sum);
        bytes.copy_from_slice(header.as_bytes());
    }
}

hw_layout! {
    /// IPv6 header.
    pub struct Ipv6: 40 {
        0x00 [31:28] version: u8,
        0x00 [27:22] dscp: u8,
        0x00 [21:20] ecn: u8,
        0x00 [19: 0] flow_label: u32,
        /// Bytes after this header.
        0x04 [31:16] payload_len: u16,
        0x04 [15: 8] next_header: u8,
        0x04 [ 7: 0] hop_limit: u8,
        0x08         src: [u8; 16],
        0x18         dst: [u8; 16],
    }
}

/// Source and destination of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum IpPair {
    /// IPv4.
    V4 {
        /// Source.
        src: [u8; 4],
        /// Destination.
        dst: [u8; 4],
    },
    /// IPv6.
    V6 {
        /// Source.
        src: [u8; 16],
        /// Destination.
        dst: [u8; 16],
    },
}

impl IpPair {
    /// The addresses of two RoCEv2 GIDs: IPv4 if both are IPv4-mapped (annex A17.4.5.2).
    #[inline]
    pub fn from_gids(src: [u8; 16], dst: [u8; 16]) -> Self {
        match (v4_of_gid(&src), v4_of_gid(&dst)) {
            (Some(src), Some(dst)) => Self::V4 { src, dst },
            _ => Self::V6 { src, dst },
        }
    }
    /// The GIDs of these addresses: source, destination.
    #[inline]
    pub fn gids(&self) -> ([u8; 16], [u8; 16]) {
        match *self {
            Self::V4 { src, dst } => (gid_of_v4(src), gid_of_v4(dst)),
            Self::V6 { src, dst } => (src, dst),
        }
    }
}

/// The IPv4 address in an IPv4-mapped GID.
#[inline]
pub fn v4_of_gid(gid: &[u8; 16]) -> Option<[u8; 4]> {
    gid.strip_prefix(&V4_MAPPED)?.first_chunk().copied()
}

/// True if `gid` is the IPv4-mapped GID of `addr`.
#[inline(always)]
pub fn is_v4(gid: &[u8; 16], addr: [u8; 4]) -> bool {
    // As little-endian words, which need no byte swap.
    const MAPPED: u64 = 0xffff_0000;
    let [high, low]: [[u8; 8]; 2] = [prefix(gid), prefix(&gid[8..])];
    u64::from_le_bytes(high) == 0
        && u64::from_le_bytes(low) == MAPPED | u64::from(u32::from_le_bytes(addr)) << 32
}

/// The IPv4-mapped GID of `addr`.
#[inline]
pub fn gid_of_v4(addr: [u8; 4]) -> [u8; 16] {
    let mut gid = [0; 16];
    gid[..12].copy_from_slice(&V4_MAPPED);
    gid[12..].copy_from_slice(&addr);
    gid
}
