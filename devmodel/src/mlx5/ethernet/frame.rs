//! An Ethernet frame: its VLAN tags, IP and TCP or UDP, and their Internet checksums (RFC 1071).

use hwspec::{
    context::flow::MatchHeaders,
    layout::{Layout, prefix},
    wire::{
        eth::{EtherType, Ethernet, Vlan},
        ip::{Ipv4, Ipv6},
    },
};
use std::ops::Range;

/// IEEE 802.1ad service tag.
pub(super) const SERVICE_TAG: u16 = 0x88a8;
/// IP protocol number of TCP.
pub(super) const TCP: u8 = 6;
/// IP protocol number of UDP.
pub(super) const UDP: u8 = 17;
const ESP: u8 = 50;
const AH: u8 = 51;
/// IPv6 extension headers that may precede the transport (RFC 8200): hop-by-hop, routing, destination options, fragment.
const HOP_BY_HOP: u8 = 0;
const ROUTING: u8 = 43;
const DESTINATION: u8 = 60;
const FRAGMENT: u8 = 44;
/// Size of a TCP header without options, and of a UDP header.
const TCP_SIZE: usize = 20;
const UDP_SIZE: usize = 8;
/// Size of a VLAN tag.
pub(super) const TAG: usize = Vlan::SIZE;
/// Maximum number of tags that are parsed.
const TAGS: usize = 2;

/// The kinds of destinations, each with its own counters.
pub(super) enum Cast {
    Unicast,
    Multicast,
    Broadcast,
}

impl Cast {
    pub(super) fn of(frame: &[u8]) -> Self {
        match frame {
            [0xff, 0xff, 0xff, 0xff, 0xff, 0xff, ..] => Self::Broadcast,
            [first, ..] if first & 1 != 0 => Self::Multicast,
            _ => Self::Unicast,
        }
    }
}

/// The positions of the parts of a frame. Offsets are from its first byte and within the parsed bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Parts {
    /// The outermost tag: its type and tag control information.
    pub tag: Option<(u16, u16)>,
    /// EtherType after the tags.
    pub ethertype: u16,
    /// Offset of the network header, after the tags.
    pub l3: usize,
    /// 4, 6, or 0 if the packet is neither or malformed.
    pub version: u8,
    /// Protocol of the transport header.
    pub protocol: u8,
    /// The packet is a fragment, so it may have no transport header.
    pub fragment: bool,
    /// Offset of the transport header; meaningless if `version` is 0.
    pub l4: usize,
    /// End of the IP packet according to its header, or end of a shorter frame; padding may follow.
    pub end: usize,
    /// The IP packet is as long as its header claims. A truncated one can be steered nevertheless, but fails verification.
    pub whole: bool,
}

fn word(bytes: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_be_bytes(*bytes.get(at..)?.first_chunk()?))
}

impl Parts {
    /// Parses a frame. `bytes` may be its beginning only; `len` is the length of the whole frame.
    pub(super) fn of(bytes: &[u8], len: usize) -> Option<Self> {
        let mut parts = Self { l3: Ethernet::SIZE, ..Self::default() };
        parts.ethertype = word(bytes, parts.l3 - 2)?;
        for _ in 0..TAGS {
            if parts.ethertype != EtherType::VLAN.raw() && parts.ethertype != SERVICE_TAG {
                break;
            }
            let tag = (parts.ethertype, word(bytes, parts.l3)?);
            parts.tag.get_or_insert(tag);
            parts.ethertype = word(bytes, parts.l3 + 2)?;
            parts.l3 += TAG;
        }
        // Malformed IP is still a frame.
        let _ = match EtherType::new(parts.ethertype) {
            EtherType::IPV4 => parts.ipv4(bytes, len),
            EtherType::IPV6 => parts.ipv6(bytes, len),
            _ => None,
        };
        Some(parts)
    }

    fn ipv4(&mut self, bytes: &[u8], len: usize) -> Option<()> {
        let ip = Ipv4::read(bytes.get(self.l3..self.l3 + Ipv4::SIZE)?);
        let header = usize::from(ip.ihl()) * 4;
        let total = usize::from(ip.total_len());
        // A large send has no length yet.
        let said = if total == 0 { len } else { self.l3 + total };
        let end = said.min(len);
        if ip.version() != 4 || header < Ipv4::SIZE || self.l3 + header > end {
            return None;
        }
        self.whole = said <= len;
        self.version = 4;
        self.protocol = ip.protocol();
        self.fragment = ip.more_fragments() || ip.fragment_offset() != 0;
        (self.l4, self.end) = (self.l3 + header, end);
        Some(())
    }

