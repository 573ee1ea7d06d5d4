//! Address discovery: ARP (RFC 826) and IPv6 neighbour discovery (RFC 4861) packets, read and written.

use super::eth::{EtherType, Ethernet, Vlan};
use crate::layout::{Layout, prefix};
use core::{
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
    ops::Deref,
};

/// All stations.
const BROADCAST: [u8; 6] = [0xff; 6];
/// Ethernet and IPv4, with their address lengths.
const ARP_HEAD: [u8; 6] = [0, 1, 0x08, 0, 6, 4];
/// Bytes of an ARP packet over Ethernet.
const ARP: usize = 28;
/// ICMPv6: next header, and types.
const ICMP: u8 = 58;
const SOLICITATION: u8 = 135;
const ADVERTISEMENT: u8 = 136;
/// Options of neighbour discovery, and the size in bytes of one with an Ethernet address.
const SOURCE_ADDRESS: u8 = 1;
const TARGET_ADDRESS: u8 = 2;
const OPTION: usize = 8;
/// Bytes of the IPv6 header, and of a solicitation or advertisement without its options.
const IP: usize = 40;
const BODY: usize = 24;
/// All nodes of a link: group address and MAC.
const ALL_NODES: (Ipv6Addr, [u8; 6]) = (Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 0, 1), [0x33, 0x33, 0, 0, 0, 1]);
/// Minimum length of an Ethernet frame, including its header.
const LEAST: usize = 60;
/// Bits of the VLAN ID in a tag.
const VID: u16 = 0xfff;

/// A frame of address discovery.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DiscoveryFrame {
    bytes: [u8; Self::MOST],
    len: usize,
}

impl Deref for DiscoveryFrame {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.bytes[..self.len]
    }
}

impl DiscoveryFrame {
    /// Length of the longest frame: an advertisement in a VLAN.
    pub const MOST: usize = Ethernet::SIZE + Vlan::SIZE + IP + BODY + OPTION;

    fn of(parts: &[&[u8]]) -> Self {
        let mut frame = Self { bytes: [0; Self::MOST], len: 0 };
        for part in parts {
            frame.bytes[frame.len..][..part.len()].copy_from_slice(part);
            frame.len += part.len();
        }
        frame.len = frame.len.max(LEAST);
        frame
    }

    /// The same frame with a VLAN tag.
    #[must_use]
    pub fn in_vlan(self, vid: u16) -> Self {
        const MACS: usize = Ethernet::SIZE - EtherType::SIZE;
        let tag = (vid & VID).to_be_bytes();
        let (macs, rest) = self.split_at(MACS);
        Self::of(&[macs, EtherType::VLAN.bytes(), &tag, rest])
    }
}

/// The contents of an address discovery frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Discovery {
    /// A request for the MAC of `target`. It contains the MAC of the sender, unless the sender's address is
    /// unspecified.
    Request {
        /// The sender: IP and MAC.
        from: (IpAddr, [u8; 6]),
        /// The requested address.
        target: IpAddr,
    },
    /// The MAC of an IP address.
    Answer {
        /// The IP address.
        ip: IpAddr,
        /// The MAC.
        mac: [u8; 6],
    },
}

impl Discovery {
    /// Reads an untagged frame. `None` if it is not about address discovery.
    pub fn read(frame: &[u8]) -> Option<Self> {
        Self::read_tagged(frame).filter(|(vlan, _)| vlan.is_none()).map(|(_, discovery)| discovery)
    }

    /// Reads a frame, and its VLAN ID. A tag with VLAN 0 only holds a priority, and counts as no VLAN.
    pub fn read_tagged(frame: &[u8]) -> Option<(Option<u16>, Self)> {
        let header: Ethernet = Ethernet::from_bytes(*frame.first_chunk()?);
        let rest = &frame[Ethernet::SIZE..];
        let (vlan, kind, payload) = match header.ethertype() {
            EtherType::VLAN => {
                let tag: Vlan = Vlan::from_bytes(*rest.first_chunk()?);
                let vlan = Some(tag.vid()).filter(|vid| *vid != 0);
                (vlan, EtherType::new(tag.ethertype()), &rest[Vlan::SIZE..])
            }
            kind => (None, kind, rest),
        };
        let discovery = match kind {
            EtherType::ARP => read_arp(payload),
            EtherType::IPV6 => read_icmp(payload, header.src()),
            _ => None,
        };
        Some((vlan, discovery?))
    }

