//! The devices a launched program sees, and the node they are on.

use super::host::Host;
use node::devices::DeviceInfo;
use node::{FunctionAddress, NodeError, Observer};
use std::path::Path;
use std::time::{Duration, Instant};

/// Index of our first device if the host has devices of its own; otherwise it is 0.
pub(super) const BEHIND_HOST: u32 = 1 << 16;
/// How long a node is not tried again that could not be opened for lack of descriptors or memory.
const AGAIN: Duration = Duration::from_secs(1);

/// The devices that the program sees, and their node.
pub struct Inventory {
    /// Our devices, numbered as in the program's view.
    devices: Vec<DeviceInfo>,
    /// The node they are on, if they are a node's.
    observer: Option<Observer>,
    /// A node that could not be opened.
    refused: Option<Refusal>,
    /// The addresses that the node's devices had at the last check.
    addresses: Option<Vec<Option<FunctionAddress>>>,
    /// The kernel, if it has devices of its own.
    pub(super) host: Option<Host>,
}

/// A node that could not be opened.
struct Refusal {
    /// Device and inode of its file.
    node: (u64, u64),
    /// When it may be tried again; `None` if that would not help.
    until: Option<Instant>,
}

impl Inventory {
    /// An inventory of these devices, and of the kernel's if it has any.
    pub fn new(devices: Vec<DeviceInfo>, host: Option<Host>) -> Self {
        Self { devices, observer: None, refused: None, addresses: None, host }
    }

    /// Opens the node in `dir` for observation, unless it is open. Notices when another node has replaced it.
    pub fn look_at(&mut self, dir: &Path) {
        if self.observer.as_ref().is_some_and(|observer| observer.is_of(dir)) {
            return;
        }
        let there = Observer::identity(dir);
        // A node that was refused is not opened again before its time.
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

    /// The node's current devices, numbered as in the program's view, if they differ from ours. A difference is
    /// returned once.
    pub fn changed(&mut self) -> Option<Vec<DeviceInfo>> {
        let observer = self.observer.as_ref()?;
        let first = self.devices.first().filter(|d| d.is_pf())?.uverbs;
        let addresses = observer.addresses();
        if self.addresses.as_ref() == Some(&addresses) {
            return None;
        }
        self.addresses = Some(addresses);
        // The devices of a damaged node are not followed.
        let mut now = observer.devices().ok()?;
        now.iter_mut().for_each(|d| d.uverbs += first);
        (now != self.devices).then_some(now)
    }

    /// Replaces our devices by `devices`.
    pub fn replace(&mut self, devices: Vec<DeviceInfo>) {
        self.devices = devices;
    }

    /// Our devices.
    pub fn devices(&self) -> &[DeviceInfo] {
        &self.devices
    }

    /// The node, if our devices are on one.
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

    /// The node, and the function on it, if `device` is on one.
    pub(super) fn on_node(&self, device: &DeviceInfo) -> Option<(&Observer, u8)> {
        self.observer.as_ref().filter(|_| device.place.is_none()).map(|o| (o, device.fid))
    }
}
