//! Conversion between GIDs and IP addresses.

use std::net::IpAddr;

/// The GID of an IP address: the address itself, with IPv4 as IPv4-mapped IPv6.
pub fn gid_of_ip(ip: IpAddr) -> [u8; 16] {
    match ip {
        IpAddr::V4(v4) => v4.to_ipv6_mapped().octets(),
        IpAddr::V6(v6) => v6.octets(),
    }
}

/// The IP address in a GID.
pub fn ip_of_gid(gid: &[u8; 16]) -> IpAddr {
    IpAddr::from(*gid).to_canonical()
}
