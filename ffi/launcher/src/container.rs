//! Shows devices in a container: the same view as for a launched program, made in the mount namespace of a container that an OCI runtime is
//! setting up, by its `createContainer` hook.
//!
//! The process that becomes the runtime starts the supervisor and installs the filter: everything that the runtime starts is under the
//! filter, including the container's programs. The view does not exist yet at that point; the hook, which runs in the container, notifies
//! the supervisor once it does.

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

/// Adds functions of a node to the view of the container with its root at `root`. The calling process is in the container's mount
/// namespace, with the container's mounts below `root`, and changes its root to it. `all` are the devices of the adapter in `node`, `wanted`
/// the numbers of those to show, in addition to any shown by an earlier call.
///
/// # Errors
/// A mount is refused, or `root` is the host's own. Mounts made so far stay, because the runtime discards the container.
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
    // A directory created in the host's own /dev would outlive the container.
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

/// Notifies the supervisor of this container, if there is one, that its devices are shown: by a call that it intercepts.
pub fn tell_supervisor() {
    // The result does not matter: without a supervisor it is the kernel's, and the socket is not used.
    let _ = Netlink::open(libc::SOCK_RAW, seccomp::NETLINK_RDMA);
}

/// The supervisor of a container that is about to be created.
pub struct Supervision(Option<Waiting>);

impl Supervision {
    /// Starts a supervisor for the container `id`, which has functions of the adapter in `node`. Its programs may have `limit` descriptors, if
    /// given. Where the host does not support a supervisor, the container runs without.
    ///
    /// # Errors
    /// A shortage of descriptors, memory or processes, which may be temporary.
    pub fn start(node: &Path, id: &str, limit: Option<Limit>) -> Result<Self, LaunchError> {
        unless_short(door(node, id).and_then(|door| start_for_container(&door, limit))).map(Self)
    }

    /// The soft limit of descriptors for the container's programs.
    pub fn soft_limit(&self) -> Option<u64> {
        self.0.as_ref().map(Waiting::soft_limit)
    }

    /// Puts the calling process and all its later children, which become the container, under the supervisor.
    ///
    /// # Errors
    /// As for [`start`](Self::start).
    pub fn take_over(self) -> Result<(), LaunchError> {
        unless_short(self.0.map_or(Ok(()), Waiting::take_over)).map(drop)
    }
}

/// Puts the calling process, which is about to run a program in the container `id`, under that container's supervisor. Returns false if
/// there is none.
///
/// # Errors
/// As for [`Supervision::start`].
pub fn join(node: &Path, id: &str) -> Result<bool, LaunchError> {
    let Some(door) = door(node, id).ok().filter(|door| door.exists()) else { return Ok(false) };
    unless_short(Waiting::join(&door).and_then(Waiting::take_over)).map(|_| true)
}

/// A shortage is an error, because it may be temporary. Features that the host lacks are left out.
fn unless_short<T>(done: io::Result<T>) -> Result<Option<T>, LaunchError> {
    match done {
        Err(e) if error::is_shortage(&e) => {
            Err(LaunchError::step("start the container's supervisor".into())(e))
        }
        done => Ok(done.ok()),
    }
}

/// The socket where a container's supervisor is notified of programs that are started in it. It is in a directory private to the engine's
/// user, because the process that listens there receives their calls. The name is short enough for a socket address.
fn door(node: &Path, id: &str) -> io::Result<PathBuf> {
    const LONGEST: usize = 30;
    let node = fs::metadata(node)?;
    let plain = |c: char| if c.is_ascii_alphanumeric() || "-_.".contains(c) { c } else { '_' };
    let id: String = id.chars().take(LONGEST).map(plain).collect();
    Ok(dir::own().map_err(io::Error::other)?.join(format!("{:x}-{:x}-{id}", node.dev(), node.ino())))
}
