//! The IP addresses of a connection, which precede the program's private data in REQ and SIDR_REQ (IBTA annex A11).

use super::sockaddr::SockAddr;
use hwspec::wire::ip::IpPair;
use hwspec::wire::mad::cm::{CMA_HEADER_SIZE, CmaHeader};
use std::net::IpAddr;

/// Its length.
pub const LEN: usize = CMA_HEADER_SIZE;

/// The addresses of both sides.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IpHeader {
    /// IP address of the active side.
    pub src: IpAddr,
    /// Port of the active side.
    pub port: u16,
    /// IP address of the passive side.
    pub dst: IpAddr,
}

impl IpHeader {
    /// The header for a connection between two IP addresses of the same family.
    pub fn of(src: &SockAddr, dst: &SockAddr) -> Option<Self> {
        let (from, to) = (src.ip()?, dst.ip()?);
        (from.is_ipv4() == to.is_ipv4()).then_some(Self { src: from, port: src.port(), dst: to })
    }

    /// Parses the beginning of private data. `None` if it has another version.
    pub fn read(bytes: &[u8]) -> Option<Self> {
        let head: &[u8; LEN] = bytes.get(..LEN)?.try_into().ok()?;
        let header = CmaHeader::from_bytes(*head);
        let (src, dst) = match header.addresses()? {
            IpPair::V4 { src, dst } => (src.into(), dst.into()),
            IpPair::V6 { src, dst } => (src.into(), dst.into()),
        };
        Some(Self { src, port: header.source_port(), dst })
    }

    /// Encodes it; `None` if the addresses are of different families.
    pub fn bytes(&self) -> Option<[u8; LEN]> {
        let addresses = match (self.src, self.dst) {
            (IpAddr::V4(src), IpAddr::V4(dst)) => IpPair::V4 { src: src.octets(), dst: dst.octets() },
            (IpAddr::V6(src), IpAddr::V6(dst)) => IpPair::V6 { src: src.octets(), dst: dst.octets() },
            _ => return None,
        };
        Some(*CmaHeader::new(addresses, self.port).as_bytes())
    }
}

/// The socket address of `ip` and `port`; `scope` applies to a link-local address.
pub fn sock_addr(ip: IpAddr, port: u16, scope: u32) -> SockAddr {
    match ip {
        IpAddr::V4(ip) => SockAddr::V4 { ip, port },
        IpAddr::V6(ip) => {
            let scope = if ip.segments()[0] & 0xffc0 == 0xfe80 { scope } else { 0 };
            SockAddr::V6 { ip, port, flow: [0; 4], scope }
        }
    }
}
