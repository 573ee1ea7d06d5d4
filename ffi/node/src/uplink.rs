//! The uplink of a node as the party that holds it uses it (crate `link`).

use super::{Node, NodeError, devices::DeviceInfo, outlets::Held};
use devmodel::region::Outlet;
use std::{
    net::IpAddr,
    sync::{Arc, atomic::Ordering::SeqCst},
};

pub use super::neighbours::AddressRequest;

/// The right to carry what leaves a node and to bring in what comes. While this lives nobody else has it.
pub struct UplinkHold(Held);

impl UplinkHold {
    /// Takes the uplink of `node`.
    ///
    /// # Errors
    /// [`NodeError::OutletHeld`]: another party has it, or this one. [`NodeError::NoRoom`]: its frames would find no memory.
    pub fn new(node: &Arc<Node>) -> Result<Self, NodeError> {
        Held::new(node, Outlet::Uplink).map(Self)
    }

    /// The node.
    pub fn node(&self) -> &Arc<Node> {
        self.0.node()
    }

    /// The node's time in ps.
    pub fn now(&self) -> u64 {
        self.0.core().now()
    }

    /// Takes the next frame that leaves the node. False: none waits.
    pub fn pop(&self, frame: &mut Vec<u8>) -> bool {
        self.0.core().outlet_ring(Outlet::Uplink).pop(frame).is_some()
    }

    /// What [`sleep`](Self::sleep) compares with: read before the last [`pop`](Self::pop), it lets no frame be overslept.
    pub fn wake_count(&self) -> u32 {
        self.0.core().outlet(Outlet::Uplink).wake.load(SeqCst)
    }

    /// Sleeps until a frame leaves, a program asks for an address, somebody calls [`wake`](Self::wake), or `until` (ps) has
    /// come. `seen` is the [`wake_count`](Self::wake_count) before the caller last looked.
    pub fn sleep(&self, seen: u32, until: Option<u64>) {
        self.0.core().sleep_on_outlet(Outlet::Uplink, seen, until);
    }

    /// Wakes whoever [sleeps](Self::sleep).
    pub fn wake(&self) {
        self.0.core().outlet_filled(Outlet::Uplink);
    }

    /// Frames from outside, Ethernet to ICRC without check sequence, enter the node.
    pub fn receive(&self, frames: &[Vec<u8>]) {
        let core = self.0.core();
        let now = core.now();
        core.drive(now, |runner, host| {
            runner.receive_all(&core.adapter, host, now, frames.iter().map(Vec::as_slice));
        });
    }

    /// The requests for addresses to be put to the wire now. Also returns when (ps) to look again.
    pub fn address_requests(&self) -> (Vec<AddressRequest>, Option<u64>) {
        self.0.core().address_requests()
    }

    /// `ip` is said to be at `mac`: noted if a program asked for it, or knew another.
    pub fn heard(&self, ip: IpAddr, mac: [u8; 6]) {
        self.0.core().heard(ip, mac);
    }

    /// Function `fid`, as programs meet it.
    pub fn device(&self, fid: u8) -> DeviceInfo {
        self.0.core().device(fid)
    }

    /// The function that programs drive and that answers to `ip`. A guest's kernel answers for those that are served to it.
    pub fn driven_here(&self, ip: IpAddr) -> Option<DeviceInfo> {
        let core = self.0.core();
        let has = |gid: &[u8; 16]| super::gid::ip_of_gid(gid) == ip;
        core.devices().find(|device| core.server(device.fid) == 0 && device.gids.iter().any(has))
    }
}
