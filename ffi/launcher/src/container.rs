//! Shows devices in a container: the view that a launched program has, made in the mount namespace of a container that an OCI
//! runtime is setting up, by its `createContainer` hook.
//!
//! Its supervisor is started, and the filter installed, by the process that becomes the runtime: all that the runtime starts is under it, so
//! the container's programs are, too. Its view is not there then. The hook, which is in the container, makes itself heard once it is.

use std::collections::BTreeSet;
use std::fs;
use std::io;
use std::os::unix::fs::{MetadataExt, chroot};
use std::path::{Path, PathBuf};

use super::netlink::Netlink;
use super::project::{places, project};
use super::projection::CDEVS;
pub use super::supervisor::Limit;
use super::supervisor::{Waiting, start_for_container};
use super::{LaunchError, error, provider, seccomp};
use node::Observer;
use node::devices::DeviceInfo;
use node::dir;
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
    project(devices, provider, None).map(drop)
}

/// Tells the supervisor of this container, if there is one, that its devices are shown: by a call that it answers.
pub fn tell_supervisor() {
    // The answer does not matter: without a supervisor it is the kernel's, and nobody uses the socket.
    let _ = Netlink::open(libc::SOCK_RAW, seccomp::NETLINK_RDMA);
}

/// The supervisor of a container that is about to be made.
pub struct Supervision(Option<Waiting>);

impl Supervision {
    /// Starts one for the container `id`, which has functions of the node in `node`, and whose programs may have `limit` descriptors, if that is
    /// said. Where the host cannot have that, the container does without.
    ///
    /// # Errors
    /// A shortage of descriptors, memory or processes, which may pass.
    pub fn start(node: &Path, id: &str, limit: Option<Limit>) -> Result<Self, LaunchError> {
        unless_short(door(node, id).and_then(|door| start_for_container(&door, limit))).map(Self)
    }

    /// The soft limit of descriptors that the container's programs are to have.
    pub fn soft_limit(&self) -> Option<u64> {
        self.0.as_ref().map(Waiting::soft_limit)
    }

    /// Puts the calling process under it, and all it starts: the container.
    ///
    /// # Errors
    /// As [`start`](Self::start).
    pub fn take_over(self) -> Result<(), LaunchError> {
        unless_short(self.0.map_or(Ok(()), Waiting::take_over)).map(drop)
    }
}

/// Puts the calling process under the supervisor of the container `id`, for it is about to run a program there. Returns whether there is one.
///
/// # Errors
/// As [`Supervision::start`].
pub fn join(node: &Path, id: &str) -> Result<bool, LaunchError> {
    let Some(door) = door(node, id).ok().filter(|door| door.exists()) else { return Ok(false) };
    unless_short(Waiting::join(&door).and_then(Waiting::take_over)).map(|_| true)
}

/// A shortage is an error, since it may pass. Containers do without features that the host does not have.
fn unless_short<T>(done: io::Result<T>) -> Result<Option<T>, LaunchError> {
    match done {
        Err(e) if error::is_shortage(&e) => {
            Err(LaunchError::step("start the container's supervisor".into())(e))
        }
        done => Ok(done.ok()),
    }
}

/// Where a container's supervisor hears of programs that are started in it: a socket in a directory of the engine's user alone, for who is
/// there hears their calls. Its name has room in a socket's address.
fn door(node: &Path, id: &str) -> io::Result<PathBuf> {
    const LONGEST: usize = 30;
    let node = fs::metadata(node)?;
    let plain = |c: char| if c.is_ascii_alphanumeric() || "-_.".contains(c) { c } else { '_' };
    let id: String = id.chars().take(LONGEST).map(plain).collect();
    Ok(dir::own().map_err(io::Error::other)?.join(format!("{:x}-{:x}-{id}", node.dev(), node.ino())))
}
