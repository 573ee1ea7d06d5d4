//! From headers to a frame.
use super::ip::PROTO_UDP;
use super::*;
use crate::layout::Layout;

/// What carries a packet: everything before the BTH.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Envelope {
    /// Source MAC.
    pub src_mac: [u8; 6],
    /// Destination MAC.
    pub dst_mac: [u8; 6],
    /// 802.1Q tag; its EtherType is filled in.
    pub vlan: Option<Vlan>,
    /// Addresses; they choose IPv4 or IPv6.
    pub addresses: IpPair,
    /// DSCP and ECN.
    pub traffic_class: u8,
    /// TTL or hop limit.
    pub hop_limit: u8,
    /// IPv6 flow label (20 bits).
    pub flow_label: u32,
    /// IPv4 identification.
    pub identification: u16,
    /// UDP source port.
    pub src_port: u16,
}

impl Envelope {
    /// An untagged envelope with hop limit 64 and the first RoCEv2 source port.
    pub const fn new(src_mac: [u8; 6], dst_mac: [u8; 6], addresses: IpPair) -> Self {
        Self {
            src_mac,
            dst_mac,
            vlan: None,
            addresses,
            traffic_class: 0,
            hop_limit: 64,
            flow_label: 0,
            identification: 0,
            src_port: udp::MIN_SRC_PORT,
        }
    }
}

/// The transport headers of a packet. Of the extended ones, those its opcode calls for are written; the others are ignored.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[allow(missing_docs)]
pub struct Packet {
    /// `pad_count` is filled in from the payload's length.
    pub bth: Bth,
    pub deth: Deth,
    pub xrceth: XrcEth,
    pub reth: Reth,
    pub atomic: AtomicEth,
    pub aeth: Aeth,
    pub atomic_ack: AtomicAckEth,
    pub imm: u32,
    pub ieth: u32,
}

/// Bytes [`write_headers`] writes.
#[inline]
pub fn headers_len(envelope: &Envelope, opcode: BthOpcode) -> usize {
    let vlan = if envelope.vlan.is_some() { Vlan::SIZE } else { 0 };
    let ip = match envelope.addresses {
        IpPair::V4 { .. } => Ipv4::SIZE,
        IpPair::V6 { .. } => Ipv6::SIZE,
    };
    Ethernet::SIZE + vlan + ip + Udp::SIZE + Bth::SIZE + opcode.ext_len()
}

/// Bytes of the frame with `payload_len` bytes of payload: headers, payload, pad, ICRC.
#[inline]
pub fn frame_len(envelope: &Envelope, opcode: BthOpcode, payload_len: usize) -> usize {
    headers_len(envelope, opcode) + payload_len + pad(payload_len) + ICRC_SIZE
}

/// Writes everything up to the payload and returns its length; payload, pad and ICRC are the caller's. Returns `None`
/// and writes nothing if `out` is too short or the packet longer than IP can say.
pub fn write_headers(
    out: &mut [u8],
    envelope: &Envelope,
    packet: &Packet,
    payload_len: usize,
) -> Option<usize> {
    let opcode = packet.bth.opcode();
    let len = headers_len(envelope, opcode);
    let pad = pad(payload_len);
    let v6 = matches!(envelope.addresses, IpPair::V6 { .. });
    let datagram = (Udp::SIZE + Bth::SIZE + opcode.ext_len() + ICRC_SIZE + pad).checked_add(payload_len)?;
    let ip_len = u16::try_from(datagram + if v6 { 0 } else { Ipv4::SIZE }).ok()?;
    let mut w = Writer::new(out.get_mut(..len)?);

    if let (IpPair::V4 { src, dst }, None) = (envelope.addresses, envelope.vlan) {
        w.put_plain_v4(envelope, src, dst, [ip_len, datagram as u16]);
        w.put_transport(packet, pad);
        return Some(len);
    }
    let ethertype = if v6 { EtherType::IPV6 } else { EtherType::IPV4 };
    let mut eth = Ethernet::zeroed();
    eth.set().dst(envelope.dst_mac).src(envelope.src_mac);
    eth.set().ethertype(if envelope.vlan.is_some() { EtherType::VLAN } else { ethertype });
    w.put(&eth);
    if let Some(mut vlan) = envelope.vlan {
        vlan.set().ethertype(ethertype.raw());
        w.put(&vlan);
    }
    let (dscp, ecn) = (envelope.traffic_class >> 2, envelope.traffic_class & 3);
    match envelope.addresses {
        IpPair::V4 { src, dst } => {
            let mut ip = Ipv4::zeroed();
            ip.set().version(4).ihl(5).dscp(dscp).ecn(ecn).total_len(ip_len);
            ip.set().identification(envelope.identification).dont_fragment(true);
            ip.set().ttl(envelope.hop_limit).protocol(PROTO_UDP).src(src).dst(dst);
            let checksum = ip.expected_checksum();
            ip.set().checksum(checksum);
            w.put(&ip);
        }
        IpPair::V6 { src, dst } => {
            let mut ip = Ipv6::zeroed();
            ip.set().version(6).dscp(dscp).ecn(ecn).flow_label(envelope.flow_label & 0xf_ffff);
            ip.set().payload_len(ip_len).next_header(PROTO_UDP).hop_limit(envelope.hop_limit);
            ip.set().src(src).dst(dst);
            w.put(&ip);
        }
    }
    let mut udp = Udp::zeroed();
    udp.set().src_port(envelope.src_port).dst_port(ROCE_PORT).length(datagram as u16);
    w.put(&udp);
    w.put_transport(packet, pad);
    Some(len)
}

