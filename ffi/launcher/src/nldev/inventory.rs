//! The devices a launched program sees, and the node they are on.

use super::host::Host;
use node::devices::DeviceInfo;
use node::{FunctionAddress, NodeError, Observer};
use std::path::Path;
use std::time::{Duration, Instant};

/// Index of our first device where the host has devices of its own; else it is 0.
pub(super) const BEHIND_HOST: u32 = 1 << 16;
/// After how long a node is tried again that could not be opened for want of a descriptor or of memory.
const AGAIN: Duration = Duration::from_secs(1);

/// What there is to tell of.
pub struct Inventory {
    /// Our devices, numbered as in the program's view.
    devices: Vec<DeviceInfo>,
    /// The node they are on; none if they are no node's.
    observer: Option<Observer>,
    /// The node that could not be looked at.
    refused: Option<Refusal>,
    /// What was last asked of the node's devices: the addresses that were set for them.
    addresses: Option<Vec<Option<FunctionAddress>>>,
    /// The kernel, if it has devices of its own.
    pub(super) host: Option<Host>,
}

/// A node that could not be looked at.
struct Refusal {
    /// Its file.
    node: (u64, u64),
    /// Until when it is not tried again: for ever if that would not help.
    until: Option<Instant>,
}

impl Inventory {
    /// A inventory of these devices, and of the kernel's if it has any.
    pub fn new(devices: Vec<DeviceInfo>, host: Option<Host>) -> Self {
        Self { devices, observer: None, refused: None, addresses: None, host }
    }

    /// Looks at the node in `dir`, if there is one: also when another has come into its place.
    pub fn look_at(&mut self, dir: &Path) {
        if self.observer.as_ref().is_some_and(|observer| observer.is_of(dir)) {
            return;
        }
        let there = Observer::identity(dir);
        // Opening it again would be one more visit to look after.
        let holds = |refusal: &Refusal| refusal.until.is_none_or(|until| Instant::now() < until);
        if self.refused.as_ref().is_some_and(|refusal| Some(refusal.node) == there && holds(refusal)) {
            return;
        }
        let opened = Observer::open(dir);
        let until = matches!(opened, Err(NodeError::System { .. })).then(|| Instant::now() + AGAIN);
        self.observer = opened.ok();
        self.addresses = None;
        self.refused = there.filter(|_| self.observer.is_none()).map(|node| Refusal { node, until });
    }

    /// The devices the node has now, numbered as in the program's view, if they are others than ours: told once.
    pub fn changed(&mut self) -> Option<Vec<DeviceInfo>> {
        let observer = self.observer.as_ref()?;
        let first = self.devices.first().filter(|d| d.is_pf())?.uverbs;
        let addresses = observer.addresses();
        if self.addresses.as_ref() == Some(&addresses) {
            return None;
        }
        self.addresses = Some(addresses);
        // A node that is damaged has no devices to follow.
        let mut now = observer.devices().ok()?;
        now.iter_mut().for_each(|d| d.uverbs += first);
        (now != self.devices).then_some(now)
    }

    /// Our devices are `devices` from now on.
    pub fn replace(&mut self, devices: Vec<DeviceInfo>) {
        self.devices = devices;
    }

    /// Our devices.
    pub fn devices(&self) -> &[DeviceInfo] {
        &self.devices
    }

    /// The node, if the devices are on one.
    pub fn observer(&self) -> Option<&Observer> {
        self.observer.as_ref()
    }

    pub(super) fn first(&self) -> u32 {
        if self.host.is_some() { BEHIND_HOST } else { 0 }
    }

    /// Our devices with their indices.
    pub(super) fn indexed(&self) -> impl Iterator<Item = (u32, &DeviceInfo)> {
        (self.first()..).zip(&self.devices)
    }

    /// The device of an index.
    pub(super) fn device(&self, index: u32) -> Option<&DeviceInfo> {
        self.devices.get(index.checked_sub(self.first())? as usize)
    }

    /// The node and the function on it, if `device` is a node's.
    pub(super) fn on_node(&self, device: &DeviceInfo) -> Option<(&Observer, u8)> {
        self.observer.as_ref().filter(|_| device.place.is_none()).map(|o| (o, device.fid))
    }
}
