//! The wire: Ethernet, IPv4 or IPv6 and UDP for RoCEv2, or the InfiniBand link layer; the InfiniBand transport headers
//! (IBTA Vol. 1 ch. 7 to 9, annex A17); management datagrams; address discovery.

pub mod aeth;
pub mod atomic;
pub mod bth;
pub mod build;
pub mod deth;
pub mod discovery;
pub mod eth;
pub mod icrc;
pub mod imm;
pub mod ip;
pub mod lrh;
pub mod mad;
pub mod parse;
pub mod reth;
pub mod udp;

pub use aeth::{Aeth, NakCode, Syndrome};
pub use atomic::{AtomicAckEth, AtomicEth};
pub use bth::{Bth, BthOpcode, Operation};
pub use build::{Envelope, Head, Packet, write_frame, write_headers};
pub use deth::{Deth, XrcEth};
pub use discovery::{Discovery, DiscoveryFrame};
pub use eth::{EtherType, Ethernet, Vlan};
pub use icrc::Icrc;
pub use imm::{Ieth, ImmDt};
pub use ip::{IpPair, Ipv4, Ipv6};
pub use lrh::{GRH_NEXT_HEADER, Grh, Lnh, Lrh, Route, VCRC_SIZE, write_route, write_routed};
pub use parse::{Headers, ParseError};
pub use reth::Reth;
pub use udp::{ROCE_PORT, Udp};

/// Bytes of the ICRC at the end of a packet.
pub const ICRC_SIZE: usize = 4;
/// Maximum length written by [`write_headers`]: Ethernet, VLAN, IPv6, UDP, BTH, XRCETH, AtomicETH.
pub const MAX_HEADERS: usize = 14 + 4 + 40 + 8 + 12 + 4 + 28;
/// Bytes of the GRH area before the payload of a received UD message.
pub const GRH_SIZE: usize = 40;

/// Number of pad bytes to extend `len` bytes of payload to a multiple of 4 (IBTA 9.2.4).
#[inline]
pub const fn pad(len: usize) -> usize {
    len.wrapping_neg() & 3
}