/// Writes a whole frame, payload, pad and ICRC included, and returns its length. Returns `None` if `out` is too short or
/// the packet longer than IP can say; `out` may then be written in part.
pub fn write_frame(out: &mut [u8], envelope: &Envelope, packet: &Packet, payload: &[u8]) -> Option<usize> {
    let start = write_headers(out, envelope, packet, payload.len())?;
    let end = start + payload.len() + pad(payload.len());
    let frame = out.get_mut(..end + ICRC_SIZE)?;
    frame[start..start + payload.len()].copy_from_slice(payload);
    frame[start + payload.len()..end].fill(0);
    let ip = Ethernet::SIZE + if envelope.vlan.is_some() { Vlan::SIZE } else { 0 };
    let icrc = Icrc::new(&frame[ip..end]).finish();
    frame[end..].copy_from_slice(&icrc);
    Some(end + ICRC_SIZE)
}

/// Headers into room that is known to hold them.
pub(super) struct Writer<'a> {
    out: &'a mut [u8],
    at: usize,
}

impl<'a> Writer<'a> {
    pub(super) fn new(out: &'a mut [u8]) -> Self {
        Self { out, at: 0 }
    }

    /// Ethernet, IPv4 and UDP without a tag, in one go: what nearly every packet of a simulation has.
    #[inline]
    fn put_plain_v4(&mut self, envelope: &Envelope, src: [u8; 4], dst: [u8; 4], lens: [u16; 2]) {
        const IP: usize = Ethernet::SIZE;
        const UDP: usize = IP + Ipv4::SIZE;
        let mut all = [0; UDP + Udp::SIZE];
        all[..6].copy_from_slice(&envelope.dst_mac);
        all[6..12].copy_from_slice(&envelope.src_mac);
        all[12..IP].copy_from_slice(&EtherType::IPV4.raw().to_be_bytes());
        // Version 4, five words; do not fragment.
        let first = 0x4500_0000 | u32::from(envelope.traffic_class) << 16 | u32::from(lens[0]);
        let second = u32::from(envelope.identification) << 16 | 0x4000;
        let third = u32::from(envelope.hop_limit) << 24 | u32::from(PROTO_UDP) << 16;
        let checksum = ip::checksum([first, second, third, u32::from_be_bytes(src), u32::from_be_bytes(dst)]);
        let third = third | u32::from(checksum);
        let words = [first, second, third].map(u32::to_be_bytes);
        for (at, word) in [words[0], words[1], words[2], src, dst].iter().enumerate() {
            all[IP + 4 * at..IP + 4 * at + 4].copy_from_slice(word);
        }
        all[UDP..UDP + 2].copy_from_slice(&envelope.src_port.to_be_bytes());
        all[UDP + 2..UDP + 4].copy_from_slice(&ROCE_PORT.to_be_bytes());
        all[UDP + 4..UDP + 6].copy_from_slice(&lens[1].to_be_bytes());
        self.put_bytes(&all);
    }

    #[inline(always)]
    fn put_bytes<const N: usize>(&mut self, bytes: &[u8; N]) {
        self.out[self.at..self.at + N].copy_from_slice(bytes);
        self.at += N;
    }

    /// BTH and extended headers of a packet with `pad` bytes of pad.
    #[inline]
    pub(super) fn put_transport(&mut self, packet: &Packet, pad: usize) {
        let mut bth = packet.bth;
        bth.set().pad_count(pad as u8);
        self.put(&bth);
        // Most packets have none, or are acknowledgements.
        match bth.opcode() {
            opcode if opcode.ext_len() == 0 => {}
            BthOpcode::RcAck => self.put(&packet.aeth),
            opcode => self.put_extended(opcode, packet),
        }
    }

    #[inline(always)]
    pub(super) fn put<T: Layout>(&mut self, header: &T) {
        self.out[self.at..self.at + T::SIZE].copy_from_slice(header.bytes());
        self.at += T::SIZE;
    }

    fn put_extended(&mut self, opcode: BthOpcode, packet: &Packet) {
        if opcode.has_deth() {
            self.put(&packet.deth);
        }
        if opcode.has_xrceth() {
            self.put(&packet.xrceth);
        }
        if opcode.has_reth() {
            self.put(&packet.reth);
        }
        if opcode.has_atomic_eth() {
            self.put(&packet.atomic);
        }
        if opcode.has_aeth() {
            self.put(&packet.aeth);
        }
        if opcode.has_atomic_ack_eth() {
            self.put(&packet.atomic_ack);
        }
        if opcode.has_imm() {
            self.put(&packet.imm.to_be_bytes());
        }
        if opcode.has_ieth() {
            self.put(&packet.ieth.to_be_bytes());
        }
        // What is left is reserved (CNP).
        if self.at < self.out.len() {
            self.out[self.at..].fill(0);
        }
    }
}