    /// Builds the frame that the function with `mac` and IP address `own` sends to request the MAC of `target`.
    pub fn request(mac: [u8; 6], own: IpAddr, target: IpAddr) -> Option<DiscoveryFrame> {
        match target {
            IpAddr::V4(target) => {
                let own = match own {
                    IpAddr::V4(own) => own,
                    IpAddr::V6(_) => Ipv4Addr::UNSPECIFIED,
                };
                Some(arp(1, BROADCAST, (mac, own), ([0; 6], target)))
            }
            IpAddr::V6(target) => {
                let IpAddr::V6(own) = own else { return None };
                let (group, to) = solicited_node(target);
                Some(icmp(to, mac, own, group, (SOLICITATION, 0), target, (SOURCE_ADDRESS, mac)))
            }
        }
    }

    /// Builds the frame that the function with `mac` sends in answer to a request for `target`, its own address.
    pub fn answer(mac: [u8; 6], target: IpAddr, to: (IpAddr, [u8; 6])) -> Option<DiscoveryFrame> {
        /// RFC 4861, 4.4: solicited, override.
        const SOLICITED: u8 = 0x60;
        match (target, to.0) {
            (IpAddr::V4(target), IpAddr::V4(ip)) => Some(arp(2, to.1, (mac, target), (to.1, ip))),
            (IpAddr::V6(target), IpAddr::V6(ip)) if ip.is_unspecified() => Some(advertise(mac, target, to.1)),
            (IpAddr::V6(target), IpAddr::V6(ip)) => {
                let flags = (ADVERTISEMENT, SOLICITED);
                Some(icmp(to.1, mac, target, ip, flags, target, (TARGET_ADDRESS, mac)))
            }
            _ => None,
        }
    }

    /// Builds the frame that the function with `mac` broadcasts to announce its address `own` (RFC 5227, section 2.3;
    /// RFC 4861, section 7.2.6).
    pub fn announcement(mac: [u8; 6], own: IpAddr) -> DiscoveryFrame {
        match own {
            IpAddr::V4(own) => arp(1, BROADCAST, (mac, own), ([0; 6], own)),
            IpAddr::V6(own) => advertise(mac, own, ALL_NODES.1),
        }
    }
}

/// The solicited-node group of an address, shared by addresses with the same ending, and its MAC (RFC 4291, section
/// 2.7.1).
pub fn solicited_node(ip: Ipv6Addr) -> (Ipv6Addr, [u8; 6]) {
    let [.., a, b, c] = ip.octets();
    let group = Ipv6Addr::from([0xff, 2, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0xff, a, b, c]);
    (group, [0x33, 0x33, 0xff, a, b, c])
}

/// An advertisement to all nodes with the override flag, either unsolicited or for a requester without an address (RFC
/// 4861, 7.2.4).
fn advertise(mac: [u8; 6], own: Ipv6Addr, to: [u8; 6]) -> DiscoveryFrame {
    const OVERRIDE: u8 = 0x20;
    icmp(to, mac, own, ALL_NODES.0, (ADVERTISEMENT, OVERRIDE), own, (TARGET_ADDRESS, mac))
}

fn read_arp(arp: &[u8]) -> Option<Discovery> {
    let arp: &[u8; ARP] = arp.first_chunk()?;
    let [head @ .., _, _] = arp.first_chunk::<8>()?;
    if *head != ARP_HEAD {
        return None;
    }
    let mac: [u8; 6] = *arp[8..].first_chunk()?;
    let at = |offset: usize| arp[offset..].first_chunk::<4>().map(|ip| IpAddr::from(*ip));
    let (ip, target) = (at(14)?, at(24)?);
    match arp[6..8] {
        [0, 1] => Some(Discovery::Request { from: (ip, mac), target }),
        [0, 2] => Some(Discovery::Answer { ip, mac }),
        _ => None,
    }
}

