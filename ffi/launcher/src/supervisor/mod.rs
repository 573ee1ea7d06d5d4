//! The process next to a launched program that handles what the kernel cannot: RDMA netlink, and counters under `/sys`. It also keeps the
//! program's view up to date when the node's devices change.
//!
//! The launcher starts it before it execs the program. It is not a child of any process of the run and has its own session, holds no file
//! of the program, and ends with the last process under the program's filter.

mod live;
mod process;
mod sockets;
mod sys;
mod umad;

use super::inside;
pub use super::nldev::Follows;
use super::nldev::{Host, Inventory};
use super::notify::{Listener, Notice};
use super::projection::Projection;
use super::reserved::Reserved;
pub use super::sys::Limit;
use super::{project, seccomp, sys as launcher};
use live::Live;
use node::Observer;
use node::devices::DeviceInfo;
use process::Process;
use sockets::Sockets;
use std::fs;
use std::io::{self, ErrorKind, Read, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::time::{Duration, Instant};
pub use sys::fork_apart;
use umad::Umads;

/// Maximum age of a counter under `/sys` while programs are on the node, less the time to write it.
const PERIOD: Duration = Duration::from_millis(80);

/// Maximum time between opening a node and having a slot on it.
const ARRIVAL: Duration = Duration::from_secs(1);

/// The launcher's end of a supervisor that waits for its program.
pub struct Waiting {
    line: UnixStream,
    reserved: Reserved,
    /// True if the supervisor was ready before the connection was made, and will send no notice.
    is_ready: bool,
}

/// The supervisor's end; [`pair`] makes both.
pub struct Supervisor {
    line: OwnedFd,
    reserved: Reserved,
}

/// A supervisor's data about the program's view.
pub struct View {
    /// The devices, numbered as in the view.
    pub devices: Vec<DeviceInfo>,
    /// Determines the devices that the view shows after a node's devices change.
    pub follows: Follows,
    /// The projected directories.
    pub projection: Projection,
}

/// Starts a supervisor. The calling process must have one thread.
///
/// # Errors
/// It could not be started, and nothing of it remains.
pub fn start(view: View) -> io::Result<Waiting> {
    let (waiting, supervisor) = pair(None)?;
    fork_apart(|| {
        // All other open files belong to the program.
        let Projection { functions, bus, classes, newest_first } = view.projection;
        let [functions, bus, classes, line] = sys::keep_only([functions, bus, classes, supervisor.line])?;
        let projection = Projection { functions, bus, classes, newest_first };
        // One descriptor per socket: the launched program's soft limit may be too low for these.
        launcher::raise_own_limit()?;
        Supervisor { line, ..supervisor }.supervise(View { projection, ..view })
    })?;
    Ok(waiting)
}

/// Starts a supervisor for the container that the calling process, which has one thread, is about to create. It is notified through `door`,
/// a socket that is removed with it, of programs that are started in the container later. `limit` is the container's limit of descriptors.
///
/// # Errors
/// As for [`start`].
pub fn start_for_container(door: &Path, limit: Option<Limit>) -> io::Result<Waiting> {
    // A killed predecessor leaves its socket behind.
    let _ = fs::remove_file(door);
    let listener = UnixListener::bind(door)?;
    let started = pair(limit).and_then(|(waiting, supervisor)| {
        fork_apart(|| {
            let done = sys::keep_only([supervisor.line, listener.into()]).and_then(|[line, listener]| {
                launcher::raise_own_limit()?;
                Supervisor { line, ..supervisor }.supervise_container(&UnixListener::from(listener))
            });
            let _ = fs::remove_file(door);
            done
        })?;
        Ok(waiting)
    });
    started.inspect_err(|_| {
        let _ = fs::remove_file(door);
    })
}

/// Creates both ends of the connection between a program and its supervisor, which may then run in any process. The program has the calling
/// process's descriptor limits, or those `given`.
///
/// # Errors
/// EMFILE, ENFILE: no descriptors are left. [`Unsupported`](ErrorKind::Unsupported): the program's limit is too low to reserve the numbers
/// that a supervisor needs.
pub fn pair(given: Option<Limit>) -> io::Result<(Waiting, Supervisor)> {
    let reserved = Reserved::choose(given)?;
    let (line, its) = UnixStream::pair()?;
    Ok((Waiting { line, reserved, is_ready: false }, Supervisor { line: its.into(), reserved }))
}

impl Waiting {
    /// Connects to a running supervisor that listens at `door`: [`take_over`](Self::take_over) puts the calling process under it.
    ///
    /// # Errors
    /// Nothing listens there, or there are no numbers to reserve.
    pub fn join(door: &Path) -> io::Result<Self> {
        let mut line = UnixStream::connect(door)?;
        line.set_read_timeout(Some(ARRIVAL))?;
        let mut numbers = [[0; 4]; 2];
        for number in &mut numbers {
            line.read_exact(number)?;
        }
        let [first, end] = numbers.map(u32::from_ne_bytes);
        Ok(Self { line, reserved: Reserved::chosen(first..end)?, is_ready: true })
    }

    /// The program's soft limit of descriptors, from [`Reserved`].
    pub fn soft_limit(&self) -> u64 {
        self.reserved.soft_limit()
    }

    /// Puts the calling process, and everything it starts, under the supervisor.
    ///
    /// # Errors
    /// The kernel does not support it, or the supervisor could not get ready. It may have exited before it reported the reason
    /// ([`UnexpectedEof`](ErrorKind::UnexpectedEof)). In either case the supervisor exits, and nothing has changed.
    pub fn take_over(mut self) -> io::Result<()> {
        // A filter cannot be removed: without a supervisor, all calls that it traps would fail.
        let mut errno = [0; size_of::<i32>()];
        if !self.is_ready {
            self.line.read_exact(&mut errno).map_err(|e| match e.kind() {
                ErrorKind::UnexpectedEof => io::Error::new(e.kind(), "it ended before it was ready"),
                _ => e,
            })?;
        }
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
    /// Waits for a program, and answers its calls in the calling thread until its last process has ended.
    ///
    /// # Errors
    /// No program came, or its calls can no longer be received.
    pub fn supervise(self, view: View) -> io::Result<()> {
        let sight = Sight::new(view)?;
        let reserved = self.reserved;
        supervise(self.audience()?, reserved, Some(sight), None)
    }

    /// The same for a container that is yet to be created: its hook makes a trapped call once it has shown the devices. Programs that are
    /// started there later pass their listeners in through `door` ([`Waiting::join`]).
    ///
    /// # Errors
    /// As for [`supervise`](Self::supervise).
    pub fn supervise_container(self, door: &UnixListener) -> io::Result<()> {
        let reserved = self.reserved;
        supervise(self.audience()?, reserved, None, Some(door))
    }

    /// Tells the launcher that the supervisor is ready, and waits for its program.
    fn audience(self) -> io::Result<Audience> {
        let mut line = UnixStream::from(self.line);
        let sockets = Sockets::new(self.reserved);
        let errno = sockets.as_ref().map_or_else(|e| e.raw_os_error().unwrap_or(libc::EIO), |_| 0);
        line.write_all(&errno.to_ne_bytes())?;
        let sockets = sockets?;
        Ok(Audience::new(sys::receive_descriptor(line.as_fd())?, sockets))
    }
}

/// The programs under one filter, and the files that the supervisor holds for them.
struct Audience {
    listener: Listener,
    sockets: Sockets,
    umads: Umads,
}

/// A view that is kept up to date.
struct Sight {
    projection: Projection,
    inventory: Inventory,
    live: Live,
    /// `None` where the host cannot report when a node is opened.
    visits: Option<sys::Visits>,
    /// The time since which programs may be on a node.
    awake: Option<Instant>,
}

impl Sight {
    /// Creates the view. From the program's first instruction on, its files show what the nodes have counted before.
    fn new(View { devices, follows, projection }: View) -> io::Result<Self> {
        let host = if project::host_has_devices()? { Host::open().ok() } else { None };
        let live = Live::new(&devices);
        let inventory = Inventory::new(devices, follows, host);
        let visits = sys::Visits::of(inventory.dirs()).ok();
        // A program may have come before the first check.
        let mut sight = Self { inventory, projection, live, visits, awake: Some(Instant::now()) };
        sight.inventory.look();
        sight.look();
        Ok(sight)
    }

    /// Shows changes of the nodes' devices and of their ports. If the system refuses, the view stays as it is until the devices change
    /// again, answers match the view, and `ironverbs doctor` reports it. Returns true if another check is needed.
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

    /// Brings the view up to date. Returns the time of the next update, even if no program opens a node.
    fn keep(&mut self) -> Option<Instant> {
        // Read before the check, so that the check sees the effects of programs that have ended by then.
        let peopled = self.inventory.observers().any(Observer::has_programs);
        let again = self.look();
        self.inventory.observers().next()?;
        // A program that has just opened the node may not have its slot yet.
        let arriving = self.awake.is_some_and(|since| since.elapsed() < ARRIVAL);
        self.awake = self.awake.filter(|_| arriving || peopled);
        (self.awake.is_some() || again || self.visits.is_none()).then(|| Instant::now() + PERIOD)
    }

    /// Called when a program opens a node.
    fn visited(&mut self) {
        self.visits.iter().for_each(sys::Visits::clear);
        self.awake = Some(Instant::now());
        self.inventory.look();
    }
}

impl Audience {
    fn new(listener: OwnedFd, sockets: Sockets) -> Self {
        Self { listener: Listener::from_descriptor(listener), sockets, umads: Umads::default() }
    }

    /// Answers the pending call.
    ///
    /// # Errors
    /// Calls can no longer be received.
    fn serve(&mut self, sight: &mut Option<Sight>) -> io::Result<()> {
        let notice = match self.listener.receive() {
            Ok(notice) => notice,
            // The caller was interrupted.
            Err(e) if matches!(e.raw_os_error(), Some(libc::ENOENT | libc::EINTR)) => return Ok(()),
            Err(e) => return Err(e),
        };
        if sight.is_none() {
            *sight = view_of(notice.thread).and_then(Sight::new).ok();
        }
        match sight {
            None if notice.call == libc::SYS_socket => {
                self.listener.answer(&notice, Err(libc::EPROTONOSUPPORT));
            }
            None => self.listener.pass(&notice),
            Some(sight) if notice.call == libc::SYS_read => {
                self.umads.read(&self.listener, &sight.inventory, &notice);
            }
            Some(sight) => match Process(notice.thread).other_root() {
                Some(root) => {
                    // Each container of an engine that runs in the view has some of the devices.
                    let shown = project::shown_below(&root).unwrap_or_default();
                    sight.inventory.as_seen(&shown, |inventory| self.reply(inventory, notice));
                }
                None => self.reply(&sight.inventory, notice),
            },
        }
        Ok(())
    }

    /// Handles a call of a program that sees the devices of `inventory`.
    fn reply(&mut self, inventory: &Inventory, notice: Notice) {
        if notice.call == libc::SYS_ioctl {
            self.umads.serve(&self.listener, inventory, &notice);
        } else {
            self.sockets.serve(&self.listener, inventory, notice);
        }
    }
}

/// Serves until no program is left. Without a view, takes that of the container's hook once it calls. Programs that are started later are
/// passed in through `door`.
fn supervise(
    first: Audience,
    reserved: Reserved,
    mut sight: Option<Sight>,
    door: Option<&UnixListener>,
) -> io::Result<()> {
    let mut audiences = vec![first];
    while !audiences.is_empty() {
        let deadlines = audiences.iter().filter_map(|audience| audience.sockets.next_deadline());
        let until = deadlines.chain(sight.as_mut().and_then(Sight::keep)).min();
        let visits = sight.as_ref().and_then(|sight| sight.visits.as_ref());
        let listeners = audiences.iter().map(|audience| audience.listener.as_fd());
        let umads = audiences.iter().flat_map(|audience| audience.umads.files());
        let files: Vec<_> =
            listeners.chain(visits.map(AsFd::as_fd)).chain(door.map(AsFd::as_fd)).chain(umads).collect();
        let (has_visits, mut ready) = (visits.is_some(), sys::wait(&files, until)?.into_iter());
        let calls: Vec<_> = ready.by_ref().take(audiences.len()).collect();
        let visited = has_visits && ready.next().is_some_and(|ready| ready.readable);
        let knocked = door.filter(|_| ready.next().is_some_and(|ready| ready.readable));
        if let Some(sight) = sight.as_mut().filter(|_| visited) {
            sight.visited();
        }
        for (audience, ready) in audiences.iter_mut().zip(&calls) {
            if ready.readable && !ready.over {
                audience.serve(&mut sight)?;
            }
            audience.sockets.expire(&audience.listener);
            if let Some(sight) = &sight {
                audience.umads.work(&sight.inventory);
            }
        }
        let mut over = calls.iter().map(|ready| ready.over);
        audiences.retain(|_| !over.next().unwrap_or_default());
        if let Some(door) = knocked {
            // Skips a caller that disconnects before it passes a listener.
            let guest = admitted(door, reserved).and_then(|listener| Ok((listener, Sockets::new(reserved)?)));
            audiences.extend(guest.ok().map(|(listener, sockets)| Audience::new(listener, sockets)));
        }
    }
    Ok(())
}

/// The view of the container that `thread`, which belongs to the hook, is in.
fn view_of(thread: u32) -> io::Result<View> {
    let (devices, projection) = inside::view_of(thread)?;
    Ok(View { devices, follows: Follows::Devices, projection })
}

/// Receives the listener of a caller at the door. The caller's programs have the `reserved` numbers.
fn admitted(door: &UnixListener, reserved: Reserved) -> io::Result<OwnedFd> {
    let (mut guest, _) = door.accept()?;
    guest.set_read_timeout(Some(ARRIVAL))?;
    let numbers = reserved.numbers();
    guest.write_all(&[numbers.start.to_ne_bytes(), numbers.end.to_ne_bytes()].concat())?;
    sys::receive_descriptor(guest.as_fd())
}
