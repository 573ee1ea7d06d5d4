//! RoCE v2: conversion between the model's frames and packets of a kernel that writes IP and UDP headers itself.
//!
//! The ICRC covers the headers as they are on the wire (annex A17.3.1), so it is recomputed for the kernel's headers: the same addresses,
//! another source port, and for IPv4 what Linux uses for an unconnected socket that forbids fragments: identification 0 and DF. A wrong
//! ICRC stays wrong: its difference from the right one is preserved.

use hwspec::{
    layout::Layout,
    wire::{EtherType, ICRC_SIZE, Icrc, IpPair, Ipv4, Ipv6, ROCE_PORT, Udp, eth::Ethernet, ip::PROTO_UDP},
};
use std::net::IpAddr;

/// Bytes of a BTH.
const BTH: usize = 12;

/// A RoCE v2 packet without its link header.
#[derive(Debug, PartialEq, Eq)]
pub struct Packet {
    /// Source and destination.
    pub addresses: IpPair,
    /// UDP source port.
    port: u16,
    /// BTH to ICRC.
    payload: Vec<u8>,
}

/// The addresses of an [`IpPair`].
pub fn ips(pair: &IpPair) -> (IpAddr, IpAddr) {
    match *pair {
        IpPair::V4 { src, dst } => (src.into(), dst.into()),
        IpPair::V6 { src, dst } => (src.into(), dst.into()),
    }
}

impl Packet {
    /// A received packet with these addresses; `payload` is BTH to ICRC. `None` if it is too short.
    pub fn new(addresses: IpPair, port: u16, payload: Vec<u8>) -> Option<Self> {
        (payload.len() >= BTH + ICRC_SIZE).then_some(Self { addresses, port, payload })
    }

    /// Parses a frame. `None` if it is not a RoCE v2 packet, or truncated.
    pub fn of_frame(frame: &[u8]) -> Option<Self> {
        let ethernet = Ethernet::read(frame.get(..Ethernet::SIZE)?);
        let ip = frame.get(Ethernet::SIZE..)?;
        let (addresses, header, total) = match ethernet.ethertype() {
            EtherType::IPV4 => {
                let v4 = Ipv4::read(ip.get(..Ipv4::SIZE)?);
                if v4.ihl() != 5 || v4.protocol() != PROTO_UDP {
                    return None;
                }
                (IpPair::V4 { src: v4.src(), dst: v4.dst() }, Ipv4::SIZE, usize::from(v4.total_len()))
            }
            EtherType::IPV6 => {
                let v6 = Ipv6::read(ip.get(..Ipv6::SIZE)?);
                if v6.next_header() != PROTO_UDP {
                    return None;
                }
                let total = Ipv6::SIZE + usize::from(v6.payload_len());
                (IpPair::V6 { src: v6.src(), dst: v6.dst() }, Ipv6::SIZE, total)
            }
            _ => return None,
        };
        let packet = ip.get(..total)?;
        let udp = Udp::read(packet.get(header..header + Udp::SIZE)?);
        let payload = packet.get(header + Udp::SIZE..)?;
        if udp.dst_port() != ROCE_PORT {
            return None;
        }
        let mut made = Self::new(addresses, udp.src_port(), payload.to_vec())?;
        let right = Icrc::new(packet.get(..total - ICRC_SIZE)?).finish();
        made.carry_over(right, made.port);
        Some(made)
    }

    /// BTH to ICRC.
    pub fn payload(&self) -> &[u8] {
        &self.payload
    }

    /// Changes the source port.
    pub fn with_port(mut self, port: u16) -> Self {
        let right = self.icrc(0);
        self.carry_over(right, port);
        self
    }

    /// The packet with its Ethernet header: from `src` to `dst`.
    pub fn frame(&self, src: [u8; 6], dst: [u8; 6]) -> Vec<u8> {
        let ethertype = match self.addresses {
            IpPair::V4 { .. } => EtherType::IPV4,
            IpPair::V6 { .. } => EtherType::IPV6,
        };
        let mut ethernet = Ethernet::zeroed();
        ethernet.set().dst(dst).src(src).ethertype(ethertype);
        [ethernet.bytes(), &self.headers(0), &self.payload].concat()
    }

    /// Handles a packet from a peer that sets the IPv4 identification, which a socket does not report: if some identification makes the
    /// ICRC right, assumes it and makes the ICRC right for identification 0. 16 of the 32 bits still detect damage.
    pub fn without_identification(&mut self) {
        let IpPair::V4 { .. } = self.addresses else { return };
        let difference = xor(self.icrc(0), self.sum());
        if difference == [0; ICRC_SIZE] {
            return;
        }
        // CRCs are linear: an identification changes the sum by the changes that its bits make.
        let none = self.icrc(0);
        let mut rest = u32::from_le_bytes(difference);
        let mut basis: Vec<u32> = Vec::with_capacity(16);
        for bit in 0..16 {
            let change = u32::from_le_bytes(xor(self.icrc(1 << bit), none));
            let change = reduce(change, &basis);
            if change != 0 {
                basis.push(change);
                basis.sort_unstable_by_key(|b| b.leading_zeros());
            }
        }
        rest = reduce(rest, &basis);
        if rest == 0 {
            let at = self.payload.len() - ICRC_SIZE;
            self.payload[at..].copy_from_slice(&none);
        }
    }

