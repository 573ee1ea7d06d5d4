//! Builds frames from headers.
use super::ip::PROTO_UDP;
use super::*;
use crate::layout::{self, Layout};

/// Addresses and options of the headers before the BTH.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Envelope {
    /// Source MAC.
    pub src_mac: [u8; 6],
    /// Destination MAC.
    pub dst_mac: [u8; 6],
    /// 802.1Q tag; its EtherType is filled in.
    pub vlan: Option<Vlan>,
    /// Addresses; they determine IPv4 or IPv6.
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

/// The transport headers of a packet. Only the extended headers required by its opcode are written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[allow(missing_docs)]
pub struct Packet {
    /// `pad_count` is computed from the length of the payload.
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

/// Number of bytes written by [`write_headers`].
#[inline]
pub fn headers_len(envelope: &Envelope, opcode: BthOpcode) -> usize {
    let vlan = if envelope.vlan.is_some() { Vlan::SIZE } else { 0 };
    let ip = match envelope.addresses {
        IpPair::V4 { .. } => Ipv4::SIZE,
        IpPair::V6 { .. } => Ipv6::SIZE,
    };
    Ethernet::SIZE + vlan + ip + Udp::SIZE + Bth::SIZE + opcode.ext_len()
}

/// Length of a frame with `payload_len` bytes of payload: headers, payload, pad, ICRC.
#[inline]
pub fn frame_len(envelope: &Envelope, opcode: BthOpcode, payload_len: usize) -> usize {
    headers_len(envelope, opcode) + payload_len + pad(payload_len) + ICRC_SIZE
}

/// Bytes of Ethernet, IPv4 and UDP headers without a tag, the start of nearly every simulated packet.
const PLAIN: usize = Ethernet::SIZE + Ipv4::SIZE + Udp::SIZE;

/// The headers before the BTH for the packets of one flow, which differ only in lengths and the checksum over them.
#[derive(Clone, Copy, Debug)]
pub struct Head {
    bytes: [u8; Ethernet::SIZE + Vlan::SIZE + Ipv6::SIZE + Udp::SIZE],
    len: u8,
    /// Offset of the IP header.
    ip: u8,
    v6: bool,
    /// Sum of the IPv4 header's words, without length and checksum.
    sum: u64,
}

impl Head {
    /// The headers for `envelope`, without lengths.
    pub fn new(envelope: &Envelope) -> Self {
        let v6 = matches!(envelope.addresses, IpPair::V6 { .. });
        let mut head = Self {
            bytes: [0; Ethernet::SIZE + Vlan::SIZE + Ipv6::SIZE + Udp::SIZE],
            len: 0,
            ip: 0,
            v6,
            sum: 0,
        };
        let mut w = Writer::new(&mut head.bytes);
        let ethertype = if v6 { EtherType::IPV6 } else { EtherType::IPV4 };
        let mut eth = Ethernet::zeroed();
        eth.set().dst(envelope.dst_mac).src(envelope.src_mac);
        eth.set().ethertype(if envelope.vlan.is_some() { EtherType::VLAN } else { ethertype });
        w.put(&eth);
        if let Some(mut vlan) = envelope.vlan {
            vlan.set().ethertype(ethertype.raw());
            w.put(&vlan);
        }
        head.ip = w.at as u8;
        let (dscp, ecn) = (envelope.traffic_class >> 2, envelope.traffic_class & 3);
        match envelope.addresses {
            IpPair::V4 { src, dst } => {
                let mut ip = Ipv4::zeroed();
                ip.set().version(4).ihl(5).dscp(dscp).ecn(ecn);
                ip.set().identification(envelope.identification).dont_fragment(true);
                ip.set().ttl(envelope.hop_limit).protocol(PROTO_UDP).src(src).dst(dst);
                head.sum = ip.sum();
                w.put(&ip);
            }
            IpPair::V6 { src, dst } => {
                let mut ip = Ipv6::zeroed();
                ip.set().version(6).dscp(dscp).ecn(ecn).flow_label(envelope.flow_label & 0xf_ffff);
                ip.set().next_header(PROTO_UDP).hop_limit(envelope.hop_limit);
                ip.set().src(src).dst(dst);
                w.put(&ip);
            }
        }
        let mut udp = Udp::zeroed();
        udp.set().src_port(envelope.src_port).dst_port(ROCE_PORT);
        w.put(&udp);
        head.len = w.at as u8;
        head
    }