    fn ipv6(&mut self, bytes: &[u8], len: usize) -> Option<()> {
        let ip = bytes.get(self.l3..self.l3 + Ipv6::SIZE)?;
        let payload = usize::from(word(ip, 4)?);
        let mut at = self.l3 + Ipv6::SIZE;
        let said = if payload == 0 { len } else { at + payload };
        let end = said.min(len);
        if ip[0] >> 4 != 6 || at > end {
            return None;
        }
        self.whole = said <= len;
        let mut next = ip[6];
        let mut fragment = false;
        while matches!(next, HOP_BY_HOP | ROUTING | DESTINATION | FRAGMENT) {
            let header = bytes.get(at..at + 8)?;
            fragment |= next == FRAGMENT;
            at += if next == FRAGMENT { 8 } else { (usize::from(header[1]) + 1) * 8 };
            next = header[0];
            if at > end {
                return None;
            }
        }
        self.version = 6;
        self.protocol = next;
        self.fragment = fragment;
        (self.l4, self.end) = (at, end);
        Some(())
    }

    /// True if `bytes` contain a complete TCP or UDP header.
    pub(super) fn has_ports(&self, bytes: &[u8]) -> bool {
        let size = match self.protocol {
            TCP => TCP_SIZE,
            UDP => UDP_SIZE,
            _ => return false,
        };
        self.version != 0 && !self.fragment && self.l4 + size <= self.end.min(bytes.len())
    }

    /// Source and destination port, if there is a TCP or UDP header.
    pub(super) fn ports(&self, bytes: &[u8]) -> Option<(u16, u16)> {
        if !self.has_ports(bytes) {
            return None;
        }
        Some((word(bytes, self.l4)?, word(bytes, self.l4 + 2)?))
    }

    /// The security parameters index of AH or ESP (RFC 4302, RFC 4303).
    pub(super) fn security_index(&self, bytes: &[u8]) -> Option<[u8; 4]> {
        let at = match self.protocol {
            _ if self.version == 0 || self.fragment => return None,
            ESP => self.l4,
            AH => self.l4 + 4,
            _ => return None,
        };
        bytes.get(at..self.end.min(bytes.len()))?.first_chunk().copied()
    }

    /// Offsets of the IP addresses: source, destination.
    pub(super) fn addresses(&self) -> Option<(Range<usize>, Range<usize>)> {
        let (at, size) = match self.version {
            4 => (self.l3 + 12, 4),
            6 => (self.l3 + 8, 16),
            _ => return None,
        };
        Some((at..at + size, at + size..at + 2 * size))
    }

    /// Offset of the data of a TCP or UDP packet.
    pub(super) fn data(&self, bytes: &[u8]) -> Option<usize> {
        match self.protocol {
            _ if !self.has_ports(bytes) => None,
            TCP => Some(self.l4 + usize::from(bytes.get(self.l4 + 12)? >> 4) * 4),
            _ => Some(self.l4 + UDP_SIZE),
        }
    }

    /// The fields that flow tables can match.
    pub(super) fn key(&self, bytes: &[u8]) -> MatchHeaders {
        let mut key = MatchHeaders::zeroed();
        let eth: [u8; Ethernet::SIZE] = prefix(bytes);
        key.set()
            .dmac_47_16(u32::from_be_bytes(prefix(&eth)))
            .dmac_15_0(u16::from_be_bytes(prefix(&eth[4..])))
            .smac_47_16(u32::from_be_bytes(prefix(&eth[6..])))
            .smac_15_0(u16::from_be_bytes(prefix(&eth[10..])))
            .ethertype(self.ethertype);
        if let Some((kind, tci)) = self.tag {
            key.set()
                .first_prio((tci >> 13) as u8)
                .first_cfi(tci >> 12 & 1 != 0)
                .first_vid(tci & 0xfff)
                .cvlan_tag(kind == EtherType::VLAN.raw())
                .svlan_tag(kind == SERVICE_TAG);
        }
        let Some((src, dst)) = self.addresses() else { return key };
        let ip = bytes.get(self.l3..).unwrap_or_default();
        let at = |i: usize| ip.get(i).copied().unwrap_or(0);
        let (class, ttl) = match self.version {
            4 => (at(1), at(8)),
            _ => (at(0) << 4 | at(1) >> 4, at(7)),
        };
        let address = |range: Range<usize>| {
            let bytes = bytes.get(range).unwrap_or_default();
            let mut out = [0; 16];
            out[16 - bytes.len()..].copy_from_slice(bytes);
            out
        };
        key.set()
            .ip_version(self.version)
            .ip_protocol(self.protocol)
            .ip_dscp(class >> 2)
            .ip_ecn(class & 3)
            .frag(self.fragment)
            .ttl_hoplimit(ttl)
            .src_ipv4_src_ipv6(address(src))
            .dst_ipv4_dst_ipv6(address(dst));
        if self.version == 4 {
            key.set().ipv4_ihl(at(0) & 0xf);
        }
        match (self.ports(bytes), self.protocol) {
            (Some((sport, dport)), TCP) => {
                let flags = word(bytes, self.l4 + 12).unwrap_or(0) & 0x1ff;
                key.set().tcp_sport(sport).tcp_dport(dport).tcp_flags(flags);
            }
            (Some((sport, dport)), _) => {
                key.set().udp_sport(sport).udp_dport(dport);
            }
            _ => {}
        }
        key
    }
}

