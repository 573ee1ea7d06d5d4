//! Memberships in multicast groups, and queries about them.

use cm::Time;
use driver::Mad;

/// A membership.
pub struct Group {
    /// Its id.
    pub(super) id: u32,
    /// The program's name for it.
    pub(super) uid: u64,
    /// Index of the GID from which its datagrams are sent.
    pub(super) gid: u8,
    /// On InfiniBand, the membership that the subnet administrator knows.
    pub membership: Option<Membership>,
    /// Events about it that the program has fetched.
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
    /// The membership that it is about.
    pub group: u32,
    pub(super) port: usize,
    pub(super) transaction: u64,
    pub(super) mad: Box<Mad>,
    pub(super) left: u8,
    /// When it is repeated.
    pub again: Time,
}
