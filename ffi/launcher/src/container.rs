//! Shows devices in a container: the view that a launched program has, made in the mount namespace of a container that an OCI
//! runtime is setting up, by its `createContainer` hook.

use std::collections::BTreeSet;
use std::fs;
use std::io;
use std::os::unix::fs::{MetadataExt, chroot};
use std::path::Path;

use super::project::{places, project};
use super::projection::CDEVS;
use super::{LaunchError, provider};
use node::Observer;
use node::devices::DeviceInfo;
use node::place::Place;

/// Adds functions of a node to what the container with its root at `root` sees. The calling process is in the container's
/// mount namespace, which has its mounts below `root`, and has its root there from now on. `all` are the devices of the
/// node in `node`, `wanted` the numbers of those to show, beside any that an earlier call has shown.
///
/// # Errors
/// A mount is refused, or `root` is the host's own; what was mounted stays, for the runtime gives the container up.
pub fn show(
    root: &Path,
    node: &Path,
    all: &[DeviceInfo],
    wanted: &[u8],
    provider: &provider::Provider,
) -> Result<(), LaunchError> {
    let at = |what: &str| LaunchError::step(format!("{what} {}", root.display()));
    let [ours, theirs] = [Path::new("/"), root].map(fs::metadata);
    let (ours, theirs) = (ours.map_err(at("look at / and"))?, theirs.map_err(at("look at"))?);
    if (ours.dev(), ours.ino()) == (theirs.dev(), theirs.ino()) {
        let why = io::Error::new(io::ErrorKind::InvalidInput, "it is the root of this process");
        return Err(at("take for a container's root")(why));
    }
    let host_dev = fs::metadata("/dev").map_err(at("look at /dev beside"))?;
    let stem = provider::link(node, provider)?;
    chroot(root).and_then(|()| std::env::set_current_dir("/")).map_err(at("enter"))?;
    // A directory made in a /dev that is the host's would outlive the container.
    if fs::metadata("/dev").is_ok_and(|dev| (dev.dev(), dev.ino()) != (host_dev.dev(), host_dev.ino())) {
        fs::create_dir_all(CDEVS).map_err(LaunchError::step(format!("create {CDEVS}")))?;
    }
    let there = places().map_err(LaunchError::step("list the container's devices".into()))?;
    let of_node = all.iter().filter(|device| wanted.contains(&device.fid) || there.contains(&device.place));
    let mut devices: Vec<DeviceInfo> = of_node.cloned().collect();
    let others: BTreeSet<&Path> = there.iter().filter_map(Place::node).filter(|dir| *dir != node).collect();
    for other in others {
        let all = Observer::open(other).and_then(|observer| observer.devices()).map_err(LaunchError::Node)?;
        devices.extend(all.into_iter().filter(|device| there.contains(&device.place)));
    }
    project(devices, &stem).map(drop)
}
