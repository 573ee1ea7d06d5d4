//! RoCE v2: conversion between the model's frames and packets of a kernel that writes IP and UDP headers itself.
//!
//! The ICRC covers the headers as they are on the wire (annex A17.3.1), so it is recomputed for the kernel's headers: the same addresses,
//! another source port, and for IPv4 what Linux uses for an unconnected socket that forbids fragments: identification 0 and DF. A wrong
//! ICRC stays wrong: its difference from the right one is preserved.

use hwspec::{
    layout::Layout,
    wire::{EtherType, ICRC_SIZE, Icrc, IpPair, Ipv4, Ipv6, ROCE_PORT, Udp, eth::Ethernet, ip::PROTO_UDP},
};
use node::Frames;
use std::net::IpAddr;

/// Bytes of a BTH.
const BTH: usize = 12;

/// A RoCE v2 packet without its link header.
#[derive(Debug, PartialEq, Eq)]
pub struct Packet<'a> {
    /// Source and destination.
    pub addresses: IpPair,
    /// UDP source port.
    port: u16,
    /// BTH to pad.
    body: &'a [u8],
    icrc: [u8; ICRC_SIZE],
}

/// The addresses of an [`IpPair`].
pub fn ips(pair: &IpPair) -> (IpAddr, IpAddr) {
    match *pair {
        IpPair::V4 { src, dst } => (src.into(), dst.into()),
        IpPair::V6 { src, dst } => (src.into(), dst.into()),
    }
}

impl<'a> Packet<'a> {
    /// A received packet with these addresses; `payload` is BTH to ICRC. `None` if it is too short.
    pub fn new(addresses: IpPair, port: u16, payload: &'a [u8]) -> Option<Self> {
        let (body, icrc) = payload.split_last_chunk()?;
        (body.len() >= BTH).then_some(Self { addresses, port, body, icrc: *icrc })
    }

    /// The packet in a frame, as it is sent from UDP port `port`. `None` if the frame holds no RoCE v2 packet, or is truncated.
    pub fn to_send(frame: &'a [u8], port: u16) -> Option<Self> {
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
        let mut made = Self::new(addresses, port, payload)?;
        let right = Icrc::new(packet.get(..total - ICRC_SIZE)?).finish();
        let damage = xor(made.icrc, right);
        made.icrc = xor(made.icrc(0), damage);
        Some(made)
    }

    /// BTH to ICRC.
    pub fn payload(&self) -> [&[u8]; 2] {
        [self.body, &self.icrc]
    }

    /// Appends the packet to `frames` with its Ethernet header: from `src` to `dst`.
    pub fn frame(&self, src: [u8; 6], dst: [u8; 6], frames: &mut Frames) {
        let ethertype = match self.addresses {
            IpPair::V4 { .. } => EtherType::IPV4,
            IpPair::V6 { .. } => EtherType::IPV6,
        };
        let mut ethernet = Ethernet::zeroed();
        ethernet.set().dst(dst).src(src).ethertype(ethertype);
        frames.push(&[ethernet.bytes(), &self.headers(0), self.body, &self.icrc]);
    }

    /// Handles a packet from a peer that sets the IPv4 identification, which a socket does not report: if some identification makes the
    /// ICRC right, assumes it and makes the ICRC right for identification 0. 16 of the 32 bits still detect damage.
    pub fn without_identification(&mut self) {
        let IpPair::V4 { .. } = self.addresses else { return };
        let none = self.icrc(0);
        let difference = xor(none, self.icrc);
        if difference == [0; ICRC_SIZE] {
            return;
        }
        // CRCs are linear: an identification changes the sum by the changes that its bits make.
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
            self.icrc = none;
        }
    }

    /// The IP and UDP headers as the kernel writes them, except for checksums.
    fn headers(&self, identification: u16) -> Vec<u8> {
        let udp_len = Udp::SIZE + self.body.len() + ICRC_SIZE;
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
        let (bth, rest) = self.body.split_at(BTH.min(self.body.len()));
        let mut icrc = Icrc::new(&[&self.headers(identification), bth].concat());
        icrc.update(rest);
        icrc.finish()
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

    fn packet(addresses: IpPair, body: &[u8]) -> Packet<'_> {
        let mut made = Packet { addresses, port: 0xc123, body, icrc: [0; ICRC_SIZE] };
        made.icrc = made.icrc(0);
        made
    }

    fn body() -> Vec<u8> {
        (0..76).collect()
    }

    fn framed(packet: &Packet<'_>) -> Vec<u8> {
        let mut frames = Frames::default();
        packet.frame([1; 6], [2; 6], &mut frames);
        frames.iter().flatten().copied().collect()
    }

    const V4: IpPair = IpPair::V4 { src: [10, 0, 0, 1], dst: [10, 0, 0, 2] };
    const V6: IpPair = IpPair::V6 { src: [0xfd; 16], dst: [0xfe; 16] };

    #[test]
    fn a_packet_becomes_a_frame_and_back() {
        for addresses in [V4, V6] {
            let body = body();
            let packet = packet(addresses, &body);
            let frame = framed(&packet);
            assert_eq!(frame[..6], [2; 6]);
            assert_eq!(Packet::to_send(&frame, packet.port).unwrap(), packet);
            assert!((0..frame.len()).all(|len| Packet::to_send(&frame[..len], packet.port).is_none()));
        }
    }

    #[test]
    fn another_port_makes_another_icrc_and_damage_stays_damage() {
        let body = body();
        for addresses in [V4, V6] {
            let packet = packet(addresses, &body);
            let mut frame = framed(&packet);
            let moved = Packet::to_send(&frame, 4791).unwrap();
            assert_eq!((moved.port, moved.icrc), (4791, moved.icrc(0)));
            assert_ne!(moved.icrc, packet.icrc);
            *frame.last_mut().unwrap() ^= 4;
            let damaged = Packet::to_send(&frame, 4791).unwrap();
            assert_ne!(damaged.icrc, damaged.icrc(0));
        }
    }

    #[test]
    fn an_unknown_identification_is_found_and_damage_is_not_taken_for_one() {
        let mut body = body();
        for identification in [0, 1, 0x8000, 0xbeef] {
            let mut made = packet(V4, &body);
            made.icrc = made.icrc(identification);
            made.without_identification();
            assert_eq!(made.icrc, made.icrc(0), "{identification:#x}");
        }
        let right = packet(V4, &body).icrc;
        let mut kept = 0;
        for at in 0..76 {
            body[at] ^= 0x40;
            let mut damaged = Packet { icrc: right, ..packet(V4, &body) };
            damaged.without_identification();
            kept += u32::from(damaged.icrc != damaged.icrc(0));
            body[at] ^= 0x40;
        }
        // The byte of the BTH with the congestion bits is not covered at all.
        assert_eq!(kept, 75);
    }
}
