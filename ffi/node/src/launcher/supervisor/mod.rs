//! The process beside a launched program that answers what the kernel cannot: RDMA netlink, and counters below `/sys`.
//!
//! It is started by the launcher before that becomes the program, is nobody's child and of a session of its own, holds no
//! file of the program's, and ends with the last process under the program's filter.

mod live;
mod process;
mod sockets;
mod sys;
mod umad;

use super::nldev::{Host, World};
use super::notify::Listener;
use super::reserved::Reserved;
use super::{project, seccomp, sys as launcher};
use crate::devices::DeviceInfo;
use live::Live;
use sockets::Sockets;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};
use umad::Umads;

/// How old a counter below `/sys` may be while programs are on the node, less what it takes to write it.
const PERIOD: Duration = Duration::from_millis(80);

/// How long whoever opens a node takes at most until it has its place there.
const ARRIVAL: Duration = Duration::from_secs(1);

/// The launcher's end of a supervisor that waits for a program to supervise.
pub struct Waiting {
    line: UnixStream,
    reserved: Reserved,
}

/// What a supervisor is told of the program's view.
pub struct View {
    /// The devices, numbered as in the view.
    pub devices: Vec<DeviceInfo>,
    /// The node they are on.
    pub node: PathBuf,
    /// The directory of PCI devices, where files that change are written.
    pub tree: OwnedFd,
}

/// Starts a supervisor. The calling process must have one thread.
///
/// # Errors
/// It could not be started; nothing is left of it.
pub fn start(view: View) -> io::Result<Waiting> {
    let reserved = Reserved::choose()?;
    let (line, its) = UnixStream::pair()?;
    let child = sys::fork_apart(|| {
        // Everything else that is open is the program's.
        let (tree, its) = sys::keep_only(view.tree, OwnedFd::from(its))?;
        let listener = sys::receive_descriptor(its.as_fd())?;
        drop(its);
        // A descriptor for each socket that is given: the launched program's soft limit is not made for these.
        launcher::raise_own_limit()?;
        let sockets = Sockets::new(reserved)?;
        supervise(&Listener::from_descriptor(listener), view.devices, &view.node, tree, sockets)
    });
    child.map(|()| Waiting { line, reserved })
}

impl Waiting {
    /// Puts the calling process, and all it starts, under the supervisor.
    ///
    /// # Errors
    /// The kernel does not have it: the supervisor ends, and nothing has changed.
    pub fn take_over(self) -> io::Result<()> {
        let listener = seccomp::watch_rdma_netlink(self.reserved)?;
        sys::send_descriptor(self.line.as_fd(), listener.as_fd())?;
        self.reserved.keep_away()
    }
}

/// Serves until nobody is left.
fn supervise(
    listener: &Listener,
    devices: Vec<DeviceInfo>,
    node: &Path,
    tree: OwnedFd,
    mut sockets: Sockets,
) -> io::Result<()> {
    let host = if project::host_has_devices() { Host::open().ok() } else { None };
    let mut live = Live::new(tree, &devices);
    let mut world = World::new(devices, host);
    world.look_at(node);
    let mut umads = Umads::default();
    let visits = sys::Visits::of(node).ok();
    // Somebody may have come before we looked.
    let mut awake = Some(Instant::now());
    loop {
        let mut until = sockets.next_deadline();
        if let Some(observer) = world.observer() {
            live.refresh(observer);
            // Who opened the node a moment ago may not have taken its place yet.
            let arriving = awake.is_some_and(|since| since.elapsed() < ARRIVAL);
            awake = awake.filter(|_| arriving || observer.has_programs());
            if awake.is_some() || visits.is_none() {
                let next = Instant::now() + PERIOD;
                until = Some(until.map_or(next, |until| until.min(next)));
            }
        }
        let watch = visits.as_ref().map(AsFd::as_fd);
        let ready = sys::wait(listener.as_fd(), watch, &umads.files(), until)?;
        if ready.over {
            return Ok(());
        }
        if ready.visited {
            visits.iter().for_each(sys::Visits::clear);
            awake = Some(Instant::now());
            world.look_at(node);
        }
        if ready.called {
            match listener.receive() {
                Ok(notice) if notice.call == libc::SYS_ioctl => umads.serve(listener, &world, &notice),
                Ok(notice) => sockets.serve(listener, &world, notice),
                // Whoever called was interrupted.
                Err(e) if matches!(e.raw_os_error(), Some(libc::ENOENT | libc::EINTR)) => {}
                Err(e) => return Err(e),
            }
        }
        sockets.expire(listener);
        umads.work(&world);
    }
}
