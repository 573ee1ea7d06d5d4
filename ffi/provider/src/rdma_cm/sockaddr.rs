//! Socket addresses: IPv4, IPv6, and AF_IB, which identifies a port by its GID and a service by its ID.

use super::uapi::{Ip, Storage, port_space};
use node::gid::gid_of_ip;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

const AF_INET: u16 = libc::AF_INET as u16;
const AF_INET6: u16 = libc::AF_INET6 as u16;
const AF_IB: u16 = 27;

/// An address of a family that the connection manager supports.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SockAddr {
    /// `struct sockaddr_in`.
    V4 {
        /// Address.
        ip: Ipv4Addr,
        /// Port.
        port: u16,
    },
    /// `struct sockaddr_in6`.
    V6 {
        /// Address.
        ip: Ipv6Addr,
        /// Port.
        port: u16,
        /// Flow information, network order.
        flow: [u8; 4],
        /// Scope ID.
        scope: u32,
    },
    /// `struct sockaddr_ib`.
    Ib {
        /// GID.
        gid: [u8; 16],
        /// Partition.
        pkey: u16,
        /// Service ID.
        sid: u64,
        /// Mask of the significant bits of the service ID.
        mask: u64,
    },
}

fn part<const N: usize>(bytes: &[u8], at: usize) -> Option<[u8; N]> {
    bytes.get(at..at + N)?.try_into().ok()
}

impl SockAddr {
    /// Parses a `struct sockaddr`; `None` if its family is not supported or there are too few bytes.
    pub fn read(bytes: &[u8]) -> Option<Self> {
        let family = u16::from_ne_bytes(part(bytes, 0)?);
        let address = match family {
            AF_INET => {
                Self::V4 { ip: part::<4>(bytes, 4)?.into(), port: u16::from_be_bytes(part(bytes, 2)?) }
            }
            AF_INET6 => Self::V6 {
                ip: part::<16>(bytes, 8)?.into(),
                port: u16::from_be_bytes(part(bytes, 2)?),
                flow: part(bytes, 4)?,
                scope: u32::from_ne_bytes(part(bytes, 24)?),
            },
            AF_IB => Self::Ib {
                gid: part(bytes, 8)?,
                pkey: u16::from_be_bytes(part(bytes, 2)?),
                sid: u64::from_be_bytes(part(bytes, 24)?),
                mask: u64::from_be_bytes(part(bytes, 32)?),
            },
            _ => return None,
        };
        (bytes.len() >= address.len()).then_some(address)
    }

    /// Size of its structure in bytes.
    pub fn len(&self) -> usize {
        match self {
            Self::V4 { .. } => 16,
            Self::V6 { .. } => 28,
            Self::Ib { .. } => 48,
        }
    }

    /// Its structure in a `sockaddr_storage`.
    pub fn storage(&self) -> Storage {
        let mut out = [0; 128];
        let mut put = |at: usize, bytes: &[u8]| out[at..at + bytes.len()].copy_from_slice(bytes);
        match self {
            Self::V4 { ip, port } => {
                put(0, &AF_INET.to_ne_bytes());
                put(2, &port.to_be_bytes());
                put(4, &ip.octets());
            }
            Self::V6 { ip, port, flow, scope } => {
                put(0, &AF_INET6.to_ne_bytes());
                put(2, &port.to_be_bytes());
                put(4, flow);
                put(8, &ip.octets());
                put(24, &scope.to_ne_bytes());
            }
            Self::Ib { gid, pkey, sid, mask } => {
                put(0, &AF_IB.to_ne_bytes());
                put(2, &pkey.to_be_bytes());
                put(8, gid);
                put(24, &sid.to_be_bytes());
                put(32, &mask.to_be_bytes());
            }
        }
        out
    }

    /// Its structure, truncated to the size of an IPv6 address.
    pub fn ip_storage(&self) -> Ip {
        let mut out = [0; 28];
        out.copy_from_slice(&self.storage()[..28]);
        out
    }

    /// The wildcard of the same family with port 0; for AF_IB with the same partition and service space.
    pub fn wildcard(&self) -> Self {
        match *self {
            Self::V4 { .. } => Self::V4 { ip: Ipv4Addr::UNSPECIFIED, port: 0 },
            Self::V6 { scope, .. } => Self::V6 { ip: Ipv6Addr::UNSPECIFIED, port: 0, flow: [0; 4], scope },
            Self::Ib { pkey, sid, mask, .. } => {
                Self::Ib { gid: [0; 16], pkey, sid: sid & !0xffff, mask: mask & !0xffff }
            }
        }
    }

    /// True if both have the same family.
    pub fn is_like(&self, other: &Self) -> bool {
        std::mem::discriminant(self) == std::mem::discriminant(other)
    }

    /// The scope of a link-local IPv6 address, 0 if not specified; `None` for other addresses.
    pub fn link_scope(&self) -> Option<u32> {
        match self {
            Self::V6 { ip, scope, .. } => ip.is_unicast_link_local().then_some(*scope),
            _ => None,
        }
    }