    /// The IP and UDP headers as the kernel writes them, except for checksums.
    fn headers(&self, identification: u16) -> Vec<u8> {
        let udp_len = Udp::SIZE + self.payload.len();
        let mut udp = Udp::zeroed();
        udp.set().src_port(self.port).dst_port(ROCE_PORT).length(udp_len as u16);
        match self.addresses {
            IpPair::V4 { src, dst } => {
                let mut ip = Ipv4::zeroed();
                ip.set()
                    .version(4)
                    .ihl(5)
                    .total_len((Ipv4::SIZE + udp_len) as u16)
                    .identification(identification)
                    .dont_fragment(true)
                    .ttl(64)
                    .protocol(PROTO_UDP)
                    .src(src)
                    .dst(dst);
                let checksum = ip.expected_checksum();
                ip.set().checksum(checksum);
                [ip.bytes(), udp.bytes()].concat()
            }
            IpPair::V6 { src, dst } => {
                let mut ip = Ipv6::zeroed();
                ip.set()
                    .version(6)
                    .payload_len(udp_len as u16)
                    .next_header(PROTO_UDP)
                    .hop_limit(64)
                    .src(src)
                    .dst(dst);
                [ip.bytes(), udp.bytes()].concat()
            }
        }
    }

    /// The right ICRC for `identification`.
    fn icrc(&self, identification: u16) -> [u8; ICRC_SIZE] {
        let body = &self.payload[..self.payload.len() - ICRC_SIZE];
        Icrc::new(&[&self.headers(identification), body].concat()).finish()
    }

    /// The ICRC it carries.
    fn sum(&self) -> [u8; ICRC_SIZE] {
        self.payload.last_chunk().copied().unwrap_or_default()
    }

    /// Changes the source port, and adjusts the ICRC so that its difference from the right one stays; `right` is the right one for the old
    /// port.
    fn carry_over(&mut self, right: [u8; ICRC_SIZE], port: u16) {
        let damage = xor(self.sum(), right);
        self.port = port;
        let sum = xor(self.icrc(0), damage);
        let at = self.payload.len() - ICRC_SIZE;
        self.payload[at..].copy_from_slice(&sum);
    }
}

fn xor(a: [u8; ICRC_SIZE], b: [u8; ICRC_SIZE]) -> [u8; ICRC_SIZE] {
    (u32::from_le_bytes(a) ^ u32::from_le_bytes(b)).to_le_bytes()
}

/// Reduces `value` by `basis` over GF(2); `basis` has distinct highest bits, highest first.
fn reduce(value: u32, basis: &[u32]) -> u32 {
    basis.iter().fold(value, |rest, b| rest.min(rest ^ b))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn packet(addresses: IpPair) -> Packet {
        let mut made = Packet { addresses, port: 0xc123, payload: (0..80).collect() };
        let right = made.icrc(0);
        made.payload[76..].copy_from_slice(&right);
        made
    }

    const V4: IpPair = IpPair::V4 { src: [10, 0, 0, 1], dst: [10, 0, 0, 2] };
    const V6: IpPair = IpPair::V6 { src: [0xfd; 16], dst: [0xfe; 16] };

    #[test]
    fn a_packet_becomes_a_frame_and_back() {
        for addresses in [V4, V6] {
            let packet = packet(addresses);
            let frame = packet.frame([1; 6], [2; 6]);
            assert_eq!(frame[..6], [2; 6]);
            assert_eq!(Packet::of_frame(&frame).unwrap(), packet);
            assert!((0..frame.len()).all(|len| Packet::of_frame(&frame[..len]).is_none()));
        }
    }

    #[test]
    fn another_port_makes_another_icrc_and_damage_stays_damage() {
        for addresses in [V4, V6] {
            let moved = packet(addresses).with_port(4791);
            assert_eq!((moved.port, moved.sum()), (4791, moved.icrc(0)));
            assert_ne!(moved.sum(), packet(addresses).sum());
            let mut damaged = packet(addresses);
            damaged.payload[20] ^= 4;
            let damaged = damaged.with_port(4791);
            assert_ne!(damaged.sum(), damaged.icrc(0));
        }
    }

    #[test]
    fn an_unknown_identification_is_found_and_damage_is_not_taken_for_one() {
        for identification in [0, 1, 0x8000, 0xbeef] {
            let mut made = packet(V4);
            let sum = made.icrc(identification);
            made.payload[76..].copy_from_slice(&sum);
            made.without_identification();
            assert_eq!(made.sum(), made.icrc(0), "{identification:#x}");
        }
        let mut kept = 0;
        for at in 0..76 {
            let mut damaged = packet(V4);
            damaged.payload[at] ^= 0x40;
            damaged.without_identification();
            kept += u32::from(damaged.sum() != damaged.icrc(0));
        }
        // The byte of the BTH with the congestion bits is not covered at all.
        assert_eq!(kept, 75);
    }
}
