//! The interface by which a path finds the MACs of peers.

use std::{fmt, net::IpAddr};

/// An address of the function, in the VLAN of its GID.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OwnAddress {
    /// The address.
    pub ip: IpAddr,
    /// The VLAN; `None`: untagged.
    pub vlan: Option<u16>,
}

/// Finds the MACs of peers that nothing else knows.
pub trait Resolve: Send + Sync + fmt::Debug {
    /// The MAC of `ip`, for a path from our address `from`; waits for an answer if necessary. The error is the end of a
    /// sentence that says that the MAC is not known.
    fn resolve(&self, ip: IpAddr, from: OwnAddress) -> Result<[u8; 6], String>;
}

/// The IP address of a GID.
pub fn ip_of(gid: &[u8; 16]) -> IpAddr {
    IpAddr::from(*gid).to_canonical()
}