fn read_icmp(packet: &[u8], ethernet: [u8; 6]) -> Option<Discovery> {
    let ip: &[u8; IP] = packet.first_chunk()?;
    let len = usize::from(u16::from_be_bytes([ip[4], ip[5]]));
    let icmp = packet[IP..].get(..len)?;
    // RFC 4861, 7.1: a hop limit of 255 proves that no router has forwarded the packet.
    if ip[6] != ICMP || ip[7] != 255 || icmp.len() < BODY || checksum(ip, icmp) != 0 || icmp[1] != 0 {
        return None;
    }
    let source = Ipv6Addr::from(prefix::<16>(&ip[8..]));
    let target = IpAddr::from(prefix::<16>(&icmp[8..]));
    match icmp[0] {
        SOLICITATION => {
            let mac = option(icmp, SOURCE_ADDRESS).unwrap_or(ethernet);
            Some(Discovery::Request { from: (source.into(), mac), target })
        }
        ADVERTISEMENT => {
            let mac = option(icmp, TARGET_ADDRESS).unwrap_or(ethernet);
            Some(Discovery::Answer { ip: target, mac })
        }
        _ => None,
    }
}

/// The link-layer address in the option `kind`.
fn option(icmp: &[u8], kind: u8) -> Option<[u8; 6]> {
    let mut rest = icmp.get(BODY..)?;
    loop {
        let [found, units, ..] = *rest else { return None };
        let len = usize::from(units) * 8;
        let this = rest.get(..len).filter(|_| len != 0)?;
        if found == kind {
            return this[2..].first_chunk().copied();
        }
        rest = &rest[len..];
    }
}

fn arp(
    operation: u8,
    to: [u8; 6],
    sender: ([u8; 6], Ipv4Addr),
    target: ([u8; 6], Ipv4Addr),
) -> DiscoveryFrame {
    let (own, asked) = (sender.1.octets(), target.1.octets());
    DiscoveryFrame::of(&[
        &to,
        &sender.0,
        EtherType::ARP.bytes(),
        &ARP_HEAD,
        &[0, operation],
        &sender.0,
        &own,
        &target.0,
        &asked,
    ])
}

fn icmp(
    to: [u8; 6],
    from: [u8; 6],
    source: Ipv6Addr,
    destination: Ipv6Addr,
    (kind, flags): (u8, u8),
    target: Ipv6Addr,
    (option, mac): (u8, [u8; 6]),
) -> DiscoveryFrame {
    let mut body = [0; BODY + OPTION];
    (body[0], body[4]) = (kind, flags);
    body[8..BODY].copy_from_slice(&target.octets());
    (body[BODY], body[BODY + 1]) = (option, 1);
    body[BODY + 2..].copy_from_slice(&mac);
    let mut ip = [0; IP];
    ip[0] = 0x60;
    ip[4..6].copy_from_slice(&(body.len() as u16).to_be_bytes());
    (ip[6], ip[7]) = (ICMP, 255);
    ip[8..24].copy_from_slice(&source.octets());
    ip[24..].copy_from_slice(&destination.octets());
    let sum = checksum(&ip, &body);
    body[2..4].copy_from_slice(&sum.to_be_bytes());
    DiscoveryFrame::of(&[&to, &from, EtherType::IPV6.bytes(), &ip, &body])
}

/// Internet checksum of an ICMPv6 message and its pseudo-header (RFC 8200, 8.1); 0 if the message includes a correct
/// checksum.
fn checksum(ip: &[u8; IP], icmp: &[u8]) -> u16 {
    let words = |bytes: &[u8]| -> u32 {
        bytes.chunks(2).map(|w| u32::from(w[0]) << 8 | u32::from(*w.get(1).unwrap_or(&0))).sum()
    };
    let mut sum = words(&ip[8..]) + icmp.len() as u32 + u32::from(ICMP) + words(icmp);
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    !(sum as u16)
}

#[cfg(test)]
mod tests {
    extern crate std;
    use super::*;
    use std::vec::Vec;

    const A: [u8; 6] = [2, 0, 0, 0, 0, 1];
    const B: [u8; 6] = [2, 0, 0, 0, 0, 2];

    fn ip(text: &str) -> IpAddr {
        text.parse().unwrap()
    }

