//! Parses frames into headers.
use core::fmt;
use core::ops::Range;

use super::ip::PROTO_UDP;
use super::*;
use crate::layout::{Layout, prefix};

/// Reasons why a frame is not a RoCEv2 packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ParseError {
    /// A header or the ICRC extends past the end of the frame.
    Truncated,
    /// Neither IPv4 nor IPv6, with the EtherType.
    NotIp(u16),
    /// IP version, header length, length or fragmentation not supported by RoCEv2.
    BadIp,
    /// The IPv4 header checksum is wrong.
    BadIpChecksum,
    /// Not UDP, with the protocol or next header.
    NotUdp(u8),
    /// The UDP length differs from the IP length.
    BadUdpLength,
    /// Not RoCEv2, with the destination port.
    NotRoce(u16),
    /// An LRH without a transport header after it, or with a wrong length.
    BadLrh,
    /// A GRH with a wrong version, next header or length.
    BadGrh,
}

impl fmt::Display for ParseError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Truncated => f.write_str("frame shorter than its headers say"),
            Self::NotIp(t) => write!(f, "expected EtherType IPv4 or IPv6, found {t:#06x}"),
            Self::BadIp => f.write_str("IP header with options, fragments or a length that does not fit"),
            Self::BadIpChecksum => f.write_str("wrong IPv4 header checksum"),
            Self::NotUdp(p) => write!(f, "expected UDP, found IP protocol {p}"),
            Self::BadUdpLength => f.write_str("UDP length differs from what IP carries"),
            Self::NotRoce(p) => write!(f, "expected UDP port {ROCE_PORT}, found {p}"),
            Self::BadLrh => {
                f.write_str("LRH of a raw packet, of another version, or with a length that does not fit")
            }
            Self::BadGrh => {
                f.write_str("GRH of another version, next header, or with a length that does not fit")
            }
        }
    }
}

impl core::error::Error for ParseError {}

/// A frame with headers that are known to lie within it: Ethernet, VLAN tag if any, IPv4 or IPv6, UDP
/// ([`parse`](Self::parse)), or LRH and GRH if any ([`parse_route`](Self::parse_route)); then BTH and the extended
/// headers required by its opcode. Getters copy a header; none can fail.
///
/// The opcode may still be unknown; then there are no extended headers, and everything after the BTH counts as
/// payload.
#[derive(Clone, Copy)]
pub struct Headers<'a> {
    head: &'a [u8],
    frame_len: usize,
    ip: u8,
    v6: bool,
    // The frame begins with an LRH; `v6` then means that a GRH follows at `ip`.
    routed: bool,
    // Offsets from the start of the frame; `end` is the start of the ICRC.
    ext: u16,
    end: u32,
    // The BTH as words: bytes at arbitrary offsets would be written and read in different widths.
    words: (u32, u64),
}

impl<'a> Headers<'a> {
    /// Parses a whole frame.
    #[inline]
    pub fn parse(frame: &'a [u8]) -> Result<Self, ParseError> {
        Self::parse_head(frame, frame.len())
    }

    /// Parses the first bytes of a frame of `frame_len` bytes. `head` must contain all headers ([`MAX_HEADERS`] bytes
    /// always do), but not necessarily payload and ICRC.
    pub fn parse_head(head: &'a [u8], frame_len: usize) -> Result<Self, ParseError> {
        let head = &head[..head.len().min(frame_len)];
        let eth: Ethernet = read(head, 0)?;
        let mut ip = Ethernet::SIZE;
        let mut ethertype = eth.ethertype();
        if ethertype == EtherType::VLAN {
            ethertype = EtherType::new(read::<Vlan>(head, ip)?.ethertype());
            ip += Vlan::SIZE;
        }
        let v6 = ethertype == EtherType::IPV6;
        let (udp, datagram, protocol) = match ethertype {
            EtherType::IPV4 => {
                let h: Ipv4 = read(head, ip)?;
                let total = usize::from(h.total_len());
                let fragment = h.more_fragments() || h.fragment_offset() != 0;
                if h.version() != 4 || h.ihl() != 5 || fragment || total < Ipv4::SIZE {
                    return Err(ParseError::BadIp);
                }
                if !h.checksum_ok() {
                    return Err(ParseError::BadIpChecksum);
                }
                (ip + Ipv4::SIZE, total - Ipv4::SIZE, h.protocol())
            }
            EtherType::IPV6 => {
                let h: Ipv6 = read(head, ip)?;
                if h.version() != 6 {
                    return Err(ParseError::BadIp);
                }
                (ip + Ipv6::SIZE, usize::from(h.payload_len()), h.next_header())
            }
            other => return Err(ParseError::NotIp(other.raw())),
        };
        if protocol != PROTO_UDP {
            return Err(ParseError::NotUdp(protocol));
        }
        if datagram > frame_len - udp {
            return Err(ParseError::Truncated);
        }
        let h: Udp = read(head, udp)?;
        if usize::from(h.length()) != datagram {
            return Err(ParseError::BadUdpLength);
        }
        if h.dst_port() != ROCE_PORT {
            return Err(ParseError::NotRoce(h.dst_port()));
        }
        let bth: Bth = read(head, udp + Udp::SIZE)?;
        let ext = udp + Udp::SIZE + Bth::SIZE;
        let payload = ext + bth.opcode().ext_len();
        let end = udp + datagram;
        if payload + ICRC_SIZE > end || payload > head.len() {
            return Err(ParseError::Truncated);
        }
        let end = (end - ICRC_SIZE) as u32;
        Ok(Self {
            head,
            frame_len,
            ip: ip as u8,
            v6,
            routed: false,
            ext: ext as u16,
            end,
            words: bth.words(),
        })
    }

