//! The devices a launched program sees, and the nodes they are on.

use super::host::Host;
use node::devices::DeviceInfo;
use node::place::Place;
use node::{FunctionAddress, NodeError, Observer};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// Index of our first device if the host has its own devices; otherwise it is 0.
pub(super) const BEHIND_HOST: u32 = 1 << 16;
/// Delay before another try to open a node, after a lack of descriptors or memory.
const AGAIN: Duration = Duration::from_secs(1);

/// The devices that a view shows after its nodes' devices have changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Follows {
    /// All devices that its nodes have then.
    Nodes,
    /// The devices that it was created with, in their new state.
    Devices,
}

/// The devices that the program sees, and their nodes.
pub struct Inventory {
    /// Our devices, numbered as in the program's view.
    devices: Vec<DeviceInfo>,
    /// The nodes they are on, in order.
    nodes: Vec<Watched>,
    follows: Follows,
    /// The kernel, if it has its own devices.
    pub(super) host: Option<Host>,
}

/// A node under observation.
struct Watched {
    dir: PathBuf,
    /// Number of its PF's `uverbsN` in the view.
    first: u32,
    observer: Option<Observer>,
    /// A node that could not be opened.
    refused: Option<Refusal>,
    /// The addresses that its devices had at the last check.
    addresses: Option<Vec<Option<FunctionAddress>>>,
}

/// A node that could not be opened.
struct Refusal {
    /// Device and inode of its file.
    node: (u64, u64),
    /// When it may be tried again; `None` if that would not help.
    until: Option<Instant>,
}

impl Watched {
    /// The node that `device` is on, if it is on one.
    fn of(device: &DeviceInfo) -> Option<Self> {
        let (dir, first) = (device.node()?.to_path_buf(), device.uverbs.saturating_sub(device.fid.into()));
        Some(Self { dir, first, observer: None, refused: None, addresses: None })
    }

    /// Opens the node for observation, unless it is open. Detects that another node has replaced it.
    fn look(&mut self) {
        if self.observer.as_ref().is_some_and(|observer| observer.is_of(&self.dir)) {
            return;
        }
        let there = Observer::identity(&self.dir);
        // A refused node is not opened again before its time.
        let holds = |refusal: &Refusal| refusal.until.is_none_or(|until| Instant::now() < until);
        if self.refused.as_ref().is_some_and(|refusal| Some(refusal.node) == there && holds(refusal)) {
            return;
        }
        let opened = Observer::open(&self.dir);
        let until = matches!(opened, Err(NodeError::System { .. })).then(|| Instant::now() + AGAIN);
        self.observer = opened.ok();
        self.addresses = None;
        self.refused = there.filter(|_| self.observer.is_none()).map(|node| Refusal { node, until });
    }

    /// True if the addresses or the number of its devices have changed since the last check.
    fn has_changed(&mut self) -> bool {
        let Some(observer) = &self.observer else { return false };
        let addresses = Some(observer.addresses());
        let changed = self.addresses != addresses;
        self.addresses = addresses;
        changed
    }

    /// Its current devices, numbered as in the view. `None` for a node that is damaged or not open.
    fn devices(&self) -> Option<Vec<DeviceInfo>> {
        let mut now = self.observer.as_ref()?.devices().ok()?;
        now.iter_mut().for_each(|d| d.uverbs += self.first);
        Some(now)
    }
}

impl Inventory {
    /// An inventory of these devices, on nodes or elsewhere, and of the kernel's own if it has any.
    pub fn new(devices: Vec<DeviceInfo>, follows: Follows, host: Option<Host>) -> Self {
        let mut nodes: Vec<Watched> = devices.iter().filter_map(Watched::of).collect();
        nodes.dedup_by(|one, other| one.dir == other.dir);
        Self { devices, nodes, follows, host }
    }

    /// Opens the nodes for observation, unless they are open. Detects that another node has replaced one.
    pub fn look(&mut self) {
        self.nodes.iter_mut().for_each(Watched::look);
    }

    /// The nodes' current devices, numbered as in the program's view, if they differ from ours. A difference is
    /// returned once.
    pub fn changed(&mut self) -> Option<Vec<DeviceInfo>> {
        // Asks every node, because each records its state.
        if self.nodes.iter_mut().filter_map(|node| node.has_changed().then_some(())).count() == 0 {
            return None;
        }
        let mut now: Vec<DeviceInfo> = Vec::new();
        for node in &self.nodes {
            let shown = self.devices.iter().filter(|d| d.node() == Some(&node.dir));
            match (node.devices(), self.follows) {
                (Some(there), Follows::Nodes) => now.extend(there),
                (Some(there), Follows::Devices) => {
                    now.extend(shown.map(|d| there.iter().find(|t| t.fid == d.fid).unwrap_or(d).clone()));
                }
                (None, _) => now.extend(shown.cloned()),
            }
        }
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

    /// Calls `with` with the inventory of a program that sees only the devices at `shown`, with their numbers there.
    pub fn as_seen<R>(&mut self, shown: &[(u32, Place)], with: impl FnOnce(&Self) -> R) -> R {
        let known = |(uverbs, place): &(u32, Place)| {
            let device = self.devices.iter().find(|device| device.place == *place)?;
            Some(DeviceInfo { uverbs: *uverbs, ..device.clone() })
        };
        let seen = shown.iter().filter_map(known).collect();
        let all = std::mem::replace(&mut self.devices, seen);
        let done = with(self);
        self.devices = all;
        done
    }

    /// The directories of the nodes.
    pub fn dirs(&self) -> impl Iterator<Item = &Path> {
        self.nodes.iter().map(|node| &*node.dir)
    }

    /// The nodes that could be opened.
    pub fn observers(&self) -> impl Iterator<Item = &Observer> {
        self.nodes.iter().filter_map(|node| node.observer.as_ref())
    }

    /// The node in `dir`, if it could be opened.
    pub fn observer(&self, dir: &Path) -> Option<&Observer> {
        self.nodes.iter().find(|node| node.dir == dir)?.observer.as_ref()
    }

    pub(super) fn first(&self) -> u32 {
        if self.host.is_some() { BEHIND_HOST } else { 0 }
    }

    /// Our devices with their indices. A device keeps its index while it is shown, because the index follows its `uverbsN`.
    pub(super) fn indexed(&self) -> impl Iterator<Item = (u32, &DeviceInfo)> {
        let from = self.devices.first().map_or(0, |d| d.uverbs.saturating_sub(d.fid.into()));
        self.devices.iter().map(move |d| (self.first() + d.uverbs.saturating_sub(from), d))
    }

    /// The device of an index.
    pub(super) fn device(&self, index: u32) -> Option<&DeviceInfo> {
        self.indexed().find(|(number, _)| *number == index).map(|(_, device)| device)
    }

    /// The node, and the function on it, if `device` is on one.
    pub(super) fn on_node(&self, device: &DeviceInfo) -> Option<(&Observer, u8)> {
        Some((self.observer(device.node()?)?, device.fid))
    }
}
