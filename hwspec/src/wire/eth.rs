//! Ethernet II header and the 802.1Q tag.
use crate::hw_layout;
use crate::layout::Layout;

/// EtherType, in wire order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(transparent)]
pub struct EtherType([u8; 2]);

impl EtherType {
    /// IPv4.
    pub const IPV4: Self = Self::new(0x0800);
    /// Address resolution.
    pub const ARP: Self = Self::new(0x0806);
    /// 802.1Q VLAN tag.
    pub const VLAN: Self = Self::new(0x8100);
    /// IPv6.
    pub const IPV6: Self = Self::new(0x86dd);
    /// RoCE version 1: a GRH follows.
    pub const ROCE_V1: Self = Self::new(0x8915);

    /// The type with the number `raw`.
    pub const fn new(raw: u16) -> Self {
        Self(raw.to_be_bytes())
    }
    /// The number.
    pub const fn raw(self) -> u16 {
        u16::from_be_bytes(self.0)
    }
}

impl Layout for EtherType {
    const SIZE: usize = 2;
    #[inline(always)]
    fn bytes(&self) -> &[u8] {
        &self.0
    }
    #[inline(always)]
    fn read(bytes: &[u8]) -> Self {
        Self(crate::layout::prefix(bytes))
    }
}

hw_layout! {
    /// Ethernet header.
    pub struct Ethernet: 14 {
        0x00 dst: [u8; 6],
        0x06 src: [u8; 6],
        0x0c ethertype: EtherType,
    }

    /// The bytes after EtherType [`EtherType::VLAN`]: the tag, then the inner type.
    pub struct Vlan: 4 {
        0x00 [31:29] pcp: u8,
        0x00 [28:28] dei: bool,
        0x00 [27:16] vid: u16,
        0x00 [15: 0] ethertype: u16,
    }
}

/// Offset of the network header in a frame: after the Ethernet header and a tag, if any.
#[inline]
pub fn ip_offset(frame: &[u8]) -> usize {
    match EtherType::read(frame.get(Ethernet::SIZE - EtherType::SIZE..).unwrap_or_default()) {
        EtherType::VLAN => Ethernet::SIZE + Vlan::SIZE,
        _ => Ethernet::SIZE,
    }
}