    /// True for the wildcard address.
    pub fn is_any(&self) -> bool {
        match self {
            Self::V4 { ip, .. } => ip.is_unspecified(),
            Self::V6 { ip, .. } => ip.is_unspecified(),
            Self::Ib { gid, .. } => *gid == [0; 16],
        }
    }

    /// True for a loopback address.
    pub fn is_loopback(&self) -> bool {
        self.ip().is_some_and(|ip| ip.is_loopback())
    }

    /// True for a multicast group.
    pub fn is_multicast(&self) -> bool {
        match self {
            Self::V4 { ip, .. } => ip.is_multicast(),
            Self::V6 { ip, .. } => ip.is_multicast(),
            Self::Ib { gid, .. } => gid[0] == 0xff,
        }
    }

    /// The IP address.
    pub fn ip(&self) -> Option<IpAddr> {
        match self {
            Self::V4 { ip, .. } => Some((*ip).into()),
            Self::V6 { ip, .. } => Some((*ip).into()),
            Self::Ib { .. } => None,
        }
    }

    /// The GID that is, or is derived from, the address.
    pub fn gid(&self) -> [u8; 16] {
        match self {
            Self::V4 { ip, .. } => gid_of_ip((*ip).into()),
            Self::V6 { ip, .. } => ip.octets(),
            Self::Ib { gid, .. } => *gid,
        }
    }

    /// The port, or the corresponding part of the service ID.
    pub fn port(&self) -> u16 {
        match self {
            Self::V4 { port, .. } | Self::V6 { port, .. } => *port,
            Self::Ib { sid, mask, .. } => (sid & mask) as u16,
        }
    }

    /// The same address with another port.
    #[must_use]
    pub fn with_port(mut self, new: u16) -> Self {
        match &mut self {
            Self::V4 { port, .. } | Self::V6 { port, .. } => *port = new,
            Self::Ib { sid, mask, .. } => {
                *sid = *sid & !0xffff | u64::from(new);
                *mask |= 0xffff;
            }
        }
        self
    }

    /// The same address with another GID.
    #[must_use]
    pub fn with_gid(mut self, new: [u8; 16]) -> Self {
        match &mut self {
            Self::V4 { ip, .. } => {
                if let IpAddr::V4(v4) = node::gid::ip_of_gid(&new) {
                    *ip = v4;
                }
            }
            Self::V6 { ip, .. } => *ip = new.into(),
            Self::Ib { gid, .. } => *gid = new,
        }
        self
    }

    /// The port space of its port number, for an ID of the space `ps`. `None` if there is no such space.
    pub fn port_space(&self, ps: u16) -> Option<u16> {
        let Self::Ib { sid, mask, .. } = self else { return Some(ps) };
        let wanted = (sid & mask) >> 16;
        let known = [port_space::TCP, port_space::UDP, port_space::IB];
        match known.into_iter().find(|space| u64::from(*space) == wanted) {
            Some(space) if ps == port_space::IB || ps == space => Some(space),
            None if wanted == 0 && ps != port_space::IPOIB => Some(ps),
            _ => None,
        }
    }

    /// The service ID of this address for an ID of the space `ps` (IBTA annex A11; AF_IB contains it).
    pub fn service_id(&self, ps: u16) -> u64 {
        match self {
            Self::Ib { sid, .. } => *sid,
            _ => u64::from(ps) << 16 | u64::from(self.port()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_of_all_families_are_read_as_written() {
        let gid = [7; 16];
        for address in [
            SockAddr::V4 { ip: Ipv4Addr::new(127, 0, 0, 2), port: 7174 },
            SockAddr::V6 { ip: "fe80::1".parse().unwrap(), port: 1, flow: [1, 2, 3, 4], scope: 3 },
            SockAddr::Ib { gid, pkey: 0xffff, sid: 0x0106_1c06, mask: u64::MAX },
        ] {
            assert_eq!(SockAddr::read(&address.storage()), Some(address));
            assert_eq!(SockAddr::read(&address.storage()[..address.len() - 1]), None, "{address:?}");
        }
        assert_eq!(SockAddr::read(&[1, 0, 0, 0]), None);
    }

    #[test]
    fn service_ids_are_made_of_port_space_and_port() {
        let ip = SockAddr::V4 { ip: Ipv4Addr::LOCALHOST, port: 7174 };
        assert_eq!(ip.service_id(port_space::TCP), 0x0106_1c06);
        let ib = SockAddr::Ib { gid: [0; 16], pkey: 0, sid: 0x0106_0000, mask: 0xffff_ffff_ffff_0000 };
        assert_eq!((ib.port(), ib.port_space(port_space::IB)), (0, Some(port_space::TCP)));
        assert_eq!(ib.port_space(port_space::UDP), None);
        assert_eq!(ib.with_port(9).service_id(port_space::IB), 0x0106_0009);
    }
}
