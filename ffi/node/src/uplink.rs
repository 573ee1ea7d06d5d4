//! The uplink of a node, for the party that holds it (crate `link`).

use super::{
    Node, NodeError,
    crowd::{Crowd, TOGETHER},
    devices::DeviceInfo,
    frames::Frames,
    outlets::Held,
};
use devmodel::{Announcement, region::Outlet};
use std::{net::IpAddr, sync::Arc};

pub use super::neighbours::AddressRequest;

/// The exclusive right to carry frames out of a node and into it.
pub struct UplinkHold {
    held: Held,
    crowd: Crowd,
}

impl UplinkHold {
    /// Takes the uplink of `node`.
    ///
    /// # Errors
    /// [`NodeError::OutletHeld`]: another party, or this one, holds it. [`NodeError::NoRoom`]: there is no memory for its frames.
    pub fn new(node: &Arc<Node>) -> Result<Self, NodeError> {
        let held = Held::new(node, Outlet::Uplink)?;
        Ok(Self { held, crowd: Crowd::default() })
    }

    /// The node.
    pub fn node(&self) -> &Arc<Node> {
        self.held.node()
    }

    /// Lets programs on both nodes that may open both deliver frames to each other by themselves, as long as the uplinks are held.
    pub fn join(&self, other: &Self) {
        self.held.core().set_beside(other.held.core());
        other.held.core().set_beside(self.held.core());
    }

    /// Number of frames that programs on the node have delivered by themselves since [`join`](Self::join).
    pub fn passed(&self) -> u64 {
        self.held.core().passed()
    }

    /// The node's time in ps.
    pub fn now(&self) -> u64 {
        self.held.core().now()
    }

    /// Appends the next frames that leave the node, until there are `most` or no more wait. The caller has delivered the frames of earlier
    /// calls.
    pub fn pop(&self, frames: &mut Frames, most: usize) {
        let ring = self.held.core().outlet_ring(Outlet::Uplink);
        let some = ring.waits();
        ring.set_carried(some);
        if some {
            while frames.len() < most && frames.append(|bytes| ring.pop_behind(bytes)).is_some() {}
            ring.note_taken(self.now());
        }
    }

    /// The count that [`sleep`](Self::sleep) compares. It must be read before the last [`pop`](Self::pop), so that no frame is missed.
    pub fn wake_count(&self) -> u32 {
        self.held.core().outlet(Outlet::Uplink).bell.rung()
    }

    /// Sleeps until a frame leaves, a program requests an address, [`wake`](Self::wake) is called, or the time `until` (ps). `seen` is the
    /// [`wake_count`](Self::wake_count) from before the caller's last check.
    pub fn sleep(&self, seen: u32, until: Option<u64>) {
        self.held.core().sleep_on_outlet(Outlet::Uplink, seen, until);
    }

    /// Wakes the thread that [sleeps](Self::sleep).
    pub fn wake(&self) {
        self.held.core().outlet_filled(Outlet::Uplink);
    }

    /// Delivers frames from outside, from the Ethernet header to the ICRC, without the FCS, or from LRH to VCRC. Waits for a while if a
    /// function that another process serves has many undelivered frames, as a receiver pauses a link. With `quiet`, the caller
    /// [pops](Self::pop) the answers afterwards, and the thread that [sleeps](Self::sleep) is not woken for them.
    pub fn receive(&self, frames: &[&[u8]], quiet: bool) {
        let core = self.held.core();
        for some in frames.chunks(TOGETHER) {
            let now = core.now();
            core.drive(now, |runner, host| {
                host.0.scratch.quiet = quiet;
                runner.receive_all(&core.adapter, host, now, some.iter().copied());
                host.0.scratch.quiet = false;
            });
            // Answers so far do not wait as well.
            self.crowd.wait(core, || {
                if quiet {
                    self.wake()
                }
            });
        }
    }

    /// A number that changes when programs that poll take frames that [`receive`](Self::receive) left to them. `None` if none wait.
    pub fn left_to_pollers(&self) -> Option<u32> {
        self.held.core().entrusted_head()
    }

    /// Runs the functions of programs that have not taken the frames left to them: they poll something else.
    pub fn take_back(&self) {
        let core = self.held.core();
        core.take_back_entrusted(core.now());
    }

    /// Looks for dead programs, if that was last done some time ago. A peer on another adapter may wait for one until it is cleaned up
    /// after.
    pub fn sweep(&self) {
        let core = self.held.core();
        core.sweep(core.now());
    }

    /// Tells the administrator of an InfiniBand node's subnet what all other adapters on it announce. Returns false if a stopped program
    /// prevents that for now.
    pub fn learn(&self, others: &[Announcement]) -> bool {
        let (core, now) = (self.held.core(), self.now());
        core.touch(now, 0, |runner, host| runner.learn(&core.adapter, host, now, others))
    }

    /// The requests for MACs to send now, and when (ps) to call this again.
    pub fn address_requests(&self) -> (Vec<AddressRequest>, Option<u64>) {
        self.held.core().address_requests()
    }

    /// Records that `ip` is at `mac`, if a program requested it or a different MAC was known.
    pub fn heard(&self, ip: IpAddr, mac: [u8; 6]) {
        self.held.core().heard(ip, mac);
    }

    /// Function `fid`, as programs see it.
    pub fn device(&self, fid: u8) -> DeviceInfo {
        self.held.core().device(fid)
    }

    /// The function with address `ip` if programs drive it. For a function that is served to a guest, the guest's kernel responds.
    pub fn driven_here(&self, ip: IpAddr) -> Option<DeviceInfo> {
        let core = self.held.core();
        let has = |gid: &[u8; 16]| super::gid::ip_of_gid(gid) == ip;
        core.devices().find(|device| core.server(device.fid) == 0 && device.gids.iter().any(has))
    }
}
