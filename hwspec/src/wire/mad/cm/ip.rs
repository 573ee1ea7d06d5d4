//! IP addressing of communication management (IBTA annex A11): a port is a service id, and the private data of REQ and
//! SIDR_REQ begins with the addresses.
use crate::{hw_layout, wire::ip::IpPair};

/// Bytes of the header at the start of the private data.
pub const CMA_HEADER_SIZE: usize = 36;

/// A space of ports, by its protocol number in service ids. Those Linux uses beside TCP and UDP are its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum PortSpace {
    /// IPoIB: the service id has no protocol of IP.
    Ipoib,
    /// Connected services.
    Tcp,
    /// Datagrams.
    Udp,
    /// Any, with the whole 16 bits the program's (`RDMA_PS_IB`).
    Ib,
}

impl PortSpace {
    /// The bits above the port in a service id: 0x01 and the protocol number (IBTA A11.3). Linux calls its spaces by
    /// the same numbers (`rdma_user_cm.h`).
    pub const fn number(self) -> u16 {
        match self {
            Self::Ipoib => 0x0002,
            Self::Tcp => 0x0106,
            Self::Udp => 0x0111,
            Self::Ib => 0x013f,
        }
    }
}

/// The service id of a port.
pub const fn service_id(space: PortSpace, port: u16) -> u64 {
    (space.number() as u64) << 16 | port as u64
}

/// Space and port of a service id, if it is one of IP's.
pub fn port_of(service_id: u64) -> Option<(PortSpace, u16)> {
    let space = [PortSpace::Ipoib, PortSpace::Tcp, PortSpace::Udp, PortSpace::Ib]
        .into_iter()
        .find(|space| u64::from(space.number()) == service_id >> 16)?;
    Some((space, service_id as u16))
}

hw_layout! {
    /// The first bytes of the private data of REQ and SIDR_REQ (IBTA A11.5). An IPv4 address lies in the last four
    /// bytes of its field.
    pub struct CmaHeader: 36 {
        /// 0.
        0x00 [31:24] version: u8,
        /// 4 or 6.
        0x00 [23:20] ip_version: u8,
        0x00 [15: 0] source_port: u16,
        0x04         source: [u8; 16],
        0x14         destination: [u8; 16],
    }
}

impl CmaHeader {
    /// The header for a pair of addresses.
    pub fn new(addresses: IpPair, source_port: u16) -> Self {
        let wide = |v4: [u8; 4]| {
            let mut out = [0; 16];
            out[12..].copy_from_slice(&v4);
            out
        };
        let (version, source, destination) = match addresses {
            IpPair::V4 { src, dst } => (4, wide(src), wide(dst)),
            IpPair::V6 { src, dst } => (6, src, dst),
        };
        let mut header = Self::zeroed();
        header.set().ip_version(version).source_port(source_port).source(source).destination(destination);
        header
    }

    /// The addresses; `None` if the version is not known.
    pub fn addresses(&self) -> Option<IpPair> {
        if self.version() != 0 {
            return None;
        }
        let narrow = |field: [u8; 16]| [field[12], field[13], field[14], field[15]];
        match self.ip_version() {
            4 => Some(IpPair::V4 { src: narrow(self.source()), dst: narrow(self.destination()) }),
            6 => Some(IpPair::V6 { src: self.source(), dst: self.destination() }),
            _ => None,
        }
    }
}