    /// Like [`write_headers`], for the envelope given to [`new`](Self::new).
    #[inline]
    pub fn write(&self, out: &mut [u8], packet: &Packet, payload_len: usize) -> Option<usize> {
        let ext = packet.bth.opcode().ext_len();
        let at = usize::from(self.len);
        let pad = pad(payload_len);
        let datagram = (Udp::SIZE + Bth::SIZE + ext + ICRC_SIZE + pad).checked_add(payload_len)?;
        let ip_len = u16::try_from(datagram + if self.v6 { 0 } else { Ipv4::SIZE }).ok()?;
        let len = at + Bth::SIZE + ext;
        let out = out.get_mut(..len)?;
        let checksum = if self.v6 { 0 } else { ip::folded(self.sum + u64::from(ip_len)) };
        match out.first_chunk_mut::<PLAIN>() {
            Some(plain) if at == PLAIN => {
                *plain = layout::prefix(&self.bytes);
                const IP: usize = Ethernet::SIZE;
                plain[IP + 2..IP + 4].copy_from_slice(&ip_len.to_be_bytes());
                plain[IP + 10..IP + 12].copy_from_slice(&checksum.to_be_bytes());
                plain[PLAIN - 4..PLAIN - 2].copy_from_slice(&(datagram as u16).to_be_bytes());
            }
            _ => self.write_any(out, [ip_len, checksum, datagram as u16]),
        }
        Writer { out, at }.put_transport(packet, pad);
        Some(len)
    }

    fn write_any(&self, out: &mut [u8], [ip_len, checksum, datagram]: [u16; 3]) {
        let (at, ip) = (usize::from(self.len), usize::from(self.ip));
        out[..at].copy_from_slice(&self.bytes[..at]);
        if self.v6 {
            out[ip + 4..ip + 6].copy_from_slice(&ip_len.to_be_bytes());
        } else {
            out[ip + 2..ip + 4].copy_from_slice(&ip_len.to_be_bytes());
            out[ip + 10..ip + 12].copy_from_slice(&checksum.to_be_bytes());
        }
        out[at - 4..at - 2].copy_from_slice(&datagram.to_be_bytes());
    }
}

/// Writes everything up to the payload and returns its length; payload, pad and ICRC are up to the caller. Returns
/// `None` and writes nothing if `out` is too short or the packet exceeds the maximum length of IP.
pub fn write_headers(
    out: &mut [u8],
    envelope: &Envelope,
    packet: &Packet,
    payload_len: usize,
) -> Option<usize> {
    Head::new(envelope).write(out, packet, payload_len)
}

/// Writes a whole frame, including payload, pad and ICRC, and returns its length. Returns `None` if `out` is too
/// short or the packet exceeds the maximum length of IP; `out` may then be partially written.
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

/// Writes headers to a buffer that is known to be large enough.
pub(super) struct Writer<'a> {
    out: &'a mut [u8],
    at: usize,
}

impl<'a> Writer<'a> {
    pub(super) fn new(out: &'a mut [u8]) -> Self {
        Self { out, at: 0 }
    }

    /// BTH and extended headers of a packet with `pad` bytes of pad.
    #[inline]
    pub(super) fn put_transport(&mut self, packet: &Packet, pad: usize) {
        let (first, rest) = packet.bth.words();
        let first = first & !(3 << 20) | (pad as u32 & 3) << 20;
        self.put(&first.to_be_bytes());
        self.put(&rest.to_be_bytes());
        // Most packets have no extended headers, or are acknowledgements.
        match packet.bth.opcode() {
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
        // The remaining bytes are reserved (CNP).
        if self.at < self.out.len() {
            self.out[self.at..].fill(0);
        }
    }
}