/// Adds `bytes` as 16-bit words to `sum`, in ones' complement; an odd byte is padded with zero.
pub(super) fn add(sum: u32, bytes: &[u8]) -> u32 {
    let mut wide = u64::from(sum);
    let mut chunks = bytes.chunks_exact(4);
    for chunk in &mut chunks {
        wide += u64::from(u32::from_be_bytes(prefix(chunk)));
    }
    let rest: [u8; 4] = prefix(chunks.remainder());
    wide += u64::from(u32::from_be_bytes(rest));
    while wide >> 16 != 0 {
        wide = (wide & 0xffff) + (wide >> 16);
    }
    wide as u32
}

/// The sum over pseudo-header and transport of a packet with TCP or UDP; 0xffff if its checksum is correct.
fn transport(frame: &[u8], parts: &Parts) -> Option<u32> {
    if !parts.has_ports(frame) {
        return None;
    }
    let (src, dst) = parts.addresses()?;
    let segment = frame.get(parts.l4..parts.end)?;
    let sum = add(0, frame.get(src)?);
    let sum = add(sum, frame.get(dst)?);
    let len = segment.len() as u32;
    Some(add(sum + u32::from(parts.protocol) + (len >> 16) + (len & 0xffff), segment))
}

/// Offset of the transport's checksum.
fn place(parts: &Parts) -> usize {
    parts.l4 + if parts.protocol == TCP { 16 } else { 6 }
}

/// Fills in the checksum of TCP or UDP. A frame with neither of them, or a fragment, is left unchanged.
pub(super) fn fill_transport(frame: &mut [u8], parts: &Parts) {
    let at = place(parts);
    if !parts.has_ports(frame) || at + 2 > frame.len() {
        return;
    }
    frame[at..at + 2].fill(0);
    let Some(sum) = transport(frame, parts) else { return };
    // RFC 768: a checksum of zero is sent as ones, because zero means that there is none. For TCP both are
    // equivalent.
    let value = match !(sum as u16) {
        0 => 0xffff,
        value => value,
    };
    frame[at..at + 2].copy_from_slice(&value.to_be_bytes());
}

/// Fills in the IPv4 header checksum.
pub(super) fn fill_ip(frame: &mut [u8], parts: &Parts) {
    if parts.version != 4 {
        return;
    }
    let Some(header) = frame.get_mut(parts.l3..parts.l4) else { return };
    header[10..12].fill(0);
    let value = !(add(0, header) as u16);
    header[10..12].copy_from_slice(&value.to_be_bytes());
}

/// The checksum results in a receive CQE.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Verified {
    /// The IP header checksum is correct.
    pub l3: bool,
    /// The TCP or UDP checksum is correct.
    pub l4: bool,
}

/// Verifies the checksums of a received frame.
pub(super) fn verify(frame: &[u8], parts: &Parts) -> Verified {
    let l3 = match parts.version {
        _ if !parts.whole => false,
        4 => frame.get(parts.l3..parts.l4).is_some_and(|header| add(0, header) == 0xffff),
        6 => true,
        _ => false,
    };
    let at = place(parts);
    // RFC 768: a UDP packet over IPv4 may have no checksum.
    let none = parts.version == 4 && parts.protocol != TCP && frame.get(at..at + 2) == Some(&[0, 0]);
    let l4 = parts.has_ports(frame) && (none || transport(frame, parts) == Some(0xffff));
    Verified { l3, l4: l3 && l4 }
}
