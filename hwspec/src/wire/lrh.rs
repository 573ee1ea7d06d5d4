//! InfiniBand link layer: local route header, global route header, variant CRC (IBTA 7.7, 7.8, 8.3).
use super::{Bth, ICRC_SIZE, Icrc, Ipv6, Packet, build::Writer, pad};
use crate::hw_layout;

/// Bytes of the VCRC at the end of a packet on an InfiniBand link.
pub const VCRC_SIZE: usize = 2;
/// `next_header` of a GRH: an InfiniBand transport header follows (IBTA 8.3).
pub const GRH_NEXT_HEADER: u8 = 0x1b;
/// The LID that every port accepts: the permissive one (IBTA 4.1.3).
pub const PERMISSIVE_LID: u16 = 0xffff;
/// First multicast LID (IBTA 4.1.3).
pub const FIRST_MULTICAST_LID: u16 = 0xc000;
/// Destination QP of a multicast packet (IBTA 9.6.1.2.1).
pub const MULTICAST_QPN: u32 = 0xff_ffff;
/// Maximum length of a packet from LRH to ICRC: 11 bits of words.
const MAX_LEN: usize = 0x7ff * 4;

/// True if `lid` is a multicast LID.
#[inline]
pub const fn is_multicast(lid: u16) -> bool {
    lid >= FIRST_MULTICAST_LID && lid != PERMISSIVE_LID
}

hw_layout! {
    /// Link next header (IBTA 7.7.5).
    pub enum Lnh: u8, 2 bits {
        /// Raw, EtherType.
        Raw = 0,
        /// Raw, IPv6.
        Ipv6 = 1,
        /// A BTH follows.
        Local = 2,
        /// A GRH follows, then a BTH.
        Global = 3,
    }

    /// Local route header.
    pub struct Lrh: 8 {
        0x00 [31:28] vl: u8,
        0x00 [27:24] link_version: u8,
        0x00 [23:20] sl: u8,
        0x00 [17:16] lnh: Lnh,
        0x00 [15: 0] dlid: u16,
        /// Length in words from here to the ICRC, inclusive.
        0x04 [26:16] packet_len: u16,
        0x04 [15: 0] slid: u16,
    }
}

/// The destination LID of a frame that starts with an LRH.
#[inline]
pub fn dlid(frame: &[u8]) -> Option<u16> {
    frame.get(2..4).map(|b| u16::from_be_bytes([b[0], b[1]]))
}

/// Addresses of a packet with a GRH.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Grh {
    /// Source GID.
    pub sgid: [u8; 16],
    /// Destination GID.
    pub dgid: [u8; 16],
    /// Traffic class.
    pub traffic_class: u8,
    /// 20 bits.
    pub flow_label: u32,
    /// Hop limit.
    pub hop_limit: u8,
}

/// Addresses and options of the headers before the BTH on InfiniBand.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Route {
    /// Virtual lane; 15 is for subnet management.
    pub vl: u8,
    /// Service level.
    pub sl: u8,
    /// Destination LID.
    pub dlid: u16,
    /// Source LID.
    pub slid: u16,
    /// Global route, if the packet has one.
    pub grh: Option<Grh>,
}

/// Writes everything up to the payload and returns its length; payload, pad, ICRC and VCRC are up to the caller.
/// Returns `None` and writes nothing if `out` is too short or the packet exceeds the maximum length of an LRH.
pub fn write_route(out: &mut [u8], route: &Route, packet: &Packet, payload_len: usize) -> Option<usize> {
    let opcode = packet.bth.opcode();
    let pad = pad(payload_len);
    let network = if route.grh.is_some() { Ipv6::SIZE } else { 0 };
    let transport = Bth::SIZE + opcode.ext_len();
    let behind = (transport + pad + ICRC_SIZE).checked_add(payload_len)?;
    let all = Lrh::SIZE + network + behind;
    if all > MAX_LEN {
        return None;
    }
    let len = Lrh::SIZE + network + transport;
    let mut w = Writer::new(out.get_mut(..len)?);
    let mut lrh = Lrh::zeroed();
    lrh.set().vl(route.vl & 15).sl(route.sl & 15).dlid(route.dlid).slid(route.slid);
    lrh.set().lnh(if route.grh.is_some() { Lnh::Global } else { Lnh::Local }).packet_len((all / 4) as u16);
    w.put(&lrh);
    if let Some(grh) = route.grh {
        let mut ip = Ipv6::zeroed();
        ip.set().version(6).dscp(grh.traffic_class >> 2).ecn(grh.traffic_class & 3);
        ip.set().flow_label(grh.flow_label & 0xf_ffff).payload_len(behind as u16);
        ip.set().next_header(GRH_NEXT_HEADER).hop_limit(grh.hop_limit).src(grh.sgid).dst(grh.dgid);
        w.put(&ip);
    }
    w.put_transport(packet, pad);
    Some(len)
}

/// Writes a whole frame, including ICRC and VCRC, and returns its length. Returns `None` as [`write_route`] does;
/// `out` may then be partially written.
pub fn write_routed(out: &mut [u8], route: &Route, packet: &Packet, payload: &[u8]) -> Option<usize> {
    let start = write_route(out, route, packet, payload.len())?;
    let end = start + payload.len() + pad(payload.len());
    let frame = out.get_mut(..end + ICRC_SIZE + VCRC_SIZE)?;
    frame[start..start + payload.len()].copy_from_slice(payload);
    frame[start + payload.len()..end].fill(0);
    let icrc = Icrc::of_route(&frame[..end]).finish();
    frame[end..end + ICRC_SIZE].copy_from_slice(&icrc);
    let vcrc = vcrc(&frame[..end + ICRC_SIZE]);
    frame[end + ICRC_SIZE..].copy_from_slice(&vcrc);
    Some(frame.len())
}

/// `0x100b` with its bits reversed (IBTA 7.8.2).
const POLYNOMIAL: u16 = 0xd008;

const TABLE: [u16; 256] = {
    let mut table = [0; 256];
    let mut i = 0;
    while i < 256 {
        let mut crc = i as u16;
        let mut bit = 0;
        while bit < 8 {
            crc = if crc & 1 != 0 { crc >> 1 ^ POLYNOMIAL } else { crc >> 1 };
            bit += 1;
        }
        table[i] = crc;
        i += 1;
    }
    table
};

/// The VCRC of a packet from LRH to ICRC, in wire order.
pub fn vcrc(bytes: &[u8]) -> [u8; VCRC_SIZE] {
    let crc = bytes.iter().fold(!0u16, |crc, byte| crc >> 8 ^ TABLE[usize::from(crc as u8 ^ byte)]);
    (!crc).to_le_bytes()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_vcrc_notices_every_single_bit() {
        let frame = [0x5a; 40];
        let whole = vcrc(&frame);
        for bit in 0..frame.len() * 8 {
            let mut changed = frame;
            changed[bit / 8] ^= 1 << (bit % 8);
            assert_ne!(vcrc(&changed), whole, "bit {bit}");
        }
    }

    #[test]
    fn a_crc_behind_its_message_leaves_the_residue_of_the_polynomial() {
        let mut frame = [0x17; 42];
        let crc = vcrc(&frame[..40]);
        frame[40..].copy_from_slice(&crc);
        let mut other = [0; 12];
        let crc = vcrc(&other[..10]);
        other[10..].copy_from_slice(&crc);
        assert_eq!(vcrc(&frame), vcrc(&other));
    }
}
