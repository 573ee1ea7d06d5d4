//! Interface for resolving the MACs of peers.

use std::{fmt, net::IpAddr};

/// One of the function's addresses, in the VLAN of its GID.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OwnAddress {
    /// The address.
    pub ip: IpAddr,
    /// The VLAN, `None` for untagged.
    pub vlan: Option<u16>,
}

/// Resolves the MACs of peers that are not known otherwise.
pub trait Resolve: Send + Sync + fmt::Debug {
    /// Returns the MAC of `ip`, for a path from our address `from`; waits for an answer if necessary. The error
    /// completes a sentence which says that the MAC is not known.
    fn resolve(&self, ip: IpAddr, from: OwnAddress) -> Result<[u8; 6], String>;
}

/// The IP address of a GID.
pub fn ip_of(gid: &[u8; 16]) -> IpAddr {
    IpAddr::from(*gid).to_canonical()
}
