//! How a function is opened.

use crate::resolve::Resolve;
use std::{sync::Arc, time::Duration};

/// How to open a function.
#[derive(Clone, Debug)]
pub struct OpenOptions {
    /// GIDs in table order, RoCE v2; the first opener programs them.
    pub gids: Vec<[u8; 16]>,
    /// Puts the link-local address made of the function's MAC before `gids`, for functions whose MAC is not known
    /// before they are up.
    pub link_local: bool,
    /// MACs of peers by GID, for addresses that nothing else resolves.
    pub neighbours: Vec<([u8; 16], [u8; 6])>,
    /// VLAN of the GIDs; `None`: untagged.
    pub vlan: Option<u16>,
    /// The MTU that the first opener gives an Ethernet function, without layer 2; `None`: what the port has, if the
    /// function has less.
    pub mtu: Option<u16>,
    /// The MAC that a function takes which was given none; `None`: one is drawn.
    pub own_mac: Option<[u8; 6]>,
    /// How peers are found that are not in that list; set by [`open_resolving`](crate::open_resolving).
    pub resolver: Option<Arc<dyn Resolve>>,
    /// How long one command may take: firmware that sets up many virtual functions needs that much.
    pub command_timeout: Duration,
    /// How long the firmware may take until it is initialized, as after a reset.
    pub ready_timeout: Duration,
    /// How long another opener may hold the function while it takes it down or shares an object; who brings it up may
    /// take `ready_timeout`.
    pub lock_timeout: Duration,
    /// Entries of the event queue, a power of two.
    pub eq_entries: u32,
}

impl Default for OpenOptions {
    fn default() -> Self {
        Self {
            gids: Vec::new(),
            link_local: false,
            neighbours: Vec::new(),
            vlan: None,
            mtu: None,
            own_mac: None,
            resolver: None,
            command_timeout: Duration::from_secs(60),
            ready_timeout: Duration::from_secs(120),
            lock_timeout: Duration::from_secs(10),
            eq_entries: 4096,
        }
    }
}
