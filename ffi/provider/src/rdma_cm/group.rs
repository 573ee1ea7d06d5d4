//! Memberships in multicast groups, and queries about them.

use cm::Time;
use driver::Mad;

/// A membership.
pub struct Group {
    /// Whose.
    pub(super) id: u32,
    /// What the program calls it.
    pub(super) uid: u64,
    /// Index of the GID its datagrams come from.
    pub(super) gid: u8,
    /// On InfiniBand, what the administrator knows of.
    pub membership: Option<Membership>,
    /// Events of it that the program has fetched.
    pub reported: u32,
}

/// A port's membership in a group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Membership {
    /// Number of the port.
    pub port: usize,
    /// The group.
    pub mgid: [u8; 16],
    /// Only to send.
    pub send_only: bool,
}

/// A query to the subnet administrator.
pub struct SaQuery {
    /// The membership of this process it is about.
    pub group: u32,
    pub(super) port: usize,
    pub(super) transaction: u64,
    pub(super) mad: Box<Mad>,
    pub(super) left: u8,
    /// When it is asked again.
    pub again: Time,
}