    /// The headers of a frame of `frame_len` bytes that were written here by [`write_headers`] and have not changed
    /// since, so that they need no checks.
    #[inline(always)]
    pub fn of_built(head: &'a [u8], frame_len: usize) -> Result<Self, ParseError> {
        let mut ip = Ethernet::SIZE;
        let ethertype = |at: usize| read::<[u8; 2]>(head, at - 2).map(u16::from_be_bytes);
        let mut kind = ethertype(ip)?;
        if kind == EtherType::VLAN.raw() {
            ip += Vlan::SIZE;
            kind = ethertype(ip)?;
        }
        let v6 = kind == EtherType::IPV6.raw();
        let at = ip + Udp::SIZE + if v6 { Ipv6::SIZE } else { Ipv4::SIZE };
        let bytes = head.get(at..at + Bth::SIZE).ok_or(ParseError::Truncated)?;
        let bth = Bth::from_words(u32::from_be_bytes(prefix(bytes)), u64::from_be_bytes(prefix(&bytes[4..])));
        let ext = at + Bth::SIZE;
        let payload = ext + bth.opcode().ext_len();
        if payload > head.len() || payload + ICRC_SIZE > frame_len {
            return Err(ParseError::Truncated);
        }
        let end = (frame_len - ICRC_SIZE) as u32;
        Ok(Self {
            head,
            frame_len,
            ip: ip as u8,
            v6,
            routed: false,
            ext: ext as u16,
            end,
            words: bth.words(),
        })
    }

    /// Parses the first bytes of an InfiniBand frame of `frame_len` bytes, LRH to VCRC. `head` must contain all
    /// headers.
    pub fn parse_route(head: &'a [u8], frame_len: usize) -> Result<Self, ParseError> {
        let head = &head[..head.len().min(frame_len)];
        let lrh: Lrh = read(head, 0)?;
        let global = lrh.lnh() == Lnh::Global;
        let len = usize::from(lrh.packet_len()) * 4;
        if !global && lrh.lnh() != Lnh::Local || lrh.link_version() != 0 {
            return Err(ParseError::BadLrh);
        }
        if len + VCRC_SIZE > frame_len {
            return Err(ParseError::Truncated);
        }
        if len + VCRC_SIZE < frame_len {
            return Err(ParseError::BadLrh);
        }
        let mut at = Lrh::SIZE;
        if global {
            let grh: Ipv6 = read(head, at)?;
            at += Ipv6::SIZE;
            let fits = usize::from(grh.payload_len()).checked_add(at) == Some(len);
            if grh.version() != 6 || grh.next_header() != GRH_NEXT_HEADER || !fits {
                return Err(ParseError::BadGrh);
            }
        }
        let bth: Bth = read(head, at)?;
        let ext = at + Bth::SIZE;
        let payload = ext + bth.opcode().ext_len();
        if payload + ICRC_SIZE > len || payload > head.len() {
            return Err(ParseError::Truncated);
        }
        let (ip, end) = (Lrh::SIZE as u8, (len - ICRC_SIZE) as u32);
        Ok(Self { head, frame_len, ip, v6: global, routed: true, ext: ext as u16, end, words: bth.words() })
    }

    /// The LRH, if the frame begins with one.
    #[inline]
    pub fn lrh(&self) -> Option<Lrh> {
        self.routed.then(|| Lrh::read(self.head))
    }
    /// True if a received UD message has a GRH, which is always the case on Ethernet.
    #[inline]
    pub fn has_grh(&self) -> bool {
        self.v6 || !self.routed
    }