    #[test]
    fn requests_and_answers_read_back() {
        for (a, b) in [("10.0.0.1", "10.0.0.2"), ("fd00::1", "fd00::2")] {
            let frame = Discovery::request(A, ip(a), ip(b)).unwrap();
            assert_eq!(frame[0] & 1, 1, "to a group");
            let from = (ip(a), A);
            assert_eq!(Discovery::read(&frame), Some(Discovery::Request { from, target: ip(b) }));
            let frame = Discovery::answer(B, ip(b), from).unwrap();
            assert_eq!(frame[..6], A);
            assert_eq!(Discovery::read(&frame), Some(Discovery::Answer { ip: ip(b), mac: B }));
        }
    }

    /// A solicitation captured from a Linux host.
    #[test]
    fn a_solicitation_of_linux_is_understood() {
        let hex = "3333ff000002 525400123456 86dd 6000000000203aff fe80000000000000505400fffe123456 \
                   ff0200000000000000000001ff000002 8700c3f1 00000000 fd000000000000000000000000000002 0101525400123456";
        let digits: Vec<u8> = hex.bytes().filter(u8::is_ascii_hexdigit).collect();
        let mut frame: Vec<u8> = digits
            .chunks(2)
            .map(|pair| u8::from_str_radix(core::str::from_utf8(pair).unwrap(), 16).unwrap())
            .collect();
        let ip: [u8; IP] = *frame[14..].first_chunk().unwrap();
        frame[56..58].fill(0);
        let sum = checksum(&ip, &frame[54..]);
        frame[56..58].copy_from_slice(&sum.to_be_bytes());
        let Some(Discovery::Request { from, target }) = Discovery::read(&frame) else { panic!("not read") };
        assert_eq!(
            (from.1, target),
            ([0x52, 0x54, 0, 0x12, 0x34, 0x56], "fd00::2".parse::<IpAddr>().unwrap())
        );
    }

    #[test]
    fn a_tag_is_read_and_written_and_told_from_none() {
        for (a, b) in [("10.0.0.1", "10.0.0.2"), ("fd00::1", "fd00::2")] {
            let plain = Discovery::request(A, ip(a), ip(b)).unwrap();
            let tagged = plain.in_vlan(100);
            assert_eq!(tagged[12..16], [0x81, 0, 0, 100]);
            assert_eq!((&tagged[..12], &tagged[16..]), (&plain[..12], &plain[12..]));
            let said = Discovery::read(&plain);
            assert_eq!(Discovery::read_tagged(&tagged), said.map(|said| (Some(100), said)));
            assert_eq!(Discovery::read(&tagged), None, "another VLAN");
            assert_eq!(Discovery::read(&plain.in_vlan(0)), said, "a priority alone");
            assert!((0..46).all(|len| Discovery::read_tagged(&tagged[..len]).is_none()));
        }
    }

    #[test]
    fn announcements_go_to_everybody_and_say_whose_the_address_is() {
        let frame = Discovery::announcement(A, ip("10.0.0.1"));
        assert_eq!(frame[..6], BROADCAST);
        let said = Discovery::Request { from: (ip("10.0.0.1"), A), target: ip("10.0.0.1") };
        assert_eq!(Discovery::read(&frame), Some(said));
        let frame = Discovery::announcement(A, ip("fd00::1"));
        assert_eq!(frame[..6], [0x33, 0x33, 0, 0, 0, 1]);
        assert_eq!(Discovery::read(&frame), Some(Discovery::Answer { ip: ip("fd00::1"), mac: A }));
    }

    #[test]
    fn nonsense_is_not_read() {
        let whole = Discovery::request(A, ip("fd00::1"), ip("fd00::2")).unwrap();
        for len in 0..whole.len() {
            assert_eq!(Discovery::read(&whole[..len]), None);
        }
        for at in 14..whole.len() {
            let mut damaged = whole.to_vec();
            damaged[at] ^= 0x10;
            // Traffic class and flow label are ignored.
            assert!(Discovery::read(&damaged).is_none() || (14..18).contains(&at), "{at}");
        }
        let arp = Discovery::request(A, ip("10.0.0.1"), ip("10.0.0.2")).unwrap();
        assert!((0..42).all(|len| Discovery::read(&arp[..len]).is_none()));
    }
}
