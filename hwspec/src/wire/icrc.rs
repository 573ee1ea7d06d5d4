//! Invariant CRC of RoCEv2 and InfiniBand (IBTA 7.8.1, annex A17.3.1).
//!
//! On InfiniBand: CRC-32 (Ethernet's) over the packet from its LRH to its last pad byte, with the virtual lane and the
//! BTH byte of FECN and BECN replaced by ones. If there is a GRH, routers replace the LRH; then the whole LRH is taken
//! as ones, and so are traffic class, flow label and hop limit of the GRH. Captures from real cards agree with this.
//!
//! On RoCEv2: CRC-32 (Ethernet's) over 8 bytes of ones in place of an LRH, then the packet from its IP header to its
//! last pad byte, with every field that a router may change replaced by ones: IPv4 TOS, TTL and checksum; IPv6 traffic
//! class, flow label and hop limit; UDP checksum; the BTH byte of FECN and BECN.
use crate::layout::prefix;

const LRH: usize = 8;
const V4: usize = 20;
const V6: usize = 40;
const UDP: usize = 8;
const BTH: usize = 12;

/// An ICRC computation in progress.
#[derive(Clone, Debug)]
pub struct Icrc(crc32fast::Hasher);

impl Icrc {
    /// Starts with `headers`: IP, UDP and BTH, and any part of the packet after them in the same slice. A slice too
    /// short for its headers is zero-padded, and its CRC is meaningless.
    #[inline]
    pub fn new(headers: &[u8]) -> Self {
        let mut hasher = crc32fast::Hasher::new();
        let v6 = headers.first().is_some_and(|b| b >> 4 == 6);
        let len = if v6 { V6 } else { V4 } + UDP + BTH;
        if v6 {
            hasher.update(&masked_v6(prefix(headers)));
        } else {
            hasher.update(&masked_v4(prefix(headers)));
        }
        hasher.update(headers.get(len..).unwrap_or_default());
        Self(hasher)
    }

    /// Starts with the headers of a packet that begins with an LRH, and any part of the packet after them.
    pub fn of_route(headers: &[u8]) -> Self {
        let global = headers.get(1).is_some_and(|b| b & 3 == 3);
        let network = if global { V6 } else { 0 };
        let len = LRH + network + BTH;
        let mut m: [u8; LRH + V6 + BTH] = prefix(headers);
        m[0] |= 0xf0;
        if global {
            m[..LRH].fill(0xff);
            m[LRH] |= 0x0f;
            m[LRH + 1..LRH + 4].fill(0xff);
            m[LRH + 7] = 0xff;
        }
        m[LRH + network + 4] = 0xff;
        let mut hasher = crc32fast::Hasher::new();
        hasher.update(&m[..len]);
        hasher.update(headers.get(len..).unwrap_or_default());
        Self(hasher)
    }

    /// Continues with `bytes`: extended headers, payload, pad.
    #[inline]
    pub fn update(&mut self, bytes: &[u8]) -> &mut Self {
        self.0.update(bytes);
        self
    }

    /// The ICRC in wire order.
    #[inline]
    pub fn finish(self) -> [u8; 4] {
        self.0.finalize().to_le_bytes()
    }
}

#[inline]
fn masked_v4(h: [u8; V4 + UDP + BTH]) -> [u8; LRH + V4 + UDP + BTH] {
    let mut m = [0xff; LRH + V4 + UDP + BTH];
    m[LRH..].copy_from_slice(&h);
    let ip = LRH;
    m[ip + 1] = 0xff;
    m[ip + 8] = 0xff;
    m[ip + 10..ip + 12].fill(0xff);
    mask_transport(&mut m[ip + V4..]);
    m
}

#[inline]
fn masked_v6(h: [u8; V6 + UDP + BTH]) -> [u8; LRH + V6 + UDP + BTH] {
    let mut m = [0xff; LRH + V6 + UDP + BTH];
    m[LRH..].copy_from_slice(&h);
    let ip = LRH;
    m[ip] |= 0x0f;
    m[ip + 1..ip + 4].fill(0xff);
    m[ip + 7] = 0xff;
    mask_transport(&mut m[ip + V6..]);
    m
}