    /// Length of the whole frame in bytes.
    #[inline]
    pub fn frame_len(&self) -> usize {
        self.frame_len
    }
    /// The Ethernet header; meaningless if the frame begins with an LRH.
    #[inline]
    pub fn ethernet(&self) -> Ethernet {
        Ethernet::read(self.head)
    }
    /// True if there is a VLAN tag.
    #[inline]
    pub fn is_tagged(&self) -> bool {
        !self.routed && usize::from(self.ip) > Ethernet::SIZE
    }
    /// The VLAN tag, if there is one.
    #[inline]
    pub fn vlan(&self) -> Option<Vlan> {
        self.is_tagged().then(|| self.at(Ethernet::SIZE))
    }
    /// The VLAN of the packet, if any: a tag with VLAN 0 only holds a priority (IEEE 802.1Q, 9.6).
    #[inline]
    pub fn vlan_id(&self) -> Option<u16> {
        self.vlan().map(|tag| tag.vid()).filter(|vid| *vid != 0)
    }
    /// True if the network header is IPv6, or a GRH, which has the same layout.
    #[inline]
    pub fn is_v6(&self) -> bool {
        self.v6
    }
    /// The IPv4 header, if the packet has one.
    #[inline]
    pub fn ipv4(&self) -> Option<Ipv4> {
        (!self.v6 && !self.routed).then(|| self.at(self.ip.into()))
    }
    /// The IPv6 header, if the packet has one.
    #[inline]
    pub fn ipv6(&self) -> Option<Ipv6> {
        self.v6.then(|| self.at(self.ip.into()))
    }
    /// Source and destination address; zeros if there are none.
    #[inline]
    pub fn addresses(&self) -> IpPair {
        if self.v6 {
            let h: Ipv6 = self.at(self.ip.into());
            IpPair::V6 { src: h.src(), dst: h.dst() }
        } else if self.routed {
            IpPair::V6 { src: [0; 16], dst: [0; 16] }
        } else {
            let h: Ipv4 = self.at(self.ip.into());
            IpPair::V4 { src: h.src(), dst: h.dst() }
        }
    }
    /// Source and destination of a packet with only an IPv4 header between Ethernet and UDP, as in nearly all packets:
    /// [`addresses`](Self::addresses) without its branches.
    #[inline(always)]
    pub fn plain_v4(&self) -> Option<([u8; 4], [u8; 4])> {
        const AT: usize = Ethernet::SIZE + 12;
        if usize::from(self.ip) != Ethernet::SIZE || self.v6 {
            return None;
        }
        let pair: &[u8; 8] = self.head.get(AT..AT + 8)?.first_chunk()?;
        Some((prefix(pair), prefix(&pair[4..])))
    }
    /// TOS or traffic class: DSCP and ECN.
    #[inline]
    pub fn traffic_class(&self) -> u8 {
        match self.ipv6() {
            Some(h) => h.dscp() << 2 | h.ecn(),
            None if self.routed => 0,
            None => self.head[usize::from(self.ip) + 1],
        }
    }
    /// True if congestion was experienced on the way (ECN 0b11; FECN on InfiniBand).
    #[inline]
    pub fn is_ce_marked(&self) -> bool {
        if self.routed { self.bth().fecn() } else { self.traffic_class() & 3 == 3 }
    }
    /// The GRH area of a received UD message: the GRH or IPv6 header, or the IPv4 header in its last 20 bytes (annex
    /// A17.4.5.1); zeros if the packet has no GRH.
    #[inline]
    pub fn grh(&self) -> [u8; GRH_SIZE] {
        let ip = usize::from(self.ip);
        if self.v6 {
            return prefix(&self.head[ip..]);
        }
        let mut area = [0; GRH_SIZE];
        if self.routed {
            return area;
        }
        area[GRH_SIZE - Ipv4::SIZE..].copy_from_slice(&self.head[ip..ip + Ipv4::SIZE]);
        area
    }
    /// The UDP header; meaningless if the frame begins with an LRH.
    #[inline]
    pub fn udp(&self) -> Udp {
        self.at(usize::from(self.ext) - Bth::SIZE - Udp::SIZE)
    }
    /// All headers, from the start of the frame to the payload.
    #[inline]
    pub fn head(&self) -> &'a [u8] {
        &self.head[..self.payload_start()]
    }
    /// Offset of the BTH from the start of the frame.
    #[inline]
    pub fn bth_start(&self) -> usize {
        usize::from(self.ext) - Bth::SIZE
    }
    /// The BTH.
    #[inline]
    pub fn bth(&self) -> Bth {
        Bth::from_words(self.words.0, self.words.1)
    }
    /// The DETH, if the opcode has one.
    #[inline]
    pub fn deth(&self) -> Option<Deth> {
        self.bth().opcode().has_deth().then(|| self.at(self.ext.into()))
    }
    /// The XRCETH, if the opcode has one.
    #[inline]
    pub fn xrceth(&self) -> Option<XrcEth> {
        self.bth().opcode().has_xrceth().then(|| self.at(self.ext.into()))
    }
    /// The RETH, if the opcode has one.
    #[inline]
    pub fn reth(&self) -> Option<Reth> {
        self.bth().opcode().has_reth().then(|| self.at(self.after_xrc()))
    }
    /// The AtomicETH, if the opcode has one.
    #[inline]
    pub fn atomic(&self) -> Option<AtomicEth> {
        self.bth().opcode().has_atomic_eth().then(|| self.at(self.after_xrc()))
    }
    /// The AETH, if the opcode has one.
    #[inline]
    pub fn aeth(&self) -> Option<Aeth> {
        self.bth().opcode().has_aeth().then(|| self.at(self.ext.into()))
    }
    /// The AtomicAckETH, if the opcode has one.
    #[inline]
    pub fn atomic_ack(&self) -> Option<AtomicAckEth> {
        self.bth().opcode().has_atomic_ack_eth().then(|| self.at(usize::from(self.ext) + Aeth::SIZE))
    }
    /// Immediate data, if the opcode has any.
    #[inline]
    pub fn imm(&self) -> Option<u32> {
        self.bth().opcode().has_imm().then(|| self.at::<ImmDt>(self.payload_start() - ImmDt::SIZE).imm())
    }
    /// The rkey to invalidate, if the opcode has one.
    #[inline]
    pub fn ieth(&self) -> Option<u32> {
        self.bth().opcode().has_ieth().then(|| self.at::<Ieth>(self.payload_start() - Ieth::SIZE).rkey())
    }

    /// Offset of the first byte after the headers, from the start of the frame.
    #[inline]
    pub fn payload_start(&self) -> usize {
        usize::from(self.ext) + self.bth().opcode().ext_len()
    }
    /// Range of payload and pad in the frame.
    #[inline]
    pub fn padded_range(&self) -> Range<usize> {
        self.payload_start()..self.end as usize
    }
    /// Range of the payload in the frame, without pad. `None` if the pad count exceeds the available bytes.
    #[inline]
    pub fn payload_range(&self) -> Option<Range<usize>> {
        let Range { start, end } = self.padded_range();
        let len = (end - start).checked_sub(self.bth().pad_count().into())?;
        Some(start..start + len)
    }
    /// The payload without pad. `None` if the pad count exceeds the available bytes or the slice does not contain the
    /// payload.
    #[inline]
    pub fn payload(&self) -> Option<&'a [u8]> {
        self.head.get(self.payload_range()?)
    }
    /// Range covered by the ICRC, from the IP header or LRH to the ICRC itself.
    #[inline]
    pub fn icrc_range(&self) -> Range<usize> {
        let start = if self.routed { 0 } else { self.ip.into() };
        start..self.end as usize
    }
    /// The ICRC in the frame. `None` if it is past the end of the slice.
    #[inline]
    pub fn icrc(&self) -> Option<[u8; ICRC_SIZE]> {
        self.head.get(self.end as usize..)?.first_chunk().copied()
    }
    /// True if the ICRC is correct; also false if the slice does not contain the whole frame.
    #[inline]
    pub fn icrc_ok(&self) -> bool {
        self.head.get(self.icrc_range()).is_some_and(|bytes| {
            let sum = if self.routed { Icrc::of_route(bytes) } else { Icrc::new(bytes) };
            self.icrc() == Some(sum.finish())
        })
    }

    #[inline]
    fn after_xrc(&self) -> usize {
        usize::from(self.ext) + if self.bth().opcode().has_xrceth() { XrcEth::SIZE } else { 0 }
    }
    #[inline]
    fn at<T: Layout>(&self, offset: usize) -> T {
        T::read(&self.head[offset..])
    }
}

impl fmt::Debug for Headers<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Headers")
            .field("addresses", &self.addresses())
            .field("bth", &self.bth())
            .field("payload", &self.payload_range())
            .finish_non_exhaustive()
    }
}

#[inline]
fn read<T: Layout>(head: &[u8], offset: usize) -> Result<T, ParseError> {
    head.get(offset..offset + T::SIZE).map(T::read).ok_or(ParseError::Truncated)
}
