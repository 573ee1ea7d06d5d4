//! Memberships in multicast groups, and queries about them.

use cm::Time;
use driver::Mad;

/// A membership.
pub struct Group {
    /// The ID that joined.
    pub(super) id: u32,
    /// The program's identifier of it.
    pub(super) uid: u64,
    /// Index of the source GID of its datagrams.
    pub(super) gid: u8,
    /// On InfiniBand, the membership registered with the subnet administrator.
    pub membership: Option<Membership>,
    /// Number of its events that the program has fetched.
    pub reported: u32,
}

/// A port's membership in a group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Membership {
    /// Number of the port.
    pub port: usize,
    /// The group.
    pub mgid: [u8; 16],
    /// True if it only sends.
    pub send_only: bool,
}

/// A query to the subnet administrator.
pub struct SaQuery {
    /// The membership that it concerns.
    pub group: u32,
    pub(super) port: usize,
    pub(super) transaction: u64,
    pub(super) mad: Box<Mad>,
    pub(super) left: u8,
    /// Time of its next repetition.
    pub again: Time,
}
