//! Options for opening a function.

use crate::resolve::Resolve;
use std::{sync::Arc, time::Duration};

/// Options for opening a function.
#[derive(Clone, Debug)]
pub struct OpenOptions {
    /// RoCE v2 GIDs in table order; the first opener programs them.
    pub gids: Vec<[u8; 16]>,
    /// Puts the link-local address derived from the function's MAC before `gids`, for functions with a MAC that is
    /// not known before bring-up.
    pub link_local: bool,
    /// MACs of peers by GID, for addresses that cannot be resolved otherwise.
    pub neighbours: Vec<([u8; 16], [u8; 6])>,
    /// VLAN of the GIDs, `None` for untagged.
    pub vlan: Option<u16>,
    /// The MTU, without layer 2, that the first opener sets on an Ethernet function. `None`: the port's MTU, if the
    /// function's is smaller.
    pub mtu: Option<u16>,
    /// The MAC for a function that was assigned none. `None`: a random one.
    pub own_mac: Option<[u8; 6]>,
    /// Resolves peers that are not in `neighbours`; set by [`open_resolving`](crate::open_resolving).
    pub resolver: Option<Arc<dyn Resolve>>,
    /// Timeout of one command. Firmware that sets up many virtual functions needs this long.
    pub command_timeout: Duration,
    /// Timeout of firmware initialization, as after a reset.
    pub ready_timeout: Duration,
    /// Timeout for another opener that holds the function's lock to tear it down or to share an object. An opener
    /// that brings the function up may take `ready_timeout`.
    pub lock_timeout: Duration,
    /// Number of event queue entries, a power of two.
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