#[inline]
fn mask_transport(udp_bth: &mut [u8]) {
    udp_bth[6..8].fill(0xff);
    udp_bth[UDP + 4] = 0xff;
}

#[cfg(test)]
mod tests {
    use super::*;
    extern crate std;
    use std::vec::Vec;

    fn bytes(hex: &str) -> Vec<u8> {
        (0..hex.len()).step_by(2).map(|i| u8::from_str_radix(&hex[i..i + 2], 16).unwrap()).collect()
    }

    const REST: &str = "2460ffff000000d300cf17104630818be28935d90e9a95505401be885e500000";

    fn v4() -> Vec<u8> {
        let mut p = bytes("45010040047840004011b4d5c0a80007c0a80007c00012b7002caca2");
        p.extend(bytes(REST));
        p
    }

    fn v6() -> Vec<u8> {
        let mut p = bytes("6e21face002c11ff2022000000000000000000000000102320230000000000000000000000001024");
        p.extend(bytes("c00012b7002ce7c5"));
        p.extend(bytes(REST));
        p
    }

    #[test]
    fn uc_send_only_over_ipv4() {
        assert_eq!(Icrc::new(&v4()).finish(), [0x78, 0xf3, 0x53, 0xf3]);
    }

    #[test]
    fn uc_send_only_over_ipv6() {
        assert_eq!(Icrc::new(&v6()).finish(), [0x3e, 0x5b, 0x74, 0x3b]);
    }

    /// A router forwards a global packet to another subnet and replaces its LRH.
    #[test]
    fn a_global_packet_has_one_icrc_whatever_its_lrh_says_and_a_local_one_has_not() {
        let grh = "60000000001c1bff20220000000000000000000000010123202300000000000000000000000010240455ffff00ffffff00076128";
        let packet = |lrh: &str, rest: &str| {
            let mut p = bytes(lrh);
            p.extend(bytes(rest));
            Icrc::of_route(&p).finish()
        };
        assert_eq!(packet("0003000500120007", grh), packet("7023c00000120066", grh));
        // CRC-32 of eight bytes of ones, then of the packet with ones in the fields that routers change.
        let masked = grh.replacen("60000000001c1bff", "6fffffff001c1bff", 1).replacen(
            "0455ffff00ff",
            "0455ffffffff",
            1,
        );
        let mut ones = std::vec![0xff; 8];
        ones.extend(bytes(&masked));
        assert_eq!(packet("0003000500120007", grh), crc32fast::hash(&ones).to_le_bytes());
        let local = "0455ffff00ffffff00076128";
        assert_eq!(packet("0002000500060007", local), packet("5002000500060007", local), "the virtual lane");
        assert_ne!(packet("0002000500060007", local), packet("0002000600060007", local), "the destination");
    }

    #[test]
    fn pieces_give_the_same_as_the_whole() {
        for packet in [v4(), v6()] {
            let headers = if packet[0] >> 4 == 6 { 60 } else { 40 };
            for cut in headers..packet.len() {
                let mut icrc = Icrc::new(&packet[..cut]);
                icrc.update(&packet[cut..]);
                assert_eq!(icrc.finish(), Icrc::new(&packet).finish());
            }
        }
    }

    #[test]
    fn a_router_may_change_what_it_may_and_nothing_else() {
        for packet in [v4(), v6()] {
            let ip = if packet[0] >> 4 == 6 { 40 } else { 20 };
            let whole = Icrc::new(&packet).finish();
            for i in 0..packet.len() {
                let variant = match (ip, i) {
                    (20, 1 | 8 | 10 | 11) | (40, 0..=3 | 7) => true,
                    _ => i == ip + 6 || i == ip + 7 || i == ip + 12,
                };
                let mut changed = packet.clone();
                changed[i] ^= 0x01;
                assert_eq!(Icrc::new(&changed).finish() == whole, variant, "byte {i}");
            }
        }
    }
}
