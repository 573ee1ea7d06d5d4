//! The process beside a launched program that answers what the kernel cannot: RDMA netlink, and counters below `/sys`. It also
//! keeps the program's view true when the node's devices change.
//!
//! It is started by the launcher before that becomes the program, is nobody's child and of a session of its own, holds no
//! file of the program's, and ends with the last process under the program's filter.

mod live;
mod process;
mod sockets;
mod sys;
mod umad;

use super::nldev::{Host, Inventory};
use super::notify::Listener;
use super::projection::Projection;
use super::reserved::Reserved;
use super::{project, seccomp, sys as launcher};
use live::Live;
use node::Observer;
use node::devices::DeviceInfo;
use sockets::Sockets;
use std::io::{self, ErrorKind, Read, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};
pub use sys::fork_apart;
use umad::Umads;

/// How old a counter below `/sys` may be while programs are on the node, less the time to write it.
const PERIOD: Duration = Duration::from_millis(80);

/// Most time between opening a node and having a place on it.
const ARRIVAL: Duration = Duration::from_secs(1);

/// The launcher's end of a supervisor that waits for its program.
pub struct Waiting {
    line: UnixStream,
    reserved: Reserved,
}

/// The supervisor's end: see [`pair`].
pub struct Supervisor {
    line: OwnedFd,
    reserved: Reserved,
}

/// What a supervisor knows of the program's view.
pub struct View {
    /// The devices, numbered as in the view.
    pub devices: Vec<DeviceInfo>,
    /// The projected directories.
    pub projection: Projection,
}

/// Starts a supervisor. The calling process must have one thread.
///
/// # Errors
/// It could not be started, and nothing of it remains.
pub fn start(view: View) -> io::Result<Waiting> {
    let (waiting, supervisor) = pair()?;
    fork_apart(|| {
        // Everything else that is open is the program's.
        let Projection { functions, bus, classes, newest_first } = view.projection;
        let [functions, bus, classes, line] = sys::keep_only([functions, bus, classes, supervisor.line])?;
        let projection = Projection { functions, bus, classes, newest_first };
        // A descriptor for each socket that is given: the launched program's soft limit is not made for these.
        launcher::raise_own_limit()?;
        Supervisor { line, ..supervisor }.supervise(View { projection, devices: view.devices })
    })?;
    Ok(waiting)
}

/// What a program comes under a supervisor by, and what that supervisor is made of, wherever it is to run.
///
/// # Errors
/// EMFILE, ENFILE: no descriptors are left. [`Unsupported`](ErrorKind::Unsupported): the program may have too few to spare
/// the numbers that a supervisor needs.
pub fn pair() -> io::Result<(Waiting, Supervisor)> {
    let reserved = Reserved::choose()?;
    let (line, its) = UnixStream::pair()?;
    Ok((Waiting { line, reserved }, Supervisor { line: its.into(), reserved }))
}

impl Waiting {
    /// Puts the calling process, and all it starts, under the supervisor.
    ///
    /// # Errors
    /// The kernel does not have it, or the supervisor could not get ready, and may have ended before it said why
    /// ([`UnexpectedEof`](ErrorKind::UnexpectedEof)): it ends, and nothing has changed.
    pub fn take_over(mut self) -> io::Result<()> {
        // A filter cannot be taken back: one without a supervisor fails all calls it is asked about.
        let mut errno = [0; size_of::<i32>()];
        self.line.read_exact(&mut errno).map_err(|e| match e.kind() {
            ErrorKind::UnexpectedEof => io::Error::new(e.kind(), "it ended before it was ready"),
            _ => e,
        })?;
        match i32::from_ne_bytes(errno) {
            0 => {}
            errno => return Err(io::Error::from_raw_os_error(errno)),
        }
        let listener = seccomp::watch_rdma_netlink(self.reserved)?;
        sys::send_descriptor(self.line.as_fd(), listener.as_fd())?;
        self.reserved.keep_away()
    }
}

impl Supervisor {
    /// Waits for a program, and answers it in the calling thread until nobody is left of it.
    ///
    /// # Errors
    /// Nobody came, or the program's calls cannot be heard any more.
    pub fn supervise(self, view: View) -> io::Result<()> {
        let mut line = UnixStream::from(self.line);
        let sockets = Sockets::new(self.reserved);
        let sight = Sight::new(view)?;
        let errno = sockets.as_ref().map_or_else(|e| e.raw_os_error().unwrap_or(libc::EIO), |_| 0);
        line.write_all(&errno.to_ne_bytes())?;
        let sockets = sockets?;
        let listener = sys::receive_descriptor(line.as_fd())?;
        drop(line);
        supervise(&Listener::from_descriptor(listener), sight, sockets)
    }
}

/// The program's view of the nodes.
struct Sight {
    projection: Projection,
    inventory: Inventory,
    live: Live,
}

impl Sight {
    /// The view. Its files say what the nodes have counted before, from the program's first instruction on.
    fn new(View { devices, projection }: View) -> io::Result<Self> {
        let host = if project::host_has_devices()? { Host::open().ok() } else { None };
        let live = Live::new(&devices);
        let mut sight = Self { inventory: Inventory::new(devices, host), projection, live };
        sight.inventory.look();
        sight.look();
        Ok(sight)
    }

    /// Shows devices of the nodes that changed, and what changed of their ports. If the system refuses, the view stays
    /// as it is until the devices change again, answers remain those of what it shows, and `ironverbs doctor` says
    /// so. Returns true if another check is needed.
    fn look(&mut self) -> bool {
        if let Some(devices) = self.inventory.changed() {
            if self.projection.change(self.inventory.devices(), &devices).is_ok() {
                self.live.follow(&devices);
                self.inventory.replace(devices);
            }
        }
        let home = self.projection.functions();
        self.live.refresh(&self.inventory, &home)
    }
}

/// Serves until no program is left.
fn supervise(listener: &Listener, mut sight: Sight, mut sockets: Sockets) -> io::Result<()> {
    let mut umads = Umads::default();
    let visits = sys::Visits::of(sight.inventory.dirs()).ok();
    // A program may have come before the first check.
    let mut awake = Some(Instant::now());
    loop {
        let mut until = sockets.next_deadline();
        // Read before the check, which sees what programs did that have ended by then.
        let peopled = sight.inventory.observers().any(Observer::has_programs);
        let again = sight.look();
        if sight.inventory.observers().next().is_some() {
            // A program that has just opened the node may not have its place yet.
            let arriving = awake.is_some_and(|since| since.elapsed() < ARRIVAL);
            awake = awake.filter(|_| arriving || peopled);
            if awake.is_some() || again || visits.is_none() {
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
            sight.inventory.look();
        }
        if ready.called {
            match listener.receive() {
                Ok(notice) if notice.call == libc::SYS_ioctl => {
                    umads.serve(listener, &sight.inventory, &notice)
                }
                Ok(notice) => sockets.serve(listener, &sight.inventory, notice),
                // The caller was interrupted.
                Err(e) if matches!(e.raw_os_error(), Some(libc::ENOENT | libc::EINTR)) => {}
                Err(e) => return Err(e),
            }
        }
        sockets.expire(listener);
        umads.work(&sight.inventory);
    }
}
